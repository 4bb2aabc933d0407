"""Rows of tasks become samples whose truth is the answer to judge by."""
import pytest

from lmplay.data.samples import choose_reading
from lmplay.data.turns import Skipped
from lmplay.errors import UserError


def read(row, **options):
    return choose_reading("tasks", row, None, tasks=True, rows=[row], **options)(row)


@pytest.mark.parametrize("row", [{"prompt": "2+3=", "answer": "5"}, {"question": "2+3=", "answer": "5"}, {"prompt": "2+3=", "answer": 5},
                                 {"instruction": "2+3=", "output": "5"}, {"prompt": "2+3=", "completion": "5", "text": "something else"}])
def test_usual_names(row):
    sample = read(row)
    assert (sample.prompt, sample.truth, sample.turns) == ("2+3=\n\n", "5", ())


def test_a_prompt_of_messages_is_a_chat_of_which_only_the_answer_is_judged():
    asked = [{"role": role, "content": said} for role, said in (("system", "Add."), ("user", "1+1"), ("assistant", "2"), ("user", "2+3"))]
    reading = choose_reading("tasks", ["prompt", "answer"], None, tasks=True, rows=[{"prompt": asked, "answer": 5.5}])
    sample = reading({"prompt": asked, "answer": 5.5})
    assert [(turn.role, turn.content, turn.learned) for turn in sample.turns] == [
        ("system", "Add.", False), ("user", "1+1", False), ("assistant", "2", False), ("user", "2+3", False), ("assistant", "5.5", True)]
    assert sample.truth == "5.5"
    assert reading.begins == "chat"


def test_columns_name_the_fields():
    row = {"ask": "2+3=", "sum": "5"}
    reading = choose_reading("tasks", row, {"prompt": "ask", "truth": "sum"}, tasks=True)
    assert reading(row).truth == "5"
    with pytest.raises(UserError, match="learns from tasks: name prompt and truth"):
        choose_reading("tasks", row, {"text": "ask"}, tasks=True)


@pytest.mark.parametrize(("row", "reason"), [({"prompt": "2+3=", "answer": None}, "null"), ({"prompt": "2+3=", "answer": " "}, "empty"),
                                             ({"prompt": "2+3=", "answer": True}, "not text"), ({"prompt": [], "answer": "5"}, "no question"),
                                             ({"prompt": [{"role": "assistant", "content": "a"}], "answer": "5"}, "no question"),
                                             ({"prompt": "2+3="}, "without 'answer'")])
def test_rows_that_are_no_tasks_are_skipped(row, reason):
    reading = choose_reading("tasks", ["prompt", "answer"], None, tasks=True, rows=[{"prompt": "1", "answer": "1"}])
    with pytest.raises(Skipped, match=reason):
        reading(row)


@pytest.mark.parametrize("fields", [["text"], ["messages"], ["title", "text"], ["chosen", "rejected"]])
def test_sources_without_tasks_are_refused(fields):
    with pytest.raises(UserError, match=r"learns from tasks, and there is no column with a prompt beside one with its answer \(its columns: .*\"truth\""):
        choose_reading("tasks", fields, None, tasks=True)
