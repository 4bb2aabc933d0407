"""A folder for data sets, and a hub that is read from this disk."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ahead import CUT

from lmplay.data.sources import hub
from lmplay.data.workers import Workers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The data sets folder, not made yet."""
    return tmp_path / "datasets"


@pytest.fixture
def stand_in(tmp_path, folder, monkeypatch):
    """A hub that has one data set, `owner/name`: three Parquet files to train on, and its own validation rows."""
    import datasets
    import pyarrow
    from pyarrow import parquet

    sizes = {"train-0": 7, "train-1": 25, "train-2": 3, "dev": 4}
    start = 0
    for name, size in sizes.items():
        rows = [{"text": f"row {i}", "n": i} for i in range(start, start + size)]
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet", row_group_size=4)
        start += size
    files = {"train": [str(tmp_path / f"train-{i}.parquet") for i in range(3)], "dev": [str(tmp_path / "dev.parquet")]}
    real = datasets.load_dataset_builder

    def load(path: str, config: str | None, revision: str | None, cache_dir: str) -> Any:
        if path != "owner/name":
            raise datasets.exceptions.DatasetNotFoundError(f"Dataset '{path}' doesn't exist on the Hub or cannot be accessed.")
        builder = real("parquet", data_files=files, cache_dir=cache_dir)
        builder.repo_id = path
        return builder

    monkeypatch.setattr(datasets, "load_dataset_builder", load)
    monkeypatch.setattr(hub, "hub_problem", lambda: None)
    hub._builder.cache_clear()
    yield
    hub._builder.cache_clear()


@pytest.fixture(scope="module")
def workers():
    """Two processes that stay, so that a test need not wait for new ones."""
    with Workers(CUT, 2) as started:
        yield started
