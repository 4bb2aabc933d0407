"""`--describe`: the architecture, the parameters by part, and the size of a step."""
from __future__ import annotations

import json
from collections import Counter

from torch import nn

from ..engine.adapting import in_words, tried
from ..engine.model_spec import tokenizer_name
from ..engine.opening import Outline, freeze, outline
from ..exp import get_experiment, own_defaults
from ..modules.heads import head_parameters
from ..optim.optimizers import optimizers_of
from ..plan.schema import Plan
from ..plan.settings import Settings
from ..tokenizer import load_tokenizer, trained_size

# Frozen parameters that are named.
_NAMES = 4


def describe(settings: Settings, plan: Plan) -> str:
    """Describe the model that a run would train, without loading data or weights.

    :raises UserError: when the checkpoint, the plan and the flags do not agree.
    """
    ahead = outline(settings, plan)
    settings, spec, vocab_size = ahead.settings, ahead.spec, _vocab_size(ahead)
    model = spec.build(vocab_size, meta=True)
    total = sum(parameter.numel() for parameter in model.parameters())
    n_bytes = sum(parameter.nbytes for parameter in model.parameters())
    works = {stage.name: ahead.stage_settings(stage) for stage in plan.stages}
    states, adapters, frozen = dict[str, int](), dict[str, str](), dict[str, str]()
    for stage, (name, work) in zip(plan.stages, works.items(), strict=True):
        with tried(model, work):
            states[work.optimizer if work.adapter is None else f"{work.optimizer} in {name}"] = optimizers_of(work, model).state_bytes()
            if work.adapter is not None:
                adapters[name] = in_words(work.adapter, model)
            elif names := freeze(model, stage, settings):
                count = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
                frozen[name] = f"{count:,} parameters ({count / total:.1%}): {', '.join(names[:_NAMES])}{', …' * (len(names) > _NAMES)}"
                model.requires_grad_(True)
    origin = f", as in {ahead.found.path}" if ahead.found is not None else ""
    used = {**own_defaults(get_experiment(spec.experiment)), **spec.args}
    lines = [str(model), "", f"experiment {spec.experiment}, vocabulary {vocab_size:,}{origin}",
             f"settings: {', '.join(f'{name} {json.dumps(value)}' for name, value in used.items())}", "", "parameters"]
    lines += [f"  {name:<24}{count:>15,}  {count / total:6.1%}" for name, count in _count_parts(model).items()]
    lines += [f"  {'all':<24}{total:>15,}", "", "memory"]
    lines += [f"  {name:<24}{size / 2**20:>13,.1f} MiB" for name, size in
              (("weights", n_bytes), ("gradients", n_bytes), *((f"state of {kind}", state) for kind, state in states.items()))]
    lines += ["", "adapters", *(f"  {name}: {said}" for name, said in adapters.items())] if adapters else []
    lines += ["", "frozen", *(f"  {name}: {said}" for name, said in frozen.items())] if frozen else []
    lines += ["", "a step"]
    for name, work in works.items():
        tokens = work.batch_size * work.context_len
        # For each token 2 operations a weight in the forward pass and 4 in the backward pass, and 12 * layers * width * length for attention
        # (Chowdhery et al. 2022, "PaLM", appendix B).
        attention = 12 * spec.args.get("num_blocks", 0) * spec.args.get("embed_dim", 0) * work.context_len
        # The gradients of weights, 2 of the 4, are those of the adapter alone, where there is one.
        flops = tokens * ((6 if work.adapter is None else 4) * (total - _lookup_only(model)) + attention)
        mini_batches = "as many as it takes" if settings.mini_batch_size == "auto" else -(-work.batch_size // settings.first_mini_batch)
        lines.append(f"  {name}: {work.batch_size} pieces of at most {work.context_len} tokens in {mini_batches} mini-batches, "
                     f"at most {tokens:,} tokens, {flops / 1e12:,.2f} TFLOP")
    return "\n".join(lines)


def _count_parts(model: nn.Module) -> Counter[str]:
    """Count parameters by top-level part; a shared weight counts where it comes first."""
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        parts[name.split(".")[0]] += parameter.numel()
    return parts


def _lookup_only(model: nn.Module) -> int:
    """Count the weights that are looked up and never multiplied: embeddings that are not also the head's."""
    head = head_parameters(model)
    embeddings = (module.weight for module in model.modules() if isinstance(module, nn.Embedding))
    return sum(weight.numel() for weight in embeddings if id(weight) not in head)


def _vocab_size(ahead: Outline) -> int:
    """Find the size of the vocabulary; for a tokenizer that has not been trained yet it is in its name."""
    if ahead.spec.tokenizer is not None:
        return ahead.spec.tokenizer.vocab_size
    name = tokenizer_name(ahead.settings, ahead.plan)
    return trained_size(name) or load_tokenizer(name).vocab_size
