"""Mini-batches: every piece once, and loss on what is learned."""
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from texts import BPE, TEXTS, learned_of
from units import CUT, SIZES, Given

from lmplay.data.batcher import Batcher
from lmplay.data.collate import collate
from lmplay.data.continuation import SMALLEST_CONTEXT, Cutter
from lmplay.data.samples import Sample, Turn


@given(SIZES.filter(bool), st.integers(1, 7), st.sampled_from([1, 16]), st.just(0) | st.integers(1, 200), st.booleans())
def test_mini_batches_hold_every_piece_once(sizes, mini_batch_size, multiple, token_budget, joined):
    batch = Batcher(Given(sizes), CUT, 20).next()
    mini_batches = collate(batch.pieces, mini_batch_size, multiple, 29, token_budget, joined)
    assert sorted(number for mini in mini_batches for number, _ in mini.rows) == list(range(len(batch.pieces)))
    for mini in mini_batches:
        assert mini.n_slots <= token_budget or len(mini.rows) <= (1 if token_budget else mini_batch_size)
        assert mini.tokens_BT.shape[1] <= 29 or joined
        if joined:
            lengths = [len(batch.pieces[number].tokens) - 1 for number, _ in mini.rows]
            assert mini.seq_lens == tuple(min(-(-length // multiple) * multiple, 29) for length in lengths)
            assert mini.tokens_BT.shape == (1, sum(mini.seq_lens))
        assert mini.n_padding == mini.n_slots - sum(len(batch.pieces[number].tokens) - 1 for number, _ in mini.rows)
        flat = mini.tokens_BT.flatten()
        for number, where in mini.rows:
            piece = batch.pieces[number]
            assert mini.targets_N[where].tolist() == piece.tokens[piece.n_prompt:].tolist()
            assert flat[mini.positions_N[where]].tolist() == piece.tokens[piece.n_prompt - 1:-1].tolist()
    if token_budget:  # no mini-batch had space for the first piece of the next
        for mini, after in pairwise(mini_batches):
            longest = mini.tokens_BT.shape[1] if not joined else 0
            assert mini.n_slots + (longest or after.seq_lens[0]) > token_budget


@given(st.lists(st.tuples(TEXTS.filter(str.strip), TEXTS.filter(str.strip)), min_size=1, max_size=4), st.integers(SMALLEST_CONTEXT, 90), st.integers(1, 5))
@settings(max_examples=60)
def test_mini_batches_take_loss_on_what_is_learned(exchanges, context, mini_batch_size):
    turns = tuple(turn for question, answer in exchanges for turn in (Turn("user", question, False), Turn("assistant", answer, True)))
    pieces = Cutter(BPE, context).cut(Sample("", "", turns=turns))
    assert "".join(piece.truth for piece in pieces) == "".join(answer for _, answer in exchanges)
    seen = 0
    for mini in collate(pieces, mini_batch_size, 1, context - 1):
        flat = mini.tokens_BT.flatten()
        for number, where in mini.rows:
            piece = pieces[number]
            assert mini.targets_N[where].tolist() == learned_of(piece)
            inputs = piece.tokens[piece.n_prompt - 1:-1]
            assert flat[mini.positions_N[where]].tolist() == (inputs if piece.learned is None else inputs[piece.learned]).tolist()
            seen += piece.n_truth
        assert len(mini.targets_N) == len(mini.positions_N) == sum(pieces[number].n_truth for number, _ in mini.rows)
    assert seen == sum(piece.n_truth for piece in pieces)
