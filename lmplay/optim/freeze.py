"""Which parameters a stage trains.  Math floor: imports torch and the ground floor only."""
from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from ..errors import UserError, nearest


def apply_freeze(model: nn.Module, patterns: Sequence[str], default_freeze: bool = False) -> list[str]:
    """Set what is trained, anew for all parameters: what an earlier stage froze is trained again unless it is named again.

    :param model: the raw model.
    :param patterns: globs over parameter names (``blocks.0.*``); one that begins with ``!`` thaws; the last that matches decides.
        A tied weight has all of its names.
    :param default_freeze: what becomes of a parameter that no pattern matches.
    :return: the names of the frozen parameters, tied ones under all names.
    :raises UserError: when a pattern matches nothing, or everything would be frozen; the model is then as it was.
    """
    named = list(model.named_parameters(remove_duplicate=False))
    frozen = {id(parameter): default_freeze for _, parameter in named}
    faults = []
    for pattern in patterns:
        matching = [parameter for name, parameter in named if fnmatchcase(name, pattern.removeprefix("!"))]
        frozen.update({id(parameter): not pattern.startswith("!") for parameter in matching})
        if not matching:
            faults.append(f"freeze {no_match(pattern, [name for name, _ in named])}")
    if not faults and all(frozen.values()):
        faults.append(f"freeze {list(patterns)}: nothing is left to train; thaw some parameters, such as '!{named[-1][0]}'.")
    if faults:
        raise UserError(*faults)
    for _, parameter in named:
        parameter.requires_grad_(not frozen[id(parameter)])
        if frozen[id(parameter)]:
            parameter.grad = None  # an optimizer skips what has no gradient
    return [name for name, parameter in named if frozen[id(parameter)]]


def no_match(pattern: str, names: list[str]) -> str:
    """Say that a pattern matches nothing, and what might."""
    modules = {name.rsplit(".", level)[0] for name in names for level in range(1, name.count(".") + 1)}
    # a pattern such as "block.0.*" means a module, so compare its head with modules too
    guess = nearest(pattern.removeprefix("!").rstrip("*").rstrip("."), [*names, *sorted(modules)])
    tops = ", ".join(dict.fromkeys(name.split(".")[0] for name in names))
    return f"'{pattern}': matches no parameter.{guess} Parameter names begin with: {tops}."
