"""Copies from a GPU by way of pinned memory, with tensors that say that they are on the second GPU but have their values here."""
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from on_gpu import CUDA, Event, OnGpu, on_gpu
from states import content

from lmplay.checkpoints.copier import Copier
from lmplay.checkpoints.saver import Saver
from lmplay.checkpoints.staging import Staging


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    OnGpu.under_way, OnGpu.pinned = [], []
    original = torch.empty

    def empty(*size, pin_memory=False, **more):
        if pin_memory:
            OnGpu.pinned.append(size[0])
            if OnGpu.pinned == [1 << 30]:
                raise RuntimeError("CUDA error: out of memory")
        return original(*size, **more)

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")


shapes = st.lists(st.integers(0, 9), max_size=3)
types = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8])


@given(st.lists(st.tuples(shapes, types, st.booleans()), max_size=8), st.sampled_from([8, 64, 4096]))
@settings(max_examples=60, deadline=None)
def test_each_tensor_arrives_whatever_its_size_type_and_strides(tensors, half_bytes):
    OnGpu.under_way.clear()
    values = {str(number): torch.randint(0, 2, shape).to(dtype) for number, (shape, dtype, _) in enumerate(tensors)}
    values = {name: value.t() if turned and value.dim() == 2 else value for (name, value), (_, _, turned) in zip(values.items(), tensors, strict=True)}
    values["a part"] = torch.arange(20.0).view(4, 5)[:, 1:3]
    values["one value"] = torch.tensor(3.0).expand(3)
    copier = Copier(Staging(half_bytes))
    for _ in range(2):  # the second time into the same buffers
        copied = copier({name: on_gpu(value) for name, value in values.items()})
        for name, value in values.items():
            assert torch.equal(copied[name], value), name
            value.copy_(~value if value.dtype is torch.bool else 1 - value) if name != "one value" else None


def test_what_is_pinned_is_small_and_pinned_once():
    staging = Staging()
    for _ in range(3):
        Copier(staging)({"a": on_gpu(torch.ones(1000)), "b": on_gpu(torch.ones(10))})
    assert len(OnGpu.pinned) == 2
    assert sum(OnGpu.pinned) <= 64 << 20


def test_a_copy_is_made_in_ordinary_memory_where_none_can_be_pinned():
    staging = Staging(1 << 30)
    for _ in range(2):
        copied = Copier(staging)({"a": on_gpu(torch.arange(5.0)), "b": on_gpu(torch.ones(3))})
        assert copied["a"].tolist() == [0, 1, 2, 3, 4]
        assert copied["b"].tolist() == [1, 1, 1]
    assert OnGpu.pinned == [1 << 30]  # not tried again


@pytest.mark.parametrize("error", [RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), MemoryError()])
def test_a_copy_that_fails_is_a_save_that_fails(tmp_path, monkeypatch, error):
    """The file before stays, the run goes on, and the next save works."""
    saver, said = Saver(tmp_path / "m.lmp", keep=0), []

    def save():
        saver.save(content(1), "one", None, lambda record: said.append("before"), lambda record, seconds: said.append("saved"), said.append)
        return saver.wait()

    assert save()
    before = (tmp_path / "m.lmp").read_bytes()

    def fail(*_):
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(Copier, "_buffer_for", fail)
        del said[:]
        assert not save()
        assert saver.failed == 1
        [fault] = said
        assert isinstance(fault, OSError)
        assert "the state cannot be copied" in str(fault)
        with pytest.raises(OSError, match="the state cannot be copied"):
            saver.keep_best(content(2), None)
    assert (tmp_path / "m.lmp").read_bytes() == before
    assert save()
    assert saver.failed == 0


def test_a_fault_of_ours_in_a_copy_is_no_lack_of_memory(tmp_path, monkeypatch):
    saver = Saver(tmp_path / "m.lmp", keep=0)

    def fail(*_):
        raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")

    monkeypatch.setattr(Copier, "_buffer_for", fail)
    with pytest.raises(RuntimeError, match="must match"):
        saver.save(content(1), "one", None, print, print, print)


def test_the_best_state_waits_on_the_gpu_for_the_next_save(tmp_path, monkeypatch):
    """It is the state of its moment, and is replaced by a better one without new memory."""
    weight, asked, made = on_gpu(torch.zeros(50)), [], []
    original = torch.empty_like

    def empty_like(tensor, *, device=None, **more):
        made.append(str(device))
        found = original(tensor.as_subclass(torch.Tensor), **more)
        return on_gpu(found) if device == CUDA else found

    monkeypatch.setattr(torch, "empty_like", empty_like)
    saver, written = Saver(tmp_path / "m.lmp", keep=0), []
    monkeypatch.setattr("lmplay.checkpoints.saver.write_best", lambda path, content, *_: written.append(content["model"]["state"]["weight"].tolist()[0]))
    monkeypatch.setattr("lmplay.checkpoints.saver.rotation.save", lambda *_: None)

    def keep(number):
        state = {"model": {"state": {"weight": weight.fill_(number)}}}
        saver.keep_best(state, None, lambda n_bytes: asked.append(n_bytes) or True)
        weight.fill_(-1)

    def save():
        saver.save({"model": {"state": {"weight": weight}}}, "one", None, lambda record: None, lambda record, seconds: None, written.append)
        assert saver.wait()

    keep(1)
    assert saver.best_is_on_gpu
    saver.release_best()
    assert not saver.best_is_on_gpu
    saver, written = Saver(tmp_path / "m.lmp", keep=0), []
    del asked[:], made[:]
    keep(1)
    keep(2)
    assert asked == [200]
    assert made == ["cuda:1"]
    save()
    assert written == [2]
    assert made == ["cuda:1", "cpu", "cpu"]  # of the newest state, and of the best
    keep(3)
    save()
    assert written == [2, 3]
    assert made == ["cuda:1", "cpu", "cpu", "cuda:1", "cpu"]  # the buffers of the newest state are kept, those of the best are not


def test_without_room_on_the_gpu_the_best_state_is_copied_at_once(tmp_path):
    saver = Saver(tmp_path / "m.lmp", keep=0)
    saver.keep_best({"weight": on_gpu(torch.ones(3))}, None)
    assert saver._best.is_on_cpu
    assert saver._best.content["weight"].tolist() == [1, 1, 1]
