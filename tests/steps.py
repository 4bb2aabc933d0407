"""A step on mini-batches, for tests of what goes on in it."""
from lmplay.data.batcher import Batch
from lmplay.device.model import DeviceModel
from lmplay.engine.batches import TrainBatch
from lmplay.engine.step import train_step
from lmplay.objectives.next_token import NextToken


def step_on(model, optimizers, runtime, mini_batches, grad_clip=0, interrupted=lambda: False, sources=(), accuracy_pieces=range(4), wrap=lambda model: model):
    batch = TrainBatch(Batch([], {}), mini_batches, 0, list(sources), accuracy_pieces)
    return train_step(DeviceModel(model, wrap(model), runtime), optimizers, NextToken(), batch, grad_clip, interrupted)
