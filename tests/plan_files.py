"""Plans written to files: what they load as, and the faults they are refused with."""
from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lmplay.errors import UserError
from lmplay.plan.load import load_plan
from lmplay.plan.schema import Plan, plan_schema

SCHEMA = jsonschema.Draft202012Validator(plan_schema())


def load(raw: Any, name: str = "plan.json") -> Plan:
    """Write a plan to a folder of its own and load it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
        return load_plan(path)


def faults(raw: Any, name: str = "plan.json") -> tuple[str, ...]:
    """Load a plan that must be refused; give its fault lines."""
    with pytest.raises(UserError) as error:
        load(raw, name)
    return error.value.faults


def stage(**keys: Any) -> dict[str, Any]:
    return {"one": {"dataset": "wikitext", **keys}}


def source(**keys: Any) -> dict[str, Any]:
    return stage(dataset={"path": "a/b", **keys})
