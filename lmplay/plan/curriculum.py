"""The position in a plan: the curriculum component of a checkpoint.  No torch."""
from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..errors import UserError
from .catalog import CATALOG
from .load import plan_from_json, shown
from .schema import Plan, SourceSpec, Stage

# The rules by which a stage makes samples and batches of its data where the plan does not say it. A stage that has begun keeps those that it began with:
# 1 = a tenth of the rows is held out, however many they are, wikitext is read line by line, and the pieces of a sample are together; 2 = at most 5,000 rows are
# held out, wikitext is read as articles, and pieces are spread; 3 = the held-out rows that a validation judges are from the whole of a source whose rows have
# numbers, not the first ones.
DATA_RULES = 3


@dataclass
class StageState:
    """How far a stage has been trained.

    `position` is where its samples go on (None = at the start), `fingerprints` identify the data of its sources (None = the stage has not begun), and
    `context_len` is the length that its texts are cut to. `judged_by` identifies the samples of its validations. For early stopping, `best_loss` is the best
    validation loss so far and `stale` the number of validations since (a drop below `min_delta` does not count). `validation_due` says that a validation was
    to follow the last step, and `validated` are the run's counts at the last one, or at the start of the stage (see :class:`lmplay.cadence.Cadence`; older
    files have none). `evaluated` are those counts for each named set, and `evaluation_due` lists the named sets that were to be evaluated after the last step
    and have not been. `reference` names the log-probabilities that an objective compares with (`engine.reference`). `lowest_loss` is the lowest loss of its
    validations, and `lowest_samples` the run's samples at that time. `rules` are the :data:`DATA_RULES` that it began with.
    """

    name: str
    done: bool = False
    position: dict[str, Any] | None = None
    fingerprints: list[dict[str, Any]] | None = None
    context_len: int | None = None
    best_loss: float | None = None
    stale: int = 0
    validation_due: bool = False
    validated: dict[str, float] | None = None
    lowest_loss: float | None = None
    lowest_samples: int | None = None
    judged_by: str | None = None
    rules: int = DATA_RULES
    evaluated: dict[str, dict[str, float]] = field(default_factory=dict)
    evaluation_due: list[str] = field(default_factory=list)
    reference: str | None = None


class Curriculum:
    """A plan and how far it has been trained."""

    name = "curriculum"

    def __init__(self, plan: Plan):
        self.plan = plan
        self.states = [StageState(stage.name) for stage in plan.stages]

    @property
    def number(self) -> int:
        """The number of the first stage that is not done, from 0; the number of stages when all are done."""
        return next((i for i, state in enumerate(self.states) if not state.done), len(self.states))

    @property
    def is_done(self) -> bool:
        """Whether every stage has been done."""
        return self.number == len(self.states)

    def remaining(self) -> list[tuple[Stage, StageState]]:
        """List the stages that are not done, in order."""
        return list(zip(self.plan.stages, self.states, strict=True))[self.number:]

    def state_args(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {"plan": self.plan.to_json()}

    def state(self) -> dict[str, Any]:
        """See :class:`lmplay.component.Component`."""
        return {"stages": [asdict(state) for state in self.states]}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint's position; the plans must agree in all stages that have begun (:meth:`check_past`)."""
        known = {one.name for one in fields(StageState)}  # files of version 0.1 have more
        begun = [StageState(**{"rules": 1, **{key: value for key, value in stage.items() if key in known}})
                 for stage in state["stages"] if stage["fingerprints"] is not None]
        self.states[:len(begun)] = begun
        stages = [_by_rules(stage, state.rules) for stage, state in zip(self.plan.stages, self.states, strict=True)]
        self.plan = self.plan.model_copy(update={"stages": stages})

    def check_past(self, stored_plan: dict[str, Any], stored: dict[str, Any]) -> None:
        """Check that this plan agrees with that of a checkpoint in all stages that have begun; the others may differ.

        :param stored_plan: the checkpoint's plan, as :meth:`Plan.to_json` wrote it.
        :param stored: the checkpoint's state of the curriculum.
        :raises UserError: naming each begun stage that differs, and what the user can do.
        """
        faults = []
        before = plan_from_json(stored_plan)
        for i, (stage, state) in enumerate(zip(before.stages, stored["stages"], strict=True)):
            if state["fingerprints"] is None:
                continue
            now = _by_rules(self.plan.stages[i], state.get("rules", 1)) if i < len(self.plan.stages) else None
            if now is None or _that_trains(now) != _that_trains(stage):
                faults.append(f"stage '{stage.name}' has been {'done' if state['done'] else 'begun'} and differs in this plan: {_differences(stage, now)}.")
        if faults:
            raise UserError(*faults, "Give the plan that this model was trained with, another --model file, or --reset-history to start over.")


def changes_to_come(before: Plan, now: Plan, begun: set[str]) -> list[str]:
    """List the differences between a checkpoint's plan and the present one in the stages that have not begun (`begun` names the others).

    :return: a line each for a stage that has changed, come or gone, and one for their order.
    """
    old, new = ({stage.name: stage for stage in plan.stages if stage.name not in begun} for plan in (before, now))
    both = [name for name in old if name in new]
    shares = {name: [_with_any_share(stages[name]) for stages in (old, new)] for name in both}
    lines = [f"stage '{name}' (not begun): {_differences(*pair)}" for name, pair in shares.items() if pair[0] != pair[1]]
    lines += [f"stage '{name}' has another share of $lr_schedule: {words[0]} -> {words[1]}" for name, words in _shares(before, now).items()
              if words[0] != words[1]]
    lines += [f"stage '{name}' is new" for name in new if name not in old]
    lines += [f"stage '{name}' is gone (it had not begun)" for name in old if name not in new]
    if both != [name for name in new if name in old]:
        lines.append(f"the stages to come have another order: {', '.join(new)}")
    return lines


def _shares(before: Plan, now: Plan) -> dict[str, list[str]]:
    """Say in words which share of a schedule over the plan the stages have that are in both plans."""
    old = {stage.name: stage.share_of_plan for stage in before.stages}
    return {stage.name: [f"{share.begin:.4g} to {share.end:.4g}" for share in (there, stage.share_of_plan)] for stage in now.stages
            if stage.share_of_plan is not None and (there := old.get(stage.name)) is not None}


def changed_sets(before: Plan, now: Plan) -> list[str]:
    """List the stages in both plans whose named sets differ, a line each."""
    old = {stage.name: stage for stage in before.stages}
    pairs = [(old[stage.name].model_copy(update={"evaluate": stage.evaluate}), old[stage.name]) for stage in now.stages if stage.name in old]
    return [f"stage '{new.name}': {_differences(was, new)}" for new, was in pairs if new != was]


def changed_rewards(before: Plan, now: Plan) -> list[str]:
    """List the stages in both plans that judge answers by other rewards, a line each."""
    old, new = ({stage.name: [reward.to_spec() for reward in stage.objective.rewards or ()] for stage in plan.stages if stage.objective}
                for plan in (before, now))
    return [f"stage '{name}': rewards were {show(old[name] or None)}, are {show(new[name] or None)}" for name in new if name in old and old[name] != new[name]]


def _that_trains(stage: Stage) -> Stage:
    """Remove what may change in a stage that has begun: named sets, rewards, and the paths of local files, which may have been moved; their contents are
    compared when they are opened. Which share of a schedule over the plan a stage has may change, too: the plan may become longer."""
    def blank(spec: SourceSpec) -> SourceSpec:
        return spec.model_copy(update={"path": "local"}) if os.path.isabs(spec.path) else spec

    objective = stage.objective and stage.objective.model_copy(update={"rewards": None})
    return _with_any_share(_with_sources(stage, blank)).model_copy(update={"evaluate": None, "objective": objective})


def _with_any_share(stage: Stage) -> Stage:
    """Copy a stage without how much of the plan it is, which decides its share of a schedule over the plan."""
    share = stage.share_of_plan
    if share is None:
        return stage
    return stage.model_copy(update={"share_of_plan": share.model_copy(update={"unit": "", "length": 1.0, "begin": 0.0, "end": 1.0})})


def _by_rules(stage: Stage, rules: int) -> Stage:
    """Give a stage as it was when short names of data sets had the meaning of other :data:`DATA_RULES`."""
    joined = [(entry.source["path"], entry.source.get("config")) for entry in CATALOG.values() if entry.source.get("rows") == "articles"]

    def as_lines(spec: SourceSpec) -> SourceSpec:
        return spec.model_copy(update={"rows": None}) if (spec.path, spec.config) in joined else spec

    return stage if rules >= 2 else _with_sources(stage, as_lines)


def _with_sources(stage: Stage, change: Callable[[SourceSpec], SourceSpec]) -> Stage:
    """Copy a stage with each of its sources changed."""
    validation = stage.validation
    if validation is not None and validation.dataset is not None:
        validation = validation.model_copy(update={"dataset": change(validation.dataset)})
    return stage.model_copy(update={"dataset": [change(spec) for spec in stage.dataset], "validation": validation})


def _differences(before: Stage, now: Stage | None) -> str:
    """Write the keys of a stage that differ, with old and new values."""
    if now is None:
        return "it is not there any more"
    old, new = (stage.model_dump(exclude_none=True, by_alias=True) for stage in (before, now))
    return "; ".join(f"{key} was {was}, is {now_}" for key in {**old, **new} if old.get(key) != new.get(key)
                     for was, now_ in [_shown_apart(old.get(key), new.get(key))])


def _shown_apart(old: Any, new: Any) -> tuple[str, str]:
    """Write two values that differ; of two objects with the same name the keys that differ, as the others could fill the line."""
    if isinstance(old, dict) and isinstance(new, dict) and old.get("name") == new.get("name"):
        keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        old, new = ({key: one.get(key) for key in keys} for one in (old, new))
    return show(old), show(new)


def show(value: Any) -> str:
    """Write a value as a plan would hold it, cut short."""
    return "not given" if value is None else shown(value, 100)
