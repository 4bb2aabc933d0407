"""Stages with a teacher as whole runs: it is asked once, what it says is kept, gone on with after a kill, and missed clearly; figures, exact resume."""
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import several
import torch
from helpers import TINY, compare_runs, load, sentences, stop_at, train, weights, write_plan, write_rows

from lmplay.engine import reference, stage
from lmplay.export.__main__ import main as export
from lmplay.train.__main__ import main

FLAGS = ["--training-plan", "plan.json", "--validation-interval", "20", "--validation-samples", "4"]
PLAIN = {"name": "distill", "teacher": "teacher/gpt2ish_model.lmp", "top_k": 8, "temperature": 1.5, "weight": 0.7}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with texts, and a teacher of them."""
    folder = tmp_path_factory.mktemp("teacher")
    before = Path.cwd()
    os.chdir(folder)
    try:
        write_rows(folder / "texts.jsonl", [{"text": f"Text {i}. {sentences(1 + i % 5, 'cat' if i % 2 else 'dog')}"} for i in range(60)])
        write_plan(folder, {"first": {"dataset": "texts.jsonl", "epochs": 2, "lr": 0.01}})
        assert main([*TINY, "--training-plan", "plan.json", "--out-dir", "teacher", "--batch-size", "10", "--dropout", "0"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reference, "_CHUNK", 16)
    shutil.copy(trained / "texts.jsonl", "texts.jsonl")
    shutil.copytree(trained / "teacher", "teacher")
    plan()
    return tmp_path


def plan(objective=PLAIN, **more):
    write_plan(Path(), {"before": {"dataset": "texts.jsonl", "steps": 2},
                        "learn": {"dataset": "texts.jsonl", "samples": 60, "lr": 0.01, "objective": objective, **more}})


def run(capsys, out, *arguments, code=0):
    return train(capsys, *FLAGS, "--out-dir", out, *arguments, code=code)


def statistics(out, kind="train", name="learn"):
    return json.loads(Path(out, f"gpt2ish_model_step_{name}_{kind}_stats.json").read_text())


def kept(out):
    path, = Path(out, "references").iterdir()
    return path


def counting(monkeypatch, fail_at=None):
    """Count the pieces that the teacher is asked about; raise as a kill would before a chunk."""
    seen, original = [], stage.ask_about

    def count(model, pieces, *rest):
        if len(seen) == fail_at:
            raise KeyboardInterrupt
        seen.append(len(pieces))
        return original(model, pieces, *rest)

    monkeypatch.setattr(stage, "ask_about", count)
    return seen


def test_the_model_comes_nearer_to_its_teacher(folder, capsys):
    said = run(capsys, "out", "--dropout", 0)
    assert re.search(r"stage 'learn': teacher/gpt2ish_model\.lmp has been asked about [\d,]+ tokens \(\d\.\d MB\)", said)
    assert re.search(r"^final validation: loss \d.*, divergence from the teacher \d", said, re.MULTILINE)
    found, judged = statistics("out")["columns"], statistics("out", "validate")["columns"]
    assert judged["teacher_kl"][-1] < 0.8 * found["teacher_kl"][0]
    assert judged["teacher_agreement"][-1] > found["teacher_agreement"][0]
    assert None not in judged["perplexity"]  # the loss is that of the texts
    assert None not in judged["bits_per_byte"]
    of_teacher = judged["teacher_loss"]
    assert of_teacher == pytest.approx([of_teacher[0]] * len(of_teacher))  # the same samples, and it does not learn
    assert of_teacher[0] < judged["loss"][0]
    assert "teacher_kl" not in statistics("out", name="before")["columns"]
    assert load(Path("out/gpt2ish_model.lmp"))["curriculum"]["state"]["stages"][1]["reference"] == kept("out").stem


def test_what_the_teacher_says_of_the_truth_is_its_own_loss(folder, capsys):
    """The loss of the teacher is that which it has in a validation of its own of the same samples."""
    run(capsys, "out", "--dropout", 0, "--validation-samples", "all")
    plan("next_token")
    run(capsys, "own", "--initial-model", "teacher/gpt2ish_model.lmp", "--lr", 1e-30, "--dropout", 0, "--validation-samples", "all")
    assert statistics("out", "validate")["columns"]["teacher_loss"][-1] == pytest.approx(statistics("own", "validate")["columns"]["loss"][-1], rel=1e-4)


def test_mini_batches_make_no_difference(folder, capsys):
    for size in (1, 5):
        run(capsys, f"by{size}", "--mini-batch-size", size, "--dropout", 0, "--optimizer", "sgd")
    one, other = weights("by1/gpt2ish_model.lmp"), weights("by5/gpt2ish_model.lmp")
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5)


def test_a_run_that_is_stopped_anywhere_goes_on_exactly(folder, capsys, monkeypatch):
    run(capsys, "whole")
    stop_at(monkeypatch, {1, 4, 9})
    codes = [130]
    while codes[-1] == 130:
        codes.append(main([*TINY, "--batch-size", "5", *FLAGS, "--out-dir", "parts"]))
        if Path("parts/references").exists():  # it is not needed any more
            shutil.rmtree("teacher", ignore_errors=True)
    assert codes == [130, 130, 130, 130, 0]
    assert compare_runs(Path("whole"), Path("parts")) == []
    assert kept("whole").read_bytes() == kept("parts").read_bytes()


@pytest.mark.parametrize("torn", [0, 5, 3000])
def test_what_a_kill_leaves_of_the_asking_is_gone_on_with(folder, capsys, monkeypatch, torn):
    run(capsys, "whole")
    with monkeypatch.context() as patch:
        seen = counting(patch, fail_at=2)
        with pytest.raises(KeyboardInterrupt):
            run(capsys, "parts")
    part = kept("parts")
    assert part.name.endswith(".part")
    if torn:
        part.write_bytes(part.read_bytes()[:-torn])
    seen = counting(monkeypatch)
    run(capsys, "parts")
    assert seen[0] == 16
    assert sum(seen) < len(set(read_keys("whole")))
    assert compare_runs(Path("whole"), Path("parts")) == []
    assert kept("whole").read_bytes() == kept("parts").read_bytes()


def test_a_kill_between_the_asking_and_the_first_step_changes_nothing(folder, capsys, monkeypatch):
    """The run that goes on opens the teacher, to know that it is the same, and asks it nothing."""
    run(capsys, "whole")
    original = stage.StageRunner.step

    def killed(self, batch):
        if self.name == "learn":
            raise KeyboardInterrupt
        return original(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(stage.StageRunner, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            run(capsys, "parts")
    seen = counting(monkeypatch)
    run(capsys, "parts")
    assert seen == []
    assert compare_runs(Path("whole"), Path("parts")) == []


def read_keys(out):
    from lmplay.engine.taught import read_taught

    return read_taught(kept(out)).places


def test_a_model_of_another_size_reads_the_same_file(folder, capsys, monkeypatch):
    run(capsys, "out", "--model", "one")
    seen = counting(monkeypatch)
    run(capsys, "out", "--model", "two", "--embed-dim", 24, "--lr", 0.5)
    assert seen == []


@pytest.mark.parametrize("harm", ["gone", "damaged", "short"])
def test_a_file_that_is_lost_is_made_again_by_the_same_teacher_and_no_other(folder, capsys, monkeypatch, harm):
    run(capsys, "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, {5})
        run(capsys, "out", code=130)
    path, content = kept("out"), kept("out").read_bytes()
    before = Path("out/gpt2ish_model.lmp").read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:2000] if harm == "short" else content[:900] + bytes([content[900] ^ 1]) + content[901:])
    shutil.move("teacher", "aside")
    line = run(capsys, "out", code=2).strip().splitlines()[-1]
    assert "stage 'learn': teacher teacher/gpt2ish_model.lmp: there is no such file as" in line
    assert f"{path} is {'not there' if harm == 'gone' else 'damaged'}" in line
    assert line.endswith("or begin the stage anew with --resume out/gpt2ish_model.before.lmp.")
    shutil.copytree("whole", "teacher")  # another model
    assert "is not the one that the stage was begun with" in run(capsys, "out", code=2)
    assert Path("out/gpt2ish_model.lmp").read_bytes() == before
    shutil.rmtree("teacher")
    shutil.move("aside", "teacher")
    run(capsys, "out")
    assert compare_runs(Path("whole"), Path("out")) == []
    assert path.read_bytes() == content


def test_other_validation_samples_are_asked_about_only_where_they_are_new(folder, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, {5})
        run(capsys, "out", code=130)
    before = kept("out")
    seen = counting(monkeypatch)
    run(capsys, "out", "--validation-samples", "2")
    assert seen == []
    assert kept("out") == before


def test_an_exported_folder_teaches_what_its_model_teaches(folder, capsys):
    run(capsys, "out", "--dropout", 0)
    assert export(["./teacher/gpt2ish_model.lmp", "exported"]) == 0
    capsys.readouterr()
    for name in ("exported", "hf:exported"):
        plan({**PLAIN, "teacher": name})
        run(capsys, "other", "--dropout", 0, "--reset-history")
        for column in ("teacher_kl", "teacher_loss", "loss"):
            assert statistics("other")["columns"][column] == pytest.approx(statistics("out")["columns"][column], rel=1e-3)


def test_a_new_model_may_have_the_tokenizer_of_its_teacher(folder, capsys):
    flags = ["--training-plan", "plan.json", "--batch-size", "5"]
    write_plan(Path(), {"first": {"dataset": "texts.jsonl", "steps": 2}})
    train(capsys, *flags, "--tokenizer", "train:300", "--out-dir", "teacher", "--reset-history")
    plan()
    told = train(capsys, *flags, "--tokenizer", "train:290", "--out-dir", "out", code=2)
    assert "give a new model the teacher's (--tokenizer teacher/gpt2ish_model.lmp), or choose another teacher" in told
    train(capsys, *flags, "--tokenizer", "teacher/gpt2ish_model.lmp", "--out-dir", "out")
    train(capsys, *flags, "--tokenizer", "teacher/gpt2ish_model.lmp", "--out-dir", "out")  # again: the plan is complete
    assert "no model of lmplay, or damaged" in train(capsys, *flags, "--tokenizer", write_rows(Path("not.lmp"), []), "--out-dir", "new", code=2)


@pytest.mark.parametrize(("objective", "fault"), [
    ("distill", "key 'objective.teacher': found no teacher of distill, allowed: one"),
    ({**PLAIN, "teacher": "nowhere.lmp"}, "stage 'learn': teacher nowhere.lmp: there is no such file as"),
    ({**PLAIN, "teacher": "texts.jsonl"}, "stage 'learn': teacher texts.jsonl: model texts.jsonl: damaged, or not a checkpoint of lmplay"),
    ({**PLAIN, "teacher": "empty"}, "stage 'learn': teacher empty: has no config.json"),
    ({**PLAIN, "weight": 0}, "allowed: a number above 0, at most 1"),
    ({**PLAIN, "group": 4}, "found it with distill, allowed: teacher, top_k, temperature, weight")])
def test_what_cannot_be_is_refused_in_one_line(folder, capsys, objective, fault):
    Path("empty").mkdir()
    plan(objective)
    for more in ((), ("--check-plan",)):
        said = run(capsys, "out", *more, code=2)
        assert fault in said
        assert "Traceback" not in said
    assert not list(Path("out").glob("*.lmp"))


def test_a_teacher_that_reads_shorter_texts_is_refused(folder, capsys):
    assert "it reads 48 tokens at most, and the stage's context_len is 64" in run(capsys, "out", "--context-len", 64, code=2)


def test_the_learning_rate_is_looked_for_with_the_teacher(folder, capsys):
    plan(samples=70)
    write_plan(Path(), {"learn": json.loads(Path("plan.json").read_text())["learn"]})
    assert "lr" in run(capsys, "out", "--find-lr", "lr.png", "--batch-size", 4)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="forked processes")
def test_two_processes_find_what_one_finds(folder):
    flags = [*TINY, *FLAGS, "--batch-size", "5", "--dropout", "0", "--mini-batch-size", "2"]
    for size, out, *more in ((1, "one"), (2, "two"), (2, "shared", "--shard", "on")):
        codes, outputs, complaints = several.train(size, *flags, "--out-dir", out, *more)
        assert codes == [0] * size, (outputs, complaints)
    for name in ("loss", "teacher_kl", "teacher_agreement", "teacher_loss"):
        for out in ("two", "shared"):
            assert statistics(out)["columns"][name] == pytest.approx(statistics("one")["columns"][name], rel=1e-3, abs=1e-4), name
