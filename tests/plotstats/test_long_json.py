"""Long files are read as short ones are."""
import json
import math

import numpy as np
import pytest
from curves import edit, make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from lmplay.plotstats.long_json import _read
from lmplay.plotstats.runs import read_folder


@pytest.mark.parametrize("comma", [",", ", "])
@given(st.lists(st.floats() | st.integers(-10**20, 10**20) | st.none(), min_size=1, max_size=9))
@settings(deadline=None, max_examples=30)
def test_long_columns_are_read_to_the_last_bit(comma, values):
    column = [None if value is None or not math.isfinite(value) else value for value in values]
    text = json.dumps({"a]": [[{"b": column * 2001}]], "c": ["[1, 2]", "x" * 3000, "["], "d": column}, separators=(comma, ":"))
    read = _read(text.encode())
    assert np.array_equal(read["a]"][0][0]["b"], np.array(column * 2001, dtype=np.float64), equal_nan=True)
    assert (read["c"], read["d"]) == (json.loads(text)["c"], column)


@pytest.mark.parametrize("damage", [None, '"loss": [', "[", "null", "1.5"])
def test_a_long_file_is_read_as_a_short_one_is(tmp_path, monkeypatch, damage):
    make_run(tmp_path, rows=2000, by_stage=False)
    path = tmp_path / "tiny_train_stats.json"
    edit(path, lambda content: content["columns"].update(accuracy=[None, *[0.25] * 1999], something_new=[1.5] * 2000))
    if damage:
        text = path.read_text()
        path.write_text(text.replace(damage, damage + ",", 1) if damage in text else text)
    answers = []
    for limit in (10**9, 1000):
        monkeypatch.setattr("lmplay.plotstats.long_json._LONG_FILE", limit)
        curves, faults = read_folder(tmp_path)
        answers.append(([{name: values.tolist() for name, values in curve.columns.items()} for curve in curves], faults))
    assert str(answers[0]) == str(answers[1])  # NaN is not equal to itself
    assert bool(answers[0][1]) == bool(damage)
