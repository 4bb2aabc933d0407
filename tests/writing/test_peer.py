"""Texts are those that transformers writes with the same weights."""
import pytest
import torch

from lmplay.exp import build_model, get_experiment
from lmplay.writing.drafts import make_draft
from lmplay.writing.generation import generate
from lmplay.writing.packed import pack
from lmplay.writing.sampling import Sampling

VOCAB, CONTEXT = 97, 64


@pytest.mark.parametrize(("name", "settings"), [
    ("gpt2ish", {}), ("llamaish", {"num_kv_heads": 2}), ("llamaish", {"query_key_norm": True}), ("modern", {"zero_projections": False, "head_std": 1.0})])
@pytest.mark.parametrize("texts", [1, 5])
def test_greedy_texts_are_those_of_transformers(name, settings, texts):
    torch.manual_seed(0)
    model = build_model(get_experiment(name), vocab_size=VOCAB, context_len=CONTEXT, num_blocks=2, embed_dim=32, num_heads=4, **settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)  # far from uniform
    prompts_BT = torch.randint(0, VOCAB, (texts, 9))
    theirs = model.as_transformers().generate(prompts_BT, attention_mask=torch.ones_like(prompts_BT), max_new_tokens=50, do_sample=False, pad_token_id=0)
    expected = theirs[:, 9:].tolist()
    for written, draft in ((model, None), (pack(model, 8, 1 << 30), make_draft(model, 1 << 30, 1))):
        steps = [*generate(written, prompts_BT.tolist(), (), CONTEXT, Sampling(temperature=0), [0] * texts, 50, draft=draft)]
        assert [list(text) for text in zip(*steps, strict=True)] == expected
