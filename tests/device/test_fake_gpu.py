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
from lmplay.device.compiled import Compiled
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


def make_step(model, objective, pieces, packed=False, kind="adamw", wrapped=None, **settings):
    """A step of two mini-batches, by an optimizer that has its state."""
    optimizers = build_optimizers(kind, model, 0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with Watch():
        optimizers.step()
    half = len(pieces) // 2 + len(pieces) // 2 % 2
    reference = (lambda piece: -1.0) if objective.needs_reference else None
    batch = TrainBatch(Batch(pieces, {}), collate(pieces, half, packed=packed, reference=reference), 0, [piece.sample.source for piece in pieces], range(4))
    return lambda: train_step(DeviceModel(model, wrapped or model, runtime_on_gpu(**settings)), optimizers, objective, batch, 1.0, lambda: False)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "settings"), [("gpt2ish", {"dropout": 0.1}), ("llamaish", {}), ("modern", {"multi_token": 1}),
                                               ("modern", {"multi_token": 1, "sampled_tokens": 8192})])
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
    most = 8 * 8 * tokens  # tokens, positions, targets and sources to the GPU, padding included; predictions and sums back
    if "sampled_tokens" in settings:
        most += 2 * 2 * (8 + 4) * (settings["sampled_tokens"] + 256)  # ids and weights, for this token and the one after it, in two mini-batches
    assert 0 < seen.copied_bytes < most
    assert sum(seen.operators.values()) < 1200


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("name", "settings"), [("gpt2ish", {"dropout": 0.1}), ("modern", {"multi_token": 1, "sampled_tokens": 8192})])
def test_a_step_in_mixed_precision_never_waits_and_multiplies_in_it(name, settings, packed):
    model = make_model(name, **settings)
    step = make_step(model, NextToken(), make_pieces(), packed, amp="bfloat16")
    with Watch() as seen:
        sums = step()
    assert sums.loss_sum.dtype is torch.float32
    assert seen.product_types == {torch.bfloat16}
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_compiled_does_not_wait(monkeypatch, packed):
    """Without the compiler, which does not know this GPU: the functions that it is given, as it is given them."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    model, said = make_model(dropout=0.0), []
    step = make_step(model, NextToken(), make_pieces(), packed, wrapped=Compiled(model, 3 * CONTEXT, CONTEXT, False, said.append), amp="bfloat16")
    with Watch() as seen:
        step()
    assert [line.partition(":")[0] for line in said] == [f"compiled for training{', packed pieces' * packed}", "compiled for the loss"]
    assert seen.operators["_varlen_attn"] == seen.operators["_varlen_attn_backward"] == (3 if packed else 0)  # of an example and two mini-batches
    # without the kernel, torch's plain attention stands for its fast one here, and computes in float32
    assert seen.product_types == ({torch.bfloat16} if packed else {torch.bfloat16, torch.float32})


def test_without_memory_that_can_be_pinned_copies_are_waited_for(monkeypatch):
    """It is tried once."""
    tried = []

    def fail(tensor, device=None):
        tried.append(tensor)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.Tensor, "pin_memory", fail)
    step = make_step(make_model("modern", multi_token=1), NextToken(), make_pieces())
    with Watch(waits=100) as seen:
        sums = step()
        assert Arrival([sums.loss_sum]).wait()[0].device.type == "cpu"
    assert seen.waits_left < 100
    assert len(tried) == 1


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
