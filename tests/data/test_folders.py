"""Folders as users have them, at random: each row is trained on, is validation, is counted as skipped, or its file is named as left out."""
from __future__ import annotations

import csv
import gzip
import json
import re
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from lmplay.data.roles import PAIRS, TEXT
from lmplay.data.stage import StageData
from lmplay.errors import UserError
from lmplay.plan.schema import Stage

WORDS = ("train", "test", "dev", "val", "valid", "eval", "diary", "Training", "my", "notes", "readme", "data", "a", "b", "1", "00000-of-00002")
FORMS = (*((name,) for name in TEXT), *PAIRS, ("messages",), ("instruction", "input", "output"), ("title", "text"))
ENDINGS = (".txt", ".md", ".jsonl", ".json", ".csv", ".tsv", ".parquet")
words = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from("-_. ")), min_size=1, max_size=3).map(lambda parts: "".join(map("".join, parts))[:-1])
nothing = st.sampled_from([None, "", " \n"])


@dataclass(frozen=True)
class File:
    """One file: the form of each row, or None for one without anything to learn; how they are written, and how their fields are filled up."""

    folders: tuple[str, ...]
    name: str
    ending: str
    contents: str
    rows: tuple[tuple[str, ...] | None, ...]
    separator: str = ","
    packed: bool = False
    filler: str | None = None

    @property
    def path(self) -> str:
        return "/".join((*self.folders, self.name + self.ending + ".gz" * (self.packed and self.ending[1:2] not in ("", "p"))))


@st.composite
def files(draw: Any) -> File:
    ending = draw(st.sampled_from((*ENDINGS, *ENDINGS, ".pdf")))
    contents = draw(st.sampled_from((ending, ending, ending, ".jsonl", ".parquet")) if ending not in (".txt", ".md", ".pdf") else st.just(ending))
    most = draw(st.sampled_from(FORMS))
    form = st.just(most) | st.just(most) | st.just(most) | st.sampled_from(FORMS) | st.none()
    rows = draw(st.lists(form, max_size=12))
    if contents in (".csv", ".tsv"):
        rows = [(most if most != ("messages",) else ("text",)) if row else None for row in rows]
    folders = draw(st.lists(words, max_size=2))
    return File(tuple(folders), draw(words), ending, contents, tuple(rows), draw(st.sampled_from(",;\t|")), draw(st.booleans()), draw(nothing))


def row_of(form: tuple[str, ...] | None, mark: str) -> dict[str, Any]:
    """Make a row: what is given has pMARKp in it, what is learned tMARKt."""
    if form is None:
        return {"text": " "}
    if form == ("messages",):
        return {"messages": [{"role": "user", "content": f"p{mark}p"}, {"role": "assistant", "content": f"t{mark}t"}]}
    *given_fields, learned = form
    return {**{field: f"{field} p{mark}p" for field in given_fields}, learned: f"A text, t{mark}t."}


def written(file: File, rows: list[dict[str, Any]], folder: Path) -> bytes:
    """Write rows as the file's contents are."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if file.contents in (".txt", ".md", ".pdf"):
        return "\n\n".join(str(row[next(reversed(row))]) for row in rows if "messages" not in row).encode()
    if file.contents in (".csv", ".tsv"):
        out = StringIO()
        writer = csv.DictWriter(out, names, delimiter=file.separator if file.contents == ".csv" else "\t", restval=file.filler)
        writer.writeheader()
        writer.writerows(rows)
        return out.getvalue().encode() if names else b""
    if file.contents == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows]), folder / "x")
        return (folder / "x").read_bytes()
    full = [row if file.filler == "" else {**dict.fromkeys(names), **row} for row in rows]
    return (json.dumps(full, indent=1) if file.contents == ".json" else "".join(json.dumps(row) + "\n" for row in full)).encode()


def fill(root: Path, made: list[File]) -> dict[str, list[tuple[str, int, bool]]]:
    """Write files; gives the marks of each file's rows, with how many of the row's fields are given, and whether one is to be learned."""
    found: dict[str, list[tuple[str, int, bool]]] = {}
    for number, file in enumerate(made):
        path = root / "in" / file.path
        if path.exists() or any(part.is_file() for part in path.parents):
            continue
        marks = [f"{number}x{i}" for i in range(len(file.rows))]
        rows = [row_of(form, mark) for form, mark in zip(file.rows, marks, strict=True)]
        path.parent.mkdir(parents=True, exist_ok=True)
        data = written(file, rows, root)
        path.write_bytes(gzip.compress(data) if file.packed and file.ending != ".pdf" else data)
        plain = file.contents in (".txt", ".md")
        found[file.path] = [(mark, 0 if plain or not form else 1 if form == ("messages",) else len(form) - 1, bool(form))
                            for mark, form in zip(marks, file.rows, strict=True) if not (plain and form in (("messages",), None))]
    return found


def left_out(reads: list[str]) -> tuple[set[str], int]:
    """Give the files that the start names as left out, and how many it says these are."""
    named, total = set(), 0
    for note in reads:
        if found := re.fullmatch(r"in[^:]*: left out, [^:]*: (.*?)(?: \(([0-9,]+)\))?", note):
            names = re.split(r", (?:… )?", found[1])
            named |= {*names}
            total += int(found[2].replace(",", "")) if found[2] else len(names)
    return named, total


@settings(max_examples=60, deadline=None)
@given(made=st.lists(files(), min_size=1, max_size=7))
@example(made=[File((), "a", ".jsonl", ".jsonl", (*[("input", "output")] * 9, ("instruction", "input", "output")))])
@example(made=[File((), "a", ".jsonl", ".jsonl", (("prompt", "completion"), *[("instruction", "output")] * 9), filler=None),
               File((), "b", ".parquet", ".parquet", (("body",),) * 5)])
def test_each_row_is_trained_on_or_validation_or_said_to_be_left_out(made):
    with TemporaryDirectory() as root:
        check(Path(root), made)


def check(root: Path, made: list[File]) -> None:
    """Write files and open the folder as a stage does, then find each row again."""
    marks = fill(root, made)
    try:
        data = StageData(Stage.model_validate({"name": "s", "dataset": str(root / "in"), "epochs": 1}), root / "datasets", 0)
        samples = data.open_samples()
        learned = [*iter(samples.next, None)]
    except UserError as error:
        event(re.sub(r".*?(holds|nothing|has|is|none|there was) ", r"\1 ", str(error))[:30])
        return
    event("read")
    validation = data.open_validation()
    judged = [*iter(validation.next, None)] if validation else []
    named, count = left_out(data.reads)
    by_mark = {}
    for sample in (*learned, *judged):
        for mark in re.findall(r"t(\d+x\d+)t", sample.truth):
            assert mark not in by_mark, "twice"
            by_mark[mark] = sample
    unread = {path for path, rows in marks.items() if not any(mark in by_mark for mark, *_ in rows)}
    assert named <= {*marks}
    for path, rows in marks.items():
        if path in named or (path in unread and count > len(named)):
            continue
        for mark, n_given, has_truth in rows:
            assert (mark in by_mark) == has_truth, (path, mark, data.reads)
            if has_truth:
                assert by_mark[mark].prompt.count(f"p{mark}p") == n_given, (path, mark, by_mark[mark], data.reads)
                assert not re.search(r"p\d+x\d+p", by_mark[mark].truth)
    assert len(named) <= count <= len(unread)
    skipped = sum(samples.skipped.values()) + (sum(validation.skipped.values()) if validation else 0)
    blank = sum(not has_truth for path, rows in marks.items() if path not in unread for _, _, has_truth in rows)
    assert skipped >= blank
