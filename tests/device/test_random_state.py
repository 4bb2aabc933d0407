"""The random numbers of every library."""
import random

import numpy as np
import torch

from lmplay.device.random_state import random_state, restore_random_state, seed_everything


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
