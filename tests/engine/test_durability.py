"""What is promised to survive a power cut is on the disk before it gets its name, and has its name on the disk before the run says that it is saved."""
import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest
from helpers import train_plan, write_plan, write_rows
from pairs import rows_of_pairs

from lmplay.files import link_atomic, make_folder, write_text
from lmplay.report.report import Report

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


CALLS = ("fsync", "replace", "rename", "link", "mkdir")


class Disk:
    """Records which contents have been synced, and every new name of a file that had not been, or whose folder was not synced in time."""

    def __init__(self, root: Path):
        self.root = root
        self.synced: dict[int, str] = {}
        self.unsynced_names: set[Path] = set()  # names of which the folder has not been synced since
        self.faults: list[str] = []
        self.named: list[str] = []
        self.said = 0
        self._lock = threading.RLock()
        self._calls = {name: getattr(os, name) for name in CALLS}

    def fsync(self, handle):
        with self._lock:
            self._calls["fsync"](handle)
            path, status = Path(os.readlink(f"/proc/self/fd/{handle}")), os.fstat(handle)
            if stat.S_ISDIR(status.st_mode):
                self.unsynced_names = {name for name in self.unsynced_names if name.parent != path}
            else:
                self.synced[status.st_ino] = digest(path)

    def replace(self, source, target, **options):
        with self._lock:
            self._named("replace", source, target)
            self._calls["replace"](source, target, **options)

    def rename(self, source, target, **options):
        with self._lock:
            self._named("rename", source, target)
            self._calls["rename"](source, target, **options)

    def link(self, source, target, **options):
        with self._lock:
            self._named("link", source, target)
            self._calls["link"](source, target, **options)

    def mkdir(self, path, *arguments, **options):
        with self._lock:
            self._calls["mkdir"](path, *arguments, **options)
            self._add(path)

    def saved(self):
        """The run says that it is saved."""
        with self._lock:
            self.said += 1
            self.faults += [f"said to be saved before the folder of {name} was synced" for name in self.unsynced_names if name.suffix == ".lmp"]

    def _named(self, call, source, target):
        source, target = Path(source).absolute(), Path(target).absolute()
        if self.root in target.parents:
            self.named.append(target.name)
            promised = ".damaged-" not in target.name and target.suffix != ".csv"  # lines of a table are written one by one
            if promised and self.synced.get(source.stat().st_ino) != digest(source):
                self.faults.append(f"{call} of {source.name} to {target.name} before its content was synced")
            if not target.name.endswith(".tmp"):
                self._add(target)

    def _add(self, path):
        if self.root in (path := Path(path).absolute()).parents:
            self.unsynced_names.add(path)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def disk(tmp_path, monkeypatch):
    disk = Disk(tmp_path)
    for name in CALLS:
        monkeypatch.setattr(os, name, getattr(disk, name))
    return disk


def test_a_run_saves_in_this_order(two_stages, capsys, monkeypatch, disk):
    """Checkpoints, older states, best states, statistics, settings, weights alone; also where it goes on, falls back, and starts anew."""
    original = Report.saved
    monkeypatch.setattr(Report, "saved", lambda self, path: (disk.saved(), original(self, path)))
    write_rows(Path("few.jsonl"), [{"text": "The cat sat."}] * 30)
    write_plan(Path(), {"one": {"dataset": "few.jsonl", "early_stopping": {"patience": 9}}, "two": {"dataset": "few.jsonl", "samples": 10}})
    flags = ["--save-interval", 10, "--validation-interval", 10, "--track", "csv"]
    train_plan(capsys, *flags, "--max-steps", 3, code=75)
    os.truncate("out_gpt/gpt2ish_model.lmp", 1000)
    train_plan(capsys, *flags, "--save-weights-only", "weights/w.lmp")
    train_plan(capsys, *flags, "--resume", "out_gpt/gpt2ish_model.one.lmp", "--lr", "0.01")
    train_plan(capsys, *flags, "--reset-history", "--max-steps", 3, code=75)
    assert disk.faults == []
    assert disk.unsynced_names == set()
    assert disk.said >= 8
    name = "gpt2ish_model"
    assert {f"{name}.lmp", f"{name}.prev-1.lmp", f"{name}.prev-2.lmp", f"{name}.one.lmp", f"{name}.best.lmp", f"{name}.one.best.lmp", f"{name}.old-1.two.lmp",
            f"{name}_train_stats.json", f"{name}_step_two_validate_stats.json", f"{name}_settings.json", "w.lmp"} <= set(disk.named)


def test_the_reference_of_a_stage_is_written_in_this_order(tmp_path, monkeypatch, capsys, disk):
    monkeypatch.chdir(tmp_path)
    write_rows(Path("pairs.jsonl"), rows_of_pairs(10))
    write_plan(Path(), {"one": {"dataset": "pairs.jsonl", "steps": 1, "validation": 0, "objective": "dpo"}})
    train_plan(capsys)
    assert disk.faults == []
    assert disk.unsynced_names == set()
    assert any(name.endswith(".jsonl") for name in disk.named)


@pytest.mark.parametrize("links", [True, False])
def test_files_are_written_and_linked_in_this_order(tmp_path, monkeypatch, disk, links):
    def refuse(*_, **options):
        raise OSError("no links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    make_folder(tmp_path / "a" / "b", "folder")
    write_text(tmp_path / "a" / "b" / "x", "content")
    write_text(tmp_path / "a" / "b" / "x", "another")
    link_atomic(tmp_path / "a" / "b" / "x", tmp_path / "a" / "y")
    assert disk.faults == []
    assert disk.unsynced_names == set()
    assert len(disk.named) == (4 if links else 3)


def test_a_sync_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    """A disk says late that it could not write."""
    write_text(tmp_path / "x", "old")

    def fail(handle):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        write_text(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
