"""Reading in shares: ranks that each read and cut a part of the rows make the batches of one process."""
import gc
from threading import Event, Lock
from types import SimpleNamespace

import pytest
from ahead import threads
from crew import crew, together
from helpers import sentences, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import Flow, Rows
from stages import open_stage
from texts import BYTES

from lmplay.data import prefetch
from lmplay.data.continuation import Cutter
from lmplay.data.outlines import Outline
from lmplay.data.shares import Shares
from lmplay.data.sources import BadRow
from lmplay.data.stage import StageData
from lmplay.engine.batches import Batches, Grouping
from lmplay.errors import StoppedWaiting, Unavailable, UserError
from lmplay.objectives.dpo import Dpo
from lmplay.objectives.next_token import NextToken
from lmplay.plan.curriculum import StageState
from lmplay.plan.schema import Stage

ACCURACY = 2


class CountingCutter(Cutter):
    def cut(self, sample, n_truth=None):
        self.cuts = getattr(self, "cuts", 0) + 1
        return super().cut(sample, n_truth)


class CountingRows(Rows):
    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        row = self.rows[index]
        if isinstance(row, Exception):
            raise row
        return row




WRITING = Lock()


def texts(n, word="cat"):
    return [{"text": None if i % 11 == 5 else sentences(1 + i * i % 9, f"{word} {i}")} for i in range(n)]


def open_data(folder, corpora, make=CountingRows, keys=(), **stage):
    """Open a stage whose sources are in memory; `keys` are those of each source."""
    keys = dict(keys)
    with WRITING:  # several members open the same files
        for number in range(len(corpora)):
            if not (folder / f"{number}.jsonl").exists():
                write_rows(folder / f"{number}.jsonl", [{"text": "x"}])
    data = open_stage(folder, {"dataset": [{"path": str(folder / f"{number}.jsonl"), **keys} for number in range(len(corpora))], "validation": 0, **stage})
    data.sources = [make(rows) for rows in corpora]
    return data


def read(data, member=None, position=None, most=None, objective=None, batch_size=6, workers=1, tokens=None, steps=None, grouping=None, waiting=lambda: False):
    """Give the batches that a rank makes, what ended them, and what it has cut; None = a single process."""
    cutter = CountingCutter(BYTES, 48)
    sizes = SimpleNamespace(batch_size=batch_size, batch_size_schedule=None, context_len_schedule=None)
    stage = SimpleNamespace(data=data, stage=SimpleNamespace(name="s", tokens=tokens, steps=steps), settings=sizes,
                            state=StageState("s", position=position), objective=objective or NextToken())
    grouping = grouping or Grouping(2, 1, 47, False, 1 if member is None else member.size)
    made = Batches(stage, cutter, grouping, lambda: 0, workers, ACCURACY, member)
    found, failure = [], None
    try:
        while most is None or len(found) < most:
            batch = made.next(waiting)
            if batch is None:
                break
            found.append(batch)
    except Exception as error:
        failure = error
    made.close()
    return SimpleNamespace(batches=found, end=made.end, failure=failure, cuts=getattr(cutter, "cuts", 0), data=data, member=member)


def outline(batch):
    """What all ranks know of a batch."""
    pieces = [(len(piece.tokens), piece.n_prompt, piece.n_truth, piece.cut, piece.number, piece.last, piece.bytes_lost, piece.prompt_lost,
               piece.sample.source, piece.sample.row) for piece in batch.batch.pieces]
    return pieces, batch.batch.position, batch.batch.progress, batch.batch.counts(), batch.batch.n_truth, batch.sources


def assert_same(ranks, alone, multiple=1, packed=False):
    """Each rank has made the batches of a single process, and what it trains on is there."""
    for one in ranks:
        assert [outline(batch) for batch in one.batches] == [outline(batch) for batch in alone.batches]
        assert (one.end and (one.end.reached, one.end.empty)) == (alone.end and (alone.end.reached, alone.end.empty))
    for number, batch in enumerate(alone.batches):
        takers = ranks[0].member.deal(ranks[0].batches[number].mini_batches, lambda mini_batch: mini_batch.n_slots)
        whole = Grouping(2, multiple, 47, packed, len(ranks)).mini_batches(batch.batch.pieces, 0)
        for taker, index, expected in zip(takers, range(len(whole)), whole, strict=True):
            for one in ranks:
                mini_batch = one.batches[number].mini_batches[index]
                for name in ("rows", "n_padding", "n_slots", "seq_lens"):
                    assert getattr(mini_batch, name) == getattr(expected, name)
            trained = ranks[taker].batches[number].mini_batches[index]
            for name in ("tokens_BT", "positions_N", "targets_N"):
                assert getattr(trained, name).equal(getattr(expected, name))
        for mine, expected in zip(ranks[0].batches[number].batch.pieces[:ACCURACY], batch.batch.pieces, strict=False):
            assert (mine.truth, mine.borders.tolist(), mine.tokens.tolist()) == (expected.truth, expected.borders.tolist(), expected.tokens.tolist())
    assert not threads()


@pytest.mark.parametrize("pieces", ["together", "spread", "shuffled"])
@pytest.mark.parametrize(("make", "corpora"), [(CountingRows, [texts(70), texts(40, "dog")]), (Flow, [texts(70)]), (Flow, [texts(30), texts(45, "dog")])],
                         ids=["indexed", "stream", "streams"])
def test_ranks_make_the_batches_of_one_process(tmp_path, make, corpora, pieces):
    stage = {"pieces": pieces, "shuffle": {"buffer": 20}, "epochs": 2}
    alone = read(open_data(tmp_path, corpora, make, **stage))
    assert len(alone.batches) > 5
    assert alone.end.reached["skipped"]["null"] > 5
    for size in (2, 3):
        ranks = together(size, lambda member: read(open_data(tmp_path, corpora, make, **stage), member))
        assert_same(ranks, alone)
        assert all(sum(isinstance(piece, Outline) for batch in one.batches for piece in batch.batch.pieces) for one in ranks)


@pytest.mark.parametrize("packed", [False, True])
def test_padded_lengths_are_those_of_one_process(tmp_path, packed):
    alone = read(open_data(tmp_path, [texts(40)]))
    ranks = together(2, lambda member: read(open_data(tmp_path, [texts(40)]), member, grouping=Grouping(2, 8, 47, packed, 2)))
    assert_same(ranks, alone, 8, packed)


@pytest.mark.parametrize("length", [{"samples": 31}, {"tokens": 3000}, {"steps": 4}, {"epochs": 1.5}], ids=str)
def test_a_length_ends_all_ranks_alike(tmp_path, length):
    plan = {key: value for key, value in length.items() if key in ("samples", "epochs")}
    reader = {key: value for key, value in length.items() if key in ("tokens", "steps")}
    stage = {**plan, **({} if plan else {"samples": 10_000})}
    alone = read(open_data(tmp_path, [texts(40)], **stage), **reader)
    ranks = together(2, lambda member: read(open_data(tmp_path, [texts(40)], **stage), member, **reader))
    assert_same(ranks, alone)


def test_a_stop_goes_on_with_another_number_of_ranks(tmp_path):
    corpora, stage = [texts(60), texts(50, "dog")], {"pieces": "spread", "epochs": 1.5}
    alone = read(open_data(tmp_path, corpora, **stage))
    position, done = None, 0
    for size, most in ((2, 3), (1, 2), (3, 4), (2, None)):
        if size == 1:
            ranks = [read(open_data(tmp_path, corpora, **stage), None, position, most)]
        else:
            ranks = together(size, lambda member, most=most, position=position: read(open_data(tmp_path, corpora, **stage), member, position, most))
        for one in ranks:
            assert [outline(batch) for batch in one.batches] == [outline(batch) for batch in alone.batches[done:done + (most or 1000)]]
        done += len(ranks[0].batches)
        position = ranks[0].batches[-1].batch.position
    assert done == len(alone.batches)
    assert ranks[0].end.reached == alone.end.reached


@pytest.mark.parametrize("size", [2, 3])
def test_no_rank_reads_or_cuts_more_than_its_share(tmp_path, size):
    rows = texts(300)  # one epoch
    ranks = together(size, lambda member: read(open_data(tmp_path, [rows]), member))
    alone = read(open_data(tmp_path, [rows]))
    assert_same(ranks, alone)
    assert sum(one.cuts for one in ranks) == alone.cuts  # each row once
    for one in ranks:
        assert one.data.sources[0].reads <= len(rows) / size + 1
        assert one.cuts <= len(rows) / size + 1
        pieces = [piece for batch in one.batches for piece in batch.batch.pieces]
        trained = sum(mini_batch.n_slots for batch in one.batches for mini_batch in batch.mini_batches) / size
        texts_of_words = 2000 * len(one.batches) * (not one.member.rank)
        assert one.member.received < 70 * len(pieces) + 2.2 * trained + 40 * len(pieces) / size + texts_of_words  # lengths of all, tokens of its own


@given(st.lists(st.lists(st.integers(-1, 30), min_size=1, max_size=40), min_size=1, max_size=3), st.integers(2, 4), st.integers(1, 9), st.booleans(),
       st.sampled_from(["together", "spread", "shuffled"]), st.data())
@settings(max_examples=25)
def test_batches_depend_on_no_number_of_ranks(tmp_path_factory, sizes, size, batch_size, streamed, pieces, data):
    folder = tmp_path_factory.mktemp("data")
    corpora = [[{"text": sentences(n, f"cat {i}") if n > 0 else None} for i, n in enumerate(one)] for one in sizes]
    corpora[0].append({"text": "a last one."})

    def opened():
        return open_data(folder, corpora, Flow if streamed else CountingRows, pieces=pieces, shuffle={"buffer": 7}, samples=60)

    alone = read(opened(), batch_size=batch_size)
    at = data.draw(st.integers(0, len(alone.batches) - 1))
    position = alone.batches[at].batch.position
    again = read(opened(), None, position, batch_size=batch_size)
    ranks = together(size, lambda member: read(opened(), member, position, batch_size=batch_size))
    assert_same(ranks, again)


@pytest.mark.parametrize("make", [CountingRows, Flow], ids=["indexed", "stream"])
def test_bad_rows_are_skipped_and_counted_alike_or_end_all(tmp_path, make):
    def corpus():
        return [BadRow("broken", f"a, line {i}", "is broken") if i % 7 == 3 else row for i, row in enumerate(texts(50))]

    class Bad(make):
        def open(self, state=None):
            return Raising(super().open(state))

    chosen = CountingRows if make is CountingRows else Bad
    alone = read(open_data(tmp_path, [corpus()], chosen))
    assert alone.end.reached["skipped"]["broken"] == 7
    assert_same(together(2, lambda member: read(open_data(tmp_path, [corpus()], chosen), member)), alone)

    def strict():
        return open_data(tmp_path, [corpus()], chosen, {"on_bad_row": "stop"}, shuffle=False)

    alone = read(strict())
    assert isinstance(alone.failure, UserError)
    for one in together(2, lambda member: read(strict(), member)):
        assert (type(one.failure), str(one.failure)) == (type(alone.failure), str(alone.failure))
        assert "a, line 3: is broken" in str(one.failure)
        assert len(one.batches) == len(alone.batches)


class Raising:
    """A stream that raises the rows that are errors."""

    def __init__(self, stream):
        self.stream, self.state = stream, stream.state

    def __iter__(self):
        return self

    def __next__(self):
        row = next(self.stream)
        if isinstance(row, Exception):
            raise row
        return row


@pytest.mark.parametrize("streamed", [False, True])
def test_a_source_that_goes_away_from_one_rank_ends_all_at_the_same_batch(tmp_path, streamed):
    class Away(CountingRows):
        rank = 0

        def __getitem__(self, index):
            if self.rank == 1 and index >= 30:
                raise Unavailable("the disk has gone")
            return self.rows[index]

    class AwayFlow(Flow):
        rank = 0

        def open(self, state=None):
            stream, rank = super().open(state), self.rank

            class Going(Raising):
                def __next__(self):
                    if rank == 1 and self.stream.place == 30:
                        raise Unavailable("the disk has gone")
                    return super().__next__()

            return Going(stream)

    def work(member):
        data = open_data(tmp_path, [texts(60)], AwayFlow if streamed else Away, shuffle={"buffer": 10} if streamed else False)
        data.sources[0].rank = member.rank
        return read(data, member)

    ranks = together(2, work)
    alone = read(open_data(tmp_path, [texts(60)], AwayFlow if streamed else Away, shuffle={"buffer": 10} if streamed else False))
    assert [str(one.failure) for one in ranks] == ["the disk has gone"] * 2
    assert {type(one.failure) for one in ranks} == {Unavailable}
    assert len({len(one.batches) for one in ranks}) == 1
    assert 0 < len(ranks[0].batches) < len(alone.batches)
    for one in ranks:
        assert [outline(batch) for batch in one.batches] == [outline(batch) for batch in alone.batches[:len(one.batches)]]
    assert not threads()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_rank_that_is_told_to_stop_while_it_waits_for_its_source_makes_no_error_of_it(tmp_path, streamed):
    class Waiting(CountingRows):
        def __getitem__(self, index):
            if self.rank == 1 and index >= 30:
                raise StoppedWaiting("stopped while waiting for the hub")
            return self.rows[index]

    class WaitingFlow(Flow):
        def open(self, state=None):
            stream, rank = super().open(state), self.rank

            class Stopped(Raising):
                def __next__(self):
                    if rank == 1 and self.stream.place == 30:
                        raise StoppedWaiting("stopped while waiting for the hub")
                    return super().__next__()

            return Stopped(stream)

    def work(member):
        data = open_data(tmp_path, [texts(60)], WaitingFlow if streamed else Waiting, shuffle={"buffer": 10} if streamed else False)
        data.sources[0].rank = member.rank
        return read(data, member)

    ranks = together(2, work)
    assert [(one.failure, one.end) for one in ranks] == [(None, None)] * 2  # none goes on, and they vote on why
    assert not threads()


def test_a_thread_that_outlives_its_stage_is_not_mixed_up_with_that_of_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(prefetch, "_PATIENCE", 0.01)
    goes_on = Event()

    class Slow(CountingRows):
        def __getitem__(self, index):
            if self.rank == 1 and index >= 40:
                goes_on.wait(20)
            return self.rows[index]

    def work(member):
        slow = open_data(tmp_path, [[{"text": f"{number}."} for number in range(200)]], Slow, shuffle=False)
        slow.sources[0].rank = member.rank
        read(slow, member, most=1, batch_size=12)
        return read(open_data(tmp_path, [texts(60, "dog")]), member, waiting=goes_on.set if member.rank else lambda: False)

    ranks = together(2, work)
    for thread in threads():
        thread.join(20)
    assert_same(ranks, read(open_data(tmp_path, [texts(60, "dog")])))


@pytest.mark.parametrize(("size", "objects"), [(2, 700), (1000, 20_000)])
def test_garbage_is_looked_for_the_more_rarely_the_more_ranks_there_are(size, objects):
    before = gc.get_threshold()
    gc.set_threshold(700, 11, 12)
    try:
        with Shares(crew(size)[0]).reading(None, lambda: False) as shares:
            assert gc.get_threshold() == (objects, 11, 12)
            shares._over = True  # the others do not wait for its end
        assert gc.get_threshold() == (700, 11, 12)
    finally:
        gc.set_threshold(*before)


def test_ranks_with_other_rows_are_refused(tmp_path):
    for one in together(2, lambda member: read(open_data(tmp_path, [texts(30 + member.rank)], shuffle=False), member)):
        assert "do not read the same rows" in str(one.failure)


def test_an_objective_that_compares_has_whole_pieces_on_all_ranks(tmp_path):
    write_rows(tmp_path / "pairs.jsonl", [{"prompt": f"Q{i}?", "chosen": sentences(1 + i % 3), "rejected": "No."} for i in range(24)])

    def opened():
        return StageData(Stage.model_validate({"name": "s", "dataset": str(tmp_path / "pairs.jsonl"), "validation": 0, "objective": "dpo"}),
                         tmp_path / "datasets", 0, pairs=True)

    def grouping(size):
        return Grouping(2, 1, 47, False, size, lambda piece: float(piece.tokens.sum()))

    alone = read(opened(), objective=Dpo(), grouping=grouping(1))
    for one in together(2, lambda member: read(opened(), member, objective=Dpo(), grouping=grouping(1))):
        for mine, expected in zip(one.batches, alone.batches, strict=True):
            assert [piece.tokens.tolist() for piece in mine.batch.pieces] == [piece.tokens.tolist() for piece in expected.batch.pieces]
            assert [mini.reference_R.tolist() for mini in mine.mini_batches] == [mini.reference_R.tolist() for mini in expected.mini_batches]


def test_processes_that_cut_change_nothing(tmp_path):
    corpora = [texts(80)]
    alone = read(open_data(tmp_path, corpora, Rows))
    ranks = together(2, lambda member: read(open_data(tmp_path, corpora, Rows), member, workers=2))
    for one in ranks:
        assert [outline(batch) for batch in one.batches] == [outline(batch) for batch in alone.batches]
