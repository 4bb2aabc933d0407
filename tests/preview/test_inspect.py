"""`--inspect`: what a checkpoint says of itself."""
import json
import os

import pytest
from helpers import TINY, load, sentences, write_plan, write_rows

from lmplay.checkpoints.format import write
from lmplay.train.__main__ import main


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The arguments and the checkpoint of a run of two stages."""
    folder = tmp_path_factory.mktemp("finished")
    write_rows(folder / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(30)])
    plan = write_plan(folder, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl", "lr": 0.01}})
    arguments = [*TINY, "--batch-size", "5", "--training-plan", str(plan), "--save-interval", "10", "--validation-interval", "9",
                 "--out-dir", str(folder / "out")]
    assert main(arguments) == 0
    return arguments, folder / "out" / "gpt2ish_model.lmp"


def test_inspect_says_what_a_file_holds(finished, capsys):
    _, path = finished
    stored = load(path)
    assert main(["--inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stats = stored["runner"]["state"]["stats"]
    assert (found["checksum"], found["format"], found["bytes"]) == ("right", 1, path.stat().st_size)
    assert found["versions"] == stored["versions"]
    assert found["model"]["parameters"] == sum(tensor.numel() for name, tensor in stored["model"]["state"].items() if name != "head.weight")
    assert (found["model"]["experiment"], found["model"]["tokenizer"]) == ("gpt2ish", "bytes")
    assert (found["run"]["samples"], found["run"]["tokens"], found["run"]["best_validation"]) == (
        stats["total_train_samples"], stats["total_train_tokens"], stats["best"])
    assert [(stage["name"], stage["is"]) for stage in found["stages"]] == [("one", "done"), ("two", "done")]
    assert {"batch_size": 5, "save_interval": 10}.items() <= found["settings"].items()
    assert "lr" not in found["settings"]
    assert found["bytes_by_component"]["model"] == 4 * found["model"]["parameters"]
    assert main(["--inspect", str(path)]) == 0
    text = capsys.readouterr().out
    for word in ("checksum right", "gpt2ish", "two (done)", "save_interval 10", "best validation", "optimizers"):
        assert word in text


def test_inspect_of_weights_alone_and_of_damaged_files(finished, tmp_path, capsys):
    arguments, path = finished
    stored, weights = load(path), tmp_path / "export.lmp"
    write(weights, {"format": 1, "versions": stored["versions"], "model": stored["model"]})
    assert main(["--inspect", str(weights), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"file", "bytes", "checksum", "format", "versions", "model", "bytes_by_component"}
    assert main([*arguments, "--initial-model", str(weights), "--model", str(tmp_path / "new.lmp"), "--out-dir", str(tmp_path)]) == 0
    weights = tmp_path / "new.lmp"
    data = bytearray(weights.read_bytes())
    data[-60] ^= 1  # in the last record of the archive, which torch.load does not look at in full
    weights.write_bytes(data)
    assert main(["--inspect", str(weights)]) == 2
    os.truncate(weights, 1000)
    assert main(["--inspect", str(weights)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_no_control_character_of_a_file_reaches_the_terminal(finished, tmp_path, capsys):
    _, path = finished
    stored, other = load(path), tmp_path / "other.lmp"
    stored["model"]["state_args"]["tokenizer"]["name"] = "\033[2Jbytes\r\x07"
    write(other, stored)
    for more in ([], ["--json"]):
        assert main(["--inspect", str(other), *more]) == 0
        text = capsys.readouterr().out
        assert "[2Jbytes" in text
        assert all(char.isprintable() or char == "\n" for char in text)
