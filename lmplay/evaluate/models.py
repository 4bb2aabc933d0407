"""The models that are judged: files of lmplay, and folders of transformers.  What is heavy is imported once the flags are known to be right."""
from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..files import is_state
from ..paths import expanded, in_folder
from ..plan.names import RESERVED_ENDING
from ..plan.settings import Settings, find_model

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ..tokenizer import Tokenizer
    from ..writing.prompting import Prompting

_FOREIGN = "hf:"
# The longest sequence that is read at once unless --context says otherwise: models of others allow up to a million tokens.
_MOST_CONTEXT = 4096


@dataclass(frozen=True)
class Place:
    """The run that a model is a state of: its folder, name and random id, the name of the state, and how many samples it had been trained on."""

    folder: Path
    run_name: str
    run: str | None
    state: str
    samples: int


@dataclass(frozen=True)
class Judged:
    """A model that is judged.

    `label` tells it from the others in what is said; `context_len` is the most tokens that it reads; `place` is None for a model of no run, `chat_template`
    (Jinja) for one that knows no chats.
    """

    label: str
    module: nn.Module
    tokenizer: Tokenizer
    context_len: int
    prompting: Prompting
    device: torch.device
    place: Place | None
    chat_template: str | None = None

    @property
    def usual_context(self) -> int:
        """The most tokens that a token is predicted from, where nobody says otherwise."""
        return min(self.context_len, _MOST_CONTEXT)


def locate(names: list[str], out_dir: str | None) -> dict[str, str | Path]:
    """Find the models that the user names.

    :param names: of files, of states in the output folder, of folders, or `hf:NAME`.
    :return: for each label the file, or what transformers opens: a folder, or a name of the hub.
    :raises UserError: when there is no such model, or one is named twice.
    """
    found: dict[str, str | Path] = {}
    faults: list[str] = []
    folder = out_dir or os.environ.get("LMP_DATASETS") or Settings.out_dir
    for name in names:
        try:
            is_folder = expanded(name).is_dir() and not any(map(is_state, (expanded(name), in_folder(f"{name}.lmp", folder))))
            place: str | Path = name.removeprefix(_FOREIGN) if name.startswith(_FOREIGN) or is_folder else find_model(name, out_dir, "MODEL")
        except UserError as error:
            faults += error.faults
            continue
        if place in found.values():
            faults.append(f"MODEL {name}: is named twice; name another model, or leave it out.")
        found[name] = place
    if faults:
        raise UserError(*faults)
    short = [re.split(r"[/\\]", name.rstrip("/\\"))[-1].removesuffix(".lmp") for name in found]
    return dict(zip(short if len({*short}) == len(short) else [*found], found.values(), strict=True))


def open_model(label: str, place: str | Path, raw: bool, device: torch.device, form: str | None) -> Judged:
    """Open a model; it stays on the CPU.

    :param place: what :func:`locate` found.
    :param raw: take the weights themselves, also where a run keeps averages of them.
    :param form: how prompts are read; None = as in the training data.
    :raises UserError: when it cannot be read.
    """
    return _open_file(label, place, raw, device, form) if isinstance(place, Path) else _open_foreign(label, place, device, form)


def _open_file(label: str, path: Path, raw: bool, device: torch.device, form: str | None) -> Judged:
    """Open a file of lmplay."""
    from ..checkpoints.trained import open_trained
    from ..writing.prompting import recorded

    trained = open_trained(path, raw)
    return Judged(label, trained.module, trained.tokenizer, trained.context_len, recorded(trained.tokenizer, trained.forms, form), device,
                  _place_of(path, trained.run, raw), trained.chat_template)


def _place_of(path: Path, content: dict[str, Any], raw: bool) -> Place | None:
    """Say which state of which run a file is, and that its weights are not the averages; None where it holds weights alone."""
    from ..checkpoints.ownership import owner_of

    if not content:
        return None
    owner, name, state = owner_of(content), path.stem, "latest"
    stages = [str(stage["name"]) for stage in content["curriculum"]["state"]["stages"]]
    of_stage = "|".join([*(f"{re.escape(stage)}(\\.best)?" for stage in stages), RESERVED_ENDING.pattern])
    if (owner is None or owner.model != name) and (ending := re.search(rf"\.({of_stage})$", name)):
        name, state = name[:ending.start()], ending[1]
    samples = int(content["runner"]["state"]["stats"]["total_train_samples"])
    return Place(path.parent, name, owner.run if owner is not None else None, f"{state} raw" if raw else state, samples)


def _open_foreign(label: str, source: str, device: torch.device, form: str | None) -> Judged:
    """Open a folder of transformers, or a name of its hub."""
    from ..exp.imported import open_foreign
    from ..writing.prompting import recorded

    foreign = open_foreign(source, f"MODEL {label}")
    longest, tokenizer = foreign.longest or _MOST_CONTEXT, foreign.tokenizer
    module = foreign.build(longest)
    prompting = replace(recorded(tokenizer, _forms_of(foreign.record), form), begin_id=foreign.begin_id)
    return Judged(label, module.eval(), tokenizer, longest, prompting, device, None, tokenizer.chat_template)


def _forms_of(record: dict[str, Any] | None) -> dict[str, list[dict[str, Any]]]:
    """Read from the record of an export how its prompts begin; of other models nothing is known."""
    from ..data.samples import FORMS

    try:
        return {str(stage): [{"form": source["form"], "chat": source.get("chat")} for source in sources if source["form"] in FORMS]
                for stage, sources in (record or {})["forms"].items()}
    except (KeyError, TypeError, AttributeError):
        return {}
