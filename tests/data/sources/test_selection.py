"""Which files a path means, and the splits that their names tell."""
from __future__ import annotations

from pathlib import Path

import pytest
from files import lines, opened, refused, rows_of, write
from stages import open_stage

from lmplay.data.sources import selection
from lmplay.paths import walk_files

FILES = {
    "train.jsonl validation.jsonl test.jsonl": ("train", "validation"),
    "train-00000-of-00002.jsonl train-00001-of-00002.jsonl": ("train-00000-of-00002 train-00001-of-00002", None),
    "data/train/a.jsonl data/train/b.jsonl data/val/c.jsonl": ("a b", "c"),
    "train.jsonl dev.jsonl": ("train", "dev"),
    "train_2.jsonl valid.x.jsonl": ("train_2", "valid.x"),
    "ptb.train.jsonl ptb.valid.jsonl ptb.test.jsonl": ("ptb.train", "ptb.valid"),
    "Train/a.jsonl Validation/b.jsonl": ("a", "b"),
    "train-00000-of-00001-a09b74b3ef9c3b56.jsonl validation-00000-of-00001-0123456789abcdef.jsonl":
        ("train-00000-of-00001-a09b74b3ef9c3b56", "validation-00000-of-00001-0123456789abcdef"),
    "dev-diary.jsonl monday.jsonl my_test.jsonl train-small.jsonl valid dreams.jsonl": ("dev-diary monday my_test train-small valid dreams", None),
    "train.jsonl train-small.jsonl": ("train", None),
    "diary.txt faq.jsonl data.csv notes.md": ("data diary faq notes", None),
    "chapter-1.txt chapter-2.md chapter-3.jsonl": ("chapter-1 chapter-2 chapter-3", None),
    "a.txt README.md LICENSE.txt": ("LICENSE README a", None),
    "b.jsonl a.jsonl c/d.jsonl": ("a b d", None),
    "a.jsonl validation.jsonl test.jsonl": ("a", "validation"),
    "trainers.jsonl testimony.jsonl valley.jsonl train dreams.jsonl": ("testimony train dreams trainers valley", None),
    "a.jsonl README.md README_zh.md LICENSE.txt .hidden.jsonl .git/x.jsonl dataset_infos.json": ("a", None),
    "train.txt validation.txt data.jsonl": ("train", "validation"),
}


@pytest.mark.parametrize("names", FILES)
def test_the_splits_of_a_folder(tmp_path, folder, names):
    for name in names.replace(" dreams", "~dreams").split():
        name = name.replace("~", " ")
        stem = Path(name).name.rsplit(".", 1)[0]
        plain = stem if name.endswith(("txt", "md")) else f"text\n{stem}\n"
        write(tmp_path / "in" / name, plain if name.endswith(("txt", "md", "csv")) else lines(stem))
    for split, expected in zip(("train", "validation"), FILES[names], strict=True):
        source = opened(tmp_path / "in", folder, split)
        assert (source and " ".join(row["text"] for row in rows_of(source))) == expected


def test_which_split_is_trained_on_can_be_said(tmp_path, folder):
    for name in ("train", "validation", "test"):
        write(tmp_path / "in" / f"{name}.jsonl", lines(name))
    for wanted, train, own in (("test", "test", "validation"), ("validation", "validation", None), ("dev", "validation", None)):
        assert opened(tmp_path / "in", folder, split=wanted)[0] == {"text": train}
        source = opened(tmp_path / "in", folder, "validation", split=wanted)
        assert (source and source[0]["text"]) == own
    assert opened(tmp_path / "in", folder).name == "in"
    assert opened(tmp_path / "in", folder, "validation").name == "in validation"


def test_what_is_named_is_read_whatever_its_name(tmp_path, folder):
    write(tmp_path / "test.jsonl", lines("one"))
    write(tmp_path / "test-2.jsonl", lines("two"))
    write(tmp_path / "in" / "train.jsonl", lines("three"))
    assert rows_of(opened(tmp_path / "test.jsonl", folder)) == [{"text": "one"}]
    assert opened(tmp_path / "test.jsonl", folder, "validation") is None
    assert [row["text"] for row in rows_of(opened(tmp_path / "test*.jsonl", folder))] == ["two", "one"]
    assert [row["text"] for row in rows_of(opened(f"{tmp_path}/**/*.jsonl", folder))] == ["three"]
    assert opened(tmp_path / "in" / "tr*n.jsonl", folder)[0] == {"text": "three"}


def test_home_is_expanded_and_an_existing_folder_goes_before_the_hub(tmp_path, folder, monkeypatch):
    write(tmp_path / "owner" / "name" / "a.txt", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path in ("~/owner/name", "owner/name", "owner", "owner/*/a.txt"):
        assert rows_of(opened(path, folder)) == [{"text": "here"}]


def test_a_glob_that_is_proposed_works(bad_files, folder, tmp_path):
    line = refused("mixed", folder)
    assert "'mixed/**/*.csv' or 'mixed/**/*.jsonl'" in line
    assert rows_of(opened("mixed/**/*.csv", folder)) == [{"a": "1"}]


@pytest.mark.parametrize(("names", "listings"), [(["a.txt", "b.txt"], 1), (["train.txt", "valid.txt"], 2)])
def test_a_folder_without_validation_files_is_listed_once(tmp_path, monkeypatch, names, listings):
    listed = []
    monkeypatch.setattr(selection, "walk_files", lambda root: listed.append(root) or walk_files(root))
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text("Some words.\n\n" * 20)
    data = open_stage(tmp_path, {"dataset": {"path": str(tmp_path / "in"), "row_bytes": 64}, "epochs": 1})
    assert len(listed) == listings
    assert data.open_validation().next() is not None
