"""Memory of the machine that saving takes, and what is saved where there is little of it."""
import weakref

import pytest
import torch
from helpers import load
from on_gpu import Event, on_gpu
from states import content, number_of

from lmplay.checkpoints import best, rotation, saver
from lmplay.checkpoints.saver import Saver

STATE = 4000  # bytes of a state's weights


class Memory:
    """Counts the bytes of buffers on the CPU; there are at most `most`."""

    def __init__(self, monkeypatch, most=1 << 40):
        self.used, self.peak, self.most, self.on_gpu = 0, 0, most, 1 << 40
        self._make = torch.empty_like
        monkeypatch.setattr(torch, "empty_like", self.empty_like)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")

    def empty_like(self, tensor, *, device, requires_grad):
        if device.type == "cuda":
            if tensor.nbytes > self.on_gpu:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return on_gpu(self._make(tensor.as_subclass(torch.Tensor)))
        if self.used + tensor.nbytes > self.most:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")
        made = self._make(tensor.as_subclass(torch.Tensor))
        self.used += tensor.nbytes
        self.peak = max(self.peak, self.used)
        weakref.finalize(made, self._free, tensor.nbytes)
        return made

    def _free(self, n_bytes):
        self.used -= n_bytes


def state(number, there, size=STATE):
    made = content(number)
    made["model"]["state"]["weight"] = there(torch.full((size // 4,), float(number)))
    return made


def save(saver, number, there, said):
    saver.save(state(number, there), "one", None, lambda record: None, lambda record, seconds: said.append(number), lambda error: said.append(str(error)))
    return saver.wait()


def written(path):
    found = load(path)
    assert set(found["model"]["state"]["weight"].tolist()) == {number_of(found)}
    return number_of(found)


@pytest.fixture(params=["cpu", "gpu"])
def there(request):
    """Where a state is."""
    return on_gpu if request.param == "gpu" else lambda tensor: tensor


@pytest.fixture
def keep(there):
    return lambda saver, number, size=STATE: saver.keep_best(state(number, there, size), None, lambda n_bytes: there is on_gpu)


def test_with_memory_for_one_copy_only_the_best_state_and_the_newest_are_written_one_after_the_other(tmp_path, monkeypatch, there, keep):
    memory, one, said = Memory(monkeypatch, int(1.5 * STATE)), Saver(tmp_path / "m.lmp", keep=0), []
    for number in range(1, 9, 2):
        keep(one, number)
        assert save(one, number + 1, there, said)
        assert (written(tmp_path / "m.best.lmp"), written(tmp_path / "m.lmp")) == (number, number + 1)
    assert said == [2, 4, 6, 8]
    assert one.failed == 0
    assert save(one, 9, there, said)  # no better state: nothing stands in the way
    assert memory.peak <= 1.5 * STATE


def test_without_memory_for_a_copy_a_save_fails_and_the_best_state_is_written_later(tmp_path, monkeypatch, there, keep):
    memory, one, said = Memory(monkeypatch), Saver(tmp_path / "m.lmp", keep=0), []
    keep(one, 1)
    memory.most = memory.used
    if there is on_gpu:
        assert not save(one, 2, there, said)
        assert "can't allocate memory" in said.pop()
        assert one.failed == 1
    memory.most = 1 << 40
    assert save(one, 3, there, said)
    assert (written(tmp_path / "m.best.lmp"), one.failed) == (1, 0)


def test_a_full_disk_where_the_best_state_is_written_alone_is_a_save_that_fails(tmp_path, monkeypatch, there, keep):
    Memory(monkeypatch, int(1.5 * STATE))
    one, said = Saver(tmp_path / "m.lmp", keep=0), []
    keep(one, 1)
    with monkeypatch.context() as full:
        full.setattr(best, "write", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        for failed in (1, 2):
            assert not save(one, 2, there, said)
            assert one.failed == failed
    assert said == ["[Errno 28] No space left on device"] * 2
    assert not list(tmp_path.iterdir())
    assert save(one, 3, there, said)
    assert (written(tmp_path / "m.best.lmp"), written(tmp_path / "m.lmp")) == (1, 3)


def test_what_the_system_says_is_heard_before_the_copies_are_made(tmp_path, monkeypatch):
    """Linux gives memory that it has not got, and ends the process that uses it."""
    memory, one, order, left = Memory(monkeypatch), Saver(tmp_path / "m.lmp", keep=0), [], [int(1.5 * STATE)]
    monkeypatch.setattr(saver, "memory_left", lambda device: left[0])
    monkeypatch.setattr(saver, "write_best", lambda *_: order.append("best"))
    monkeypatch.setattr(rotation, "save", lambda *_: order.append("newest"))
    for _ in range(2):
        one.keep_best(state(1, on_gpu), None, lambda n_bytes: True)
        assert save(one, 2, on_gpu, order)
        left[0] = STATE // 2  # one copy is kept for the next save, and is in the way of the best state's
    assert order == ["best", "newest", 2] * 2
    assert memory.peak < 1.5 * STATE
    left[0] = None  # where it says nothing
    one.keep_best(state(1, on_gpu), None, lambda n_bytes: True)
    assert save(one, 2, on_gpu, order)
    assert memory.peak > 1.5 * STATE


def test_a_best_state_that_cannot_be_copied_leaves_the_one_before(tmp_path, monkeypatch, there, keep):
    """The optimizer has got its state in between, say."""
    memory, one, said = Memory(monkeypatch), Saver(tmp_path / "m.lmp", keep=0), []
    keep(one, 1)
    memory.most, memory.on_gpu = memory.used + STATE, 2 * STATE
    with pytest.raises(OSError, match="the state cannot be copied"):
        keep(one, 2, 3 * STATE)
    memory.most = 1 << 40
    assert save(one, 3, there, said)
    assert written(tmp_path / "m.best.lmp") == 1


def test_a_copy_waits_for_the_memory_of_the_state_that_is_being_written(tmp_path, monkeypatch):
    memory, one, said = Memory(monkeypatch, int(1.5 * STATE)), Saver(tmp_path / "m.lmp", keep=0), []
    one.save(state(1, on_gpu), "one", None, lambda record: None, lambda record, seconds: said.append("written"), said.append)
    one.keep_best(state(2, on_gpu), None)
    assert said == ["written"]
    assert memory.peak <= 1.5 * STATE


def test_after_a_save_one_copy_of_the_state_stays_in_memory(tmp_path, monkeypatch, there, keep):
    memory, one, said = Memory(monkeypatch), Saver(tmp_path / "m.lmp", keep=0), []
    for size, left in ((4 * STATE, STATE), (STATE, STATE)):
        keep(one, 1, size)
        assert save(one, 2, there, said)
        assert memory.used == pytest.approx(left, abs=100)


def test_what_a_state_no_longer_has_takes_no_memory(monkeypatch):
    memory = Memory(monkeypatch)
    copier = saver.Copier(None)
    copier({"a": torch.ones(100), "b": torch.ones(100)})
    assert memory.used == 800
    place = copier({"b": torch.ones(100)})["b"].data_ptr()
    assert memory.used == 400
    assert copier({"b": torch.ones(100), "c": torch.ones(50)})["b"].data_ptr() == place
    assert memory.used == 600
