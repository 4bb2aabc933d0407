"""Parquet and JSON lines read from the hub: positions are exact, damaged files named, broken lines skipped."""
import json
import random
from functools import partial
from pathlib import Path

import pytest
from hub_rows import ROWS, LocalFile, as_lines, hub_set, write_parquet
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmplay.data.mixing import Mix
from lmplay.data.reader import Order, open_reader
from lmplay.data.roles import needed_columns
from lmplay.data.samples import choose_reading
from lmplay.data.sources import hub, shards
from lmplay.data.sources.shards import ShardedSource
from lmplay.data.stream import Length, SampleStream
from lmplay.errors import UserError


def in_memory(form: str, parts: list[list[dict]], group: int, folder: Path) -> ShardedSource:
    files = []
    for part in parts:
        if form == "parquet":
            write_parquet(folder / "x.parquet", part, group)
            files.append(LocalFile((folder / "x.parquet").read_bytes()))
        else:
            files.append(LocalFile(as_lines(part).encode()[:None if group % 2 else -1]))  # with and without the last line's end
    return ShardedSource("o/n", form, files, None, {})


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5), group=st.integers(1, 40), form=st.sampled_from(["parquet", "lines"]),
       part=st.integers(1, 40), buffer=st.integers(1, 50), stop=st.integers(0, 250), held_out=st.sampled_from([0.0, 0.3]), shuffle=st.booleans())
def test_epochs_over_shards_are_a_plain_lists_and_a_position_is_exact(tmp_path_factory, sizes, group, form, part, buffer, stop, held_out, shuffle):
    folder = tmp_path_factory.mktemp("shards")
    rows = [{"text": f"row {i}", "n": i} for i in range(sum(sizes))]
    parts, start = [], 0
    for size in sizes:
        parts.append(rows[start:start + size])
        start += size
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_PART", "_FIRST_PART", "_BATCH_ROWS"):
            patch.setattr(shards, name, part)
        source = in_memory(form, parts, group, folder)

        def reader():
            return open_reader(source, Order(seed=7, shuffle=shuffle, buffer=buffer, held_out=held_out))

        def take(reader, count):
            return [reader.next() for _ in range(count)]

        whole = reader()
        epochs = []
        for _ in range(3):
            epochs.append(list(iter(whole.next, None)))
            assert sorted(number for number, _ in epochs[-1]) == sorted({number for number, _ in epochs[-1]})
            assert all(row == rows[number] for number, row in epochs[-1])
        if not held_out:
            assert sorted(number for number, _ in epochs[0]) == list(range(len(rows)))
        assert len({tuple(sorted(number for number, _ in epoch)) for epoch in epochs}) == 1
        if not shuffle:
            assert epochs[0] == epochs[1] == sorted(epochs[0], key=lambda found: found[0])
        elif len(rows) > 20 and buffer > 10:
            assert epochs[0] != epochs[1]
        flat = [found for epoch in epochs for found in [*epoch, None]]
        stopped = reader()
        assert take(stopped, min(stop, len(flat))) == flat[:stop]
        again = reader()
        again.restore(json.loads(json.dumps(stopped.state())))
        assert take(again, len(flat[stop:])) == flat[stop:]


def test_of_parquet_only_the_columns_that_are_read_are_fetched(tmp_path, monkeypatch):
    import pyarrow
    from pyarrow import parquet

    monkeypatch.setattr(shards, "_GAP", 1000)
    rows = [{"title": f"title {i}", "picture": random.Random(i).randbytes(5000), "text": f"text {i}", "messages": [{"role": "user", "content": f"{i}"}],
             "vector": random.Random(-i).randbytes(5000)} for i in range(300)]
    files = []
    for part, text in ((rows[:200], "text"), (rows[200:], "body")):  # a shard may name its columns in another way
        table = pyarrow.Table.from_pylist(part).rename_columns([text if name == "text" else name for name in part[0]])
        parquet.write_table(table, tmp_path / "x.parquet", row_group_size=50, compression="none")
        files.append(LocalFile((tmp_path / "x.parquet").read_bytes()))
    source = ShardedSource("o/n", "parquet", files, None, {}, partial(needed_columns, roles=None))
    wanted = [{"title": row["title"], "body" if i >= 200 else "text": row["text"], "messages": row["messages"]} for i, row in enumerate(rows)]
    assert list(source.open()) == wanted
    footers = 2 * 2 * shards._FOOTER
    assert sum(file.read_bytes for file in files) - footers < sum(len(file.data) for file in files) / 20
    stream = source.open()
    for _ in range(170):
        next(stream)
    assert list(source.open(stream.state())) == wanted[170:]
    chosen = ShardedSource("o/n", "parquet", files[:1], None, {}, partial(needed_columns, roles={"text": "title"}))
    assert list(chosen.open()) == [{"title": row["title"]} for row in rows[:200]]


@pytest.mark.parametrize("form", ["parquet", "lines"])
def test_going_on_costs_the_same_wherever_it_is(tmp_path, form, monkeypatch):
    monkeypatch.setattr(shards, "_PART", 3000)
    monkeypatch.setattr(shards, "_FIRST_PART", 3000)
    monkeypatch.setattr(shards, "_FOOTER", 3000)
    draw = random.Random(1)
    source = in_memory(form, [[{"text": f"{draw.getrandbits(400):x}", "n": i} for i in range(5000)]], 200, tmp_path)
    file, stream, costs = source._files[0], source.open(), []
    for goal in (50, 2500, 4900):
        while (row := next(stream))["n"] < goal:
            pass
        shards._footer.cache_clear()
        file.read_bytes = 0
        assert next(source.open(stream.state()))["n"] == row["n"] + 1
        costs.append(file.read_bytes)
    assert max(costs) < 1.1 * min(costs)
    assert max(costs) < len(file.data) / 5


def test_damaged_files_are_named(server, hub_root, tmp_path, said):
    (hub_root / "o/damaged").mkdir(exist_ok=True)
    good = (hub_root / "o/parquet/data/train-00000-of-00004.parquet").read_bytes()
    (hub_root / "o/damaged/train-0.parquet").write_bytes(good)
    for bad in (good[:-50], good[:100] + b"\0" * 300 + good[400:], b"", b"PAR1" * 30):
        (hub_root / "o/damaged/train-1.parquet").write_bytes(bad)
        hub._builder.cache_clear()
        with pytest.raises(UserError, match=r"source o/damaged: train-1.parquet: is damaged, or no Parquet file"):
            list(hub_set("o/damaged", tmp_path).open())
    (hub_root / "o/broken").mkdir(exist_ok=True)
    (hub_root / "o/broken/train.jsonl").write_text(as_lines(ROWS[:5]) + "\n{broken\n" + as_lines(ROWS[5:7]))
    for state in (None, [0, len(as_lines(ROWS[:2])), 2]):
        stream = hub_set("o/broken", tmp_path).open(state)
        with pytest.raises(UserError, match=r"source o/broken: train.jsonl, line 7: not valid JSON"):
            list(stream)
        assert [next(stream), next(stream)] == ROWS[5:7]
    assert not said


@settings(max_examples=40, deadline=None)
@example(bad={0}, buffer=1, stop=1, part=1, shuffle=False)  # broken from the first line on
@given(bad=st.sets(st.integers(0, 59)), buffer=st.integers(1, 50), stop=st.integers(0, 70), part=st.integers(1, 200), shuffle=st.booleans())
def test_broken_lines_of_a_stream_are_rows_that_can_be_skipped(bad, buffer, stop, part, shuffle):
    lines = [b"{broken\n" if i in bad else b"[1]\n" if i - 1 in bad else b'{"text": "caf\xe9 %d"}\n' % i for i in range(61)]
    good = [i for i, line in enumerate(lines) if b"text" in line]

    def samples():
        source = ShardedSource("o/n", "lines", [LocalFile(b"".join(lines))], None, {})
        mix = Mix([open_reader(source, Order(seed=7, shuffle=shuffle, buffer=buffer))])
        return SampleStream(mix, [choose_reading("o/n", ["text"], None)], Length(epochs=2), [source])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_PART", part)
        patch.setattr(shards, "_first_keys", lambda files: ("text",))
        whole = samples()
        found, positions = [], [whole.state()]
        while good and (sample := whole.next()) is not None:
            found.append((sample.row, sample.truth))
            positions.append(whole.state())
        assert sorted(found) == sorted([(i, f"caf\ufffd {i}") for i in good] * 2)
        assert sum(whole.skipped.values()) == (2 * (61 - len(good)) if good else 0)
        assert whole.replaced["characters"] == 2 * len(good)
        for reason, locations in whole.locations.items():
            for location in locations:
                name, number = location.split(", line ")
                assert name == "source o/n: file"
                assert lines[int(number) - 1] == {"not valid JSON": b"{broken\n", "no JSON object": b"[1]\n"}[reason]
        stop = min(stop, len(found))
        again = samples()
        again.restore(json.loads(json.dumps(positions[stop])))
        assert [(sample.row, sample.truth) for sample in iter(again.next, None)] == found[stop:] if good else True
        assert not good or again.skipped == whole.skipped
