"""What is minimised on a batch."""
from ..plan.names import objectives
from .base import Objective


def load_objective(name: str) -> Objective:
    """Make an objective.

    :param name: one of the table in :mod:`lmplay.plan.names`.
    :raises UserError: when its class cannot be imported, or is no :class:`.base.Objective`.
    """
    row = objectives()[name]
    made = row.load()()
    if not isinstance(made, Objective):
        raise row.fault(f"{row.target} is no lmplay.objectives.base.Objective")
    return made
