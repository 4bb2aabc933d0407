"""Losses and gradients against TRL on the same tensors, where it is installed (`pip install lmplay[test-peers]`)."""
from types import SimpleNamespace

import pytest
import torch
from answers import pieces_of_answers
from pairs import pieces_of_pairs
from torch import nn

from lmplay.data.collate import collate
from lmplay.objectives import load_objective
from lmplay.objectives.preference import Answers

pytest.importorskip("trl")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TOLERANCE = {"rtol": 2e-5, "atol": 2e-6}
LENGTHS = [(20, 11), (4, 33), (7, 7)]


class Hidden(nn.Module):
    """A model of transformers as an experiment's model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens_BT):
        return self.model.model(tokens_BT).last_hidden_state


def make_model(seed):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(vocab_size=257, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                                        max_position_embeddings=64, initializer_range=0.3))


@pytest.fixture(scope="module")
def tokenizer():
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<e>": 256}, unk_token="a"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<e>", pad_token="<e>")


def options(folder):
    return {"output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": [], "gradient_checkpointing": False, "disable_tqdm": True}


def as_trl_has_it(pieces):
    """The pieces as one padded batch of TRL's: first all that are chosen, then all that are rejected."""
    ordered, width = [*pieces[::2], *pieces[1::2]], max(len(piece.tokens) for piece in pieces)
    batch = {name: torch.zeros(len(ordered), width, dtype=torch.int64) for name in ("input_ids", "attention_mask", "completion_mask")}
    for row, piece in enumerate(ordered):
        batch["input_ids"][row, :len(piece.tokens)] = torch.from_numpy(piece.tokens.astype("int64"))
        batch["attention_mask"][row, :len(piece.tokens)] = 1
        batch["completion_mask"][row, piece.n_prompt:len(piece.tokens)] = 1
    return batch


def gradients(model):
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def ours(name, given, model, pieces, size, reference=None):
    objective = load_objective(name, given)
    mini_batches = collate(pieces, size, reference=reference)
    count, total = sum(map(objective.count, mini_batches)), 0.0
    for mini_batch in mini_batches:
        loss = objective.loss(Hidden(model), mini_batch, model.lm_head).loss_sum / count
        loss.backward()
        total += float(loss.detach())
    return total, gradients(model)


def same(found, expected):
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(expected[0]), **TOLERANCE)
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, **TOLERANCE)


@pytest.fixture(scope="module")
def dpo(tmp_path_factory, tokenizer):
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    rows = Dataset.from_list([{"prompt": "a", "chosen": "a", "rejected": "a a"}] * 2)
    return DPOTrainer(model=make_model(0), ref_model=make_model(1), args=DPOConfig(**options(tmp_path_factory.mktemp("trl"))), train_dataset=rows,
                      processing_class=tokenizer)


@pytest.mark.parametrize(("kind", "beta"), [("sigmoid", 0.3), ("ipo", 0.2), ("hinge", 0.15)])
@pytest.mark.parametrize("size", [2, 6])
def test_dpo(dpo, kind, beta, size):
    pieces, model, before = pieces_of_pairs(LENGTHS), dpo.accelerator.unwrap_model(dpo.model), dpo.accelerator.unwrap_model(dpo.ref_model)
    dpo.beta, dpo.loss_types = beta, [kind]
    model.eval()
    loss = dpo.compute_loss(dpo.model, as_trl_has_it(pieces))
    loss.backward()
    expected = float(loss.detach()), gradients(model)
    known = {}
    with torch.no_grad():
        for piece in pieces:
            tokens = torch.from_numpy(piece.tokens.astype("int64"))
            log_probs = before(tokens[None, :-1]).logits[0].log_softmax(-1).gather(1, tokens[1:, None])
            known[id(piece)] = float(log_probs[piece.n_prompt - 1:].sum())
    same(ours("dpo", {"loss": kind, "beta": beta}, model, pieces, size, lambda piece: known[id(piece)]), expected)


def test_sft(tmp_path, tokenizer):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    trainer = SFTTrainer(model=make_model(0), args=SFTConfig(**options(tmp_path)), train_dataset=Dataset.from_list([{"text": "a"}] * 2),
                         processing_class=tokenizer)
    pieces, model = pieces_of_pairs(LENGTHS), trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    batch = as_trl_has_it(pieces)
    labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100)
    loss = trainer.compute_loss(trainer.model, {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels})
    loss.backward()
    expected = float(loss.detach()), gradients(model)
    same(ours("sft", {}, model, pieces, 4), expected)


def random_answers():
    torch.manual_seed(0)
    lengths = torch.tensor([[5.0, 9.0], [12.0, 3.0], [1.0, 30.0], [7.0, 7.0]])
    return Answers((-torch.rand(4, 2) * 3 * lengths).requires_grad_(), None, lengths)


@pytest.mark.parametrize("smoothing", [0.0, 0.15])
def test_simpo(smoothing):
    from trl.experimental.cpo import CPOTrainer

    answers = random_answers()
    theirs = SimpleNamespace(beta=1.7, simpo_gamma=0.6, loss_type="simpo", label_smoothing=smoothing, alpha=0.0, accelerator=SimpleNamespace(device="cpu"))
    losses, *rewards = CPOTrainer.cpo_loss(theirs, *answers.means_P2.unbind(1))
    expected, = torch.autograd.grad(losses.sum(), answers.log_probs_P2)
    found, our_rewards = load_objective("simpo", {"beta": 1.7, "gamma": 0.6, "label_smoothing": smoothing}).judge(answers)
    torch.testing.assert_close(found, losses, **TOLERANCE)
    torch.testing.assert_close(our_rewards.detach(), torch.stack([reward.detach() for reward in rewards], 1), **TOLERANCE)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), answers.log_probs_P2)[0], expected, **TOLERANCE)


def test_orpo():
    from trl.experimental.orpo import ORPOTrainer

    answers = random_answers()
    ratio, *rewards, _, _ = ORPOTrainer.odds_ratio_loss(SimpleNamespace(beta=0.25, accelerator=SimpleNamespace(device="cpu")), *answers.means_P2.unbind(1))
    losses = -answers.means_P2[:, 0] - ratio
    expected, = torch.autograd.grad(losses.sum(), answers.log_probs_P2)
    found, our_rewards = load_objective("orpo", {"beta": 0.25}).judge(answers)
    torch.testing.assert_close(found, losses, **TOLERANCE)
    torch.testing.assert_close(our_rewards.detach(), torch.stack([reward.detach() for reward in rewards], 1), **TOLERANCE)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), answers.log_probs_P2)[0], expected, **TOLERANCE)


def as_grpo_has_it(pieces):
    """The pieces as TRL's: prompts padded on the left, answers on the right."""
    prompt, answer = max(piece.n_prompt for piece in pieces), max(piece.n_truth for piece in pieces)
    sizes = {"prompt_ids": prompt, "prompt_mask": prompt, "completion_ids": answer, "completion_mask": answer}
    batch = {name: torch.zeros(len(pieces), size, dtype=torch.int64) for name, size in sizes.items()}
    for row, piece in enumerate(pieces):
        tokens = torch.from_numpy(piece.tokens.astype("int64"))
        batch["prompt_ids"][row, prompt - piece.n_prompt:], batch["prompt_mask"][row, prompt - piece.n_prompt:] = tokens[:piece.n_prompt], 1
        batch["completion_ids"][row, :piece.n_truth], batch["completion_mask"][row, :piece.n_truth] = tokens[piece.n_prompt:], 1
    return batch


@pytest.fixture(scope="module")
def grpo(tmp_path_factory, tokenizer):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    arguments = GRPOConfig(**options(tmp_path_factory.mktemp("trl")), num_generations=2, per_device_train_batch_size=2, max_completion_length=40,
                           temperature=0.8)
    return GRPOTrainer(model=make_model(0), reward_funcs=lambda completions, **_: [0.0] * len(completions), args=arguments,
                       train_dataset=Dataset.from_list([{"prompt": "a"}] * 2), processing_class=tokenizer)


@pytest.mark.parametrize(("kind", "kl", "clip_high"), [("grpo", 0.0, 0.2), ("grpo", 0.1, 0.28), ("dr_grpo", 0.0, 0.2), ("dapo", 0.05, 0.28)])
@pytest.mark.parametrize("size", [1, 4])
def test_grpo(grpo, kind, kl, clip_high, size):
    model, temperature, lengths, advantages = grpo.accelerator.unwrap_model(grpo.model), grpo.temperature, [20, 4, 7, 0], [1.2, -0.7, 0.0, -0.5]
    model.eval()
    plain, other = pieces_of_answers(lengths, advantages), make_model(1)
    known = []
    with torch.no_grad():
        for piece in plain:
            tokens = torch.from_numpy(piece.tokens.astype("int64"))
            now, ref = ((one(tokens[None, :-1]).logits[0, piece.n_prompt - 1:] / temperature).log_softmax(-1).gather(1, tokens[piece.n_prompt:, None])[:, 0]
                        for one in (model, other))
            known.append((now + torch.linspace(-0.6, 0.6, len(now)), ref))
    pieces = pieces_of_answers(lengths, advantages, 40, *([one.numpy() for one in column] for column in zip(*known, strict=True)))
    batch = as_grpo_has_it(pieces)
    padded = [torch.nn.utils.rnn.pad_sequence(list(column), batch_first=True) for column in zip(*known, strict=True)]
    batch |= {"old_per_token_logps": padded[0], "ref_per_token_logps": padded[1], "advantages": torch.tensor(advantages),
              "num_items_in_batch": batch["completion_mask"].sum()}
    grpo.loss_type, grpo.beta, grpo.epsilon_low, grpo.epsilon_high = kind, kl, 0.2, clip_high
    grpo.current_gradient_accumulation_steps = grpo.args.steps_per_generation = 1
    loss = grpo._compute_loss(grpo.model, batch)
    loss.backward()
    expected = float(loss.detach()), gradients(model)
    settings = {"loss": kind, "kl": kl, "clip_high": clip_high, "temperature": temperature}
    same(ours("grpo", settings, model, pieces, size), expected)
