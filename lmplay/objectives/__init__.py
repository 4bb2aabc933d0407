"""What is minimised on a batch."""
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..errors import UserError
from ..plan.names import objectives
from .base import Objective


def load_objective(name: str, settings: Mapping[str, Any] = MappingProxyType({})) -> Objective:
    """Make an objective.

    :param name: one of the table in :mod:`lmplay.plan.names`.
    :param settings: arguments of its class.
    :raises UserError: when its class cannot be imported, does not take the settings, or is no :class:`.base.Objective`.
    """
    row = objectives()[name]
    kind = row.load()
    try:
        made = kind(**settings)
    except (TypeError, ValueError) as error:
        if not settings:
            raise
        raise UserError(f"objective '{name}': does not take the settings {json.dumps(settings)} ({error}); change them in the plan.") from error
    if not isinstance(made, Objective):
        raise row.fault(f"{row.target} is no lmplay.objectives.base.Objective")
    return made
