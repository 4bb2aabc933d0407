"""What has changed in the data, file by file."""
from __future__ import annotations

import json
import shutil

from files import write
from stages import open_data

from lmplay.data.fingerprints import describe_changes, describe_readings, same_data


def test_what_has_changed_is_said_file_by_file(tmp_path):
    for name in ("a", "b", "c"):
        write(tmp_path / "in" / f"{name}.jsonl", f'{{"text": "{name}"}}\n')
    before = open_data(tmp_path / "in").fingerprints()
    shutil.move(tmp_path / "in", tmp_path / "moved")
    assert same_data(before[0], open_data(tmp_path / "moved").fingerprints()[0])
    write(tmp_path / "moved" / "a.jsonl", '{"text": "other"}\n{"text": "a"}\n')
    (tmp_path / "moved" / "b.jsonl").unlink()
    write(tmp_path / "moved" / "d.jsonl", '{"text": "d"}\n')
    (change,) = describe_changes(before, open_data(tmp_path / "moved").fingerprints())
    assert change == "moved (a.jsonl has changed, d.jsonl is new, b.jsonl is gone; 3 rows before, 4 now)"
    for i in range(1001):
        write(tmp_path / "many" / f"{i}.jsonl", '{"text": "x"}\n')
    before = open_data(tmp_path / "many").fingerprints()
    assert len(json.dumps(before)) < 300
    write(tmp_path / "many" / "7.jsonl", '{"text": "y"}\n')
    assert describe_changes(before, open_data(tmp_path / "many").fingerprints()) == ["many (its text; 1,001 rows before, 1,001 now)"]


def test_a_reading_that_is_not_that_of_the_checkpoint_is_said():
    rows = {"name": "a.jsonl", "kind": "local", "digest": "1"}
    alike, mixed = "'prompt' → 'truth'", "'prompt' → 'truth' in 9; 'text' in 1 of all 10 rows"
    assert same_data(rows, {**rows, "reads": mixed})
    assert describe_readings([rows], [{**rows, "reads": alike}]) == []
    assert describe_readings([{**rows, "reads": mixed}], [{**rows, "reads": mixed}]) == []
    assert "all were read alike" in describe_readings([rows], [{**rows, "reads": mixed}])[0]
    assert f"as {alike}" in describe_readings([{**rows, "reads": alike}], [{**rows, "reads": mixed}])[0]
    assert describe_readings([rows], [{**rows, "digest": "2", "reads": mixed}]) == []
