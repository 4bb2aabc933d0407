"""A checkpoint of the first version goes on as it began: its batches and its held-out rows are those that the first version would have had."""
import gzip
import json

import pytest
from helpers import trainer
from older import OLDER, held_out_of, pieces_of, write_data

from lmplay.data.continuation import Cutter
from lmplay.engine.batches import Batches, Grouping
from lmplay.engine.opening import open_stages, outline
from lmplay.plan.curriculum import Curriculum
from lmplay.plan.load import load_plan, plan_from_json
from lmplay.plan.settings import Settings


@pytest.fixture
def stages(tmp_path):
    plan = load_plan(write_data(tmp_path))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "gpt2ish_model.lmp").write_bytes(gzip.decompress((OLDER / "model.lmp.gz").read_bytes()))
    ahead = outline(Settings(out_dir=str(tmp_path / "out"), batch_size=16, explicit=frozenset({"batch_size"})), plan)
    stages = open_stages(ahead, ahead.curriculum.remaining(), print)
    return ahead, stages


def test_a_stage_that_had_begun_goes_on_as_it_began(stages):
    ahead, opened = stages
    expected = json.loads((OLDER / "batches.json").read_text())
    stage = opened["old"]
    assert held_out_of(stage.data) == expected["held_out"]
    assert stage.data.held_out_rows() == [2, 6000]
    batches = Batches(stage, Cutter(ahead.spec.tokenizer, 48), Grouping(4, 1, 48, True), lambda: 0, 0, accuracy_pieces=4)
    # The rules of cutting are those of now: row 7 of the book has three pieces fewer than it had, so what comes after it moves up.
    alike = expected["batches"][:21]
    assert [pieces_of(batches.next(lambda: False).batch) for _ in alike] == alike
    batches.close()


def test_a_stage_to_come_goes_by_the_rules_of_now(stages):
    ahead, _ = stages
    assert [state["rules"] for state in ahead.curriculum.state()["stages"]] == [1, 3]


@pytest.mark.slow
def test_the_run_goes_on_and_says_so(stages, tmp_path):
    del stages
    found = trainer("--training-plan", "plan.json", "--out-dir", "out", "--batch-size", 16, "--max-steps", 2, cwd=tmp_path)
    assert found.returncode == 75, found.stderr
    assert "stage 'old' began with an older version, and goes on with its batches and held-out rows" in found.stdout
    assert "book.txt (14 rows and 2 held out) + many.jsonl (54,000 rows and 6,000 held out)" in found.stdout


def test_wikitext_that_was_begun_as_lines_goes_on_as_lines():
    plan = plan_from_json({"stages": [{"name": name, "dataset": "wikitext2", "epochs": 1} for name in ("one", "two")]})
    before = plan.to_json()
    for stage in before["stages"]:
        for source in stage["dataset"]:
            del source["rows"]  # as the first version stored it
    stored = {"stages": [{"name": "one", "done": False, "fingerprints": [{}]}, {"name": "two", "done": False, "fingerprints": None}]}
    curriculum = Curriculum(plan)
    curriculum.check_past(before, stored)
    curriculum.restore(stored)
    assert [stage.dataset[0].rows for stage in curriculum.plan.stages] == [None, "articles"]
    again = Curriculum(plan)
    again.check_past(curriculum.state_args()["plan"], curriculum.state())
    again.restore(curriculum.state())
    assert again.plan == curriculum.plan
