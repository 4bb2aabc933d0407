"""What a terminal shows while files are looked at for long."""
from __future__ import annotations

import gzip
import io
import sys

import pytest
from files import lines, opened, rows_of, write

from lmplay.data.sources import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


FILES = {"a.txt": b"Words.\n\n" * 200_000, "a.jsonl": lines("x", "y").encode(), "a.csv": b"text\nx\ny\n", "a.txt.gz": gzip.compress(b"Words.\n\n" * 9)}


@pytest.mark.parametrize("name", [*FILES, "folder"])
@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_terminal_shows_what_is_looked_at_when_it_takes_long(tmp_path, folder, monkeypatch, name, seconds):
    monkeypatch.setattr(progress, "_SECONDS", seconds)
    path = tmp_path / "folder"
    for number in range(3) if name == "folder" else ():
        write(path / f"{number}.txt", b"Words.\n")
    if name != "folder":
        path = write(tmp_path / name, FILES[name])
    plain = rows_of(opened(path, folder / "plain"))
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert rows_of(opened(path, folder / "shown")) == plain
    told = sys.stderr.getvalue()
    if seconds:
        assert told == ""
    else:
        assert name in told
        assert "file" in told or "B" in told.replace(name, "")
        assert told.endswith("\r")  # and goes away


def test_nothing_is_shown_where_there_is_no_terminal(tmp_path, folder, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    rows_of(opened(write(tmp_path / "a.txt.gz", FILES["a.txt.gz"]), folder))
    assert capsys.readouterr() == ("", "")
