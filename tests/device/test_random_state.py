"""The random numbers of every library."""
import random

import numpy as np
import torch

from lmplay.device.random_state import random_state, restore_random_state, restore_torch_random_state, seed_everything, torch_random_state


def test_random_states_come_back():


    def draw():
        return random.random(), np.random.rand(), np.random.randn(), torch.rand(3).tolist(), random.gauss(0, 1)

    seed_everything(5)
    draw()
    state = random_state()
    first = draw()
    draw()
    restore_random_state(state)
    assert draw() == first


def test_the_random_numbers_of_apples_gpus_come_back_too(monkeypatch):
    """Compiling a model and measuring mini-batches draw some."""
    numbers = [torch.tensor([1, 2])]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: numbers[-1])
    monkeypatch.setattr(torch.mps, "set_rng_state", numbers.append)
    state = torch_random_state()
    numbers.append(torch.tensor([3, 4]))
    restore_torch_random_state(state)
    assert numbers[-1].tolist() == [1, 2]
