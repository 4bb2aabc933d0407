"""Which of two ideas is better, and whether that is more than noise.  Plotstats floor: runs, table, words, numpy and the ground.

Two runs are compared on the samples that both have judged, each sample with itself. Runs that differ in the seed alone are one idea; several seeds show how
much two runs of one idea differ.
"""
from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import numpy as np

from ..plan.options import FLAGS, Change
from ..plan.used import VALIDATIONS, flat_settings
from ..stats.totals import HELD_OUT, VALIDATION
from ..words import counted
from .runs import Curve, Floats, JudgedSet

LEVEL = 0.95
_POINTS = 20_000
_FLAGS = {flag.name for flag in FLAGS if flag.change is not Change.ASIDE} - {"seed"}


@dataclass(frozen=True)
class Idea:
    """A run, or several that differ in the seed alone."""

    name: str
    runs: tuple[Curve, ...]

    @property
    def label(self) -> str:
        """The name with the number of its seeds."""
        return self.name if len(self.runs) == 1 else f"{self.name} ({len(self.runs)} seeds)"

    @property
    def models(self) -> list[str]:
        """The names of its runs."""
        return [run.model for run in self.runs]


@dataclass(frozen=True)
class Comparison:
    """An idea against the baseline, on one set of samples; losses are the means over the seeds, per token or, where tokens differ, in bits per byte.

    The difference is the idea's loss minus the baseline's; `low` and `high` are the ends of its interval of 95 %. `single` names those of
    the two that have one seed.
    """

    idea: str
    baseline: str
    set: str
    samples: int
    unit: str
    loss: float
    baseline_loss: float
    difference: float
    low: float
    high: float
    single: tuple[str, ...]

    @property
    def more_than_noise(self) -> bool:
        """Whether zero lies outside the interval."""
        return self.low > 0 or self.high < 0

    @property
    def set_in_words(self) -> str:
        """The set's name as people read it."""
        return "held out" if self.set == HELD_OUT else self.set

    @property
    def verdict(self) -> str:
        """Say in words which is better."""
        of = "the samples" if len(self.single) == 2 else "samples and seeds"
        better = f"{self.idea if self.difference < 0 else self.baseline} is better, by more than the noise of {of}"
        said = better if self.more_than_noise else f"no difference beyond the noise of {of}"
        if len(self.single) == 1:
            return f"{said}; {self.single[0]} has a single seed, whose noise is taken to be that of the other's seeds"
        return said + ("; a single seed each says nothing about the noise of seeds" if self.single else "")

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "more_than_noise": self.more_than_noise, "verdict": self.verdict}


def ideas_of(curves: Sequence[Curve], settings: Mapping[str, dict[str, Any]]) -> list[Idea]:
    """Put the runs that differ in the seed alone together. A run with the seed of another says nothing about the noise of seeds: it stands apart.

    :param curves: one of each run.
    :param settings: by run; a run without settings stands alone.
    """
    by_settings: dict[tuple[str, int], list[Curve]] = {}
    seeds = Counter[tuple[str, Any]]()
    for curve in curves:
        known = settings.get(curve.model)
        key = json.dumps(_that_matter(known), sort_keys=True) if known else curve.model
        seed = (key, known.get("seed") if known else None)
        by_settings.setdefault((key, seeds[seed]), []).append(curve)
        seeds[seed] += 1
    return [Idea(_common_name([run.model for run in runs]), tuple(runs)) for runs in by_settings.values()]


def baseline_of(ideas: Sequence[Idea], baseline: str | None) -> Idea:
    """Choose the idea that the others are compared with: that of the run `baseline`, or that of the run with most samples, the first of equals."""
    if baseline is not None:
        return next(idea for idea in ideas if baseline in idea.models)
    return max(ideas, key=lambda idea: max(run.last("samples") if len(run.columns["samples"]) else -1.0 for run in idea.runs))


def compare(ideas: Sequence[Idea], baseline: Idea) -> list[Comparison]:
    """Compare each idea with the baseline, on each set of samples that all runs of both have judged."""
    found: list[Comparison] = []
    for idea in ideas:
        if idea is not baseline:
            runs = [*baseline.runs, *idea.runs]
            sets = [name for name in runs[0].judged if all(name in run.judged for run in runs)]
            if HELD_OUT in sets:
                sets.remove(VALIDATION)  # these samples are among those
            found += filter(None, (_compare(idea, baseline, name) for name in sets))
    return found


def _compare(idea: Idea, baseline: Idea, name: str) -> Comparison | None:
    """Compare two ideas on a set; None with fewer than two samples in common.

    The variance of the difference has a part of the samples, of which others might have been drawn (of a ratio, paired: Cochran 1977, "Sampling Techniques",
    chapter 6), and a part of each idea's seeds, which for an idea with one is taken to be that of the other's. Degrees of freedom by Satterthwaite (1946, "An
    approximate distribution of estimates of variance components").
    """
    sides = [[run.judged[name] for run in one.runs] for one in (idea, baseline)]
    common = set.intersection(*({*one.identity} for side in sides for one in side))
    chosen = [[_chosen(one, common) for one in side] for side in sides]
    if len(common) < 2:
        return None
    tokens = [values[1] for side in chosen for values in side]
    by_token = all(np.array_equal(one, tokens[0]) for one in tokens)
    unit, factor, column = ("nats per token", 1.0, 1) if by_token else ("bits per byte", 1 / math.log(2), 2)
    losses, residuals, parts, seeds = [], [], [], list[float]()
    for side in chosen:
        ratios = np.array([values[0].sum() / values[column].sum() for values in side]) * factor
        mean = sum(values[0] * factor / values[column].sum() for values in side) / len(side)
        weight = sum(values[column] / values[column].sum() * ratio for values, ratio in zip(side, ratios, strict=True)) / len(side)
        losses.append(float(ratios.mean()))
        residuals.append(mean - weight)
        if len(side) > 1:
            seeds.append(float(ratios.var(ddof=1)))
            parts.append((seeds[-1] / len(side), len(side) - 1))
    single = tuple(one.label for one in (idea, baseline) if len(one.runs) == 1)
    if len(single) == 1:
        most = max(len(side) for side in chosen)
        parts = [(seeds[0] * (1 + 1 / most), most - 1)]
    n = len(common)
    parts.append((n / (n - 1) * float(np.square(residuals[0] - residuals[1]).sum()), n - 1))
    variance = sum(part for part, _ in parts)
    freedom = variance ** 2 / sum(part ** 2 / degrees for part, degrees in parts) if variance else 1.0
    half, difference = student_quantile(freedom) * math.sqrt(variance), losses[0] - losses[1]
    return Comparison(idea.label, baseline.label, name, n, unit, losses[0], losses[1], difference, difference - half, difference + half, single)


def student_quantile(freedom: float, level: float = LEVEL) -> float:
    """Compute how far from zero Student's t is with a probability of `level`.

    With t = √freedom tan θ its density is proportional to cos^(freedom - 1) θ.
    """
    angles = np.linspace(0, math.pi / 2, _POINTS + 1)
    density = np.cos((angles[1:] + angles[:-1]) / 2) ** (freedom - 1)
    share = np.concatenate([[0.0], np.cumsum(density)]) / density.sum()
    return float(math.sqrt(freedom) * np.tan(np.interp(level, share, angles)))


def comparison_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """Say for people what was compared."""
    lines = []
    for one in comparisons:
        lines.append(f"{one.idea} against {one.baseline}, {counted(one.samples, 'sample')} of {one.set_in_words}: {one.loss:.4f} and "
                     f"{one.baseline_loss:.4f} {one.unit}")
        lines.append(f"  difference {one.difference:+.4f}, 95 % interval {one.low:+.4f} to {one.high:+.4f}: {one.verdict}")
    return lines


def describe_ideas(ideas: Sequence[Idea]) -> list[dict[str, Any]]:
    """List the ideas with several seeds: runs, mean and standard deviation (`spread`) of their validation losses (None = unknown)."""
    found = []
    for idea in [idea for idea in ideas if len(idea.runs) > 1]:
        losses = np.array([run.last("loss") for run in idea.runs])
        known = bool(np.isfinite(losses).all())
        found.append({"name": idea.name, "models": idea.models, "n": len(losses), "mean": float(losses.mean()) if known else None,
                      "spread": float(losses.std(ddof=1)) if known else None})
    return found


def idea_lines(ideas: Sequence[Idea]) -> list[str]:
    """Say for people which runs are one idea."""
    return [f"{group['name']}: {group['n']} seeds ({', '.join(group['models'])})"
            + (f", validation loss {group['mean']:.4f}, spread over the seeds {group['spread']:.4f}" if group["mean"] is not None else "")
            for group in describe_ideas(ideas)]


def _chosen(judged: JudgedSet, common: set[int]) -> tuple[Floats, Floats, Floats]:
    """Give losses, tokens and bytes of samples, in the order of their identities."""
    where = {identity: index for index, identity in reversed([*enumerate(judged.identity)])}
    order = [where[identity] for identity in sorted(common)]
    return judged.loss_sum[order], judged.tokens[order], judged.n_bytes[order]


def _that_matter(settings: dict[str, Any]) -> dict[str, Any]:
    """Keep the settings in which two ideas differ: what changes the training, but for the seed; validations and named sets do not."""
    arguments = settings.get("model_args")
    names = {*_FLAGS, *(arguments if isinstance(arguments, dict) else ())}
    return {key: value for key, value in flat_settings(settings).items()
            if key in names or ("." in key and not key.startswith("versions.") and key.rpartition(".")[2] not in ("evaluate", *VALIDATIONS))}


def _common_name(names: Sequence[str]) -> str:
    """Name several runs by what their names have in common, if that says anything."""
    if len(names) == 1:
        return names[0]
    prefix = "".join(letters[0] for letters in takewhile(lambda letters: len({*letters}) == 1, zip(*names, strict=False)))
    for mark in ("seed", "_s", "-s"):
        prefix = prefix.removesuffix(mark)
    return prefix.rstrip("_-. ") or names[0]
