"""Rows to samples: which fields are read."""
import pytest

from lmplay.data.samples import BREAK, choose_reading
from lmplay.errors import UserError


def test_the_usual_names_of_fields_are_found():
    def read(row, roles=None):
        sample = choose_reading("x", row, roles)(row)
        return sample.prompt, sample.truth

    assert read({"id": "1", "Text": "words", "title": "A"}) == ("A" + BREAK, "words")
    assert read({"text": "words", "title": None}) == ("", "words")
    assert read({"prompt": "q", "truth": "a"}) == ("q" + BREAK, "a")
    assert read({"question": "q", "answer": "a"}) == ("q" + BREAK, "a")
    assert read({"instruction": "do", "input": "this", "output": "done"}) == (f"do{BREAK}this{BREAK}", "done")
    assert read({"instruction": "do", "input": "", "output": "done"}) == ("do" + BREAK, "done")
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "bye"}]
    assert read({"messages": chat}) == (f"user: hi{BREAK}assistant: ", "hello")
    assert read({"a": "x", "b": "y"}, {"prompt": "a", "truth": "b"}) == ("x" + BREAK, "y")
    assert read({"body_text": "x"}, {"text": "body_text"}) == ("", "x")


def test_a_source_without_text_says_which_columns_it_has():
    with pytest.raises(UserError, match="its columns: id, label"):
        choose_reading("x", ["id", "label"], None)
    with pytest.raises(UserError, match=r"maps text to 'body', which is not there \(its columns: id"):
        choose_reading("x", ["id"], {"text": "body"})
