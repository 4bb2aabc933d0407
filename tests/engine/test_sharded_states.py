"""Whole runs whose states are folders of shards (`--checkpoint-format sharded`): what they leave is what runs with files leave."""
import os
import shutil
import signal
from pathlib import Path

import pytest
import several
import torch
from helpers import compare_runs, differences, load
from states import flip
from together import FLAGS, MODEL, assert_alike, start, steps_of, train, write_data

from lmplay.checkpoints.format import verify
from lmplay.evaluate.__main__ import main as evaluate
from lmplay.exp import experiments
from lmplay.export.__main__ import main as export
from lmplay.generate.__main__ import main as generate
from lmplay.tools.__main__ import main as tools
from lmplay.train.__main__ import main

SHARDED = ("--checkpoint-format", "sharded")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    write_data(tmp_path)
    return tmp_path


def run(capsys, out, *arguments, code=0):
    """Run lmp_trainer in this process; gives all that it has said."""
    found = main([*FLAGS, "--dropout", "0.1", "--ema", "0.9", "--save-interval", "3steps", "--out-dir", out, *map(str, arguments)])
    said = capsys.readouterr()
    assert found == code, said.err
    return said.out + said.err


def shards_of(path):
    return sorted(file.name for file in Path(path).glob("shard-*"))


def test_a_run_leaves_the_same_states_goes_on_from_them_and_may_change_the_format(folder, capsys):
    run(capsys, "files")
    run(capsys, "folders", *SHARDED)
    assert compare_runs(Path("files"), Path("folders")) == []
    states = [path for path in Path("folders").glob("*.lmp") if ".old" not in path.name]
    assert len(states) > 4
    assert all(shards_of(path) == ["shard-00001-of-00001.safetensors"] and verify(path) for path in states)
    assert not list(Path("folders").glob(".*"))
    for steps, form in ((2, SHARDED), (2, ()), (1, SHARDED), (2, SHARDED), (1, ())):
        run(capsys, "in turn", "--max-steps", steps, *form, code=75)
    run(capsys, "in turn", *SHARDED)
    assert compare_runs(Path("files"), Path("in turn")) == []


def test_a_run_goes_on_from_the_newest_whole_folder(folder, capsys):
    run(capsys, "whole", *SHARDED)
    shutil.copytree("whole", "harmed")
    flip(Path("harmed", MODEL, "shard-00001-of-00001.safetensors"))
    Path("harmed/gpt2ish_model.prev-1.lmp/state.lmp").unlink()
    said = run(capsys, "harmed", *SHARDED)
    assert "continuing from gpt2ish_model.prev-2.lmp" in said
    assert {path.name for path in Path("harmed").glob("*.damaged-*")} == {"gpt2ish_model.damaged-1.lmp", "gpt2ish_model.damaged-2.lmp"}
    for path in (*Path("harmed").glob("*.damaged-*"), *Path("harmed").glob("*.prev-*")):
        shutil.rmtree(path)
    assert compare_runs(Path("whole"), Path("harmed")) == []
    run(capsys, "harmed", "--reset-history", "--max-steps", 1, *SHARDED, code=75)
    assert Path("harmed/gpt2ish_model.old-1.lmp").is_dir()
    assert "continues from" in run(capsys, "harmed", "--resume", "harmed/gpt2ish_model.old-1.one.lmp/", "--max-steps", 1, *SHARDED, code=75)
    assert Path("harmed/gpt2ish_model.old-2.lmp").is_dir()


def test_every_door_opens_a_folder_as_a_file(folder, capsys):
    run(capsys, "file", "--max-steps", 3, "--save-weights-only", "weights.lmp", code=75)
    run(capsys, "folder", "--max-steps", 3, *SHARDED, code=75)
    said = []
    for out in ("file", "folder"):
        name = f"{out}/{MODEL}{'/' if out == 'folder' else ''}"  # as a shell completes it
        assert generate(["--model", name, "--prompt", "The cat", "--greedy", "--max-tokens", "8", "--device", "cpu"]) == 0
        said.append(capsys.readouterr().out)
        assert export([name, f"exported_{out}"]) == 0
        assert evaluate([name, "--set", "rows.jsonl", "--device", "cpu", "--out-dir", "judged"]) == 0
        assert main(["--inspect", name]) == 0
        assert "checksum right" in capsys.readouterr().out
        run(capsys, f"from_{out}", "--initial-model", name, "--max-steps", 1, code=75)
    assert said[0] == said[1]
    assert Path("exported_file/model.safetensors").read_bytes() == Path("exported_folder/model.safetensors").read_bytes()
    assert not differences(*(load(Path(f"from_{out}", MODEL))["model"]["state"] for out in ("file", "folder")))


def test_a_folder_of_something_else_is_not_taken_for_a_state(folder, capsys):
    Path("out", MODEL).mkdir(parents=True)
    Path("out", MODEL, "mine.txt").write_text("keep")
    assert "is a folder, not a file" in run(capsys, "out", *SHARDED, code=2)
    assert Path("out", MODEL, "mine.txt").read_text() == "keep"


def test_weights_alone_are_a_folder_too_that_every_door_opens(folder, capsys):
    for out, more in (("file", ()), ("folder", SHARDED), ("folder again", SHARDED)):
        run(capsys, out, "--save-weights-only", "weights.lmp", *more)
    shutil.rmtree("folder again/weights.lmp")
    assert "weights" in run(capsys, "folder again", "--save-weights-only", "weights.lmp", *SHARDED)  # of a plan that is complete
    for _ in range(2):
        run(capsys, "plain", "--save-weights-only", "weights.lmp", "--ema", 0, *SHARDED)
        assert not differences(*(load(Path("plain", name))["model"] for name in ("weights.lmp", MODEL)))
        shutil.rmtree("plain/weights.lmp")
    for name in ("weights.lmp", "weights_raw.lmp"):
        for out in ("folder", "folder again"):
            assert shards_of(Path(out, name)) == ["shard-00001-of-00001.safetensors"]
            assert verify(Path(out, name))
            assert not differences(*(load(Path(one, name))["model"] for one in ("file", out)))
    assert {path.name for path in Path("file").iterdir()} == {path.name for path in Path("folder").iterdir()}
    said = []
    for out in ("file", "folder"):
        assert generate(["--model", f"{out}/weights.lmp", "--prompt", "The cat", "--greedy", "--max-tokens", "8", "--device", "cpu"]) == 0
        said.append(capsys.readouterr().out)
        run(capsys, f"from_{out}", "--initial-model", f"{out}/weights.lmp", "--max-steps", 1, code=75)
    assert said[0] == said[1]
    assert not differences(*(load(Path(f"from_{out}", MODEL))["model"]["state"] for out in ("file", "folder")))
    assert tools(["convert", "folder/weights.lmp", "./converted.lmp"]) == 0
    assert not differences(load(Path("file/weights.lmp"))["model"], load(Path("converted.lmp"))["model"])
    Path("folder/mine.lmp").mkdir()
    assert "folder/mine.lmp: it is a folder, not a file" in run(capsys, "folder", "--save-weights-only", "mine.lmp", *SHARDED, code=2)
    assert "is a file of a run" in run(capsys, "folder", "--save-weights-only", "gpt2ish_model.prev-1.lmp", *SHARDED, code=2)


@pytest.mark.slow
def test_no_rank_has_all_weights_when_they_are_written_alone_and_one_that_cannot_write_is_named(folder):
    flags = (*SHARDED, "--shard", "--embed-dim", 64, "--ema", 0.9, "--save-weights-only", "weights.lmp")
    counted = """
from lmplay.checkpoints import copier
from lmplay.device.processes import Processes
def collect(*arguments):
    raise RuntimeError("a whole tensor has been asked for")
Processes.collect = collect
reserve = copier.Copier.reserve
def count(self, value):
    found = reserve(self, value)
    parts = value[0] if isinstance(value, tuple) else value
    with open(f"copied{rank}.txt", "a") as file:
        print(copier.n_bytes([part.rows for name, part in parts.own.items() if name.startswith("model.")]), file=file)
    return found
copier.Copier.reserve = count
"""
    codes, outputs, complaints = several.finish(start(3, "out", *flags, more=counted))
    assert codes == [0] * 3, (outputs, complaints)
    train(1, "whole", "--embed-dim", 64, "--ema", 0.9, "--save-weights-only", "weights.lmp")
    for name in ("weights.lmp", "weights_raw.lmp"):
        mine, theirs = (load(Path(out, name))["model"] for out in ("out", "whole"))
        assert mine["state_args"] == theirs["state_args"]
        torch.testing.assert_close(mine["state"], theirs["state"], rtol=1e-4, atol=1e-5)
        assert len(shards_of(Path("out", name))) == 3
        whole = sum(value.nbytes for value in theirs["state"].values())
    copied = [[*map(int, Path(f"copied{rank}.txt").read_text().split())] for rank in range(3)]
    assert all(0 < count < 0.5 * whole for counts in copied for count in counts)
    full = """
from lmplay.checkpoints import writers
write_own = writers.write_own
def full(folder, *arguments):
    if rank == 1 and "weights" in folder.name:
        raise OSError(28, "No space left on device")
    return write_own(folder, *arguments)
writers.write_own = full
"""
    codes, outputs, complaints = several.finish(start(2, "full", *flags, more=full))
    assert codes == [2, 2], (outputs, complaints)
    assert complaints[0].count("weights.lmp: cannot be written (rank 1: No space left on device); the checkpoint is intact.") == 1
    assert not outputs[1] + complaints[1]
    assert verify(Path("full", MODEL))
    assert not [*Path("full").glob("weights*"), *Path("full").glob(".*.tmp")]


@pytest.mark.slow
def test_four_processes_then_one_then_two_sharded_or_not(folder):
    flags = ("--mini-batch-size", 1, "--ema", 0.9, *SHARDED)
    train(1, "whole", "--mini-batch-size", 1, "--ema", 0.9)
    for size, more in ((4, ["--shard"]), (1, []), (2, []), (2, ["--shard"])):
        train(size, "changed", "--max-steps", 2, *flags, *more, code=75)
        assert len(shards_of(f"changed/{MODEL}")) == size
        assert not list(Path("changed").glob(".*.tmp"))
    train(3, "changed", "--shard", *flags)
    assert_alike("whole", "changed")
    assert all(verify(path) for path in Path("changed").glob("*.lmp"))
    for size, more in ((1, []), (2, ["--shard"])):
        train(size, f"from{size}", "--initial-model", f"changed/{MODEL}", "--max-steps", 2, "--exp", "gpt2ish", *more, code=75)
    assert_alike("from1", "from2")


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--shard"], []])
def test_the_same_number_of_processes_gives_the_same_bits_after_stops_and_kills(folder, more):
    flags = ("--dropout", 0.2, "--ema", 0.9, "--save-interval", "2steps", *SHARDED, *more)
    train(2, "whole", *flags)
    codes, outputs, complaints = several.finish(start(2, "killed", *flags, after_step="if rank == 1 and steps[0] == 3: os.kill(os.getpid(), signal.SIGTERM)"))
    assert codes == [143, 143], complaints
    assert outputs[0].count("stopped (SIGTERM)") == 1
    assert steps_of("killed") == 3
    codes, _, complaints = several.finish(start(2, "killed", *flags, at_step="if rank == 1 and steps[0] == 4: os.kill(os.getpid(), signal.SIGKILL)"))
    assert codes == [1, -signal.SIGKILL]
    assert complaints[0].count("gone") == 1, complaints
    assert steps_of("killed") in (4, 6)  # the last save, or the one before where it was being written
    train(2, "killed", *flags)
    assert not list(Path("killed").glob(".*.tmp"))
    assert compare_runs(Path("whole"), Path("killed")) == []


@pytest.mark.slow
def test_a_bad_row_on_one_rank_saves_what_was_done_and_a_full_disk_of_one_ends_all(folder):
    bad = """
from lmplay.errors import UserError
before = stage.StageRunner.next_batch
def fail(*arguments, **options):
    if rank == 1 and steps[0] >= 2:
        raise UserError('bad row')
    return before(*arguments, **options)
stage.StageRunner.next_batch = fail
"""
    codes, outputs, complaints = several.finish(start(2, "bad", *SHARDED, more=bad))
    assert codes == [2, 2], (outputs, complaints)
    assert complaints[0].count("bad row") == 1
    assert steps_of("bad") == 2
    full = """
from lmplay.checkpoints import writers
def full(*arguments):
    raise OSError(28, "No space left on device")
if rank == 1: writers.write_own = full
"""
    codes, outputs, complaints = several.finish(start(2, "full", "--save-interval", "1steps", *SHARDED, more=full))
    assert codes == [1, 1]
    assert complaints[0].count("\nlmp_trainer: the last 3 saves have all failed") == 1
    assert "rank 1: No space left on device" in outputs[0] + complaints[0]
    assert not outputs[1] + complaints[1]
    assert not list(Path("full").glob("*.lmp"))


@pytest.mark.slow
def test_each_node_has_a_copy_of_the_model_and_each_rank_writes_a_part(folder):
    place = "import os, sys\nos.environ['LOCAL_RANK'] = str(int(os.environ['RANK']) % 2)\nfrom lmplay.train.__main__ import main\nsys.exit(main())"
    codes, outputs, complaints = several.run(4, "-c", place, *FLAGS, "--out-dir", "out4", "--embed-dim", 64, "--shard", "node", *SHARDED, LOCAL_WORLD_SIZE="2")
    assert codes == [0] * 4, (outputs, complaints)
    train(1, "out1", "--embed-dim", 64)
    assert_alike("out1", "out4")
    assert len(shards_of(f"out4/{MODEL}")) == 4
    sizes = [os.path.getsize(Path("out4", MODEL, name)) for name in shards_of(f"out4/{MODEL}")]
    assert min(sizes) > 0.05 * max(sizes)


@pytest.mark.parametrize("name", [name for name in experiments() if name.endswith("_tiny")])
@pytest.mark.parametrize("size", [2, 3])
def test_a_part_of_a_fresh_model_is_that_of_a_whole_one(name, size):
    from lmplay.device.random_state import random_state, seed_everything
    from lmplay.engine.model_spec import ModelSpec
    from lmplay.modules.sharded import parts_of

    spec = ModelSpec(name, {"context_len": 32, "num_blocks": 2, "embed_dim": 48, "num_heads": 4}, None)
    seed_everything(3)
    whole = spec.build(300)
    after = random_state()
    for number in range(size):
        seed_everything(3)
        part = spec.build(300, part=(number, size))
        assert random_state()["torch"].equal(after["torch"])
        for key, parameter in part.named_parameters():
            assert parts_of(parameter, size)[number].equal(parts_of(whole.get_parameter(key), size)[number]), key
        for key, buffer in part.named_buffers():
            assert buffer.equal(whole.get_buffer(key)), key
