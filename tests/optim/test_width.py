"""`lr_width`: learning rates of matrices by the width of a model, and that the best one carries over."""
from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from lmplay.errors import UserError
from lmplay.exp import build_model, get_experiment
from lmplay.optim.optimizers import optimizers_of, width_ratio
from lmplay.plan.load import plan_from_json
from lmplay.plan.recipes import RECIPES
from lmplay.plan.settings import Settings, StageSettings, resolve_stage

CONTEXT, STEPS, BATCH = 32, 24, 8


def stage_of(**keys) -> StageSettings:
    plan = plan_from_json({"stages": [{"name": "one", "dataset": ["wikitext"], "epochs": 1.0, **keys}]})
    return resolve_stage(Settings(), plan.stages[0], CONTEXT)


def model_of(width: int, exp: str = "modern", num_blocks: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return build_model(get_experiment(exp), vocab_size=64, context_len=CONTEXT, num_blocks=num_blocks, embed_dim=width, num_heads=width // 16, dropout=0.0)


@pytest.mark.parametrize(("optimizer", "matrices"), [("adamw", 0.25), ("muon", 0.5)])
def test_matrices_have_the_learning_rate_of_their_width_and_the_others_the_stages(optimizer, matrices):
    model = model_of(64)
    stage = stage_of(optimizer=optimizer, lr=0.01, lr_width=16)
    optimizers = optimizers_of(stage, model)
    optimizers.set_lr(0.01)
    assert optimizers.lr == pytest.approx(0.01)
    rates = {id(parameter): group["lr"] for group in optimizers.param_groups for parameter in group["params"]}
    found = {name: rates[id(parameter)] / 0.01 for name, parameter in model.named_parameters()}
    assert found["token_embedding.weight"] == 1
    assert found["head.weight"] == pytest.approx(0.25)
    assert {round(found[name], 6) for name in found if name.startswith("blocks.") and model.get_parameter(name).ndim == 2} == {matrices}
    assert width_ratio(stage_of(lr=0.01), model) == 1


def test_an_optimizer_of_which_it_is_not_known_is_refused():
    with pytest.raises(UserError, match="lr_width: how the best learning rate depends on the width of a model is not known for sgd"):
        optimizers_of(stage_of(optimizer="sgd", lr_width=16), model_of(32))
    optimizers_of(stage_of(optimizer="sgd", lr_width=32), model_of(32))


def test_the_width_is_that_of_any_head_with_a_weight():
    class Scaled(nn.Linear):
        def linear_terms(self) -> None:
            return None

    model = model_of(32)
    model.head = Scaled(32, 64)
    assert width_ratio(stage_of(lr_width=64), model) == 2
    model.head = nn.Sequential(nn.Linear(32, 64))
    with pytest.raises(UserError, match="lr_width: the model's head has no weight, so its width is not known; leave it out, or give --lr-width 0"):
        width_ratio(stage_of(lr_width=64), model)
    assert width_ratio(stage_of(), model) == 1


def loss_with(model: nn.Module, stage: StageSettings, lr: float, tokens: torch.Tensor) -> float:
    """Train as a recipe does, over a fixed text; the mean loss of the last steps."""
    optimizers, places, losses = optimizers_of(stage, model), torch.Generator().manual_seed(1), []
    for step in range(STEPS):
        optimizers.set_lr(lr * min(1.0, (step + 1) / 6) * (1 - step / STEPS))
        starts = torch.randint(0, len(tokens) - CONTEXT - 1, (BATCH,), generator=places)
        pieces = torch.stack([tokens[start:start + CONTEXT + 1] for start in starts])
        loss = functional.cross_entropy(model.head(model(pieces[:, :-1])).flatten(0, 1), pieces[:, 1:].flatten())
        optimizers.zero_grad()
        loss.backward()
        optimizers.step()
        losses.append(float(loss.detach()))
    return sum(losses[-10:]) / 10


@pytest.mark.slow
def test_the_best_learning_rate_carries_over_widths():
    # words of several letters, whose next letter depends on the word before
    numbers = torch.Generator().manual_seed(3)
    words = [torch.randint(1, 64, (int(length),), generator=numbers) for length in torch.randint(2, 7, (200,), generator=numbers)]
    follows = torch.randint(0, 200, (200, 3), generator=numbers)
    word, text = 0, []
    for choice in torch.randint(0, 3, (4000,), generator=numbers):
        text += [words[word], torch.zeros(1, dtype=torch.int64)]
        word = int(follows[word, choice])
    tokens = torch.cat(text)
    decay, rates = RECIPES["modern"].stage["weight_decay"], [0.032, 0.064, 0.128, 0.256]

    def losses(width: int, rates: list[float], lr_width: int) -> dict[float, float]:
        stage = stage_of(weight_decay=decay, optimizer="muon", lr_width=lr_width)
        return {lr: loss_with(model_of(width, num_blocks=1), stage, lr, tokens) for lr in rates}

    narrow, wide = losses(64, rates, 64), losses(256, rates, 64)
    best, of_wide = (min(found, key=found.__getitem__) for found in (narrow, wide))
    assert 0.5 <= of_wide / best <= 2, (narrow, wide)
    plain = losses(256, [best / 2, best], 0)  # without the width it moves down
    assert plain[best / 2] < plain[best] > wide[best], (plain, wide)
