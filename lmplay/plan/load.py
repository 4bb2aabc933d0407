"""Finding a plan, reading it, and refusing a wrong one with all its faults at once.

A fault line names plan, stage, key, the wrong value and what is allowed, in the words of the descriptions of the keys (schema.py and its parts).
"""
from __future__ import annotations

import glob
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ..documents import read_json_or_yaml
from ..errors import MOST_FAULTS, Faults, UserError, nearest
from ..paths import expanded, glob_files
from .catalog import BUILTINS, CATALOG, DATA_SUFFIXES, is_endless, kind_of, nearest_source, source_kinds
from .mended import mended
from .names import RESERVED_ENDING
from .options import MOST
from .part import Part
from .schedule_keys import LENGTHS, divide_over_plan
from .schedules import ScheduleFault
from .schema import ROLES, STAGE_NAME, Header, ModelDefaults, Overrides, Plan, SourceSpec, Stage, StageBody
from .training_keys import Optimizer
from .used import is_record

_HUB_PATH = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_GLOB = re.compile(r"[*?\[]")
_MARKS = ("[key]", "[on]", "[off]", "[one]", "[parts]")  # steps of a fault's location that are no keys


def load_plan(name_or_path: str | Path, faults: Faults | None = None) -> Plan:
    """Read and check a plan, without touching any data.

    :param name_or_path: the name of a built-in plan (these win; write `./default` for a file of that name), a JSON or YAML file, or the record of a run's
        settings (NAME_settings.json), whose plan is taken.
    :param faults: gets what is wrong in the plan's keys, instead of being refused here; the plan then has what is left without that.
    :return: the plan: short names written out, local paths absolute, `$defaults` merged into the stages.
    :raises UserError: when there is no such plan, or with one line per fault.
    """
    path = _find(name_or_path)
    content = _plain(read_json_or_yaml(path, "plan"), f"plan {path}")
    return plan_from_json(content["plan"]) if is_record(content) else _build(content, f"plan {path}", path.parent, faults)


def list_plans() -> list[tuple[str, str]]:
    """List the built-in plans: name and description, sorted by name."""
    return [(name, read_json_or_yaml(path, "plan").get("$description", "")) for name, path in _built_in().items()]


def plan_from_dataset(dataset: str) -> Plan:
    """Make a plan of one stage, named after the data set: 1 epoch, or 10,000 samples of a data set that never ends.

    :param dataset: a short name, hub path, local path or glob (relative to the current folder), or `builtin:...`.
    :raises UserError: when there is no such data set.
    """
    try:
        path = _locate(dataset, Path.cwd())
    except UserError as error:
        raise UserError(f"dataset: {error}") from None
    length = {"samples": 10_000} if is_endless(path) else {"epochs": 1.0}
    return plan_from_json({"stages": [{"name": _stage_name(path), "dataset": path, **length}]})


def source_named(raw: Any, where: str) -> tuple[str, SourceSpec]:
    """Check a data set as a stage of a plan names one.

    :param raw: a text, or a source object; local paths are relative to the current folder.
    :param where: the beginning of fault lines.
    :return: a short name for it, and the source.
    :raises UserError: with one line per fault.
    """
    try:
        spec = _build({"data": {"dataset": raw, "samples": 1}}, where, Path.cwd(), None).stages[0].dataset[0]
    except UserError as error:
        raise UserError(*(fault.replace(", stage 'data', key 'dataset[0].", ", key '").replace(", stage 'data', key 'dataset.", ", key '")
                          .replace(", stage 'data', key 'dataset[0]'", "").replace(", stage 'data', key 'dataset'", "") for fault in error.faults)) from None
    return _stage_name(raw if isinstance(raw, str) else str(raw["path"])), spec


def nothing_to_read() -> Plan:
    """Make what is left of a plan whose only data set is not there."""
    return Plan.model_construct(stages=[], model=ModelDefaults(), tokenizer=None, prompts=None)


def plan_from_json(data: dict[str, Any], where: str = "stored plan") -> Plan:
    """Read back what :meth:`Plan.to_json` wrote; data files need not exist any more.

    :param where: the beginning of fault lines.
    :raises UserError: with one line per fault.
    """
    _refuse(_faults(Plan, data, where))
    return Plan.model_validate(data)


def _built_in() -> dict[str, Path]:
    """Find the built-in plans: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).parents[1]
    folder = next((folder for folder in (package / "plans", package.parent / "plans") if (folder / "plan.schema.json").is_file()), None)
    return {path.stem: path for path in sorted(folder.glob("*.json")) if path.suffixes == [".json"]} if folder else {}


def _find(name_or_path: str | Path) -> Path:
    """Turn a plan's name or path into the path of its file."""
    name = str(name_or_path)
    built_in = _built_in()
    path = built_in.get(name) or expanded(name)
    if not os.path.exists(path):
        near = nearest(path.name, [*built_in, *(found for found in _names_in(path.parent) if found.endswith(".json"))])
        raise UserError(f"plan '{name}': neither a file (looked in {os.path.abspath(path.parent)}) nor a built-in plan.{near} "
                        f"Built-in plans: {', '.join(built_in)}.")
    return path


def _names_in(folder: str | Path) -> list[str]:
    """List at most 1,000 names of a folder, for a hint; none where there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in itertools.islice(entries, 1000)]
    except OSError:
        return []


def _stage_name(path: str) -> str:
    """Make a stage name from a data set's name, without folder, owner and suffixes; from a glob's folder where the glob itself has no words."""
    if kind_of(path) is not None:
        return _as_stage_name(path.partition(":")[2].partition("?")[0]) or "data"
    parts = list(reversed(Path(path).parts))
    return next(filter(None, map(_as_stage_name, parts if _GLOB.search(path) else parts[:1])), "data")


def _as_stage_name(name: str) -> str:
    """Remove from the name of a file, a folder or a pattern what a stage's name must not contain."""
    while (suffix := Path(name).suffix).lower() in DATA_SUFFIXES:
        name = name.removesuffix(suffix)
    if _GLOB.search(name):
        name = re.sub(r"\[.*?\]|[*?]", " ", name).strip(" _.-")
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.")[:64]
    return f"{name}_data" if _is_reserved(name) else name


def _is_reserved(name: str) -> bool:
    """Tell whether a stage's file would have the name of another file beside the model's: a stage `x` that may end early has a file `NAME.x.best.lmp`."""
    return RESERVED_ENDING.fullmatch(name.rpartition(".")[2]) is not None


def _plain(raw: Any, where: str) -> Any:
    """Convert values that only YAML has (dates, numbers as keys) to JSON's."""
    try:
        return json.loads(json.dumps(raw, default=str))
    except (TypeError, ValueError):
        raise UserError(f"{where}: holds what JSON cannot: an object inside itself, or a key that YAML reads as a date or a list. "
                        "Write it out, or put the key in quotes.") from None


def _build(raw: Any, where: str, folder: Path, going_on: Faults | None) -> Plan:
    """Check a plan as written, in `folder`, and put it together; `where` is the beginning of fault lines, for `going_on` see :func:`load_plan`."""
    if not isinstance(raw, dict):
        _refuse([f"{where}: found {shown(raw)}, allowed: an object with a key for each stage."])
    special = {key: value for key, value in raw.items() if key.startswith("$")}
    bodies = {key: value for key, value in raw.items() if not key.startswith("$")}
    defaults = special.get("$defaults")
    defaults = defaults if isinstance(defaults, dict) else {}
    faults = _faults(Header, special, where)
    faults += _path_faults({key: defaults.get(key) for key in ("validation", "evaluate")}, folder, f"{where}, key '$defaults.")
    for name, body in bodies.items():
        faults += _stage_faults(name, body, defaults, where, folder)
        if len(faults) > MOST_FAULTS:
            _refuse(faults)
    merged = {name: _merged(defaults, body) for name, body in bodies.items() if isinstance(body, dict)}
    shares: list[dict[str, Any]] = []
    if not faults and merged and (schedule := special.get("$lr_schedule")) is not None:
        try:
            shares = [{"share_of_plan": share} for share in divide_over_plan(schedule, merged)]
        except ScheduleFault as fault:
            faults.append(f"{where}, key '$lr_schedule{fault.key}': {fault.fault}.")
    conflicts = Plan.conflicts({"stages": [{"name": name, "evaluate": merged.get(name, {}).get("evaluate")} for name in bodies]})
    faults += [f"{where}: {fault}." if key == "stages" else f"{where}, key '{key}': {fault}." for key, fault in conflicts]
    if faults and going_on is not None:
        going_on.lines += faults
        return _what_is_left(special, bodies, folder, going_on.left_out)
    _refuse(faults)
    rules = {"optimizer_rules": special.get("$optimizer") or None}
    stages = [Stage.model_validate({"name": name, **rules, **share, **_map_paths(body, lambda _, path: _locate(path, folder))})
              for (name, body), share in zip(merged.items(), shares or [{}] * len(merged), strict=True)]
    header = Header.model_validate(special)
    return Plan(description=header.description, stages=stages, model=header.model, tokenizer=header.tokenizer, prompts=header.prompts)


def _what_is_left(special: dict[str, Any], bodies: dict[str, Any], folder: Path, left_out: set[str]) -> Plan:
    """Put together what is left of a wrong plan; a stage may have lost its data, and lacks them then.

    :param left_out: see :class:`lmplay.errors.Faults`; it gets `plan`, for a plan that is not the one that is meant.
    """
    forgotten = {f"${name}" for name in bodies} & {str(field.alias) for field in Header.model_fields.values()}
    special = {**{key: bodies[key[1:]] for key in forgotten}, **special}
    special, gone = mended(special, lambda raw: _found(Header, raw))
    stages = [_stage_of_what_is_left(name, _merged(special.get("$defaults", {}), body), folder) for name, body in bodies.items()
              if isinstance(body, dict) and f"${name}" not in forgotten and re.fullmatch(STAGE_NAME, name) and not _is_reserved(name)]
    left_out |= {"plan", *(key.removeprefix("$model.").removeprefix("$defaults.") for key in gone)}
    left_out |= {*ModelDefaults.model_fields} if "$model" in gone else set()
    header = Header.model_validate(special)
    return Plan.model_construct(description=header.description, stages=stages, model=header.model, tokenizer=header.tokenizer, prompts=header.prompts)


def _stage_of_what_is_left(name: str, body: dict[str, Any], folder: Path) -> Stage:
    """Make a stage of what is left of one as written, with `$defaults` in it; where its optimizer was wrong, it has one without a name."""
    some_length = {"samples": 1} if any(body.get(key) is not None for key in LENGTHS) else {}  # stands for one that was wrong

    def as_read(raw: dict[str, Any]) -> tuple[type[Part], dict[str, Any]]:
        if not raw.get("dataset"):
            return Overrides, {key: value for key, value in raw.items() if key != "dataset"}
        return Stage, {"name": name, **({} if any(raw.get(key) is not None for key in LENGTHS) else some_length), **raw}

    left, gone = mended(body, lambda raw: [*_wrong_paths(raw, folder), *_found(*as_read(raw))])
    model, left = as_read(_map_paths(left, lambda _, path: _locate(path, folder)))
    parsed = model.model_validate(left)
    stage = parsed if isinstance(parsed, Stage) else Stage.model_construct(**{**dict(parsed), "lr_schedule": None, "weight_decay": None}, name=name, dataset=[])
    return stage.model_copy(update={"optimizer": Optimizer.model_construct(name="")}) if "optimizer" in gone else stage


def _refuse(faults: list[str]) -> None:
    """Raise the faults as one error, if there are any."""
    if faults:
        raise UserError(*faults)


def _merged(defaults: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    """Merge a stage with `$defaults`; its length, in whatever unit, replaces theirs, and its named sets come beside theirs (null = without that set)."""
    has_length = any(body.get(key) is not None for key in LENGTHS)
    merged = {**{key: value for key, value in defaults.items() if not (has_length and key in LENGTHS)}, **body}
    sets = [part["evaluate"] for part in (defaults, body) if isinstance(part.get("evaluate"), dict)]
    if isinstance(merged.get("evaluate"), dict):
        merged["evaluate"] = {name: one for name, one in {**sets[0], **sets[-1]}.items() if one is not None}
    return merged


def _stage_faults(name: str, body: Any, defaults: dict[str, Any], where: str, folder: Path) -> Iterator[str]:
    """Find all faults of a stage as written: its name, its keys, its data paths, and keys that contradict each other."""
    special = [str(field.alias) for field in Header.model_fields.values()]
    if f"${name}" in special:
        yield f"{where}, key '{name}': found no $ before it, allowed: a stage of another name. Did you mean '${name}'?"
        return
    stage = f"{where}, stage '{name}'"
    if not re.fullmatch(STAGE_NAME, name):
        yield f"{stage}: found {shown(name)} as a name, allowed: {Stage.model_fields['name'].description}."
    if _is_reserved(name):
        yield (f"{stage}: found a name with an ending that is kept for other files beside the model's, allowed: another one, without best, prev-N, "
               "old-N or damaged-N at its end.")
    lines = _faults(StageBody, body, stage)
    yield from lines
    if isinstance(body, dict):
        yield from _path_faults(body, folder, f"{stage}, key '")
        yield from (f"{stage}, key '{key}': {fault}." for key, fault in _merge_conflicts(defaults, body) if not _follows(fault, lines))


def _merge_conflicts(defaults: dict[str, Any], body: dict[str, Any]) -> list[tuple[str, str]]:
    """Find the conflicts between a stage and `$defaults` that neither has alone: pairs of a key and its fault."""
    given = [{key: value for key, value in part.items() if value is not None} for part in (defaults, body, _merged(defaults, body))]
    alone = [*Overrides.conflicts(given[0]), *StageBody.conflicts(given[1])]
    return [conflict for conflict in Stage.conflicts(given[2]) if conflict not in alone]


def _path_faults(body: dict[str, Any], folder: Path, start: str) -> list[str]:
    """Find the data paths of a stage that do not exist; `start` is the start of a fault line up to the key."""
    return [f"{start}{key}': {fault}" for key, fault in _wrong_paths(body, folder)]


def _wrong_paths(body: dict[str, Any], folder: Path) -> list[tuple[str, str]]:
    """Find the data paths of a stage that do not exist: pairs of a key and its fault."""
    faults: list[tuple[str, str]] = []

    def check(key: str, path: str) -> str:
        try:
            return path if len(faults) > MOST_FAULTS else _locate(path, folder)
        except UserError as error:
            faults.append((key, str(error)))
            return path

    _map_paths(body, check)
    return faults


def _map_paths(body: dict[str, Any], change: Callable[[str, str], str]) -> dict[str, Any]:
    """Copy a stage as written, with each data path in it replaced by `change(key, path)`."""

    def source(key: str, raw: Any) -> Any:
        if isinstance(raw, str) and raw:
            return change(key, raw)
        if isinstance(raw, dict) and isinstance(raw.get("path"), str) and raw["path"]:
            return {**raw, "path": change(f"{key}.path", raw["path"])}
        return raw

    body = dict(body)
    dataset = body.get("dataset")
    if dataset is not None:
        several = isinstance(dataset, list)
        body["dataset"] = [source(f"dataset[{index}]", raw) for index, raw in enumerate(dataset)] if several else source("dataset", dataset)
    validation = body.get("validation")
    if isinstance(validation, dict) and "dataset" in validation:
        body["validation"] = {**validation, "dataset": source("validation.dataset", validation["dataset"])}
    evaluate = body.get("evaluate")
    if isinstance(evaluate, dict):
        body["evaluate"] = {name: {**one, "dataset": source(f"evaluate.{name}.dataset", one["dataset"])} if isinstance(one, dict) and "dataset" in one
                            else source(f"evaluate.{name}", one) if isinstance(one, str) else one for name, one in evaluate.items()}
    return body


def _locate(path: str, folder: Path) -> str:
    """Find a data set by its name alone: local paths become absolute, short names and hub paths stay, a path with a prefix is its kind's.

    :param folder: where a relative path is looked up first; the current folder comes second.
    :raises UserError: "found ..., allowed: ...", without the plan and key.
    """
    if path in CATALOG:
        return path
    kind = kind_of(path)
    if kind is not None:
        return kind.locate(path, folder)
    roots = list(dict.fromkeys((os.path.abspath(folder), os.getcwd())))
    local = os.path.expanduser(path)
    for full in (os.path.join(root, local) for root in roots):
        if os.path.exists(full):
            return os.path.abspath(full)
    is_glob = _GLOB.search(path) is not None
    for pattern in (os.path.join(glob.escape(root), local) for root in roots if is_glob):
        if next(glob_files(pattern), None) is not None:
            return os.path.abspath(pattern)
    if is_glob or path.startswith((".", "/", "~")) or path.endswith(("/", os.sep)) or path.lower().endswith(DATA_SUFFIXES):
        names = [name for root in roots for name in _names_in(os.path.dirname(os.path.join(root, local.rstrip("/" + os.sep))))]
        near = nearest(os.path.basename(local.rstrip("/" + os.sep)), names) or (nearest_source(path) if ":" in path else "")
        raise UserError(f"found {shown(path)}, allowed: a file, folder or glob that exists (looked in {', '.join(roots)}).{near}")
    if _HUB_PATH.fullmatch(path) and ("/" in path or not nearest_source(path)):
        return path
    kinds = ", ".join([BUILTINS[0], *(f"{name}:..." for name in source_kinds() if name != "builtin")])
    raise UserError(f'found {shown(path)}, allowed: a short name ({", ".join(CATALOG)}), a hub path "owner/name" (without the owner too, unless it is almost '
                    f"a short name), a file or folder that exists, or {kinds}.{nearest_source(path)}")


def _faults(model: type[Part], raw: Any, where: str) -> list[str]:
    """List what is wrong with an object as written, which should be a `model`: one line per mistake, beginning with `where`."""
    return [f"{where}, key '{key}': {text}" if key else f"{where}: {text}" for key, text in _found(model, raw)]


def _found(model: type[Part], raw: Any) -> list[tuple[str, str]]:
    """List what is wrong with an object as written, which should be a `model`: pairs of a key and its fault."""
    found: dict[str, str] = {}
    try:
        model.model_validate(raw)
    except ValidationError as error:
        for details in error.errors(include_url=False, include_input=False)[:MOST_FAULTS + 1]:
            if details["type"] != "value_error":  # that is a conflict, found below even when other faults hide it here
                key, text = _explain(model, raw, details)
                found.setdefault(key, text)
    missing = [(key, text) for key, text in found.items() if text.startswith("found nothing")]
    doubtful = [*missing, *((key, f"{fault}.") for key, fault in _conflicts(model, raw))]
    faults = [item for item in found.items() if item not in missing]
    return faults + [(key, text) for key, text in doubtful if not _follows(f"{key}: {text}", found.values())]


def _follows(fault: str, others: Iterable[str]) -> bool:
    """Tell whether a fault only follows from a misspelt key, because it names the right one: one mistake, one line."""
    meant = re.findall(r"unknown key\. Did you mean '([^']*)'", " ".join(others))
    return any(re.search(rf"\b{re.escape(word)}\b", fault) for word in meant)


def _explain(model: type[Part], raw: Any, details: ErrorDetails) -> tuple[str, str]:
    """Translate one of pydantic's errors, following its location through what the user wrote.

    :return: the key as the user knows it, and the rest of the fault line: "found ..., allowed: ...".
    """
    key, last, field = "", "", None
    part: type[Part] | None = model
    named, parent = False, raw
    for step in details["loc"]:
        if isinstance(step, int):
            if isinstance(raw, list):  # else a single source without brackets
                key, raw = f"{key}[{step}]", raw[step]
        elif isinstance(raw, dict) and step not in _MARKS:  # what is not an object is a short form: its inner key was never written
            key, last, parent, raw = f"{key}.{step}" if key else step, step, raw, raw.get(step)
            if named:
                named = False
            elif step in (fields := _fields(part)):
                field = fields[step]
                part, named = _part_in(field.annotation), _is_named(field.annotation)
    words = re.findall(r"'([^']*)'", details.get("ctx", {}).get("expected", ""))
    if details["type"] == "extra_forbidden" or "[key]" in details["loc"]:
        allowed = [key for key in _fields(part) or ROLES if part is None or key in part.keys_beside(parent)]
        return key, f"unknown key.{nearest(last, allowed)} Allowed: {', '.join(allowed)}."
    rule = field.description if field else f"an object with the keys {', '.join(_fields(part))}"
    value = "nothing" if details["type"] == "missing" else shown(raw)
    return key, f"found {value}, allowed: {rule}.{_hint(raw, details['type'], words)}"


def _hint(value: Any, kind: str, words: list[str]) -> str:
    """Suggest what a wrong text may have meant: one of the right words, or a number."""
    if kind == "less_than_equal" and value > MOST:
        return f" At most {MOST:,}."
    if not isinstance(value, str):
        return ""
    if kind in ("float_type", "int_type") and re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", value, re.IGNORECASE):
        return " It is a text: write the number without quotes, and in YAML 6.0e-4 instead of 6e-4."
    return nearest(value, words)


def _conflicts(model: type[Part], raw: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Find the keys that contradict each other, in this object and in all objects within: pairs of a key and its fault."""
    if not isinstance(raw, dict):
        return
    for key, fault in model.conflicts({key: value for key, value in raw.items() if value is not None}):
        yield prefix + key, fault
    for key, field in _fields(model).items():
        part, value = _part_in(field.annotation), raw.get(key)
        if part and isinstance(value, list):
            for index, item in enumerate(value):
                yield from _conflicts(part, part.written_out(item), f"{prefix}{key}[{index}].")
        elif part and isinstance(value, dict) and _is_named(field.annotation):
            for name, item in value.items():
                yield from _conflicts(part, part.written_out(item), f"{prefix}{key}.{name}.")
        elif part:
            yield from _conflicts(part, part.written_out(value), f"{prefix}{key}.")


def _fields(part: type[Part] | None) -> dict[str, FieldInfo]:
    """Return the fields of an object by the keys that a file uses, the required ones first; none for an object with keys of its own choice."""
    fields = sorted(part.model_fields.items(), key=lambda item: not item[1].is_required()) if part else []
    return {field.alias or name: field for name, field in fields}


def _part_in(annotation: Any) -> type[Part] | None:
    """Find the object in a type such as `list[SourceSpec] | None`."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    return next((part for part in map(_part_in, get_args(annotation)) if part), None)


def _is_named(annotation: Any) -> bool:
    """Tell whether a type is a dict of objects, by names of the user's choice."""
    return get_origin(annotation) is dict or any(map(_is_named, get_args(annotation)))


def shown(value: Any, most: int = 60) -> str:
    """Write a value as JSON on one line of at most that many characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else f"{text[:most - 3]}..."
