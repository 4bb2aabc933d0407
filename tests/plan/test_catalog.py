"""Short names of data sets, and sources that never end."""
from __future__ import annotations

from plan_files import faults, load, stage

from lmplay.data.tales import LEVELS
from lmplay.data.tales.asked import COLUMNS
from lmplay.plan.catalog import BUILTINS, CATALOG, is_endless
from lmplay.plan.schema import SourceSpec


def test_short_names_stand_for_sources_and_own_keys_win():
    (stage,) = load({"one": {"dataset": ["wikitext", {"path": "wikipedia", "config": "20231101.de", "split": None}]}}).stages
    assert stage.dataset[0] == SourceSpec(path="Salesforce/wikitext", config="wikitext-103-raw-v1", streaming=False, rows="articles")
    assert stage.dataset[1] == SourceSpec(path="wikimedia/wikipedia", config="20231101.de")
    assert load({"one": {"dataset": {"path": "wikitext", "config": None}}}).stages[0].dataset == [stage.dataset[0]]


def test_an_endless_source_may_end_with_another():
    mixed = stage(dataset=["wikitext", "builtin:tales"], epochs=2, stopping="first_exhausted")
    assert load(mixed).stages[0].epochs == 2
    assert faults(stage(dataset=["builtin:tales/1", "builtin:tales/2"], epochs=2, stopping="first_exhausted"))
    assert load({"$defaults": {"samples": 9}, "one": {"dataset": "builtin:tales?seed=3"}}).stages[0].samples == 9


def test_the_catalog_is_made_of_valid_sources():
    for name, entry in CATALOG.items():
        assert entry.description
        assert SourceSpec(path=name) == SourceSpec(**entry.source)
        assert "/" not in name
    assert all(is_endless(name) for name in BUILTINS)
    assert {f"builtin:tales/{level}" for level in LEVELS} | {f"builtin:{kind}" for kind in COLUMNS} == {*BUILTINS[1:]}
