"""Files as the data of a stage."""
from __future__ import annotations

from pathlib import Path

import pytest

from lmplay.data.stage import StageData
from lmplay.errors import UserError
from lmplay.plan.schema import Stage


def open_stage(folder: Path, stage: dict, seed: int = 0, validation_seed: int = 0) -> StageData:
    return StageData(Stage.model_validate({"name": "s", **stage}), folder / "datasets", seed, validation_seed)


def open_data(path: Path, **keys) -> StageData:
    stage = {"name": "one", "dataset": {"path": str(path), **keys}, "validation": 0, "shuffle": False}
    return StageData(Stage.model_validate(stage), path.parent / "datasets", 0)


def truths(data: StageData) -> tuple[list[str], dict]:
    stream = data.open_samples()
    return [sample.truth for sample in iter(stream.next, None)], stream.state()


def refused_data(path: Path, **keys) -> str:
    with pytest.raises(UserError) as caught:
        truths(open_data(path, **keys))
    assert all(fault.isprintable() for fault in caught.value.faults)
    return str(caught.value)
