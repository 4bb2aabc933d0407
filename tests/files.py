"""Writing files, and opening them as sources."""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from lmplay.data.sources import BadRow, open_source
from lmplay.errors import UserError

few = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Spec:
    """What a plan's source object gives."""

    path: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None
    streaming: bool | None = None
    encoding_errors: str | None = None
    on_bad_row: str | None = None
    row_bytes: int | None = None
    columns: dict[str, str] | None = None


def opened(path: Path | str, folder: Path, role: str = "train", /, **keys: Any) -> Any:
    return open_source(Spec(str(path), **keys), role, folder)


def rows_of(source: Any) -> list[dict[str, Any]]:
    return [source[i] for i in range(source.n_rows)]


def row_or_reason(source: Any, index: int) -> dict[str, Any] | str:
    try:
        return source[index]
    except BadRow as bad:
        return bad.reason if bad.row == index else f"row {bad.row}"


def refused(path: Path | str, folder: Path, **keys: Any) -> str:
    """Give the one line that a source is refused with."""
    with pytest.raises(UserError) as caught:
        opened(path, folder, **keys)
    assert len(caught.value.faults) == 1
    assert "\n" not in caught.value.faults[0]
    return caught.value.faults[0]


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def lines(*texts: str) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


TRAIN = [{"text": f"row {i}", "n": i} for i in range(35)]
OWN = [{"text": f"row {i}", "n": i} for i in range(35, 39)]
