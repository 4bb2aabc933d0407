"""A step, a validation, a save and writing as a GPU of NVIDIA would do them, on tensors without values: nothing waits for it but what has to."""
import pytest
import torch
from fake_gpu import GPU, Watch, installed, runtime_on_gpu
from pairs import pieces_of_pairs
from texts import BYTES

from lmplay.checkpoints.copier import Copier
from lmplay.checkpoints.staging import Staging
from lmplay.data.batcher import Batch
from lmplay.data.collate import collate
from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.device.arrival import Arrival
from lmplay.device.model import DeviceModel
from lmplay.engine import evaluate
from lmplay.engine.batches import TrainBatch
from lmplay.engine.step import train_step
from lmplay.exp import build_model, get_experiment
from lmplay.objectives.dpo import Dpo
from lmplay.objectives.next_token import NextToken
from lmplay.objectives.sft import Sft
from lmplay.optim.optimizers import build_optimizers
from lmplay.writing.continuous import ContinuousBatch
from lmplay.writing.sampling import Sampling

CONTEXT, VOCAB = 64, 50257  # GPT-2's, which is not a multiple of anything


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    with installed(monkeypatch):
        yield


def make_model(name="gpt2ish", dtype=torch.float32, **settings):
    with GPU:
        model = build_model(get_experiment(name), vocab_size=VOCAB, context_len=CONTEXT, num_blocks=1, embed_dim=64, num_heads=2, **settings)
    return model.to(dtype)


def make_pieces(count=6):
    cutter = Cutter(BYTES, CONTEXT)
    return [piece for row in range(count) for piece in cutter.cut(Sample("q\n\n", "abcde. " * (1 + row % 5), row=row, source=row % 2))]


def make_step(model, objective, pieces, packed=False, kind="adamw"):
    """A step of two mini-batches, by an optimizer that has its state."""
    optimizers = build_optimizers(kind, model, 0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with Watch():
        optimizers.step()
    half = len(pieces) // 2 + len(pieces) // 2 % 2
    reference = (lambda piece: -1.0) if objective.needs_reference else None
    batch = TrainBatch(Batch(pieces, {}), collate(pieces, half, packed=packed, reference=reference), 0, [piece.sample.source for piece in pieces], range(4))
    return lambda: train_step(DeviceModel(model, model, runtime_on_gpu()), optimizers, objective, batch, 1.0, lambda: False)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "settings"), [("gpt2ish", {"dropout": 0.1}), ("llamaish", {}), ("modern", {"multi_token": 1})])
def test_a_step_never_waits(name, settings, dtype, packed):
    step = make_step(make_model(name, dtype, **settings), NextToken(), make_pieces(), packed)
    with Watch() as seen:
        sums = step()
        Arrival([sums.loss_sum, sums.grad_norm, sums.source_sums, *sums.predictions.values()])
    assert sums.loss_sum.device == sums.grad_norm.device == GPU
    assert len(sums.source_sums) == 2
    assert sorted(sums.predictions) == [0, 1, 2, 3]
    assert seen.operators["_fused_adamw_"] > 0
    assert seen.products > 20
    tokens = sum(len(piece.tokens) for piece in make_pieces())
    assert 0 < seen.copied_bytes < 8 * 8 * tokens  # tokens, positions, targets and sources to the GPU, padding included; predictions and sums back
    assert sum(seen.operators.values()) < 1200


def per_sample():
    return [piece for row in range(6) for piece in Sft("sample").prepare(Sample("q\n\n", "abcde. " * (1 + row)), Cutter(BYTES, CONTEXT))]


@pytest.mark.parametrize(("objective", "pieces"), [
    (NextToken(), make_pieces), (Sft("sample"), per_sample), (Dpo(), lambda: pieces_of_pairs([(3, 4), (9, 2), (5, 5)]))], ids=["next_token", "sft", "dpo"])
def test_no_objective_waits(objective, pieces):
    step = make_step(make_model(), objective, pieces())
    with Watch():
        step()


@pytest.mark.parametrize(("kind", "waits"), [("adamw", 0), ("adam", 0), ("sgd", 0), ("adagrad", 1), ("rmsprop", 1), ("muon", 1)])
def test_optimizers_wait_once_at_most(monkeypatch, kind, waits):
    """Those without a kernel that skips an update have to ask whether loss and gradient are finite."""
    asked = []
    step = make_step(make_model(), NextToken(), make_pieces(), kind=kind)
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda tensor: asked.append(tensor.device) or True)
    with Watch():
        step()
    assert asked == [GPU] * waits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_validation_waits_for_a_mini_batch_when_the_next_one_is_under_way(monkeypatch, dtype):
    done = []
    loss, wait = NextToken.loss, Arrival.wait
    monkeypatch.setattr(NextToken, "loss", lambda self, *arguments: done.append("started") or loss(self, *arguments))
    monkeypatch.setattr(Arrival, "wait", lambda self: done.append("waited for") or wait(self))
    model, pieces = make_model(dtype=dtype).eval(), make_pieces()
    with Watch(), torch.no_grad():
        found = evaluate._judge(DeviceModel(model, model, runtime_on_gpu()), NextToken(), BYTES, [[piece] for piece in pieces],
                                lambda pieces: collate(pieces, 2), lambda: False, ("one", "two"))
    assert done == ["started", "started", "waited for", "started", "waited for", "waited for"]
    assert found.sums["n_tokens"] == sum(piece.n_truth for piece in pieces)


def test_a_save_copies_by_way_of_pinned_memory_of_a_bounded_size():
    model = make_model()
    optimizers = build_optimizers("adamw", model, 0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizers.step()
    value = {"model": model.state_dict(), "optimizers": optimizers.state()}
    with Watch() as seen:
        copied = Copier(Staging(half_bytes=1 << 20))(value)
    n_bytes = sum(one.nbytes for one in model.parameters())
    assert seen.copied_bytes == pytest.approx(3 * n_bytes, rel=0.01)  # weights and both averages, the tied head once
    assert copied["model"]["head.weight"] is copied["model"]["token_embedding.weight"]
    assert all(tensor.device.type == "cpu" for tensor in copied["model"].values())


def test_the_best_state_can_stay_on_the_gpu():
    state = make_model().state_dict()
    with Watch() as seen:
        copied = Copier(None)(state)
    assert seen.copied_bytes == 0
    assert all(tensor.device == GPU for tensor in copied.values())
    assert copied["head.weight"] is not state["head.weight"]


@pytest.mark.parametrize("chosen", [Sampling(), Sampling(temperature=0), Sampling(1.3, 0.5, 5, 0.9, 0.01)])
def test_writing_waits_once_a_token(chosen):
    batch = ContinuousBatch(make_model(), {256}, CONTEXT)
    for number in range(3):
        batch.add(number, [1 + number] * (2 + number), chosen, seed=number)
    for _ in range(3):
        with Watch(waits=1) as seen:
            batch.step()
        assert seen.waits_left == 0
    batch.remove(1)
    with Watch(waits=1):
        batch.step()


WRONG = {
    "waits.*nonzero": lambda x: x.nonzero(), "waits.*index": lambda x: x[x > 0], "waits.*scalar": lambda x: x.sum().item(),
    "waited for.*from": lambda x: x.cpu(), "waited for.*to the": lambda x: torch.ones(3).to(GPU), "float64": lambda x: x.double(),
    "not pinned": lambda x: torch.ones(3).to(GPU, non_blocking=True), "both devices": lambda x: x + torch.ones(256),
    "begin anywhere": lambda x: x @ torch.ones(256, 257, device=GPU, dtype=torch.bfloat16)}


@pytest.mark.parametrize("fault", WRONG)
def test_the_watch_sees(fault):
    x = torch.ones(256, 256, device=GPU, dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match=fault), Watch():
        WRONG[fault](x)
