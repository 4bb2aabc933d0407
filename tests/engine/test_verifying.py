"""Several ranks verify a state together: each file is read by one of them, and what one finds wrong is wrong for all."""
import json
import os
import shutil
from pathlib import Path

import pytest
import several
from helpers import compare_runs, write_plan
from states import flip
from together import MODEL, start, train, write_data

from lmplay.checkpoints.format import STATE

pytestmark = pytest.mark.skipif(os.name == "nt", reason="forked processes")
SHARDED = ("--checkpoint-format", "sharded")
# Verifies each state of a folder, and says what came out and which files this rank has read to verify them.
VERIFY = """
import json, sys
from pathlib import Path
from lmplay.checkpoints import format
from lmplay.engine import verifying
from lmplay.engine.interrupt import Interrupt
from lmplay.engine.together import join
from lmplay.launch import launch
from lmplay.plan.settings import Settings

read, verify_file = [], verifying.verify_file
verifying.verify_file = lambda one: read.append(str(one.path)) or verify_file(one)
out = sys.stdout
with join(launch(), Interrupt()) as accord:
    found = {}
    for state in sys.argv[1:]:
        verified = verifying.verify_states(Settings(resume=state), Path("none.lmp"), [], accord)
        format.verify = lambda state: "verified alone"
        try:
            found[state] = verified(Path(state))
        except OSError as error:
            found[state] = f"{type(error).__name__} {error.errno}"
    out.write(json.dumps([found, read]))
    out.flush()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    return tmp_path


def test_damage_in_the_share_of_any_rank_is_found_by_all_and_each_file_is_read_once(folder):
    train(3, "out", "--max-steps", 2, *SHARDED, code=75)
    train(1, "file", "--max-steps", 1, code=75)
    whole, expected = f"{folder}/out/{MODEL}", {}
    for number, name in enumerate(sorted(path.name for path in Path(whole).iterdir())):
        copy = shutil.copytree(whole, folder / f"damaged{number}.lmp")
        flip(copy / name)
        expected[str(copy)] = False
    gone = shutil.copytree(whole, folder / "gone.lmp")
    next(gone.glob("shard-00002*")).unlink()
    headless = shutil.copytree(whole, folder / "headless.lmp")
    (headless / STATE).unlink()
    expected |= {whole: True, f"{folder}/file/{MODEL}": True, str(gone): False, str(headless): "FileNotFoundError 2"}
    codes, outputs, complaints = several.run(3, "-c", VERIFY, *expected)
    assert codes == [0] * 3, complaints
    found, read = zip(*map(json.loads, outputs), strict=True)
    assert list(found) == [expected] * 3
    of_whole = [[path for path in one if path.startswith(f"{whole}/")] for one in read]
    assert sorted(path for one in of_whole for path in one) == sorted(map(str, Path(whole).iterdir()))
    assert all(of_whole)  # each has a share
    assert sum(one.count(f"{folder}/file/{MODEL}") for one in read) == 1


def test_the_weights_below_an_adapter_are_read_by_one_rank_where_they_are_right(folder):
    pytest.importorskip("peft")
    stage = {"dataset": "rows.jsonl", "validation": 0}
    write_plan(folder, {"one": {**stage, "samples": 5}, "two": {**stage, "samples": 15, "adapter": {"kind": "lora", "rank": 2}}})
    train(2, "out", "--max-steps", 3, code=75)
    note = """
from lmplay.checkpoints import base
identify = base.identify
def noted(state):
    with open("identified.txt", "a") as file:
        print(rank, file=file)
    return identify(state)
base.identify = noted
"""
    codes, outputs, complaints = several.finish(start(2, "out", "--max-steps", 1, more=note))
    assert codes == [75, 75], (outputs, complaints)
    assert Path("identified.txt").read_text().split() == ["0"]
    flip(next(Path("out/bases").iterdir()))
    said = train(2, "out", code=2)
    assert said.count("the weights below it, out/bases/") == 1
    assert "cannot be read" in said


@pytest.mark.slow
def test_a_damaged_shard_lets_all_ranks_go_on_from_the_state_before(folder):
    flags = ("--save-interval", "2steps", *SHARDED)
    train(2, "whole", *flags)
    train(2, "harmed", "--max-steps", 6, *flags, code=75)
    flip(Path("harmed", MODEL, "shard-00002-of-00002.safetensors"))
    said = train(2, "harmed", *flags)
    assert said.count("its checksum is wrong") == 1
    assert "continuing from gpt2ish_model.prev-1.lmp" in said
    for path in Path("harmed").glob("*.damaged-*"):
        shutil.rmtree(path)
    for out in ("whole", "harmed"):
        for path in Path(out).glob("*.prev-*"):
            shutil.rmtree(path)
    assert compare_runs(Path("whole"), Path("harmed")) == []
