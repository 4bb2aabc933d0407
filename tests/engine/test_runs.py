"""Whole runs, as a user starts them: trained, stopped, gone on with, and compared bit for bit with runs that nobody touched."""
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import ENVIRONMENT, TINY, compare_runs, load, sentences, trainer, write_plan, write_rows

from lmplay.train.__main__ import main


def flags(out: Path, plan: Path) -> list[str]:
    return [*TINY, "--dropout", "0.1", "--training-plan", str(plan), "--out-dir", str(out), "--batch-size", "7", "--mini-batch-size", "3",
            "--validation-interval", "30", "--save-interval", "25", "--grad-clip", "1", "--optimizer-warmup-steps", "5"]


@pytest.fixture(scope="module")
def curriculum(tmp_path_factory):
    """A plan of three stages: the built-in corpus, a weighted mix read for part of an epoch, a text file for a number of tokens."""
    folder = tmp_path_factory.mktemp("plan")
    write_rows(folder / "a.jsonl", [{"title": f"T{i}", "text": sentences(1 + i % 9)} for i in range(60)])
    write_rows(folder / "b.jsonl", [{"prompt": f"Q{i}?", "truth": sentences(1 + i % 3, "dog")} for i in range(40)])
    (folder / "c.txt").write_text("\n\n".join(sentences(40, f"fox {i}") for i in range(60)))
    return write_plan(folder, {
        "$defaults": {"lr": 0.01, "lr_schedule": "cosine", "validation": {"samples": 3}},
        "tales": {"dataset": "builtin:tales", "samples": 60},
        "mix": {"dataset": [{"path": "a.jsonl", "weight": 2}, {"path": "b.jsonl", "weight": 1}], "epochs": 1.5, "batch_size": 11, "freeze": ["blocks.0.mlp*"]},
        "book": {"dataset": "c.txt", "tokens": 9000, "context_len": 32, "weight_decay": 0.1},
    })


@pytest.fixture(scope="module")
def untouched(curriculum, tmp_path_factory):
    out = tmp_path_factory.mktemp("untouched")
    done = trainer(*flags(out, curriculum))
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_a_plan_is_followed_to_its_end(untouched):
    out, text = untouched
    assert "plan complete" in text
    for word in ("Prompt", "Truth", "Predicted", "floor", "== stage mix", "lmp_plotstats"):
        assert word in text
    names = {path.name for path in out.iterdir()}
    for stage in ("tales", "mix", "book"):
        assert {f"gpt2ish_model.{stage}.lmp", f"gpt2ish_model_step_{stage}_train_stats.json", f"gpt2ish_model_step_{stage}_validate_stats.json"} <= names
    content = load(out / "gpt2ish_model.lmp")
    assert list(content) == ["format", "versions", "curriculum", "model", "runner", "optimizers", "lr_schedulers"]
    assert all(set(content[name]) == {"state_args", "state"} for name in ("curriculum", "model", "runner", "optimizers", "lr_schedulers"))
    stats = content["runner"]["state"]["stats"]
    assert stats["total_train_samples"] == 60 + content["runner"]["state"]["step_stats"]["mix"]["total_train_samples"] + \
        content["runner"]["state"]["step_stats"]["book"]["total_train_samples"]
    assert stats["train_loss_total"] > 0
    train = json.loads((out / "gpt2ish_model_train_stats.json").read_text())
    assert train["totals"]["total_train_samples"] == stats["total_train_samples"]
    assert [stage["done"] for stage in train["stages"]] == [True] * 3
    assert train["stages"][0]["floor_nats_per_token"] > 0
    assert train["stages"][1]["floor_nats_per_token"] is None
    losses = train["columns"]["loss"]
    assert sum(losses[-5:]) < sum(losses[:5])
    settings = json.loads((out / "gpt2ish_model_settings.json").read_text())
    assert (settings["lr"], settings["batch_size"], settings["precision"]) == (0.0006, 7, "float32")


def test_the_same_command_gives_the_same_bits(untouched, curriculum, tmp_path):
    assert trainer(*flags(tmp_path, curriculum)).returncode == 0
    assert compare_runs(untouched[0], tmp_path) == []


def test_a_plan_that_is_done_says_so(untouched, curriculum):
    before = {path.name: path.read_bytes() for path in untouched[0].iterdir()}
    again = trainer(*flags(untouched[0], curriculum))
    assert again.returncode == 0
    assert "complete" in again.stdout
    assert {path.name: path.read_bytes() for path in untouched[0].iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_run_that_is_stopped_and_gone_on_with_ends_as_one_that_was_not(untouched, curriculum, tmp_path, number, code):
    dice = random.Random(number)
    stops = []
    for _ in range(30):
        run = subprocess.Popen([sys.executable, "-m", "lmplay.train", *flags(tmp_path, curriculum)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=ENVIRONMENT)
        for line in run.stdout:
            if line.startswith("== stage"):
                break
        time.sleep(dice.uniform(0.0, 0.5))
        if len(stops) < 4:
            run.send_signal(number)
        output, complaints = run.communicate(timeout=120)
        if run.returncode == 0:
            break
        stops.append(run.returncode)
        assert run.returncode == code, complaints
        assert "Traceback" not in complaints
        if number != signal.SIGKILL:
            assert "To go on:" in output
    assert len(stops) >= 2
    assert run.returncode == 0
    assert compare_runs(untouched[0], tmp_path) == []
    resumes = json.loads((tmp_path / "gpt2ish_model_train_stats.json").read_text())["clock"]["resumes"]
    assert len(resumes) <= len(stops)


def test_a_stop_before_training_ends_at_once(curriculum, tmp_path):
    run = subprocess.Popen([sys.executable, "-m", "lmplay.train", *flags(tmp_path / "out", curriculum)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, env=ENVIRONMENT)
    time.sleep(0.7)
    run.send_signal(signal.SIGINT)
    _, complaints = run.communicate(timeout=60)
    assert run.returncode in (130, -signal.SIGINT)
    assert not (tmp_path / "out").exists() or run.returncode == 130
    assert complaints.count("Traceback") <= (run.returncode != 130)


# --- in this process: quicker

@pytest.fixture
def corpus(tmp_path, monkeypatch):
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(30)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def train(capsys, *arguments, code=0):
    found = main([*TINY, "--batch-size", "5", *map(str, arguments)])
    captured = capsys.readouterr()
    assert found == code, captured.err
    return captured.out + captured.err


def weights(path="out_gpt/gpt2ish_model.lmp"):
    return load(Path(path))["model"]["state"]


def same(left, right):
    return all(torch.equal(left[key], right[key]) for key in left)


def test_reset_history_starts_anew_and_keeps_the_old_file(corpus, capsys):
    train(capsys, "--dataset", "rows.jsonl", "--seed", 3)
    first = weights()
    old = Path("out_gpt/gpt2ish_model.lmp").read_bytes()
    out = train(capsys, "--dataset", "rows.jsonl", "--seed", 3, "--reset-history")
    assert "gpt2ish_model.old-1.lmp" in out
    assert Path("out_gpt/gpt2ish_model.old-1.lmp").read_bytes() == old
    assert same(first, weights())  # nothing of the old run was used
    assert load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["total_train_samples"] == 27
    train(capsys, "--dataset", "rows.jsonl", "--seed", 4, "--reset-history")
    assert Path("out_gpt/gpt2ish_model.old-2.lmp").exists()
    assert not same(first, weights())


def test_initial_model_gives_weights_only_and_is_never_written(corpus, capsys):
    train(capsys, "--dataset", "rows.jsonl", "--model", "first.lmp")
    before = Path("first.lmp").read_bytes()
    train(capsys, "--dataset", "rows.jsonl", "--initial-model", "first.lmp", "--model", "second.lmp", "--lr", "1e-12", "--weight-decay", "0")
    assert Path("first.lmp").read_bytes() == before
    for key, value in weights("second.lmp").items():
        torch.testing.assert_close(value, weights("first.lmp")[key], rtol=0, atol=1e-8)
    stats = load(Path("second.lmp"))["runner"]["state"]["stats"]
    assert stats["total_train_samples"] == 27


def test_a_file_of_another_experiment_is_refused(corpus, capsys):
    train(capsys, "--dataset", "rows.jsonl", "--model", "m.lmp")
    before = Path("m.lmp").read_bytes()
    text = train(capsys, "--dataset", "rows.jsonl", "--model", "m.lmp", "--exp", "gpt2ish_tiny", code=2)
    assert "gpt2ish_tiny" in text
    assert "the file's model is gpt2ish" in text
    assert "--embed-dim 32" in train(capsys, "--dataset", "rows.jsonl", "--model", "m.lmp", "--embed-dim", "32", code=2)
    assert Path("m.lmp").read_bytes() == before


@pytest.mark.parametrize("damage", [lambda data: data[:len(data) // 2], lambda data: b"", lambda data: data[:100] + bytes(200) + data[300:]])
def test_a_damaged_file_is_named_and_left(corpus, capsys, damage):
    train(capsys, "--dataset", "rows.jsonl", "--model", "m.lmp")
    Path("m.lmp").write_bytes(damage(Path("m.lmp").read_bytes()))
    before = Path("m.lmp").read_bytes()
    assert "m.lmp" in train(capsys, "--dataset", "rows.jsonl", "--model", "m.lmp", code=2)
    assert Path("m.lmp").read_bytes() == before


def test_a_begun_stage_cannot_change_and_a_later_one_can(corpus, capsys):
    write_rows(corpus / "more.jsonl", [{"text": sentences(1)}] * 12)
    plan = {"one": {"dataset": "rows.jsonl"}}
    write_plan(corpus, plan)
    train(capsys, "--training-plan", "plan.json")
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "lr": 0.1}})
    text = train(capsys, "--training-plan", "plan.json", code=2)
    assert "stage 'one' has been done" in text
    assert "lr was not given, is 0.1" in text
    write_plan(corpus, {**plan, "two": {"dataset": "more.jsonl"}})
    assert "resumed" in train(capsys, "--training-plan", "plan.json")
    assert load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["step_stats"].keys() == {"one", "two"}


def test_data_that_changed_under_a_begun_stage_is_refused(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "epochs": 3}})
    main([*TINY, "--training-plan", "plan.json", "--batch-size", "5", "--save-interval", "20"])
    state = load(Path("out_gpt/gpt2ish_model.lmp"))
    state["curriculum"]["state"]["stages"][0]["done"] = False  # as if it had been stopped at the end of the stage
    torch.save(state, "out_gpt/gpt2ish_model.lmp")
    capsys.readouterr()
    rows = (corpus / "rows.jsonl").read_text()
    (corpus / "rows.jsonl").write_text(rows.replace("cat", "cow"))
    text = train(capsys, "--training-plan", "plan.json", code=2)
    assert "rows.jsonl has changed" in text


def test_rows_that_are_no_text_are_counted_and_shown(corpus, capsys):
    write_rows(corpus / "mixed.jsonl", [{"text": sentences(2)}, {"text": None}, {"text": 5}, {"text": "  "}] * 10)
    write_plan(corpus, {"one": {"dataset": "mixed.jsonl", "validation": 0}})
    text = train(capsys, "--training-plan", "plan.json")
    for reason in ("empty", "not text", "null"):
        assert f"10 rows skipped: {reason}" in text


def test_a_stage_ends_early_when_validation_gets_no_better(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "epochs": 50, "lr": 1e-9, "early_stopping": {"patience": 3, "min_delta": 0.5}}})
    text = train(capsys, "--training-plan", "plan.json", "--validation-interval", "10")
    assert "ended early" in text
    assert load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["total_train_samples"] < 60


def test_frozen_parameters_stay_and_the_others_move(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "freeze": ["*", "!final_norm.*"]}})
    train(capsys, "--training-plan", "plan.json", "--seed", 5, "--check-grads", "--optimizer", "sgd")
    moved = weights()
    train(capsys, "--training-plan", "plan.json", "--seed", 5, "--optimizer", "sgd", "--lr", "1e-30", "--reset-history")
    assert {key.split(".")[0] for key, value in weights().items() if not torch.equal(value, moved[key])} == {"final_norm"}


def test_check_grads_looks_at_the_gradients(corpus, capsys):
    assert "all there, none zero, all finite" in train(capsys, "--dataset", "rows.jsonl", "--check-grads")


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd", "rmsprop"])
def test_every_optimizer_trains(corpus, capsys, optimizer):
    train(capsys, "--dataset", "rows.jsonl", "--optimizer", optimizer, "--lr", "0.01")
    losses = json.loads(Path("out_gpt/gpt2ish_model_train_stats.json").read_text())["columns"]["loss"]
    assert losses[-1] < losses[0]


def test_ignore_optimizer_goes_on_with_a_fresh_one(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    train(capsys, "--training-plan", "plan.json")
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl"}})
    assert "--ignore-optimizer" in train(capsys, "--training-plan", "plan.json", "--optimizer", "sgd", code=2)
    train(capsys, "--training-plan", "plan.json", "--optimizer", "sgd", "--ignore-optimizer")


def test_mixed_precision_trains(corpus, capsys):
    assert "mixed bfloat16" in train(capsys, "--dataset", "rows.jsonl", "--amp")


def test_a_disk_that_is_full_loses_nothing(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    train(capsys, "--training-plan", "plan.json")
    before = Path("out_gpt/gpt2ish_model.lmp").read_bytes()
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl"}})
    program = ("import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
               "import lmplay.engine.loop, lmplay.train.__main__ as door\n"
               f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) // 2}, {len(before) // 2}))\n"
               "sys.exit(door.main(sys.argv[1:]))")
    done = subprocess.run([sys.executable, "-c", program, *TINY, "--batch-size", "5", "--training-plan", "plan.json", "--save-interval", "10"],
                          capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("could not be written (File too large)") >= 3  # at each interval, and at the end
    assert Path("out_gpt/gpt2ish_model.lmp").read_bytes() == before
    assert not list(Path("out_gpt").glob(".*.tmp"))


def test_losses_that_are_no_numbers_stop_the_run_and_keep_the_file(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    train(capsys, "--training-plan", "plan.json")
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl", "epochs": 20, "lr": 1e30}})
    before = Path("out_gpt/gpt2ish_model.lmp").read_bytes()
    text = train(capsys, "--training-plan", "plan.json", "--optimizer-warmup-steps", 0, "--optimizer", "adamw", code=1)
    assert "not finite" in text
    assert "Traceback" in text
    assert Path("out_gpt/gpt2ish_model.lmp").read_bytes() == before


def test_ruined_weights_never_replace_good_ones(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    train(capsys, "--training-plan", "plan.json", "--optimizer", "sgd")
    before = Path("out_gpt/gpt2ish_model.lmp").read_bytes()
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl", "samples": 5, "lr": 1e38, "validation": 0}})
    assert "not finite" in train(capsys, "--training-plan", "plan.json", "--disable-optimizer-warmup", code=1)
    assert Path("out_gpt/gpt2ish_model.lmp").read_bytes() == before


@pytest.fixture
def one_thread():
    """As many threads as the runs in processes of their own have: sums in another order have other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(int(ENVIRONMENT["OMP_NUM_THREADS"]))
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("every", [2, 5])
def test_a_stop_after_any_step_changes_nothing(untouched, curriculum, tmp_path, monkeypatch, capsys, every):
    import os

    from lmplay.engine import stage

    steps = iter(range(1, 10_000))
    original = stage.train_step

    def step_and_signal(*arguments, **options):
        result = original(*arguments, **options)
        if next(steps) % every == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(stage, "train_step", step_and_signal)
    codes = []
    while not codes or codes[-1] != 0:
        codes.append(main(flags(tmp_path, curriculum)))
    assert set(codes) == {0, 130}
    assert len(codes) > 5
    assert compare_runs(untouched[0], tmp_path) == []


def test_who_goes_on_need_not_say_again_what_the_data_depends_on(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    train(capsys, "--training-plan", "plan.json", "--seed", 3, "--optimizer", "sgd", "--continuation", "estimate")
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl"}})
    assert "--seed 3" in train(capsys, "--training-plan", "plan.json", "--seed", 4, code=2)
    assert "--continuation estimate" in train(capsys, "--training-plan", "plan.json", "--continuation", "exact", code=2)
    train(capsys, "--training-plan", "plan.json")
    kept = load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state_args"]["settings"]
    assert (kept["seed"], kept["optimizer"], kept["continuation"]) == (3, "sgd", "estimate")


def test_the_command_to_go_on_does_not_start_anew():
    from lmplay.report.report import Report

    assert Report(["lmp_trainer", "--reset_history", "--lr", "1", "--ignore-optimizer"])._command == "lmp_trainer --lr 1"


def test_the_last_validation_is_not_longer_than_its_stage(corpus, capsys):
    write_rows(corpus / "long.jsonl", [{"text": sentences(1000)}] * 64)
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "validation": {"dataset": "long.jsonl"}}})
    train(capsys, "--training-plan", "plan.json", "--validation-interval", 0)
    rows = load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["validate"]["rows"]
    assert 64 * 2000 <= rows["n_bytes"][0] <= 64 * 2000 + len(sentences(1000))


def test_data_that_gives_no_sample_is_an_error(corpus, capsys):
    write_rows(corpus / "nulls.jsonl", [{"text": None}] * 40)
    write_plan(corpus, {"one": {"dataset": "nulls.jsonl", "validation": 0}})
    text = train(capsys, "--training-plan", "plan.json", code=2)
    assert "stage 'one'" in text
    assert "40 rows skipped: 40 null" in text


def test_validation_rows_that_give_no_sample_are_no_validation(corpus, capsys):
    write_rows(corpus / "nulls.jsonl", [{"text": None}] * 40)
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "validation": {"dataset": "nulls.jsonl"}}})
    assert "no validation" in train(capsys, "--training-plan", "plan.json")


def test_the_trained_tokenizer_is_in_the_file(corpus, capsys):
    arguments = [*TINY[:-4], "--tokenizer", "train:300", "--device", "cpu", "--batch-size", "5", "--dataset", "rows.jsonl"]
    assert main(arguments) == 0
    spec = load(Path("out_gpt/gpt2ish_model.lmp"))["model"]["state_args"]["tokenizer"]
    assert spec["name"] == "train:300"
    assert weights()["token_embedding.weight"].shape[0] <= 300
    shutil.move("out_gpt/gpt2ish_model.lmp", "first.lmp")
    assert main(["--dataset", "rows.jsonl", "--initial-model", "first.lmp", "--model", "second.lmp", "--device", "cpu"]) == 0
    assert load(Path("second.lmp"))["model"]["state_args"]["tokenizer"] == spec
