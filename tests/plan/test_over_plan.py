"""`$lr_schedule`: one schedule over all stages of a plan."""
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_files import faults, load

from lmplay.errors import UserError
from lmplay.plan.curriculum import Curriculum, changes_to_come
from lmplay.plan.follow import with_sizes
from lmplay.plan.load import plan_from_json
from lmplay.plan.schema import Plan
from lmplay.plan.settings import Settings, resolve_stage

PARTS = [{"name": "linear", "from": 0, "tokens": 100}, {"name": "cosine", "to": 0.2, "tokens": "rest"}, {"name": "linear", "to": 0, "tokens": "10%"}]


def plan_of(lengths: list[int], schedule, unit: str = "tokens", **more) -> Plan:
    return load({"$lr_schedule": schedule, **more, **{f"s{number}": {"dataset": "wikitext", unit: length} for number, length in enumerate(lengths)}})


def followed(plan: Plan, every: int) -> list[float]:
    """Give the factors of a run through the stages, one each `every` tokens, as the trainer asks for them."""
    found = []
    for stage in plan.stages:
        chain, length, done = stage.lr_chain, stage.length[1], 0
        place = chain.begin
        while done < length:
            now = {"progress": done / length, "steps": done, "samples": done, "tokens": done}
            place = chain.move(place, now)
            found.append(chain.value(place, now))
            done += every
    return found


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.sampled_from(["cosine", "wsd", {"name": "polynomial", "power": 3}, PARTS]))
def test_stages_follow_it_as_one_stage_of_their_length_would(lengths, schedule):
    lengths = [*(100 * length for length in lengths), 500]
    apart, whole = plan_of(lengths, schedule), plan_of([sum(lengths)], schedule)
    own = load({"s0": {"dataset": "wikitext", "tokens": sum(lengths), "lr_schedule": schedule}})
    assert followed(apart, 20) == pytest.approx(followed(whole, 20), abs=1e-12)
    assert followed(whole, 20) == pytest.approx(followed(own, 20), abs=1e-12)
    assert [stage.lr_chain.in_words() for stage in plan_from_json(apart.to_json()).stages] == [stage.lr_chain.in_words() for stage in apart.stages]


def test_a_plan_that_gets_longer_on_the_way_goes_on_where_it_is_now():
    short, long = plan_of([1000], "wsd"), plan_of([1000, 1000], "wsd")
    now = {"progress": 0.9, "steps": 9, "samples": 9, "tokens": 900}
    chain = short.stages[0].lr_chain
    place = chain.move(chain.begin, now)
    assert chain.value(place, now) == pytest.approx(0.5)
    chain = long.stages[0].lr_chain
    assert chain.value(chain.move(place, now), now) == 1.0


def test_a_length_that_a_flag_gives_is_that_of_the_schedule():
    parts = [{"name": "linear", "from": 0, "tokens": 1000}, {"name": "constant", "tokens": "rest"}]
    [stage] = with_sizes(plan_of([2000], parts), {}, 1_000_000).stages
    now = {"progress": 0.001}
    assert stage.lr_chain.value(stage.lr_chain.move(stage.lr_chain.begin, now), now) == pytest.approx(1.0)
    in_steps = [{"name": "linear", "from": 0, "steps": 10}, {"name": "constant", "steps": "rest"}]
    with pytest.raises(UserError, match="found 10, in a plan whose lengths are in tokens"):
        with_sizes(plan_of([100], in_steps, "steps"), {}, 1_000_000)


def test_a_plan_that_gets_longer_goes_on_and_says_so():
    before, now = Curriculum(plan_of([1000], "cosine")), Curriculum(plan_of([1000, 1000], "cosine"))
    state = before.state()
    state["stages"][0]["fingerprints"] = [{}]
    now.check_past(before.plan.to_json(), state)
    assert changes_to_come(before.plan, now.plan, {"s0"}) == ["stage 's0' has another share of $lr_schedule: 0 to 1 -> 0 to 0.5", "stage 's1' is new"]
    with pytest.raises(UserError, match="has been begun and differs in this plan: share_of_plan"):
        Curriculum(plan_of([1000], "linear")).check_past(before.plan.to_json(), state)


def test_a_stage_whose_optimizer_goes_on_has_no_warm_up():
    assert [resolve_stage(Settings(), stage, 64).warmup for stage in plan_of([10, 10], "cosine").stages] == [40, 0]
    assert [resolve_stage(Settings(), stage, 64).warmup for stage in plan_of([1000, 10], PARTS).stages] == [0, 0]
    stages = {name: {"dataset": "wikitext", "tokens": 9, **more} for name, more in (("a", {}), ("b", {"optimizer": "muon"}), ("c", {"optimizer": "muon"}))}
    assert [resolve_stage(Settings(), stage, 64).warmup for stage in load({"$lr_schedule": "cosine", **stages}).stages] == [40, 40, 0]


@pytest.mark.parametrize(("plan", "words"), [
    ({"$lr_schedule": "cosine", "a": {"dataset": "wikitext", "tokens": 5}, "b": {"dataset": "wikitext"}},
     ["key '$lr_schedule'", "stage 'b' with a length in epochs", "one of steps, samples, tokens"]),
    ({"$lr_schedule": "cosine", "a": {"dataset": "wikitext", "tokens": 5}, "b": {"dataset": "wikitext", "steps": 5}}, ["stage 'b' with a length in steps"]),
    ({"$lr_schedule": "cosine", "a": {"dataset": "wikitext", "lr_schedule": "linear"}}, ["key '$lr_schedule'", "stage 'a'", "of its own"]),
    ({"$lr_schedule": "cosine", "$defaults": {"lr_schedule": "linear"}, "a": {"dataset": "wikitext"}}, ["stage 'a'", "$defaults"]),
    ({"$lr_schedule": "plateau", "a": {"dataset": "wikitext"}}, ["key '$lr_schedule'", "found plateau"]),
    ({"$lr_schedule": [{"name": "linear", "steps": 5}, {"name": "constant", "steps": "rest"}], "a": {"dataset": "wikitext", "tokens": 50}},
     ["key '$lr_schedule[0].steps'", "found 5, in a plan whose lengths are in tokens", '"5%" or tokens']),
    ({"$lr_schedule": [{"name": "linear", "steps": "5%"}], "a": {"dataset": "wikitext"}}, ["key '$lr_schedule'", "5% of the plan", "100% together"]),
    ({"$lr_schedule": {"name": "linear", "from": 0.5}, "a": {"dataset": "wikitext"}}, ["key '$lr_schedule.from'", "outside a list of parts"]),
    ({"$lr_schedule": "cosin", "a": {"dataset": "wikitext"}}, ["key '$lr_schedule'", "Did you mean 'cosine'"]),
])
def test_what_does_not_fit_is_refused_in_one_line(plan, words):
    found = faults(plan)
    assert len(found) == 1
    assert all(word in found[0] for word in words), found[0]
