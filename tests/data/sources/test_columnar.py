"""Parquet and Arrow files."""
from __future__ import annotations

import pytest
from files import opened, rows_of

TABLE = [{"text": f"row {i} ü", "n": i, "more": {"tags": ["a", None]} if i % 2 else None} for i in range(2500)]


@pytest.mark.parametrize("form", ["parquet", "arrow stream", "arrow file"])
def test_parquet_and_arrow_rows(tmp_path, folder, form):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(TABLE)
    path = tmp_path / f"a.{form.split()[0]}"
    if form == "parquet":
        parquet.write_table(table, path, row_group_size=700)
    else:
        make = pyarrow.ipc.new_stream if "stream" in form else pyarrow.ipc.new_file
        with make(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=300)
    source = opened(path, folder)
    names = ("text",) if form == "parquet" else ("text", "n", "more")  # what is not needed is not read
    assert (source.columns, source.n_rows) == (names, 2500)
    assert [source[i] for i in range(2499, -1, -7)] == [{name: row[name] for name in names} for row in TABLE[2499::-7]]
    assert folder.exists() == (form == "parquet")


def test_a_parquet_file_is_converted_once_and_again_when_it_changes(tmp_path, folder):
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    for count, files in ((3, 1), (3, 1), (4, 2)):
        if count == 4 or not path.exists():
            parquet.write_table(pyarrow.Table.from_pylist(TABLE[:count]), path)
        assert rows_of(opened(path, folder)) == [{"text": row["text"]} for row in TABLE[:count]]
        assert len(list((folder / "converted").iterdir())) == files


def test_of_a_wide_parquet_file_only_what_is_needed_is_kept(tmp_path, folder):
    import os

    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"id": list(range(500)), "vector": [os.urandom(4000) for _ in range(500)], "Text": ["words"] * 500,
                                       "body": ["other"] * 500}), path, row_group_size=50)
    assert rows_of(opened(path, folder))[:1] == [{"Text": "words", "body": "other"}]
    assert rows_of(opened(path, folder, columns={"text": "body"}))[:1] == [{"body": "other"}]
    assert sum(file.stat().st_size for file in (folder / "converted").iterdir()) < path.stat().st_size / 20
    assert opened(path, folder, columns={"text": "nothing"}).columns == ("id", "vector", "Text", "body")
