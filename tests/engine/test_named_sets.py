"""Named sets (`evaluate`): their figures against a loop in float64, when they come, and that training is what it would be without them."""
import csv
import itertools
import json
import math
import os
import random
import re
import signal
from pathlib import Path

import pytest
import torch
from helpers import compare_runs, differences, load, sentences, train, train_plan, write_plan, write_rows

from lmplay.checkpoints.format import write
from lmplay.exp.gpt2ish import GPT2ish

MODEL = Path("out_gpt/gpt2ish_model.lmp")
END = 256  # of the tokenizer of bytes


def stats(stage="", folder="out_gpt"):
    return json.loads(Path(f"{folder}/gpt2ish_model{stage}_validate_stats.json").read_text())


def at(name, column="samples", **where):
    return stats(**where)["sets"][name]["columns"][column]


@pytest.fixture
def sets(corpus):
    """Rows to train on, and sets of rows: short ones with a prompt, of which one cannot be read, short ones without, and long ones."""
    write_rows(corpus / "short.jsonl", [*({"prompt": f"Q{i}", "truth": f"Dög {i}."} for i in range(9)), {"prompt": "Q", "truth": ""}])
    write_rows(corpus / "plain.jsonl", [{"text": f"Cät {i} sat."} for i in range(5)])
    write_rows(corpus / "long.jsonl", [{"text": sentences(1 + i % 7, f"dög {i}")} for i in range(11)])
    return corpus


def reference(rows):
    """Add up losses (nats), tokens and bytes of a checkpoint's model on rows that fit the context, one by one, in float64."""
    content = load(MODEL)["model"]
    model = GPT2ish(vocab_size=END + 1, **content["state_args"]["args"])
    model.load_state_dict(content["state"])
    model = model.double().eval()
    nats, tokens, n_bytes = [], 0, 0
    with torch.no_grad():
        for row in rows:
            given = [*f"{row['prompt']}\n\n".encode()] if "prompt" in row else [END]
            truth = [*(row["truth"] if "prompt" in row else row["text"]).encode(), END]
            ids = torch.tensor([given + truth])
            scores = torch.log_softmax(model.head(model(ids[:, :-1]))[0], dim=-1)
            nats.append(-sum(float(scores[place - 1, ids[0, place]]) for place in range(len(given), ids.shape[1])))
            tokens, n_bytes = tokens + len(truth), n_bytes + len(truth) - 1
    return nats, tokens, n_bytes


def test_the_figures_are_those_of_a_plain_loop(sets, capsys):
    write_plan(sets, {"one": {"dataset": "rows.jsonl", "samples": 15, "lr": 0.01, "evaluate": {name: f"{name}.jsonl" for name in ("short", "plain", "long")}}})
    said = train_plan(capsys)
    for name, count in (("short", 9), ("plain", 5)):
        nats, tokens, n_bytes = reference([json.loads(line) for line in Path(f"{name}.jsonl").read_text().splitlines()][:count])
        found, loss = stats()["judged"][name], sum(nats) / tokens
        assert (found["n_samples"], found["n_tokens"], found["n_bytes"]) == (count, tokens, n_bytes)
        assert found["loss"] == pytest.approx(loss, rel=1e-5)
        assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)
        assert found["bits_per_byte"] == pytest.approx(sum(nats) / n_bytes / math.log(2), rel=1e-5)
        assert found["loss_sum"] == pytest.approx(nats, rel=1e-4)
        for key in ("loss", "perplexity", "bits_per_byte"):
            assert at(name, key) == [found[key]] == at(name, key, stage="_step_one")
    texts = [json.loads(line)["text"] for line in Path("long.jsonl").read_text().splitlines()]
    long = stats()["judged"]["long"]
    assert (long["n_bytes"], long["n_tokens"]) == (len("".join(texts).encode()), len("".join(texts).encode()) + len(texts))  # every byte once
    summary = said[said.index("plan complete"):]
    figures = [f"{found[key]:.4f}" for key in ("loss", "standard_error")] + [f"{found['perplexity']:.2f}", f"{found['bits_per_byte']:.4f}"]
    assert re.search(" +".join(["plain", "5", str(tokens), *figures]), summary)
    assert re.search("evaluation of short: .* of 9 samples and .*; left out: 1 ", said)


def test_sets_come_at_their_intervals_and_at_the_ends_of_stages_once(sets, capsys):
    write_plan(sets, {"$defaults": {"batch_size": 5, "evaluate": {"short": {"dataset": "short.jsonl", "interval": "3steps"}, "long": "long.jsonl"}},
                      "one": {"dataset": "rows.jsonl", "steps": 6},
                      "two": {"dataset": "rows.jsonl", "steps": 4, "evaluate": {"long": None, "more": {"dataset": "long.jsonl", "interval": "2steps"}}}})
    train_plan(capsys, "--track", "csv")
    assert [at(name, "step") for name in ("short", "long", "more")] == [[3, 6, 9, 10], [6], [8, 10]]
    assert at("short", "step", stage="_step_two") == [9, 10]
    rows = list(csv.DictReader(Path("out_gpt/gpt2ish_model_evaluate.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["set"], int(row["step"])) for row in rows] == [("short", 3), ("short", 6), ("long", 6), ("held_out", 6), ("more", 8), ("short", 9),
                                                                ("more", 10), ("short", 10), ("held_out", 10)]
    assert [float(row["loss"]) for row in rows if row["set"] == "short"] == at("short", "loss")
    assert float(rows[-1]["bits_per_byte"]) == stats()["judged"]["held_out"]["bits_per_byte"]


def test_training_is_what_it_is_without_sets(sets, capsys):
    for out, more in (("with", {"evaluate": {"short": {"dataset": "short.jsonl", "interval": 7}}}), ("without", {})):
        write_plan(sets, {"one": {"dataset": "rows.jsonl", "epochs": 2, **more}})
        train_plan(capsys, "--dropout", 0.2, "--out-dir", out)
    assert len(at("short", folder="with")) > 3
    one, other = (load(Path(out) / MODEL.name) for out in ("with", "without"))
    for part in ("model", "optimizers", "lr_schedulers"):
        assert differences(one[part]["state"], other[part]["state"]) == []
    one, other = (content["runner"]["state"] for content in (one, other))
    assert differences(one["random"], other["random"]) == []
    assert differences(one["stats"]["train"], other["stats"]["train"]) == differences(one["stats"]["validate"], other["stats"]["validate"]) == []


PLAN = {"$defaults": {"lr": 0.01, "evaluate": {"short": {"dataset": "short.jsonl", "interval": 7}, "long": {"dataset": "long.jsonl", "interval": "4steps"}}},
        "one": {"dataset": "rows.jsonl", "samples": 30}, "two": {"dataset": "rows.jsonl", "samples": 12, "context_len": 32}}
FLAGS = ("--dropout", 0.1, "--validation-interval", 9, "--mini-batch-size", 2)


def test_a_run_in_slices_leaves_what_an_untouched_one_does(sets, capsys):
    write_plan(sets, PLAN)
    train_plan(capsys, *FLAGS, "--out-dir", "whole")
    codes = []
    while not codes or codes[-1] == 75:
        codes.append(_code(capsys, "--max-samples-this-run", 7, "--out-dir", "slices"))
    assert len(codes) > 4
    assert compare_runs(Path("whole"), Path("slices")) == []


@pytest.mark.slow
def test_a_stop_during_evaluations_neither_loses_nor_repeats_anything(sets, capsys, monkeypatch):
    from lmplay.objectives.next_token import NextToken

    write_plan(sets, PLAN)
    train_plan(capsys, *FLAGS, "--out-dir", "whole")
    original, dice, due, left = NextToken.loss, random.Random(3), [], 3

    def judged(*arguments, **options):
        nonlocal left
        if not torch.is_grad_enabled():
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments, **options)

    monkeypatch.setattr(NextToken, "loss", judged)
    codes = []
    while not codes or codes[-1] == 143:
        left = dice.randint(3, 20 + 3 * len(codes))  # further and further on, or the longest set would never be done
        codes.append(_code(capsys, "--out-dir", "stopped"))
        due += [tuple(state["evaluation_due"]) for state in load(Path("stopped") / MODEL.name)["curriculum"]["state"]["stages"]]
    assert len(codes) > 3
    assert {("long",), ("short", "long")} & {*due}  # it has been done by a run that went on
    assert compare_runs(Path("whole"), Path("stopped")) == []


def _code(capsys, *more):
    from helpers import TINY

    from lmplay.train.__main__ import main

    code = main([*TINY, "--batch-size", "5", "--training-plan", "plan.json", *map(str, (*FLAGS, *more))])
    assert code in (0, 75, 143), capsys.readouterr().err
    return code


def test_sets_may_come_and_go_in_a_begun_stage_and_with_an_older_checkpoint(sets, capsys):
    write_plan(sets, {"one": {"dataset": "rows.jsonl", "samples": 40}})
    train_plan(capsys, "--max-steps", 3, code=75)
    content = load(MODEL)
    for state in content["curriculum"]["state"]["stages"]:
        del state["evaluated"], state["evaluation_due"]
    for one in (content["runner"]["state"]["stats"], *content["runner"]["state"]["step_stats"].values()):
        del one["sets"]
    write(MODEL, content)
    write_plan(sets, {"one": {"dataset": "rows.jsonl", "samples": 40, "evaluate": {"short": {"dataset": "short.jsonl", "interval": "2steps"}}}})
    assert "stage 'one': evaluate was not given, is" in train_plan(capsys, "--max-steps", 3, code=75)
    assert at("short", "step") == [4, 6]
    write_plan(sets, {"one": {"dataset": "rows.jsonl", "samples": 40, "evaluate": {"long": "long.jsonl"}}})
    train_plan(capsys)
    assert at("short", "step") == [4, 6]
    assert len(at("long")) == 1


def test_faults_of_sets_come_with_all_others(sets, capsys):
    write_rows(sets / "nothing.jsonl", [{"text": ""}] * 3)
    write_plan(sets, {"one": {"dataset": "rows.jsonl", "freeze": ["nothing.*"], "evaluate": {"a": {"dataset": {"path": "short.jsonl", "split": "test"}},
                                                                                             "b": "nothing.jsonl"}}})
    for flags in ((), ("--check-plan",)):
        said = train_plan(capsys, *flags, code=2)
        assert "stage 'one': evaluate.a: source" in said
        assert "stage 'one': evaluate.b: source nothing.jsonl: no row gives a sample" in said
        assert "nothing.*" in said


def test_a_set_is_its_own_validation_rows_where_it_has_some_and_the_split_asked_for(sets, capsys):
    for number, split in enumerate(("train", "validation", "test"), 2):
        (sets / "parted").mkdir(exist_ok=True)
        write_rows(sets / "parted" / f"{split}.jsonl", [{"text": f"{split} {i}"} for i in range(number)])
    write_plan(sets, {"one": {"dataset": "parted", "steps": 1, "evaluate": {"a": "parted", "b": {"dataset": {"path": "parted", "split": "test"}},
                                                                            "c": {"dataset": {"path": "parted", "split": "train"}}}}})
    said = train_plan(capsys)
    assert [stats()["judged"][name]["n_samples"] for name in "abc"] == [3, 4, 2]
    assert "evaluate.c reads parted, which the stage is trained on" in said
    assert "evaluate.a reads" not in said


def test_what_a_set_costs_is_estimated(sets, capsys):
    write_plan(sets, {"one": {"dataset": "rows.jsonl", "steps": 5, "evaluate": {"short": {"dataset": "short.jsonl", "interval": "2steps"}}}})
    found = json.loads(train_plan(capsys, "--check-plan", "--json"))
    [one] = found["stages"][0]["evaluate"]
    assert (one["name"], one["rows"], one["samples"], one["whole"], one["times"]) == ("short", 10, 9, True, 3)
    assert found["evaluation_seconds"] == one["seconds_in_all"] == pytest.approx(3 * one["seconds"])
    assert one["seconds"] > 0
    assert not MODEL.exists()
    text = train_plan(capsys, "--check-plan")
    assert f"short: 10 rows, {one['tokens']:,} tokens" in text
    train_plan(capsys)
    assert at("short", "tokens")[-1] > 0
    assert stats()["judged"]["short"]["n_tokens"] == one["tokens"]
    assert len(at("short")) == one["times"]


def test_the_log_for_programs_has_each_evaluation_and_all_at_the_end(sets, capsys):
    write_plan(sets, {"one": {"dataset": "rows.jsonl", "steps": 4, "evaluate": {"short": {"dataset": "short.jsonl", "interval": "2steps"}}}})
    lines = [json.loads(line) for line in train_plan(capsys, "--log-json").splitlines()]
    by_event = {event: list(group) for event, group in itertools.groupby(sorted(lines, key=lambda line: line["event"]), lambda line: line["event"])}
    assert [line["loss"] for line in by_event["evaluation"]] == at("short", "loss")
    assert by_event["done"][0]["sets"]["short"]["loss"] == at("short", "loss")[-1]
    assert "judged" not in by_event["stage"][0]
    assert by_event["stage"][0]["sets"] == ["short (10 rows) every 2 steps, and at the end of the stage"]


def test_a_stage_with_a_set_can_be_trained_by_another_process_count_of_workers(sets, capsys):
    write_plan(sets, PLAN)
    for workers in (0, 1):
        train(capsys, "--training-plan", "plan.json", "--data-workers", workers, "--out-dir", f"out{workers}", *FLAGS)
    assert compare_runs(Path("out0"), Path("out1")) == []
