"""What a folder holds, with links that form loops and folders that cannot be read."""
from __future__ import annotations

import os

from files import write
from stages import open_data, refused_data, truths

from lmplay.data.stage import StageData
from lmplay.plan.schema import Stage


def test_links_that_lead_in_circles_are_walked_once(tmp_path):
    folder = tmp_path / "in"
    write(folder / "a.jsonl", '{"text": "a"}\n')
    write(tmp_path / "elsewhere" / "b.jsonl", '{"text": "b"}\n')
    (folder / "round").symlink_to(folder)
    (folder / "far").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(folder)
    assert truths(open_data(folder))[0] == ["a", "b"]
    found = StageData(Stage.model_validate({"name": "one", "dataset": f"{folder}/**/*.jsonl", "validation": 0, "shuffle": False}), tmp_path / "datasets", 0)
    assert truths(found)[0] == ["a", "b"]
    (folder / "self.jsonl").symlink_to(folder / "self.jsonl")
    assert "self.jsonl: cannot be read" in refused_data(folder)
    (folder / "self.jsonl").unlink()
    (folder / "nowhere.jsonl").symlink_to(folder / "nothing")
    assert "nowhere.jsonl: cannot be read" in refused_data(folder)


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write(tmp_path / "in" / "a.jsonl", '{"text": "a"}\n')
    write(tmp_path / "in" / "closed" / "b.jsonl", '{"text": "b"}\n')
    scan = os.scandir

    def forbidding(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", forbidding)
    assert "closed: cannot be read (Permission denied)" in refused_data(tmp_path / "in")
