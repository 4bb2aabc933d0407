"""The held-out samples of a stage: which a validation takes, and the lowest loss that they allow."""
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import load, sentences, train, write_plan, write_rows
from stages import open_stage
from texts import BYTES

from lmplay.data.continuation import Cutter
from lmplay.engine.held_out import FINAL_CHARACTERS, FINAL_FACTOR, HeldOut
from lmplay.plan.curriculum import StageState


def test_the_last_validation_is_not_longer_than_its_stage(corpus, capsys):
    write_rows(corpus / "long.jsonl", [{"text": sentences(1000)}] * 64)
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "validation": {"dataset": "long.jsonl"}}})
    train(capsys, "--training-plan", "plan.json", "--validation-interval", 0)
    rows = load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["validate"]["rows"]
    assert 64 * 2000 <= rows["n_bytes"][0] <= 64 * 2000 + len(sentences(1000))


def held_out(data, samples=3, position=None, prepare=Cutter(BYTES, 64).cut):  # noqa: B008
    stage = SimpleNamespace(data=data, settings=SimpleNamespace(validation_samples=samples), state=StageState("one", validation_position=position))
    return HeldOut(stage, prepare)


@pytest.fixture
def data(tmp_path):
    """A stage with 100 rows for validation."""
    write_rows(tmp_path / "train.jsonl", [{"text": "to train on"}] * 5)
    write_rows(tmp_path / "held.jsonl", [{"text": f"text {i}"} for i in range(100)])
    return open_stage(tmp_path, {"dataset": str(tmp_path / "train.jsonl"), "validation": {"dataset": str(tmp_path / "held.jsonl")}})


def test_regular_validations_go_round_and_on_from_what_has_been_judged(data):
    first = held_out(data, 40)
    assert [sample.truth for sample in first.regular()] == [f"text {i}" for i in range(40)]
    first.settle()
    position = first._stage.state.validation_position
    for going_on in (first, held_out(data, 40, position)):
        assert [sample.truth for sample in going_on.regular()] == [f"text {i}" for i in range(40, 80)]
    assert [sample.truth for sample in first.regular()][20:22] == ["text 0", "text 1"]  # not settled: taken all the same
    assert first._stage.state.validation_position == position


def test_the_validation_that_ends_a_stage_takes_the_same_samples_in_every_run(data):
    one, other = held_out(data), held_out(data)
    for _ in range(2):
        other.regular()
        other.settle()
    assert [sample.truth for sample in one.final()] == [sample.truth for sample in other.final()] == [f"text {i}" for i in range(FINAL_FACTOR * 3)]
    assert len(held_out(data, 50).final()) == 100  # no row twice


@pytest.mark.parametrize(("characters", "taken"), [(FINAL_CHARACTERS, FINAL_FACTOR), (2 * FINAL_CHARACTERS, FINAL_FACTOR // 2), (99 * FINAL_CHARACTERS, 1)])
def test_long_texts_make_the_last_validation_of_fewer_samples(tmp_path, characters, taken):
    path = str(write_rows(tmp_path / "long.jsonl", [{"text": "x" * characters}] * 30))
    assert len(held_out(open_stage(tmp_path, {"dataset": path, "validation": {"dataset": path}}), 1).final()) == taken


def test_without_validation_rows_there_is_none(tmp_path):
    path = str(write_rows(tmp_path / "rows.jsonl", [{"text": "a text"}] * 5))
    nulls = str(write_rows(tmp_path / "nulls.jsonl", [{"text": None}] * 5))
    for validation in (0, {"dataset": nulls}):
        found = held_out(open_stage(tmp_path, {"dataset": path, "validation": validation}))
        assert not found.is_there
        assert found.regular() == found.final() == []
        found.settle()
        assert found.floors() == {"floor_nats_per_token": None, "floor_bits_per_byte": None}


def test_the_floor_is_what_the_texts_were_drawn_with(tmp_path):
    data = open_stage(tmp_path, {"dataset": "builtin:tales/2", "samples": 100})
    found = held_out(data).floors()
    stream = data.open_validation()
    samples = [stream.next() for _ in range(32)]
    nats, n_bytes = sum(sample.nats for sample in samples), sum(len(sample.truth.encode()) for sample in samples)
    pieces = sum(len(Cutter(BYTES, 64).cut(sample)) for sample in samples)
    assert found["floor_nats_per_token"] == pytest.approx(nats / (n_bytes + len(samples)))  # each text has an end token, however many its pieces
    assert found["floor_bits_per_byte"] == pytest.approx(nats / n_bytes / 0.6931471805599453)
    assert pieces > len(samples)


def test_samples_with_nothing_to_learn_are_no_validation(data):
    assert held_out(data).is_there
    assert not held_out(data, prepare=lambda sample: []).is_there
