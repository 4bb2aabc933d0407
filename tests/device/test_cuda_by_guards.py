"""What would happen on a GPU, as far as it can be seen without one: with a module `torch.cuda` that is made up, and with tensors that have no values."""
from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers import ENVIRONMENT
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lmplay.checkpoints import saver
from lmplay.device import memory
from lmplay.device.runtime import Runtime, choose_device
from lmplay.errors import UserError
from lmplay.plan.settings import Settings
from lmplay.report.hints import hints
from lmplay.writing.sampling import Sampling, choose


class MadeUpCuda:
    """Two GPUs that note what they are asked."""

    def __init__(self, capability=(9, 0)):
        self.current, self.asked = 0, []
        self.capability = capability

    def install(self, monkeypatch):
        for name in ("set_device", "get_device_capability", "mem_get_info", "memory_reserved", "memory_allocated", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, lambda device=None, name=name: self.answer(name, device))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Old GPU")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: self.capability >= (8, 0))
        monkeypatch.setattr(torch.amp, "GradScaler", lambda *_, **__: SimpleNamespace())
        monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda on: self.asked.append(("cudnn", on)))
        return self

    def answer(self, name, device):
        self.asked.append((name, str(device)))
        return {"get_device_capability": self.capability, "mem_get_info": (100, 1000), "memory_reserved": 30, "memory_allocated": 10}.get(name)


@pytest.mark.parametrize(("name", "expected"), [(None, "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1")])
def test_the_gpu_that_is_chosen_becomes_the_current_one(monkeypatch, name, expected):
    cuda = MadeUpCuda().install(monkeypatch)
    assert str(choose_device(name)) == expected
    assert cuda.asked == [("set_device", expected)]


def test_attention_needs_no_plan_for_each_shape(monkeypatch):
    cuda = MadeUpCuda().install(monkeypatch)
    Runtime(Settings(device="cuda:1"))
    assert ("cudnn", False) in cuda.asked


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_cuda_graphs_are_refused(monkeypatch, mode):
    MadeUpCuda().install(monkeypatch)
    runtime = Runtime(Settings(device="cuda", compile_model=True, compile_mode=mode))
    with pytest.raises(UserError, match=f"--compile-mode {mode}: uses CUDA graphs.*take max-autotune-no-cudagraphs"):
        runtime.wrap(torch.nn.Linear(1, 1), 16, print)


@pytest.mark.parametrize(("capability", "there", "fault"), [((6, 1), True, "needs a GPU of compute capability 7.0, and Old GPU has 6.1"),
                                                           ((9, 0), False, "needs Triton, which is not installed")])
def test_a_compiler_that_cannot_work_is_refused(monkeypatch, capability, there, fault):
    MadeUpCuda(capability).install(monkeypatch)
    monkeypatch.setattr("lmplay.device.runtime.find_spec", lambda name: object() if there else None)
    runtime = Runtime(Settings(device="cuda", compile_model=True))
    with pytest.raises(UserError, match=fault):
        runtime.wrap(torch.nn.Linear(1, 1), 16, print)


def test_memory_that_is_left_counts_what_the_allocator_holds(monkeypatch):
    MadeUpCuda().install(monkeypatch)
    assert memory.memory_left(torch.device("cuda:1")) == 120


def test_tf32_is_hinted_at_where_it_is(monkeypatch):
    MadeUpCuda().install(monkeypatch)

    def said(**flags):
        return " ".join(hints(Settings(**flags), torch.device("cuda"), 10**9, {}, 16, lambda: 0))

    without = frozenset({"amp"})
    assert "--matmul-precision high" in said(explicit=without)
    assert "--matmul-precision" not in said() + said(amp=True, explicit=without) + said(matmul_precision="high", explicit=without | {"matmul_precision"})


class NoFloat64(TorchDispatchMode):
    """Refuses float64 anywhere but on the CPU: Apple's GPUs have none."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            assert not (isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float64 and tensor.device.type != "cpu"), function
        return result


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5, min_p=0.01)])
def test_sampling_needs_no_float64_on_the_device(sampling):
    with FakeTensorMode(), NoFloat64():
        chosen = choose(torch.empty(3, 20, device="cuda"), [[1], [2], [3]], sampling, torch.empty(3, dtype=torch.float64))
    assert chosen.device.type == "cuda"
    assert chosen.dtype is torch.int64


def test_a_copy_is_made_in_ordinary_memory_where_none_can_be_pinned(monkeypatch):
    """The tensors say that they are on a GPU, but have their values here."""
    class OnGpu(torch.Tensor):
        @property
        def device(self):
            return torch.device("cuda", 1)

    original, pinned = torch.empty_like, []

    def empty_like(tensor, *, pin_memory=False, **more):
        pinned.append(pin_memory)
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return original(tensor.as_subclass(torch.Tensor), **more)

    monkeypatch.setattr(torch, "empty_like", empty_like)
    values = {"a": torch.arange(5.0).as_subclass(OnGpu), "b": torch.ones(3).as_subclass(OnGpu)}
    copied = saver.Copier()(values)
    assert copied["a"].tolist() == [0, 1, 2, 3, 4]
    assert copied["b"].tolist() == [1, 1, 1]
    assert pinned == [True, False, False]  # not tried again


def test_a_missing_c_compiler_is_refused_at_the_start(tmp_path):
    environment = {**ENVIRONMENT, "CXX": "/nowhere/c++", "PATH": os.path.dirname(sys.executable), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-m", "lmplay.train", "--dataset", "builtin:tales", "--tokenizer", "bytes", "--num-blocks", "1", "--embed-dim", "8",
                           "--num-heads", "1", "--context-len", "32", "--compile-model", "--device", "cpu", "--max-steps", "1", "--out-dir", str(tmp_path)],
                          env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "--compile-model: " in done.stderr
    assert "Traceback" not in done.stderr
