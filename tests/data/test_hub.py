"""The hub: streams that survive it, positions in them, numbers of rows, and data sets saved for when it is away."""
import gzip
import json
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import ENVIRONMENT, TINY, compare_runs, trainer, write_plan, write_rows
from hub_server import HubServer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmplay import hub as hub_module
from lmplay.data import save
from lmplay.data.mixing import Mix
from lmplay.data.reader import Order, open_reader
from lmplay.data.samples import choose_reading
from lmplay.data.save import save_sources
from lmplay.data.sources import IndexedSource, StreamedSource, hub, open_source, shards
from lmplay.data.sources.remote import RemoteFile
from lmplay.data.sources.shards import ShardedSource
from lmplay.data.stream import Length, SampleStream
from lmplay.errors import Unavailable, UserError
from lmplay.hub import hub_problem

ROWS = [{"text": f"Row {i}: {'water ' * (i % 7)}ends.", "n": i} for i in range(200)]
PARTS = [ROWS[:60], [], ROWS[60:61], ROWS[61:200]]


def write_parquet(path: Path, rows: list[dict], group: int = 16) -> None:
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    schema = pyarrow.schema([("text", pyarrow.string()), ("n", pyarrow.int64())])
    parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), path, row_group_size=group)


def as_lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Data sets of 200 rows in several forms; `csv` and `packed` are read by the library, the others by us."""
    root = tmp_path_factory.mktemp("hub")
    for number, part in enumerate(PARTS):
        write_parquet(root / f"o/parquet/data/train-{number:05d}-of-00004.parquet", part)
        for name, data in (("lines", as_lines(part).encode()), ("packed", gzip.compress(as_lines(part).encode()))):
            path = root / f"o/{name}/train-{number}.jsonl{'.gz' if name == 'packed' else ''}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data if part or name == "lines" else gzip.compress(as_lines(ROWS[:0]).encode()))
        if part:
            write_parquet(root / f"o/plain/train-{number}.parquet", part)
    (root / "o/packed/train-1.jsonl.gz").unlink()  # the library reads no file without rows
    (root / "o/csv").mkdir()
    (root / "o/csv/train.csv").write_text("text,n\n" + "".join(f"{row['text']},{row['n']}\n" for row in ROWS))
    return root


@pytest.fixture
def server(root, monkeypatch):
    import datasets
    import huggingface_hub

    with HubServer(root) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", server.url)
        monkeypatch.setattr(hub_module, "_FIRST_WAIT", 0.01)
        monkeypatch.setattr(hub_module, "_LONGEST_WAIT", 0.05)
        hub._builder.cache_clear()
        yield server
    hub._builder.cache_clear()


@pytest.fixture
def said(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(hub_module.waiting, "say", lines.append)
    return lines


def opened(name: str, tmp_path: Path, role: str = "train", **keys):
    spec = SimpleNamespace(**{"path": name, "config": None, "split": None, "revision": None, "streaming": None, **keys})
    return open_source(spec, role, tmp_path / "datasets")


FORMS = ["parquet", "lines", "csv", "packed"]


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_gives_every_row_and_goes_on_after_any(server, tmp_path, form):
    source = opened(f"o/{form}", tmp_path)
    assert isinstance(source, StreamedSource)
    assert source.columns == (None if form == "csv" else ("text", "n"))
    assert isinstance(source, ShardedSource) == (form in ("parquet", "lines"))
    stream = source.open()
    states = []
    for row in ROWS:
        states.append(stream.state())
        assert next(stream) == row
    assert next(stream, None) is None
    assert next(stream, None) is None
    assert list(source.open(stream.state())) == []
    for count in {0, 1, 15, 16, 17, 59, 60, 61, 62, 199} if form in ("parquet", "lines") else {0, 61, 150}:
        state = json.loads(json.dumps(states[count]))
        assert len(json.dumps(state)) < 1000
        again = source.open(state)
        assert again.state() == state
        assert list(again) == ROWS[count:]


def test_other_json_and_values_that_need_decoding_are_left_to_the_library(server, root, tmp_path):
    import datasets

    (root / "o/array").mkdir(exist_ok=True)
    (root / "o/array/train.json").write_text(json.dumps(ROWS[:5], indent=1))
    assert list(opened("o/array", tmp_path).open()) == ROWS[:5]
    (root / "o/decoded").mkdir(exist_ok=True)
    rows = [{"text": "a", "image": {"bytes": b"x", "path": None}}]
    features = datasets.Features({"text": datasets.Value("string"), "image": datasets.Image(decode=False)})
    datasets.Dataset.from_list(rows, features=features).to_parquet(root / "o/decoded/train.parquet")
    source = opened("o/decoded", tmp_path)
    assert not isinstance(source, ShardedSource)
    assert list(source.open()) == rows


class LocalFile(RemoteFile):
    """A file that is read from memory, as if from the hub."""

    def __init__(self, data: bytes):
        super().__init__("o/n", "o/n", "main", "file")
        self._size = len(data)
        self.data, self.read_bytes = data, 0

    def read(self, start, end):
        self.read_bytes += len(self.data[start:end])
        return self.data[start:end]


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


FAULTS = {"status 500": {"status": 500}, "status 503": {"status": 503, "times": 3}, "a limit": {"status": 429, "headers": {"Retry-After": "0"}},
          "a cut": {"cut": 7}, "a web page": {"body": b"<html>please log in"}, "a slow answer": {"delay": 1.2},
          "too few bytes": {"short": 5}}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_that_passes_loses_or_repeats_a_row(server, tmp_path, said, monkeypatch, form, fault):
    import huggingface_hub

    if form in ("csv", "packed") and fault in ("a web page", "too few bytes"):
        pytest.skip("the library takes it for data")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.4)
    source = opened(f"o/{form}", tmp_path)
    stream, rows = source.open(), []
    for place in (0, 60, 61):  # the second and third file begin there
        while len(rows) < place:
            rows.append(next(stream))
        server.fault("resolve", **FAULTS[fault])
    assert rows + list(stream) == ROWS
    assert said
    assert all(line.startswith(f"source o/{form}: the hub does not answer (") and line.endswith(" s; the position is kept") for line in said)
    if fault == "status 503" and form in ("parquet", "lines"):
        assert len(said) % 3 == 0


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_hub_that_goes_and_comes_back(server, tmp_path, said, form):
    rows, stream = [], opened(f"o/{form}", tmp_path).open()
    back = threading.Timer(0.3, server.start)
    for row in stream:
        rows.append(row)
        if len(rows) == 1:
            server.stop()
            back.start()
    back.join()
    assert rows == ROWS


@pytest.mark.parametrize("form", FORMS)
def test_a_hub_that_stays_away_is_said_and_the_stream_goes_on_when_it_is_back(server, tmp_path, monkeypatch, said, form):
    monkeypatch.setenv("LMP_HUB_PATIENCE", "0.2")
    source = opened(f"o/{form}", tmp_path)
    stream = source.open()
    server.stop()
    rows = []
    with pytest.raises(Unavailable, match=rf"source o/{form}: the hub does not answer \(.*\), after \d+ s of trying") as caught:
        rows += iter(stream.__next__, None)
    assert caught.value.exit_code == 75
    assert said
    server.start()
    state = stream.state()
    given = len(rows)
    assert list(stream) == ROWS[given:]
    assert list(source.open(state)) == ROWS[given:]


def test_waits_double_and_the_hub_may_ask_for_longer_ones(monkeypatch, said):
    slept: list[float] = []
    clock = [0.0]
    monkeypatch.setattr(hub_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(hub_module.time, "sleep", lambda seconds: (slept.append(seconds), clock.__setitem__(0, clock[0] + seconds)))
    patience = hub_module.Patience("source a/b")

    def waits(asked=None):
        slept.clear()
        patience.wait(hub_module.Outage("HTTP 500", asked))
        return round(sum(slept), 3)

    assert [waits() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    with pytest.raises(Unavailable, match=r"source a/b: the hub does not answer \(HTTP 500\), after 91 s"):
        waits()
    patience.renew()
    assert [waits(), waits(290.0), waits()] == [1, 290, 4]
    with pytest.raises(Unavailable, match="it asks to wait 3600 s"):
        waits(3600.0)
    assert said[8] == "source a/b: the hub does not answer (HTTP 500), trying again in 290 s; the position is kept"


def test_a_request_to_stop_ends_the_waiting(server, tmp_path, monkeypatch, said):
    asked = threading.Event()
    monkeypatch.setattr(hub_module.waiting, "stopped", asked.is_set)
    monkeypatch.setattr(hub_module, "_FIRST_WAIT", 100.0)
    stream = opened("o/lines", tmp_path).open()
    server.fault("resolve", status=500, times=None)
    threading.Timer(0.3, asked.set).start()
    with pytest.raises(Unavailable, match="stopped while waiting for the hub"):
        next(stream)
    assert len(said) == 1


@pytest.mark.parametrize(("status", "says"), [(404, "the hub does not have it"), (403, "access is refused"), (401, "access is refused")])
def test_what_waiting_cannot_mend_is_said_at_once(server, tmp_path, said, status, says):
    for form, file in (("parquet", "data/train-00003-of-00004.parquet"), ("lines", "train-3.jsonl")):
        source = opened(f"o/{form}", tmp_path)
        server.fault(file, status=status, times=None)
        stream, rows = source.open(), []
        with pytest.raises(UserError, match=rf"source o/{form}: {file}: {says} \(HTTP {status}\)"):
            rows += iter(stream.__next__, None)
    assert not said


def test_damaged_files_are_named(server, root, tmp_path, said):
    (root / "o/damaged").mkdir(exist_ok=True)
    good = (root / "o/parquet/data/train-00000-of-00004.parquet").read_bytes()
    (root / "o/damaged/train-0.parquet").write_bytes(good)
    for bad in (good[:-50], good[:100] + b"\0" * 300 + good[400:], b"", b"PAR1" * 30):
        (root / "o/damaged/train-1.parquet").write_bytes(bad)
        hub._builder.cache_clear()
        with pytest.raises(UserError, match=r"source o/damaged: train-1.parquet: is damaged, or no Parquet file"):
            list(opened("o/damaged", tmp_path).open())
    (root / "o/broken").mkdir(exist_ok=True)
    (root / "o/broken/train.jsonl").write_text(as_lines(ROWS[:5]) + "\n{broken\n" + as_lines(ROWS[5:7]))
    for state in (None, [0, len(as_lines(ROWS[:2])), 2]):
        stream = opened("o/broken", tmp_path).open(state)
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


# Numbers of rows

def test_the_number_of_rows_is_stated_or_counted(server, root, tmp_path, monkeypatch):
    assert opened("o/parquet", tmp_path).n_rows == 200
    assert opened("o/lines", tmp_path).n_rows is None
    (root / "o/stated/en").mkdir(parents=True, exist_ok=True)
    (root / "o/stated/en/train.jsonl").write_text(as_lines(ROWS[:9]))
    (root / "o/stated/en/valid.jsonl").write_text(as_lines(ROWS[9:12]))
    (root / "o/stated/README.md").write_text("""---
configs:
- config_name: en
  data_files:
  - {split: train, path: en/train.jsonl}
  - {split: validation, path: en/valid.jsonl}
dataset_info:
- config_name: en
  features:
  - {name: text, dtype: string}
  - {name: n, dtype: int64}
  splits:
  - {name: train, num_bytes: 100, num_examples: 9}
  - {name: validation, num_bytes: 100, num_examples: 3}
---
""")
    for keys, count in (({}, 9), ({"config": "en"}, 9), ({"split": "train+validation"}, 12)):
        source = opened("o/stated", tmp_path, **keys)
        assert source.n_rows == len(list(source.open())) == count
    assert list(opened("o/stated", tmp_path, "validation").open()) == ROWS[9:12]
    monkeypatch.setattr(shards, "_MOST_COUNTED", 3)
    assert opened("o/parquet", tmp_path).n_rows is None


# Whether the hub is there

@pytest.mark.parametrize(("fault", "reason"), [
    ({}, None), ({"status": 401}, None), ({"status": 404}, None), ({"status": 429}, None), ({"status": 503}, "HTTP 503"),
    ({"body": b"<html>Welcome to our network"}, "answers with a web page"), ({"cut": 0}, "")])
def test_signs_of_life(server, fault, reason):
    if fault:
        server.fault("/api/datasets", **fault)
    found = hub_problem()
    assert found is None if reason is None else reason in found


def test_opening_is_tried_again_but_not_for_a_hub_that_is_not_there(server, tmp_path, said, monkeypatch):
    server.fault("/api/datasets/o/lines", status=500, times=2)
    assert next(opened("o/lines", tmp_path).open()) == ROWS[0]
    assert len(said) == 2
    with pytest.raises(UserError, match="there is no such data set"):
        opened("o/nothing", tmp_path)
    server.stop()
    with pytest.raises(Unavailable, match="the hub cannot be reached for it"):
        opened("o/parquet", tmp_path)
    assert len(said) == 2


# Saving

@pytest.fixture
def plan():
    return [SimpleNamespace(path=f"o/{name}", config=None, split=None, revision=None, streaming=None) for name in ("plain", "lines")]


def test_saved_data_sets_are_read_when_the_hub_is_gone(server, tmp_path, plan):
    lines: list[str] = []
    save_sources(plan, tmp_path / "datasets", lines.append)
    assert [line for line in lines if "saved 200 rows in" in line] == [lines[3], lines[7]]
    assert lines[0].startswith("o/plain: downloading 3 files, 0.0 MiB")
    server.stop()
    hub._builder.cache_clear()
    for spec in plan:
        source = opened(spec.path, tmp_path)
        assert isinstance(source, IndexedSource)
        assert [source[i] for i in range(200)] == ROWS
    lines.clear()
    save_sources(plan, tmp_path / "datasets", lines.append)
    assert all("is already saved" in line for line in lines)


class Stop(BaseException):
    pass


@pytest.mark.parametrize("moment", ["downloading", "writing"])
def test_saving_can_be_stopped_and_done_again(server, tmp_path, plan, monkeypatch, moment):
    import datasets

    def stop(*arguments, **keys):
        (Path(arguments[1]) / "part").mkdir(parents=True)
        raise Stop

    lines: list[str] = []
    with monkeypatch.context() as patch:
        if moment == "writing":
            patch.setattr(datasets.DatasetDict, "save_to_disk", stop)
        else:
            real, count = save.download, iter(range(10))
            patch.setattr(save, "download", lambda *rest: stop("", tmp_path / "x") if next(count) == 2 else real(*rest))
        with pytest.raises(Stop):
            save_sources(plan, tmp_path / "datasets", lines.append)
    assert "not saved; what has been downloaded is kept" in lines[-1]
    assert not [path for path in (tmp_path / "datasets/saved").iterdir() if path.name != "x"]
    (tmp_path / "datasets/saved/.o--plain.tmp").mkdir()  # as a killed process leaves it
    server.requests.clear()
    save_sources(plan, tmp_path / "datasets", lines.append)
    fetched = [path for method, path, _ in server.requests if method == "GET" and path.endswith(".parquet")]
    assert len(fetched) == (1 if moment == "downloading" else 0)
    assert sorted(path.name for path in (tmp_path / "datasets/saved").iterdir()) == ["o--lines", "o--plain"]
    server.stop()
    source = opened("o/plain", tmp_path)
    assert [source[i] for i in range(200)] == ROWS


def test_a_disk_that_is_full_or_too_small_is_one_clear_line(server, tmp_path, plan, monkeypatch):
    import huggingface_hub

    def full(*arguments, **keys):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub, "hf_hub_download", full)
        with pytest.raises(UserError, match=r"^source o/plain: there is no room on the disk \(.*No space left on device\); make some"):
            save_sources(plan, tmp_path / "datasets", print)
    with monkeypatch.context() as patch:
        patch.setattr(save.shutil, "disk_usage", lambda folder: SimpleNamespace(free=5000))
        with pytest.raises(UserError, match=r"^source o/plain: needs at least 0\.0 MiB in .*, and 0\.0 MiB are free"):
            save_sources(plan, tmp_path / "datasets", print)
    assert server.asked(".parquet") == 0
    assert list((tmp_path / "datasets/saved").iterdir()) == []


def test_saving_waits_for_the_hub(server, tmp_path, plan, said):
    server.fault(".parquet", status=503, times=2, method="GET")
    server.fault(".parquet", cut=20, method="GET")
    save_sources(plan[:1], tmp_path / "datasets", print)
    assert len(said) == 2  # the client itself goes on after a cut
    source = opened("o/plain", tmp_path)
    assert [source[i] for i in range(200)] == ROWS


# Whole runs

@pytest.fixture
def texts(root):
    """A data set of many small files: a block of rows is made of several."""
    for number in range(10):
        folder = root / "o/texts"
        folder.mkdir(exist_ok=True)
        rows = [{"text": f"The cat number {i} sat down. The dog {i * 7} did not."} for i in range(number * 32, number * 32 + 32)]
        write_rows(folder / f"train-{number}.jsonl", rows)
    (root / "o/texts/README.md").write_text("""---
dataset_info:
  features: [{name: text, dtype: string}]
  splits: [{name: train, num_bytes: 1, num_examples: 320}]
---
""")


@pytest.fixture
def run(server, texts, tmp_path):
    """Run `lmp_trainer` as a user does, over 1.5 epochs of the data set."""
    plan = write_plan(tmp_path, {"s": {"dataset": "o/texts", "epochs": 1.5, "shuffle": {"buffer": 50}}})
    arguments = ["--training-plan", plan, *TINY, "--batch-size", "8", "--save-interval", "1000", "--validation-interval", "24"]

    def run(out, *more, run=trainer, **keys):
        environment = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), **keys}
        return run(*arguments, *more, "--out-dir", out, env=environment)

    return run


@pytest.mark.slow
def test_a_run_ends_when_the_hub_stays_away_and_goes_on_as_if_nothing_had_been(server, run, tmp_path):
    whole = run(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    reads = server.asked("train-")
    assert reads > 15
    server.fault("train-", status=502, times=None, after=int(0.7 * reads))
    ended = run(tmp_path / "parts", LMP_HUB_PATIENCE="2")
    server.faults.clear()
    assert ended.returncode == 75, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout.count("source o/texts: the hub does not answer (HTTP 502), trying again in 1 s; the position is kept") == 1
    assert "the hub does not answer (HTTP 502), after" in ended.stderr
    assert "The state is saved; to go on when it is back:\n  lmp_trainer --training-plan" in ended.stderr
    assert run(tmp_path / "parts").returncode == 0
    assert compare_runs(tmp_path / "whole", tmp_path / "parts") == []


@pytest.mark.slow
def test_ctrl_c_is_heard_while_the_hub_is_waited_for(server, run, tmp_path):
    server.fault("train-", status=429, headers={"Retry-After": "500"}, times=None, after=14)
    process = run(tmp_path / "out", run=lambda *arguments, env: subprocess.Popen(
        [sys.executable, "-m", "lmplay.train", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**ENVIRONMENT, **env}))
    said = []
    for line in process.stdout:
        said.append(line)
        if "trying again in 500 s" in line:
            process.send_signal(signal.SIGINT)
            break
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, (said, out, error)
    assert "Traceback" not in error
    assert list((tmp_path / "out").glob("*.lmp"))


@pytest.mark.slow
def test_a_plan_that_has_been_saved_needs_no_hub(server, run, tmp_path):
    saved = run(tmp_path / "out", "--save-datasets")
    assert saved.returncode == 0, saved.stderr
    assert "o/texts: saved 320 rows in" in saved.stdout
    server.stop()
    done = run(tmp_path / "out")
    assert done.returncode == 0, done.stderr
