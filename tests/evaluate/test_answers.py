"""`lmp_eval` on rows with right answers: multiple choice, preferences, exact match and pass@k."""
from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from exported import SIZES, logits, model_file, stirred
from helpers import SHARED, generate, write_rows
from hypothesis import given
from hypothesis import strategies as st

from lmplay.evaluate.command import run
from lmplay.evaluate.problems import is_right, number_in, pass_at
from lmplay.evaluate.rows import Pair, read_pairs
from lmplay.evaluate.sets import read_set
from lmplay.tokenizer import load_tokenizer

QUESTIONS = [{"question": f"The {word} is", "choices": ["öäüß", "an animal", "no"], "answer": (2, 2, 1)[number % 3]}
             for number, word in enumerate(("cat", "größe", "dog", "12", "owl", "x", "yes", "a", "b", "#"))]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    model_file(tmp_path / "m.lmp", "gpt2ish", context_len=128)
    return tmp_path


def evaluate(capsys, *arguments) -> dict:
    assert run(["./m.lmp", *map(str, arguments), "--json", "-", "--device", "cpu"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)["evaluations"][0]


def figures(found: dict) -> dict[str, float]:
    return {name: one["value"] for name, one in found["figures"].items()}


def log_p(given: list[int], answer: list[int]) -> float:
    """Of an answer, token by token, in float64."""
    model = stirred("gpt2ish", 257, context_len=128).double()
    every = logits(model, torch.tensor([[*given, *answer]]))[0].log_softmax(-1)
    return sum(float(every[len(given) - 1 + number, token]) for number, token in enumerate(answer))


def by_hand() -> dict[str, float]:
    right = {"acc": 0, "acc_norm": 0}
    for row in QUESTIONS:
        scores = [log_p([256, *row["question"].encode()], [*f" {choice}".encode()]) for choice in row["choices"]]
        by_length = [score / len(choice) for score, choice in zip(scores, row["choices"], strict=True)]
        right["acc"] += scores.index(max(scores)) == row["answer"]
        right["acc_norm"] += by_length.index(max(by_length)) == row["answer"]
    return {name: count / len(QUESTIONS) for name, count in right.items()}


def test_multiple_choice_is_by_the_probability_of_the_choices(capsys):
    found = evaluate(capsys, "--choices", write_rows(Path("q.jsonl"), QUESTIONS))
    assert figures(found) == pytest.approx(by_hand())
    assert len({0, 1, *figures(found).values()}) == 4
    assert found["documents"] == len(QUESTIONS)


@pytest.mark.parametrize("form", [
    lambda row: {"Question": row["question"], "options": row["choices"], "label": "ABC"[row["answer"]]},
    lambda row: {"ctx": row["question"], "endings": row["choices"], "label": str(row["answer"])},
    lambda row: {"question": row["question"], "choices": {"text": row["choices"], "label": ["1", "2", "3"]}, "answerKey": str(row["answer"] + 1)},
    lambda row: {"question": row["question"], "choices": row["choices"], "answer": row["choices"][row["answer"]]}])
def test_the_usual_forms_of_rows_are_read_alike(capsys, form):
    found = evaluate(capsys, "--choices", write_rows(Path("q.jsonl"), [form(row) for row in QUESTIONS]))
    assert figures(found) == pytest.approx(by_hand())


def test_all_columns_of_a_parquet_file_are_read(capsys):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(QUESTIONS), "q.parquet")
    assert figures(evaluate(capsys, "--choices", "q.parquet")) == pytest.approx(by_hand())


def test_preferences_are_by_the_probability_of_the_whole_answer_and_its_end(capsys):
    scores = {word: [log_p([256, *b"Say it."], [*f" {word}".encode(), *end]) for end in ([], [256])] for word in "abcdefghij"}
    pairs = [(one, other) for one, other in itertools.permutations(scores, 2) if scores[one][0] < scores[other][0] and scores[one][1] > scores[other][1]]
    assert pairs  # those that the end token decides
    rows = [{"prompt": "Say it.", "chosen": one, "rejected": other} for one, other in (*pairs[:3], pairs[0][::-1], ("x", "x"))]
    found = evaluate(capsys, "--preferences", write_rows(Path("p.jsonl"), rows))
    assert figures(found)["acc"] == pytest.approx((min(3, len(pairs)) + 0.5) / len(rows))


def test_preferences_of_chats_are_written_out_as_chats(capsys):
    prompt = [{"role": "user", "content": "Hi"}]
    rows = [{"prompt": prompt, "chosen": [{"role": "assistant", "content": one}], "rejected": [{"role": "assistant", "content": other}]}
            for one, other in (("yes", "no"), ("no", "yes"), ("cat", "x"))]
    whole = [{side: [*prompt, *row[side]] for side in ("chosen", "rejected")} for row in rows]
    found = evaluate(capsys, "--preferences", write_rows(Path("p.jsonl"), rows))
    again = evaluate(capsys, "--preferences", write_rows(Path("w.jsonl"), whole))
    head = [*b"user: Hi\n\nassistant: "]
    acc = sum(log_p(head, [*row["chosen"][0]["content"].encode(), 256]) > log_p(head, [*row["rejected"][0]["content"].encode(), 256]) for row in rows) / 3
    assert figures(found)["acc"] == figures(again)["acc"] == pytest.approx(acc)


def test_preferences_are_read_as_training_reads_them(tmp_path):
    ask, answers = {"role": "user", "content": "Hi"}, [[{"role": "assistant", "content": text}] for text in ("yes", "no")]
    kind = {"role": "system", "content": "Be kind."}

    def read(**row) -> Pair:
        [pair] = read_pairs(read_set("--preferences", str(write_rows(tmp_path / "p.jsonl", [row])), tmp_path, None))
        return pair

    chats = {side: [ask, *answer] for side, answer in zip(("chosen", "rejected"), answers, strict=True)}
    alone = {"chosen": answers[0], "rejected": answers[1]}
    for row in ({"prompt": "Hi", **chats, "system": "Be kind."}, {"prompt": [kind, ask], **alone}, {"prompt": "Hi", **alone, "System_Prompt": "Be kind."}):
        pair = read(**row)
        assert [(turn.role, turn.content) for turn in pair.prompt] == [("system", "Be kind."), ("user", "Hi")]
        assert (pair.chosen, pair.rejected) == ("yes", "no")
    assert read(prompt="Hi", chosen="yes", rejected="no", system="Be kind.") == Pair("Be kind.\n\nHi", "yes", "no")
    assert read(chosen="Human: hi a", rejected="Human: hi b") == Pair("Human: hi", " a", " b", goes_on=True)


def test_answers_that_go_on_from_what_they_share_are_read_as_texts(monkeypatch):
    model_file(Path("c.lmp"), "gpt2ish", forms={"a": [{"source": "s", "form": "chat", "chat": "plain"}, {"source": "t", "form": "text"}]}, context_len=128)
    write_rows(Path("p.jsonl"), [{"chosen": "Human: hi a", "rejected": "Human: hi b"}])
    read = []
    monkeypatch.setattr("lmplay.evaluate.choices.log_probs", lambda model, texts, reading: [read.append(bytes(text.ids[1:-1].astype("uint8"))) or 0.0
                                                                                         for text in texts])
    assert run(["./c.lmp", "--preferences", "p.jsonl", "--device", "cpu"]) == 0
    assert read == [b"Human: hi a", b"Human: hi b"]


def test_an_answer_longer_than_the_context_is_scored_whole(capsys):
    rows = [{"prompt": "a", "chosen": "b" * 500, "rejected": "c" * 3}, {"prompt": "d" * 400, "chosen": "e", "rejected": "f"}]
    assert evaluate(capsys, "--preferences", write_rows(Path("p.jsonl"), rows))["documents"] == 2


def test_exact_match_is_of_what_lmp_generator_writes(capsys):
    prompts = ["The cat", "A dog", "12 +", "x"]
    write_rows(Path("prompts.jsonl"), [{"prompt": prompt} for prompt in prompts])
    code, said, _ = generate(capsys, "--model", "./m.lmp", "--prompts", "prompts.jsonl", "--greedy", "--json", "--max-tokens", 9, "--device", "cpu")
    texts = [json.loads(line)["text"] for line in said.splitlines()]
    assert code == 0
    rows = [{"prompt": prompt, "answer": text.strip() + ("?" if number == 1 else "")} for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True))]
    found = evaluate(capsys, "--answers", write_rows(Path("a.jsonl"), rows), "--max-tokens", 9, "--extract", "text", "--batch-size", 3)
    lines = [is_right(text, row["answer"], "text") for text, row in zip(texts, rows, strict=True)]
    assert figures(found) == {"exact_match": sum(lines) / 4}
    assert lines[1] is False
    assert any(lines)


def test_pass_at_k_is_of_seeded_samples(capsys):
    rows = [{"prompt": f"n{number}", "answer": str(number)} for number in range(12)]
    write_rows(Path("a.jsonl"), rows)
    command = ["--answers", "a.jsonl", "--samples", 6, "--pass-at", 1, 3, 6, "--temperature", 1.5, "--max-tokens", 24]
    found = evaluate(capsys, *command)
    assert figures(found) == figures(evaluate(capsys, *command, "--batch-size", 5))
    one, three, six = figures(found).values()
    assert 0 < one < three < six
    assert figures(evaluate(capsys, *command, "--seed", 1)) != figures(found)
    assert found["settings"]["extract"] == "number"


def test_the_table_says_how_answers_were_written(capsys):
    rows = write_rows(Path("a.jsonl"), [{"prompt": "n", "answer": "1"}] * 2)
    assert run(["./m.lmp", "--answers", str(rows), "--stop", "x", "--max-tokens", "4", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "a (answers): 2 documents, samples 1, temperature 0.0, max tokens 4, seed 0, extract number, stop 'x', form text" in said
    assert "exact_match" in said


def test_a_text_ends_before_a_stop_text(capsys):
    code, said, _ = generate(capsys, "--model", "./m.lmp", "--prompt", "The cat", "--greedy", "--json", "--max-tokens", 30, "--device", "cpu")
    text = json.loads(said)["text"]
    assert code == 0
    stop = next(letter for letter in text[3:] if letter.isprintable() and letter != "\ufffd")
    rows = write_rows(Path("a.jsonl"), [{"prompt": "The cat", "answer": text[:text.index(stop)] or "empty"}])
    assert figures(evaluate(capsys, "--answers", rows, "--stop", stop, "--max-tokens", 30, "--extract", "text"))["exact_match"] == float(text.index(stop) > 0)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_texts_with_a_right_one(samples, data):
    right, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    texts = [True] * right + [False] * (samples - right)
    drawn = [any(chosen) for chosen in itertools.combinations(texts, k)]
    assert pass_at(samples, right, k) == pytest.approx(sum(drawn) / len(drawn))


@pytest.mark.parametrize(("text", "number"), [("so 3 + 4 = 7", "7"), ("#### 1,234", "1234"), ("1 #### 5 and 6", "5"),
                                              ("it is $-3.50.", "-3.5"), ("cost -$4", "-4"), ("#### none", None), ("7 #### none", "7"), ("nothing", None),
                                              ("18.00", "18"), ("a ٣", "3"), ("Answer:\n- 18", "18"), ("- $18", "18"), ("between 3-7", "7"), ("10 - 3", "3"),
                                              ("x-3", "3"), ("$5-$7", "7"), ("(2)-7", "7"), ("is -18", "-18"), ("=-.5", "-0.5"), ("(-4)", "-4"),
                                              ("$ 4", "4"), ("#### -7", "-7"), ("-1,234", "-1234")])
def test_the_number_of_an_answer(text, number):
    from decimal import Decimal

    assert number_in(text) == (None if number is None else Decimal(number))


@pytest.mark.skipif(not (SHARED / "gsm8k").is_dir(), reason="the shared texts are not here")
def test_the_numbers_of_gsm8k_are_those_that_it_says():
    rows = [json.loads(line) for line in (SHARED / "gsm8k" / "test.jsonl").read_text().splitlines()]
    assert all(is_right(row["answer"], row["final_answer"], "number") for row in rows)


def refused(capsys, *arguments) -> str:
    assert run(["./m.lmp", *map(str, arguments), "--device", "cpu"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lmp_eval: ")]
    assert len(said) == 1, said
    return said[0]


@pytest.mark.parametrize(("flag", "row", "words"), [
    ("--choices", {"question": "a", "answer": 0}, "rows.jsonl, line 2: has no field for the choices"),
    ("--choices", {"question": "a", "choices": ["x"], "answer": 0}, "line 2: its choices must be a list of at least two texts"),
    ("--choices", {"question": "a", "choices": ["x", "y"], "answer": 2}, "line 2: the answer '2' is none of its 2 choices"),
    ("--choices", {"question": "a", "choices": ["x", "y"], "answer": -1}, "line 2: the answer '-1' is none"),
    ("--choices", {"question": "a", "choices": ["x", "y"]}, "line 2: has no field for the right answer"),
    ("--preferences", {"prompt": "a", "chosen": "b"}, "line 2: has no field for the rejected answer"),
    ("--preferences", {"prompt": "a", "chosen": "b", "rejected": 3}, "line 2: prompt, chosen and rejected must be texts"),
    ("--answers", {"prompt": "a", "text": "b"}, "line 2: has no field for the answer"),
    ("--answers", {"prompt": ["a"], "answer": "b"}, "line 2: the prompt must be a text")])
def test_a_row_that_lacks_something_is_named(capsys, flag, row, words):
    good = {"question": "a", "prompt": "a", "choices": ["x", "y"], "answer": 0, "chosen": "b", "rejected": "c"}
    assert words in refused(capsys, flag, write_rows(Path("rows.jsonl"), [good, row]))


def test_numbers_that_contradict_each_other_are_refused(capsys):
    write_rows(Path("a.jsonl"), [{"prompt": "a", "answer": "b"}])
    assert "--pass-at 9: allowed is a whole number from 1 to the 4 of --samples" in refused(capsys, "--answers", "a.jsonl", "--samples", 4, "--pass-at", 9)
    assert "all texts of a prompt would be the same" in refused(capsys, "--answers", "a.jsonl", "--samples", 4, "--temperature", 0)
    assert "--temperature -1.0" in refused(capsys, "--answers", "a.jsonl", "--temperature", -1)
    Path("none.jsonl").write_text("")
    assert "none.jsonl" in refused(capsys, "--choices", "none.jsonl")
    assert SIZES["context_len"] < 128


@pytest.mark.parametrize(("flag", "row"), [("--choices", {"question": "a", "choices": ["an animal", "日本"], "answer": 0}),
                                           ("--preferences", {"prompt": "a", "chosen": "an animal", "rejected": "日本"})])
def test_an_answer_without_tokens_is_refused_and_does_not_win(capsys, flag, row):
    from tokenizers import Tokenizer, models

    letters = {letter: number for number, letter in enumerate([*"abcdefghijklmnopqrstuvwxyz .", "<end>"])}
    spec = {"kind": "fast", "name": "letters", "json": Tokenizer(models.BPE(letters, [])).to_str(), "end_id": letters["<end>"]}
    model_file(Path("m.lmp"), "gpt2ish", type(load_tokenizer("bytes"))(spec), context_len=128)
    assert "the answer '日本' has no tokens in the tokenizer of" in refused(capsys, flag, write_rows(Path("rows.jsonl"), [row]))
