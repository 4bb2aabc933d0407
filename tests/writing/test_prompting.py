"""Prompts become what the model was trained on: the tokens before the first learned one."""
import json
from pathlib import Path

import pytest
import tokenizers
from helpers import TINY, load, sentences, write_plan, write_rows

from lmplay.data.continuation import Cutter
from lmplay.data.samples import FORMS, choose_reading
from lmplay.generate.__main__ import main as generate
from lmplay.tokenizer import load_tokenizer
from lmplay.train.__main__ import main
from lmplay.writing.prompting import Prompting, recorded

ROWS = {"text": {"text": "A tale."}, "title": {"title": "Cats", "text": "A tale."}, "instruction": {"question": "Why?", "answer": "A tale."},
        "chat": {"messages": [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "A tale."}]}}
GIVEN = {"text": "", "title": "Cats", "instruction": "Why?", "chat": "Hello!"}


@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_has_the_tokens_that_training_gave(form):
    tokenizer = load_tokenizer("bytes")
    reading = choose_reading("s", ROWS[form], None)
    assert reading.begins == form
    sample = reading(ROWS[form])
    [piece] = Cutter(tokenizer, 64).cut(sample)
    assert Prompting(tokenizer, form).ids(GIVEN[form]) == piece.tokens[:piece.n_prompt].tolist()


def test_special_tokens_are_text_unless_they_are_markup():
    tokenizer = load_tokenizer("bytes")
    plain, markup = (Prompting(tokenizer, markup=markup).ids("a<|endoftext|>b") for markup in (False, True))
    assert (plain.count(tokenizer.end_id), markup.count(tokenizer.end_id)) == (1, 2)
    assert tokenizer.decode(plain) == "a<|endoftext|>b"


def test_plain_text_has_no_end_token_in_front_where_training_had_none():
    tokenizer = load_tokenizer("bytes")
    texts, titles = ({"a": [{"source": "s", "form": form}]} for form in ("text", "title"))
    assert recorded(tokenizer, texts).ids("x")[0] == recorded(tokenizer, {}).ids("x")[0] == tokenizer.end_id
    assert recorded(tokenizer, titles, "text").ids("x") == tokenizer.encode("x").ids.tolist()
    assert recorded(tokenizer, {**titles, **texts}, "text").ids("x")[0] == tokenizer.end_id
    assert recorded(tokenizer, titles).ids("") == [tokenizer.end_id]


def test_every_prompt_begins_with_the_begin_token_once_where_the_model_has_one():
    tokenizer = load_tokenizer("bytes")
    begun = {form: Prompting(tokenizer, form, begin_id=7) for form in FORMS}
    assert begun["text"].ids("x") == [7, *b"x"]
    assert begun["text"].ids("") == begun["title"].ids("") == [7]
    assert begun["instruction"].ids("x") == begun["text"].ids("", "x") == [7, *b"x\n\n"]
    assert begun["chat"].ids("x") == [7, *b"user: x\n\nassistant: "]
    assert begun["text"].ids("\7x") == [7, *b"x"]
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n<over>\n{% endfor %}"
    assert begun["chat"].ids("x") == Prompting(tokenizer, "chat").ids("x")  # its template says how a chat begins


def test_the_newest_stage_says_what_a_prompt_is():
    tokenizer = load_tokenizer("bytes")
    forms = {"a": [{"source": "s", "form": "chat", "chat": "plain"}], "b": [{"source": "t", "form": "instruction"}, {"source": "u", "form": "text"}]}
    assert recorded(tokenizer, forms).form == "instruction"
    assert recorded(tokenizer, forms, "chat").chat == "plain"


def test_the_mark_after_an_answer_ends_a_chat(tmp_path):
    fast = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "user": 2, "assistant": 3}, unk_token="[UNK]"))
    fast.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast.add_special_tokens(["<|endoftext|>", "<m>"])
    fast.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path))
    [mark] = tokenizer.encode_markup("<m>").ids.tolist()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }}<m>{% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
    assert Prompting(tokenizer, "chat").ends == {tokenizer.end_id, mark}
    assert Prompting(tokenizer, "chat").ids("a") == tokenizer.encode_markup("user a <m> assistant").ids.tolist()


def test_a_mark_of_several_tokens_is_a_stop_text():
    tokenizer = load_tokenizer("bytes")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}\n<over>\n{% endfor %}"
    assert Prompting(tokenizer, "chat").ends == {tokenizer.end_id}
    assert Prompting(tokenizer, "chat").stop_texts == ("<over>",)
    assert Prompting(tokenizer, "text").stop_texts == ()


def test_a_checkpoint_says_the_form_of_each_source_and_the_generator_reads_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "tales.jsonl", [{"title": "Cats", "text": sentences(1)} for _ in range(12)])
    write_rows(tmp_path / "asked.jsonl", [{"question": "Why?", "answer": sentences(1)} for _ in range(12)])
    write_plan(tmp_path, {"one": {"dataset": "tales.jsonl"}, "two": {"dataset": ["asked.jsonl", "tales.jsonl"]}})
    (tmp_path / "prompts.txt").write_text("Why?\n")
    assert main([*TINY, "--training-plan", "plan.json", "--model", "m", "--save-weights-only", "w.lmp", "--sample-prompts", "prompts.txt",
                 "--sample-tokens", "8", "--sample-temperature", "0"]) == 0
    for name in ("m", "w"):
        forms = load(Path(f"out_gpt/{name}.lmp"))["model"]["state_args"]["forms"]
        assert {stage: [(one["source"], one["form"]) for one in sources] for stage, sources in forms.items()} == {
            "one": [("tales.jsonl", "title")], "two": [("asked.jsonl", "instruction"), ("tales.jsonl", "title")]}
    capsys.readouterr()
    flags = ["--model", "m", "--prompt", "Why?", "--max-tokens", "8", "--greedy", "--json"]
    texts = {}
    for form in (None, *FORMS):
        assert generate([*flags, *(["--as", form] if form else [])]) == 0
        found = capsys.readouterr()
        texts[form] = json.loads(found.out)["text"]
        assert ("a prompt is read as an instruction" in found.err) is (form is None)
    assert texts[None] == texts["instruction"]
    last = json.loads(Path("out_gpt/m_samples.jsonl").read_text().splitlines()[-1])
    assert last["text"] == texts[None]
    assert generate(["--model", "m", "--title", "a", "--as", "chat"]) == 2
