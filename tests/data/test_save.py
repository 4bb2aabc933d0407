"""Saving data sets for machines without a network."""
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from files import OWN, TRAIN, Spec, opened, rows_of, write
from hub_rows import ROWS, as_lines, hub_set

from lmplay.data import save
from lmplay.data.save import save_sources
from lmplay.data.sources import IndexedSource, hub
from lmplay.errors import UserError


def test_saved_data_sets_need_no_network(stand_in, tmp_path, folder, monkeypatch):
    write(tmp_path / "a.txt", "local")
    specs = [Spec("owner/name"), Spec("owner/name", split="train[:5]"), Spec("owner/name"), Spec(str(tmp_path / "a.txt")), Spec("builtin:tales")]
    said: list[str] = []
    save_sources(specs, folder, said.append)
    said = [line for line in said if "saved in" in line or "rows in" in line or "saving" in line]
    assert ["saved 39 rows in" in said[0], "saved 9 rows in" in said[1], "is already saved in" in said[2]] == [True] * 3
    assert all("needs no saving" in line for line in said[3:])
    assert len(said) == 5
    assert sorted(path.name for path in (folder / "saved").iterdir()) == ["owner--name", "owner--name--train%5B%3A5%5D"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub._builder.cache_clear()
    for keys in ({}, {"streaming": True}, {"split": "train"}):
        assert rows_of(opened("owner/name", folder, **keys)) == TRAIN
    assert rows_of(opened("owner/name", folder, "validation")) == OWN
    assert rows_of(opened("owner/name", folder, split="train[:5]")) == TRAIN[:5]
    assert opened("owner/name", folder).fingerprint != opened("owner/name", folder, split="train[:5]").fingerprint


def test_a_save_that_fails_leaves_nothing_that_would_be_opened(stand_in, folder, monkeypatch):
    import datasets

    def full(self: Any, path: str, **_: Any) -> None:
        write(Path(path) / "part", "x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(datasets.DatasetDict, "save_to_disk", full)
    with pytest.raises(UserError, match="No space left on device"):
        save_sources([Spec("owner/name")], folder, print)
    assert list((folder / "saved").iterdir()) == []


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
        source = hub_set(spec.path, tmp_path)
        assert isinstance(source, IndexedSource)
        assert [source[i] for i in range(200)] == ROWS
    lines.clear()
    save_sources(plan, tmp_path / "datasets", lines.append)
    assert all("is already saved" in line for line in lines)


SPEC = {"encoding_errors": None, "on_bad_row": None, "row_bytes": None}


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
    source = hub_set("o/plain", tmp_path)
    assert [source[i] for i in range(200)] == ROWS


def test_a_disk_that_is_full_or_too_small_is_one_clear_line(server, tmp_path, plan, monkeypatch):
    import huggingface_hub

    def full(*arguments, **keys):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub, "hf_hub_download", full)
        with pytest.raises(UserError, match=r"^source o/plain: there is no space on the disk \(.*No space left on device\); free some"):
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
    source = hub_set("o/plain", tmp_path)
    assert [source[i] for i in range(200)] == ROWS


@pytest.fixture
def broken(hub_root):
    """Data sets that the library does not read: `o/broken` has lines that are no rows, `o/mixed` fields of several types, `o/none` no row in its first line."""
    odd = [{"text": "a", "n": 1}, {"n": "two", "text": "b", "more": {"x": []}}, {"text": 5}, {"text": "c", "n": [10**30]}]
    own_rows = as_lines(ROWS[7:8]) + "{\n" + as_lines(ROWS[8:9])
    for name, train, own in (("broken", as_lines(ROWS[:5]) + "\n{broken\n[1]\n" + as_lines(ROWS[5:7]).rstrip(), own_rows),
                             ("mixed", as_lines(odd), ""), ("none", "{broken\n" + as_lines(ROWS[:3]), "")):
        write(hub_root / f"o/{name}/train.jsonl", train)
        if own:
            write(hub_root / f"o/{name}/validation.jsonl", own)
    return odd


def saved_lines(name: str, tmp_path: Path, **keys: Any) -> list[str]:
    lines: list[str] = []
    save_sources([Spec(f"o/{name}", **keys)], tmp_path / "datasets", lines.append)
    return lines


def test_lines_that_a_stream_skips_are_skipped_and_counted_where_a_data_set_is_saved(server, broken, tmp_path):
    lines = saved_lines("broken", tmp_path)
    assert "o/broken: 2 rows skipped: not valid JSON (source o/broken: train.jsonl, line 7; source o/broken validation: validation.jsonl, line 2)" in lines
    assert "o/broken: 1 row skipped: no JSON object (source o/broken: train.jsonl, line 8)" in lines
    assert lines[-1].startswith("o/broken: saved 9 rows in ")
    assert saved_lines("mixed", tmp_path)[-1].startswith("o/mixed: saved 4 rows in ")
    server.stop()
    hub._builder.cache_clear()
    for keys in ({}, {"streaming": True}):
        assert rows_of(hub_set("o/broken", tmp_path, **SPEC, **keys)) == ROWS[:7]
        assert rows_of(hub_set("o/broken", tmp_path, "validation", **SPEC, **keys)) == ROWS[7:9]
        assert rows_of(hub_set("o/mixed", tmp_path, **SPEC, **keys)) == broken
        assert hub_set("o/mixed", tmp_path, "validation", **SPEC, **keys) is None
    assert sorted(path.name for path in (tmp_path / "datasets/saved").iterdir()) == ["o--broken", "o--mixed"]


@pytest.mark.parametrize(("name", "keys", "says"), [
    ("none", {}, "^source o/none: cannot be opened"), ("broken", {"split": "train[:3]"}, "^source o/broken: cannot be opened"),
    ("broken", {"on_bad_row": "stop"}, r"^source o/broken: train.jsonl, line 7: not valid JSON .*\(\"on_bad_row\": \"skip\" leaves such rows out\.\)$")])
def test_what_a_stream_does_not_read_is_not_saved(server, broken, tmp_path, name, keys, says):
    with pytest.raises(UserError, match=says):
        saved_lines(name, tmp_path, **keys)
    assert list((tmp_path / "datasets/saved").iterdir()) == []
