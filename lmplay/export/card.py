"""The model card of an export: what the model is, how it is used, what it was trained on, and what it reached."""
from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from .. import __version__
from ..plotstats.plot import draw_curve, save
from ..plotstats.runs import Curve, read_curve
from ..plotstats.table import SET_COLUMNS
from ..stats.run_record import RunRecord
from ..stats.totals import HELD_OUT, VALIDATION
from ..stats.writing import stats_files
from ..words import cut
from .private import shortened

if TYPE_CHECKING:
    from ..checkpoints.trained import Trained

CURVE = "curve.png"
_SETS = {VALIDATION: "newest validation", HELD_OUT: "all held-out samples"}
# What comes before the text of a prompt, and after it, for each form of the training data.
_BEGINNINGS = {"text": 'tokenizer.eos_token + "The"', "title": r'"A title\n\n"', "instruction": r'"What is to be done\n\n"'}
_STAGE_COLUMNS = ("batch_size", "context_len", "optimizer", "lr", "schedule", "weight_decay", "objective")


def write_card(folder: Path, trained: Trained, name: str, state: str, about: str, license_name: str | None, with_tokenizer: bool) -> None:
    """Write README.md, and the curve of the training where the file holds it.

    :param name: of the model.
    :param state: which state of the run this is.
    :param about: what was written, in a few words.
    :param license_name: of the model; None = unknown.
    :raises OSError: when something cannot be written.
    """
    record = _record_of(trained)
    curves = _curves_of(record, trained.experiment) if record is not None else []
    plan = trained.run["curriculum"]["state_args"]["plan"] if trained.run else {"stages": []}
    sources = [source for stage in plan["stages"] for source in stage.get("dataset", ())]
    parts = [_front(sources, license_name), f"# {name}\n\n{_said(trained, state, about, record)}", _use(trained, name) if with_tokenizer else "",
             _figures(curves), _training(trained, plan, record), _data(sources)]
    (folder / "README.md").write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    if len(curves) == 2 and len(curves[0].columns["samples"]):
        save(draw_curve(curves[0], curves[1], ["samples"], None), folder / CURVE)


def _record_of(trained: Trained) -> RunRecord | None:
    """Read the history of the run; None in a file of weights alone."""
    if not trained.run:
        return None
    record = RunRecord(str(trained.run["runner"]["state"]["clock"].get("model", "model")))
    record.restore(trained.run["runner"]["state"])
    return record


def _curves_of(record: RunRecord, experiment: str) -> list[Curve]:
    """Give the curves of training and validation as :mod:`lmplay.plotstats` reads them."""
    with tempfile.TemporaryDirectory() as folder:
        record.write(Path(folder), experiment)
        return [read_curve(path) for path in stats_files(Path(folder), record.model, None)]


def _front(sources: Sequence[dict[str, Any]], license_name: str | None) -> str:
    """Write the fields that the hub reads."""
    hub = sorted({source["path"] for source in sources if not os.path.isabs(source["path"]) and ":" not in source["path"]})
    fields = {"library_name": "transformers", "pipeline_tag": "text-generation", "license": license_name or "unknown", "tags": ["lmplay"],
              **({"datasets": hub} if hub else {})}
    return f"---\n{yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)}---"


def _said(trained: Trained, state: str, about: str, record: RunRecord | None) -> str:
    """Say what the model is."""
    lines = [f"A language model, trained with lmplay {__version__}: {about}; experiment `{shortened(trained.experiment)}`, context of "
             f"{trained.context_len:,} tokens, tokenizer `{shortened(trained.tokenizer.name)}` of {trained.tokenizer.vocab_size:,} tokens."]
    if record is not None:
        progress = record.progress
        lines.append(f"It has learned {progress.tokens:,} tokens of {progress.samples:,} samples in {progress.step:,} steps; this is the state `{state}` of "
                     f"the run{', with the average of its weights' if trained.averaged else ''}.")
        if trained.run["runner"]["state_args"]["settings"].get("ema") and not trained.averaged:
            lines.append("The figures below are those of the average of its weights, which the run keeps; these are the weights themselves.")
    return "\n".join(lines)


def _use(trained: Trained, name: str) -> str:
    """Show how it is used, with a prompt as the training data had them."""
    forms = [source for stage in trained.forms.values() for source in stage[:1]]
    form = forms[-1]["form"] if forms else "text"
    if form == "chat":
        inputs = ('tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True, return_tensors="pt", return_dict=True)')
    else:
        inputs = f'tokenizer({_BEGINNINGS[form]}, return_tensors="pt")'
    begin = {"text": " A text begins after an end token, as in training.", "chat": " The chat template writes chats as in training.",
             "title": " A text begins after its title and an empty line, as in training.",
             "instruction": " An answer begins after its instruction and an empty line, as in training."}[form]
    return f"""## Use
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model, tokenizer = AutoModelForCausalLM.from_pretrained("{name}"), AutoTokenizer.from_pretrained("{name}")
inputs = {inputs}
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))
```
The tokenizer adds no tokens by itself.{begin} The model reads {trained.context_len:,} tokens at most."""


def _figures(curves: Sequence[Curve]) -> str:
    """List what the model reached."""
    if len(curves) < 2:
        return ""
    shown = SET_COLUMNS
    rows = [[_SETS.get(name, name), *("-" if figures.get(key) is None else form(figures[key]) for _, key, form in shown)]
            for name, figures in curves[1].newest.items() if name in _SETS or name in curves[1].named_sets]
    if not rows:
        loss = curves[1].last("loss")
        rows = [] if math.isnan(loss) else [["newest validation", *("-" if key != "loss" else form(loss) for _, key, form in shown)]]
    table = _table(["set", *(heading for heading, _, _ in shown)], rows) + "\n\nLosses are in nats per token." if rows else "No validation was run."
    return f"## Figures\n{table}" + (f"\n\n![Loss over the training]({CURVE})" if len(curves[0].columns["samples"]) else "")


def _training(trained: Trained, plan: dict[str, Any], record: RunRecord | None) -> str:
    """Say how it was trained, stage by stage, with the plan."""
    parts = [f"## Training\nSettings of the model: `{json.dumps(shortened(trained.args), ensure_ascii=False)}`" if len(json.dumps(trained.args)) < 2000
             else "## Training"]
    if record is not None:
        used = trained.run["runner"]["state_args"].get("stages", {})
        rows = [[name, *(f"{stats.totals[f'total_train_{unit}']:,}" for unit in ("samples", "tokens")),
                 *(str(used.get(name, {}).get(key, "-")) for key in _STAGE_COLUMNS)] for name, stats in record.stage_stats.items()]
        parts.append(_table(["stage", "samples", "tokens", *(key.replace("_", " ") for key in _STAGE_COLUMNS)], rows))
        parts.append(f"The plan:\n```json\n{json.dumps(shortened(plan), indent=2, ensure_ascii=False)}\n```")
    return "\n\n".join(parts)


def _data(sources: Sequence[dict[str, Any]]) -> str:
    """List the data, with a field for each licence."""
    keys = ("path", "config", "split", "revision")
    names = list(dict.fromkeys(" ".join(str(shortened(source[key])) for key in keys if source.get(key)) for source in sources))
    if not names:
        return ""
    return "## Data\n" + _table(["data", "licence"], [[f"`{name}`", "unknown"] for name in names]) + \
        "\n\nlmplay does not know the licences of data; fill them in before you publish the model."


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cut(cell, 200).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
