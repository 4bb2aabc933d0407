"""Optimizers, schedules and objectives stand in one table each: a row is all that a new one needs."""
import json
import math

import pytest

from lmplay.errors import UserError
from lmplay.plan.load import plan_from_json
from lmplay.plan.names import OPTIMIZERS, SCHEDULES, Member, OptimizerRow, Schedule, in_words, objectives
from lmplay.plan.schema import plan_schema
from lmplay.plan.settings import Settings, resolve_stage
from lmplay.train.flags import parse


def stage(**more):
    """Give the settings of the one stage of a plan."""
    plan = plan_from_json({"stages": [{"name": "one", "dataset": "builtin:tales", "samples": 10, **more}]})
    return resolve_stage(Settings(), plan.stages[0], 64)


def offer(folder, monkeypatch, package: str, entries: str) -> None:
    """Make a folder of sys.path look as if a package that offers objectives were installed in it."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lmplay.objectives]\n{entries}\n")
    monkeypatch.syspath_prepend(folder)


def test_a_schedule_is_one_row_in_one_file(monkeypatch):
    with pytest.raises(UserError, match='found "sqroot"'):
        stage(lr_schedule="sqroot")
    monkeypatch.setitem(SCHEDULES, "sqroot", Schedule("sqroot", "the root of what is left", lambda progress: math.sqrt(1 - progress), 0.0))
    assert stage(lr_schedule="sqroot").lr_schedule.in_words() == "sqroot"
    assert stage(lr_schedule="sqroot").lr_schedule.at(0.75) == 0.5
    assert stage(lr_schedule={"name": "sqroot", "min_fraction": 0.5}).lr_schedule.at(0.75) == 0.75
    with pytest.raises(UserError, match="Did you mean 'sqroot'"):
        stage(lr_schedule="sqrot")


def test_the_json_schema_has_the_schedules_of_the_table():
    assert f'"enum": {json.dumps([*SCHEDULES])}' in json.dumps(plan_schema())


def test_an_optimizer_is_one_row_that_flags_know(monkeypatch):
    with pytest.raises(UserError, match="one of adamw, adam, adagrad, sgd, rmsprop"):
        parse(["--optimizer", "radam"])
    monkeypatch.setitem(OPTIMIZERS, "radam", OptimizerRow("radam", 0.0, (Member("torch.optim:RAdam", {}, (), 2),)))
    assert parse(["--optimizer", "radam"])[0].optimizer == "radam"


def test_an_objective_may_come_from_another_package(tmp_path, monkeypatch):
    assert stage().objective == stage(objective="next_token").objective == "next_token"
    with pytest.raises(UserError, match=r"""found "next_tokn", allowed: next_token.*Did you mean 'next_token'"""):
        stage(objective="next_tokn")
    with pytest.raises(UserError, match="upside_down"):
        stage(objective="upside_down")
    offer(tmp_path, monkeypatch, "toy", "upside_down = fractions:Fraction\nbroken = toy_nowhere:Model")
    assert stage(objective="upside_down").objective == "upside_down"
    with pytest.raises(UserError, match="Did you mean 'upside_down'"):
        stage(objective="upsidedown")
    assert objectives()["upside_down"].description == "from toy 1.0"
    assert objectives()["upside_down"].load().__name__ == "Fraction"
    with pytest.raises(UserError, match=r"objective 'broken': toy_nowhere:Model cannot be imported \(ModuleNotFoundError.*from toy 1\.0.*another objective"):
        objectives()["broken"].load()
    offer(tmp_path / "again", monkeypatch, "twice", "next_token = fractions:Fraction")
    with pytest.raises(UserError, match="objective 'next_token': offered twice"):
        objectives()


@pytest.mark.parametrize(("listed", "words"), [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")])
def test_names_in_words(listed, words):
    assert in_words(listed) == words


def test_the_packages_are_looked_through_once(tmp_path, monkeypatch):
    import importlib.metadata

    reads, original = [], importlib.metadata.entry_points
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda: reads.append(1) or original())
    offer(tmp_path / "one", monkeypatch, "one_x", "one = one_x:One")
    assert "one" in objectives()
    assert "one" in objectives()
    assert len(reads) == 1
    offer(tmp_path / "two", monkeypatch, "two_x", "two = two_x:Two")
    assert {"one", "two"} <= objectives().keys()
    assert len(reads) == 2
