"""The statistics beside a model: whose they are, and what a run does where they are damaged or missing."""
import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import differences, load, train_plan
from states import MODEL

DAMAGES = {
    "infinity": '{"clock": {}, "totals": {"total_train_samples": Infinity}}', "brackets": "[" * 200_000,
    "digits": '{"clock": {}, "totals": ' + "9" * 5000 + "}",
    "list": "[]", "text": '{"clock": {}, "totals": "many"}', "half": '{"format": 1, "kind": "tr', "empty": ""}


def run_of(path):
    return json.loads(path.read_text())["clock"]["run"]


@pytest.mark.parametrize("text", DAMAGES.values(), ids=DAMAGES)
def test_damaged_statistics_beside_a_damaged_model_are_no_obstacle(again, run, finished, text):
    for path in again.glob("*_stats.json"):
        path.write_text(text)
    (again / f"{MODEL}.lmp").write_bytes(b"PK")
    said = run()
    assert "how many samples are lost is not known" in said
    for path in finished.glob("*_stats.json"):
        assert not differences(json.loads(path.read_text()), json.loads((again / path.name).read_text()))
    for path in again.glob("*_stats.json"):
        path.write_text(text)
    run("--reset-history")


def test_statistics_that_are_missing_or_cut_are_written_again(two_stages, capsys):
    train_plan(capsys, "--save-interval", 10, "--max-samples-this-run", 109, code=75)
    folder = Path("out_gpt")
    one = sorted(folder.glob(f"{MODEL}_step_one_*_stats.json"))
    assert len(one) == 2
    assert json.loads(one[0].read_text())["stages"][0]["done"]
    before = [json.loads(path.read_text()) for path in one]
    one[0].unlink()
    one[1].write_text(one[1].read_text()[:-20])
    train_plan(capsys, "--max-steps", 1, code=75)
    assert [{**json.loads(path.read_text()), "clock": 0} for path in one] == [{**content, "clock": 0} for content in before]
    train_plan(capsys)
    everything = {path: {**json.loads(path.read_text()), "clock": 0} for path in folder.glob("*_stats.json")}
    for path in everything:
        path.unlink()
    assert "is complete" in train_plan(capsys)
    assert {path: {**json.loads(path.read_text()), "clock": 0} for path in folder.glob("*_stats.json")} == everything


def test_statistics_of_another_run_are_not_replaced_silently(two_stages, capsys):
    train_plan(capsys, "--model", "a/m.lmp", "--max-steps", 3, code=75)
    first, stats = load(Path("a/m.lmp"))["runner"]["state"]["clock"]["run"], Path("out_gpt/m_train_stats.json")
    assert run_of(stats) == first
    text = train_plan(capsys, "--model", "b/m.lmp", "--max-steps", 2, code=75)
    assert f"another run ({first})" in text
    second = run_of(stats)
    assert second == load(Path("b/m.lmp"))["runner"]["state"]["clock"]["run"] != first
    text = train_plan(capsys, "--model", "a/m.lmp")
    assert f"another run ({second})" in text
    assert {run_of(path) for path in Path("out_gpt").glob("*_stats.json")} == {first}
    assert "another run" not in train_plan(capsys, "--model", "a/m.lmp")


def test_two_models_of_one_name_do_not_share_an_output_folder_at_once(two_stages, capsys):
    Path("a").mkdir()
    Path("out_gpt").mkdir()
    code = ("import time; from pathlib import Path; from lmplay.checkpoints.lock import Lock; "
            "Lock(Path('a/m.lmp'), Path('out_gpt')).take(); print(flush=True); time.sleep(60)")
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    holder.stdout.readline()
    try:
        for model in ("b/m.lmp", "out_gpt/m.lmp"):
            text = train_plan(capsys, "--model", model, "--out-dir", "out_gpt/../out_gpt", code=2)
            assert f"process {holder.pid} on" in text
        train_plan(capsys, "--model", "b/m.lmp", "--out-dir", "b", "--max-steps", 1, code=75)
    finally:
        holder.kill()
        holder.wait()
    train_plan(capsys, "--model", "b/m.lmp", "--max-steps", 1, code=75)
    assert not [*Path("out_gpt").glob(".*.lock"), *Path("b").glob(".*.lock")]
