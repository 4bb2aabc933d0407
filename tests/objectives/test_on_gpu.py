"""The loss as a GPU computes it, on the CPU: against the CPU's own way, and against float64."""
import pytest
import torch
from torch.nn import functional

from lmplay.modules.heads import LinearTerms
from lmplay.objectives import linear_cross_entropy as module
from lmplay.objectives.judge_chunk import judge_chunk

TERMS = {"plain": {}, "soft cap": {"soft_cap": 3.0}, "z-loss": {"z_loss": 0.1}, "both": {"soft_cap": 3.0, "z_loss": 0.1}}


def problem(terms, dtype=torch.float32, total=37, size=70, width=16):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(total, width, generator=generator), torch.randn(size, width, generator=generator)
    return hidden.to(dtype), LinearTerms(weight.to(dtype), **terms), torch.randint(0, size, (total,), generator=generator)


def reference(hidden, terms, targets):
    """The losses, the most probable tokens, and the gradients of what is minimised, with all logits in float64."""
    hidden, weight = (part.double().clone().requires_grad_() for part in (hidden, terms.weight_VD))
    logits = hidden @ weight.t()
    if terms.soft_cap:
        logits = terms.soft_cap * (logits / terms.soft_cap).tanh()
    losses = functional.cross_entropy(logits, targets, reduction="none")
    gradients = torch.autograd.grad(losses.sum() + terms.z_loss * logits.logsumexp(1).square().sum(), (hidden, weight))
    return losses.detach(), logits.argmax(1), *gradients


def compiled(**options):
    torch._dynamo.reset()
    return torch.compile(judge_chunk, **options)


WAYS = {"operators": lambda: None, "one function": lambda: judge_chunk, "compiled": lambda: compiled(backend="aot_eager"),
        "generated": lambda: compiled(backend="inductor")}
MARKED = [pytest.param(way, marks=pytest.mark.slow) if way == "generated" else way for way in WAYS]


@pytest.mark.parametrize("way", MARKED)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_all_ways_agree_with_float64(terms, dtype, tolerance, way):
    if way == "generated" and dtype is torch.float64:
        pytest.skip("as float32")
    judge = WAYS[way]()
    hidden, terms, targets = problem(TERMS[terms], dtype)
    expected = reference(hidden, terms, targets)
    for chunk in (5, 37, 100):
        found = module._compute_on_gpu(hidden, terms, targets, chunk, judge, True, True)
        assert torch.equal(found.predictions_N, expected[1]) or dtype is torch.bfloat16
        assert float(found.loss_sum) == pytest.approx(float(expected[0].sum()), rel=tolerance)
        for one, other in zip((found.losses_N, found.hidden_gradient_ND, found.weight_gradient_VD), (expected[0], *expected[2:]), strict=True):
            assert one.dtype == torch.promote_types(dtype, torch.float32)
            assert (one.double() - other).norm() <= tolerance * other.norm()


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_half_precision_it_is_as_exact_as_on_a_cpu(terms, dtype):
    hidden, terms, targets = problem(TERMS[terms], dtype)
    _, _, *wanted = reference(hidden, terms, targets)
    own = module._compute(hidden, terms, targets, 16, True, True)
    for judge in (None, judge_chunk):
        found = module._compute_on_gpu(hidden, terms, targets, 16, judge, True, True)
        for name, expected in (("hidden_gradient_ND", wanted[0]), ("weight_gradient_VD", wanted[1])):
            ours, theirs = ((getattr(parts, name).double() - expected).norm() for parts in (found, own))
            assert ours <= 1.2 * theirs + 1e-5 * expected.norm()


def test_what_nobody_needs_is_not_computed():
    hidden, terms, targets = problem({})
    for judge in (None, judge_chunk):
        found = module._compute_on_gpu(hidden, terms, targets, 16, judge, False, False)
        assert found.hidden_gradient_ND is found.weight_gradient_VD is None
        assert module._compute_on_gpu(hidden, terms, targets, 16, judge, True, False).weight_gradient_VD is None


def test_no_position_and_candidates():
    hidden, terms, targets = problem({})
    for judge in (None, judge_chunk):
        none = module._compute_on_gpu(hidden[:0], terms, targets[:0], 16, judge, True, True)
        assert float(none.loss_sum) == 0
        assert none.hidden_gradient_ND.shape == (0, 16)
        assert not none.weight_gradient_VD.any()
    weighed = terms._replace(log_weights=torch.linspace(-1, 1, 70))
    own, found = module._compute(hidden, weighed, targets, 16, True, True), module._compute_on_gpu(hidden, weighed, targets, 16, judge_chunk, True, True)
    for one, other in zip(found, own, strict=True):
        torch.testing.assert_close(one, other)


def test_logits_that_no_half_precision_holds_have_finite_losses():
    hidden, terms, targets = problem({}, torch.bfloat16)
    for judge in (None, judge_chunk):
        found = module._compute_on_gpu(hidden * 1e3, terms, targets, 16, judge, True, True)
        assert all(bool(part.isfinite().all()) for part in found)


@pytest.mark.parametrize(("gib", "size", "chunk"), [(80, 50257, 8192), (24, 50257, 2048), (4, 50257, 1024), (80, 250_000, 1024), (80, 300, 8192)])
def test_a_large_card_has_large_chunks(monkeypatch, gib, size, chunk):
    class Properties:
        total_memory = gib << 30

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    module.chunk_for.cache_clear()
    assert module.chunk_for(torch.device("cuda", 0), size) == chunk
    module.chunk_for.cache_clear()
    assert module.chunk_for(torch.device("cpu"), size) == 1024
