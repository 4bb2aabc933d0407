"""Folders of shards: the same state as in a file, whole or refused, readable by DCP, and never more of it in memory than is asked for."""
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from helpers import differences
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from states import content, flip

from lmplay.checkpoints import format as format_module
from lmplay.checkpoints.converting import convert, write_state
from lmplay.checkpoints.folder import divide, join
from lmplay.checkpoints.format import Damaged, load, read, tensor_bytes, verify, write
from lmplay.checkpoints.pieces import Pieces
from lmplay.checkpoints.shards import Part, read_shard, write_shard
from lmplay.errors import UserError
from lmplay.files import STATE, link_atomic


def state(number: int = 0) -> dict:
    """A state with weights of several types, shared ones, and what optimizers keep."""
    torch.manual_seed(number)
    made = content(number)
    weight = torch.randn(301, 40)
    made["model"]["state"] = {"embed.weight": weight, "head.weight": weight, "norm": torch.randn(40), "low": torch.randn(130, 70).bfloat16(),
                              "t": torch.randn(200, 90).t(), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)}
    kept = {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(301, 40), "codes": torch.randint(0, 256, (20_000,), dtype=torch.uint8)}, 1: {"on": None}}
    made["optimizers"] = {"state_args": {"main": {"optimizer": "adamw"}}, "state": {"main": {"state": kept, "param_groups": [{"params": [0, 1], "lr": 0.1}]}}}
    return made


@settings(deadline=None, max_examples=15)
@given(count=st.integers(1, 9), number=st.integers(0, 5))
def test_a_folder_holds_what_a_file_holds_bit_for_bit(tmp_path_factory, count, number):
    folder = tmp_path_factory.mktemp("state") / "m.lmp"
    write_state(folder, state(number), count)
    assert {file.name for file in folder.iterdir()} == {STATE, *(f"shard-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1))}
    assert verify(folder) is True
    for lazily in (False, True):
        found = load(folder, mmap=lazily)
        assert not differences(state(number), found)
        assert [*found["model"]["state"]] == [*state()["model"]["state"]]
        assert found["model"]["state"]["embed.weight"] is found["model"]["state"]["head.weight"]
        assert tensor_bytes(found["model"]["state"]) == tensor_bytes(state(number)["model"]["state"])
    assert tensor_bytes(found["optimizers"]) < sum(file.stat().st_size for file in folder.glob("shard-*"))


def test_dcp_and_safetensors_read_the_shards(tmp_path):
    folder, expected = tmp_path / "m.lmp", state()
    write_state(folder, expected, 3)
    weights = expected["model"]["state"]
    wanted = {"model.embed.weight": torch.zeros(301, 40), "model.low": torch.zeros(130, 70, dtype=torch.bfloat16),
              "optimizers.main.state.0.exp_avg": torch.zeros(301, 40)}
    dcp.load(wanted, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert torch.equal(wanted["model.embed.weight"], weights["embed.weight"])
    assert torch.equal(wanted["model.low"], weights["low"])
    assert torch.equal(wanted["optimizers.main.state.0.exp_avg"], expected["optimizers"]["state"]["main"]["state"][0]["exp_avg"])
    with safe_open(folder / "shard-00002-of-00003.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("model.embed.weight"), weights["embed.weight"][101:202])


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5), count=st.integers(1, 7), data=st.data())
def test_pieces_are_the_tensor_that_they_are_pieces_of(sizes, count, data):
    whole = torch.arange(sum(sizes) * 2.0).reshape(-1, 2)
    pieces = Pieces(whole.split(sizes))
    assert pieces.shape == whole.shape
    assert torch.equal(pieces + 0, whole)
    begin, end = sorted((data.draw(st.integers(-8, 30)), data.draw(st.integers(-8, 30))))
    assert torch.equal(pieces[begin:end].clone(), whole[begin:end])
    assert [(part + 0).tolist() for part in pieces.chunk(count)] == [part.tolist() for part in whole.chunk(count)]
    assert type(pieces * 2) is torch.Tensor
    target = torch.zeros_like(whole)
    assert torch.equal(target.copy_(pieces.detach()), whole)
    if len(whole):
        assert all(isinstance(part, Pieces) for part in pieces.chunk(count))  # nothing is joined for it


def test_a_rank_that_copies_its_rows_joins_no_others(monkeypatch, tmp_path):
    write_state(tmp_path / "m.lmp", state(), 4)
    weight = load(tmp_path / "m.lmp", mmap=True)["model"]["state"]["embed.weight"]
    joined = []
    monkeypatch.setattr(Pieces, "whole", lambda self: joined.append(len(self)) or torch.cat(self.parts))
    mine = torch.zeros(151, 40)
    mine.copy_(weight.chunk(2)[0])
    assert joined == [151]
    assert torch.equal(mine, state()["model"]["state"]["embed.weight"][:151])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "m.lmp"
    write_state(folder, state(), 2)
    return folder


def _delete_state(folder: Path) -> None:
    (folder / STATE).unlink()


def _swap(folder: Path) -> None:
    one, two = sorted(folder.glob("shard-*"))
    one.rename(folder / "x")
    two.rename(one)
    (folder / "x").rename(two)


@pytest.mark.parametrize("harm", [lambda folder: flip(min(folder.glob("shard-*"))), lambda folder: flip(folder / STATE), _delete_state, _swap,
                                  lambda folder: min(folder.glob("shard-*")).unlink(), lambda folder: os.truncate(max(folder.glob("shard-*")), 900)])
def test_a_damaged_folder_is_refused_as_a_damaged_file_is(whole, tmp_path, harm):
    folder = shutil.copytree(whole, tmp_path / "m.lmp")
    harm(folder)
    for lazily in (False, True):
        with pytest.raises(Damaged, match=r"m\.lmp"):
            load(folder, mmap=lazily)


@pytest.mark.parametrize("change", [
    lambda shards: shards["tensors"]["model.norm"].update(shape=[2**60]), lambda shards: shards["tensors"]["model.norm"].update(shape=[-40]),
    lambda shards: shards["tensors"]["model.norm"].update(at=[["model", "state", "nowhere"]]),
    lambda shards: shards["tensors"]["model.norm"].update(at=[["runner", "state", "clock", "seconds"]]), lambda shards: shards["tensors"].pop("model.norm"),
    lambda shards: shards["tensors"]["model.norm"].update(dtype="F16"), lambda shards: shards["files"].update({"../m.lmp": {"bytes": 1, "checksum": ""}}),
    lambda shards: shards["files"].clear(), lambda shards: shards.pop("tensors")])
def test_a_state_that_names_what_is_not_in_its_shards_is_refused(whole, tmp_path, change):
    folder = shutil.copytree(whole, tmp_path / "m.lmp")
    stored = torch.load(folder / STATE, weights_only=True)
    change(stored["shards"])
    write(folder / STATE, stored)
    with pytest.raises(Damaged, match=r"m\.lmp"):
        load(folder)
    with pytest.raises(Damaged, match=r"m\.lmp"):
        read(folder, check=False)


class _Trap:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_nothing_pickled_is_read_as_dcp_would(whole, tmp_path, monkeypatch):
    """Of a folder of DCP's own the entry `.metadata` is a pickle; here nobody looks at it, and in `state.lmp` code is refused."""
    monkeypatch.chdir(tmp_path)
    folder = shutil.copytree(whole, tmp_path / "m.lmp")
    (folder / ".metadata").write_bytes(pickle.dumps(_Trap()))
    assert not differences(load(folder), state())
    stored = torch.load(folder / STATE, weights_only=True)
    torch.save({**stored, "extra": _Trap()}, folder / STATE)
    with pytest.raises(UserError, match=r"m\.lmp"):
        load(folder)
    assert not Path("ran").exists()


def test_a_part_of_a_state_is_not_taken_for_one(whole, tmp_path):
    with pytest.raises(UserError, match="part of a state in shards; give the folder"):
        load(whole / STATE)
    shutil.copy(min(whole.glob("shard-*")), tmp_path / "m.lmp")
    with pytest.raises(Damaged, match="not a checkpoint"):
        load(tmp_path / "m.lmp")


@pytest.mark.parametrize("shards", [None, 1, 3])
def test_convert_changes_nothing_whatever_was_there(whole, tmp_path, shards):
    target = tmp_path / "new.lmp"
    for source in (whole, target):  # the second time from itself
        convert(source, target, shards)
        assert target.is_dir() is (shards is not None)
        assert not differences(load(target), state())
    convert(target, target, 2 if shards is None else None)
    assert target.is_dir() is (shards is None)
    assert not differences(load(target), state())
    assert [file.name for file in tmp_path.iterdir()] == ["new.lmp"]


def test_ranks_together_have_each_row_once():
    for size in (1, 2, 3, 5):
        parts = [divide(state(), rank, size) for rank in range(size)]
        assert all(part.tensors == parts[0].tensors for part in parts)
        for name, entry in parts[0].tensors.items():
            own = sorted((part.own[name] for part in parts if name in part.own), key=lambda part: part.begin)
            assert sum(len(part.rows) for part in own) == entry["shape"][0]
        largest = [sum(part.rows.nbytes for part in one.own.values()) for one in parts]
        assert max(largest) < 1.2 * sum(largest) / size + 20_000


def test_join_wants_all_parts(whole, tmp_path):
    stored = torch.load(whole / STATE, weights_only=True)
    del stored["shards"]["files"]["shard-00002-of-00002.safetensors"]
    with pytest.raises(ValueError, match=r"missing|other tensors"):
        join(whole, stored, lazily=True)


def _overlap(entries):
    for entry in entries:
        entry["data_offsets"] = [0, 400]
        entry.update(shape=[100], dtype="F32")


def _leave_a_gap(entries):
    entries[-1]["data_offsets"][1] -= 4
    entries[-1]["shape"] = [99]


@pytest.mark.parametrize("change", [_overlap, _leave_a_gap])
def test_parts_that_overlap_or_leave_gaps_are_refused(tmp_path, change):
    """Overlapping parts would be larger than their file: any number of them, of any size."""
    path = tmp_path / "shard-00001-of-00001.safetensors"
    write_shard(path, [Part(name, 0, torch.ones(100)) for name in "abc"], lambda: False)
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    assert len(list(read_shard(path))) == 3
    change([header[name] for name in "abc"])
    said = json.dumps(header).encode().ljust(end - 8 + 64)
    path.write_bytes(len(said).to_bytes(8, "little") + said + data[end:])
    with pytest.raises(ValueError, match="overlap or leave gaps"):
        list(read_shard(path))


@pytest.mark.parametrize("name", [STATE, "shard-00001-of-00002.safetensors"])
@pytest.mark.parametrize("check", [True, False])
def test_a_pipe_in_a_folder_is_not_waited_for(whole, tmp_path, name, check):
    folder = shutil.copytree(whole, tmp_path / "m.lmp")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(Damaged, match=r"m\.lmp"):
        read(folder, check=check)


@pytest.mark.parametrize("kind", [None, 2])
@pytest.mark.parametrize("lazily", [False, True])
def test_a_state_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch, kind, lazily):
    """A run that saves meanwhile: what is read is one state, and no damage is seen where there is none."""
    path, left = tmp_path / "m.lmp", [1, 2]
    write_state(path, state(0), kind)
    original = format_module.join if kind else format_module.check_content

    def replace_first(*arguments, **options):
        if left:
            write_state(path, state(left.pop(0)), 3)
        return original(*arguments, **options)

    monkeypatch.setattr(format_module, original.__name__, replace_first)
    assert not differences(load(path, mmap=lazily), state(2))
    assert not left


def test_a_link_to_a_folder_has_the_files_of_the_state_alone(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "m.lmp")
    (folder / "@eaDir").mkdir()
    link_atomic(folder, tmp_path / "m.one.lmp")
    assert not differences(load(tmp_path / "m.one.lmp"), state())
    assert {file.name for file in (tmp_path / "m.one.lmp").iterdir()} == {file.name for file in whole.iterdir()}


def test_a_state_that_a_run_keeps_is_not_written_while_it_works(tmp_path):
    """And what a killed process has left is removed."""
    (tmp_path / f".m.best.lmp.{os.getpid()}.tmp").mkdir()
    child = subprocess.Popen([sys.executable, "-c", "import sys; from pathlib import Path; from lmplay.checkpoints.lock import Lock; "
                              f"Lock(Path({str(tmp_path / 'm.lmp')!r}), stages=['one']).take(); print('taken', flush=True); sys.stdin.read()"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        for name in ("m", "m.best", "m.prev-1", "m.one", "m.one.best"):
            with pytest.raises(UserError, match=f"process {child.pid}"):
                write_state(tmp_path / f"{name}.lmp", state(), None)
        write_state(tmp_path / "m.mean.lmp", state(), None)
    finally:
        child.communicate()
    write_state(tmp_path / "m.best.lmp", state(), 1)
    assert sorted(file.name for file in tmp_path.iterdir() if file.suffix != ".lock") == ["m.best.lmp", "m.mean.lmp"]
