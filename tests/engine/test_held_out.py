"""The held-out samples of a stage: which a validation takes, and the lowest loss that they allow."""
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import TINY, load, train, write_plan, write_rows
from rows import Flow, rows
from stages import open_stage
from texts import BYTES

from lmplay.checkpoints.format import write
from lmplay.data.continuation import Cutter
from lmplay.engine.held_out import FINAL_FACTOR, MOST_CHARACTERS, HeldOut
from lmplay.objectives import load_objective
from lmplay.plan.curriculum import StageState
from lmplay.stats.figures import SPREAD
from lmplay.train.__main__ import main


def load_stats(name="gpt2ish_model_validate", folder="out_gpt"):
    return json.loads(Path(f"{folder}/{name}_stats.json").read_text())


def held_out(data, samples=3, bounded=False, prepare=Cutter(BYTES, 64).cut, stage=None):  # noqa: B008
    settings = SimpleNamespace(validation_samples=samples, validation_is_bounded=bounded, batch_size=4, at_mean=lambda in_steps: settings)
    opened = SimpleNamespace(data=data, settings=settings, state=StageState("one"), stage=stage or data._stage, objective=load_objective("next_token"))
    return HeldOut(opened, prepare)


def texts(units):
    return [unit[0].sample.truth for unit in units]


@pytest.fixture
def data(tmp_path):
    """A stage with 100 rows for validation."""
    write_rows(tmp_path / "train.jsonl", [{"text": "to train on"}] * 5)
    write_rows(tmp_path / "held.jsonl", [{"text": f"text {i}"} for i in range(100)])
    return open_stage(tmp_path, {"dataset": str(tmp_path / "train.jsonl"), "validation": {"dataset": str(tmp_path / "held.jsonl")}})


def test_every_validation_judges_the_same_samples_and_the_end_of_the_stage_more(data):
    found, whole = held_out(data), texts(held_out(data, None).regular())
    assert texts(found.regular()) == texts(found.regular()) == whole[:3]
    assert texts(found.rest()) == whole[3:FINAL_FACTOR * 3]
    assert (found.n_samples, found.n_tokens) == (3, sum(map(len, whole[:3])) + 3)
    assert texts(held_out(data, 50).rest()) == whole[50:]  # no row twice
    assert texts(held_out(data, 200).regular()) == whole


def test_all_goes_through_every_held_out_sample(data):
    found = held_out(data, None)
    assert texts(found.regular()) == texts(found.regular())
    assert sorted(texts(found.regular())) == sorted(f"text {i}" for i in range(100))
    assert not texts(found.rest())
    assert found.n_samples is None


def test_all_of_what_has_no_end_is_refused(corpus, capsys):
    assert main([*TINY, "--dataset", "builtin:tales", "--validation-samples", "all"]) == 2
    assert "found all, and the held-out rows have no end; give a number" in capsys.readouterr().err


@pytest.mark.parametrize(("characters", "regular", "more"), [(MOST_CHARACTERS // 100, 64, 64 * 15), (2 * MOST_CHARACTERS, 32, 32 * 15 // 2 - 8),
                                                             (99 * MOST_CHARACTERS, 1, 0)])
def test_long_texts_make_fewer_samples_by_default(tmp_path, characters, regular, more):
    path = str(write_rows(tmp_path / "long.jsonl", [{"text": "x" * characters}] * (30 if regular == 1 else 1100)))
    found = held_out(open_stage(tmp_path, {"dataset": path, "samples": 100_000, "validation": {"dataset": path}}), 64, bounded=True)
    assert found.n_samples == regular
    assert len(texts(found.rest())) == pytest.approx(more, abs=8)


def test_a_short_stage_has_fewer_samples_by_default_and_those_asked_for_otherwise(tmp_path):
    path = str(write_rows(tmp_path / "short.jsonl", [{"text": "0123456789"}] * 1000))

    def number(bounded=True, **length):
        return held_out(open_stage(tmp_path, {"dataset": path, **length, "validation": {"dataset": path}}), 64, bounded).n_samples

    # eleven validations are 5 % of the work: 11 * n / 3 = 0.05 * 2000
    assert [number(samples=2000), number(samples=100), number(samples=100_000), number(tokens=2000 * 11), number(steps=500)] == [27, 4, 64, 27, 27]
    assert number(False, samples=100) == 64


def test_of_long_texts_the_first_pieces_are_judged_so_that_ten_validations_are_5_percent_of_the_work(tmp_path):
    rows = [{"text": f"Text {number} says word after word. " * 60} for number in range(40)]
    train_rows, held_rows = write_rows(tmp_path / "train.jsonl", rows), write_rows(tmp_path / "held.jsonl", rows[:12])
    data = open_stage(tmp_path, {"dataset": str(train_rows), "epochs": 1, "validation": {"dataset": str(held_rows)}})
    found, whole = held_out(data, 64, bounded=True), held_out(data, 12)
    assert found.n_samples == 12
    tokens = sum(piece.n_truth for row in map(Cutter(BYTES, 64).cut, iter(data.open_samples().next, None)) for piece in row)
    assert 0.03 * tokens < 10 * found.n_tokens / 3 <= 0.05 * tokens
    assert sorted(texts(found.rest())) == sorted(row["text"] for row in rows[:12])  # the end of the stage judges whole texts
    assert all(unit[-1].last for unit in found.rest())
    assert found.identity != whole.identity


def test_a_text_whose_floor_is_known_is_judged_whole(tmp_path):
    data = open_stage(tmp_path, {"dataset": "builtin:tales/4", "samples": 200})
    assert all(unit[-1].last for unit in held_out(data, 64, bounded=True).regular())


def test_without_validation_rows_there_is_none(tmp_path):
    path = str(write_rows(tmp_path / "rows.jsonl", [{"text": "a text"}] * 5))
    nulls = str(write_rows(tmp_path / "nulls.jsonl", [{"text": None}] * 5))
    for validation in (0, {"dataset": nulls}):
        found = held_out(open_stage(tmp_path, {"dataset": path, "validation": validation}))
        assert not found.is_there
        assert not [*found.regular(), *found.rest()]
        assert found.floors() == {"floor_nats_per_token": None, "floor_bits_per_byte": None}


def test_what_identifies_the_samples_changes_with_them(data, tmp_path):
    assert held_out(data).identity == held_out(data).identity
    other = str(write_rows(tmp_path / "other.jsonl", [{"text": f"text {i + 1}"} for i in range(100)]))
    changed = open_stage(tmp_path, {"dataset": str(tmp_path / "train.jsonl"), "validation": {"dataset": other}})
    assert len({found.identity for found in (held_out(data), held_out(data, 4), held_out(data, None), held_out(changed))}) == 4


def test_a_weighted_mix_repeats_no_row(tmp_path):
    small, large = (str(write_rows(tmp_path / f"{name}.jsonl", [{"text": f"{name} {i}"} for i in range(count)])) for name, count in (("a", 20), ("b", 200)))
    data = open_stage(tmp_path, {"dataset": [{"path": small, "weight": 1}, {"path": large, "weight": 1}], "validation": 0.5})
    found = texts(held_out(data, None).regular())
    assert len(found) == len(set(found)) == 110


@pytest.mark.parametrize("weights", [None, (1, 9), (9, 1)])
@pytest.mark.parametrize("other", ["builtin:tales", "stream", None])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("samples", [2, 30, None])
def test_a_short_split_of_a_stream_of_unknown_length_is_judged_once(tmp_path, weights, other, own, samples):
    """Alone, beside a longer stream, and beside a source without end."""
    paths = [str(write_rows(tmp_path / f"{name}.jsonl", rows(size, name))) for name, size in (("a", 30), ("b", 300))]
    sources = [paths[0], *({"builtin:tales": [other], "stream": [paths[1]]}.get(other, []))]
    stage = {"dataset": [{"path": path, **({"weight": weight} if weights else {})} for path, weight in zip(sources, weights or (1, 1), strict=False)],
             "validation": {"fraction": 0.1}, "samples": 20}
    data = open_stage(tmp_path, stage)
    for number, path in enumerate(sources):
        if path != "builtin:tales":
            data.sources[number] = Flow(rows(*((30, "a") if not number else (300, "b"))))
    if own:
        data._own, data._own_names, data._held_out[0] = [(Flow(rows(3, "own")), data._readings[0], data._stage.dataset[0])], data.names[:1], 0.0
    if samples is None and other == "builtin:tales":
        return  # refused
    found = held_out(data, samples)
    regular, more = texts(found.regular()), texts(found.rest())
    assert len({*regular, *more}) == len(regular) + len(more)
    of_short = [text for text in regular + more if text.startswith("own" if own else "a")]
    expected = {None: 3, "stream": 33}.get(other)
    assert len(regular) == (min(samples or 1000, expected) if expected else samples)
    assert len(of_short) <= 3
    assert samples == 2 or len(of_short) == 3 or weights == (1, 9)


def test_runs_of_other_seeds_are_judged_by_the_same_samples(corpus, capsys):
    judged = []
    for seed, more in ((0, ()), (1, ()), (1, ("--validation-seed", 1))):
        train(capsys, "--dataset", "rows.jsonl", "--seed", seed, *more, "--out-dir", f"out{len(judged)}", "--max-steps", 5, "--validation-interval", 5, code=75)
        judged.append(load_stats(folder=f"out{len(judged)}")["judged"]["validation"]["identity"])
    assert judged[0] == judged[1] != judged[2]


def test_the_size_of_a_validation_mini_batch_does_not_change_the_result(corpus, capsys):
    losses = []
    for number, size in enumerate((1, 4, 50)):
        train(capsys, "--dataset", "rows.jsonl", "--validation-batch-size", size, "--out-dir", f"out{number}", "--validation-interval", 20)
        losses.append(load_stats(folder=f"out{number}")["columns"]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[0] == pytest.approx(losses[2], rel=1e-5)


def test_a_checkpoint_whose_validations_took_other_samples_each_time_goes_on_with_the_same_ones(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "epochs": 3, "early_stopping": {"patience": 50}}})
    steps = ("--training-plan", "plan.json", "--validation-interval", 5)
    train(capsys, *steps, "--seed", 3, "--max-steps", 10, code=75)
    path = Path("out_gpt/gpt2ish_model.lmp")
    content = load(path)
    [stage] = content["curriculum"]["state"]["stages"]
    del stage["judged_by"]
    stage["validation_position"] = None
    for settings in (content["runner"]["state_args"]["settings"],):
        for name in ("validation_seed", "validation_samples"):
            del settings[name]
    for stats in (content["runner"]["state"]["stats"], *content["runner"]["state"]["step_stats"].values()):
        del stats["judged"], stats["sets"]
        for name in SPREAD:
            del stats["train"]["rows"][name], stats["validate"]["rows"][name]
        stats["best"] = {"samples": 1, "loss": 0.001}
    stage["lowest_loss"] = stage["best_loss"] = 0.001
    write(path, content)
    text = train(capsys, *steps)
    assert "validations use other samples than before the checkpoint" in text
    assert "The best validation loss and early stopping start again" in text
    after = load(path)
    assert after["runner"]["state_args"]["settings"]["validation_seed"] == 3  # the rows that were held out before are held out now
    assert after["runner"]["state"]["stats"]["best"]["loss"] > 0.001
    assert "other samples" not in train(capsys, *steps)


def test_the_floor_is_what_the_texts_were_drawn_with(tmp_path):
    data = open_stage(tmp_path, {"dataset": "builtin:tales/2", "samples": 100})
    found = held_out(data, 32).floors()
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
