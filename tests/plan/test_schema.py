"""The shape of a plan: right ones load, validate and come back from a checkpoint; the JSON Schema and the reference agree."""
from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from helpers import ROOT
from hypothesis import given
from hypothesis import strategies as st
from plan_files import SCHEMA, faults, load, source, stage
from pydantic import ValidationError

from lmplay.errors import UserError
from lmplay.plan.catalog import CATALOG
from lmplay.plan.load import plan_from_json
from lmplay.plan.schema import Header, ModelDefaults, Overrides, SourceSpec, Stage, StageBody, plan_schema


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
MIXES = st.lists(st.tuples(PATHS, st.floats(0.01, 100)), min_size=1, max_size=3).map(lambda pairs: [{"path": path, "weight": weight} for path, weight in pairs])
OVERRIDES = {
    "batch_size": COUNTS, "context_len": st.integers(16, 10**6), "lr": POSITIVE | st.none(), "lr_width": st.integers(0, 10**6), "grad_clip": st.floats(0, 10),
    "weight_decay": st.floats(0, 10) | st.just([{"name": "linear", "from": 0, "to": 1, "steps": "rest"}]),
    "lr_schedule": st.sampled_from(["constant", "linear", "cosine", "wsd", {"name": "wsd", "min_fraction": 0.5}, {"name": "step", "at": [0.5]},
                                   [{"name": "linear", "from": 0, "steps": "5%"}, {"name": "plateau", "tokens": "rest"}]]),
    "shuffle": st.booleans() | _sometimes(seed=st.integers(0, 2**63 - 1), buffer=COUNTS),
    "validation": st.floats(0.01, 0.5) | WORDS | _sometimes(samples=COUNTS) | st.builds(lambda s: {"dataset": s}, SOURCES),
    "stopping": st.sampled_from(["first_exhausted", "all_exhausted"]), "freeze": st.lists(st.sampled_from(["*", "!blocks.5.*", "head.?"]), max_size=3),
    "evaluate": st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from(["wikitext", None]) | st.builds(
        lambda rest: {"dataset": "wikitext", **rest}, _sometimes(interval=st.sampled_from([0, 1000, "10k", "100k samples", "500steps", None]))), max_size=2),
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
        "$model": _sometimes(exp=WORDS, num_blocks=st.integers(1, 10_000), dropout=st.floats(0, 0.9), settings=st.just({"deep": {"none": None}})),
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
    assert all(None not in one.values() for one in stored["stages"])
    assert [one.name for one in plan.stages] == [name for name in raw if not name.startswith("$")]
    defaults = {key: value for key, value in raw.get("$defaults", {}).items() if key not in ("epochs", "samples", "tokens")}
    for one in plan.stages:
        for key in set(Overrides.model_fields) - {"epochs", "samples", "tokens"}:
            written = raw[one.name].get(key, defaults.get(key))
            assert (getattr(one, key) is None) == (written is None)  # "was it given" stays visible
        assert sum(length is not None for length in (one.epochs, one.samples, one.tokens)) == 1
        assert not any(source.path in CATALOG for source in one.dataset)


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


def test_short_forms_are_the_long_ones():
    short = load(stage(lr_schedule="cosine", validation=0.2, shuffle=True, samples=1e3))
    long = load(stage(lr_schedule={"name": "cosine"}, validation={"fraction": 0.2}, shuffle={}, samples=1000))
    assert short == long
    assert load(stage(validation="test")).stages[0].validation.split == "test"
    assert load(stage(shuffle=False)).stages[0].shuffle is False


def test_code_cannot_build_or_change_a_plan_against_the_rules():
    with pytest.raises(ValidationError, match="epochs and samples together"):
        Stage(name="one", dataset=[SourceSpec(path="a/b")], epochs=1, samples=1)
    with pytest.raises(ValidationError):
        load(stage()).stages[0].lr = 1


def test_the_reference_names_every_key_and_its_example_loads(tmp_path, monkeypatch):
    text = (ROOT / "docs" / "plans.md").read_text()
    special = [field.alias for field in Header.model_fields.values()]
    for key in (*StageBody.model_fields, *SourceSpec.model_fields, *ModelDefaults.model_fields, *special, *CATALOG):
        assert f"`{key}`" in text, key
    (tmp_path / "my_texts").mkdir()
    (tmp_path / "my_texts" / "a.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert len(load(text.partition("```json")[2].partition("```")[0]).stages) == 2
