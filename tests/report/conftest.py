"""A plan of two stages."""

import pytest
from helpers import sentences, write_plan, write_rows

from lmplay.report import report


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1)} for _ in range(60)])
    write_plan(tmp_path, {"$defaults": {"warmup": 1}, "one": {"dataset": "rows.jsonl", "epochs": 0.5}, "two": {"dataset": "rows.jsonl", "samples": 40}})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    monkeypatch.setattr(report, "_PLAIN_SECONDS", 0.0)
    return tmp_path
