"""Several ranks are one class (lmplay/device/ranks.py): here 3 members in one process give the sums of one.  1 file."""
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from lmplay.data.batcher import Batch
from lmplay.data.collate import collate
from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.device.model import DeviceModel
from lmplay.device.ranks import Ranks
from lmplay.device.runtime import Runtime
from lmplay.engine.batches import TrainBatch
from lmplay.engine.step import train_step
from lmplay.exp import build_model, get_experiment
from lmplay.objectives.next_token import NextToken
from lmplay.optim.optimizers import build_optimizers
from lmplay.plan.settings import Settings
from lmplay.stats.figures import Figure
from lmplay.tokenizer import load_tokenizer

BYTES = load_tokenizer("bytes")


class Threads(Ranks):
    """Ranks that are threads: each waits for the others, and all take the sum of what they have put down."""

    def __init__(self, rank, size, barrier, values, is_off):
        self.rank, self.size, self._barrier, self._values, self._is_off = rank, size, barrier, values, is_off

    def step_is_off(self):
        return self._is_off

    def sum(self, tensors):
        return [self._sum(tensor) for tensor in tensors]

    @contextmanager
    def summing(self, parameters):
        yield
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.grad = self._sum(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)

    def _sum(self, tensor):
        self._values[self.rank] = tensor
        self._barrier.wait()
        total = torch.stack([value.double() for value in self._values]).sum(0).to(tensor.dtype)
        self._barrier.wait()
        return total


def make_model():
    torch.manual_seed(1)
    return build_model(get_experiment("gpt2ish"), vocab_size=BYTES.vocab_size, context_len=64, num_blocks=1, embed_dim=16, num_heads=2, dropout=0.0)


class Counting(NextToken):
    """Has a figure of its own, which every rank must sum, also one without a mini-batch."""

    figures = (Figure("targets", "targets", "sum"),)

    def loss(self, model, mini_batch, head):
        return replace(super().loss(model, mini_batch, head), figures={"targets": mini_batch.targets_N.sum()})


def do_step(model, batch, ranks):
    runtime = Runtime(Settings(device="cpu"))
    runtime.ranks = ranks
    return train_step(DeviceModel(model, model, runtime), build_optimizers("adamw", model, 0.01), Counting(), batch, 1.0, lambda: False)


def make_batch(mini_batches):
    cutter = Cutter(BYTES, 64)
    pieces = [piece for i in range(2 * mini_batches) for piece in cutter.cut(Sample("", "abcde. " * (1 + i % 7), row=i, source=i % 2))]
    batch = TrainBatch(Batch(pieces, {}), collate(pieces, 2), 0, [piece.sample.source for piece in pieces], range(4))
    assert len(batch.mini_batches) == mini_batches
    return batch


def do_together(size, batch, is_off=False):
    """Let members do a step, each in a thread; gives their models and sums."""
    models, found = [make_model() for _ in range(size)], [None] * size
    barrier, values = threading.Barrier(size, timeout=60), [None] * size

    def work(rank):
        found[rank] = do_step(models[rank], batch, Threads(rank, size, barrier, values, is_off))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return models, found


def test_a_step_that_is_off_changes_nothing():
    models, found = do_together(3, make_batch(5), is_off=True)
    assert found == [None] * 3
    for one, two in zip(models[0].parameters(), make_model().parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(("size", "mini_batches"), [(1, 5), (3, 5), (3, 6), (3, 2)])
def test_members_give_the_sums_and_the_weights_of_one(size, mini_batches):
    batch, single = make_batch(mini_batches), make_model()
    expected = do_step(single, batch, Ranks())
    models, found = do_together(size, batch)
    for model, sums in zip(models, found, strict=True):
        assert float(sums.loss_sum) == pytest.approx(float(expected.loss_sum), rel=1e-6)
        assert float(sums.grad_norm) == pytest.approx(float(expected.grad_norm), rel=1e-5)
        torch.testing.assert_close(sums.source_sums, expected.source_sums)
        assert float(sums.figures["targets"]) == float(expected.figures["targets"])
        assert {number: ids.tolist() for number, ids in sums.predictions.items()} == {number: ids.tolist() for number, ids in expected.predictions.items()}
        for one, two in zip(model.parameters(), single.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
