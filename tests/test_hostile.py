"""Files of strangers, made at random: each is taken or refused with exit code 2, in lines and without a traceback. `benchmarks/fuzz.py` tries thousands."""
import pytest
from hostile import KINDS, RIGHT, prepare
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_file_of_a_stranger_is_taken_or_refused(hostile, capsys, kind, seed):
    assert hostile.fault(kind, seed) == ""
    assert "Traceback" not in capsys.readouterr().err


# What benchmarks/fuzz.py has found: an id of 2^31 in a vocabulary took 20 s; NaN in the statistics of a checkpoint, or a list
# as a total, ended training in a traceback; so did a list as the name of a schedule, half of a character as the name of a model, a checkpoint without
# versions or without the statistics of a stage, and a list as a floor or as where a schedule is.
FOUND = [("tokenizer", 100024), ("checkpoint", 200112), ("checkpoint", 300307), ("plan.json", 400392), ("statistics", 400089), ("checkpoint", 500383),
         ("checkpoint", 500976), ("checkpoint", 501363), ("checkpoint", 501842)]


@pytest.mark.parametrize(("kind", "seed"), FOUND)
def test_what_has_got_through_once_is_refused(hostile, capsys, kind, seed):
    assert hostile.fault(kind, seed) == ""
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_a_right_file_is_taken_and_what_can_be_trained_is(hostile, kind):
    assert {*hostile.try_one(kind, RIGHT)} == {0}
    hostile.trained = None
    assert hostile.train_taken(kind) == ""
    assert hostile.trained == (75 if kind in ("plan.json", "plan.yaml", "checkpoint") else None)
