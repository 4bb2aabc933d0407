"""The start of a run: what it imports and what it doesn't."""
import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from helpers import ENVIRONMENT, TINY, sentences, write_rows
from torch import nn

from lmplay.device import compile_cache
from lmplay.device.machine import cores_are_taken, cpu_flags, cpu_quota, threads_to_use
from lmplay.engine.model_spec import ModelSpec
from lmplay.optim.optimizers import OPTIMIZERS, build_optimizer
from lmplay.plan.settings import Settings
from lmplay.report import hints
from lmplay.tokenizer import train_tokenizer
from lmplay.tokenizer.loading import _from_cache

# Ends the process after its first step, with the names of the heavy libraries that have been imported, but for those that torch itself needs.
WATCH = """
import subprocess, sys
from lmplay.track.callback import Callback
HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "transformers", "datasets", "pandas", "pyarrow", "matplotlib", "huggingface_hub")

class Watch(Callback):
    def train(self, figures):
        print(*(set(HEAVY) & set(sys.modules)), file=sys.stderr, flush=True)
        import os
        os._exit(33)
"""


def loaded_by(program: list, folder, *arguments) -> set:
    done = subprocess.run([sys.executable, *program, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=folder, env=ENVIRONMENT)
    assert done.returncode == 33, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("tokenizer", ["bytes", "train:300"])
def test_the_first_step_needs_no_compiler_and_no_library_of_models_or_data(tmp_path, tokenizer):
    (tmp_path / "watch.py").write_text(WATCH)
    write_rows(tmp_path / "texts.jsonl", [{"text": sentences(4)} for _ in range(30)])
    by_torch = loaded_by(["-c", "import torch, watch; watch.Watch().train({})"], tmp_path)
    by_run = loaded_by(["-m", "lmplay.train"], tmp_path, *TINY, "--tokenizer", tokenizer, "--dataset", "texts.jsonl", "--callback", "watch:Watch")
    assert by_run - by_torch == set()


COMPARE = """
import sys, lmplay.tokenizer.loading as module
quick = module.load_tokenizer("some/tokenizer")
assert "transformers" not in sys.modules
module._from_cache = lambda name: None
same = module.load_tokenizer("some/tokenizer")
for tokenizer in (quick, same):
    tokenizer.told = tokenizer.encode("The cat number 12, 猫 <|endoftext|>  sat.").ids.tolist(), {**tokenizer.spec, "json": ""}
assert quick.told == same.told
assert "transformers" in sys.modules
"""


def in_cache(folder, **files) -> dict:
    """Put files where the hub's client keeps them; gives the environment in which it finds them."""
    place = folder / "models--some--tokenizer"
    snapshot = place / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0123")
    (snapshot / "tokenizer.json").write_text(train_tokenizer(iter([sentences(9)]), 300).spec["json"])
    for name, content in files.items():
        (snapshot / f"{name}.json").write_text(json.dumps(content))
    return {**ENVIRONMENT, "HF_HUB_CACHE": str(folder)}


@pytest.mark.parametrize("files", [
    {"config": {"model_type": "gpt2"}, "tokenizer_config": {"model_max_length": 1024}},
    {"config": {"model_type": "llama"},
     "tokenizer_config": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "chat_template": "{{ messages[0] }}"}}])
def test_a_tokenizer_in_the_cache_needs_no_transformers_and_is_the_same(tmp_path, files):
    done = subprocess.run([sys.executable, "-c", COMPARE], capture_output=True, text=True, check=False, env=in_cache(tmp_path, **files))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("config", [{"tokenizer_class": "LlamaTokenizer", "eos_token": "<|endoftext|>"}, {"tokenizer_class": "PreTrainedTokenizerFast"},
                                    {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {"300": {"content": "<new>"}}}])
def test_a_tokenizer_whose_file_does_not_say_all_is_left_to_transformers(tmp_path, monkeypatch, config):
    import huggingface_hub

    in_cache(tmp_path, tokenizer_config=config)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert _from_cache("some/tokenizer") is None
    assert _from_cache("no/tokenizer") is None
    assert _from_cache("not a name") is None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_without_the_compiler_are_those_of_torch(name):
    kind = getattr(torch.optim, OPTIMIZERS[name].members[0].target.removeprefix("torch.optim:"))

    def train(build):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        optimizer = build(model)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 3)).pow(3).sum().backward()
            optimizer.step()
        return optimizer, [*model.parameters()]

    ours, weights = train(lambda model: build_optimizer(name, model, 0.01, 0.1))
    groups = [{key: value for key, value in group.items() if key != "params"} for group in ours.param_groups]

    def theirs(model):
        split = [[parameter for parameter in model.parameters() if (parameter.dim() > 1) == group["decays"]] for group in groups]
        return kind([{**group, "params": parameters} for group, parameters in zip(groups, split, strict=True)])

    other, expected = train(theirs)
    assert all(map(torch.equal, weights, expected))
    assert isinstance(ours, kind)
    assert str(ours) == str(other)
    assert ours.state_dict().keys() == other.state_dict().keys()
    for state, same in zip(ours.state.values(), other.state.values(), strict=True):
        assert all(map(torch.equal, state.values(), same.values()))


def test_hooks_of_an_optimizer_are_called():
    model, heard = nn.Linear(2, 2), []
    optimizer = build_optimizer("adamw", model, 0.1)
    optimizer.register_step_post_hook(lambda *_: heard.append("step"))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert heard == ["step"]
    assert not any(parameter.requires_grad and parameter.grad_fn for parameter in model.parameters())


def test_a_model_of_shapes_alone_has_those_of_the_model():
    plan = ModelSpec("gpt2ish_tiny", {"context_len": 16, "num_blocks": 1, "embed_dim": 8, "num_heads": 2}, None)
    drawn = torch.get_rng_state()
    shapes = {name: (parameter.shape, parameter.dtype) for name, parameter in plan.build(20, meta=True).named_parameters()}
    assert torch.equal(torch.get_rng_state(), drawn)
    assert shapes == {name: (parameter.shape, parameter.dtype) for name, parameter in plan.build(20).named_parameters()}


# The machine

def machine(root, **files):
    """Write files of a Linux system; gives where."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.mark.parametrize(("files", "cores"), [
    ({}, None),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
    ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
    ({"proc/self/cgroup": "0::/user/job:7\n", "sys/fs/cgroup/user/job:7/cpu.max": "800000 100000", "sys/fs/cgroup/user/cpu.max": "300000 100000"}, 3.0),
    ({"proc/self/cgroup": "9:cpuset:/a\n4:cpu,cpuacct:/a\n", "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "400000",
      "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000"}, 4.0),
    # in a container that does not see where it is: the path is that outside, the files are those inside
    ({"proc/self/cgroup": "4:cpuacct,cpu:/docker/0123\n0::/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
      "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 0.5),
    ({"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None)])
def test_threads_are_as_many_as_a_container_may_use(tmp_path, monkeypatch, files, cores):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    root = machine(tmp_path, **files)
    assert cpu_quota(root) == cores
    assert threads_to_use(16, root) == (16 if cores is None else max(1, int(cores)))
    assert threads_to_use(1, root) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads_to_use(5, root) == 5


@pytest.mark.parametrize(("running", "mine", "threads", "taken"), [(1, 8, "", False), (2, 8, "", True), (5, 4, "", False), (6, 4, "", True), (5, 8, "4", False),
                                                                   (7, 8, "2", False), (8, 8, "2", True), (None, 8, "", False)])
def test_cores_are_taken_where_others_leave_too_few_for_the_threads(tmp_path, monkeypatch, running, mine, threads, taken):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(mine)), raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    if not threads:
        monkeypatch.delenv("OMP_NUM_THREADS")
    root = tmp_path if running is None else machine(tmp_path, **{"proc/loadavg": f"0.00 0.01 0.05 {running}/812 4711\n"})
    assert cores_are_taken(root) is taken


@pytest.mark.parametrize(("given", "taken", "found"), [(None, True, "PASSIVE"), (None, False, None), ("ACTIVE", True, "ACTIVE")])
def test_threads_sleep_where_cores_are_taken_unless_the_user_has_said_otherwise(tmp_path, monkeypatch, given, taken, found):
    from lmplay.device import machine
    from lmplay.train.__main__ import main

    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(machine, "cores_are_taken", lambda: taken)
    write_rows(tmp_path / "texts.jsonl", [{"text": sentences(4)} for _ in range(30)])
    main([*TINY, "--dataset", str(tmp_path / "texts.jsonl"), "--out-dir", str(tmp_path / "out"), "--describe"])
    assert os.environ.get("OMP_WAIT_POLICY") == found
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)


@pytest.mark.parametrize("content", ["processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor : 1\nflags : fpu\n", "Features : fpu avx2 avx512_bf16\n"])
def test_instructions_of_the_processor(tmp_path, content):
    assert cpu_flags(machine(tmp_path, **{"proc/cpuinfo": content})) == {"fpu", "avx2", "avx512_bf16"}
    assert cpu_flags(tmp_path / "nowhere") == frozenset()


# What torch compiles

def test_what_is_compiled_is_kept_in_the_users_folder_by_processor_and_threads(tmp_path, monkeypatch):
    folders = set()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for threads, flags in ((1, "avx2"), (2, "avx2"), (1, "avx512")):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        monkeypatch.setattr(compile_cache, "cpu_flags", lambda flags=flags: {flags})
        compile_cache.keep_compiled()
        folders.add(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert len(folders) == 3
    assert all(os.path.isdir(folder) and folder.startswith(str(tmp_path)) for folder in folders)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "elsewhere")
    compile_cache.keep_compiled()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "elsewhere"


@pytest.mark.parametrize("base", ["a file", "relative", "no execution"])
def test_a_folder_that_cannot_be_used_is_left_alone(tmp_path, monkeypatch, base):
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", base if base == "relative" else str(tmp_path / base))
    if base == "no execution":
        monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    compile_cache.keep_compiled()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


COUNT = """
import os, sys
from lmplay.track.callback import Callback

class Count(Callback):
    def train(self, figures):
        from torch._dynamo.utils import counters
        print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"], file=sys.stderr, flush=True)
        os._exit(33)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++ on a CPU")
def test_the_next_run_takes_what_was_compiled(tmp_path):
    (tmp_path / "count.py").write_text(COUNT)
    write_rows(tmp_path / "texts.jsonl", [{"text": sentences(4)} for _ in range(30)])
    command = [sys.executable, "-m", "lmplay.train", *TINY, "--dataset", "texts.jsonl", "--compile-model", "--quiet", "--callback", "count:Count"]
    environment = {**ENVIRONMENT, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    counts = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
        assert done.returncode == 33, done.stderr
        counts.append([int(count) for count in done.stderr.split()[-2:]])
    (first_hits, first_misses), (hits, misses) = counts
    assert first_hits == 0 < first_misses
    assert misses == 0 < hits == first_misses


# Hints

def run_of(device="cpu", parameters=30_000_000, resumes=(), total=10**6, context_len=512, dropout=0.1, **settings):
    """Give what hints look at."""
    module = nn.Module()
    module.weight = nn.Parameter(torch.empty(parameters, device="meta"))
    stage = SimpleNamespace(name="a", tokens=None)
    return SimpleNamespace(
        runner=SimpleNamespace(resumes=list(resumes), runtime=SimpleNamespace(device=torch.device(device))),
        settings=Settings(**settings, explicit=frozenset(settings)), model=SimpleNamespace(module=module, args={"dropout": dropout}),
        stage_settings={"a": SimpleNamespace(batch_size=50, context_len=context_len)},
        stage_data={"a": SimpleNamespace(open_samples=lambda: SimpleNamespace(total=total))}, curriculum=SimpleNamespace(remaining=lambda: [(stage, None)]))


@pytest.mark.parametrize(("run", "flags"), [
    (run_of(), ["--amp", "--dropout"]),
    (run_of(parameters=1000), ["--dropout"]),
    (run_of(dropout=0.0), ["--amp"]),
    (run_of(context_len=128), ["--amp"]),
    (run_of(amp=True, dropout=0.1), ["--dropout"]),
    (run_of(amp=False), ["--dropout"]),  # --no-amp: decided
    (run_of(resumes=[1]), []),
    (run_of(compile_model=True), ["--amp"]),
    (run_of(device="cuda"), ["--amp", "--compile-model"]),
    (run_of(device="cuda", compile_model=False), ["--amp"]),
    (run_of(device="cuda", total=50_000), ["--amp"]),
    (run_of(device="cuda", total=None), ["--amp"]),
    (run_of(device="mps"), [])])
def test_hints_name_flags_that_help_here_and_were_not_decided_on(monkeypatch, run, flags):
    monkeypatch.setattr(hints, "cpu_flags", lambda: frozenset({"avx512_bf16"}))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: not including_emulation)
    monkeypatch.setattr(hints, "find_spec", lambda name: name == "triton")
    assert [hint.split()[0] for hint in hints.hints(run)] == flags


def test_no_hint_where_the_device_has_nothing_to_offer(monkeypatch):
    monkeypatch.setattr(hints, "cpu_flags", lambda: frozenset({"avx512f", "amx_tile"}))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    monkeypatch.setattr(hints, "find_spec", lambda name: None)
    assert hints.hints(run_of(dropout=0.0)) == hints.hints(run_of(device="cuda")) == []
    assert "several times as long" in hints.hints(run_of(dropout=0.0, amp=True))[0]


@pytest.mark.parametrize("quiet", [False, True])
def test_hints_are_said_at_the_start_but_not_when_quiet(tmp_path, monkeypatch, capsys, quiet):
    from lmplay.report import report
    from lmplay.train.__main__ import main

    monkeypatch.setattr(report, "hints", lambda run: ["--flag brings something"])
    write_rows(tmp_path / "texts.jsonl", [{"text": sentences(4)} for _ in range(30)])
    assert main([*TINY, "--dataset", str(tmp_path / "texts.jsonl"), "--out-dir", str(tmp_path / "out"), "--max-steps", "1", *["--quiet"] * quiet]) == 75
    assert ("hint        --flag brings something" in capsys.readouterr().out) is not quiet
