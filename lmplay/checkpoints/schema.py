"""What a checkpoint holds: a file of a stranger is checked against this before anything is built of it, and nothing in it is larger than the file itself."""
from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import torch
from pydantic import AfterValidator, ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from ..errors import printable
from ..plan.curriculum import DATA_RULES, StageState
from ..plan.options import ADDED, FLAGS, Change
from ..plan.schedules import Place
from ..plan.settings import MODEL_KEYS
from ..stats.figures import NEWEST, SUMS, Figure

_MOST_DEPTH = 100
_PLAIN = (int, float, str, bool, bytes, type(None))
_LARGEST = 2**64  # of whole numbers; random states have numbers of 32 bits
_Number = int | float
_LARGEST_FIGURE = 1e300
_Count = Annotated[int, Field(ge=0)]
_MOST_READ_AGAIN = 1_000_000  # samples between the oldest that waits for a batch and the newest that has been read: a few batches


def check_archive(path: Path) -> None:
    """Check that an archive has no packed entries, and none that overlap: unpacked it would be longer than the file.

    :raises ValueError: when it has.
    :raises zipfile.BadZipFile: when it is no archive.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ValueError("its parts are packed")
    if sum(entry.file_size for entry in entries) > path.stat().st_size:
        raise ValueError("its parts are longer than the file")


def check_content(content: Any, size: int) -> None:
    """Check that a content has plain values and tensors only, none of them larger than the file.

    :param content: what the file holds.
    :param size: of the file, in bytes.
    :raises ValueError: when it has not.
    """
    level, count = [content], 0
    for _ in range(_MOST_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, torch.Tensor):
                _check_tensor(value)
            elif isinstance(value, dict):
                if not all(type(key) in (str, int) for key in value):
                    raise ValueError("a key that is neither a text nor a number")
                inner += value.values()
            elif isinstance(value, (list, tuple)):
                inner += value
            elif type(value) not in _PLAIN or (type(value) is int and abs(value) > _LARGEST):
                raise ValueError(f"a value that no checkpoint has ({type(value).__name__})")
            if count + len(inner) > size:  # one list may be at many places
                raise ValueError("more values than bytes")
        count += len(inner)
        if not inner:
            return
        level = inner
    raise ValueError("values too deep within each other")


def check_components(content: Mapping[str, Any]) -> None:
    """Check the components of a content, those that it has.

    :raises ValueError: naming the first part that is not as it should be.
    """
    for name, schema in _schemas().items():
        if name in content:
            try:
                schema.validate_python(content[name])
            except ValidationError as error:
                fault = error.errors(include_url=False, include_input=False)[0]
                raise ValueError(f"{printable('.'.join(map(str, (name, *fault['loc'])))[:200])}: {fault['msg']}") from None


def _check_tensor(tensor: torch.Tensor) -> None:
    """Refuse a tensor that is not dense, on the CPU and in its own memory: repeated by a stride of 0 it could be of any size."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ValueError("a tensor that is not dense or not on the CPU")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError("a tensor that is larger than its memory")


def _known(args: dict[str, Any]) -> dict[str, Any]:
    """Check the values of a model's arguments or of settings that are flags."""
    for flag in FLAGS:
        if (value := args.get(flag.name, flag.default)) != flag.default:
            try:
                flag.check(value)
            except ValueError as allowed:
                raise ValueError(f"{flag.name}: allowed is {allowed}") from None
    return args


def _model_args(args: dict[str, Any]) -> dict[str, Any]:
    """Check the arguments of a model."""
    if type(args.get("context_len")) is not int:
        raise ValueError("context_len is missing")
    _known({name: args[name] for name in MODEL_KEYS if name in args})
    return args


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """Check the settings of a run."""
    needed = [flag.name for flag in FLAGS if flag.change is Change.KEPT and flag.name not in ADDED]
    missing = [name for name in (*needed, "optimizer") if name not in values]
    given = values.get("given")
    if missing or not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"{missing[0] if missing else 'given'} is missing")
    return _known(values)


def _even(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Check that all columns are of one length."""
    if len({len(values) for values in columns.values()}) > 1:
        raise ValueError("columns of unequal length")
    return columns


def _rows(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Check the rows of a history: only figures of objectives may be unknown."""
    for name in (*NEWEST, *SUMS):
        if None in columns.get(name, [] if name not in ("step", "loss_sum", "n_tokens") else [None]):
            raise ValueError(f"a value of {name} is missing")
    return _even(columns)


def _totals(stats: dict[str, Any]) -> dict[str, Any]:
    """Check the totals among statistics: all that is nothing else."""
    for name in stats:
        if name not in _Stats.__annotations__ and type(stats[name]) not in (int, float):
            raise ValueError(f"{name} is no number")
    return stats


def _finite(value: Any) -> Any:
    """Check that plain values hold no number that is not finite, or not if some are added up: statistics are written as JSON, which has no word for it."""
    if isinstance(value, float) and not abs(value) <= _LARGEST_FIGURE:
        raise ValueError(f"a number is {value}")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        _finite(inner)
    return value


def _clock(clock: dict[str, Any]) -> dict[str, Any]:
    """Check the numbers of a clock; what listeners keep is theirs."""
    _finite({key: value for key, value in clock.items() if key != "listeners"})
    return clock


def _tokenizer(spec: dict[str, Any]) -> dict[str, Any]:
    """Check that a tokenizer that is not of bytes has its file."""
    if spec["kind"] != "bytes" and not {"json", "end_id"} <= spec.keys():
        raise ValueError("json or end_id is missing")
    return spec


def _stages(part: dict[str, Any]) -> dict[str, Any]:
    """Check that there is a state of each stage of the plan."""
    names = [stage["name"] for stage in part["state_args"]["plan"]["stages"]]
    if names != [state["name"] for state in part["state"]["stages"]]:
        raise ValueError("the states are not those of the plan's stages")
    if any(not 1 <= state.get("rules", 1) <= DATA_RULES for state in part["state"]["stages"]):
        raise ValueError("a stage has rules that this version does not know")
    return part


def _no_tensors(value: Any) -> Any:
    """Check that there is no tensor in a plain value."""
    if isinstance(value, torch.Tensor):
        raise ValueError("a tensor where none belongs")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        _no_tensors(inner)
    return value


def _position(position: dict[str, Any]) -> dict[str, Any]:
    """Check that continuing from a position does not read much again."""
    if not 0 <= position["until"] - position["read"] <= _MOST_READ_AGAIN:
        raise ValueError("until is not near to read")
    return position


_STRICT = ConfigDict(strict=True, extra="allow", arbitrary_types_allowed=True)


class _Base(TypedDict):
    """Values of these types exactly, and others beside them: files of all versions are read."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]


def _exactly(kind: type, needed: tuple[str, ...], extra: Literal["allow", "forbid"] = "forbid", **known: Any) -> Any:
    """Make the schema of a dataclass that was written as a dict: those keys that are needed, and other ones only where they are allowed.

    :param known: schemas of fields of which the type says too little.
    """
    hints = get_type_hints(kind) | known
    make: Any = TypedDict
    made = make(kind.__name__, {field.name: hints[field.name] if field.name in needed else NotRequired[hints[field.name]] for field in fields(kind)})
    made.__pydantic_config__ = ConfigDict(strict=True, extra=extra)
    return made


class _Named(_Base):
    name: str


class _PlanArgs(_Base):
    stages: list[_Named]


class _CurriculumArgs(_Base):
    plan: _PlanArgs


class _Reader(_Base):
    epoch: _Count
    offset: _Count
    ordinal: NotRequired[_Count]
    block: NotRequired[Annotated[Any, AfterValidator(_no_tensors)]]  # of a stream: plain values of its kind of source


class _Mix(_Base):
    epoch: _Count
    rows_in_epoch: _Count
    counts: list[_Count]
    ended: list[bool]
    rows: list[_Count]
    readers: list[_Reader]


class _Samples(_Base):
    mix: _Mix
    samples: _Count
    skipped: dict[str, _Count]
    replaced: dict[str, _Count]
    places: dict[str, list[str]]
    total: NotRequired[_Count]  # of a stage whose data has changed


class _Position(_Base):
    samples: _Samples
    read: _Count
    tokens: _Count
    until: _Count
    ended: bool
    waiting: list[Annotated[list[_Count], Field(min_length=2, max_length=2)]]
    given: NotRequired[_Count]
    at: NotRequired[list[Annotated[float, Field(ge=0, le=1)]]]  # of a stage whose batch size or context length changes


_StageState = _exactly(StageState, ("name", "done", "fingerprints"), extra="allow", position=Annotated[_Position, AfterValidator(_position)] | None,
                       fingerprints=Annotated[list[dict[str, Any]], AfterValidator(_no_tensors)] | None)


class _CurriculumState(_Base):
    stages: list[_StageState]  # type: ignore[valid-type]


class _Curriculum(_Base):
    state_args: _CurriculumArgs
    state: _CurriculumState


class _Tokenizer(_Base):
    kind: Literal["bytes", "fast"]
    name: str
    json: NotRequired[str]
    end_id: NotRequired[_Count]
    chat_template: NotRequired[str]
    begin_text: NotRequired[str]


class _SourceForm(_Base):
    source: str
    form: Literal["text", "title", "instruction", "chat"]
    chat: NotRequired[str | None]


class _Adapter(_Base):
    kind: Literal["lora", "dora", "rslora"]
    rank: Annotated[int, Field(ge=1)]
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    dropout: Annotated[float, Field(ge=0, lt=1)]
    layers: Annotated[list[str], Field(min_length=1)]
    base: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    quantize: NotRequired[Literal["int8", "nf4"]]


class _ModelArgs(_Base):
    experiment: str
    args: Annotated[dict[str, Any], AfterValidator(_model_args)]
    tokenizer: Annotated[_Tokenizer, AfterValidator(_tokenizer)]
    forms: NotRequired[dict[str, list[_SourceForm]]]
    adapter: NotRequired[_Adapter]


class _Model(_Base):
    state_args: _ModelArgs
    state: dict[str, InstanceOf[torch.Tensor]]


class _History(_Base):
    stride: Annotated[int, Field(ge=1)]
    open: _Count
    rows: Annotated[dict[str, list[_Number | None]], AfterValidator(_rows)]
    sources: NotRequired[dict[str, Annotated[dict[str, list[_Number]], AfterValidator(_even)]]]


class _Judged(_Base):
    samples: int
    loss: float


class _Counts(_Base):
    samples: int
    tokens: int
    rows_per_epoch: NotRequired[int | None]


class _JudgedSet(_Base):
    samples: int
    n_samples: _Count
    n_tokens: _Count
    identity: list[_Count]
    loss_sum: list[_Number]
    tokens: list[_Count]
    bytes: list[_Count]


class _Stats(_Base):
    train: _History
    validate: _History
    best: _Judged | None
    final: _Judged | None
    sources: NotRequired[dict[str, _Counts]]
    judged: NotRequired[dict[str, _JudgedSet]]
    sets: NotRequired[dict[str, _History]]
    figures: NotRequired[list[_exactly(Figure, ("name", "title", "kind"))]]  # type: ignore[valid-type]


class _Mark(_Base):
    samples: int
    tokens: int
    seconds: float


class _Entry(_Base):
    name: str
    from_samples: int
    to_samples: int
    done: NotRequired[bool]
    from_tokens: NotRequired[int]
    to_tokens: NotRequired[int]
    from_seconds: NotRequired[_Number]
    to_seconds: NotRequired[_Number]
    skipped: NotRequired[dict[str, int]]
    replaced: NotRequired[dict[str, int]]
    floor_nats_per_token: NotRequired[_Number | None]
    floor_bits_per_byte: NotRequired[_Number | None]
    loss_unit: NotRequired[str]


class _Listeners(_Base):
    identity: str
    newest: dict[str, Any] | None
    apart: dict[str, list[dict[str, Any]]]
    states: dict[str, Any]


class _Clock(_Base):
    seconds: float
    resumes: list[_Mark]
    saves: NotRequired[list[_Mark]]
    peak_memory: NotRequired[int | None]
    run: NotRequired[str]
    model: NotRequired[str]
    listeners: NotRequired[_Listeners]


class _Random(_Base):
    python: list[Any]
    numpy: list[Any]
    torch: InstanceOf[torch.Tensor]


class _RunnerState(_Base):
    stats: Annotated[_Stats, AfterValidator(_totals), AfterValidator(_finite)]
    step_stats: Annotated[dict[str, Annotated[_Stats, AfterValidator(_totals)]], AfterValidator(_finite)]
    stages: Annotated[list[_Entry], AfterValidator(_finite)]
    clock: Annotated[_Clock, AfterValidator(_clock)]
    random: _Random
    scaler: dict[str, Any]
    room: NotRequired[dict[str, Any]]
    in_row: NotRequired[dict[str, Any]]


def _stages_with_statistics(state: dict[str, Any]) -> dict[str, Any]:
    """Check that each stage that has begun has statistics."""
    if missing := {entry["name"] for entry in state["stages"]} - state["step_stats"].keys():
        raise ValueError(f"no statistics of stage '{min(missing)}'")
    return state


class _RunnerArgs(_Base):
    settings: Annotated[dict[str, Any], AfterValidator(_settings)]
    stages: NotRequired[dict[str, dict[str, Any]]]
    runs_on: NotRequired[dict[str, str]]


class _Runner(_Base):
    state_args: _RunnerArgs
    state: Annotated[_RunnerState, AfterValidator(_stages_with_statistics)]


class _Group(_Base):
    params: list[_Count]


class _Optimizer(_Base):
    state: dict[int, dict[str, Any]]
    param_groups: list[_Group]


class _Kind(_Base):
    optimizer: str
    settings: NotRequired[Annotated[dict[str, Any], AfterValidator(_no_tensors)]]


class _Optimizers(_Base):
    state_args: dict[str, _Kind]
    state: dict[str, _Optimizer]


class _Schedule(_Base):
    steps: _Count
    progress: float | None
    place: NotRequired[_exactly(Place, ("part",), part=_Count) | None]  # type: ignore[valid-type]


class _Schedules(_Base):
    state_args: dict[str, Any]
    state: dict[str, _Schedule]


@cache
def _schemas() -> dict[str, TypeAdapter[Any]]:
    """Make the checks of the components; it takes a moment."""
    return {"versions": TypeAdapter(dict[str, str]), "curriculum": TypeAdapter(Annotated[_Curriculum, AfterValidator(_stages)]), "model": TypeAdapter(_Model),
            "runner": TypeAdapter(_Runner), "optimizers": TypeAdapter(_Optimizers), "lr_schedulers": TypeAdapter(_Schedules)}
