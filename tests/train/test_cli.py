"""The command line: a contract.  Flags and defaults are frozen, and what is wrong is said in a line, fast, with exit code 2."""
import json
import subprocess
import sys

import pytest
import torch
import yaml
from helpers import ENVIRONMENT, TINY, sentences, trainer, write_plan, write_rows

from lmplay.generate.__main__ import main as generate
from lmplay.plan import options
from lmplay.plan.settings import Settings
from lmplay.plotstats.__main__ import main as plot
from lmplay.train.__main__ import main
from lmplay.train.flags import FLAGS

DEFAULTS = {
    "exp": "gpt2ish", "num_blocks": 6, "embed_dim": 768, "num_heads": 12, "params": None, "context_len": 1024, "dropout": 0.1, "tied_head": True,
    "tokenizer": None, "model": None,
    "initial_model": None, "training_plan": "default", "dataset": None, "continuation": "exact", "save_datasets": False, "data_workers": 1,
    "accept_changed_data": False, "out_dir": "out_gpt",
    "recipe": None, "train_for": None, "batch_size": 50, "mini_batch_size": 4, "mini_batch_tokens": 0, "pack": "auto", "validation_batch_size": 4,
    "validation_samples": 64, "validation_seed": 0, "save_interval": "auto", "validation_interval": "auto", "accuracy_pieces": 4, "seed": 0,
    "reset_history": False, "default_freeze": False, "check_grads": False, "lr": 0.0006,
    "lr_width": 0, "grad_clip": 0.0, "optimizer": "adamw", "betas": None, "eps": None,
    "momentum": None, "weight_decay": None,
    "ema": 0.0, "optimizer_warmup_fraction": 0.1, "optimizer_warmup_steps": 40, "disable_optimizer_warmup": False, "ignore_optimizer": False, "device": None,
    "amp": False,
    "amp_init_scale": 65536.0, "compile_model": False, "compile_mode": None, "compile_backend": "inductor",
    "activation_checkpointing": 0, "activation_memory_budget": 1.0, "shard": False, "shard_reduce_dtype": "float32", "matmul_precision": "highest",
    "deterministic": False, "tune_allocator": True,
    "checkpoint_format": "file",
    "keep": 2, "resume": "latest", "save_weights_only": None, "on_nonfinite": "stop", "time_limit": None, "max_steps": 0, "max_samples_this_run": 0,
    "describe": False, "inspect": None, "check_plan": False, "plot_schedule": None, "find_lr": None, "show_samples": 0, "show_batch": None, "json": False,
    "track": None, "callback": None, "track_project": None, "track_name": None, "track_tags": None,
    "sample_prompts": None, "sample_tokens": 100, "sample_count": 1, "sample_temperature": 0.8,
    "profile": None, "quiet": False, "verbose": False, "log_json": False,
}


def run(capsys, *arguments):
    """Run the door in this process; gives exit code, output and complaints."""
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_flags_and_defaults_are_frozen():
    assert [flag.name for flag in FLAGS] == list(DEFAULTS)
    assert {flag.name: getattr(Settings(), flag.name) for flag in options.FLAGS} == DEFAULTS


def test_the_optimizers_are_those_there_are():
    from lmplay.optim.optimizers import OPTIMIZERS

    check = next(flag.check for flag in FLAGS if flag.name == "optimizer")
    assert [check(name) for name in OPTIMIZERS] == list(OPTIMIZERS)


@pytest.mark.parametrize("arguments", [["--help"], ["--exp", "list"], ["--training-plan", "list"], ["--training-plan", "nonsense"], ["--lr", "fast"],
                                       ["--dataset", "missing.jsonl"], ["--exp", "gtp2ish", "--training-plan", "quickstart"]])
def test_what_needs_no_torch_does_not_load_it(arguments):
    program = ("import sys, lmplay.train.__main__ as door\n"
               "try: door.main(sys.argv[1:])\n"
               "except SystemExit: pass\n"
               "heavy = {'torch', 'transformers', 'datasets', 'tokenizers', 'numpy', 'pyarrow', 'matplotlib'} & set(sys.modules)\n"
               "sys.exit(f'loaded {heavy}' if heavy else 0)")
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr


def test_both_dashes_are_accepted(capsys, tmp_path):
    written = []
    for flag in ("--num-blocks", "--num_blocks"):
        code, _, _ = run(capsys, flag, 3, "--dump-config", tmp_path / "c.json")
        assert code == 0
        written.append(json.loads((tmp_path / "c.json").read_text()))
    assert written == [{"num_blocks": 3}] * 2


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_settings_file_comes_back(capsys, tmp_path, suffix):
    first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    flags = ["--lr", "0.003", "--amp", "--no-tied-head", "--training-plan", "quickstart", "--batch-size", "7"]
    assert run(capsys, *flags, "--dump-config", first)[0] == 0
    assert run(capsys, "--use-config", first, "--dump-config", second)[0] == 0
    assert first.read_text() == second.read_text()
    assert yaml.safe_load(first.read_text()) == {"lr": 0.003, "amp": True, "tied_head": False, "training_plan": "quickstart", "batch_size": 7}
    assert run(capsys, "--use-config", first, "--lr", "0.1", "--dump-config", second)[0] == 0  # the command line wins
    assert yaml.safe_load(second.read_text())["lr"] == 0.1


def test_all_faults_of_a_settings_file_at_once(capsys, tmp_path):
    path = tmp_path / "c.json"
    path.write_text('{"lr": 0, "bach_size": 3, "amp": "yes", "num-heads": 2.5}')
    code, _, err = run(capsys, "--use-config", path)
    assert code == 2
    lines = err.splitlines()
    assert len(lines) == 4
    assert "above 0" in lines[0]
    assert "Did you mean 'batch_size'?" in lines[1]
    assert "off, on, bfloat16 or float16" in lines[2]
    assert "whole number" in lines[3]


def test_what_is_typed_wins_over_a_settings_file(capsys, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("dataset: nowhere.jsonl\nlr: 2020-01-01\nbatch_size: .inf\n")
    _, _, err = run(capsys, "--use-config", path)
    assert "'lr'" in err
    assert "'batch_size'" in err
    path.write_text("dataset: nowhere.jsonl\n")
    assert run(capsys, "--use-config", path, "--training-plan", "list")[0] == 0
    path.write_text("dataset: nowhere.jsonl\ntraining_plan: quickstart\n")
    assert "both dataset and training_plan" in run(capsys, "--use-config", path)[2]


@pytest.fixture
def files(tmp_path):
    write_rows(tmp_path / "good.jsonl", [{"text": sentences(3)} for _ in range(20)])
    write_rows(tmp_path / "labels.jsonl", [{"label": 1, "words": "a"}])
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "broken.json").write_text('{"a": {"dataset": "wikitext",\n  "epochs" 3}}')
    write_plan(tmp_path, {"a": {"dataset": "good.jsonl", "epohcs": 1}, "b": {"dataset": "good.jsonl", "epochs": 0, "lr": "fast"}})
    (tmp_path / "wide.json").write_text('{"a": {"dataset": "good.jsonl", "context_len": 2048}}')
    (tmp_path / "frozen.json").write_text('{"a": {"dataset": "good.jsonl", "freeze": ["block.*"]}}')
    (tmp_path / "not_a_model.lmp").write_bytes(b"these are no weights")
    (tmp_path / "file").write_text("a file where a folder should be")
    torch.save({"weights": torch.zeros(3)}, tmp_path / "foreign.lmp")
    return tmp_path


@pytest.mark.parametrize(("arguments", "complaints"), [
    (["--training-plan", "plan.json"],
     [["stage 'a'", "'epohcs'", "Did you mean 'epochs'"], ["stage 'b'", "'epochs'", "above 0"], ["stage 'b'", "'lr'", "fast"]]),
    (["--training-plan", "broken.json"], [["broken.json", "line 2, column 12"]]),
    (["--training-plan", "quikstart"], [["quikstart", "quickstart"]]),
    (["--dataset", "god.jsonl"], [["god.jsonl", "good.jsonl"]]),
    (["--dataset", "empty.jsonl"], [["empty.jsonl", "empty"]]),
    (["--dataset", "labels.jsonl"], [["labels.jsonl", "no text column", "label, words", '"columns"']]),
    (["--dataset", "good.jsonl", "--embed-dim", "100", "--num-heads", "12"], [["embed-dim 100", "num-heads 12"]]),
    (["--dataset", "good.jsonl", "--device", "cuda:99"], [["--device cuda:99", "cpu"]]),
    (["--dataset", "good.jsonl", "--device", "abacus"], [["--device abacus", "cpu"]]),
    (["--dataset", "good.jsonl", "--mini-batch-size", "0"], [["--mini-batch-size 0", "from 1"]]),
    (["--dataset", "good.jsonl", "--optimizer", "adamv"], [["adamv", "adamw"]]),
    (["--dataset", "good.jsonl", "--nmu-blocks", "3"], [["--nmu-blocks", "--num-blocks"]]),
    (["--dataset", "good.jsonl", "--model", "not_a_model.lmp"], [["not_a_model.lmp", "not a checkpoint"]]),
    (["--dataset", "good.jsonl", "--model", "foreign.lmp"], [["foreign.lmp", "not a checkpoint"]]),
    (["--dataset", "good.jsonl", "--model", "."], [["--model .", "is a folder"]]),
    (["--dataset", "good.jsonl", "--model", "plan.json"], [["plan.json", ".lmp"]]),
    (["--dataset", "good.jsonl", "extra"], [["extra", "not the value of any flag"]]),
    (["--dataset", "good.jsonl", "--initial-model", "missing.lmp"], [["missing.lmp", "cannot be read"]]),
    (["--dataset", "good.jsonl", "--out-dir", "file/out"], [["file/out", "is not a folder"]]),
    (["--dataset", "good.jsonl", "--tokenizer", "train:12"], [["train:12", "257"]]),
    (["--dataset", "good.jsonl", "--tokenizer", "nobody/nothing"], [["nobody/nothing", "train:8192", "bytes"]]),
    (["--dataset", "good.jsonl", "--training-plan", "quickstart"], [["--dataset and --training-plan"]]),
    (["--training-plan", "wide.json", "--context-len", "64", "--tokenizer", "bytes"], None),
    (["--training-plan", "wide.json", "--tokenizer", "bytes"], [["stage 'a'", "2048", "1024"]]),
    (["--training-plan", "frozen.json", *TINY], [["stage 'a'", "block.*", "blocks"]]),
    (["--dataset", "good.jsonl", *TINY, "--compile-model", "--compile-backend", "inducter"], [["inducter", "inductor"]]),
])
def test_bad_input_is_refused_in_a_line_and_nothing_written(files, monkeypatch, capsys, arguments, complaints):
    monkeypatch.chdir(files)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = sorted(files.rglob("*"))
    if complaints is None:  # a typed flag wins over the stage: nothing is wrong
        arguments = [*arguments, "--describe"]
    code, _, err = run(capsys, *arguments)
    assert code == (0 if complaints is None else 2), err
    assert len(err.splitlines()) == len(complaints or [])
    for line, words in zip(err.splitlines(), complaints or [], strict=True):
        assert all(word in line for word in words), line
    assert "Traceback" not in err
    assert sorted(files.rglob("*")) == before


def test_all_faults_of_flags_model_and_data_come_in_one_run(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    (files / "all.json").write_text(json.dumps({
        "a": {"dataset": "good.jsonl", "freeze": ["block.*"]}, "b": {"dataset": "labels.jsonl", "context_len": 2048}, "c": {"dataset": "empty.jsonl"}}))
    flags = ["--training-plan", "all.json", "--embed-dim", "100", "--num-heads", "12", "--tokenizer", "nobody/nothing"]
    shared = [["embed-dim 100", "num-heads 12"], ["stage 'a'", "block.*"], ["stage 'b'", "2048"], ["labels.jsonl", "no text column"], ["empty.jsonl"],
              ["nobody/nothing"]]
    for first, more in (([], []), ([], ["--check-plan"]), ([["--optimizer adamv"], ["--lr 0"]], ["--check-plan", "--optimizer", "adamv", "--lr", "0"])):
        code, _, err = run(capsys, *flags, *more)
        assert code == 2
        for line, words in zip(err.splitlines(), [*sorted(first, reverse=True), *shared] if not first else [["--lr 0"], ["adamv"], *shared], strict=True):
            assert all(word in line for word in words), err
    code, _, err = run(capsys, "--training-plan", "all.json", "--exp", "gtp2ish", "--tokenizer", "nobody/nothing", "--check-plan")
    assert code == 2
    for word in ("--exp gtp2ish", "labels.jsonl", "empty.jsonl", "nobody/nothing"):
        assert sum(word in line for line in err.splitlines()) == 1, err


def test_faults_of_flags_and_plan_come_together_without_torch(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    code, _, err = run(capsys, "--training-plan", "plan.json", "--lr", "fast", "--optimizer", "adamv", "--quiet", "--verbose")
    assert code == 2
    for word in ("--lr fast", "adamv", "--quiet and --verbose", "'epohcs'"):
        assert word in err


def test_a_plan_that_is_done_says_what_to_do_with_another_lr(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    flags = ["--dataset", "good.jsonl", *TINY]
    assert run(capsys, *flags)[0] == 0
    assert "nothing is left" not in run(capsys, *flags)[1]
    _, said, _ = run(capsys, *flags, "--lr", "0.01", "--batch-size", 7)
    assert "--batch-size and --lr: nothing is left that this could change" in said
    assert "--initial-model out_gpt/gpt2ish_model.lmp --model NEW" in said


def test_a_model_may_have_the_name_of_a_folder(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    (files / "texts").mkdir()
    assert run(capsys, "--dataset", "good.jsonl", *TINY, "--model", "texts", "--max-steps", "1", "--batch-size", "3", "--out-dir", "out")[0] == 75
    assert (files / "out" / "texts.lmp").is_file()


def test_a_dot_is_a_part_of_a_models_name(files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    flags = ["--dataset", "good.jsonl", *TINY, "--max-steps", "1", "--batch-size", "3", "--out-dir", "out"]
    assert run(capsys, *flags, "--model", "d0.1_s0")[0] == 75
    assert (files / "out" / "d0.1_s0.lmp").is_file()
    assert (files / "out" / "d0.1_s0_train_stats.json").is_file()
    assert run(capsys, *flags, "--model", "out/d0.2", "--initial-model", "d0.1_s0")[0] == 75
    assert (files / "out" / "d0.2.lmp").is_file()
    assert "gpt2ish" in run(capsys, "--inspect", "d0.1_s0", "--out-dir", "out")[1]
    assert generate(["--model", "d0.1_s0", "--out-dir", "out", "--prompt", "A", "--max-tokens", "1", "--device", "cpu"]) == 0
    assert plot(["--models", "d0.1_s0", "d0.2", "--baseline", "d0.2", "--out-dir", "out", "--json"]) == 0
    assert "d0.1_s0" in capsys.readouterr().out
    for name in ("d0.1.best", "d0.1.prev-1.lmp", "best.lmp.best", "idea.pt", "idea.SAFETENSORS", "plan.json"):
        assert run(capsys, *flags, "--model", name)[0] == 2


def test_without_network_the_default_plan_says_what_to_do(tmp_path):
    done = trainer("--training-plan", "default", "--out-dir", tmp_path / "out", env={"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}, timeout=60)
    assert done.returncode == 75
    assert "hub" in done.stderr
    assert "quickstart" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_describe_says_how_large_it_is(capsys, tmp_path):
    code, out, _ = run(capsys, "--dataset", "builtin:tales", "--tokenizer", "train:1024", "--out-dir", tmp_path, "--describe")
    assert code == 0
    blocks = 6 * (12 * 768 * 768 + 13 * 768)
    for count in (1024 * 768, 1024 * 768, blocks, blocks + 2 * 1024 * 768 + 2 * 768):
        assert f"{count:,}" in out
    assert "13 mini-batches" in out
    assert not list(tmp_path.iterdir())


MODULE = """
from pathlib import Path
from lmplay.track.callback import Callback
Path("ran").write_text("")

class Alarm(Callback):
    pass

def alarm():
    Path("called").write_text("")
"""


def test_code_that_a_settings_file_names_runs_only_if_it_is_trusted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alarm_of_a_file.py").write_text(MODULE)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1)} for _ in range(9)])
    (tmp_path / "c.json").write_text('{"callback": "alarm_of_a_file:Alarm"}')
    use = [*TINY, "--dataset", "rows.jsonl", "--max-steps", 1, "--use-config", "c.json"]
    code, _, err = run(capsys, *use)
    assert code == 2
    assert "--trust-config" in err
    assert not (tmp_path / "ran").exists()
    assert run(capsys, *use, "--trust-config")[0] == 75
    assert (tmp_path / "ran").exists()
    (tmp_path / "c.json").write_text('{"callback": "os:abort"}')
    assert run(capsys, *use, "--callback", "alarm_of_a_file:Alarm", "--reset-history")[0] == 75  # what is typed wins


@pytest.mark.parametrize("name", ["os:abort", "alarm_of_a_file:alarm", "alarm_of_a_file:Path", "os:path"])
def test_what_is_no_class_of_a_callback_is_not_called(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alarm_of_a_file.py").write_text(MODULE)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1)} for _ in range(9)])
    code, _, err = run(capsys, *TINY, "--dataset", "rows.jsonl", "--callback", name)
    assert code == 2
    assert f"--callback {name}: is not a lmplay" in err
    assert not (tmp_path / "called").exists()


def test_no_sample_to_show_is_no_reason_to_train(capsys):
    code, _, err = run(capsys, "--training-plan", "quickstart", "--show-samples", 0)
    assert code == 2
    assert "--show-samples 0" in err
