"""Finding and reading plans: built-in ones, files, data sets, and those of checkpoints."""
from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT
from plan_files import SCHEMA, faults, load, stage

from lmplay.errors import UserError
from lmplay.plan.catalog import is_endless
from lmplay.plan.load import list_plans, load_plan, plan_from_dataset, plan_from_json


def test_every_built_in_plan_loads_validates_and_is_described():
    listed = dict(list_plans())
    assert {"default", "wiki_en", "wikitext", "wikitext3", "tinystories", "stories_to_wiki", "quickstart"} <= set(listed)
    assert "plan.schema" not in listed
    for name, description in listed.items():
        raw = json.loads((ROOT / "plans" / f"{name}.json").read_text())
        SCHEMA.validate(raw)
        assert raw["$schema"] == "./plan.schema.json"
        assert load_plan(name).description == description != ""


def test_a_built_in_plan_is_found_from_anywhere(tmp_path, monkeypatch):
    here = load_plan("quickstart")
    (tmp_path / "quickstart").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert load_plan("quickstart") == here
    with pytest.raises(UserError, match="no stage"):
        load_plan("./quickstart")


def test_built_in_plans_are_found_in_an_installed_package(tmp_path):
    shutil.copytree(ROOT / "lmplay" / "plan", tmp_path / "lmplay" / "plan")
    for file in (ROOT / "lmplay").glob("*.py"):
        shutil.copy(file, tmp_path / "lmplay" / file.name)
    shutil.copytree(ROOT / "plans", tmp_path / "lmplay" / "plans")
    code = "from lmplay.plan.load import load_plan, list_plans; print(load_plan('wikitext').stages[0].name, len(list_plans()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    assert done.stdout == f"pretraining {len(list_plans())}\n", done.stderr


def test_an_unknown_plan_is_refused_with_the_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_plan.json").write_text("{}")
    for wrong, right in (("wikitxt", "wikitext"), ("my_paln.json", "my_plan.json")):
        with pytest.raises(UserError) as error:
            load_plan(wrong)
        assert len(error.value.faults) == 1
        assert f"'{wrong}': neither a file (looked in {tmp_path}) nor a built-in plan. Did you mean '{right}'?" in str(error.value)
        assert "default, quickstart" in str(error.value)


def test_a_stage_lays_its_keys_over_the_defaults():
    plan = load({
        "$defaults": {"samples": 5, "lr": 0.1, "batch_size": 3, "validation": {"samples": 2}, "early_stopping": {"patience": 2}},
        "plain": {"dataset": "a/b"},
        "own": {"dataset": "a/b", "epochs": 0.5, "lr": 0.2, "validation": "test", "early_stopping": None},
    })
    plain, own = plan.stages
    assert (plain.samples, plain.epochs, plain.lr, plain.batch_size, plain.validation.samples, plain.early_stopping.patience) == (5, None, 0.1, 3, 2, 2)
    assert (own.samples, own.epochs, own.lr, own.batch_size, own.validation.samples, own.early_stopping) == (None, 0.5, 0.2, 3, None, None)
    assert load(stage()).stages[0].epochs == 1


def test_local_paths_are_looked_up_beside_the_plan_then_here(tmp_path, monkeypatch):
    beside, here = tmp_path / "plans [1]", tmp_path / "here"
    for folder in (beside, here):
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "both.txt").touch()
        (folder / "owner" / folder.name).mkdir(parents=True)
    (here / "data" / "only_here.txt").touch()
    plan = {"one": {"dataset": ["data/both.txt", "data/only_here.txt", "data/*.txt", "data/only*", "owner/here", "owner/there"], "validation": {
        "dataset": "data/both.txt"}}}
    (beside / "plan.json").write_text(json.dumps(plan))
    monkeypatch.chdir(here)
    stage = load_plan(beside / "plan.json").stages[0]
    found = [source.path for source in stage.dataset]
    assert found[:2] == [str(beside / "data" / "both.txt"), str(here / "data" / "only_here.txt")]
    assert glob.glob(found[2]) == [found[0]]  # the brackets of the folder's own name are no pattern
    assert found[3] == str(here / "data" / "only*")
    assert found[4:] == [str(here / "owner" / "here"), "owner/there"]  # a folder that exists wins over the hub
    assert stage.validation.dataset.path == found[0]
    assert load_plan("../plans [1]/plan.json").stages[0] == stage


def test_a_missing_file_is_refused_with_the_nearest_in_its_folder(tmp_path):
    (tmp_path / "tales.txt").touch()
    (tmp_path / "plan.json").write_text(json.dumps(stage(dataset="tals.txt")))
    with pytest.raises(UserError, match=r"Did you mean 'tales\.txt'\?"):
        load_plan(tmp_path / "plan.json")


def test_yaml_is_read_too():
    plan = load("$defaults: {lr: 6.0e-4}\none:\n  dataset: wikitext\n2: {dataset: {path: a/b, revision: 2024-01-01}}\n", "plan.yaml")
    assert [stage.name for stage in plan.stages] == ["one", "2"]
    assert plan.stages[0].lr == 6e-4
    assert plan.stages[1].dataset[0].revision == "2024-01-01"
    assert "in YAML 6.0e-4 instead of 6e-4" in faults("one: {dataset: wikitext, lr: 6e-4}", "plan.yml")[0]
    assert "YAML" not in faults("one: {dataset: wikitext, stopping: '3'}", "plan.yml")[0]
    for odd in ("one: &a {dataset: *a}", "? [1]\n: 2", "one: {? [1] : 2}", "", "x"):
        assert len(faults(odd, "plan.yaml")) == 1
    assert "a key that YAML reads as a date" in faults("2026-01-01: {dataset: wikitext}", "plan.yaml")[0]


@pytest.mark.parametrize(("dataset", "name", "path"), [
    ("wikitext2", "wikitext2", "Salesforce/wikitext"), ("owner/Some.Set-1.5", "Some.Set-1.5", "owner/Some.Set-1.5"),
    ("builtin:tales/2?seed=7", "tales_2", "builtin:tales/2?seed=7"), ("my tales.jsonl.gz", "my_tales", None), (".", "here", None),
    ("*.gz", "here", None), ("**/*.gz", "here", None), ("my*.jsonl.gz", "my", None), ("my[ _]tales.*", "my_tales", None),
])
def test_a_data_set_makes_a_plan_of_one_stage(dataset, name, path, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "my tales.jsonl.gz").touch()
    monkeypatch.chdir(tmp_path / "here")
    plan = plan_from_dataset(dataset)
    (stage,) = plan.stages
    assert stage.dataset[0].path == (path or os.path.normpath(tmp_path / "here" / dataset))
    assert (stage.epochs, stage.samples) == ((None, 10_000) if is_endless(dataset) else (1, None))
    assert plan_from_json(plan.to_json()) == plan
    assert stage.name == name


def test_a_data_set_that_is_not_there_makes_no_plan():
    with pytest.raises(UserError, match=r"^dataset: found \"wikitxt\", allowed: .* Did you mean 'wikitext'\?$"):
        plan_from_dataset("wikitxt")


def test_a_stored_plan_is_read_strictly():
    stored = load(stage(lr=0.1)).to_json()
    stored["stages"][0]["lrr"] = stored["stages"][0].pop("lr")
    stored["stages"].append({**stored["stages"][0], "samples": 3, "lrr": 1})
    with pytest.raises(UserError) as error:
        plan_from_json(stored)
    assert all(line.startswith("stored plan") for line in error.value.faults)
    assert [place in str(error.value) for place in ("'stages[0].lrr'", "'stages[1].lrr'", "'stages[1].samples'", "names 'one' and 'one'")] == [True] * 4


def test_a_stored_plan_needs_no_files(tmp_path):
    (tmp_path / "tales.txt").touch()
    (tmp_path / "plan.json").write_text(json.dumps(stage(dataset="tales.txt")))
    plan = load_plan(tmp_path / "plan.json")
    (tmp_path / "tales.txt").unlink()
    assert plan_from_json(plan.to_json()) == plan


def test_a_bad_plan_is_refused_without_heavy_imports(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(stage(epohcs=1)))
    code = ("import sys\nfrom lmplay.errors import UserError\nfrom lmplay.plan.load import load_plan\n"
            "try: load_plan('plan.json')\nexcept UserError: print(sorted({name.partition('.')[0] for name in sys.modules} & "
            "{'torch', 'numpy', 'datasets', 'transformers', 'tokenizers', 'yaml', 'matplotlib', 'pyarrow'}))")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_named_sets_of_a_stage_come_beside_those_of_the_defaults():
    plan = load({"$defaults": {"evaluate": {"a": "wikitext", "b": {"dataset": "wikitext2", "interval": "100k samples"}}},
                 "one": {"dataset": "c4"}, "two": {"dataset": "c4", "evaluate": {"a": None, "b": {"dataset": "wikitext2"}, "c": {"dataset": {"path": "o/n"}}}},
                 "three": {"dataset": "c4", "evaluate": None}})
    one, two, three = plan.stages
    assert {name: one.interval for name, one in one.sets.items()} == {"a": None, "b": 100_000}
    assert {name: (one.dataset.path, one.interval) for name, one in two.sets.items()} == {"b": ("Salesforce/wikitext", None), "c": ("o/n", None)}
    assert not three.sets
    assert {spec.path for spec in plan.sources()} == {"allenai/c4", "Salesforce/wikitext", "o/n"}


@pytest.mark.parametrize(("evaluate", "fault"), [
    ({"held_out": "wikitext"}, 'evaluate\': found a set named "held_out"'),
    ({"a b": "wikitext"}, 'evaluate\': found a set named "a b"'),
    ({"interval": {"dataset": "wikitext", "interval": "often"}}, "evaluate.interval.interval': found \"often\", allowed: a number of samples"),
    ({"a": {"dataset": "wikitext", "interval": "auto"}}, "evaluate.a.interval': found \"auto\""),
    ({"a": "builtin:tales"}, "evaluate.a.dataset': found builtin:tales, which never ends"),
    ({"a": {"dataset": "wikitext", "every": 3}}, "evaluate.a.every': unknown key"),
    ({"a": "wikitex"}, "evaluate.a': found \"wikitex\""),
    ({"a": {"dataset": {"path": "nowhere.txt"}}}, "evaluate.a.dataset.path': found \"nowhere.txt\""),
    ({"a": {"dataset": {"path": "c4", "splt": "x"}}}, "evaluate.a.dataset.splt': unknown key. Did you mean 'split'?"),
    ({"a": 3}, "evaluate.a': found 3"), (["wikitext"], "evaluate': found [")])
def test_a_wrong_named_set_is_one_fault_that_says_where(evaluate, fault):
    for raw in ({"one": {"dataset": "c4", "evaluate": evaluate}}, {"$defaults": {"evaluate": evaluate}, "one": {"dataset": "c4"}}):
        lines = faults(raw)
        assert len(lines) == 1, lines
        assert fault in lines[0]


def test_a_name_stands_for_the_same_data_in_all_stages():
    lines = faults({"$defaults": {"evaluate": {"a": "wikitext"}}, "one": {"dataset": "c4"}, "two": {"dataset": "c4", "evaluate": {"a": "wikitext2"}}})
    assert len(lines) == 1
    assert "key 'evaluate.a': found other data in stage 'two' than in 'one', allowed: the same data under one name" in lines[0]


def test_a_missing_plan_says_where_it_was_looked_for_and_suggests_plans_alone(tmp_path):
    (tmp_path / "nowhere.jsonl").write_text("{}")
    with pytest.raises(UserError) as error:
        load_plan(tmp_path / "nowhere.json")
    assert f"neither a file (looked in {tmp_path}) nor a built-in plan." in str(error.value)
    assert "Did you mean" not in str(error.value)
