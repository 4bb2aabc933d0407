"""The average of the weights: against a float64 loop, and what it leaves as it was."""
from __future__ import annotations

import copy

import pytest
import torch
from small_model import give_gradients, small, train

from lmplay.errors import UserError
from lmplay.optim.freeze import apply_freeze
from lmplay.optim.optimizers import build_optimizers
from lmplay.plan.training_keys import OptimizerRule


def test_it_is_that_of_a_float64_loop() -> None:
    model = small()
    optimizers = build_optimizers("adamw", model, 0.01, ema=0.9)
    expected = {}
    for step in range(120):
        give_gradients(model, step)
        optimizers.step()
        for name, parameter in model.named_parameters():
            decay = min(0.9, (1 + step) / (10 + step))
            value = parameter.detach().double()
            expected[name] = value if step == 0 else decay * expected[name] + (1 - decay) * value
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(optimizers.averages()[parameter].double(), expected[name], rtol=1e-5, atol=1e-6)


def test_a_teacher_begins_with_the_weights_of_a_moment_and_is_never_faster() -> None:
    model = small()
    apply_freeze(model, ["head.*"], [])
    optimizers = build_optimizers("adamw", model, 0.01, teacher_decay=0.5)
    train(model, build_optimizers("adamw", model, 0.01), range(2))
    assert not optimizers.teacher.state
    optimizers.teacher.begin(0.9)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    expected = {name: parameter.detach().double() for name, parameter in trained.items()}
    for step in range(30):
        give_gradients(model, step)
        optimizers.step()
        for name, parameter in trained.items():
            expected[name] = 0.9 * expected[name] + 0.1 * parameter.detach().double()
    optimizers.teacher.begin(0.9)  # it has begun
    before = copy.deepcopy(model.state_dict())
    with optimizers.taught():
        for name, parameter in trained.items():
            torch.testing.assert_close(parameter.detach().double(), expected[name], rtol=1e-5, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not optimizers.averages()


@pytest.mark.parametrize(("stored", "wanted"), [(True, True), (True, False), (False, True)])
def test_a_teacher_is_restored_where_there_is_one_and_one_is_wanted(stored: bool, wanted: bool) -> None:
    model, other = small(), small()
    optimizers, fresh = (build_optimizers("adamw", one, 0.01, ema=0.9, teacher_decay=0.8 if has else 0.0) for one, has in ((model, stored), (other, wanted)))
    if stored:
        optimizers.teacher.begin(0.8)
    train(model, optimizers, range(3))
    other.load_state_dict(model.state_dict())
    fresh.restore(copy.deepcopy(optimizers.state()))
    if wanted:
        fresh.teacher.begin(0.8)
        assert {state["step"] for state in fresh.teacher.state.values()} == {3 if stored else 0}
    assert set(fresh.state()) == {"main", "ema", *(["teacher"] if wanted else [])}
    for one, optimizer in ((model, optimizers), (other, fresh)):
        train(one, optimizer, range(3, 6))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def test_schedule_free_gives_its_average() -> None:
    """Defazio et al. 2024, equations 2 to 4: z takes the steps, x averages it, and the gradient is taken at y between them."""
    model = small()
    start = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    optimizers = build_optimizers("schedulefree", model, 0.01)
    x, z = dict(start), dict(start)
    square = {name: torch.zeros_like(value) for name, value in start.items()}
    for step in range(1, 6):
        give_gradients(model, step)
        gradients = {name: parameter.grad.double() for name, parameter in model.named_parameters()}
        optimizers.step()
        for name, gradient in gradients.items():
            square[name] = 0.999 * square[name] + 0.001 * gradient**2
            z[name] = z[name] - 0.01 * gradient / ((square[name] / (1 - 0.999**step)).sqrt() + 1e-8)
            x[name] = x[name] + (z[name] - x[name]) / step
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), 0.1 * z[name] + 0.9 * x[name], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(optimizers.averages()[parameter].double(), x[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "ema"), [("adamw", 0.9), ("schedulefree", 0.0), ("sgd", 0.0)])
def test_a_look_at_the_averages_changes_no_bit(name: str, ema: float) -> None:
    model, other = small(), small()
    optimizers, plain = (build_optimizers(name, one, 0.01, ema=ema) for one in (model, other))
    for step in range(4):
        train(model, optimizers, range(step, step + 1))
        train(other, plain, range(step, step + 1))
        before = copy.deepcopy(model.state_dict())
        with optimizers.averaged() as is_averaged:
            assert is_averaged == (ema > 0 or name == "schedulefree")
            assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items()) == (is_averaged and step > 0)
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def test_a_second_average_is_refused() -> None:
    rules = [OptimizerRule(match="blocks.*", kind="schedulefree")]
    for name, more in (("schedulefree", {}), ("adamw", {"rules": rules})):
        with pytest.raises(UserError, match=r"ema 0\.9: AdamWScheduleFree keeps an average of its own, .*; give --ema 0, or take another optimizer"):
            build_optimizers(name, small(), 0.01, ema=0.9, **more)


def test_frozen_weights_keep_their_average_and_a_skipped_step_changes_none() -> None:
    model = small()
    optimizers = build_optimizers("adamw", model, 0.01, ema=0.9)
    apply_freeze(model, ["token_embedding.*"])
    train(model, optimizers, range(3))
    assert model.token_embedding.weight not in optimizers.averages()
    before = {parameter: value.clone() for parameter, value in optimizers.averages().items()}
    give_gradients(model, 5)
    optimizers.step_unless(torch.tensor(True))
    assert all(torch.equal(value, before[parameter]) for parameter, value in optimizers.averages().items())
    optimizers.step_unless(torch.tensor(False))
    assert not any(torch.equal(value, before[parameter]) for parameter, value in optimizers.averages().items())
