"""Stages of preference pairs as whole runs: the reference is computed once, kept, gone on with after a kill, and missed clearly; figures, exact resume."""
import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest
import several
import torch
from helpers import TINY, compare_runs, load, sentences, write_plan, write_rows
from pairs import rows_of_pairs

from lmplay.engine import reference, stage
from lmplay.plotstats.__main__ import main as plotstats
from lmplay.train.__main__ import main

REFERENCES = "references"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reference, "_CHUNK", 16)
    write_rows(Path("texts.jsonl"), [{"prompt": f"Say {i}.", "completion": sentences(1 + i % 3)} for i in range(20)])
    write_rows(Path("pairs.jsonl"), rows_of_pairs(40))
    plan(tmp_path)
    return tmp_path


def plan(folder, **more):
    write_plan(folder, {"first": {"dataset": "texts.jsonl", "batch_size": 8, "steps": 2},
                        "prefer": {"dataset": "pairs.jsonl", "batch_size": 7, "epochs": 2, "lr": 0.01, "objective": {"name": "dpo", "beta": 0.5}, **more}})


def run(out, *more, dropout="0.1"):
    return main([*TINY, "--training-plan", "plan.json", "--validation-interval", "20", "--dropout", dropout, "--out-dir", out, *more])


def columns(out, kind="train", name="prefer"):
    return json.loads(Path(out, f"gpt2ish_model_step_{name}_{kind}_stats.json").read_text())["columns"]


def kept(out):
    path, = Path(out, REFERENCES).iterdir()
    return path


def counting(monkeypatch, fail_at=None):
    """Count the answers whose log-probabilities are computed; raise as a kill would before a chunk."""
    seen, original = [], stage.StageRunner._log_probs

    def count(self, pieces):
        if len(seen) == fail_at:
            raise KeyboardInterrupt
        seen.append(len(pieces))
        return original(self, pieces)

    monkeypatch.setattr(stage.StageRunner, "_log_probs", count)
    return seen


def test_the_first_loss_is_that_of_no_difference_and_training_prefers_the_chosen(folder, capsys):
    assert run("out", dropout="0") == 0
    found = columns("out")
    assert found["loss"][0] == pytest.approx(math.log(2), abs=1e-5)
    assert found["margin"][0] == pytest.approx(0, abs=1e-4)
    judged = columns("out", "validate")
    assert judged["preference_accuracy"][-1] == 1
    assert judged["margin"][-1] > 1
    assert judged["reward_chosen"][-1] - judged["reward_rejected"][-1] == pytest.approx(judged["margin"][-1], rel=1e-4)
    assert judged["loss"][-1] < 0.3
    assert {*judged["perplexity"], *judged["bits_per_byte"]} == {None}
    said = capsys.readouterr().out
    assert "the log-probabilities of its answers by the model as it is now are computed" in said
    assert re.search(r"^final validation: loss 0\.\d+.*, preference accuracy 100\.0%, margin of the rewards \d", said, re.MULTILINE)
    totals = json.loads(Path("out/gpt2ish_model_step_prefer_train_stats.json").read_text())["totals"]
    assert totals["pieces"] == 2 * totals["total_train_samples"] == 2 * 72
    assert totals["broken_samples"] == 0
    assert "preference_accuracy" not in columns("out", name="first")


def test_rejected_answers_are_no_truth(folder, capsys):
    """Neither in the count of words, nor in what two runs are compared by."""
    write_rows(Path("pairs.jsonl"), [{"prompt": f"Say {i}.", "chosen": "cat", "rejected": sentences(2, "dog")} for i in range(40)])
    for seed in "01":
        assert run("out", "--seed", seed, "--model", f"run{seed}", dropout="0") == 0
    state = load(Path("out/run0.lmp"))["runner"]["state"]
    rows, judged = state["step_stats"]["prefer"]["validate"]["rows"], state["stats"]["judged"]
    assert rows["words"][-1] == rows["n_tokens"][-1] > 1  # which are pairs here
    assert {len(one["identity"]) for one in judged.values()} == {0}
    capsys.readouterr()
    assert plotstats(["--out-dir", "out", "--baseline", "run0"]) == 0
    assert "better" not in capsys.readouterr().out


def test_a_run_that_is_stopped_anywhere_goes_on_exactly(folder, monkeypatch):
    assert run("whole") == 0
    codes = [75]
    while codes[-1] == 75:
        codes.append(run("parts", "--max-steps", "3"))
    assert codes[-1] == 0
    assert len(codes) > 5
    assert compare_runs(Path("whole"), Path("parts")) == []
    assert kept("whole").read_bytes() == kept("parts").read_bytes()


@pytest.mark.parametrize("torn", [0, 5])
def test_what_a_kill_leaves_of_the_computation_is_gone_on_with(folder, monkeypatch, torn):
    assert run("whole") == 0
    with monkeypatch.context() as patch:
        seen = counting(patch, fail_at=3)
        with pytest.raises(KeyboardInterrupt):
            run("parts")
    part = kept("parts")
    assert part.name.endswith(".part")
    if torn:
        part.write_bytes(part.read_bytes()[:-torn])
    seen = counting(monkeypatch)
    assert run("parts") == 0
    assert len(seen) == len(kept("whole").read_text().splitlines()) - 2 - 3 + bool(torn)
    assert compare_runs(Path("whole"), Path("parts")) == []
    assert kept("whole").read_bytes() == kept("parts").read_bytes()


def test_what_was_begun_for_other_data_goes_when_the_whole_is_there(folder, monkeypatch):
    with monkeypatch.context() as patch:
        counting(patch, fail_at=2)
        with pytest.raises(KeyboardInterrupt):
            run("out")
    of_another = kept("out").with_name(f"{'0' * 32}.another.gpt2ish_model.part")
    of_another.write_bytes(b"of a run of another name")
    plan(folder, samples=10, epochs=None)
    assert run("out") == 0
    assert sorted(path.suffix for path in of_another.parent.iterdir()) == [".jsonl", ".part"]
    assert of_another.exists()


def test_it_is_computed_once_for_all_epochs_and_not_again_at_a_resume(folder, monkeypatch):
    seen = counting(monkeypatch)
    assert run("out", "--max-steps", "4") == 75
    assert sum(seen) == 2 * 40
    del seen[:]
    assert run("out") == 0
    assert seen == []
    assert load(Path("out/gpt2ish_model.lmp"))["curriculum"]["state"]["stages"][1]["reference"] == kept("out").stem


@pytest.mark.parametrize("harm", ["gone", "damaged", "short"])
def test_a_reference_that_is_lost_is_told_in_one_line_and_nothing_else_is(folder, capsys, harm):
    assert run("whole") == 0
    assert run("out", "--max-steps", "4") == 75
    path, aside = kept("out"), Path("aside")
    shutil.copy(path, aside)
    lines = path.read_bytes().splitlines(keepends=True)
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(b"".join(lines[:-2]) if harm == "short" else b"".join([lines[0], lines[1].replace(b"-", b"+", 1), *lines[2:]]))
    before = Path("out/gpt2ish_model.lmp").read_bytes()
    capsys.readouterr()
    assert run("out") == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert f"stage 'prefer': {path} is {'not there' if harm == 'gone' else 'damaged' if harm == 'damaged' else 'of other data or settings'}, and " in said[0]
    assert ("Bring the data or the settings back" if harm == "short" else "Bring the file back") in said[0]
    assert said[0].endswith("or repeat the stage from its start with --resume out/gpt2ish_model.first.lmp.")
    assert Path("out/gpt2ish_model.lmp").read_bytes() == before
    path.parent.mkdir(exist_ok=True)
    shutil.copy(aside, path)
    assert run("out") == 0
    assert compare_runs(Path("whole"), Path("out")) == []


@pytest.mark.parametrize("first", [False, True])
def test_what_is_advised_where_a_reference_is_lost_works(folder, capsys, first):
    if first:
        write_plan(folder, {"prefer": {"dataset": "pairs.jsonl", "batch_size": 7, "epochs": 2, "objective": "dpo"}})
    assert run("out", "--max-steps", "4") == 75
    kept("out").unlink()
    capsys.readouterr()
    assert run("out") == 2
    advice = re.search(r"--re[a-z-]+( out/\S+lmp)?", capsys.readouterr().err)[0]
    assert advice == ("--reset-history" if first else "--resume out/gpt2ish_model.first.lmp")
    assert run("out", *advice.split()) == 0


def test_before_the_first_step_a_lost_reference_is_computed_again(folder, monkeypatch):
    assert run("whole") == 0
    assert run("out", "--max-steps", "2") == 75

    def killed(self, batch):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage.StageRunner, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            run("out")
    kept("out").write_bytes(b"nonsense")
    assert run("out") == 0
    assert compare_runs(Path("whole"), Path("out")) == []


def test_other_validation_samples_need_no_answers_that_are_not_known(folder):
    """With other settings of what is read, what is known is looked through: here nothing is missing."""
    assert run("out", "--max-steps", "4") == 75
    assert run("out", "--validation-samples", "2") == 0


def test_named_sets_are_judged_in_a_stage_with_a_reference(folder):
    plan(folder, evaluate={"mine": "texts.jsonl"})
    assert run("out") == 0
    sets = json.loads(Path("out/gpt2ish_model_step_prefer_validate_stats.json").read_text())["sets"]
    assert sets["mine"]["columns"]["loss"][-1] > 1  # in nats per token, as in any stage


def test_a_run_leaves_what_another_run_of_the_same_beginning_needs(folder):
    """Two runs of a sweep that differ in what they read: their first stages end with the same weights."""
    assert run("whole") == 0
    assert run("out", "--max-steps", "4") == 75
    needed = kept("out").read_bytes()
    path = kept("out")
    plan(folder, epochs=None, samples=10, batch_size=4)
    assert run("out", "--model", "second") == 0
    assert path.read_bytes() == needed
    plan(folder)
    assert run("out") == 0
    weights = [load(Path(out, "gpt2ish_model.lmp"))["model"]["state"] for out in ("whole", "out")]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.mark.parametrize(("more", "fault"), [
    ({"batch_size": 1}, "stage 'prefer': batch_size 1 holds no pair, which is two pieces; give 2 or more"),
    ({"dataset": "texts.jsonl"}, "the objective of the stage learns from preference pairs, and there is no column 'chosen'"),
    ({"objective": "next_token"}, "Its rows look like preference pairs"), ({"objective": "sft"}, "Its rows look like preference pairs"),
    ({"objective": {"name": "dpo", "loss": "ipo", "label_smoothing": 0.1}}, "found it with the loss ipo, allowed: with sigmoid"),
    ({"objective": {"name": "dpo", "loss": "sigmoi"}}, "Did you mean 'sigmoid'"), ({"objective": {"name": "dpo", "beta": 0}}, "allowed: a number above 0"),
    ({"objective": {"name": "orpo", "gamma": 1}}, "found it with orpo, allowed: beta")])
def test_what_cannot_be_is_refused_in_one_line(folder, capsys, more, fault):
    plan(folder, **more)
    assert run("out") == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert fault in said[0]


def test_the_check_counts_equal_pairs_cut_answers_and_long_prompts(folder, capsys):
    rows = [*rows_of_pairs(10, 1), {"prompt": "p", "chosen": "same", "rejected": "same"}, {"prompt": "long " * 30, "chosen": "a", "rejected": "b"},
            {"prompt": "p", "chosen": "word " * 30, "rejected": "b"}, {"prompt": "p", "chosen": "a"}]
    write_rows(Path("pairs.jsonl"), rows)
    plan(folder, validation=0, epochs=1)
    assert main([*TINY, "--training-plan", "plan.json", "--check-plan", "--out-dir", "out"]) == 0
    said = capsys.readouterr().out
    assert "1 row skipped: equal answers (" in said
    assert "1 row skipped: without 'rejected' (" in said
    assert "1 answers of these pairs do not fit" in said
    assert "of 1 of these samples the prompt does not fit" in said
    assert main([*TINY, "--training-plan", "plan.json", "--show-samples", "1", "--out-dir", "out"]) == 0
    said = capsys.readouterr().out
    assert said.index("-- chosen answer: prompt") < said.index("-- rejected answer: prompt")
    assert main([*TINY, "--training-plan", "plan.json", "--show-samples", "1", "--json", "--out-dir", "out"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [piece["answer"] for piece in shown[1]["pieces"]] == ["chosen", "rejected"]


@pytest.mark.parametrize("objective", ["simpo", {"name": "orpo", "beta": 0.2}])
def test_without_a_reference_nothing_is_kept_and_a_stop_changes_nothing(folder, objective):
    plan(folder, objective=objective, epochs=1)
    assert run("whole") == 0
    assert not Path("whole", REFERENCES).exists()
    codes = [75]
    while codes[-1] == 75:
        codes.append(run("parts", "--max-steps", "3"))
    assert compare_runs(Path("whole"), Path("parts")) == []
    assert columns("whole", "validate")["preference_accuracy"][-1] is not None


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="forked processes")
def test_two_processes_find_what_one_finds(folder):
    plan(folder, epochs=1)
    flags = [*TINY, "--training-plan", "plan.json", "--validation-interval", "20", "--dropout", "0", "--mini-batch-size", "2"]
    for size, out in ((1, "one"), (2, "two")):
        codes, outputs, complaints = several.train(size, *flags, "--out-dir", out)
        assert codes == [0] * size, (outputs, complaints)
    for kind in ("train", "validate"):
        for name, values in columns("one", kind).items():
            if name in ("loss", "margin", "reward_chosen", "reward_rejected", "preference_accuracy", "samples", "tokens"):
                assert columns("two", kind)[name] == pytest.approx(values, rel=1e-3, abs=1e-4), name
    weights = [load(Path(out, "gpt2ish_model.lmp"))["model"]["state"] for out in ("one", "two")]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-3, atol=1e-4)
    assert kept("one").name.endswith(".jsonl")
    assert kept("two").name.endswith(".jsonl")
