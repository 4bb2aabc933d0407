"""Plain text: the rows joined are the text."""
from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import pytest
from files import few, lines, opened, rows_of, write
from hypothesis import given
from hypothesis import strategies as st

from lmplay.data.sources import index
from lmplay.data.sources.spans import Spans
from lmplay.data.sources.text import BLOCK, TextFiles, TextScan
from lmplay.errors import UserError

pieces = st.lists(st.one_of(st.sampled_from(["\n", "\r\n", "\n\n", "\r\n\r\n", "\n \t\n", "\r", " ", "𝄞", "é", "ไทย"]), st.text(max_size=12)), max_size=40)


def table_of(path: Path, limit: int) -> TextFiles:
    spans = Spans()
    return TextFiles(TextScan(path.name, path.parent, [path.name], spans, limit), 0, 1, spans)


@few
@given(parts=pieces, bom=st.booleans(), limit=st.integers(1, 40))
def test_the_rows_of_a_text_joined_are_the_text(tmp_path, parts, bom, limit):
    data = "".join(parts).encode()
    path = write(tmp_path / "a.txt", (b"\xef\xbb\xbf" if bom else b"") + data)
    table = table_of(path, limit)
    texts = [table[i]["text"] for i in range(len(table))]
    start = 3 if not bom and data.startswith(b"\xef\xbb\xbf") else 0
    assert "".join(texts).encode() == data[start:]
    assert all(0 < len(text.encode()) <= max(limit, 4) for text in texts)
    assert len(table) == 1 or len(data) - start > limit or not data[start:]


@few
@given(data=st.binary(max_size=60), limit=st.integers(1, 12))
def test_bytes_that_are_not_utf8_become_the_same_text_in_rows_as_in_one_piece(tmp_path, data, limit):
    marks = (b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"%PDF-", b"\x28\xb5\x2f\xfd", b"PAR1", b"ARROW1", b"\xff\xff\xff\xff", b"\xff\xd8\xff", b"\x80", b"PK",
             b"BZ")
    if data.startswith(marks):
        return  # another kind of file
    table = table_of(write(tmp_path / "a.txt", data), limit)
    assert "".join(table[i]["text"] for i in range(len(table))) == data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_big_text_is_cut_at_blank_lines(tmp_path, folder, newline):
    text = "".join(f"paragraph {i} ".ljust(37 * (i % 90), "x") + newline * 2 for i in range(200))
    source = opened(write(tmp_path / "book.md", text.encode()), folder)
    texts = [row["text"] for row in rows_of(source)]
    assert "".join(texts) == text
    assert source.n_rows > 5
    assert all(one.endswith(newline * 2) and len(one) <= BLOCK for one in texts)
    assert source.columns == ("text",)
    assert not folder.exists()


def test_a_long_paragraph_is_cut_at_a_line_end_and_a_long_line_between_characters(tmp_path, folder):
    verses = "".join(f"verse {i}\n" for i in range(4000))
    assert all(row["text"].endswith("\n") for row in rows_of(opened(write(tmp_path / "verses.txt", verses), folder)))
    line = "é" * BLOCK
    texts = [row["text"] for row in rows_of(opened(write(tmp_path / "line.txt", line), folder))]
    assert (len(texts), "".join(texts)) == (2, line)


@few
@given(text=st.text("aé\U0001f600 \t\r\n", max_size=80) | st.text("a\n ", max_size=80), limit=st.integers(1, 20))
def test_rows_end_at_the_last_blank_line_that_fits(tmp_path, text, limit):
    """The cuts are those of a plain search for all blank lines: what a file's rows are must not change, as checkpoints know them by number."""
    data = text.encode()
    table = table_of(write(tmp_path / "a.txt", data), limit)
    rows, start = [], 0
    while len(data) - start > limit:
        window = data[start:start + limit]
        ends = [found.end() for found in re.finditer(rb"\n[ \t\r]*\n", window)] or [window.rfind(b"\n") + 1]
        after = ends[-1]
        if not after:
            borders = [at for at in range(start + 1, min(len(data), start + limit + 4) + 1) if at == len(data) or data[at] & 0xC0 != 0x80]
            after = max([at for at in borders if at <= start + limit] or borders[:1]) - start
        rows.append(data[start:start + after].decode())
        start += after
    rows += [data[start:].decode()] if start < len(data) else []
    assert [table[i]["text"] for i in range(len(table))] == rows


def test_many_texts_are_one_table_with_other_files_among_them_in_their_order(tmp_path, folder):
    expected = []
    for i in range(620):
        name, text = f"{i % 7}/{i:03}.txt", "" if i == 300 else f"text {i}\n" * (1 + i % 3)
        write(tmp_path / "in" / name, gzip.compress(text.encode()) if i == 310 else b"\xef\xbb\xbf" * (i == 320) + text.encode())
        expected += [(name, text)] if text else []
    write(tmp_path / "in" / "3" / "315b.jsonl", lines("one", "two"))
    expected += [("3/315b.jsonl", "one"), ("3/315b.jsonl", "two")]
    expected.sort(key=lambda found: found[0])
    source = opened(tmp_path / "in", folder)
    assert [row["text"] for row in rows_of(source)] == [text for _, text in expected]
    assert all(name in source.location(i) for i, (name, _) in enumerate(expected) if name != f"{310 % 7}/310.txt")
    assert source.fingerprint["files"] == len(source.fingerprint["listed"]) == 621


def test_what_is_known_of_many_texts_is_kept_and_never_stale(tmp_path, folder, monkeypatch):
    for i in range(400):
        os.utime(write(tmp_path / "in" / f"{i:03}.txt", f"text {i}"), ns=(10**18, 10**18))
    monkeypatch.setattr(index, "_SETTLED_SECONDS", -60)
    texts = [row["text"] for row in rows_of(opened(tmp_path / "in", folder))]
    with monkeypatch.context() as patch:
        patch.setattr(TextScan, "_look_at", None)  # reading one would fail
        kept = opened(tmp_path / "in", folder)
        assert [row["text"] for row in rows_of(kept)] == texts
    os.utime(write(tmp_path / "in" / "007.txt", "text 8"), ns=(10**18, 10**18 + 1))
    changed = opened(tmp_path / "in", folder)
    assert [row["text"] for row in rows_of(changed)] == ["text 8" if i == 7 else text for i, text in enumerate(texts)]
    assert changed.fingerprint != kept.fingerprint
    with pytest.raises(UserError, match=r"007\.txt: has changed"):
        kept[7]
    (tmp_path / "in" / "008.txt").rename(tmp_path / "in" / "0080.txt")
    assert [row["text"] for row in rows_of(opened(tmp_path / "in", folder))] == ["text 8" if i == 7 else text for i, text in enumerate(texts)]
