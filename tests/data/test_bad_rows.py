"""Rows that give no sample: skipped and counted, or the end of the run."""
from __future__ import annotations

import json

import pytest
from files import write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stages import open_data, refused_data, truths

from lmplay.data.sources import BadRow
from lmplay.data.stage import StageData
from lmplay.data.stream import describe_losses
from lmplay.errors import UserError
from lmplay.plan.schema import Stage

BAD_ROWS = '{"text": "a"}\n\n{"text": "b"\n[1, 2]\n{"text": null}\n{"text": 7}\n{"text": " "}\n{"words": "x"}\n\n\n"c"\nnonsense\n{"text": "d"}\n'


def test_bad_rows_are_skipped_counted_by_reason_and_the_first_are_named(tmp_path):
    path = write(tmp_path / "a.jsonl", BAD_ROWS)
    found, state = truths(open_data(path))
    assert found == ["a", "d"]
    assert state["skipped"] == {"not valid JSON": 2, "no JSON object": 2, "null": 1, "without 'text'": 1, "not text": 1, "empty": 1}
    places = {reason: [int(place.removeprefix(f"{path}, line ")) for place in named] for reason, named in state["places"].items()}
    assert places == {"not valid JSON": [3, 12], "no JSON object": [4, 11], "null": [5], "without 'text'": [8], "not text": [6], "empty": [7]}
    many = truths(open_data(write(tmp_path / "many.jsonl", '{"text": "a"}\n' + "x\n" * 50)))[1]
    assert describe_losses(many) == [f"50 rows skipped: not valid JSON ({'; '.join(f'{tmp_path}/many.jsonl, line {n}' for n in (2, 3, 4))}; …)"]


@pytest.mark.parametrize(("row", "says"), [('{"text": "b"', "not valid JSON (Expecting"), ("[1]", "is no JSON object"),
                                           ('{"text": null}', "gives no sample (null)"),
                                           ('{"text": 5}', "gives no sample (not text)"), ('{"other": 1}', "gives no sample (without 'text')")])
@pytest.mark.parametrize("line", [2, 60])
def test_a_bad_row_can_end_the_run(tmp_path, row, says, line):
    good = '{"text": "a"}\n'
    path = write(tmp_path / "a.jsonl", good * (line - 1) + row + "\n" + good)
    text = refused_data(path, on_bad_row="stop")
    assert f"a.jsonl, line {line}: {says}" in text
    assert len(truths(open_data(path, on_bad_row="skip"))[0]) == line


def test_bad_rows_of_csv_are_named_by_their_line(tmp_path):
    path = write(tmp_path / "a.csv", 'text,n\n"two\nlines",1\na,b,c\nlast,2\n')
    found, state = truths(open_data(path))
    assert (found, state["places"]) == (["two\nlines", "last"], {"too many values": [f"{path}, line 4"]})
    assert "a.csv, line 4: 3 values under a header of 2" in refused_data(path, on_bad_row="stop")


@given(stop=st.integers(0, 60), weights=st.sampled_from([None, (1.0, 3.0)]), shuffle=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bad_rows_change_nothing_of_resuming_and_of_shares(tmp_path, stop, weights, shuffle):
    write(tmp_path / "a.jsonl", "".join(f'{{"text": "a{i}"}}\n' if i % 3 else "broken\n" for i in range(30)))
    write(tmp_path / "b.jsonl", b"".join(b'{"text": "b%d\xff"}\n' % i if i % 4 else b"7\n" for i in range(20)))
    sources = [{"path": str(tmp_path / name), **({"weight": weight} if weight else {})}
               for name, weight in zip(("a.jsonl", "b.jsonl"), weights or (None, None), strict=True)]
    data = StageData(Stage.model_validate({"name": "one", "dataset": sources, "epochs": 2, "shuffle": shuffle}), tmp_path / "datasets", 0)
    untouched, stopped, resumed = data.open_samples(), data.open_samples(), data.open_samples()
    for _ in range(stop):
        assert untouched.next() == stopped.next()
    resumed.restore(json.loads(json.dumps(stopped.state())))
    assert list(iter(resumed.next, None)) == list(iter(untouched.next, None))
    assert resumed.state() == untouched.state()
    assert resumed.state()["replaced"]["rows"] == resumed.state()["replaced"]["characters"] > 10
    if not weights:  # each row of both epochs came, or was counted: 27 and 18 are not held out
        assert resumed.state()["samples"] + sum(resumed.state()["skipped"].values()) == 2 * (27 + 18)
        assert resumed.progress == 1
        assert resumed.state()["mix"]["rows"] == [2 * 27, 2 * 18]


def test_bad_rows_are_user_errors_of_one_line():
    assert issubclass(BadRow, UserError)
    assert UserError("a\nb\x1b[0m").faults == ("a\\nb\\x1b[0m",)
