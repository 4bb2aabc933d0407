"""What a run knows of its past: it goes on where it was, also from older files, and is written."""
import json

import pytest
from filled import fill, fill_sources

from lmplay.stats.run_record import RunRecord
from lmplay.stats.totals import ModelStats

NO_FLOORS = {"floor_nats_per_token": None, "floor_bits_per_byte": None}


def begun(seconds=3.0):
    """A record of a run in its second stage, saved and resumed."""
    record = RunRecord("m", seconds=seconds)
    record.begin_stage("one", {"floor_nats_per_token": 0.5, "floor_bits_per_byte": 0.2})
    fill(record.stats)
    record.stage_stats["one"] = ModelStats()
    fill(record.stage_stats["one"])
    record.reach()
    record.note_save()
    record.begin_stage("two", NO_FLOORS)
    record.stage_stats["two"] = ModelStats()
    fill_sources(record.stage_stats["two"])
    record.note_resume()
    record.note_memory(7)
    return record


def copy_of(record, **changes):
    restored, state = RunRecord(record.model), json.loads(json.dumps(record.state()))
    state["clock"] = {key: value for key, value in {**state["clock"], **changes}.items() if value != "gone"}
    restored.restore(state)
    return restored


def test_a_record_goes_on_where_it_was():
    record = begun()
    restored = copy_of(record)
    assert restored.state() == record.state()
    assert (restored.progress, restored.stage) == (record.progress, "two") == ((4, 40, 400, 3.0), "two")
    for one in (record, restored):
        fill(one.stats)
        one.reach()
        one.note_save()
    assert restored.state() == record.state()


def test_a_state_is_a_copy():
    record = begun()
    state = record.state()
    before = json.dumps(state)
    fill(record.stats)
    record.reach()
    record.note_save()
    record.note_resume()
    assert json.dumps(state) == before


def test_a_record_of_version_0_1_is_gone_on_with():
    restored = copy_of(begun(), saves="gone", peak_memory="gone")
    assert (restored.saves, restored.peak_memory, restored.seconds, len(restored.resumes)) == ([], None, 3.0, 1)
    restored.note_save()
    restored.note_memory(5)
    assert (restored.saves, restored.peak_memory) == ([{"samples": 40, "tokens": 400, "seconds": 3.0}], 5)


@pytest.mark.parametrize(("peaks", "expected"), [([], None), ([None], None), ([3, None], 3), ([None, 3, 2], 3), ([2, 3], 3)])
def test_the_peak_is_the_most_that_is_known(peaks, expected):
    record = RunRecord()
    for peak in peaks:
        record.note_memory(peak)
    assert record.peak_memory == expected


def test_the_files_of_a_stage_have_the_marks_within_it(tmp_path):
    record = begun()
    record.stats.totals["total_train_samples"] += 10
    record.reach()
    record.note_save()
    record.stages[1]["from_samples"] = 45  # the mark of the first save is before it
    record.write(tmp_path, "e")
    whole, stage = (json.loads((tmp_path / f"{name}_train_stats.json").read_text()) for name in ("m", "m_step_two"))
    assert [mark["samples"] for mark in whole["clock"]["saves"]] == [40, 50]
    assert [mark["samples"] for mark in stage["clock"]["saves"]] == [50]
    assert (len(whole["clock"]["resumes"]), stage["clock"]["resumes"]) == (1, [])
    assert [entry["name"] for entry in stage["stages"]] == ["two"]
    assert not list(tmp_path.glob("*_step_one_*"))
