"""Whole runs of several processes that each hold a part of the model (`--shard`): the samples, statistics and weights of one process that has all of it."""
import os
import signal
from pathlib import Path

import pytest
import several
from helpers import compare_runs, load, write_plan, write_rows
from pairs import rows_of_pairs
from tasks import TASKS, grpo
from together import FLAGS, MODEL, assert_alike, start, steps_of, train, write_data

pytestmark = pytest.mark.skipif(os.name == "nt", reason="forked processes")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    return tmp_path


def test_one_process_has_the_whole_model_and_says_so(folder):
    assert train(1, "out", "--shard", "--max-steps", 1, code=75).count("--shard: there is one process") == 1


def test_what_needs_the_whole_model_is_refused_by_name(folder):
    write_rows(folder / "pairs.jsonl", rows_of_pairs(12))
    write_rows(folder / "tasks.jsonl", TASKS)
    write_plan(folder, {"one": {"dataset": "rows.jsonl", "samples": 5, "optimizer": "adafactor"},
                        "two": {"dataset": "rows.jsonl", "samples": 5, "adapter": {"kind": "lora", "rank": 2}},
                        "three": {"dataset": "pairs.jsonl", "samples": 5, "objective": "dpo"},
                        "four": {"dataset": "tasks.jsonl", "samples": 5, "objective": grpo(kl=0.1)}})
    codes, outputs, complaints = several.train(2, *FLAGS, "--shard", "--compile-model")
    assert codes == [2, 2]
    assert "--shard and --compile-model together" in complaints[0]
    assert "stage 'one': --shard: the optimizer adafactor needs whole weights" in complaints[0]
    assert "stage 'two': adapter and --shard together" in complaints[0]
    assert "stage 'three': --shard: the objective dpo compares with the model at the start of the stage" in complaints[0]
    assert "stage 'four': --shard: with kl the answers are compared with the model at the start of the stage" in complaints[0]
    assert not complaints[1] + outputs[1]


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "arguments"), [
    ((2, 3), ("--mini-batch-size", 1, "--grad-clip", 0.5, "--ema", 0.9)),
    ((3,), ("--mini-batch-tokens", 60, "--activation-checkpointing", "on", "--no-tied-head"))])
def test_a_sharded_model_gives_samples_statistics_and_weights_of_a_whole_one(folder, sizes, arguments):
    Path("prompts.txt").write_text("The cat\n\n")
    arguments = (*arguments, "--sample-prompts", "prompts.txt", "--sample-tokens", 4, "--save-weights-only", "weights.lmp", "--check-grads")
    said = {size: train(size, f"out{size}", *arguments, *(["--shard"] if size > 1 else [])) for size in (1, *sizes)}
    names = {path.name for path in Path("out1").iterdir()}
    for size in sizes:
        assert said[size].count("plan complete") == 1
        assert {path.name for path in Path(f"out{size}").iterdir()} == names
        assert_alike("out1", f"out{size}")
        for name in ("weights.lmp", "gpt2ish_model.best.lmp"):
            mine, theirs = (load(Path(out, name))["model"]["state"] for out in ("out1", f"out{size}"))
            assert {key: value.shape for key, value in mine.items()} == {key: value.shape for key, value in theirs.items()}
        assert Path(f"out{size}/gpt2ish_model_samples.jsonl").read_text() == Path("out1/gpt2ish_model_samples.jsonl").read_text()


@pytest.mark.slow
def test_a_state_goes_on_with_any_number_of_processes_sharded_or_not(folder):
    train(1, "whole", "--mini-batch-size", 1)
    for size, arguments in ((2, ["--shard"]), (1, []), (3, ["--shard"]), (2, [])):
        train(size, "changed", "--mini-batch-size", 1, "--max-steps", 2, *arguments, code=75)
    train(2, "changed", "--mini-batch-size", 1, "--shard")
    assert_alike("whole", "changed")
    for size, arguments in ((1, []), (2, ["--shard"])):
        train(size, f"from{size}", "--initial-model", "whole/gpt2ish_model.lmp", "--max-steps", 2, "--exp", "gpt2ish", *arguments, code=75)
    assert_alike("from1", "from2")


@pytest.mark.slow
def test_the_same_number_of_processes_gives_the_same_bits_after_a_signal_to_one(folder):
    flags = ("--shard", "--dropout", 0.2, "--amp", "bfloat16", "--ema", 0.9)
    train(2, "whole", *flags)
    codes, outputs, complaints = several.finish(start(2, "stopped", *flags, after_step="if rank == 1 and steps[0] == 3: os.kill(os.getpid(), signal.SIGTERM)"))
    assert codes == [143, 143], complaints
    assert outputs[0].count("stopped (SIGTERM)") == 1
    assert steps_of("stopped") == 3
    train(2, "stopped", *flags)
    assert compare_runs(Path("whole"), Path("stopped")) == []


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_bad_row_on_one_rank_saves_what_was_done_and_ends_all(folder, rank):
    more = f"""
from lmplay.errors import UserError
before = stage.StageRunner.next_batch
def fail(*arguments, **options):
    if rank == {rank} and steps[0] >= 2:
        raise UserError('bad row')
    return before(*arguments, **options)
stage.StageRunner.next_batch = fail
"""
    codes, outputs, complaints = several.finish(start(2, "out", "--shard", more=more))
    assert codes == [2, 2], (outputs, complaints)
    assert complaints[0].count("bad row") == 1
    assert not outputs[1] + complaints[1]
    assert steps_of("out") == 2


@pytest.mark.slow
def test_an_error_in_a_validation_of_one_rank_ends_all(folder):
    more = """
judge = evaluate.add_words
def fail(*arguments):
    if rank == 1:
        raise RuntimeError('damaged')
    return judge(*arguments)
evaluate.add_words = fail
"""
    codes, outputs, complaints = several.finish(start(2, "out", "--shard", "--save-interval", "1steps", more=more))
    assert codes == [1, 1], (outputs, complaints)
    assert complaints[0].count("RuntimeError: damaged") == 1
    assert not outputs[1] + complaints[1]
    assert steps_of("out") >= 1


@pytest.mark.slow
def test_a_full_disk_ends_all_with_one_message_and_usr1_to_any_rank_saves(folder):
    more = """
from lmplay.checkpoints import rotation
def full(*arguments):
    raise OSError(28, "No space left on device")
rotation.save = full
"""
    codes, outputs, complaints = several.finish(start(2, "full", "--shard", "--save-interval", "1steps", more=more))
    assert codes == [1, 1]
    assert complaints[0].count("\nlmp_trainer: the last 3 saves have all failed") == 1
    assert not outputs[1] + complaints[1]
    wait = """if rank == 1 and steps[0] == 2: os.kill(os.getpid(), signal.SIGUSR1)
    while rank == 0 and steps[0] == 5 and not os.path.exists("saved/gpt2ish_model.lmp"): time.sleep(0.05)
    if rank == 0 and steps[0] == 5: os._exit(9)"""
    assert several.finish(start(2, "saved", "--shard", after_step=wait))[0][0] == 9
    assert 2 <= steps_of("saved") <= 4


@pytest.mark.slow
def test_a_rank_that_is_killed_in_a_step_is_named_and_the_run_goes_on_from_the_last_save(folder):
    at_step = "if rank == 1 and steps[0] == 5: os.kill(os.getpid(), signal.SIGKILL)"
    processes = start(2, "killed", "--shard", "--save-interval", "2steps", at_step=at_step)
    codes, _, complaints = several.finish(processes)
    assert codes == [1, -signal.SIGKILL]
    assert complaints[0].count(f"rank 1 (process {processes[1].pid}") == 1, complaints
    assert "gone" in complaints[0]
    assert steps_of("killed") == 4
    train(2, "killed", "--shard")
    train(2, "whole", "--shard")
    assert compare_runs(Path("whole"), Path("killed")) == []


@pytest.mark.slow
def test_each_node_has_a_copy_of_the_model(folder):
    place = "import os, sys\nos.environ['LOCAL_RANK'] = str(int(os.environ['RANK']) % 2)\nfrom lmplay.train.__main__ import main\nsys.exit(main())"
    codes, outputs, complaints = several.run(4, "-c", place, *FLAGS, "--out-dir", "out4", "--shard", "node", LOCAL_WORLD_SIZE="2")
    assert codes == [0] * 4, (outputs, complaints)
    train(1, "out1")
    assert_alike("out1", "out4")
    codes, _, complaints = several.train(2, *FLAGS, "--out-dir", "other", "--shard", "node", LOCAL_WORLD_SIZE="3")
    assert codes == [2, 2]
    assert complaints[0].count("each machine needs the same number of processes") == 1
    assert not Path("other", MODEL).exists()


@pytest.mark.slow
def test_only_the_head_may_be_trained_and_float16_skips_on_all_ranks(folder):
    write_plan(folder, {"one": {"dataset": "rows.jsonl", "samples": 10, "freeze": ["*", "!head.*"]}, "two": {"dataset": "rows.jsonl", "samples": 9}})
    flags = ("--no-tied-head", "--amp", "float16", "--amp-init-scale", "1e9", "--mini-batch-size", 2)
    train(2, "whole", *flags)
    train(2, "sharded", "--shard", *flags)
    assert_alike("whole", "sharded")
