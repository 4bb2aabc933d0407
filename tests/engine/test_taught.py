"""Stages with a teacher as whole runs: it is asked once, what it says is kept, gone on with after a kill, and missed clearly; figures, exact resume."""
import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import several
import torch
from answers import pieces_of_answers
from helpers import TINY, compare_runs, load, sentences, stop_at, train, weights, write_plan, write_rows
from laws import make_model
from texts import BYTES

from lmplay.checkpoints.base import identify
from lmplay.checkpoints.trained import open_trained
from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.device.model import DeviceModel
from lmplay.device.runtime import Runtime
from lmplay.engine import budget, held_out, reference, stage, taught
from lmplay.engine.batches import Grouping
from lmplay.engine.taught import Taught, read_taught
from lmplay.engine.teacher import OpenTeacher, Teacher, ask_about
from lmplay.errors import UserError
from lmplay.export.__main__ import main as export
from lmplay.objectives.base import Teaching
from lmplay.objectives.distill import ask
from lmplay.plan.settings import Settings
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
    assert line.endswith("or repeat the stage from its start with --resume out/gpt2ish_model.before.lmp.")
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


def test_of_more_validation_samples_the_new_ones_are_asked_about(folder, capsys, monkeypatch):
    monkeypatch.setattr(held_out, "FINAL_FACTOR", 1)  # else the end of the stage judges all held-out samples of so few in any case
    with monkeypatch.context() as patch:
        stop_at(patch, {5})
        run(capsys, "out", "--validation-samples", "2", code=130)
    before = read_taught(kept("out"))
    seen = counting(monkeypatch)
    shutil.copytree("out", "other")
    run(capsys, "out", "--validation-samples", "6")
    path, = {*Path("out/references").iterdir()} - {before.path}
    after = read_taught(path)
    assert before.places.keys() < after.places.keys()
    assert 0 < sum(seen) < len(after.places)
    del seen[:]
    run(capsys, "other", "--validation-samples", "6", "--amp", "bfloat16")  # which the teacher's figures so far are not of
    path, = {*Path("other/references").iterdir()} - {Path("other/references", before.path.name)}
    assert sum(seen) == len(read_taught(path).places)
    assert read_taught(path).header["precision"] != after.header["precision"]


def test_a_file_that_another_run_has_finished_meanwhile_is_left_and_used(folder, capsys, monkeypatch):
    run(capsys, "whole")
    original, there = stage.ask_about, Path("out/references", kept("whole").name)

    def ask(*arguments):
        if not there.exists():
            shutil.copy(kept("whole"), there)
        seen.add(there.stat().st_ino)
        return original(*arguments)

    seen = set()
    monkeypatch.setattr(stage, "ask_about", ask)
    run(capsys, "out")
    assert kept("out") == there  # and nothing else
    assert seen == {there.stat().st_ino}
    assert compare_runs(Path("whole"), Path("out")) == []


def test_a_file_that_is_not_what_was_written_is_told(folder, capsys, monkeypatch):
    original = reference.Growing.rename

    def rename(self, path):
        original(self, path)
        path.write_bytes(path.read_bytes()[:-9])

    monkeypatch.setattr(reference.Growing, "rename", rename)
    assert ".taught: is not as it has just been written" in run(capsys, "out", code=2)


def test_only_what_cannot_be_written_is_told_as_such(folder, capsys, monkeypatch):
    def fail(*arguments):
        raise OSError(errno.EIO, "the data is gone")

    with monkeypatch.context() as patch:
        patch.setattr(stage, "ask_about", fail)
        with pytest.raises(OSError, match="the data is gone"):
            run(capsys, "out")
    monkeypatch.setattr(reference.os, "fsync", fail)
    with pytest.raises(UserError, match=r"new\.part: the words could not be written \(the data is gone\); the same command goes on with it"), \
            reference.Growing(Path("new.part"), "the words", {"first": 1}, 0) as file:
        file.complete({})


def test_of_a_piece_that_nothing_is_known_of_a_line_says_so():
    piece = pieces_of_answers([3], [0.0])[0]
    with pytest.raises(UserError, match=r"^row [\d,]+ of source 1 of the stage: what the teacher says of it .* repeat the stage from its start\.$"):
        Taught(Path("nowhere"))(piece)
    with pytest.raises(UserError, match=r"its log-probability by the reference is not known"):
        reference.Reference()(piece)


def test_the_size_of_the_file_is_told_and_refused_where_it_does_not_fit(folder, capsys, monkeypatch):
    write_plan(Path(), {"learn": {"dataset": "texts.jsonl", "samples": 60, "objective": PLAIN}})
    said = run(capsys, "out", "--check-plan")
    assert re.search(r"^   teacher     what it says of the tokens takes about [\d.]+ MiB in the output folder$", said, re.MULTILINE)
    asked, original = [], taught.check_free_bytes
    monkeypatch.setattr(taught, "check_free_bytes", lambda folder, needed: asked.append(needed) or original(folder, needed))
    said = run(capsys, "out")
    assert re.search(r"what it says is kept in \S+\.taught \(about [\d.]+ MiB\)", said)
    assert 0.5 < asked[0] / kept("out").stat().st_size < 1.2
    monkeypatch.setattr(taught, "check_free_bytes", lambda folder, needed: original(folder, 1 << 60))
    said = run(capsys, "none", code=2)
    assert re.search(r"stage 'learn': teacher \S+: what it says of the stage's tokens takes about .* are free on the disk\. Free some space, choose", said)
    assert not Path("none/references").exists()


def test_memory_that_runs_out_for_the_teacher_is_no_matter_of_the_model(folder, capsys, monkeypatch):
    original, most = stage.ask_about, [0]
    monkeypatch.setattr(budget, "measure", lambda run, stage, grouping, objective: {240: 1.0})

    def ask(teacher, pieces, token_budget, *rest):
        if token_budget > most[0]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(teacher, pieces, token_budget, *rest)

    monkeypatch.setattr(stage, "ask_about", ask)
    said = run(capsys, "none", "--mini-batch-size", "auto", code=1)
    assert "teacher teacher/gpt2ish_model.lmp: out of memory with one piece of up to 48 tokens in a mini-batch" in said
    assert "or another teacher" in said
    most[0] = 120
    said = run(capsys, "out", "--mini-batch-size", "auto")
    assert said.count("teacher teacher/gpt2ish_model.lmp: out of memory with 240 tokens in a mini-batch: from here on 120;") == 1
    for out in ("none", "out"):
        assert {one["tokens"] for one in json.loads(Path(out, budget.FILE).read_text())} == {240}
    assert load(Path("out/gpt2ish_model.lmp"))["runner"]["state"]["room"]["tokens"] == 240


def test_a_teacher_that_does_not_fit_is_one_line(folder, capsys, monkeypatch):
    def full(path):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("lmplay.engine.teacher.open_trained", full)
    said = run(capsys, "none", code=1)
    assert said.splitlines()[-1].startswith("lmp_trainer: stage 'learn': teacher teacher/gpt2ish_model.lmp: out of memory while it is put on cpu")


@pytest.mark.parametrize("way", ["amp", "adapter", "averaged"])
def test_there_is_a_teacher_in_other_kinds_of_stages_too(folder, capsys, way):
    """Where figures are in half precision, where an adapter is trained, and of a run that keeps averages: these are what teaches."""
    if way == "adapter":
        pytest.importorskip("peft")
        plan(adapter={"kind": "lora", "rank": 4}, lr=0.05)
    if way == "averaged":
        write_plan(Path(), {"first": {"dataset": "texts.jsonl", "steps": 9, "lr": 0.01}})
        train(capsys, "--training-plan", "plan.json", "--out-dir", "teacher", "--ema", 0.9, "--reset-history")
        plan()
    run(capsys, "out", "--dropout", 0, *(["--amp", "bfloat16"] if way == "amp" else []))
    found, header = statistics("out")["columns"], read_taught(kept("out")).header
    assert None not in found["teacher_kl"]
    assert way == "averaged" or statistics("out", "validate")["columns"]["teacher_kl"][-1] < found["teacher_kl"][0]
    assert ("16" in header["precision"]) == (way == "amp")
    averages, last = (identify(open_trained(Path("teacher/gpt2ish_model.lmp"), raw).module.state_dict()) for raw in (False, True))
    assert header["teacher"] == averages
    assert (averages != last) == (way == "averaged")


def test_a_model_of_others_reads_its_begin_token_first():
    """What is asked is what the model says where each piece begins with that, behind an end token or not; without one it is asked as it is."""
    model, teaching = make_model().float(), Teaching("theirs", 5, 2.0)
    runtime = Runtime(Settings(device="cpu"))
    pieces = [*Cutter(BYTES, 24).cut(Sample("", sentences(2))), *Cutter(BYTES, 24).cut(Sample("Why? ", "It is."))]
    assert {piece.n_prompt for piece in pieces} >= {1, 5}
    for begin_id in (None, 5):
        teacher = OpenTeacher(Teacher("teacher", "theirs", BYTES, None, begin_id, lambda: model), DeviceModel(model, model, runtime), Grouping(2, 1, 24, False))
        for piece, (ids, log_probs) in zip(pieces, ask_about(teacher, pieces, 0, teaching, BYTES), strict=True):
            given = [*piece.tokens[:piece.n_prompt]]
            if begin_id is not None:
                given = [begin_id, *(given if given != [BYTES.end_id] else [])]
            tokens = torch.tensor([*given, *piece.tokens[piece.n_prompt:]], dtype=torch.int64)
            with torch.no_grad():
                said = ask(model.head(model(tokens[None, :-1]))[0, len(given) - 1:], tokens[len(given):], teaching)
            assert (ids == said.ids_CK.numpy()).all()
            torch.testing.assert_close(torch.from_numpy(log_probs), said.log_probs_CR, rtol=1e-4, atol=1e-5)
    model.head = torch.nn.Linear(16, 4)
    with pytest.raises(UserError, match="teacher: it knows the first 4 tokens only of the 257 of the tokenizer"):
        ask_about(teacher, pieces, 0, teaching, BYTES)


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
