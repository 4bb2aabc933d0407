"""Schedules: their shapes against torch's schedulers and closed forms, their parts at every step of a stage, and those that do not add up."""
from __future__ import annotations

import itertools
import math
from dataclasses import asdict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_files import faults, load, stage
from torch.optim import lr_scheduler as reference

from lmplay.errors import UserError
from lmplay.plan.load import plan_from_json
from lmplay.plan.names import SCHEDULES
from lmplay.plan.schedules import Chain, Place
from lmplay.plan.settings import Settings, resolve_stage

STEPS = 200


def chain(schedule: Any, **keys: Any) -> Chain:
    return load(stage(lr_schedule=schedule, **(keys or {"steps": STEPS}))).stages[0].lr_chain


def follow(of: Chain, steps: int = STEPS, samples: int = 3, tokens: int = 70) -> list[float]:
    """Give the factor of each step of a stage of `steps` steps, each of `samples` samples and `tokens` tokens, and after the last."""
    place, found = of.begin, []
    for step in range(steps + 1):
        now = {"progress": step / steps, "steps": step, "samples": step * samples, "tokens": step * tokens}
        place = of.move(place, now)
        found.append(of.value(place, now))
    return found


def of_torch(kind: Any, *arguments: Any, steps: int = STEPS, **options: Any) -> list[float]:
    """Give the factors of one of torch's schedulers."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = kind(optimizer, *arguments, **options), []
    for _ in range(steps + 1):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(("schedule", "expected"), [
    ("constant", lambda: [1.0] * (STEPS + 1)),
    ("linear", lambda: of_torch(reference.LinearLR, 1.0, 0.0, STEPS)),
    ({"name": "linear", "min_fraction": 0.25}, lambda: of_torch(reference.LinearLR, 1.0, 0.25, STEPS)),
    ("cosine", lambda: of_torch(reference.CosineAnnealingLR, STEPS, 0.1)),
    ({"name": "cosine", "to": 0.3}, lambda: of_torch(reference.CosineAnnealingLR, STEPS, 0.3)),
    ("wsd", lambda: of_torch(reference.LambdaLR, lambda step: 1.0 if step < 160 else (STEPS - step) / 40)),
    ("inverse_sqrt", lambda: of_torch(reference.LambdaLR, lambda step: math.sqrt((STEPS / 99) / (STEPS / 99 + step)))),
    ({"name": "inverse_sqrt", "to": 0.5}, lambda: of_torch(reference.LambdaLR, lambda step: math.sqrt((STEPS / 3) / (STEPS / 3 + step)))),
    ("step", lambda: of_torch(reference.MultiStepLR, [100, 150], 0.1)),
    ({"name": "step", "at": [0.25, 0.5, 0.75], "to": 0.125}, lambda: [*of_torch(reference.StepLR, 50, 0.5)[:-1], 0.125]),
    ("polynomial", lambda: of_torch(reference.PolynomialLR, STEPS, 2.0)),
    ({"name": "polynomial", "power": 0.5}, lambda: of_torch(reference.PolynomialLR, STEPS, 0.5)),
    ("plateau", lambda: [1.0] * (STEPS + 1)),
], ids=lambda value: None if callable(value) else str(value))
def test_shapes_are_those_of_torch(schedule, expected):
    assert follow(chain(schedule)) == pytest.approx(expected(), abs=1e-9)


def test_every_shape_has_been_compared():
    assert set(SCHEDULES) == {"constant", "linear", "cosine", "wsd", "inverse_sqrt", "step", "polynomial", "plateau"}


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"plateau"}))
def test_progress_past_the_end_is_the_end(name):
    found = chain(name)
    now = {"steps": 0, "samples": 0, "tokens": 0}
    assert found.value(found.begin, {**now, "progress": 1.3}) == found.value(found.begin, {**now, "progress": 1.0})


@given(losses=st.lists(st.integers(0, 6).map(float), max_size=60), patience=st.integers(1, 5), factor=st.floats(0.05, 0.95), lowest=st.floats(0, 0.9))
def test_a_plateau_drops_as_that_of_torch(losses, patience, factor, lowest):
    found = chain({"name": "plateau", "patience": patience, "factor": factor, "to": lowest})
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = reference.ReduceLROnPlateau(optimizer, patience=patience - 1, factor=factor, threshold=0.0, min_lr=lowest, eps=0.0)
    place, now = found.begin, {"progress": 0.5, "steps": 1, "samples": 1, "tokens": 1}
    for loss in losses:
        scheduler.step(loss)
        place = found.judged(place, loss)
        assert found.value(place, now) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9)


EXAMPLE = [{"name": "linear", "from": 0, "steps": 20}, {"name": "cosine", "to": 0.1, "steps": "rest"}, {"name": "linear", "to": 0, "samples": "5%"}]


@pytest.mark.parametrize("length", [{"steps": STEPS}, {"tokens": STEPS * 70}, {"samples": STEPS * 3}, {"epochs": 2}])
def test_parts_follow_each_other_whatever_the_unit_of_the_length(length):
    found = follow(chain(EXAMPLE, **length))
    expected = [step / 20 for step in range(20)]
    expected += [0.1 + 0.9 * (1 + math.cos(math.pi * (step - 20) / 170)) / 2 for step in range(20, 190)]
    expected += [0.1 * (STEPS - step) / 10 for step in range(190, STEPS + 1)]
    assert found == pytest.approx(expected, abs=1e-9)


def test_parts_in_every_unit():
    found = follow(chain([{"name": "linear", "from": 0, "to": 2, "tokens": 700}, {"name": "constant", "samples": 30},
                          {"name": "constant", "from": 1, "steps": 10}, {"name": "linear", "to": 0, "steps": "10%"},
                          {"name": "inverse_sqrt", "from": 0.5, "to": 0.25, "tokens": "rest"}]))
    assert found[:10] == pytest.approx([step / 5 for step in range(10)])
    assert found[10:20] == [2.0] * 10
    assert found[20:30] == [1.0] * 10
    assert found[30:50] == pytest.approx([1 - step / 20 for step in range(20)])
    assert found[50:] == pytest.approx([0.5 / math.sqrt(1 + 3 * step / 150) for step in range(151)])


def test_a_part_in_another_unit_ends_with_the_step_that_reaches_its_length():
    found = follow(chain([{"name": "constant", "from": 0.5, "samples": 31}, {"name": "linear", "from": 1, "steps": "rest"}]))
    assert found[:11] == [0.5] * 11
    assert found[11:] == pytest.approx([(STEPS - step) / (STEPS - 11) for step in range(11, STEPS + 1)])


def test_the_parts_behind_the_rest_end_with_the_stage_however_long_the_first_are():
    found = follow(chain([{"name": "linear", "from": 0, "samples": 10_000}, {"name": "constant", "steps": "rest"}, {"name": "linear", "steps": "10%"}]))
    assert found[179] == pytest.approx(179 * 3 / 10_000)
    assert found[180:] == pytest.approx([0.054 * (STEPS - step) / 20 for step in range(180, STEPS + 1)])


def test_a_part_goes_on_from_where_validations_have_left_a_plateau():
    found = chain([{"name": "linear", "from": 0, "steps": 10}, {"name": "plateau", "patience": 1, "steps": "rest"},
                   {"name": "linear", "to": 0, "steps": "10%"}])
    place, seen = found.begin, []
    for step in range(STEPS + 1):
        now = {"progress": step / STEPS, "steps": step, "samples": step, "tokens": step}
        place = found.move(place, now)
        seen.append(found.value(place, now))
        if step in (5, 20, 40, 190):
            place = found.judged(place, 3.0)  # the first is before the plateau, the last behind it
    assert seen[:11] == pytest.approx([step / 10 for step in range(11)])
    assert (seen[40], seen[41], seen[179]) == (1.0, 0.5, 0.5)
    assert seen[180:] == pytest.approx([0.5 * (STEPS - step) / 20 for step in range(180, STEPS + 1)])


def test_parts_that_are_counted_need_no_length():
    found = chain([{"name": "linear", "from": 0, "steps": 4}, {"name": "linear", "to": 0.5, "tokens": 40}, {"name": "constant", "samples": "rest"}], epochs=1)
    assert not found.needs_length
    place, seen = found.begin, []
    for step in range(12):
        now = {"progress": None, "steps": step, "samples": step, "tokens": 10 * step}
        place = found.move(place, now)
        seen.append(found.value(place, now))
    assert seen == pytest.approx([0, 0.25, 0.5, 0.75, 1, 0.875, 0.75, 0.625, 0.5, 0.5, 0.5, 0.5])


PARTS = st.lists(st.sampled_from(["linear", "cosine", "wsd", "polynomial"]), min_size=1, max_size=4)


@settings(max_examples=30)
@given(names=PARTS, weights=st.lists(st.integers(1, 20), min_size=4, max_size=4), ends=st.lists(st.floats(0, 1), min_size=4, max_size=4),
       rest=st.integers(-1, 3))
def test_parts_never_jump_and_end_where_they_should(names, weights, ends, rest):
    total = sum(weights[:len(names)]) + (rest >= len(names))
    parts = [{"name": name, "to": end, "steps": "rest" if number == rest else f"{weight / total * 100:.10f}%"}
             for number, (name, weight, end) in enumerate(zip(names, weights, ends, strict=False))]
    if rest >= len(names):
        parts.append({"name": "constant", "tokens": "rest"})
    found = follow(chain(parts), 2000)
    assert [chain(parts).at(step / 2000) for step in range(0, 2001, 97)] == pytest.approx(found[::97], abs=1e-9)
    steepest = 2000 * min(weights[:len(names)]) / total
    assert all(abs(after - before) <= 5 / steepest + 1e-6 for before, after in itertools.pairwise(found))
    assert found[-1] == pytest.approx(ends[len(names) - 1], abs=1e-6)


@given(st.sampled_from([EXAMPLE, [*EXAMPLE[:1], {"name": "constant", "samples": 50}, *EXAMPLE[1:]]]), st.integers(0, STEPS), st.integers(1, 7))
def test_a_place_is_all_that_has_to_be_kept(parts, stop, stride):
    """Whoever continues from a place reaches the same factors as who has never stopped."""
    found, now = chain(parts, tokens=1000), lambda step: {"progress": step / STEPS, "steps": step, "samples": 3 * step, "tokens": 5 * step}
    place = found.begin
    for step in range(stop + 1):
        place = found.move(place, now(step))
    again = Place(**asdict(place))
    for step in range(stop, STEPS + 1, stride):
        assert found.move(place, now(step)) == found.move(again, now(step))
        assert found.move(place, now(step)) == found.move(found.move(place, now(step)), now(step))


@pytest.mark.parametrize(("schedule", "warmup", "flags", "expected"), [
    ("cosine", None, {}, 40), (EXAMPLE, None, {}, 0), (EXAMPLE, 7, {}, 7), (EXAMPLE, None, {"optimizer_warmup_steps": 9}, 9), (EXAMPLE[2:2], None, {}, None)])
def test_a_list_of_parts_has_no_warm_up_of_its_own(schedule, warmup, flags, expected):
    if expected is None:
        assert "found []" in faults(stage(lr_schedule=schedule))[0]
        return
    more = {} if warmup is None else {"warmup": warmup}
    plan = load(stage(lr_schedule=schedule, steps=100, **more))
    assert resolve_stage(Settings(**flags, explicit=frozenset(flags)), plan.stages[0], 64).warmup == expected


def part(name="linear", **keys):
    return {"name": name, **keys}


REST = part("constant", steps="rest")


@pytest.mark.parametrize(("schedule", "length", "words"), [
    ([part(steps=5), part()], {}, ["key 'lr_schedule[1]'", "found no length", 'steps, samples, tokens with a number, a share of the stage such as "5%"']),
    ([REST, REST], {}, ["key 'lr_schedule[1]'", 'a second part with the length "rest"', "allowed: one"]),
    ([REST, part(steps=5)], {"tokens": 9}, ["'lr_schedule[1].steps'", 'found 5 behind the "rest", in a stage whose length is in tokens', '"5%" or tokens']),
    ([REST, part(steps=5)], {"epochs": 1}, ["'lr_schedule[1].steps'", "length is in epochs", 'allowed: a share such as "5%".']),
    ([part(steps=5), part(samples="90%")], {"samples": 100}, ["'lr_schedule'", "found steps", "length is in samples", 'no part with the length "rest"']),
    ([part(steps="50%"), part(steps="40.5%")], {}, ["'lr_schedule'", "found parts of 90.5% of the stage, allowed: 100% together", '"rest"']),
    ([part(steps="50%"), part(steps=60)], {"steps": 100}, ["'lr_schedule'", "found parts of 110% of the stage, allowed: 100% together."]),
    ([part(steps="50%"), REST, part(samples=60)], {"samples": 100}, ["found parts of 110% of the stage and a rest, allowed: less than 100%"]),
    ([part(steps=1, tokens=1), REST], {}, ["'lr_schedule[0].tokens'", "found steps and tokens together", "one of steps, samples, tokens"]),
    ([part(steps="0%"), REST], {}, ["'lr_schedule[0].steps'", 'found "0%"', 'a share of the stage such as "5%", or "rest"']),
    ([part(steps="101%"), REST], {}, ["'lr_schedule[0].steps'", 'found "101%"']),
    ([part(steps=0), REST], {}, ["'lr_schedule[0].steps'", "found 0", "a whole number, 1 or more"]),
    ([part("linea", steps=3), REST], {}, ["'lr_schedule[0].name'", 'found "linea"', "Did you mean 'linear'?"]),
    ([part(stpes=3), REST], {}, ["'lr_schedule[0].stpes'", "unknown key", "Did you mean 'steps'?", "Allowed: name, from, to,"]),
    ([part(**{"from": -1}, steps=3), REST], {}, ["'lr_schedule[0].from'", "found -1", "a number, 0 or more"]),
    ([part("plateau", steps=3), part("plateau", steps="rest")], {}, ["'lr_schedule'", "found plateau twice"]),
    ([part("step", **{"from": 0}, steps=3), REST], {}, ["'lr_schedule[0]'", "found step from 0 to 1", "numbers above 0"]),
    ([part(to=0, steps=3), part("inverse_sqrt", steps="rest")], {}, ["'lr_schedule[1]'", "found inverse_sqrt from 0 to 0.1", "numbers above 0"]),
    (part("inverse_sqrt", min_fraction=0), {}, ["'lr_schedule'", "found inverse_sqrt from 1 to 0", "numbers above 0"]),
    (part(to=0, min_fraction=0), {}, ["'lr_schedule.min_fraction'", "beside to"]),
    (part("constant", to=0.5), {}, ["'lr_schedule.to'", "with constant", "allowed: from"]),
    (part(**{"from": 0.5}), {}, ["'lr_schedule.from'", "outside a list of parts"]),
    (part(steps=5), {}, ["'lr_schedule.steps'", "outside a list of parts"]),
    (part(power=3), {}, ["'lr_schedule.power'", "found it with linear", "allowed: no settings"]),
    (part("polynomial", at=[0.5]), {}, ["'lr_schedule.at'", "found it with polynomial", "allowed: power"]),
    (part("step", at=[0.5, 1]), {}, ["'lr_schedule.at[1]'", "found 1", "numbers between 0 and 1"]),
    (part("plateau", factor=1), {}, ["'lr_schedule.factor'", "found 1", "a number between 0 and 1"]),
    ("plateau", {"validation": 0}, ["'lr_schedule'", "found plateau beside a validation fraction of 0"]),
    ([3], {}, ["'lr_schedule[0]'", "found 3", "or a list of such parts"]),
])
def test_what_does_not_add_up_is_refused_in_one_line(schedule, length, words):
    found = faults(stage(lr_schedule=schedule, **(length or {"steps": 100})))
    assert len(found) == 1
    assert "stage 'one'" in found[0]
    assert all(word in found[0] for word in words), found[0]


def test_the_length_of_a_stage_may_meet_a_schedule_of_the_defaults():
    good = {"$defaults": {"lr_schedule": [REST, part(tokens=50)]}, "a": {"dataset": "wikitext", "tokens": "1k"}}
    assert follow(load(good).stages[0].lr_chain, 20, tokens=50)[18:] == [1.0, 1.0, 0.0]
    found = faults({**good, "b": {"dataset": "wikitext", "steps": 9}})
    assert len(found) == 1
    assert "stage 'b', key 'lr_schedule[1].tokens'" in found[0]


def test_a_schedule_in_words():
    assert chain("cosine").in_words() == "cosine"
    assert chain({"name": "step", "at": [0.25, 0.5]}).in_words() == "step at 0.25, 0.5"
    assert chain(EXAMPLE, tokens=5000).in_words() == "linear from 0 to 1 (20 steps), then cosine to 0.1 (rest), then linear to 0 (5%)"


@pytest.mark.parametrize(("parts", "words"), [
    ([part(to=1, steps="rest")], ["'weight_decay.from'", "found nothing", "allowed: the value that it starts at"]),
    ([part(**{"from": 0}, steps="rest")], ["'weight_decay.to'", "found nothing", "allowed: the value that it ends at"]),
    ([part(**{"from": 0}, to=1, tokens=4), part(to=0, steps="rest")], ["'weight_decay[0].tokens'",
      "found 4, in a stage whose length is in steps", '"5%" or steps']),
    ([part(**{"from": 0}, to=1, steps=4)], ["'weight_decay'", "found parts of 4% of the stage, allowed: 100% together"]),
    ([part("plateau", **{"from": 1}, steps="rest")], ["'weight_decay[0].name'", 'found "plateau"', "allowed: constant, linear, cosine"]),
    ([part(**{"from": 0}, to=-1, steps="rest")], ["'weight_decay[0].to'", "found -1", "a number, 0 or more"]),
    ("linear", ["'weight_decay'", 'found "linear"', "allowed: a number, 0 or more, or a list of parts"]),
    ([], ["'weight_decay'", "found []", "a list of parts such as"])])
def test_weight_decay_that_does_not_add_up_is_refused_in_one_line(parts, words):
    found = faults(stage(weight_decay=parts, steps=100))
    assert len(found) == 1
    assert all(word in found[0] for word in words), found[0]


def test_weight_decay_by_parts():
    plan = load(stage(weight_decay=[part(**{"from": 0.1}, to=0.3, samples=100), part("polynomial", to=0, power=3, steps="rest")], samples=400))
    assert plan_from_json(plan.to_json()) == plan
    used = resolve_stage(Settings(), plan.stages[0], 64)
    assert used.weight_decay == 0.1
    assert [used.weight_decay_schedule.at(share) for share in (0, 0.125, 0.25, 0.5, 1)] == pytest.approx([0.1, 0.2, 0.3, 0.3 * (2 / 3) ** 3, 0])
    typed = resolve_stage(Settings(weight_decay=0.5, explicit=frozenset({"weight_decay"})), plan.stages[0], 64)
    assert (typed.weight_decay, typed.weight_decay_schedule) == (0.5, None)


@pytest.mark.parametrize(("keys", "words"), [
    ({"batch_size": [part(**{"from": 0.5}, to=8, steps="rest")]}, ["'batch_size[0].from'", "found 0.5, allowed: a number, 1 or more"]),
    ({"context_len": [part(**{"from": 16}, to=15, steps="rest")]}, ["'context_len[0].to'", "found 15, allowed: a number, 16 or more"]),
    ({"context_len": [part(to=64, steps="rest")]}, ["'context_len.from'", "found nothing"]),
    ({"batch_size": [part(**{"from": 4}, to=8, steps=7)]}, ["'batch_size'", "found parts of 7% of the stage"]),
    ({"batch_size": [part("plateau", **{"from": 4}, steps="rest")]}, ["'batch_size[0].name'", 'found "plateau"']),
    ({"batch_size": "4"}, ["'batch_size'", "a whole number, 1 or more, or a list of parts"]),
    ({"context_len": 15}, ["'context_len'", "found 15", "a whole number, 16 or more"])])
def test_sizes_that_do_not_add_up_are_refused_in_one_line(keys, words):
    found = faults(stage(steps=100, **keys))
    assert len(found) == 1
    assert all(word in found[0] for word in words), found[0]


def test_means_of_sizes_are_those_of_the_steps():
    plan = load(stage(batch_size=[part(**{"from": 2}, to=10, steps="50%"), part("constant", steps="rest")], context_len="1k", samples=1000))
    assert plan_from_json(plan.to_json()) == plan
    used = resolve_stage(Settings(), plan.stages[0], 2000)
    assert (used.batch_size, used.context_len) == (10, 1000)
    assert used.at_mean(in_steps=True).batch_size == 8
    samples = steps = 0
    while samples < 1000:
        samples += used.batch_size_schedule.at(samples / 1000)
        steps += 1
    assert used.at_mean(in_steps=False).batch_size == round(1000 / steps)


def test_a_place_of_another_schedule_is_refused():
    with pytest.raises(UserError, match="the file is at part 8 of a schedule of 1"):
        chain("linear").move(Place(part=7), {"progress": 0.5})
