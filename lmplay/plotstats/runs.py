"""The recorded curves of an output folder: reading the statistics files, and the arithmetic on curves.  Plotstats floor."""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import UserError
from ..stats.figures import FIGURES, NATS, REWARD, Figure, described
from ..stats.totals import HELD_OUT
from ..stats.writing import FORMAT, KINDS
from .long_json import read_long_json

Floats = NDArray[np.float64]

X_NAMES = ("samples", "tokens", "seconds")
NEEDED_COLUMNS = (*X_NAMES, "loss")
OPTIONAL_COLUMNS = tuple(figure.name for figure in FIGURES if (figure.train or figure.validate) and figure.name not in NEEDED_COLUMNS)
AUTOMATIC_FRACTION = 0.02
AUTOMATIC_LEAST_POINTS = 20


@dataclass(frozen=True)
class Stage:
    """Where a stage lies on each x axis, and the lowest loss that its texts allow (NaN = unknown)."""

    name: str
    begin: dict[str, float]
    end: dict[str, float]
    floor: float
    done: bool
    loss_unit: str = NATS


@dataclass(frozen=True, eq=False)
class JudgedSet:
    """The newest evaluation of a set: of each sample its identity, loss (nats), tokens and bytes, (samples,)."""

    samples: int  # of training before it
    identity: list[int]
    loss_sum: Floats
    tokens: Floats
    n_bytes: Floats


@dataclass(frozen=True, eq=False)
class Curve:
    """One statistics file.

    Every array of `columns` is (rows,) float64, NaN where nothing was measured. `sources` are those with a loss by source (`source_column` names its column),
    the one with most tokens first. `declared` are the figures that the file describes itself: those of an objective. `best` is the lowest validation loss of
    the newest stage (NaN = unknown), `judged` the newest evaluation of each set of samples that is not older than the newest validation. `sets` are the
    evaluations of each set, as a curve without sets; `newest` are the newest figures of each, with the `samples` of training before it.
    """

    path: Path
    model: str
    experiment: str
    kind: str
    stage: str | None
    stages: tuple[Stage, ...]
    resumes: dict[str, Floats]
    saves: dict[str, Floats]
    columns: dict[str, Floats]
    sources: tuple[str, ...] = ()
    declared: tuple[Figure, ...] = ()
    best: float = float("nan")
    judged: Mapping[str, JudgedSet] = field(default_factory=dict)
    sets: Mapping[str, Curve] = field(default_factory=dict)
    newest: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    joined: bool = False  # of the same samples in all stages: its line does not begin anew with a stage

    @property
    def named_sets(self) -> list[str]:
        """The names of the sets that the plan names."""
        return [name for name in self.sets if name != HELD_OUT]

    @property
    def running(self) -> bool:
        """Whether the last stage recorded here has not reached its end."""
        return bool(self.stages) and not self.stages[-1].done

    def points(self, x_name: str, y_name: str) -> tuple[Floats, Floats]:
        """Return x and y of the rows where both are known; a column that the file lacks has no known values."""
        x = self.columns[x_name]
        y = self.columns.get(y_name, np.full(len(x), np.nan))
        known = np.isfinite(x) & np.isfinite(y)
        return x[known], y[known]

    def last(self, name: str) -> float:
        """Return the last known value of a column, NaN if there is none."""
        values = self.columns[name]
        known = values[np.isfinite(values)]
        return float(known[-1]) if known.size else float("nan")

    def lowest(self, name: str) -> float:
        """Return the lowest known value of a column in the newest stage that has one, NaN if there is none; other stages judge other samples."""
        _, values = self.points("tokens", name)
        parts = [part for part in np.split(values, self.borders(name)) if part.size]
        return float(parts[-1].min()) if parts else float("nan")

    def borders(self, y_name: str) -> list[int]:
        """Find where each stage but the first begins among the known values of a column.

        By tokens: each row has more of them than the one before, while several rows may end within the same long sample.
        """
        if self.joined:
            return []
        tokens, _ = self.points("tokens", y_name)
        return np.searchsorted(tokens, [stage.end["tokens"] for stage in self.stages[:-1]], side="right").tolist()

    def smoothed(self, x_name: str, y_name: str, smoothing: float | None) -> tuple[Floats, Floats]:
        """Return x and a column as a centred mean (see :func:`window_of`) that never reaches across the end of a stage."""
        x, y = self.points(x_name, y_name)
        return x, smooth(y, window_of(smoothing, len(y)), self.borders(y_name))

    def skipped(self, x_name: str) -> Floats:
        """Return the x of the rows in which batches were skipped."""
        return self.columns[x_name][np.nan_to_num(self.columns["skipped_batches"]) > 0]


def with_unit(figure: Figure, curves: Iterable[Curve]) -> Figure:
    """Give a figure with the unit that it has in curves: that of the loss is the objective's, and none where objectives differ in it."""
    if figure.name != "loss":
        return figure
    units = {stage.loss_unit for curve in curves for stage in curve.stages} or {NATS}
    unit = units.pop() if len(units) == 1 else ""
    return replace(figure, unit="in validation the reward with a minus sign" if unit == REWARD else unit)


def read_folder(folder: Path) -> tuple[list[Curve], list[str]]:
    """Read all statistics files of a folder; the contents of a file, not its name, say what it is.

    :return: the curves, sorted by model, kind and stage (a model's whole run before its stages), and one line for each file that cannot be used.
    :raises UserError: when the folder is missing.
    """
    if not folder.is_dir():
        raise UserError(f"--out-dir {folder}: no such folder; give the one that lmp_trainer writes its *_stats.json files into.")
    curves: dict[tuple[str, str, str | None], Curve] = {}
    faults = []
    for path in sorted(path for kind in KINDS for path in folder.glob(f"*_{kind}_stats.json")):
        try:
            curve = read_curve(path)
        except UserError as error:
            faults.append(str(error))
            continue
        twin = curves.setdefault((curve.model, curve.kind, curve.stage), curve)
        if twin is not curve:
            faults.append(f"statistics {path}: holds the same model, kind and stage as {twin.path.name}; move one of the two elsewhere.")
    return sorted(curves.values(), key=lambda curve: (curve.model, curve.kind, curve.stage is not None, curve.path.name)), faults


def read_curve(path: Path) -> Curve:
    """Read and check one statistics file; columns that neither lmplay nor the file describes are left out.

    :raises UserError: when it cannot be read, is no valid JSON, or does not have the format `FORMAT`.
    """
    try:
        return _curve_of(path, read_long_json(path, "statistics"))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"statistics {path}: damaged, or not written by lmp_trainer ({reason}); move it to another folder.") from None


def source_column(source: str) -> str:
    """Name the column of a source's losses."""
    return f"loss of {source}"


def window_of(smoothing: float | None, rows: int) -> int:
    """Turn the value of `--smooth` into a number of points.

    :param smoothing: None = 2 % of the points, at least 5, and nothing below 20 points; under 1 a fraction of the points; else a number of points.
    :param rows: length of the curve.
    :return: the window, odd, 1 = no smoothing.
    """
    if smoothing is None:
        window = max(5.0, rows * AUTOMATIC_FRACTION) if rows >= AUTOMATIC_LEAST_POINTS else 1.0
    else:
        window = smoothing * rows if smoothing < 1 else smoothing
    return min(int(window), 2 * rows) // 2 * 2 + 1


def smooth(values: Floats, window: int, borders: Sequence[int] = ()) -> Floats:
    """Take the mean of the known values around each point; at both ends the window is cut off.

    :param values: (rows,), NaN = unknown.
    :param window: odd number of points; 1 leaves the values as they are.
    :param borders: indexes where a new part begins; no window reaches across one.
    :return: (rows,), NaN where no value in the window is known.
    """
    if window == 1:
        return values
    parts = [values[begin:end] for begin, end in itertools.pairwise([0, *borders, len(values)])]
    return np.concatenate([_smooth_part(part, window) for part in parts])


def difference(x: Floats, y: Floats, x_reference: Floats, y_reference: Floats) -> tuple[Floats, Floats]:
    """Subtract a reference curve, interpolated linearly, where both curves have values; points with equal x count as one, with the mean of their y.

    :param x: (rows,) finite and ascending.
    :param y: (rows,) finite.
    :param x_reference: (other rows,) finite and ascending.
    :param y_reference: (other rows,) finite.
    :return: the x that lie within the reference, and y minus the reference there.
    """
    if not len(x_reference):
        return x[:0], y[:0]
    (x, y), (x_reference, y_reference) = _merge_equal(x, y), _merge_equal(x_reference, y_reference)
    inside = (x >= x_reference[0]) & (x <= x_reference[-1])
    return x[inside], y[inside] - np.interp(x[inside], x_reference, y_reference)


def thin(values: Floats, most: int) -> NDArray[np.intp]:
    """Choose about `most` points to draw, so that a long curve of finite values (rows,) keeps every peak that could be seen.

    :return: ascending indexes: the lowest and the highest of each stretch, and both ends.
    """
    rows = len(values)
    if rows <= most:
        return np.arange(rows)
    width = -(-rows // (most // 2))
    whole = rows // width * width
    blocks = values[:whole].reshape(-1, width)
    begins = np.arange(0, whole, width)
    return np.unique(np.concatenate([[0], begins + blocks.argmin(axis=1), begins + blocks.argmax(axis=1), np.arange(whole, rows), [rows - 1]]))


def _merge_equal(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Replace points with equal x by one with the mean of their y."""
    places, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return places, np.bincount(inverse, weights=y, minlength=len(places)) / counts


def _smooth_part(values: Floats, window: int) -> Floats:
    """Centred mean within one part (see :func:`smooth`)."""
    known, rows, half = np.isfinite(values), len(values), window // 2
    if known.all():
        ends = np.arange(half + 1.0, half + 1.0 + rows)
        return _window_sums(values, window) / (np.minimum(ends, rows) - np.maximum(ends - window, 0.0))
    counts = _window_sums(known.astype(np.float64), window)
    sums = _window_sums(np.where(known, values, 0.0), window)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _window_sums(values: Floats, window: int) -> Floats:
    """Sum every centred window from the end of one block and the start of the next.

    One running sum over all would do it too, but a single huge loss would wash out all that comes after it.
    """
    rows, half = len(values), window // 2
    padded = np.zeros(-(-(rows + 2 * half) // window) * window)
    padded[half : half + rows] = values
    blocks = padded.reshape(-1, window)
    heads = np.cumsum(blocks, axis=1).ravel()
    tails = np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1].copy()
    tails[:, 0] = 0.0  # a window that begins with a block ends with it
    return heads[window - 1 : window - 1 + rows] + tails.ravel()[:rows]


def _curve_of(path: Path, content: Any) -> Curve:
    """Build the curve of parsed JSON; raises whatever Python does where something is missing or of a wrong type."""
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']}, this program reads {FORMAT}")
    if content["kind"] not in KINDS:
        raise ValueError(f"its kind is {content['kind']!r}, not one of {', '.join(KINDS)}")
    clock = content["clock"]
    sources = {str(name): said for name, said in content.get("sources", {}).items() if "columns" in said}  # a whole run has figures of sources, no curves
    declared = described(content.get("figures", {}))
    lists = {**content["columns"], **{name: values for name, values in clock.items() if name not in ("resumes", "saves", "stages")}}
    further = {figure.name: lists[figure.name] for figure in declared} | {source_column(name): said["columns"]["loss"] for name, said in sources.items()}
    times = clock.get("stages") or []
    curve = Curve(
        path=path, model=str(content["model"]), experiment=str(content["experiment"]), kind=content["kind"],
        stage=None if content["stage"] is None else str(content["stage"]),
        stages=tuple(_stage_of(stage, times[index] if index < len(times) else {}) for index, stage in enumerate(content["stages"])),
        resumes=_marks_of(clock.get("resumes") or []), saves=_marks_of(clock.get("saves") or []), columns=_columns_of(lists, further),
        sources=tuple(sorted(sources, key=lambda name: -sources[name]["tokens"])), declared=declared,
        best=_number((content.get("best") or {}).get("loss") if "judged" in content else None), judged=_judged_of(content.get("judged") or {}),
        newest={str(name): _figures_of(one) for name, one in (content.get("judged") or {}).items()})
    return replace(curve, sets={str(name): _set_of(curve, said["columns"], (clock.get("sets") or {}).get(name)) for name, said in
                                (content.get("sets") or {}).items()})


def _set_of(curve: Curve, columns: dict[str, Any], seconds: Any) -> Curve:
    """Read the evaluations of a set as a curve; seconds None = they were not kept."""
    rows = len(columns["samples"])
    return replace(curve, columns=_columns_of({**columns, "seconds": [None] * rows if seconds is None else seconds}, {}), sources=(), declared=(),
                   judged={}, newest={}, joined=True)


def _figures_of(one: dict[str, Any]) -> dict[str, Any]:
    """Read the figures of an evaluation, without the lists that have a value for each sample."""
    return {name: value for name, value in one.items() if not isinstance(value, (list, np.ndarray))}


def _judged_of(sets: dict[str, dict[str, Any]]) -> dict[str, JudgedSet]:
    """Read the newest evaluations, those that are as new as the newest of them."""
    newest = max((one["samples"] for one in sets.values()), default=0)
    return {str(name): _judged_set(one) for name, one in sets.items() if one["samples"] == newest}


def _judged_set(one: dict[str, Any]) -> JudgedSet:
    """Read an evaluation."""
    identity, columns = [int(value) for value in one["identity"]], [np.array(one[name], dtype=np.float64) for name in ("loss_sum", "tokens", "bytes")]
    if any(values.shape != (len(identity),) for values in columns):
        raise ValueError("the samples of an evaluation have columns of different lengths")
    return JudgedSet(int(one["samples"]), identity, *columns)


def _marks_of(marks: list[dict[str, float]]) -> dict[str, Floats]:
    """Turn marks into an array for each x."""
    return {name: np.array([mark.get(name) for mark in marks], dtype=np.float64) for name in X_NAMES}


def _columns_of(lists: dict[str, Any], further: dict[str, Any]) -> dict[str, Floats]:
    """Turn lists, of known names and of `further` ones, into arrays of equal length, with NaN for null and for missing optional columns."""
    rows = len(lists["samples"])
    known = {name: lists[name] for name in NEEDED_COLUMNS} | {name: lists[name] if name in lists else [None] * rows for name in OPTIONAL_COLUMNS}
    columns = {name: np.array(values, dtype=np.float64) for name, values in (known | further).items()}
    for name, values in columns.items():
        if values.shape != (rows,):
            raise ValueError(f"column {name} has {len(values)} values, samples has {rows}")
        values[~np.isfinite(values)] = np.nan
    return columns


def _stage_of(stage: dict[str, Any], time: dict[str, Any]) -> Stage:
    """Build a stage from its entry and its times, which are apart under "clock"."""
    known = {**stage, **time}
    begin, end = ({name: _number(known.get(f"{side}_{name}")) for name in X_NAMES} for side in ("from", "to"))
    return Stage(str(stage["name"]), begin, end, _number(stage.get("floor_nats_per_token")), bool(stage["done"]),
                 str(stage.get("loss_unit", NATS)))


def _number(value: Any) -> float:
    """Read a number, NaN for null."""
    return float("nan") if value is None else float(value)
