"""The data path: orders, mixing, pieces, batches, positions.  Invariants 1, 2, 3 and the position of 5."""
from collections import Counter
from itertools import accumulate, pairwise

import pytest
from cutters import Pairs
from helpers import write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import Flow, Rows, rows
from texts import sentence_ends

from lmplay.data.batcher import Batcher
from lmplay.data.collate import collate
from lmplay.data.continuation import SMALLEST_CONTEXT, Cutter
from lmplay.data.mixing import Mix
from lmplay.data.permutation import HeldOut, Permutation
from lmplay.data.reader import Order, open_reader
from lmplay.data.samples import BREAK, Sample, Skipped, choose_reading
from lmplay.data.sentences import Cut, last_cut, splits_character
from lmplay.data.stream import Length, SampleStream
from lmplay.errors import UserError
from lmplay.tokenizer import load_tokenizer, train_tokenizer

BYTES = load_tokenizer("bytes")
BPE = train_tokenizer(iter(["the cat sat on the mat. The dog, who was big; ran away! 日本語の文。そして終わり。 नमस्ते दुनिया। héllo wörld 🎉👨‍👩‍👧 "] * 20), 400)
TEXTS = st.text(st.sampled_from("abc .,!?\n日。本न।é🎉\u0301\u200d👩\r\t\"'ABC012"), min_size=1, max_size=400).filter(str.strip)


def read_epoch(reader):
    return list(iter(reader.next, None))


# --- orders

@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 50))
def test_a_permutation_is_one(n, seed, epoch):
    order = Permutation(n, seed, epoch)
    assert sorted(order[i] for i in range(n)) == list(range(n))


def test_permutations_shuffle_well():
    places = Counter(Permutation(8, seed)[0] for seed in range(8000))
    assert all(850 < places[i] < 1150 for i in range(8))  # 1000 expected, standard deviation 30
    moved = sum(Permutation(1000, 1, epoch)[i] != Permutation(1000, 1, epoch + 1)[i] for epoch in range(3) for i in range(1000))
    assert moved > 2900


@given(st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.15, 1 / 3, 0.5]), st.integers(0, 2000), st.integers(0, 9))
def test_held_out_rows_are_counted_right(fraction, n, seed):
    rule = HeldOut(fraction, seed)
    held = sum(i in rule for i in range(n))
    assert held == rule.count(n)
    assert abs(held - fraction * n) <= 15 + 0.01 * n


@pytest.mark.parametrize("make", [Rows, Flow])
@given(n=st.integers(12, 120), buffer=st.integers(1, 40), seed=st.integers(0, 5), epochs=st.integers(1, 3))
@settings(max_examples=30)
def test_training_and_validation_share_the_rows(make, n, buffer, seed, epochs):
    source = make(rows(n))
    train = open_reader(source, Order(seed, True, buffer, 0.1))
    validation = open_reader(source, Order(seed, True, buffer, 0.1, validation=True))
    held = [index for index, _ in read_epoch(validation)]
    assert held == sorted(held)
    assert held
    orders = []
    for _ in range(epochs):
        seen = read_epoch(train)
        assert all(row == {"text": str(index)} for index, row in seen)
        orders.append([index for index, _ in seen])
        assert sorted(orders[-1] + held) == list(range(n))
    if buffer > 1 and n > 60 and epochs > 1:
        assert orders[0] != orders[1] or buffer < 4


@pytest.mark.parametrize("make", [Rows, Flow])
@given(n=st.integers(1, 60), buffer=st.integers(1, 20), stop=st.integers(0, 150), shuffle=st.booleans())
@settings(max_examples=40)
def test_a_reader_goes_on_from_any_position(make, n, buffer, stop, shuffle):
    order = Order(3, shuffle, buffer, 0.1)
    untouched, stopped, resumed = (open_reader(make(rows(n)), order) for _ in range(3))
    for _ in range(stop):
        untouched.next()
        stopped.next()
    resumed.restore(stopped.state())
    assert [resumed.next() for _ in range(100)] == [untouched.next() for _ in range(100)]


# --- mixing

@given(st.lists(st.floats(0.05, 10), min_size=1, max_size=6), st.integers(1, 400))
def test_weighted_shares_are_exact_at_every_row(weights, n):
    mix = Mix([open_reader(Rows(rows(50)), Order(number, held_out=0)) for number in range(len(weights))], weights)
    counts = Counter()
    for total in range(1, n + 1):
        found = mix.next()
        if found is None:
            return
        counts[found[0]] += 1
        for source, weight in enumerate(weights):
            assert abs(counts[source] - total * weight / sum(weights)) < 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.sampled_from([Rows, Flow]))
def test_without_weights_every_row_comes_once_an_epoch(sizes, make):
    mix = Mix([open_reader(make(rows(size)), Order(1, held_out=0)) for size in sizes])
    for _ in range(2):
        seen = [(source, index) for source, index, _ in iter(mix.next, None)]
        assert sorted(seen) == [(source, index) for source, size in enumerate(sizes) for index in range(size)]
    if make is Rows:
        assert mix.rows_per_epoch == sum(sizes)


def test_stopping():
    def count(stopping, weights=None):
        mix = Mix([open_reader(Rows(rows(n)), Order(held_out=0)) for n in (10, 30)], weights, stopping)
        return Counter(source for source, _, _ in iter(mix.next, None)), mix.rows_per_epoch

    assert count("first_exhausted") == ({0: 10, 1: 10}, 20)
    assert count("all_exhausted") == ({0: 10, 1: 30}, 40)
    oversampled, expected = count("all_exhausted", [1, 1])  # the short source starts again, because half of the rows are owed to it
    assert abs(oversampled[0] - 30) <= 1
    assert oversampled[1] == 30
    assert abs(expected - 60) <= 1


@given(st.integers(0, 200), st.sampled_from([None, [1.0, 2.5, 0.3]]), st.sampled_from(["first_exhausted", "all_exhausted"]))
@settings(max_examples=40)
def test_a_mix_goes_on_from_any_position(stop, weights, stopping):
    def make():
        return Mix([open_reader(kind(rows(n)), Order(n, True, 7, 0.1)) for kind, n in ((Rows, 20), (Flow, 33), (Rows, 11))], weights, stopping)

    untouched, stopped, resumed = make(), make(), make()
    for _ in range(stop):
        untouched.next()
        stopped.next()
    resumed.restore(stopped.state())
    assert [resumed.next() for _ in range(60)] == [untouched.next() for _ in range(60)]


# --- samples

def test_the_usual_names_of_fields_are_found():
    def read(row, roles=None):
        sample = choose_reading("x", row, roles)(row)
        return sample.prompt, sample.truth

    assert read({"id": "1", "Text": "words", "title": "A"}) == ("A" + BREAK, "words")
    assert read({"text": "words", "title": None}) == ("", "words")
    assert read({"prompt": "q", "truth": "a"}) == ("q" + BREAK, "a")
    assert read({"question": "q", "answer": "a"}) == ("q" + BREAK, "a")
    assert read({"instruction": "do", "input": "this", "output": "done"}) == (f"do{BREAK}this{BREAK}", "done")
    assert read({"instruction": "do", "input": "", "output": "done"}) == ("do" + BREAK, "done")
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "bye"}]
    assert read({"messages": chat}) == (f"user: hi{BREAK}assistant: ", "hello")
    assert read({"a": "x", "b": "y"}, {"prompt": "a", "truth": "b"}) == ("x" + BREAK, "y")
    assert read({"body_text": "x"}, {"text": "body_text"}) == ("", "x")


def test_a_source_without_text_says_which_columns_it_has():
    with pytest.raises(UserError, match="its columns: id, label"):
        choose_reading("x", ["id", "label"], None)
    with pytest.raises(UserError, match=r"maps text to 'body', which is not there \(its columns: id"):
        choose_reading("x", ["id"], {"text": "body"})


@pytest.mark.parametrize(("value", "reason"), [(None, "null"), (5, "not text"), (["a"], "not text"), ("", "empty"), (" \n", "empty")])
def test_rows_that_are_no_text_are_skipped_and_counted(value, reason):
    with pytest.raises(Skipped, match=reason):
        choose_reading("x", ["text"], None)({"text": value})
    stream = make_stream([{"text": "a"}, {"text": value}, {"text": "b"}], Length(epochs=1), shuffle=False)
    assert [sample.truth for sample in iter(stream.next, None)] == ["a", "b"]
    assert stream.skipped == {reason: 1}


# --- lengths

def make_stream(all_rows, length, shuffle=True, make=Rows):
    source = make(all_rows)
    return SampleStream(Mix([open_reader(source, Order(1, shuffle, 10, 0.0))]), [choose_reading("x", ["text"], None)], length)


@pytest.mark.parametrize(("length", "expected"), [(Length(epochs=1), 20), (Length(epochs=2.5), 50), (Length(epochs=0.25), 5), (Length(samples=33), 33)])
def test_lengths(length, expected):
    stream = make_stream(rows(20), length)
    assert stream.total == expected
    progress = []
    count = 0
    while stream.next() is not None:
        count += 1
        progress.append(stream.progress)
    assert count == expected
    assert progress == sorted(progress)
    assert progress[-1] == pytest.approx(1.0)


def test_part_of_an_unknown_number_of_rows_is_refused():
    assert make_stream(rows(20), Length(epochs=2), make=Flow).total is None
    with pytest.raises(UserError, match="give samples or tokens"):
        make_stream(rows(20), Length(epochs=0.5), make=Flow)


# --- sentences

@pytest.mark.parametrize("sentences", [
    ["Dr. Smith paid 3.5 dollars to J. R. Hall, e.g. in cash."," He left!", ' "Stop!" he said.', " Then he came back…", " Why?!"],
    ["我喜欢猫。", "你呢？", "「好。」", "他说完了！"],
    ["هل أنت بخير؟", " نعم أنا بخير.", " شكرا۔"],
    ["यह एक वाक्य है।", " यह दूसरा है॥"],
    ["Τι κάνεις;  Καλά.", " Ναι."],
    ["A heading\n\n", "1. First item of a list.\n\n", "The end."],
    ["The U.S. army came at 5 p.m. on Jan. 5.", " It cost No. 7 dearly."],
])
def test_sentence_ends(sentences):
    text, ends = "".join(sentences), [0, *accumulate(map(len, sentences))]
    for begin, end in pairwise(ends):
        assert last_cut(text, begin, end) == (end, Cut.SENTENCE)
        assert (last_cut(text, begin, end - 1) or (0, None))[1] != Cut.SENTENCE  # none within


def test_visible_characters_are_not_divided():
    family, flags = "👨‍👩‍👧", "🇫🇷🇩🇪"
    assert all(splits_character(family, i) for i in range(1, len(family)))
    assert [splits_character(flags, i) for i in (1, 2, 3)] == [True, False, True]
    assert splits_character("e\u0301", 1)
    assert splits_character("a\r\nb", 2)
    assert not splits_character("ab", 1)


# --- pieces

@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
@pytest.mark.parametrize("estimate", [False, True])
@given(text=TEXTS, title=st.sampled_from(["", "T\n\n", "A long title, longer than the context " * 3]), context=st.integers(SMALLEST_CONTEXT, 80))
@settings(max_examples=60)
def test_pieces_hold_the_text_and_fit(tokenizer, estimate, text, title, context):
    pieces = Cutter(tokenizer, context, estimate).cut(Sample(title, text))
    assert "".join(piece.truth for piece in pieces) == text  # invariant 1
    learned = [int(i) for piece in pieces for i in piece.tokens[piece.n_prompt:]]
    assert learned == [*tokenizer.encode(text).ids.tolist(), tokenizer.end_id]
    for piece in pieces:
        assert len(piece.tokens) <= context  # invariant 2
        assert piece.n_prompt >= 1
        assert piece.n_truth >= 1
        assert piece.last == (piece is pieces[-1])
    assert [piece.number for piece in pieces] == list(range(len(pieces)))


@given(TEXTS, st.integers(30, 80))
def test_a_piece_ends_at_a_sentence_end_wherever_one_fits(text, context):
    pieces = Cutter(BYTES, context).cut(Sample("", text))
    ends = set(sentence_ends(text))
    position = 0
    for piece in pieces[:-1]:
        room = context - piece.n_prompt - 1
        position += len(piece.truth)
        within = [end for end in ends if position - len(piece.truth) < end and len(text[position - len(piece.truth):end].encode()) <= room]
        assert (piece.cut == Cut.SENTENCE) == bool(within)
        if within:
            assert position == max(within)


def test_a_continuation_is_told_what_came_before():
    text = "The cat sat on the mat. " * 20
    first, second, *_ = Cutter(BYTES, 100).cut(Sample("Cats" + BREAK, text))
    prompt = BYTES.decode(second.tokens[:second.n_prompt])
    assert prompt.startswith("Cats" + BREAK + "...")
    assert first.truth.endswith(prompt.removeprefix("Cats" + BREAK + "..."))
    assert first.cut == Cut.SENTENCE


def test_the_estimate_counts_words():
    text = "the " * 400
    pieces = Cutter(BPE, 120, estimate=True).cut(Sample("", text))
    assert len(pieces[0].truth.split()) == int((120 - 1 - 1) / 1.5)


# --- batches

class Given:
    """Samples whose texts are so many times one sentence that a context of 30 bytes cuts them into as many pieces."""

    progress = None

    def __init__(self, sizes):
        self.sizes, self.place = sizes, 0

    def next(self):
        if self.place == len(self.sizes):
            return None
        self.place += 1
        return Sample("", "abc def ghi. " * self.sizes[self.place - 1], row=self.place - 1)

    def state(self):
        return {"place": self.place}

    def restore(self, state):
        self.place = state["place"]


def signature(batch):
    return [(piece.sample.row, piece.number) for piece in batch.pieces]


CUT = Cutter(BYTES, 30).cut
SIZES = st.lists(st.integers(1, 9), max_size=60)


@pytest.mark.parametrize("prepare", [CUT, Pairs(Cutter(BYTES, 30))], ids=["texts", "pairs"])
@given(SIZES, st.integers(1, 8))
@settings(max_examples=150)
def test_batches_lose_nothing_and_keep_units_whole(prepare, sizes, batch_size):
    batcher = Batcher(Given(sizes), prepare, batch_size)
    batches = list(iter(batcher.next, None))
    placed = [piece for batch in batches for piece in batch.pieces]
    whole = [prepare(sample) for sample in iter(Given(sizes).next, None)]
    assert sorted(p for batch in batches for p in signature(batch)) == [(row, number) for row, pieces in enumerate(whole) for number in range(len(pieces))]
    home = {}
    for number, batch in enumerate(batches):
        assert 1 <= len(batch.pieces) <= batch_size
        for piece in batch.pieces:
            home.setdefault(piece.sample.row, set()).add(number)
    broken = {row for row, where in home.items() if len(where) > 1}
    assert all(len(whole[row]) > batch_size for row in broken)  # invariant 3
    assert sum(batch.broken for batch in batches) == sum(len(home[row]) - 1 for row in broken)
    for row in home:
        assert [p.number for p in placed if p.sample.row == row] == list(range(len(whole[row])))
    assert sorted(sample.row for batch in batches for sample in batch.samples) == list(range(len(sizes)))


@pytest.mark.parametrize("prepare", [CUT, Pairs(Cutter(BYTES, 30))], ids=["texts", "pairs"])
@given(SIZES, st.integers(1, 8), st.integers(0, 40), st.sampled_from([None, 100, 500]))
@settings(max_examples=100)
def test_batches_go_on_from_any_position(prepare, sizes, batch_size, stop, most_tokens):
    def make():
        return Batcher(Given(sizes), prepare, batch_size, most_tokens)

    untouched, resumed = make(), make()
    position = untouched.state()
    for _ in range(stop):
        batch = untouched.next()
        if batch is not None:
            position = batch.position
    resumed.restore(position)
    assert [(signature(b), b.position) for b in iter(resumed.next, None)] == [(signature(b), b.position) for b in iter(untouched.next, None)]


@given(SIZES.filter(bool), st.integers(1, 8), st.integers(0, 20), st.sampled_from([None, 100, 500]))
def test_progress_is_what_has_been_trained_on_not_what_waits(sizes, batch_size, stop, most_tokens):
    class Measured(Given):
        @property
        def progress(self):
            return self.place / len(self.sizes)

    def make():
        return Batcher(Measured(sizes), CUT, batch_size, most_tokens)

    batches = list(iter(make().next, None))
    pieces = [len(CUT(sample)) for sample in iter(Given(sizes).next, None)]
    tokens = [0, *accumulate(13 * size + 1 for size in sizes)]
    placed = [0] * len(sizes)
    for batch in batches:
        for piece in batch.pieces:
            placed[piece.sample.row] += 1
        oldest = next((row for row in range(len(sizes)) if placed[row] < pieces[row]), len(sizes))
        part = placed[oldest] / pieces[oldest] if oldest < len(sizes) else 0
        expected = (oldest + part) / len(sizes)
        if most_tokens is not None:
            shares = [min(1, tokens[row] / most_tokens) for row in (oldest, min(oldest + 1, len(sizes)))]
            expected = shares[0] + part * (shares[1] - shares[0])
        assert batch.progress == pytest.approx(expected)
    if stop < len(batches):
        resumed = make()
        resumed.restore(batches[stop].position)
        assert [batch.progress for batch in iter(resumed.next, None)] == [batch.progress for batch in batches[stop + 1:]]


@given(SIZES.filter(bool), st.integers(1, 300))
def test_no_sample_is_read_once_there_are_tokens_enough(sizes, most):
    batcher = Batcher(Given(sizes), CUT, 4, most)
    samples = [sample for batch in iter(batcher.next, None) for sample in batch.samples]
    tokens = [13 * size + 1 for size in sizes]
    expected = next((n for n in range(1, len(sizes) + 1) if sum(tokens[:n]) >= most), len(sizes))
    assert len(samples) == expected


@given(SIZES.filter(bool), st.integers(1, 7), st.sampled_from([1, 16]), st.just(0) | st.integers(1, 200), st.booleans())
def test_mini_batches_hold_every_piece_once(sizes, mini_batch_size, multiple, room, joined):
    batch = Batcher(Given(sizes), CUT, 20).next()
    mini_batches = collate(batch.pieces, mini_batch_size, multiple, 29, room, joined)
    assert sorted(number for mini in mini_batches for number, _ in mini.rows) == list(range(len(batch.pieces)))
    for mini in mini_batches:
        assert mini.n_slots <= room or len(mini.rows) <= (1 if room else mini_batch_size)
        assert mini.tokens_BT.shape[1] <= 29 or joined
        if joined:
            assert mini.seq_lens == tuple(len(batch.pieces[number].tokens) - 1 for number, _ in mini.rows)
            assert mini.tokens_BT.shape == (1, sum(mini.seq_lens))
        assert mini.n_padding == mini.n_slots - sum(len(batch.pieces[number].tokens) - 1 for number, _ in mini.rows)
        flat = mini.tokens_BT.flatten()
        for number, where in mini.rows:
            piece = batch.pieces[number]
            assert mini.targets_N[where].tolist() == piece.tokens[piece.n_prompt:].tolist()
            assert flat[mini.positions_N[where]].tolist() == piece.tokens[piece.n_prompt - 1:-1].tolist()
    if room:  # no mini-batch had room for the first piece of the next
        for mini, after in pairwise(mini_batches):
            longest = mini.tokens_BT.shape[1] if not joined else 0
            assert mini.n_slots + (longest or after.seq_lens[0]) > room


# --- stages

def open_stage(folder, stage, seed=0):
    from lmplay.data.stage import StageData
    from lmplay.plan.schema import Stage

    return StageData(Stage.model_validate({"name": "s", **stage}), folder / "datasets", seed)


def held_out(data):
    stream = data.open_validation()
    return sorted((sample.source, sample.truth) for sample in (stream.next() for _ in range(stream.rows_per_epoch)))


def test_a_row_is_held_out_wherever_its_source_is_read(tmp_path):
    write_rows(tmp_path / "a.jsonl", rows(40, "a"))
    write_rows(tmp_path / "b.jsonl", rows(40, "b"))
    a, b = str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")
    alone = held_out(open_stage(tmp_path, {"dataset": [b], "shuffle": {"seed": 9}}))
    mixed = held_out(open_stage(tmp_path, {"dataset": [a, b]}))
    assert [text for _, text in alone] == [text for source, text in mixed if source == 1]
    other_seed = held_out(open_stage(tmp_path, {"dataset": [a, b]}, seed=1))
    assert other_seed != mixed
    trained = {sample.truth for sample in iter(open_stage(tmp_path, {"dataset": [a, b]}).open_samples().next, None)}
    assert len(trained) == 72
    assert not trained & {text for _, text in mixed}


def test_validation_of_a_stage_of_its_own_is_read_once(tmp_path):
    write_rows(tmp_path / "a.jsonl", rows(20, "a"))
    write_rows(tmp_path / "b.jsonl", rows(20, "b"))
    write_rows(tmp_path / "v.jsonl", rows(7, "v"))
    data = open_stage(tmp_path, {"dataset": [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], "validation": {"dataset": str(tmp_path / "v.jsonl")}})
    assert [text for _, text in held_out(data)] == [f"v{i}" for i in range(7)]
    assert len(list(iter(data.open_samples().next, None))) == 40  # nothing held out of the others


def test_an_epoch_of_unknown_length_is_not_guessed():
    flow, short = Flow(rows(10)), Rows(rows(100))
    assert Mix([open_reader(flow, Order()), open_reader(short, Order())], None, "first_exhausted").rows_per_epoch is None


def test_nothing_but_rows_without_text_is_said():
    stream = make_stream([{"text": None}] * 5, Length(samples=3))
    with pytest.raises(UserError, match="10 null"):
        stream.next()
