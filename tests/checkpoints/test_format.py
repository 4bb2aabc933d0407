"""The file itself: whole or refused, its checksum, its size."""
import os
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from states import content, number_of

from lmplay.checkpoints.format import Damaged, checkpoint_bytes, content_bytes, load, tensor_bytes, verify, write
from lmplay.checkpoints.hashed import Cancelled
from lmplay.errors import UserError


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "m.lmp"
    write(path, content(7))
    return path.read_bytes()


def test_others_read_the_file_directly(tmp_path):
    path = tmp_path / "m.lmp"
    write(path, content(7))
    assert verify(path) is True
    assert number_of(torch.load(path, weights_only=True)) == number_of(torch.load(path, weights_only=True, mmap=True)) == 7
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment.startswith(b"lmplay xxh3-128 ")
    assert number_of(load(path)) == 7


def test_a_file_without_a_checksum_is_read_too(tmp_path):
    torch.save(content(3), tmp_path / "m.lmp")
    assert verify(tmp_path / "m.lmp") is None
    assert number_of(load(tmp_path / "m.lmp")) == 3


def test_a_lost_checksum_is_not_taken_for_none(whole, tmp_path):
    (tmp_path / "m.lmp").write_bytes(whole[:-48])
    assert verify(tmp_path / "m.lmp") is False


@given(data=st.data())
def test_no_flipped_bit_and_no_lost_end_is_taken_for_whole(whole, tmp_path_factory, data):
    damaged = bytearray(whole)
    if data.draw(st.booleans()):
        damaged[data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) - 100, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del damaged[data.draw(st.integers(0, len(whole) - 1) | st.integers(len(whole) - 100, len(whole) - 1)):]
    path = tmp_path_factory.getbasetemp() / "flipped.lmp"
    path.write_bytes(damaged)
    assert not verify(path)
    with pytest.raises(Damaged, match=r"flipped\.lmp"):
        load(path)


class _Trap:
    def __init__(self, folder):
        self._folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self._folder),)


def test_code_in_a_file_is_refused_and_not_run(tmp_path):
    torch.save({**content(), "extra": _Trap(tmp_path / "ran")}, tmp_path / "m.lmp")
    with pytest.raises(UserError, match=r"m\.lmp"):
        load(tmp_path / "m.lmp")
    assert not (tmp_path / "ran").exists()
    torch.load(tmp_path / "m.lmp", weights_only=False)
    assert (tmp_path / "ran").exists()  # so it would have


def test_a_write_that_nobody_waits_for_is_given_up(tmp_path):
    path = tmp_path / "m.lmp"
    write(path, content(1))
    with pytest.raises(Cancelled):
        write(path, content(2), cancelled=lambda: True)
    assert number_of(load(path)) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["m.lmp"]


def test_the_expected_size_the_estimate_and_the_file_agree(tmp_path):
    """Memory that two tensors share is counted once, whatever holds them."""
    module = torch.nn.Sequential(torch.nn.Linear(100, 200, bias=False), torch.nn.Linear(100, 200, bias=False), torch.nn.BatchNorm1d(200))
    module[1].weight = module[0].weight
    moments = {"state": {0: {"exp_avg": torch.zeros(200, 100)}}, "more": [torch.zeros(1000), (torch.zeros(500), 1)]}
    bytes_of_moments = 4 * (200 * 100 + 1000 + 500)
    assert tensor_bytes(moments) == bytes_of_moments
    assert tensor_bytes({"a": moments, "b": [moments["more"][0][::2], 3], "c": [0.5] * 10, "d": []}) == bytes_of_moments
    expected = checkpoint_bytes(module, bytes_of_moments)
    assert expected == 4 * (200 * 100 + 4 * 200) + 8 + bytes_of_moments  # BatchNorm counts its batches in int64
    stored = {**content(), "model": {"state_args": {}, "state": module.state_dict()}, "optimizers": {"state_args": {}, "state": moments}}
    write(tmp_path / "m.lmp", stored)
    assert expected < (tmp_path / "m.lmp").stat().st_size < content_bytes(stored) < expected + (1 << 17)
