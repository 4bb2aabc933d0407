"""Wrong plans: every mistake is one line that says where, what, and what is allowed; all of them at once."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_files import faults, source, stage

from lmplay.plan.schema import ModelDefaults, Overrides, SourceSpec, StageBody

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
    "list as schedule name": (stage(lr_schedule={"name": ["wsd"]}), ["key 'lr_schedule.name'", 'found ["wsd"]', "allowed: constant"]),
    "object as optimizer name": (stage(optimizer={"name": {"adamw": 1}, "eps": 1e-8}), ["key 'optimizer.name'", 'found {"adamw": 1}', "allowed: adamw"]),
    "list as an optimizer's kind": ({"$optimizer": [{"match": "*", "kind": ["sgd"]}], **stage()}, ["key '$optimizer[0].kind'", 'found ["sgd"]', "adamw"]),
    "list as objective": (stage(objective=["next_token"]), ["key 'objective'", 'found ["next_token"]', "allowed: next_token"]),
    "number as schedule": (stage(lr_schedule=3), ["key 'lr_schedule'", "found 3", "allowed: constant"]),
    "large min_fraction": (stage(lr_schedule={"name": "wsd", "min_fraction": 2}), ["key 'lr_schedule.min_fraction'", "found 2", "from 0 to 1"]),
    "number as shuffle": (stage(shuffle=1), ["key 'shuffle'", "found 1", "allowed: true, false, or"]),
    "weights far apart": (stage(dataset=[{"path": "wikitext", "weight": 1e6}, {"path": "tinystories", "weight": 1}]),
                          ["key 'dataset'", "found weights from 1 to 1e+06", "the largest at most 10,000 times the smallest"]),
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
    "unknown objective": (stage(objective="dpoo"), ["key 'objective'", 'found "dpoo"', "allowed: next_token"]),
    "two lengths": (stage(epochs=1, tokens=5), ["key 'tokens'", "found epochs and tokens together", "allowed: one of epochs, samples, tokens"]),
    "epochs of the endless": ({"one": {"dataset": "builtin:tales/2"}}, ["key 'dataset'", "builtin:tales/2", "never ends", "samples, tokens or steps"]),
    "endless in a mix": (stage(dataset=["wikitext", "builtin:tales"], epochs=1), ["key 'dataset'", "never ends", "samples, tokens or steps"]),
    "unknown built-in": (stage(dataset="builtin:tails", samples=9), ["key 'dataset'", 'found "builtin:tails"', "builtin:tales/4", "'builtin:tales'?"]),
    "unknown level": (stage(dataset="builtin:tales/5", samples=9), ["key 'dataset'", 'found "builtin:tales/5"', "allowed: builtin:tales"]),
    "built-in with config": (stage(dataset={"path": "builtin:tales", "config": "x"}, samples=9), ["key 'dataset.config'", "built-in corpus"]),
    "bare word": (stage(dataset="wikipeda"), ["key 'dataset'", 'found "wikipeda"', "(wikipedia, ", "owner/name", "Did you mean 'wikipedia'?"]),
    "bare word in a list": (stage(dataset=["wikitext", {"path": "wikitxt"}]), ["key 'dataset[1].path'", 'found "wikitxt"', "allowed: a short name"]),
    "too many slashes": (stage(dataset="a/b/c"), ["key 'dataset'", 'found "a/b/c"', "allowed: a short name"]),
    "missing file": (stage(dataset="./no/such.txt"), ["key 'dataset'", 'found "./no/such.txt"', "allowed: a file, folder or glob that exists"]),
    "missing by suffix": (stage(dataset="tales.JSONL"), ["key 'dataset'", 'found "tales.JSONL"', "allowed: a file, folder or glob that exists"]),
    "missing folder": (stage(dataset="my_texts/"), ["key 'dataset'", 'found "my_texts/"', "allowed: a file, folder or glob that exists (looked in"]),
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
    "default validation set": ({"$defaults": {"validation": {"dataset": "wikitxt"}}, **stage()}, ["key '$defaults.validation.dataset'", '"wikitxt"']),
    "default epochs, endless": (
        {"$defaults": {"epochs": 2}, "one": {"dataset": "builtin:tales"}}, ["stage 'one', key 'dataset'", "never ends", "samples, tokens or steps"]),
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
        "first": {"dataset": ["wikitxt", {"path": "a/b", "split": 1}], "lr": 0, "epochs": 1, "samples": 1},
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
