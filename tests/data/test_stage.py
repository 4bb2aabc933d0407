"""The data of a stage: held-out rows, shuffling, and positions that are carried over to changed data."""
from __future__ import annotations

import pytest
from helpers import write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import Flow, rows
from stages import open_data, open_stage, refused_data
from texts import BYTES

from lmplay.data.batcher import Batcher
from lmplay.data.continuation import Cutter
from lmplay.data.stage import StageData
from lmplay.errors import UserError
from lmplay.plan.curriculum import DATA_RULES
from lmplay.plan.schema import Stage


def held_out(data):
    stream = data.open_validation()
    return sorted((sample.source, sample.truth) for sample in (stream.next() for _ in range(stream.rows_per_epoch)))


def test_a_row_is_held_out_wherever_its_source_is_read(tmp_path):
    write_rows(tmp_path / "a.jsonl", rows(40, "a"))
    write_rows(tmp_path / "b.jsonl", rows(40, "b"))
    a, b = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    alone = held_out(open_stage(tmp_path, {"dataset": [b], "shuffle": {"seed": 9}}))
    mixed = held_out(open_stage(tmp_path, {"dataset": [a, b]}))
    assert [text for _, text in alone] == [text for source, text in mixed if source == 1]
    assert held_out(open_stage(tmp_path, {"dataset": [a, b]}, seed=1)) == mixed
    assert held_out(open_stage(tmp_path, {"dataset": [a, b]}, validation_seed=1)) != mixed
    trained = {sample.truth for sample in iter(open_stage(tmp_path, {"dataset": [a, b]}).open_samples().next, None)}
    assert len(trained) == 72
    assert not trained & {text for _, text in mixed}


def test_validation_of_a_stage_of_its_own_is_read_once(tmp_path):
    write_rows(tmp_path / "a.jsonl", rows(20, "a"))
    write_rows(tmp_path / "b.jsonl", rows(20, "b"))
    write_rows(tmp_path / "v.jsonl", rows(7, "v"))
    data = open_stage(tmp_path, {"dataset": [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], "validation": {"dataset": str(tmp_path / "v.jsonl")}})
    assert [text for _, text in held_out(data)] == [f"v{i}" for i in range(7)]
    assert len(list(iter(data.open_samples().next, None))) == 40  # nothing held out of the others


def order_of(data, epochs=2):
    stream = data.open_samples()
    found = [sample.truth for sample in iter(stream.next, None)]
    return [found[i * len(found) // epochs:(i + 1) * len(found) // epochs] for i in range(epochs)]


@pytest.mark.parametrize("shuffle", [True, {"seed": 5}, {"buffer": 3}, False])
def test_what_a_plan_says_of_shuffling(tmp_path, shuffle):
    write_rows(tmp_path / "a.jsonl", [{"text": f"{i}"} for i in range(50)])

    def open_stage(shuffle, seed=0, path="a.jsonl"):
        stage = {"name": "one", "dataset": str(tmp_path / path), "epochs": 2, "validation": 0, "shuffle": shuffle}
        return StageData(Stage.model_validate(stage), tmp_path / "datasets", seed)

    first, second = order_of(open_stage(shuffle))
    assert sorted(first) == sorted(second) == sorted(str(i) for i in range(50))
    assert order_of(open_stage(shuffle)) == [first, second]
    assert (first == [str(i) for i in range(50)]) == (shuffle is False)
    assert (first != second) == (shuffle is not False)
    assert (order_of(open_stage(shuffle, seed=1))[0] != first) == (shuffle in (True, {"buffer": 3}))


@pytest.mark.parametrize("change", ["fewer", "more", "shorter", "a stream", "from a stream"])
@pytest.mark.parametrize("stop", range(1, 9))
def test_a_position_carries_over_to_other_data(tmp_path, change, stop):
    """Also while samples wait for a batch with room for them, which the other data does not have."""
    texts = [{"text": "abc def ghi. " * (1 + i * 7 % 5)} for i in range(40)]
    path = write_rows(tmp_path / "a.jsonl", texts)
    data = open_data(path, on_bad_row="skip")
    if change == "from a stream":
        data.sources[0] = Flow(texts)
    before, batcher = data.fingerprints(), Batcher(data.open_samples(), Cutter(BYTES, 30).cut, 4)
    batch = None
    for _ in range(stop):
        batch = batcher.next()
    assert batch is not None
    write_rows(path, {"fewer": texts[:2], "more": texts * 3, "shorter": [{"text": "abc."}] * 40}.get(change, texts))
    data = open_data(path)
    if change == "a stream":
        data.sources[0] = Flow(texts)
    batcher = Batcher(data.open_samples(), Cutter(BYTES, 30).cut, 4)
    batcher.restore(data.carry_over(batch.position, before, 0))
    pieces = [piece for found in iter(batcher.next, None) for piece in found.pieces]
    ended = [piece.sample.row for piece in pieces if piece.last]
    read = batch.position["samples"]["mix"]["readers"][0]
    first = {"a stream": 0, "from a stream": batch.position["read"]}.get(change, read["offset"])
    assert sorted(ended) == list(range(first, data.sources[0].n_rows or 40))
    assert "".join(piece.truth for piece in pieces).count("abc") == sum(data_row["text"].count("abc") for data_row in _rows_of(data)[first:])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.tuples(st.integers(1, 30), st.integers(2, 30)), changed=st.integers(1, 40), weights=st.sampled_from([None, (1.0, 1.0), (1.0, 3.0), (0.3, 0.7)]),
       stopping=st.sampled_from(["first_exhausted", "all_exhausted"]), epochs=st.sampled_from([1, 2, 0.5, 2.7]), held_out=st.sampled_from([0, 0.1, 0.4]),
       streamed=st.tuples(st.booleans(), st.booleans()), stop=st.integers(0, 60))
def test_the_samples_of_a_stage_are_counted_exactly_where_its_data_has_changed(tmp_path, sizes, changed, weights, stopping, epochs, held_out, streamed, stop):
    def opened(*sizes):
        paths = [str(write_rows(tmp_path / f"{i}.jsonl", rows(size))) for i, size in enumerate(sizes)]
        sources = [{"path": path, **({"weight": weights[i]} if weights else {})} for i, path in enumerate(paths)]
        data = open_stage(tmp_path, {"dataset": sources, "stopping": stopping, "epochs": epochs, "validation": held_out})
        for i, size in enumerate(sizes):
            if streamed[i]:
                data.sources[i] = Flow(rows(size), known=True)
                data.sources[i].fingerprint = {"rows": size}
        return data

    try:
        data = opened(*sizes)
        batcher = Batcher(data.open_samples(), Cutter(BYTES, 30).cut, 4)
        before, batch, trained = data.fingerprints(), None, 0
        while trained < stop and (found := batcher.next()) is not None:
            batch = found
            trained += len(batch.samples)
        data = opened(changed, sizes[1])
        stream = data.open_samples()
    except UserError:  # a source without rows to train on
        return
    if batch is None:
        return
    batcher = Batcher(stream, Cutter(BYTES, 30).cut, 4)
    batcher.restore(data.carry_over(batch.position, before, trained))
    total, half = stream.total, None
    for number, batch in enumerate(iter(batcher.next, None)):
        trained += len(batch.samples)
        if number == 1:
            half = data.open_samples()
            half.restore(batch.position["samples"])
    assert total == trained
    assert half is None or half.total == total


def _rows_of(data: StageData) -> list[dict]:
    source = data.sources[0]
    return source.all if isinstance(source, Flow) else [source[i] for i in range(source.n_rows)]


@pytest.mark.parametrize(("path", "held_out"), [("builtin:tales/1?seed=1", [8, 18, 25, 32, 46, 50, 69, 71]),
                                                ("builtin:tales/2", [5, 15, 20, 37, 49, 55, 62, 71])])
def test_the_rows_that_are_held_out_are_those_of_all_versions(tmp_path, path, held_out):
    """Else a run that goes on would be validated on rows that it has been trained on."""
    stage = Stage.model_validate({"name": "one", "dataset": path, "samples": 10})
    validation = StageData(stage, tmp_path, 0, validation_seed=3).open_validation()
    assert [validation.next().row for _ in held_out] == held_out


@pytest.mark.parametrize("streamed", [False, True])
def test_no_more_than_five_thousand_rows_are_held_out(tmp_path, streamed, monkeypatch):
    monkeypatch.setattr("lmplay.data.stage.MOST_HELD_OUT", 50)  # instead of 5,000
    path = str(write_rows(tmp_path / "a.jsonl", rows(3000, "a")))

    def open_rows(**stage):
        data = open_stage(tmp_path, {"dataset": path, **stage})
        if streamed:
            data.sources[0] = Flow(rows(3000, "a"))
        return data

    data = open_rows()
    trained = [sample.row for sample in iter(data.open_samples().next, None)]
    stream = data.open_validation()
    held = [sample.row for sample in iter(stream.next, None)]
    assert len(held) == 50
    assert sorted({*trained, *held}) == list(range(3000))
    assert len(trained) == 2950
    assert (data.rows_per_epoch(), data.held_out_rows()) == (([None], [None]) if streamed else ([2950], [50]))
    assert (max(held) < 500) == streamed  # a stream need not be read far for them, and of other rows they are from everywhere
    assert streamed or open_rows(validation=0.1).held_out_rows() == [300]  # what the plan says counts


def test_a_plan_says_how_long_the_rows_of_a_text_are(tmp_path):
    text = "\n\n".join(f"Paragraph {i}. " + "It goes on. " * (i % 9) for i in range(200))
    (tmp_path / "a.txt").write_text(text)
    data = open_data(tmp_path / "a.txt", row_bytes=300)
    rows = [data.sources[0][i]["text"] for i in range(data.sources[0].n_rows)]
    assert "".join(rows) == text
    assert all(len(row) <= 300 and row.endswith("\n\n") for row in rows[:-1])
    assert data.fingerprints() != open_data(tmp_path / "a.txt").fingerprints()
    assert open_data(tmp_path / "a.txt").rows_per_epoch() == [1]
    write_rows(tmp_path / "a.jsonl", [{"text": "a"}])
    assert "'row_bytes' is for text files" in refused_data(tmp_path / "a.jsonl", row_bytes=300)


def first_held_out(folder, path, count=64, rules=DATA_RULES, validation_seed=0, **keys):
    """Give the rows of the first held-out samples."""
    stage = Stage.model_validate({"name": "s", "dataset": str(path), **keys})
    stream = StageData(stage, folder / "datasets", 0, validation_seed, rules).open_validation()
    return [stream.next().row for _ in range(count)]


@pytest.mark.parametrize("keys", [{}, {"validation": 0.05}, {"shuffle": False}])
def test_the_first_held_out_samples_are_from_the_whole_file(tmp_path, keys):
    path = write_rows(tmp_path / "a.jsonl", rows(60_000, "a"))
    first = first_held_out(tmp_path, path, **keys)
    assert sorted({row * 8 // 60_000 for row in first}) == list(range(8))  # from each eighth
    every = first_held_out(tmp_path, path, 3000 if keys.get("validation") else 5000, **keys)
    assert every[:64] == first
    assert first_held_out(tmp_path, path, validation_seed=1, **keys) != first
    before = first_held_out(tmp_path, path, len(every), rules=2, **keys)
    assert before == sorted(every)  # which rows are held out has not changed


def test_the_first_samples_of_a_validation_file_are_from_the_whole_of_it(tmp_path):
    path, other = (write_rows(tmp_path / f"{name}.jsonl", rows(count, name)) for name, count in (("a", 10), ("v", 2000)))
    first = first_held_out(tmp_path, path, validation={"dataset": str(other)})
    assert len({row * 8 // 2000 for row in first}) == 8
    assert first_held_out(tmp_path, path, validation={"dataset": str(other)}, rules=2) == list(range(64))
    assert sorted(first_held_out(tmp_path, path, 2000, validation={"dataset": str(other)})) == list(range(2000))
