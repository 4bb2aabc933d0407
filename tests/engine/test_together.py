"""Whole runs of several processes: the samples, statistics and weights of one; one end for all, whatever ends them."""
import os
import time
from pathlib import Path

import pytest
import several
from helpers import compare_runs, write_plan
from together import FLAGS, MODEL, PATCH, assert_alike, start, steps_of, train, train_in_turn, write_data

pytestmark = pytest.mark.skipif(os.name == "nt", reason="forked processes")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("sizes", "arguments"), [
    ((2, 3), ("--mini-batch-size", 1)), ((2,), ("--mini-batch-size", 3, "--grad-clip", 0.5, "--ema", 0.9))])
def test_several_processes_give_samples_statistics_and_weights_of_one(folder, sizes, arguments):
    train(1, "out1", *arguments)
    for size in sizes:
        said = train(size, f"out{size}", *arguments)
        assert said.count("plan complete") == 1
        assert_alike("out1", f"out{size}")
    names = {path.name for path in Path("out1").iterdir()}
    assert all({path.name for path in Path(f"out{size}").iterdir()} == names for size in sizes)


CUTS = (*(("--mini-batch-size", size) for size in range(1, 6)), ("--mini-batch-tokens", 60, "--pack", "off"))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_how_a_batch_is_cut_and_who_computes_it_does_not_matter(folder, size):
    """Mini-batches of any size, a last batch that is smaller, each rank with the whole model or a part of it, and optimizers of both kinds."""
    write_plan(folder, {"one": {"dataset": ["rows.jsonl", "more.jsonl"], "samples": 13, "validation": {"samples": 3}}})
    train_in_turn(1, [("--out-dir", f"whole-{optimizer}", "--optimizer", optimizer, *CUTS[0]) for optimizer in ("adamw", "muon")])
    runs = [(f"{optimizer}{shard}{number}", optimizer, ("--optimizer", optimizer, *shard, *cut)) for number, cut in enumerate(CUTS)
            for shard, optimizer in (((), ("adamw", "muon")[number % 2]), (("--shard",), ("muon", "adamw")[number % 2]))]
    train_in_turn(size, [("--out-dir", out, *flags) for out, _, flags in runs])
    for out, optimizer, _ in runs:
        assert_alike(f"whole-{optimizer}", out, weights=1e-3 if optimizer == "muon" else 1e-5, aside=("padding", "places"))


@pytest.mark.slow
def test_compiled_code_gives_the_same(folder):
    flags = ("--compile-model", "--compile-backend", "eager", "--mini-batch-size", 2)
    train(1, "out1", *flags)
    train(2, "out2", *flags)
    assert_alike("out1", "out2")


def test_a_rank_without_a_mini_batch_joins_in_float16_too(folder):
    train(4, "out", "--amp", "float16", "--max-steps", 2, "--batch-size", 2, code=75)


def test_dropout_does_not_depend_on_the_number_of_processes_beyond_one(folder):
    for size in (2, 3):
        train(size, f"out{size}", "--dropout", 0.3, "--mini-batch-size", 1, "--max-steps", 9, code=75)
    assert_alike("out2", "out3")


def test_the_number_of_processes_may_change_on_the_way(folder):
    train(1, "whole", "--mini-batch-size", 1)
    assert "stopped (--max-steps 4)" in train(2, "changed", "--mini-batch-size", 1, "--max-steps", 4, code=75)
    train(1, "changed", "--mini-batch-size", 1, "--max-steps", 5, code=75)
    train(3, "changed", "--mini-batch-size", 1)
    assert_alike("whole", "changed")


def test_the_same_number_of_processes_gives_the_same_bits_after_a_stop(folder):
    train(2, "whole", "--dropout", 0.2)
    train(2, "stopped", "--dropout", 0.2, "--max-steps", 6, code=75)
    train(2, "stopped", "--dropout", 0.2)
    assert compare_runs(Path("whole"), Path("stopped")) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_rank_stops_all_at_one_step(folder, rank):
    train(2, "whole")
    codes, outputs, complaints = several.finish(start(2, "stopped", after_step=f"if rank == {rank} and steps[0] == 3: os.kill(os.getpid(), signal.SIGTERM)"))
    assert codes == [143, 143], complaints
    assert outputs[0].count("stopped (SIGTERM)") == 1
    assert not outputs[1]
    assert steps_of("stopped") == 3
    train(2, "stopped")
    assert compare_runs(Path("whole"), Path("stopped")) == []


def test_a_signal_to_all_is_one_stop_and_usr1_to_any_saves(folder):
    codes, outputs, complaints = several.finish(start(3, "out", at_step="if steps[0] == 2: os.kill(os.getpid(), signal.SIGINT)"))
    assert codes == [130] * 3, complaints
    assert outputs[0].count("stopped (Ctrl+C)") == 1
    wait = """if rank == 1 and steps[0] == 2: os.kill(os.getpid(), signal.SIGUSR1)
    while rank == 0 and steps[0] == 5 and not os.path.exists("saved/gpt2ish_model.lmp"): time.sleep(0.05)
    if rank == 0 and steps[0] == 5: os._exit(9)"""
    processes = start(2, "saved", after_step=wait)
    assert several.finish(processes)[0][0] == 9
    assert 2 <= steps_of("saved") <= 4


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_is_named_and_the_same_command_goes_on(folder, rank):
    train(2, "whole")
    started = time.monotonic()
    processes = start(2, "killed", "--save-interval", "2steps", at_step=f"if rank == {rank} and steps[0] == 5: os.kill(os.getpid(), signal.SIGKILL)")
    codes, _, complaints = several.finish(processes)
    assert codes[rank] == -9
    assert codes[1 - rank] == 1
    assert complaints[1 - rank].count(f"rank {rank} (process {processes[rank].pid}") == 1, complaints
    assert "gone" in complaints[1 - rank]
    assert time.monotonic() - started < 30
    assert steps_of("killed") == 4 if rank else steps_of("killed") >= 2  # rank 0 saves what has been done
    train(2, "killed")
    assert compare_runs(Path("whole"), Path("killed")) == []


@pytest.mark.parametrize(("where", "code", "said", "saved"), [
    ("stage.StageRunner.next_batch", 1, "RuntimeError: damaged", 2), ("stage.train_step", 1, "RuntimeError: damaged", 2),
    ("loop.note_validations", 1, "RuntimeError: damaged", None), ("stage.HeldOut.regular", 1, "RuntimeError: damaged", None),
    ("stage.StageRunner.next_batch", 2, "bad row", 2), ("stage.evaluate", 75, "hub away", None)])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_one_rank_ends_all_with_its_code_and_is_told_once(folder, where, code, said, saved, rank):
    error = {1: "RuntimeError('damaged')", 2: "UserError('bad row')", 75: "Unavailable('hub away')"}[code]
    more = f"""
from lmplay.errors import Unavailable, UserError
before = {where}
def fail(*arguments, **options):
    if rank == {rank} and steps[0] >= 2:
        raise {error}
    return before(*arguments, **options)
{where} = fail
"""
    codes, outputs, complaints = several.finish(start(2, "out", more=more))
    assert codes == [code, code], (outputs, complaints)
    assert not outputs[1]
    assert not complaints[1]
    assert complaints[0].count(said) == 1, complaints[0]
    assert (f"rank {rank} (process" in complaints[0]) == (rank == 1)
    if saved is not None and (rank == 1 or where != "stage.train_step"):  # what was done before has been saved
        assert steps_of("out") == saved


def test_a_disk_that_is_full_ends_all_with_one_message(folder):
    more = """
from lmplay.checkpoints import rotation
def full(*arguments):
    raise OSError(28, "No space left on device")
rotation.save = full
"""
    codes, outputs, complaints = several.finish(start(2, "out", "--save-interval", "1steps", more=more))
    assert codes == [1, 1]
    assert complaints[0].count("\nlmp_trainer: the last 3 saves have all failed") == 1
    assert not outputs[1] + complaints[1]


def test_bad_input_is_told_once(folder):
    codes, outputs, complaints = several.train(2, *FLAGS, "--optimizer", "sdg")
    assert codes == [2, 2]
    assert complaints[0].count("sdg") == 1
    assert not complaints[1] + outputs[1]
    codes, _, complaints = several.train(2, *FLAGS, "--mini-batch-size", "auto", "--check-plan")
    assert codes == [2, 2]
    assert "--mini-batch-size auto: is for one process" in complaints[0]
    assert "--check-plan: is for one process" in complaints[0]
    assert not Path("out_gpt").exists()


def test_ranks_of_other_files_are_refused_by_name(folder):
    other = "import os, sys\nif os.environ['RANK'] == '1': sys.argv += ['--lr', '0.5']\nfrom lmplay.train.__main__ import main\nsys.exit(main())"
    codes, _, complaints = several.run(2, "-c", other, *FLAGS)
    assert codes == [2, 2]
    assert complaints[0].count("has not the same flags as rank 0") == 1
    assert not Path("out_gpt", MODEL).exists()


@pytest.mark.slow
def test_torchrun_restarts_what_was_killed(folder):
    import subprocess
    import sys

    from helpers import ENVIRONMENT, ROOT

    Path("killed.py").write_text(PATCH.format(
        at_step="if rank == 1 and steps[0] == 3 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': os.kill(os.getpid(), signal.SIGKILL)",
        after_step="pass", more=""))
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--max-restarts=1", "killed.py", *FLAGS, "--out-dir", "out"]
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("plan complete") == 1
    train(1, "whole")
    assert_alike("whole", "out")


