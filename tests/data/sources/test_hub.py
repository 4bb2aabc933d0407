"""Data sets of the hub: how they are opened, and what is said when they cannot be."""
from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest
from files import lines, opened, refused, rows_of, write
from hub_rows import ROWS, as_lines, hub_set

from lmplay import hub as hub_module
from lmplay.data.sources import StreamedSource, open_source, shards
from lmplay.data.sources.shards import ShardedSource
from lmplay.errors import Unavailable, UserError
from lmplay.plan.load import plan_from_dataset


def library_error(name: str, text: str) -> Exception:
    import datasets

    known = getattr(datasets.exceptions, name, None) or getattr(datasets.data_files, name, None)
    return (known or {"ValueError": ValueError, "RuntimeError": RuntimeError, "ConnectionError": ConnectionError}[name])(text)


@pytest.mark.parametrize(("name", "text", "says"), [
    ("DatasetNotFoundError", "Dataset 'o/delegated' doesn't exist on the Hub or cannot be accessed.", "there is no such data set on"),
    ("DatasetNotFoundError", "Dataset 'o/n' is a gated dataset on the Hub. You must be authenticated to access it.", "is gated; accept its terms on"),
    ("DatasetNotFoundError", "Revision 'v9' doesn't exist for dataset 'o/n' on the Hub.", "Revision 'v9' doesn't exist for dataset 'o/n' on the Hub; leave"),
    ("ValueError", "Config name is missing.\nPlease pick one among the available configs: ['en', 'de']\nExample:\n\t`x`", "configs in 'config': en, de."),
    ("ValueError", "BuilderConfig 'x' not found. Available: ['en', 'de']", "configs in 'config': en, de."),
    ("RuntimeError", "Dataset scripts are no longer supported, but found n.py", "needs a loading script"),
    ("EmptyDatasetError", "The directory at hf://datasets/o/n@main doesn't contain any data files", "holds no files"),
    ("RuntimeError", "something else\nwith details", "cannot be opened (RuntimeError: something else)"),
])
def test_each_error_of_the_library_becomes_one_line(stand_in, folder, monkeypatch, name, text, says):
    import datasets

    def fail(*_: Any, **__: Any) -> None:
        raise library_error(name, text)

    monkeypatch.setattr(datasets, "load_dataset_builder", fail)
    line = refused("o/n", folder)
    assert line.startswith("source o/n: ")
    assert says in line


@pytest.mark.parametrize("streaming", [None, True, False])
def test_without_a_network_the_answer_says_so_and_nothing_is_written(folder, monkeypatch, streaming):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"source owner/name: no file .* and the hub cannot be reached for it \(.*--training-plan quickstart"):
        opened("owner/name", folder, streaming=streaming)
    assert not folder.exists()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "(HF_HUB_OFFLINE is set)" in refused("owner/name", folder, streaming=streaming)
    assert not folder.exists()


@pytest.mark.parametrize("streaming", [None, False])
def test_a_hub_that_says_nothing_is_asked_once(folder, monkeypatch, streaming):
    import datasets
    import huggingface_hub

    def load(*_: Any, **__: Any) -> None:
        offline = datasets.config.HF_HUB_OFFLINE and huggingface_hub.constants.HF_HUB_OFFLINE
        asked.append("the cache" if offline else "the hub")
        raise FileNotFoundError

    asked: list[str] = []
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "none"))  # that of the user would be looked into as well
    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr("lmplay.hub._ANSWER_SECONDS", 0.3)
        with pytest.raises(Unavailable, match="the hub cannot be reached for it"):
            opened("owner/name", folder, streaming=streaming)
        silent.settimeout(20)
        silent.accept()[0].close()
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert asked == (["the cache"] if streaming is False else [])
    assert not datasets.config.HF_HUB_OFFLINE
    assert not folder.exists()


def test_offline_what_was_downloaded_is_read_but_no_stream_begun(tmp_path, folder, monkeypatch):
    import datasets

    write(tmp_path / "a.jsonl", lines("x", "y"))
    builder = datasets.load_dataset_builder("json", data_files=str(tmp_path / "a.jsonl"), cache_dir=str(tmp_path / "elsewhere"))
    builder.dataset_name, builder.info.config_name = "name", "default"
    builder.download_and_prepare(str(folder / "hub" / "owner___name" / "default" / "0.0.0" / ("a" * 40)))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert rows_of(opened("owner/name", folder, streaming=False)) == [{"text": "x"}, {"text": "y"}]
    assert "(HF_HUB_OFFLINE is set)" in refused("owner/name", folder)


FORMS = ["parquet", "lines", "csv", "packed"]


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_gives_every_row_and_goes_on_after_any(server, tmp_path, form):
    source = hub_set(f"o/{form}", tmp_path)
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


def test_other_json_and_values_that_need_decoding_are_left_to_the_library(server, hub_root, tmp_path):
    import datasets

    (hub_root / "o/array").mkdir(exist_ok=True)
    (hub_root / "o/array/train.json").write_text(json.dumps(ROWS[:5], indent=1))
    assert list(hub_set("o/array", tmp_path).open()) == ROWS[:5]
    (hub_root / "o/decoded").mkdir(exist_ok=True)
    rows = [{"text": "a", "image": {"bytes": b"x", "path": None}}]
    features = datasets.Features({"text": datasets.Value("string"), "image": datasets.Image(decode=False)})
    datasets.Dataset.from_list(rows, features=features).to_parquet(hub_root / "o/decoded/train.parquet")
    source = hub_set("o/decoded", tmp_path)
    assert not isinstance(source, ShardedSource)
    assert list(source.open()) == rows


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
    source = hub_set(f"o/{form}", tmp_path)
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
    rows, stream = [], hub_set(f"o/{form}", tmp_path).open()
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
    source = hub_set(f"o/{form}", tmp_path)
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


def test_a_request_to_stop_ends_the_waiting(server, tmp_path, monkeypatch, said):
    asked = threading.Event()
    monkeypatch.setattr(hub_module.waiting, "stopped", asked.is_set)
    monkeypatch.setattr(hub_module, "_FIRST_WAIT", 100.0)
    stream = hub_set("o/lines", tmp_path).open()
    server.fault("resolve", status=500, times=None)
    threading.Timer(0.3, asked.set).start()
    with pytest.raises(Unavailable, match="stopped while waiting for the hub"):
        next(stream)
    assert len(said) == 1


def test_the_number_of_rows_is_stated_or_counted(server, hub_root, tmp_path, monkeypatch):
    assert hub_set("o/parquet", tmp_path).n_rows == 200
    assert hub_set("o/lines", tmp_path).n_rows is None
    (hub_root / "o/stated/en").mkdir(parents=True, exist_ok=True)
    (hub_root / "o/stated/en/train.jsonl").write_text(as_lines(ROWS[:9]))
    (hub_root / "o/stated/en/valid.jsonl").write_text(as_lines(ROWS[9:12]))
    (hub_root / "o/stated/README.md").write_text("""---
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
        source = hub_set("o/stated", tmp_path, **keys)
        assert source.n_rows == len(list(source.open())) == count
    assert list(hub_set("o/stated", tmp_path, "validation").open()) == ROWS[9:12]
    monkeypatch.setattr(shards, "_MOST_COUNTED", 3)
    assert hub_set("o/parquet", tmp_path).n_rows is None


def test_opening_is_tried_again_but_not_for_a_hub_that_is_not_there(server, tmp_path, said, monkeypatch):
    server.fault("/api/datasets/o/lines", status=500, times=2)
    assert next(hub_set("o/lines", tmp_path).open()) == ROWS[0]
    assert len(said) == 2
    with pytest.raises(UserError, match="there is no such data set"):
        hub_set("o/nothing", tmp_path)
    server.stop()
    with pytest.raises(Unavailable, match="the hub cannot be reached for it"):
        hub_set("o/parquet", tmp_path)
    assert len(said) == 2


def test_a_name_without_owner_is_a_data_set_of_the_hub(server, tmp_path):
    spec, = plan_from_dataset("alone").stages[0].dataset
    assert spec.path == "alone"
    found = list(open_source(spec, "train", tmp_path / "datasets").open())
    assert found == [{"text": row["text"]} for row in ROWS]  # a column without a usual name is not fetched
    with pytest.raises(UserError, match="Did you mean 'wikitext'"):  # known without a network
        plan_from_dataset("wikitxt")
    with pytest.raises(UserError, match=r"source nowhere: there is no such data set on .*, and no such file or folder here"):
        hub_set("nowhere", tmp_path)


@pytest.mark.parametrize("streaming", [True, False])
def test_what_another_program_has_downloaded_is_not_downloaded_again(server, tmp_path, monkeypatch, streaming):
    from huggingface_hub import HfApi, hf_hub_download

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "shared"))
    for name in HfApi(endpoint=server.url).list_repo_files("o/plain", repo_type="dataset"):
        hf_hub_download("o/plain", name, repo_type="dataset", cache_dir=tmp_path / "shared", endpoint=server.url)
    del server.requests[:]
    source = hub_set("o/plain", tmp_path, streaming=streaming)
    assert (list(source.open()) if streaming else rows_of(source)) == ROWS
    assert not [path for method, path, _ in server.requests if method == "GET" and "/resolve/" in path and path.endswith(".parquet")]
    assert not list((tmp_path / "datasets").rglob("*.parquet"))


def test_a_data_set_that_another_program_has_made_is_read(tmp_path, folder, monkeypatch):
    import datasets

    write(tmp_path / "a.jsonl", lines("x", "y"))
    builder = datasets.load_dataset_builder("json", data_files=str(tmp_path / "a.jsonl"), cache_dir=str(tmp_path / "elsewhere"))
    builder.dataset_name, builder.info.config_name = "name", "default"
    builder.download_and_prepare(str(tmp_path / "shared" / "owner___name" / "default" / "0.0.0" / ("a" * 40)))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "shared"))
    assert rows_of(opened("owner/name", folder, streaming=False)) == [{"text": "x"}, {"text": "y"}]
    assert not (folder / "hub" / "owner___name").exists()


def test_a_name_that_is_almost_one_of_a_folder_is_no_outage(folder, tmp_path, monkeypatch):
    (tmp_path / "my_texts").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    said = refused("my_text", folder)
    assert said.startswith(f"source my_text: no file or folder of that name is in {tmp_path}, and the hub cannot be reached for it (")
    assert "Did you mean 'my_texts'?" in said
    with pytest.raises(Unavailable, match="source other: no file or folder of that name is in"):
        opened("other", folder)
