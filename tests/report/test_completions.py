"""The texts that are written while a run goes on."""
import json
import sys
from pathlib import Path

import pytest
import torch
from helpers import differences, load
from texts import BYTES
from watched import NAME, columns, train

from lmplay.report import completions
from lmplay.report.completions import CompletionWriter
from lmplay.writing.prompting import Prompting


def samples():
    return [json.loads(line) for line in Path(f"out/{NAME}_samples.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]


def test_prompts_are_gone_on_with_at_each_validation_and_no_bit_is_changed(watched_folder):
    (watched_folder / "prompts.txt").write_text("The cat\n\nÀ la \u2028recherche\n", encoding="utf-8")
    more = ["--sample-prompts", "prompts.txt", "--sample-tokens", 12, "--dropout", 0.1]
    train(*more)
    whole = samples()
    plain = load(watched_folder / "out" / f"{NAME}.lmp")
    steps, _ = columns("validate")
    assert [row["step"] for row in whole[::3]] == steps["step"]  # one line a prompt a validation, a step with two of them once
    assert [row["samples"] for row in whole[::3]] == steps["samples"]
    assert {row["stage"] for row in whole} == {"one", "two"}
    assert [row["prompt"] for row in whole] == ["The cat", "", "À la \u2028recherche"] * len(steps["step"])
    assert len({row["text"] for row in whole}) > len(steps["step"])
    assert all(len(row["text"]) <= 12 for row in whole)
    assert len((watched_folder / "out" / f"{NAME}_samples.jsonl").read_text(encoding="utf-8").splitlines()) == len(whole)

    train("--dropout", 0.1, "--reset-history")
    assert differences(plain, load(watched_folder / "out" / f"{NAME}.lmp")) == []
    assert (watched_folder / "out" / f"{NAME}.old-1" / f"{NAME}_samples.jsonl").exists()

    train("--reset-history", *more, "--callback", "watching:Listen", "--max-steps", 6, code=75)
    cut_off = '{"step": 6, "samp'
    with open(f"out/{NAME}_samples.jsonl", "a", encoding="utf-8") as file:  # as after a kill
        file.write(json.dumps({**whole[0], "step": 7}) + "\n" + cut_off)
    train(*more, "--callback", "watching:Listen")
    assert samples() == whole
    heard = sys.modules["watching"].HEARD
    assert [row for kind, *told in heard if kind == "samples" for row in told[0]] == whole
    assert [told[0] for kind, *told in heard if kind == "past samples"] == [[], [row for row in whole if row["step"] <= 6]]


def test_samples_are_what_lmp_generator_writes_from_the_weights_of_the_step(watched_folder, capsys):
    (watched_folder / "prompts.txt").write_text("The cat\n")
    train("--sample-prompts", "prompts.txt", "--sample-tokens", 8)
    from lmplay.data.permutation import hash64
    from lmplay.exp import build_model, get_experiment
    from lmplay.tokenizer import Tokenizer
    from lmplay.writing.generation import generate
    from lmplay.writing.sampling import Sampling

    content = load(watched_folder / "out" / f"{NAME}.lmp")["model"]
    tokenizer = Tokenizer(content["state_args"]["tokenizer"])
    model = build_model(get_experiment(content["state_args"]["experiment"]), vocab_size=tokenizer.vocab_size, **content["state_args"]["args"])
    model.load_state_dict(content["state"])
    last = samples()[-1]
    prompt = [tokenizer.end_id, *tokenizer.encode("The cat").ids.tolist()]
    steps = generate(model, [prompt], tokenizer.end_id, 48, Sampling(temperature=0.8), [hash64(0, last["step"], 0) >> 1], 8, use_cache=False)
    assert tokenizer.decode([token for [token] in steps]) == last["text"]


def test_count_length_and_temperature_are_flags(watched_folder, capsys):
    (watched_folder / "prompts.txt").write_text("The cat\nA\n")
    given = ["--sample-prompts", "prompts.txt", "--sample-tokens", 5, "--max-steps", 5, "--tokenizer", "bytes"]
    train(*given, code=75)
    one = samples()
    assert all(len(row["text"].encode("utf-8", "replace")) <= 15 for row in one)
    train(*given, "--reset-history", "--sample-count", 3, code=75)
    three = samples()
    assert [row["prompt"] for row in three[:6]] == ["The cat"] * 3 + ["A"] * 3
    assert three[::3] == one  # the first is what it is alone
    assert len({row["text"] for row in three[:3]}) > 1
    train(*given, "--reset-history", "--sample-count", 2, "--sample-temperature", 0, code=75)
    greedy = samples()
    assert greedy[::2] == greedy[1::2]


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), (b"", "is empty"), (b"\xff\xfe\xfd", "not UTF-8")])
def test_prompts_that_cannot_be_read_are_refused(watched_folder, capsys, content, words):
    if content is not None:
        (watched_folder / "prompts.txt").write_bytes(content)
    train("--sample-prompts", "prompts.txt", code=2)
    [line] = capsys.readouterr().err.splitlines()
    assert "--sample-prompts prompts.txt" in line
    assert words in line
    assert not (watched_folder / "out").exists()


@pytest.mark.parametrize("error", [TypeError("Cannot convert a MPS Tensor to float64 dtype"), RuntimeError("CUDA error"), torch.OutOfMemoryError()])
def test_a_text_that_cannot_be_written_is_one_warning_and_not_the_end_of_the_run(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(completions, "generate", fail)
    said, model = [], torch.nn.Linear(1, 1)
    writer = CompletionWriter(["a", "b"], tmp_path / "samples.jsonl", 5, 0, said.append)
    for step in (1, 2):
        assert writer.write(model, Prompting(BYTES), 16, step, lambda: False) == []
    assert len(said) == 1
    assert model.training
