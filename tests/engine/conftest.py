"""Texts to train on."""
from __future__ import annotations

import pytest
from helpers import sentences, write_rows
from two_sources import make_plan


@pytest.fixture
def texts_folder(tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    write_rows(tmp_path / "texts" / "a.jsonl", [{"text": sentences(1 + i % 3, f"cat{i}")} for i in range(60)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(30)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.fixture
def two_sources(tmp_path, monkeypatch):
    """Two sources of short rows; a plan of one stage that reads them in turns, in order, with all rows to train on."""
    monkeypatch.chdir(tmp_path)
    return make_plan()
