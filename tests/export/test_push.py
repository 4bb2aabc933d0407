"""`lmp_export --push`, to a small hub on this machine, and `--initial-model NAME` from there."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from exported import logits, model_file, stirred, their_logits
from helpers import sentences, write_plan, write_rows
from hub_server import HubServer

from lmplay.checkpoints.trained import open_trained
from lmplay.evaluate.command import run as evaluate
from lmplay.exp.imported import open_foreign
from lmplay.export.command import run
from lmplay.hub import waiting
from lmplay.train.__main__ import main

pytest.importorskip("transformers")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    import huggingface_hub

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "may-write")
    with HubServer(tmp_path / "hub") as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)  # it would ask the server of an earlier test again and again
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


def test_a_model_is_sent_and_begun_with_from_there(hub, capsys, tmp_path):
    model_file(Path("m.lmp"))
    assert run(["./m.lmp", "out", "--push", "me/mine", "--max-shard-size", "20KB"]) == 0
    assert f"sent to {hub.url}/me/mine" in capsys.readouterr().out
    assert run(["./m.lmp", "out", "--push", "me/mine"]) == 0
    sent, written = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (tmp_path / "hub/me/mine", tmp_path / "out"))
    assert sent == written  # the smaller files of weights of before are gone
    assert 'from_pretrained("me/mine")' in sent["README.md"].decode()

    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2)} for _ in range(30)])
    write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "steps": 5}})
    flags = ["--training-plan", "plan.json", "--initial-model", "me/mine", "--lr", "1e-30", "--weight-decay", "0", "--max-steps", "1", "--model", "new"]
    assert main([*flags, "--device", "cpu", "--batch-size", "3"]) == 75, capsys.readouterr().err
    tokens = torch.arange(20)[None]
    for found in (logits(open_trained(Path("out_gpt/new.lmp")).module, tokens), their_logits(tmp_path / "out", tokens)):
        torch.testing.assert_close(found, logits(stirred("llamaish", 257), tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("has_record", [True, False])
def test_a_model_on_the_hub_is_judged_as_the_one_it_was_made_from(hub, capsys, tmp_path, has_record):
    """The record of the export says how prompts begin; of a model without one nothing is known."""
    model_file(Path("m.lmp"), forms={"one": [{"source": "a.jsonl", "form": "instruction", "chat": None}]})
    assert run(["./m.lmp", "out", "--push", "me/mine"]) == 0
    if not has_record:
        (tmp_path / "hub/me/mine/lmplay.json").unlink()
    write_rows(tmp_path / "set.jsonl", [{"question": "A cat", "choices": [" is here.", " was there, and it ate."], "answer": 0} for _ in range(5)])
    assert evaluate(["./m.lmp", "hf:me/mine", "--choices", "set.jsonl", "--device", "cpu", "--json", "figures.json"]) == 0, capsys.readouterr().err
    ours, theirs = json.loads(Path("figures.json").read_text())["evaluations"]
    assert ours["settings"]["form"] == "instruction"
    assert theirs["settings"]["form"] == ("instruction" if has_record else "text")


def test_without_a_network_a_line_says_that_the_record_is_not_known(hub, monkeypatch, tmp_path):
    import huggingface_hub

    said: list[str] = []
    monkeypatch.setattr(waiting, "say", said.append)
    model_file(Path("m.lmp"))
    assert run(["./m.lmp", "out", "--push", "me/mine"]) == 0
    assert open_foreign("me/mine", "MODEL m").record is not None
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert open_foreign("me/mine", "MODEL m").record is not None  # from the cache
    assert said == []
    for path in (tmp_path / "cache").rglob("lmplay.json"):
        path.unlink()
    assert open_foreign("me/mine", "MODEL m").record is None
    assert [line.partition(", so")[0] for line in said] == ["WARNING: MODEL m: the hub cannot be reached"]


@pytest.mark.parametrize(("name", "token", "said"), [
    ("me/mine", "may-read", "log in with `hf auth login`"), ("a/b/c", "may-write", "is no name for the hub"), ("me/mine", None, "try again later")])
def test_what_the_hub_does_not_take_is_one_line_and_the_folder_is_whole(hub, capsys, monkeypatch, name, token, said):
    model_file(Path("m.lmp"))
    if token is None:
        hub.fault("/api/repos", status=503, times=None)
    else:
        monkeypatch.setenv("HF_TOKEN", token)
    assert run(["./m.lmp", "out", "--push", name]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"--push {name}: " in error
    assert said in error
    assert Path("out").is_dir() is (name == "me/mine")


def test_a_name_that_the_hub_does_not_have_is_refused_in_a_line(hub, capsys, tmp_path):
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2)}])
    assert main(["--dataset", "rows.jsonl", "--initial-model", "nobody/nothing", "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert error.count("--initial-model nobody/nothing: cannot be read (") == 1
    assert "Traceback" not in error


def test_private_is_for_push(hub, capsys):
    assert run(["./m.lmp", "out", "--private"]) == 2
    assert "--private: is for --push" in capsys.readouterr().err
