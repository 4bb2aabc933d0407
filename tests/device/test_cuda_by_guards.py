"""What would happen on a GPU, as far as it can be seen without one: with a module `torch.cuda` that is made up. Tensors without values: test_fake_gpu.py."""
from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers import ENVIRONMENT

from lmplay.device import memory
from lmplay.device.runtime import Runtime, choose_device
from lmplay.engine import budget
from lmplay.errors import UserError
from lmplay.exp import build_model, get_experiment
from lmplay.modules.packed import has_kernel
from lmplay.plan.settings import Settings
from lmplay.report.hints import hints


class MadeUpCuda:
    """Two GPUs that note what they are asked."""

    def __init__(self, capability=(9, 0)):
        self.current, self.asked = 0, []
        self.capability = capability

    def install(self, monkeypatch):
        for name in ("set_device", "get_device_capability", "mem_get_info", "memory_reserved", "memory_allocated", "max_memory_allocated",
                     "reset_peak_memory_stats", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, lambda device=None, name=name: self.answer(name, device))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Old GPU")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: self.capability >= (8, 0))
        monkeypatch.setattr(torch.amp, "GradScaler", lambda *_, **__: SimpleNamespace())
        monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda on: self.asked.append(("cudnn", on)))
        monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: self.asked.append(("switch", seconds)))
        return self

    def answer(self, name, device):
        self.asked.append((name, str(device)))
        return {"get_device_capability": self.capability, "mem_get_info": (100, 1000), "memory_reserved": 30, "memory_allocated": 10,
                "max_memory_allocated": 25}.get(name)


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


@pytest.mark.parametrize(("flags", "cores", "workers"), [({}, 8, 2), ({}, 2, 1), ({"data_workers": 1, "explicit": frozenset({"data_workers"})}, 8, 1),
                                                       ({"data_workers": 0, "explicit": frozenset({"data_workers"})}, 8, 0)])
def test_threads_let_the_one_that_feeds_the_gpu_run(monkeypatch, flags, cores, workers):
    cuda = MadeUpCuda().install(monkeypatch)
    monkeypatch.setattr("lmplay.device.runtime.usable_cores", lambda: cores)
    assert Runtime(Settings(device="cuda", **flags)).data_workers == workers
    assert [seconds for name, seconds in cuda.asked if name == "switch"] == [0.0005]
    assert Runtime(Settings(device="cpu")).data_workers == 1


def test_room_for_a_copy_is_beside_the_most_that_was_ever_in_use(monkeypatch):
    MadeUpCuda().install(monkeypatch)  # 100 of 1000 are free, 30 reserved, and at most 25 were in use: a tenth of all is kept
    assert memory.has_room(torch.device("cuda:1"), 5)
    assert not memory.has_room(torch.device("cuda:1"), 6)
    assert not memory.has_room(torch.device("cpu"), 1)


def test_questions_about_memory_name_the_device(monkeypatch):
    cuda = MadeUpCuda().install(monkeypatch)
    device = torch.device("cuda:1")
    assert (memory.memory_in_use(device), memory.peak_memory(device), memory.memory_left(device)) == (10, 25, 120)
    memory.forget_peak(device)
    memory.wait_for(device)
    assert {asked for name, asked in cuda.asked} == {"cuda:1"}
    assert "reset_peak_memory_stats" in {name for name, _ in cuda.asked}


@pytest.mark.parametrize(("flags", "capability", "fits"), [({"amp": "bfloat16"}, (9, 0), True), ({}, (9, 0), False), ({"amp": "float16"}, (7, 5), False)])
def test_packed_pieces_are_compiled_where_the_kernel_is(monkeypatch, flags, capability, fits):
    MadeUpCuda(capability).install(monkeypatch)
    has_kernel.cache_clear()
    model = build_model(get_experiment("llamaish"), vocab_size=9, context_len=8, num_blocks=1, embed_dim=16, num_heads=2, num_kv_heads=1)
    runtime = Runtime(Settings(device="cuda", compile_model=True, pack="on", **flags))
    if fits:
        assert runtime.packs(model)
    else:
        with pytest.raises(UserError, match="needs --amp and a GPU of NVIDIA from Ampere on"):
            runtime.packs(model)
    has_kernel.cache_clear()
    assert not Runtime(Settings(device="cuda")).packs(model)  # by itself only where it is known to be faster


@pytest.mark.parametrize(("peak", "fits"), [(25, True), (50, True), (60, False)])
def test_a_mini_batch_of_auto_is_bounded_by_the_memory_of_the_gpu(monkeypatch, peak, fits):
    """10 of 130 are in use, 5 were in use before the first mini-batch, and another of twice the size takes twice as much."""
    MadeUpCuda().install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak)
    assert budget._twice_fits(torch.device("cuda:1"), 5) is fits


def test_a_gpu_that_is_given_little_is_hinted_at(monkeypatch):
    MadeUpCuda().install(monkeypatch)

    def said(**flags):
        return " ".join(hints(Settings(**flags), torch.device("cuda"), 10**6, {}, 1024, lambda: 0))

    assert "--mini-batch-size auto measures" in said()
    assert "4,096 tokens" in said()
    assert "--mini-batch-size auto" not in said(mini_batch_size="auto", explicit=frozenset({"mini_batch_size"}))
    assert "--mini-batch-size auto" not in " ".join(hints(Settings(), torch.device("cpu"), 10**6, {}, 1024, lambda: 0))


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


def test_a_missing_c_compiler_is_refused_at_the_start(tmp_path):
    environment = {**ENVIRONMENT, "CXX": "/nowhere/c++", "PATH": os.path.dirname(sys.executable), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-m", "lmplay.train", "--dataset", "builtin:tales", "--tokenizer", "bytes", "--num-blocks", "1", "--embed-dim", "8",
                           "--num-heads", "1", "--context-len", "32", "--compile-model", "--device", "cpu", "--max-steps", "1", "--out-dir", str(tmp_path)],
                          env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "--compile-model: " in done.stderr
    assert "Traceback" not in done.stderr
