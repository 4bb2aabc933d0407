"""`lmp_checkpoint`: what it writes, says and refuses."""
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from exported import model_file
from helpers import TINY, differences, load, sentences, write_rows
from states import flip

from lmplay.checkpoints import mean
from lmplay.checkpoints.base import keep_base, open_model
from lmplay.checkpoints.format import write
from lmplay.checkpoints.trained import Trained, open_trained
from lmplay.modules.adapters import adapter_state, add_adapter, choose_layers
from lmplay.plan.settings import AdapterSettings
from lmplay.tokenizer import load_tokenizer
from lmplay.tools.__main__ import main
from lmplay.train.__main__ import main as train


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run, with averages of its weights."""
    folder = tmp_path_factory.mktemp("finished")
    write_rows(folder / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(30)])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("LMP_DATASETS", raising=False)
        assert train([*TINY, "--dataset", "rows.jsonl", "--batch-size", "5", "--ema", "0.9", "--model", "mine", "--save-interval", "10", "--quiet"]) == 0
    return folder


@pytest.fixture
def here(finished, tmp_path, monkeypatch):
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    shutil.copytree(finished / "out_gpt", tmp_path / "out_gpt")
    shutil.copy(finished / "rows.jsonl", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments, code=0):
    found = main([*map(str, arguments)])
    said = capsys.readouterr()
    assert found == code, said.err
    return said.out + said.err


def test_convert_there_and_back_and_a_run_goes_on_from_it(here, capsys):
    assert "in 3 shards" in run(capsys, "convert", "mine", "folder", "--shards", 3)
    assert len(list(Path("out_gpt/folder.lmp").iterdir())) == 4
    run(capsys, "convert", "folder", "./back.lmp")
    assert Path("back.lmp").is_file()
    assert not differences(load(Path("back.lmp")), load(Path("out_gpt/mine.lmp")))
    assert "is there already" in run(capsys, "convert", "mine", "folder", code=2)
    run(capsys, "convert", "mine", "mine", "--overwrite")
    assert Path("out_gpt/mine.lmp").is_dir()
    assert train([*TINY, "--dataset", "rows.jsonl", "--batch-size", "5", "--model", "mine", "--quiet"]) == 0
    assert not list(here.glob("out_gpt/.*"))


def test_verify_tells_whole_states_from_others(here, capsys):
    run(capsys, "convert", "mine", "folder", "--shards", 2)
    said = run(capsys, "verify", "mine", "folder/", "mine.best")
    assert said.count(": whole, ") == 3
    assert "in 2 shards, checksum right" in said
    torch.save(load(Path("out_gpt/mine.lmp")), "out_gpt/bare.lmp")
    assert "no checksum" in run(capsys, "verify", "bare")
    flip(Path("out_gpt/folder.lmp/shard-00002-of-00002.safetensors"))
    stored = load(Path("out_gpt/mine.lmp"))
    del stored["model"]["state"]["final_norm.weight"]
    torch.save(stored, "out_gpt/less.lmp")
    said = run(capsys, "verify", "folder", "mine", "less", code=2)
    assert said.count("whole") == 1
    assert "folder.lmp: damaged" in said
    assert "'final_norm.weight' is missing" in said


@pytest.mark.parametrize("form", [(), ("--shards", 2)])
def test_the_average_is_the_mean_in_float64(here, capsys, form):
    torch.manual_seed(0)
    names = []
    for number in range(3):
        stored = load(model_file(Path("m.lmp"), "gpt2ish"))
        for value in {id(value): value for value in stored["model"]["state"].values()}.values():
            value.mul_(torch.rand(()))
        torch.save(stored, f"s{number}.lmp")
        names.append(f"./s{number}.lmp")
    said = run(capsys, "average", *names, "--to", "./mean.lmp", *form)
    assert "the mean of 3 states is written as mean.lmp: weights alone" in said
    assert Path("mean.lmp").is_dir() is bool(form)
    state, all_states = load(Path("mean.lmp"))["model"]["state"], [load(Path(name))["model"]["state"] for name in names]
    assert state.keys() == all_states[0].keys()
    for key, value in state.items():
        expected = sum(one[key].double() for one in all_states) / 3
        assert torch.equal(value, expected.to(value.dtype)), key
    assert state["head.weight"].data_ptr() == state["token_embedding.weight"].data_ptr()
    assert open_trained(Path("mean.lmp")).module is not None


def test_averages_of_runs_take_what_is_used_and_begin_other_runs(here, capsys):
    run(capsys, "average", "mine", "mine.best", "--to", "mean")
    run(capsys, "average", "mine", "mine", "--to", "same")
    run(capsys, "average", "mine", "mine", "--to", "raw", "--raw")
    mine, same, raw = open_trained(Path("out_gpt/mine.lmp")), load(Path("out_gpt/same.lmp")), load(Path("out_gpt/raw.lmp"))
    assert mine.averaged
    assert all(torch.equal(value, same["model"]["state"][key]) for key, value in mine.module.state_dict().items())
    assert not differences(raw["model"]["state"], load(Path("out_gpt/mine.lmp"))["model"]["state"])
    assert train([*TINY, "--dataset", "rows.jsonl", "--initial-model", "mean", "--model", "other", "--quiet", "--max-steps", "1"]) == 75


def test_what_is_no_float_is_the_last_and_halves_are_rounded_once(monkeypatch):
    def opened(path, raw):
        number = int(path.stem)
        module = torch.nn.Module()
        module.register_buffer("count", torch.tensor([number, 7]))
        module.register_buffer("low", torch.full((3,), 1 + number / 128, dtype=torch.bfloat16))
        return Trained("x", module, load_tokenizer("bytes"), 16, {}, {"dropout": number / 10}, {}, False)

    monkeypatch.setattr(mean, "open_trained", opened)
    said = []
    found = mean.mean_of([Path("1"), Path("2"), Path("4")], False, said.append)["model"]["state"]
    assert found["count"].tolist() == [4, 7]
    assert said == ["count differ and are no floats: those of 4 are kept."]
    assert torch.equal(found["low"], torch.full((3,), 1 + 7 / 3 / 128, dtype=torch.float64).bfloat16())


def test_other_models_are_refused(here, capsys):
    model_file(Path("a.lmp"), "gpt2ish")
    model_file(Path("b.lmp"), "gpt2ish", num_blocks=1)
    said = run(capsys, "average", "./a.lmp", "./b.lmp", "--to", "c", code=2)
    assert "STATE b.lmp: has another arguments than a.lmp" in said
    assert not Path("out_gpt/c.lmp").exists()


def test_inspect_is_that_of_the_trainer(here, capsys):
    run(capsys, "convert", "mine", "folder", "--shards", 2)
    file, folder = (json.loads(run(capsys, "inspect", name, "--json")) for name in ("mine", "folder"))
    assert folder.pop("shards") == 2
    assert {name for name in file if file[name] != folder[name]} <= {"file", "bytes"}
    assert train(["--inspect", "folder"]) == 0
    assert capsys.readouterr().out == run(capsys, "inspect", "folder")
    os.truncate("out_gpt/mine.lmp", 1000)
    run(capsys, "inspect", "mine", code=2)


def test_verify_looks_at_all_and_says_which_one_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stored = load(model_file(Path("a.lmp"), "gpt2ish"))
    del stored["model"]["state"]["final_norm.weight"]
    torch.save(stored, "less.lmp")
    torch.save({**stored, "format": 99}, "strange.lmp")
    said = run(capsys, "verify", "./nothing", "./less.lmp", "./strange.lmp", "./a.lmp", code=2)
    assert "a.lmp: whole" in said
    assert "STATE ./nothing: there is no such file" in said
    assert "STATE less.lmp: model: 'final_norm.weight' is missing" in said
    assert "strange.lmp: has format 99" in said
    assert "reads format 1" in run(capsys, "convert", "./strange.lmp", "./new.lmp", code=2)
    assert not Path("new.lmp").exists()


def test_an_adapter_is_converted_with_its_base_or_not_at_all(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = load(model_file(Path("a.lmp"), "gpt2ish"))["model"]
    identity = keep_base(Path("a.lmp"), model)
    module = open_model(model)
    layers = choose_layers(module, AdapterSettings("lora", rank=2))
    add_adapter(module, AdapterSettings("lora", rank=2), layers)
    adapter = {"kind": "lora", "rank": 2, "alpha": 4.0, "dropout": 0.0, "layers": layers, "base": identity}
    write(Path("a.lmp"), {"format": 1, "versions": {}, "model": {"state_args": {**model["state_args"], "adapter": adapter}, "state": adapter_state(module)}})
    run(capsys, "convert", "./a.lmp", "there/b.lmp", "--shards", 2)
    assert run(capsys, "verify", "there/b.lmp").count(": whole, ") == 1
    Path("blocked").mkdir()
    Path("blocked/bases").touch()
    assert run(capsys, "convert", "./a.lmp", "blocked/b.lmp", code=2).count("\n") == 1
    Path(f"bases/{identity}.lmp").unlink()
    assert "are not there" in run(capsys, "convert", "./a.lmp", "other/b.lmp", code=2)
    assert not list(Path().glob("other/*.lmp"))
    assert not Path("blocked/b.lmp").exists()


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "give an action"), (["covnert", "a", "b"], "Did you mean 'convert'"), (["convert", "a"], "convert STATE TARGET is how it is called"),
    (["average", "a", "b"], "average STATE STATE ... --to TARGET"), (["verify", "a", "--json"], "--json: not for verify"),
    (["convert", "a", "b", "--shards", "0"], "allowed is a number from 1"), (["convert", "a", "b", "--shards", "2", "--format", "file"], "a file has none"),
    (["verify", "nothing"], "there is no such file")])
def test_what_is_wrong_is_said_in_a_line(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    found = run(capsys, *arguments, code=2)
    assert said in found
    assert found.count("\n") == 1
