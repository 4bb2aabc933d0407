"""`lmp_export --adapter-only`: what `PeftModel.from_pretrained` makes of it and of the exported base has our logits."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from exported import logits, model_file, refused
from helpers import TINY, sentences, write_plan, write_rows

from lmplay.checkpoints.base import base_file, finished_file, keep_base, keep_finished, open_model
from lmplay.checkpoints.format import load
from lmplay.checkpoints.trained import open_trained
from lmplay.export.command import run
from lmplay.modules.adapters import adapter_parameters, adapter_state, add_adapter, choose_layers
from lmplay.plan.settings import AdapterSettings
from lmplay.train.__main__ import main

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    return tmp_path


def kept_adapter(experiment: str, kind: str, targets, **settings) -> tuple[Path, Path]:
    """Write a base, and an adapter whose numbers are far from those of a fresh one; gives the adapter's file and the base's."""
    model = load(model_file(Path("m.lmp"), experiment, **settings), parts=("model",))["model"]
    identity = keep_base(Path("m.lmp"), model)
    module = open_model(model)
    adapter = AdapterSettings(kind, 4, 6.0, 0.1, targets)
    layers = choose_layers(module, adapter)
    add_adapter(module, adapter, layers)
    with torch.no_grad():
        for parameter in adapter_parameters(module).values():
            parameter.add_(torch.randn(parameter.shape), alpha=0.2)
    said = {"kind": kind, "rank": 4, "alpha": 6.0, "dropout": 0.1, "layers": layers, "base": identity}
    keep_finished(Path("m.lmp"), "tuned", {"state_args": {**model["state_args"], "adapter": said}, "state": adapter_state(module)})
    return finished_file(Path("m.lmp"), "tuned"), base_file(Path("m.lmp"), identity)


@pytest.mark.parametrize(("experiment", "settings", "kind", "targets"), [
    ("gpt2ish", {}, "lora", "all"), ("gpt2ish", {}, "dora", "attention"), ("llamaish", {"num_kv_heads": 2}, "rslora", "all"),
    ("llamaish", {"query_key_value_bias": True}, "dora", "all"), ("modern", {}, "lora", ["blocks.1.*"]), ("unified", {"front_factor": 2.0}, "lora", "all")],
    ids=str)
def test_peft_opens_it_with_the_same_logits(capsys, experiment, settings, kind, targets):
    adapter, base = kept_adapter(experiment, kind, targets, **settings)
    assert run([str(base), "base"]) == 0
    assert run([str(adapter), "--adapter-only", "alone"]) == 0
    assert f"`lmp_export {base} BASE`" in capsys.readouterr().out
    assert {file.name for file in Path("alone").iterdir()} == {"adapter_config.json", "adapter_model.safetensors", "lmplay.json"}
    tokens = torch.arange(22).view(2, 11) + 40
    theirs = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained("base"), "alone").eval()
    with torch.no_grad():
        found = theirs(input_ids=tokens).logits
        plain = transformers.AutoModelForCausalLM.from_pretrained("base")(tokens).logits
    expected = logits(open_trained(adapter).module, tokens)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert (plain - expected).abs().max() > 0.1


def test_the_stage_is_chosen_and_its_adapter_is_kept_when_it_is_done(here, capsys):
    write_rows(here / "rows.jsonl", [{"text": sentences(1 + i % 3)} for i in range(40)])
    write_plan(here, {"one": {"dataset": "rows.jsonl", "samples": 6}, "two": {"dataset": "rows.jsonl", "samples": 6, "adapter": "lora", "lr": 0.1}})
    assert main([*TINY, "--training-plan", "plan.json", "--batch-size", "5", "--model", "mine"]) == 0
    capsys.readouterr()
    assert "mine.lmp holds no adapter: it is merged into the weights at the end of its stage. There are those of two: give --state two." in \
        refused(capsys, "mine", "--adapter-only", "alone")
    assert run(["mine", "--state", "two", "--adapter-only", "alone"]) == 0
    assert json.loads(Path("alone/adapter_config.json").read_text())["r"] == 16
    merged, kept = open_trained(Path("out_gpt/mine.two.lmp")).module, open_trained(Path("out_gpt/adapters/mine.two.lmp")).module
    assert all(torch.equal(value, kept.state_dict()[name]) for name, value in merged.state_dict().items())
    assert "leave FOLDER and --gguf out" in refused(capsys, "mine", "folder", "--gguf", "x.gguf", "--adapter-only", "alone")
    assert main([*TINY, "--training-plan", "plan.json", "--batch-size", "5", "--model", "mine", "--reset-history"]) == 0
    capsys.readouterr()
    assert {file.name for file in Path("out_gpt/adapters").iterdir()} == {"mine.old-1.two.lmp", "mine.two.lmp"}
    for base in Path("out_gpt/bases").iterdir():
        base.unlink()
    assert "are not there. Bring that file back." in refused(capsys, "mine", "--state", "two", "--adapter-only", "alone", "--overwrite")
