"""Thoughts before predictions: where they are, what they are better by, and their loss against plain float64, for any mini-batches."""
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from answers import pieces_of_answers
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import learned, make_model
from texts import BYTES

from lmplay.data.collate import collate
from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.data.turns import Turn
from lmplay.objectives import load_objective

START, END = "<think>", "</think>"


def prepared(sample: Sample, context_len: int = 96, **chosen):
    return load_objective("rlp", {"thought_tokens": 20, **chosen}).prepare(sample, Cutter(BYTES, context_len))


@settings(deadline=None)
@given(prompt=st.text("ab \n", max_size=30), truth=st.text("abc. \n", min_size=1, max_size=300), row=st.integers(0, 9), horizon=st.integers(1, 5))
def test_a_place_is_one_of_the_text_and_a_thought_fits_in(prompt, truth, row, horizon):
    sample = Sample(prompt, truth, row=row)
    plain = Cutter(BYTES, 96 - 20 - len(START) - len(END)).cut(sample)
    found = prepared(sample, horizon=horizon)
    assert [(piece.number, piece.last) for piece in found] == [(piece.number, piece.last) for piece in plain]
    for piece, whole in zip(found, plain, strict=True):
        text, ahead = piece.tokens[:piece.n_prompt], piece.tokens[piece.n_prompt:]
        assert bytes(text[-len(START):].tolist()) == START.encode()
        place = len(text) - len(START)
        assert whole.n_prompt <= place
        assert np.array_equal(np.concatenate([text[:place], ahead]), whole.tokens[:place + horizon])
        assert 1 <= len(ahead) <= horizon
        assert piece.n_prompt + 20 + len(END) + len(ahead) <= 96
        assert piece.truth == BYTES.decode(ahead)
    again = prepared(sample, horizon=horizon)
    assert all(np.array_equal(one.tokens, other.tokens) for one, other in zip(found, again, strict=True))


def test_in_a_chat_thoughts_come_before_tokens_of_an_answer():
    turns = (Turn("user", "A question that is long", False), Turn("assistant", "yes", True))
    places = set()
    for row in range(40):
        piece, = prepared(Sample("", "", row=row, turns=turns, chat="plain"))
        places.add(int(piece.tokens[piece.n_prompt]))
    assert places <= {*b"yes", BYTES.end_id, *b"\n"}
    assert places >= {*b"yes"}


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=9))
def test_a_thought_is_compared_with_the_others(rewards):
    advantages, deviation = load_objective("rlp").advantages(rewards)
    assert deviation == statistics.stdev(rewards)
    expected = [reward - statistics.fmean(rewards[:number] + rewards[number + 1:]) for number, reward in enumerate(rewards)]
    assert advantages == pytest.approx(expected, abs=1e-9)


def log_probs(model, piece, temperature):
    tokens = torch.tensor(piece.tokens, dtype=torch.int64)
    found = (model.head(model(tokens[None, :-1]))[0, piece.n_prompt - 1:] / temperature).log_softmax(-1)
    return found.gather(1, tokens[piece.n_prompt:, None]).squeeze(1)


@settings(deadline=None, max_examples=8)
@given(thoughts=st.lists(st.tuples(st.integers(0, 12), st.floats(-2, 2)), min_size=1, max_size=5), size=st.integers(1, 7), packed=st.booleans(),
       shift=st.floats(0, 0.5), temperature=st.sampled_from([0.7, 1.0]), text_weight=st.sampled_from([0.0, 0.3]))
def test_losses_gradients_and_figures_for_any_mini_batches(thoughts, size, packed, shift, temperature, text_weight):
    """The clipped ratio, mean over the tokens of a thought, then over the thoughts; and the cross-entropy of the text behind a mark of two letters."""
    model, (lengths, advantages) = make_model(), zip(*thoughts, strict=True)
    plain = pieces_of_answers(lengths, advantages)
    with torch.no_grad():
        olds = [(log_probs(model, piece, temperature) + shift * torch.linspace(-1, 1, piece.n_truth, dtype=torch.float64)).numpy() for piece in plain]
    pieces = [replace(piece, judged=replace(piece.judged, rewards=(-1.0, piece.judged.reward + 1))) for piece in
              pieces_of_answers(lengths, advantages, before=olds)]
    sums = []
    for piece in pieces:
        total = 0.0
        for now, old in zip(log_probs(model, piece, temperature), piece.judged.before, strict=True):
            ratio, advantage = torch.exp(now - old), piece.judged.advantage
            total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        sums.append(total / len(piece.judged.before))
    if text_weight:
        for number, piece in enumerate(pieces):
            ahead = np.frombuffer(b"xyz"[:1 + number % 3], dtype=np.uint8)
            longer = replace(piece, tokens=np.concatenate([piece.tokens, np.frombuffer(b"#>", dtype=np.uint8), ahead]).astype(piece.tokens.dtype),
                             learned=np.array([True] * piece.n_truth + [False] * 2 + [True] * len(ahead)),
                             judged=replace(piece.judged, n_ahead=len(ahead), before=np.append(piece.judged.before, np.full(len(ahead), 9.0))))
            sums[number] = sums[number] - text_weight * log_probs(model, longer, 1.0)[-len(ahead):].mean()
            pieces[number] = longer
    loss = torch.stack(sums).mean()
    loss.backward()
    objective = load_objective("rlp", {"clip_high": 0.28, "temperature": temperature, "text_weight": text_weight})
    figures = learned(objective, model, collate(pieces, size, packed=packed), loss, atol=1e-10)
    rewards = [piece.judged.reward for piece in pieces]
    assert figures["reward_sum"] == pytest.approx(sum(rewards), abs=1e-5)
    assert figures["with_thought_sum"] == len(pieces)
    assert figures["of_teacher_sum"] == pytest.approx(sum(reward + 1 for reward in rewards), abs=1e-5)
    assert figures["helpful_sum"] == sum(reward > 0 for reward in rewards)
    assert figures["answer_tokens_sum"] == sum(map(len, olds))
