"""The table of flags is the only one: plans, documents and refusals agree with it."""
import re

import pytest
from helpers import ROOT
from pydantic import ValidationError

from lmplay.data.continuation import SMALLEST_CONTEXT
from lmplay.errors import UserError
from lmplay.plan.options import FLAGS, Change, Number
from lmplay.plan.schema import Header, ModelDefaults, Overrides, SourceSpec, StageBody
from lmplay.plan.settings import MODEL_KEYS
from lmplay.train.flags import flags_page, parse

PLACES = {"stage": Overrides, "model": ModelDefaults, "top": Header}
SHARED = [(flag, place) for flag in FLAGS for place in flag.keys]


def table(text: str, heading: str) -> list[str]:
    """Give the rows of a table, found by the first cell of its heading."""
    lines = iter(text.splitlines())
    assert any(line.startswith(f"| {heading} |") for line in lines), heading
    return [line for line in iter(lambda: next(lines, ""), "") if line.startswith("|")][1:]


def first_cells(text: str, heading: str) -> list[str]:
    """Give the words in code that begin the rows of a table."""
    return [word for row in table(text, heading) for word in re.findall(r"`([^`]+)`", row.split("|")[1])]


def test_the_page_of_flags_is_made_from_the_table_and_has_each_flag(capsys):
    page = (ROOT / "docs" / "flags.md").read_text()
    assert page == flags_page()  # CONTRIBUTING.md says how to write it again
    with pytest.raises(SystemExit):
        parse(["--help-all"])
    for option in re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE):
        assert re.search(rf"^\| `(-h`, `)?{option}[ `]", page, re.MULTILINE), option
    assert not re.search(r"\| (True|False|None|==SUPPRESS==) \|", page)


def test_the_reference_of_plans_names_exactly_the_keys_there_are():
    text = (ROOT / "docs" / "plans.md").read_text()
    stages = text[text.index("## Stage"):]
    assert sorted(first_cells(text, "key")) == sorted(str(field.alias) for field in Header.model_fields.values())
    assert sorted(first_cells(stages, "key")) == sorted(StageBody.model_fields)
    assert sorted(first_cells(stages, "key of a source object")) == sorted(SourceSpec.model_fields)
    model = next(row for row in table(text, "key") if "`$model`" in row)
    assert sorted(re.findall(r"`([a-z_]+)`", model)) == sorted(ModelDefaults.model_fields)


@pytest.mark.parametrize(("flag", "place"), SHARED, ids=[f"{place}.{flag.name}" for flag, place in SHARED])
def test_a_plan_key_has_the_limits_of_its_flag(flag, place):
    part = PLACES[place]
    name = {field.alias: key for key, field in part.model_fields.items()}.get(f"${flag.name}", flag.name)
    assert part.model_fields[name].title == flag.keys[place]
    if not isinstance(flag.check, Number):
        return
    edges = {flag.check.low} | ({flag.check.high} if flag.check.high < float("inf") else set())
    for value in (edge + step for edge in edges for step in (-1, -0.5, 0, 0.5, 1)):
        def allows(check, value=value):
            try:
                check(value)
            except (ValueError, ValidationError):
                return False
            return True

        assert allows(flag.check) == allows(lambda number: part.model_validate({name: number})), value


def test_the_smallest_context_is_that_of_flags_and_plans():
    check = next(flag.check for flag in FLAGS if flag.name == "context_len")
    for part in (Overrides, ModelDefaults):
        assert check(SMALLEST_CONTEXT) == part(context_len=SMALLEST_CONTEXT).context_len
        with pytest.raises(ValidationError):
            part(context_len=SMALLEST_CONTEXT - 1)
    with pytest.raises(ValueError, match=f"from {SMALLEST_CONTEXT}"):
        check(SMALLEST_CONTEXT - 1)


def test_a_setting_that_shapes_a_new_model_is_a_key_of_model():
    assert {*MODEL_KEYS, "exp", "settings"} == {*ModelDefaults.model_fields}
    assert {flag.name for flag in FLAGS if flag.change is Change.LOCKED} >= {*MODEL_KEYS} - {"context_len"}


@pytest.mark.parametrize(("arguments", "fault"), [
    (["--dataset", "a.txt", "--training-plan", "quickstart"], "--dataset and --training-plan together"),
    (["--mini-batch-size", "2", "--mini-batch-tokens", "100"], "--mini-batch-size and --mini-batch-tokens together"),
    (["--activation-memory-budget", "0.5"], "--activation-memory-budget 0.5: is for compiled code"),
    (["--activation-memory-budget", "0.5", "--activation-checkpointing", "on", "--compile-model"],
     "--activation-memory-budget and --activation-checkpointing together"),
    (["--resume", "best", "--reset-history"], "--resume best and --reset-history together"),
    (["--describe", "--show-samples", "1"], "--describe and --show-samples together"),
    (["--quiet", "--verbose"], "--quiet and --verbose together"),
    (["--json"], "--json: is for --check-plan"),
    (["--shard-reduce-dtype", "bfloat16"], "--shard-reduce-dtype bfloat16: says how --shard sums gradients; add --shard"),
])
def test_flags_that_contradict_each_other_are_refused(arguments, fault):
    with pytest.raises(UserError) as error:
        parse(arguments)
    assert len(error.value.faults) == 1
    assert error.value.faults[0].startswith(fault)


def test_all_contradictions_are_said_at_once():
    with pytest.raises(UserError) as error:
        parse(["--quiet", "--verbose", "--json"])
    assert len(error.value.faults) == 2


@pytest.mark.parametrize("arguments", [
    [], ["--dataset", "a.txt"], ["--mini-batch-size", "2"], ["--mini-batch-tokens", "100"], ["--pack", "on"], ["--pack", "on", "--compile-model"],
    ["--activation-memory-budget", "0.5", "--compile-model"], ["--activation-checkpointing", "on"], ["--resume", "best"], ["--reset-history"],
    ["--resume", "latest", "--reset-history"], ["--describe"], ["--quiet"], ["--verbose"], ["--show-samples", "1", "--json"]])
def test_flags_that_go_together_are_taken(arguments):
    assert parse(arguments)[0].conflicts() == []
