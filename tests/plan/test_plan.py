"""Plans: what is read, what is refused and in which words, and what a checkpoint gets back."""
from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lmplay.data.tales import LEVELS
from lmplay.errors import UserError
from lmplay.plan.catalog import BUILTINS, CATALOG, is_endless
from lmplay.plan.load import list_plans, load_plan, plan_from_dataset, plan_from_json
from lmplay.plan.schema import Header, ModelDefaults, Overrides, Plan, SourceSpec, Stage, StageBody, plan_schema

SCHEMA = jsonschema.Draft202012Validator(plan_schema())


def load(raw: Any, name: str = "plan.json") -> Plan:
    """Write a plan to a folder of its own and load it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
        return load_plan(path)


def faults(raw: Any, name: str = "plan.json") -> tuple[str, ...]:
    """Load a plan that must be refused; give its fault lines."""
    with pytest.raises(UserError) as error:
        load(raw, name)
    return error.value.faults


def stage(**keys: Any) -> dict[str, Any]:
    return {"one": {"dataset": "wikitext", **keys}}


def source(**keys: Any) -> dict[str, Any]:
    return stage(dataset={"path": "a/b", **keys})


# One mistake each, and what its only line must say, in this order.
MISTAKES = {
    "misspelt stage key": (stage(epohcs=3), ["stage 'one', key 'epohcs'", "unknown key", "Did you mean 'epochs'?", "Allowed: dataset, epochs"]),
    "misspelt dataset": ({"one": {"datset": "wikitext"}}, ["key 'datset'", "unknown key", "Did you mean 'dataset'?"]),
    "misspelt length": ({"one": {"dataset": "builtin:tales", "sampels": 9}}, ["key 'sampels'", "unknown key", "'samples'"]),
    "name in a stage": (stage(name="x"), ["key 'name'", "unknown key"]),
    "no dataset": ({"one": {"epochs": 1}}, ["stage 'one', key 'dataset'", "found nothing", "allowed: a data set"]),
    "dataset null": ({"one": {"dataset": None}}, ["key 'dataset'", "found null", "allowed: a data set"]),
    "dataset empty": (stage(dataset=""), ["key 'dataset'", 'found ""', "allowed:"]),
    "no sources": (stage(dataset=[]), ["key 'dataset'", "found []", "allowed:"]),
    "number as dataset": (stage(dataset=3), ["key 'dataset'", "found 3", "allowed:"]),
    "number as source": (stage(dataset=["wikitext", 3]), ["key 'dataset[1]'", "found 3", "allowed:"]),
    "text for lr": (stage(lr="fast"), ["key 'lr'", 'found "fast"', "allowed: a number above 0."]),
    "number in quotes": (stage(lr="6e-4"), ["key 'lr'", 'found "6e-4"', "allowed: a number above 0.", "without quotes", "YAML"]),
    "bool for lr": (stage(lr=True), ["key 'lr'", "found true", "allowed: a number above 0"]),
    "lr of 0": (stage(lr=0), ["key 'lr'", "found 0", "allowed: a number above 0"]),
    "lr not a number": (stage(lr=float("nan")), ["key 'lr'", "found NaN", "allowed: a number above 0"]),
    "endless lr": (stage(lr=float("inf")), ["key 'lr'", "found Infinity", "allowed: a number above 0"]),
    "huge lr": (stage(lr=10**400), ["key 'lr'", "found 1000", "...", "allowed: a number above 0"]),
    "epochs of 0": (stage(epochs=0), ["key 'epochs'", "found 0", "allowed: a number above 0"]),
    "part of a sample": (stage(samples=2.5), ["key 'samples'", "found 2.5", "allowed: a whole number, 1 or more"]),
    "samples of 0": (stage(samples=0), ["key 'samples'", "found 0", "allowed: a whole number, 1 or more"]),
    "tokens of 0": (stage(tokens=0), ["key 'tokens'", "found 0", "allowed: a whole number, 1 or more"]),
    "bool for batch_size": (stage(batch_size=True), ["key 'batch_size'", "found true", "allowed: a whole number"]),
    "short context": (stage(context_len=15), ["key 'context_len'", "found 15", "allowed: a whole number, 16 or more"]),
    "negative decay": (stage(weight_decay=-0.1), ["key 'weight_decay'", "found -0.1", "allowed: a number, 0 or more"]),
    "negative clip": (stage(grad_clip=-1), ["key 'grad_clip'", "found -1", "allowed: a number, 0 (off) or more"]),
    "unknown schedule": (stage(lr_schedule="cosin"), ["key 'lr_schedule'", 'found "cosin"', "allowed: constant", "Did you mean 'cosine'?"]),
    "unknown schedule name": (stage(lr_schedule={"name": "cosin"}), ["key 'lr_schedule.name'", 'found "cosin"', "Did you mean 'cosine'?"]),
    "schedule without name": (stage(lr_schedule={"min_fraction": 0.1}), ["key 'lr_schedule.name'", "found nothing", "allowed: constant"]),
    "number as schedule": (stage(lr_schedule=3), ["key 'lr_schedule'", "found 3", "allowed: constant"]),
    "large min_fraction": (stage(lr_schedule={"name": "wsd", "min_fraction": 2}), ["key 'lr_schedule.min_fraction'", "found 2", "from 0 to 1"]),
    "number as shuffle": (stage(shuffle=1), ["key 'shuffle'", "found 1", "allowed: true, false, or"]),
    "misspelt shuffle key": (stage(shuffle={"sed": 1}), ["key 'shuffle.sed'", "unknown key", "Did you mean 'seed'?", "Allowed: seed, buffer"]),
    "buffer of 0": (stage(shuffle={"buffer": 0}), ["key 'shuffle.buffer'", "found 0", "allowed: a whole number, 1 or more"]),
    "large fraction": (stage(validation=0.7), ["key 'validation'", "found 0.7", "allowed: a fraction from 0 (none) to 0.5"]),
    "bool as validation": (stage(validation=True), ["key 'validation'", "found true", "allowed: a fraction"]),
    "validation twice": (stage(validation={"fraction": 0.1, "split": "x"}), ["key 'validation.split'", "fraction and split", "one of"]),
    "validation samples": (stage(validation={"samples": 0}), ["key 'validation.samples'", "found 0", "allowed: a whole number, 1 or more"]),
    "validation dataset": (stage(validation={"dataset": "wikitex"}), ["key 'validation.dataset'", '"wikitex"', "Did you mean 'wikitext'?"]),
    "validation weight": (stage(validation={"dataset": {"path": "a/b", "weight": 1}}), ["key 'validation.dataset.weight'", "not mixed", "allowed: none"]),
    "unknown stopping": (stage(stopping="first"), ["key 'stopping'", 'found "first"', "allowed: first_exhausted or all_exhausted"]),
    "text as freeze": (stage(freeze="x"), ["key 'freeze'", 'found "x"', "allowed: a list of patterns"]),
    "empty pattern": (stage(freeze=["a", "!"]), ["key 'freeze[1]'", 'found "!"', "allowed: a list of patterns"]),
    "number as early_stopping": (stage(early_stopping=3), ["key 'early_stopping'", "found 3", "allowed: {"]),
    "early_stopping alone": (stage(early_stopping={}), ["key 'early_stopping.patience'", "found nothing", "allowed: a whole number, 1 or more"]),
    "misspelt patience": (stage(early_stopping={"patiense": 3}), ["key 'early_stopping.patiense'", "unknown key", "'patience'"]),
    "negative min_delta": (stage(early_stopping={"patience": 1, "min_delta": -1}), ["key 'early_stopping.min_delta'", "found -1", "0 or more"]),
    "early_stopping unseen": (stage(early_stopping={"patience": 1}, validation=0), ["key 'early_stopping'", "fraction of 0", "allowed:"]),
    "unknown objective": (stage(objective="dpo"), ["key 'objective'", 'found "dpo"', "allowed: next_token"]),
    "two lengths": (stage(epochs=1, tokens=5), ["key 'tokens'", "found epochs and tokens together", "allowed: one of epochs, samples, tokens"]),
    "epochs of the endless": ({"one": {"dataset": "builtin:tales/2"}}, ["key 'dataset'", "builtin:tales/2", "never ends", "samples or tokens"]),
    "endless in a mix": (stage(dataset=["wikitext", "builtin:tales"], epochs=1), ["key 'dataset'", "never ends", "samples or tokens"]),
    "unknown built-in": (stage(dataset="builtin:tails", samples=9), ["key 'dataset'", 'found "builtin:tails"', "builtin:tales/4", "'builtin:tales'?"]),
    "unknown level": (stage(dataset="builtin:tales/5", samples=9), ["key 'dataset'", 'found "builtin:tales/5"', "allowed: builtin:tales"]),
    "built-in with config": (stage(dataset={"path": "builtin:tales", "config": "x"}, samples=9), ["key 'dataset.config'", "built-in corpus"]),
    "bare word": (stage(dataset="wikipeda"), ["key 'dataset'", 'found "wikipeda"', "(wikipedia, ", "owner/name", "Did you mean 'wikipedia'?"]),
    "bare word in a list": (stage(dataset=["wikitext", {"path": "imdb"}]), ["key 'dataset[1].path'", 'found "imdb"', "allowed: a short name"]),
    "too many slashes": (stage(dataset="a/b/c"), ["key 'dataset'", 'found "a/b/c"', "allowed: a short name"]),
    "missing file": (stage(dataset="./no/such.txt"), ["key 'dataset'", 'found "./no/such.txt"', "allowed: a file, folder or glob that exists"]),
    "missing by suffix": (stage(dataset="tales.JSONL"), ["key 'dataset'", 'found "tales.JSONL"', "allowed: a file, folder or glob that exists"]),
    "empty glob": (stage(dataset="no_such_*"), ["key 'dataset'", 'found "no_such_*"', "that exists"]),
    "misspelt source key": (source(wieght=2), ["key 'dataset.wieght'", "unknown key", "Did you mean 'weight'?", "Allowed: path, config"]),
    "misspelt key in a list": (
        stage(dataset=[{"path": "a/b", "weight": 1}, {"path": "c/d", "wieght": 2}]), ["key 'dataset[1].wieght'", "unknown key", "'weight'"]),
    "source without path": (stage(dataset={"split": "train"}), ["key 'dataset.path'", "found nothing", "allowed: a short name"]),
    "text as streaming": (source(streaming="yes"), ["key 'dataset.streaming'", 'found "yes"', "allowed: true or false"]),
    "number as config": (source(config=2023), ["key 'dataset.config'", "found 2023", "allowed: a text"]),
    "weight of 0": (source(weight=0), ["key 'dataset.weight'", "found 0", "allowed: a number above 0"]),
    "some weights": (stage(dataset=[{"path": "a/b", "weight": 1}, "c/d"]), ["key 'dataset'", "weight on 1 of 2 sources", "allowed: on all"]),
    "unknown role": (source(columns={"txt": "body"}), ["key 'dataset.columns.txt'", "unknown key", "Did you mean 'text'?", "Allowed: text, title"]),
    "role without field": (source(columns={"text": ""}), ["key 'dataset.columns.text'", 'found ""', "allowed: an object of text"]),
    "prompt alone": (source(columns={"prompt": "q"}), ["key 'dataset.columns'", "found prompt", "allowed: text, text and title, prompt and truth"]),
    "text and messages": (source(columns={"text": "a", "messages": "b"}), ["key 'dataset.columns'", "found text and messages", "allowed:"]),
    "no columns": (source(columns={}), ["key 'dataset.columns'", "found none", "allowed:"]),
    "columns as text": (source(columns="body"), ["key 'dataset.columns'", 'found "body"', "allowed: an object"]),
    "stage is a text": ({"one": "wikitext"}, ["stage 'one'", 'found "wikitext"', "allowed: an object with the keys dataset"]),
    "slash in a name": ({"a/b": {"dataset": "a/b"}}, ["stage 'a/b'", 'found "a/b" as a name', "allowed: letters"]),
    "dot before a name": ({".a": {"dataset": "a/b"}}, ["stage '.a'", "allowed: letters"]),
    "empty name": ({"": {"dataset": "a/b"}}, ["stage ''", "allowed: letters"]),
    "name with a line end": ({"a\n": {"dataset": "a/b"}}, ["stage 'a\\n'", "allowed: letters"]),
    "long name": ({"a" * 65: {"dataset": "a/b"}}, ["at most 64"]),
    "names differ in case": ({"one": {"dataset": "a/b"}, "One": {"dataset": "a/b"}}, ["'one' and 'One'", "allowed: names"]),
    "same name twice": ('{"one": {"dataset": "a/b"}, "one": {"dataset": "c/d"}}', ["'one'", "twice"]),
    "no stage": ({"$description": "x"}, ["found no stage", "allowed: one or more"]),
    "plan is a list": ([], ["found []", "allowed: an object"]),
    "not JSON": ("{", ["line 1, column 2", "not valid JSON"]),
    "unknown special key": ({"$defalts": {}, **stage()}, ["key '$defalts'", "unknown key", "Did you mean '$defaults'?", "Allowed: $schema, $description"]),
    "forgotten $": ({"defaults": {"lr": 1}, **stage()}, ["key 'defaults'", "Did you mean '$defaults'?"]),
    "number as description": ({"$description": 3, **stage()}, ["key '$description'", "found 3", "allowed: a text"]),
    "number as tokenizer": ({"$tokenizer": 3, **stage()}, ["key '$tokenizer'", "found 3", "allowed: a text"]),
    "text as defaults": ({"$defaults": "x", **stage()}, ["key '$defaults'", 'found "x"', "allowed: an object of overrides"]),
    "dataset in defaults": ({"$defaults": {"dataset": "a/b"}, **stage()}, ["key '$defaults.dataset'", "unknown key"]),
    "misspelt default": ({"$defaults": {"batch_sise": 3}, **stage()}, ["key '$defaults.batch_sise'", "unknown key", "'batch_size'"]),
    "wrong default": ({"$defaults": {"lr": "x"}, **stage()}, ["key '$defaults.lr'", 'found "x"', "allowed: a number above 0"]),
    "two default lengths": ({"$defaults": {"epochs": 1, "samples": 1}, **stage()}, ["key '$defaults.samples'", "together", "one of"]),
    "default validation set": ({"$defaults": {"validation": {"dataset": "imdb"}}, **stage()}, ["key '$defaults.validation.dataset'", '"imdb"']),
    "default epochs, endless": (
        {"$defaults": {"epochs": 2}, "one": {"dataset": "builtin:tales"}}, ["stage 'one', key 'dataset'", "never ends", "samples or tokens"]),
    "defaults unseen": (
        {"$defaults": {"early_stopping": {"patience": 1}}, **stage(validation=0)}, ["stage 'one', key 'early_stopping'", "fraction of 0"]),
    "defaults contradict themselves": (
        {"$defaults": {"early_stopping": {"patience": 1}, "validation": 0}, **stage()}, ["key '$defaults.early_stopping'", "fraction of 0"]),
    "misspelt model key": ({"$model": {"num_block": 3}, **stage()}, ["key '$model.num_block'", "unknown key", "'num_blocks'", "Allowed: exp"]),
    "dropout of 1": ({"$model": {"dropout": 1}, **stage()}, ["key '$model.dropout'", "found 1", "allowed: a number from 0 to below 1"]),
    "text as settings": ({"$model": {"settings": "x"}, **stage()}, ["key '$model.settings'", 'found "x"', "allowed: an object"]),
}


@pytest.mark.parametrize(("raw", "words"), MISTAKES.values(), ids=MISTAKES.keys())
def test_one_mistake_is_one_line_that_says_where_what_and_what_is_allowed(raw, words):
    lines = faults(raw)
    assert len(lines) == 1, lines
    place = 0
    for word in ["plan.json", *words]:
        assert word in lines[0][place:], lines[0]
        place = lines[0].index(word, place)
    assert "\n" not in lines[0]
    assert "Input should" not in lines[0]


def test_all_faults_are_reported_at_once():
    lines = faults({
        "$model": {"dropout": 2},
        "$tokenizer": "",
        "first": {"dataset": ["imdb", {"path": "a/b", "split": 1}], "lr": 0, "epochs": 1, "samples": 1},
        "second": {"epohcs": 1},
        "sec/ond": {"dataset": "builtin:tales"},
    })
    places = ["$model.dropout", "$tokenizer", "dataset[0]", "dataset[1].split", "key 'lr'", "key 'samples'", "epohcs", "key 'dataset': found nothing",
              "as a name", "never ends"]
    assert len(lines) == len(places)
    assert all(sum(place in line for line in lines) == 1 for place in places)


def test_a_misspelt_key_hides_no_other_fault():
    lines = faults({"one": {"dataset": ["a/b", {"path": "builtin:tales", "weight": 1, "splitt": "x"}], "lrr": 1}})
    assert len(lines) == 4
    assert all(sum(word in line for line in lines) == 1 for word in ("splitt", "lrr", "weight on 1 of 2", "never ends"))


def _misspelt(word: str) -> st.SearchStrategy[str]:
    """Words at an edit distance of 1: a letter lost, replaced or added."""
    letters, places = st.sampled_from("abcdefghijklmnopqrstuvwxyz_"), st.integers(0, len(word) - 1)
    return st.one_of(
        places.map(lambda i: word[:i] + word[i + 1:]),
        st.builds(lambda i, letter: word[:i] + letter + word[i + 1:], places, letters),
        st.builds(lambda i, letter: word[:i] + letter + word[i:], places, letters),
    )


# Where each group of keys stands in a plan; `lr` is too short for its misspellings to be near it.
KEYS = {
    "one.": (set(StageBody.model_fields) - {"lr"}, lambda key: stage(**{key: 1})),
    "one.dataset.": (set(SourceSpec.model_fields), lambda key: source(**{key: 1})),
    "$defaults.": (set(Overrides.model_fields) - {"lr"}, lambda key: {"$defaults": {key: 1}, **stage()}),
    "$model.": (set(ModelDefaults.model_fields), lambda key: {"$model": {key: 1}, **stage()}),
    "one.shuffle.": ({"seed", "buffer"}, lambda key: stage(shuffle={key: 1})),
    "one.early_stopping.": ({"min_delta"}, lambda key: stage(early_stopping={"patience": 1, key: 1})),
    "one.dataset.columns.": ({"title"}, lambda key: source(columns={"text": "a", key: "b"})),
    "": ({"$description", "$defaults", "$model", "$tokenizer", "$schema"}, lambda key: {key: {}, **stage()}),
}


@given(st.data())
def test_a_misspelt_key_is_refused_with_the_right_one(data):
    place, (keys, plan_with) = data.draw(st.sampled_from(list(KEYS.items())))
    right = data.draw(st.sampled_from(sorted(keys)))
    tail = right.removeprefix("$")
    wrong = right.removesuffix(tail) + data.draw(_misspelt(tail).filter(lambda word: word != tail and word != "lr"))
    lines = faults(plan_with(wrong))
    assert len(lines) == 1, (place, lines)
    assert f"{wrong}': unknown key. Did you mean '{right}'?" in lines[0]


def _sometimes(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of the keys."""
    return st.fixed_dictionaries({}, optional=keys)


COUNTS = st.integers(1, 10**12) | st.integers(1, 10**6).map(float)
WORDS = st.text(min_size=1, max_size=8)
POSITIVE = st.floats(0, 1e9, exclude_min=True) | st.integers(1, 100)
COLUMNS = st.sampled_from([{"text": "a"}, {"text": "a", "title": "b"}, {"prompt": "a", "truth": "b"}, {"messages": "a"}])
OPTIONAL_SOURCE_KEYS = {"config": WORDS, "split": WORDS, "revision": WORDS, "streaming": st.booleans() | st.none(), "columns": COLUMNS}
PATHS = st.sampled_from([*CATALOG, "owner/name", "o-w.n_er/n.a-m_e"])
SOURCES = PATHS | st.builds(lambda path, rest: {"path": path, **rest}, PATHS, _sometimes(**OPTIONAL_SOURCE_KEYS))
MIXES = st.lists(st.tuples(PATHS, POSITIVE), min_size=1, max_size=3).map(lambda pairs: [{"path": path, "weight": weight} for path, weight in pairs])
OVERRIDES = {
    "batch_size": COUNTS, "context_len": st.integers(16, 10**6), "lr": POSITIVE | st.none(), "weight_decay": st.floats(0, 10), "grad_clip": st.floats(0, 10),
    "lr_schedule": st.sampled_from(["constant", "linear", "cosine", "wsd", {"name": "wsd", "min_fraction": 0.5}]),
    "shuffle": st.booleans() | _sometimes(seed=st.integers(0, 2**63 - 1), buffer=COUNTS),
    "validation": st.floats(0.01, 0.5) | WORDS | _sometimes(samples=COUNTS) | st.builds(lambda s: {"dataset": s}, SOURCES),
    "stopping": st.sampled_from(["first_exhausted", "all_exhausted"]), "freeze": st.lists(st.sampled_from(["*", "!blocks.5.*", "head.?"]), max_size=3),
    "early_stopping": st.sampled_from([{"patience": 3}, {"patience": 1, "min_delta": 0.01}]), "objective": st.just("next_token"),
}
LENGTHS = st.sampled_from([{}, {"epochs": 1}, {"epochs": 0.25}, {"samples": 1e6}, {"tokens": 10**10}, {"epochs": None, "samples": 3}])
OPTIONS = st.builds(lambda overrides, length: {**overrides, **length}, _sometimes(**OVERRIDES), LENGTHS)
STAGES = st.builds(lambda dataset, options: {"dataset": dataset, **options}, SOURCES | st.lists(SOURCES, min_size=1, max_size=3) | MIXES, OPTIONS)
NAMES = st.lists(st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}", fullmatch=True).filter(lambda name: name not in ("defaults", "model", "tokenizer",
                 "description", "schema")), min_size=1, max_size=3, unique_by=str.lower)
PLANS = st.builds(
    lambda special, names, bodies: {**special, **dict(zip(names, bodies, strict=False))},
    _sometimes(**{
        "$description": st.text(), "$schema": st.text(), "$tokenizer": WORDS, "$defaults": OPTIONS,
        "$model": _sometimes(exp=WORDS, num_blocks=COUNTS, dropout=st.floats(0, 0.9), settings=st.just({"deep": {"none": None}})),
    }),
    NAMES, st.lists(STAGES, min_size=3, max_size=3))


@given(PLANS)
def test_a_right_plan_loads_validates_and_comes_back_from_a_checkpoint(raw):
    plan = load(raw)
    SCHEMA.validate(raw)
    stored = json.loads(json.dumps(plan.to_json()))
    again = plan_from_json(stored)
    assert again == plan
    assert again.to_json() == stored
    assert all(None not in stage.values() for stage in stored["stages"])
    assert [stage.name for stage in plan.stages] == [name for name in raw if not name.startswith("$")]
    defaults = {key: value for key, value in raw.get("$defaults", {}).items() if key not in ("epochs", "samples", "tokens")}
    for stage in plan.stages:
        for key in set(Overrides.model_fields) - {"epochs", "samples", "tokens"}:
            written = raw[stage.name].get(key, defaults.get(key))
            assert (getattr(stage, key) is None) == (written is None)  # "was it given" stays visible
        assert sum(length is not None for length in (stage.epochs, stage.samples, stage.tokens)) == 1
        assert not any(source.path in CATALOG for source in stage.dataset)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["wikitext", "builtin:tales", "cosine", "x", "", "*", "~", "\0", "\n", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from([*StageBody.model_fields, *SourceSpec.model_fields, "text", "$defaults", "fraction", "patience", "[on]", "", "\n", "\ud800"]),
        inner, max_size=4),
    max_leaves=12)


@given(st.dictionaries(st.sampled_from(["one", "$defaults", "$model", "two", "\n", "\ud800"]), JUNK | STAGES, max_size=3) | JUNK)
def test_whatever_is_in_the_file_it_is_a_plan_or_a_user_error(raw):
    lines: tuple[str, ...] | None = None
    try:
        load(json.dumps(raw))
    except UserError as error:
        lines = error.faults
    if lines is None:
        assert SCHEMA.is_valid(raw)
    else:
        assert lines
        assert all(line.startswith("plan ") and line.isprintable() and "Input should" not in line for line in lines)
        assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(("raw", "mistake"), [
    (stage(epohcs=3), "unknown key"), (stage(lr="fast"), "type"), (stage(samples=2.5), "fraction"), (stage(validation=0.7), "range"),
    (stage(shuffle={"sed": 1}), "nested key"), (stage(freeze=["!"]), "pattern"), ({"a/b": {"dataset": "wikitext"}}, "stage name"),
    ({"$defalts": {}, **stage()}, "special key"), ({"one": {}}, "no dataset"), ({"one": "wikitext"}, "no object"),
    (source(columns={"txt": "a"}), "role"), (stage(lr_schedule="cosin"), "word"),
])
def test_editors_see_what_the_loader_refuses(raw, mistake):
    assert not SCHEMA.is_valid(raw)
    assert faults(raw)


def test_the_schema_file_is_the_one_of_the_code():
    jsonschema.Draft202012Validator.check_schema(plan_schema())
    assert json.loads((ROOT / "plans" / "plan.schema.json").read_text()) == plan_schema(), "write plan_schema() to plans/plan.schema.json again"


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
        assert f"'{wrong}': neither a file nor a built-in plan. Did you mean '{right}'?" in str(error.value)
        assert "default, quickstart" in str(error.value)


def test_short_names_stand_for_sources_and_own_keys_win():
    (stage,) = load({"one": {"dataset": ["wikitext", {"path": "wikipedia", "config": "20231101.de", "split": None}]}}).stages
    assert stage.dataset[0] == SourceSpec(path="Salesforce/wikitext", config="wikitext-103-raw-v1", streaming=False)
    assert stage.dataset[1] == SourceSpec(path="wikimedia/wikipedia", config="20231101.de")
    assert load({"one": {"dataset": {"path": "wikitext", "config": None}}}).stages[0].dataset == [stage.dataset[0]]


def test_short_forms_are_the_long_ones():
    short = load(stage(lr_schedule="cosine", validation=0.2, shuffle=True, samples=1e3))
    long = load(stage(lr_schedule={"name": "cosine"}, validation={"fraction": 0.2}, shuffle={}, samples=1000))
    assert short == long
    assert load(stage(validation="test")).stages[0].validation.split == "test"
    assert load(stage(shuffle=False)).stages[0].shuffle is False


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


def test_an_endless_source_may_end_with_another():
    mixed = stage(dataset=["wikitext", "builtin:tales"], epochs=2, stopping="first_exhausted")
    assert load(mixed).stages[0].epochs == 2
    assert faults(stage(dataset=["builtin:tales/1", "builtin:tales/2"], epochs=2, stopping="first_exhausted"))
    assert load({"$defaults": {"samples": 9}, "one": {"dataset": "builtin:tales?seed=3"}}).stages[0].samples == 9


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


def test_code_cannot_build_or_change_a_plan_against_the_rules():
    with pytest.raises(ValidationError, match="epochs and samples together"):
        Stage(name="one", dataset=[SourceSpec(path="a/b")], epochs=1, samples=1)
    with pytest.raises(ValidationError):
        load(stage()).stages[0].lr = 1


def test_the_catalog_is_made_of_valid_sources():
    for name, entry in CATALOG.items():
        assert entry.description
        assert SourceSpec(path=name) == SourceSpec(**entry.source)
        assert "/" not in name
    assert all(is_endless(name) for name in BUILTINS)
    assert {f"builtin:tales/{level}" for level in LEVELS} == {*BUILTINS[1:]}


def test_the_reference_names_every_key_and_its_example_loads(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "plans.md").read_text()
    special = [field.alias for field in Header.model_fields.values()]
    for key in (*StageBody.model_fields, *SourceSpec.model_fields, *ModelDefaults.model_fields, *special, *CATALOG):
        assert f"`{key}`" in text, key
    (tmp_path / "my_texts").mkdir()
    (tmp_path / "my_texts" / "a.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert len(load(text.partition("```json")[2].partition("```")[0]).stages) == 2


def test_a_bad_plan_is_refused_without_heavy_imports(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(stage(epohcs=1)))
    code = ("import sys\nfrom lmplay.errors import UserError\nfrom lmplay.plan.load import load_plan\n"
            "try: load_plan('plan.json')\nexcept UserError: print(sorted({name.partition('.')[0] for name in sys.modules} & "
            "{'torch', 'numpy', 'datasets', 'transformers', 'tokenizers', 'yaml', 'matplotlib', 'pyarrow'}))")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
