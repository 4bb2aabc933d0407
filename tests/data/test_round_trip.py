"""A tokenizer that cannot write the text is found at the start."""
import json
import math

import pytest
import tokenizers
from helpers import TINY, sentences, write_plan, write_rows
from tokenizers import models, pre_tokenizers, trainers

from lmplay.tokenizer import load_tokenizer
from lmplay.train.__main__ import main

SHORT, ENGLISH, JAPANESE = sentences(2), sentences(30), "日本語の文章はここにある。" * 20


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A tokenizer of English words' parts, with nothing for other characters."""
    monkeypatch.chdir(tmp_path)
    fast = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    fast.train_from_iterator([ENGLISH] * 9, trainers.BpeTrainer(vocab_size=90, special_tokens=["<unk>", "</s>"], show_progress=False))
    fast.save("tokenizer.json")
    return tmp_path


@pytest.mark.parametrize(("texts", "code", "said"), [
    ([ENGLISH] * 12, 75, None), ([ENGLISH + JAPANESE[:20]] * 12, 75, "cannot write"), ([JAPANESE + " the"] * 12, 2, "Choose one that has all bytes")])
@pytest.mark.parametrize("flags", [["--max-steps", "1"], ["--check-plan"]], ids=["train", "check-plan"])
def test_what_cannot_be_written_is_said(folder, capsys, texts, code, said, flags):
    write_rows(folder / "rows.jsonl", [{"text": f"{text} {number}"} for number, text in enumerate(texts)])
    write_plan(folder, {"one": {"dataset": "rows.jsonl", "epochs": 1}})
    arguments = [word for word in TINY if word not in ("--tokenizer", "bytes")]
    found = main([*arguments, "--tokenizer", "tokenizer.json", "--batch-size", "5", "--training-plan", "plan.json", *flags])
    captured = capsys.readouterr()
    assert found == (0 if code == 75 and flags == ["--check-plan"] else code), captured.err
    assert ("cannot write" in captured.out + captured.err) == (said is not None)
    assert said is None or said in captured.out + captured.err


def test_the_characters_that_are_lost_are_counted(folder):
    tokenizer = load_tokenizer("tokenizer.json")
    assert not tokenizer.writes_all
    assert not tokenizer.lost(ENGLISH)
    assert tokenizer.lost("the 日本 cat 語") == {"日": 1, "本": 1, "語": 1}
    assert load_tokenizer("bytes").writes_all
    assert json.loads(tokenizer.spec["json"])["model"]["unk_token"] == "<unk>"


def test_bytes_lost_are_counted_in_the_statistics_and_bits_per_byte_are_of_the_others(folder):
    write_rows(folder / "rows.jsonl", [{"text": f"{SHORT} {JAPANESE[:20]} cat {number}"} for number in range(12)])
    write_rows(folder / "judged.jsonl", [{"text": f"{SHORT} {JAPANESE[:20]} cat"}] * 4)
    write_plan(folder, {"one": {"dataset": "rows.jsonl", "epochs": 1, "validation": {"dataset": "judged.jsonl"}}})
    arguments = [word for word in TINY if word not in ("--tokenizer", "bytes")]
    assert main([*arguments, "--tokenizer", "tokenizer.json", "--batch-size", "40", "--training-plan", "plan.json"]) == 0
    train, step, judged = (json.loads((folder / f"out_gpt/gpt2ish_model_{name}_stats.json").read_text())
                           for name in ("train", "step_one_train", "validate"))
    assert sum(train["columns"]["bytes_lost"]) == train["totals"]["bytes_lost"] == sum(step["columns"]["bytes_lost"]) == 60 * train["columns"]["samples"][-1]
    found = judged["judged"]["held_out"]
    assert found["n_bytes"] == 4 * len(f"{SHORT}  cat".encode())
    assert found["bits_per_byte"] == pytest.approx(sum(found["loss_sum"]) / found["n_bytes"] / math.log(2))
    assert judged["columns"]["bytes_lost"][-1] == 4 * 60
