"""`--check-plan`: what it says of a plan is what training then does."""
import gzip
import json

import pytest
from helpers import TINY, sentences, write_plan, write_rows
from older import OLDER, write_data

from lmplay.errors import UserError
from lmplay.preview.check_plan_text import to_text
from lmplay.train.__main__ import main


def check(capsys, plan, out, *flags) -> dict:
    code = main([*TINY, "--training-plan", str(plan), "--out-dir", str(out), "--batch-size", "7", "--mini-batch-size", "3", "--check-plan", "--json", *flags])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


@pytest.fixture
def plan(tmp_path):
    write_rows(tmp_path / "a.jsonl", [{"title": f"T{i}", "text": sentences(1 + i % 9, f"cat {i}")} for i in range(60)])
    write_rows(tmp_path / "b.jsonl", [{"prompt": f"Q{i}?", "truth": sentences(1 + i % 3, f"dog {i}")} for i in range(40)])
    return write_plan(tmp_path, {"mix": {"dataset": ["a.jsonl", "b.jsonl"], "epochs": 1.5}, "book": {"dataset": "a.jsonl", "tokens": 4000}})


def test_a_stage_that_is_looked_at_whole_is_said_exactly(capsys, plan, tmp_path):
    found = check(capsys, plan, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert main([*TINY, "--training-plan", str(plan), "--out-dir", str(tmp_path / "out"), "--batch-size", "7", "--mini-batch-size", "3",
                 "--validation-interval", "0"]) == 0
    for stage in found["stages"]:
        done = json.loads((tmp_path / "out" / f"gpt2ish_model_step_{stage['name']}_train_stats.json").read_text())["totals"]
        assert (stage["samples"], stage["steps"]) == (done["total_train_samples"], done["total_train_steps"])
        assert stage["padding_share"] == pytest.approx(done["padding"] / done["places"])
        assert stage["pieces_per_sample"] == pytest.approx(done["pieces"] / done["total_train_samples"])
        assert (stage["tokens"], stage["tokens_error"]) == (done["total_train_tokens"], 0)
    assert [(source["rows"], source["rows_trained_on"], source["rows_held_out"]) for source in found["stages"][0]["sources"]] == [(60, 54, 6), (40, 36, 4)]
    assert found["seconds"] > 0
    size = (tmp_path / "out" / "gpt2ish_model.lmp").stat().st_size
    assert found["checkpoint_bytes"] <= size < found["checkpoint_bytes"] * 1.5 + 2**20


def test_an_estimate_lies_within_its_error(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("lmplay.preview.check_plan._SAMPLES", 100)
    rows = [{"text": sentences(1 + i * 7 % 11, f"cat {i}")} for i in range(2000)]
    plan = write_plan(tmp_path, {"all": {"dataset": str(write_rows(tmp_path / "a.jsonl", rows)), "validation": 0}})
    stage = check(capsys, plan, tmp_path / "out")["stages"][0]
    truth = sum(len(row["text"]) + 1 for row in rows)  # the bytes and the end token
    assert 100 <= stage["samples_looked_at"] < 200
    assert stage["samples"] == 2000
    assert 0 < stage["tokens_error"] < 0.2
    assert abs(stage["tokens"] / truth - 1) < 2 * stage["tokens_error"]


def test_a_length_in_tokens_is_estimated_with_what_the_last_sample_has_beyond_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("lmplay.preview.check_plan._SAMPLES", 100)
    rows = [{"text": sentences(1 + i * 7 % 11, f"cat {i}")} for i in range(2000)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    sizes = [len(row["text"]) + 1 for row in rows]
    found, lengths = [], range(100_000, 100_000 + 40 * 37, 37)
    for length in lengths:
        read = 0
        for size in sizes:
            if read >= length:
                break
            read += size
        found.append(read - length)
    plan = write_plan(tmp_path, {"all": {"dataset": str(path), "validation": 0, "tokens": 100_000, "shuffle": False}})
    stage = check(capsys, plan, tmp_path / "out")["stages"][0]
    assert stage["tokens"] - 100_000 == pytest.approx(sum(found) / len(found), rel=0.3)
    assert 0 < stage["tokens_error"] < 0.003


def test_parts_of_a_schedule_that_the_stage_has_no_room_for_are_told(capsys, tmp_path):
    rows = write_rows(tmp_path / "a.jsonl", [{"text": sentences(2)}] * 30)
    parts = [{"name": "linear", "from": 0, "steps": 2}, {"name": "cosine", "steps": 40}, {"name": "constant", "steps": "rest"},
             {"name": "linear", "to": 0, "samples": "20%"}]
    plan = write_plan(tmp_path, {"one": {"dataset": str(rows), "samples": 40, "lr_schedule": parts}, "two": {"dataset": str(rows), "samples": 40}})
    found = check(capsys, plan, tmp_path / "out")
    assert [stage["cut_short"] for stage in found["stages"]] == [["cosine to 0.1 (40 steps)"], []]
    assert [line for line in to_text(found).splitlines() if "lr_schedule" in line] == ["   lr_schedule cosine to 0.1 (40 steps): the stage is too short for it"]


def test_skipped_rows_are_shown_and_are_no_samples(capsys, tmp_path, monkeypatch):
    rows = [{"text": None if i % 4 == 1 else f"Text {i} is here."} for i in range(2000)]
    plan = write_plan(tmp_path, {"all": {"dataset": str(write_rows(tmp_path / "a.jsonl", rows)), "validation": 0}})
    stage = check(capsys, plan, tmp_path / "whole")["stages"][0]
    monkeypatch.setattr("lmplay.preview.check_plan._SAMPLES", 200)
    part = check(capsys, plan, tmp_path / "out")["stages"][0]
    assert stage["samples"] == pytest.approx(1500, rel=0.05)
    assert part["samples"] == pytest.approx(1500, rel=0.1)
    assert part["skipped"].keys() == {"null"}
    assert main([*TINY, "--training-plan", str(plan), "--out-dir", str(tmp_path / "out"), "--check-plan"]) == 0
    said = capsys.readouterr().out
    assert "rows skipped: null (" in said
    assert "reads       a.jsonl: 'text' in 1" in said


@pytest.mark.parametrize("flags", [["--check-plan"], ["--show-samples", "2"], ["--show-batch", "1"], []])
def test_where_all_rows_are_skipped_every_preview_says_what_training_says(capsys, tmp_path, flags):
    plan = write_plan(tmp_path, {"all": {"dataset": str(write_rows(tmp_path / "a.jsonl", [{"text": None}] * 30))}})
    assert main([*TINY, "--training-plan", str(plan), "--out-dir", str(tmp_path / "out"), *flags]) == 2
    said = capsys.readouterr().err
    assert "stage 'all': there was nothing to train on (27 rows skipped: 27 null)" in said
    assert "Traceback" not in said


def test_duplicates_and_overlap_are_counted(capsys, tmp_path):
    rows = [{"text": f"Text number {i % 90}."} for i in range(100)]  # ten are there twice
    held = [{"text": f"Text number {i}."} for i in range(85, 95)]  # five of them are trained on
    plan = write_plan(tmp_path, {"all": {"dataset": str(write_rows(tmp_path / "a.jsonl", rows)), "epochs": 2,
                                         "validation": {"dataset": str(write_rows(tmp_path / "v.jsonl", held))}}})
    stage = check(capsys, plan, tmp_path / "out")["stages"][0]
    assert (stage["compared"], stage["duplicates"]) == (100, 10)
    assert (stage["validation_compared"], stage["validation_overlap"]) == (10, 5)


def test_people_can_read_it(capsys, plan, tmp_path):
    assert main([*TINY, "--training-plan", str(plan), "--out-dir", str(tmp_path / "out"), "--check-plan"]) == 0
    text = capsys.readouterr().out
    for word in ("== stage mix: a.jsonl (54 rows and 6 held out), b.jsonl (36 rows and 4 held out)", "== stage book", "tokens      4,", "padding",
                 "duplicates", "memory", "disk", "forced"):
        assert word in text


def test_the_first_sample_of_each_source_is_as_the_model_sees_it(capsys, plan, tmp_path):
    seen = {}
    for stage in check(capsys, plan, tmp_path / "out")["stages"]:
        seen |= {(stage["name"], sample["source"]): sample for sample in stage["first_samples"]}
    assert list(seen) == [("mix", "a.jsonl"), ("mix", "b.jsonl"), ("book", "a.jsonl")]
    assert main([*TINY, "--training-plan", str(plan), "--out-dir", str(tmp_path / "out"), "--show-samples", "2", "--json"]) == 0
    for sample in json.loads(capsys.readouterr().out):
        if (key := (sample["stage"], sample["source"])) in seen:
            found = seen.pop(key)
            assert found["pieces"] == sample["pieces"][:1]
            assert {**found, "pieces": [], "n_pieces": 0} == {**sample, "pieces": [], "n_pieces": 0}
            assert found["n_pieces"] == len(sample["pieces"])
    assert not seen
    assert main([*TINY, "--training-plan", str(plan), "--out-dir", str(tmp_path / "out"), "--check-plan"]) == 0
    text = capsys.readouterr().out
    assert text.count("== first sample of a.jsonl, stage ") == 2
    assert text.count("-- piece 1 of ") == 3
    assert "  learned │ The dog" in text
    assert "more pieces" in text


def test_all_stages_are_checked_from_their_beginning_also_of_a_plan_that_is_done(capsys, plan, tmp_path):
    new = check(capsys, plan, tmp_path / "out")
    assert main([*TINY, "--training-plan", str(plan), "--out-dir", str(tmp_path / "out"), "--batch-size", "7", "--validation-interval", "0"]) == 0
    capsys.readouterr()
    done = check(capsys, plan, tmp_path / "out")
    timed = {"seconds", "peak_memory_bytes"}
    assert [{name: stage[name] for name in stage.keys() - timed} for stage in done["stages"]] == [
        {name: stage[name] for name in stage.keys() - timed} for stage in new["stages"]]
    assert done.keys() == new.keys()


def decided(found: dict) -> list:
    """Give what does not depend on the clock."""
    stages = [{name: value for name, value in stage.items() if name != "seconds"} for stage in found["stages"]]
    return [found["parameters"], found["checkpoint_bytes"], stages]


@pytest.mark.parametrize(("flags", "tokenizer"), [(["--seed", "7"], "bytes"), (["--validation-seed", "3"], "bytes"), (["--optimizer", "sgd"], "bytes"),
                                                  (["--continuation", "estimate"], "train:600"), (["--no-tied-head"], "bytes")])
def test_what_a_model_decides_is_that_of_the_model(capsys, plan, tmp_path, flags, tokenizer):
    new = check(capsys, plan, tmp_path / "out", "--tokenizer", tokenizer, *flags)
    assert main([*TINY, "--tokenizer", tokenizer, "--training-plan", str(plan), "--out-dir", str(tmp_path / "out"), "--max-steps", "1", *flags]) == 75
    capsys.readouterr()
    assert decided(check(capsys, plan, tmp_path / "out", "--tokenizer", tokenizer)) == decided(new)
    assert decided(check(capsys, plan, tmp_path / "elsewhere", "--tokenizer", tokenizer)) != decided(new)  # the flag matters


def test_a_tied_head_counts_once(capsys, plan, tmp_path):
    apart, tied = (check(capsys, plan, tmp_path / "out", *flags) for flags in (["--no-tied-head"], ["--tied-head"]))
    vocabulary, width = apart["vocabulary"], 16
    assert apart["parameters"] - tied["parameters"] == vocabulary * width
    assert apart["checkpoint_bytes"] - tied["checkpoint_bytes"] >= 3 * 4 * vocabulary * width  # weights, and two states of the optimizer


def test_a_stage_of_an_older_version_is_read_as_it_began(capsys, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "gpt2ish_model.lmp").write_bytes(gzip.decompress((OLDER / "model.lmp.gz").read_bytes()))
    found = check(capsys, write_data(tmp_path), tmp_path / "out")
    assert [source["rows_held_out"] for stage in found["stages"] for source in stage["sources"]] == [2, 6000, 2]


@pytest.mark.parametrize("name", ["threads_to_use", "keep_compiled"])
def test_threads_and_the_cache_of_compiled_code_are_those_of_training(capsys, plan, tmp_path, monkeypatch, name):
    def called(*_):
        raise UserError("called")

    monkeypatch.setattr(f"lmplay.engine.opening.{name}", called)
    for flags in (["--check-plan"], []):
        assert main([*TINY, "--training-plan", str(plan), "--out-dir", str(tmp_path / "out"), "--compile-model", *flags]) == 2
        assert "called" in capsys.readouterr().err


@pytest.mark.parametrize(("stages", "flags", "words"), [
    ({"a": {"dataset": "missing.jsonl"}}, [], "missing.jsonl"),
    ({"a": {"dataset": "a.jsonl"}, "b": {"dataset": "a.jsonl", "freeze": ["block.*"]}}, [], "stage 'b': freeze 'block.*': matches no parameter"),
    ({"a": {"dataset": "a.jsonl"}}, ["--resume", "nowhere.lmp"], "--resume nowhere.lmp: there is no file"),
    ({"a": {"dataset": "a.jsonl"}}, ["--embed-dim", "15"], "--embed-dim 15, --num-heads 2")])
def test_what_training_refuses_is_refused(capsys, tmp_path, stages, flags, words):
    write_rows(tmp_path / "a.jsonl", [{"text": sentences(3)}] * 20)
    arguments = [*TINY, "--training-plan", str(write_plan(tmp_path, stages)), "--out-dir", str(tmp_path / "out"), *flags]
    for also in (["--check-plan"], []):
        assert main([*arguments, *also]) == 2
        assert words in capsys.readouterr().err


def test_each_stage_is_measured_with_its_own_optimizer(capsys, plan, tmp_path, monkeypatch):
    from lmplay.preview import check_plan

    timed = []
    monkeypatch.setattr(check_plan.Timer, "time", lambda self, *_: timed.append(self._optimizers.kind))
    sizes = []
    for kinds in (("sgd", "adamw"), ("adamw", "sgd"), ("sgd", "sgd")):
        stages = json.loads(plan.read_text())
        for stage, kind in zip(stages.values(), kinds, strict=True):
            stage["optimizer"] = kind
        sizes.append(check(capsys, write_plan(tmp_path, stages), tmp_path / "out")["checkpoint_bytes"])
    assert timed == ["sgd", "adamw", "adamw", "sgd", "sgd", "sgd"]
    assert sizes[0] == sizes[1] > sizes[2]


def test_a_stage_that_ends_before_its_first_sample_is_checked(capsys, tmp_path):
    write_rows(tmp_path / "a.jsonl", [{"text": sentences(400, f"cat {i}")} for i in range(6)])
    plan = write_plan(tmp_path, {"short": {"dataset": "a.jsonl", "steps": 2, "validation": 0}})
    stage, = check(capsys, plan, tmp_path / "out")["stages"]
    assert main([*TINY, "--training-plan", str(plan), "--out-dir", str(tmp_path / "out"), "--batch-size", "7", "--mini-batch-size", "3"]) == 0
    done = json.loads((tmp_path / "out" / "gpt2ish_model_step_short_train_stats.json").read_text())["totals"]
    assert done["total_train_samples"] == 0
    assert (stage["steps"], stage["tokens"]) == (2, done["total_train_tokens"])


def test_prompts_that_do_not_fit_are_told(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "a.jsonl", [{"instruction": "Say it. " * (4 + 4 * (i % 2)), "output": "It. " * 3} for i in range(40)])
    write_plan(tmp_path, {"one": {"dataset": "a.jsonl", "validation": 0}})
    assert main([*TINY, "--training-plan", "plan.json", "--check-plan"]) == 0
    assert "of 20 of these samples the prompt does not fit in the context with what follows it" in capsys.readouterr().out
    assert main([*TINY, "--training-plan", "plan.json", "--batch-size", "4"]) == 0
    assert "20 prompts too long for the context, whose beginning was left out" in capsys.readouterr().out


def test_an_output_folder_that_is_none_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1)} for _ in range(20)])
    assert main([*TINY, "--dataset", "rows.jsonl", "--check-plan", "--out-dir", "file"]) == 2
    assert "output folder file: " in capsys.readouterr().err
