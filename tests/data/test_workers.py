"""Processes that prepare samples: what is raised in them, and how they end."""
import os
import signal
import sys
from itertools import islice
from pathlib import Path

import pytest
from ahead import BYTES
from cutters import FailingCutter, Pairs
from helpers import sentences

from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.data.workers import Workers
from lmplay.errors import TrainingError, UserError
from lmplay.tokenizer import train_tokenizer

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.mark.parametrize(("way", "expected"), [("user", UserError), ("stubborn", RuntimeError)])
def test_what_is_raised_in_a_process_arrives_as_itself_with_its_trace(way, expected):
    with Workers(FailingCutter(BYTES, 64, way).cut, 2) as started:
        cutting = started.cut((Sample("", f"This is cat {i} here."), i) for i in range(9))
        assert [tag for _, tag in islice(cutting, 5)] == [0, 1, 2, 3, 4]
        with pytest.raises(expected) as caught:
            next(cutting)
    if way == "user":
        assert caught.value.faults[0] == "cannot be cut"
        assert caught.value.faults[1] != f"in {os.getpid()}"
    else:
        assert "stuck in the mud" in str(caught.value)
    assert "cutters.py" in str(caught.value.__cause__)


def test_a_process_that_dies_is_no_riddle():
    with Workers(FailingCutter(BYTES, 64, "die").cut, 2) as started, pytest.raises(TrainingError, match=r"exit code 9.*fewer --data-workers"):
        list(started.cut((Sample("", f"This is cat {i} here."), i) for i in range(9)))


def test_a_cutter_is_the_same_in_a_process():
    tokenizer = train_tokenizer(iter(["the cat sat on the mat 日本語 🎉 "] * 20), 300)
    for cutter in (Cutter(tokenizer, 20), Cutter(tokenizer, 40, estimate=True)):
        samples = [Sample("A title\n\n", "The cat sat. 日本語 on the mat! 🎉 " * n) for n in (1, 3, 200)]
        with Workers(cutter.cut, 1) as started:
            for sample, (pieces, tag) in zip(samples, started.cut((sample, sample) for sample in samples), strict=True):
                assert tag is sample
                assert all(piece.sample is sample for piece in pieces)
                assert [(p.tokens.tolist(), p.n_prompt, p.truth, p.cut, p.number, p.last) for p in pieces] == \
                    [(p.tokens.tolist(), p.n_prompt, p.truth, p.cut, p.number, p.last) for p in cutter.cut(sample)]


def test_pieces_of_other_samples_than_the_one_prepared_keep_theirs_in_a_process():
    prepare, sample = Pairs(Cutter(BYTES, 30)), Sample("", sentences(3))
    with Workers(prepare, 1) as started:
        [(pieces, _)] = started.cut(iter([(sample, None)]))
    assert [piece.sample for piece in pieces] == [piece.sample for piece in prepare(sample)]
    assert pieces[0].sample is sample
    assert pieces[-1].sample != sample


@LINUX
def test_a_process_is_light_and_deaf_to_the_keyboard(workers):
    list(workers.cut(iter([(Sample("", "A text."), 0)] * 200)))
    for process in workers._processes:
        pid = process._process.pid
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "numpy" in maps
        assert "torch" not in maps
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGUSR1)
    assert len(list(workers.cut(iter([(Sample("", "A text."), 0)] * 200)))) == 200
