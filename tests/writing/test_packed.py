"""Models with rearranged weights compute the same, share their weights with the model, and leave it as it is."""
import pytest
import torch
from torch.nn import functional

from lmplay.exp import build_model, get_experiment
from lmplay.modules.cache import KeyValueCache
from lmplay.writing.packed import pack

pytestmark = pytest.mark.skipif(not torch.backends.mkl.is_available() or not torch.backends.mkldnn.is_available(), reason="needs Intel's libraries")
SIZES = {"vocab_size": 50, "context_len": 16, "num_blocks": 2, "embed_dim": 32, "num_heads": 2}


def build(name, **settings):
    torch.manual_seed(0)
    return build_model(get_experiment(name), **SIZES, **settings).eval()


def logits(model, tokens_BT):
    """Of a few tokens at once, then of one more of each text, as in generation."""
    cache = KeyValueCache(len(tokens_BT), 16, torch.device("cpu"))
    found = [model.head(model(tokens_BT[:, :-1], cache=cache))]
    cache.keep([tokens_BT.shape[1] - 1] * len(tokens_BT))
    return torch.cat([*found, model.head(model(tokens_BT[:, -1:], cache=cache))], 1)


@pytest.mark.parametrize(("name", "settings"), [
    ("gpt2ish", {}), ("llamaish", {"query_key_value_bias": True}), ("modern", {"soft_cap": 4.0, "head_std": 1.0, "zero_projections": False})])
@pytest.mark.parametrize("rows", [1, 2, 8, 32])
@torch.inference_mode()
def test_logits_are_the_same(monkeypatch, name, settings, rows):
    model = build(name, **settings)
    tokens_BT = torch.randint(0, 50, (rows, 7))
    expected = logits(model, tokens_BT)
    packed = pack(model, rows, 1 << 30)
    plain, used = functional.linear, []
    monkeypatch.setattr(functional, "linear", lambda *arguments: used.append(arguments[0].shape) or plain(*arguments))
    torch.testing.assert_close(logits(packed, tokens_BT), expected, atol=1e-5, rtol=1e-5)
    assert all(len(shape) and shape[:-1].numel() > 32 for shape in used)  # the steps of one token took none of the usual products
    assert torch.equal(logits(model, tokens_BT), expected)


def test_weights_are_shared():
    model = build("modern", tied_head=True)
    packed = pack(model, 4, 1 << 30)
    assert [id(weight) for weight in packed.parameters()] == [id(weight) for weight in model.parameters()]
    assert packed.head.weight is packed.token_embedding.weight
    assert all(type(layer) in (torch.nn.Linear, type(model.head)) for layer in model.modules() if isinstance(layer, torch.nn.Linear))


def test_nothing_is_done_where_nothing_is_gained():
    model = build("gpt2ish")
    assert pack(model, 33, 1 << 30) is model
    assert pack(model, 8, 1000) is model  # bytes
    assert pack(build("gpt2ish").bfloat16(), 8, 1 << 30).head.weight.dtype == torch.bfloat16
