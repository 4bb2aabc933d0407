"""`--describe`: the architecture, the parameters by part, and the size of a step.  Engine floor."""
from __future__ import annotations

from collections import Counter

from torch import nn

from ..checkpoints.format import load
from ..engine.model_spec import ModelSpec, plan_model, tokenizer_name
from ..optim.optimizers import STATE_COPIES
from ..plan.schema import Plan
from ..plan.settings import Settings, resolve_stage
from ..tokenizer import load_tokenizer, trained_size


def describe(settings: Settings, plan: Plan) -> str:
    """Describe the model that a run would train, without loading data or weights.

    :param settings: the run's.
    :param plan: the plan.
    :return: several lines.
    """
    path = settings.model_file(plan)
    stored = load(path) if path.exists() and not settings.reset_history else None
    model_plan = plan_model(settings, plan, path, stored)
    vocab_size = _vocab_size(settings, plan, model_plan)
    model = model_plan.build(vocab_size, meta=True)
    total = sum(parameter.numel() for parameter in model.parameters())
    trained = 4 * total
    lines = [str(model), "", f"experiment {model_plan.experiment}, vocabulary {vocab_size:,}" + (f", as in {path}" if stored else ""), "", "parameters"]
    lines += [f"  {name:<24}{count:>15,}  {count / total:6.1%}" for name, count in _count_parts(model).items()]
    lines += [f"  {'all':<24}{total:>15,}", "", "memory"]
    lines += [f"  {name:<24}{size / 2**20:>13,.1f} MiB" for name, size in
              (("weights", trained), ("gradients", trained), (f"state of {settings.optimizer}", trained * STATE_COPIES[settings.optimizer]))]
    lines += ["", "a step"]
    for stage in plan.stages:
        work = resolve_stage(settings, stage, model_plan.args["context_len"])
        tokens = work.batch_size * work.context_len
        # For each token 2 operations a weight forward and 4 backward, and 12 * layers * width * length for attention
        # (Chowdhery et al. 2022, "PaLM", appendix B).
        attention = 12 * model_plan.args.get("num_blocks", 0) * model_plan.args.get("embed_dim", 0) * work.context_len
        flops = tokens * (6 * (total - _lookup_only(model)) + attention)
        mini_batches = "as many as it takes" if settings.mini_batch_size == "auto" else -(-work.batch_size // settings.first_mini_batch)
        lines.append(f"  {stage.name}: {work.batch_size} pieces of at most {work.context_len} tokens in {mini_batches} mini-batches, "
                     f"at most {tokens:,} tokens, {flops / 1e12:,.2f} TFLOP")
    return "\n".join(lines)


def _count_parts(model: nn.Module) -> Counter[str]:
    """Count parameters by top-level part; a shared weight counts where it comes first."""
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        parts[name.split(".")[0]] += parameter.numel()
    return parts


def _lookup_only(model: nn.Module) -> int:
    """Count the weights that are looked up and never multiplied: embeddings that are not the head's too."""
    head = {id(parameter) for parameter in model.get_submodule("head").parameters()}
    embeddings = (module.weight for module in model.modules() if isinstance(module, nn.Embedding))
    return sum(weight.numel() for weight in embeddings if id(weight) not in head)


def _vocab_size(settings: Settings, plan: Plan, model_plan: ModelSpec) -> int:
    """Find the size of the vocabulary; a tokenizer that is still to be trained will have what was asked for."""
    if model_plan.tokenizer is not None:
        return model_plan.tokenizer.vocab_size
    name = tokenizer_name(settings, plan)
    return trained_size(name) or load_tokenizer(name).vocab_size
