"""Rewards: what texts are worth, and what happens when one fails."""
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmplay.errors import UserError
from lmplay.plan.names import REWARDS
from lmplay.rewards.named import FUNCTIONS
from lmplay.rewards.process import Rewards

ONE = {"text": "a", "answer": "b", "prompt": ""}
CASES = [("exact", {}, " 12 \n", "12", 1), ("exact", {}, "12.", "12", 0),
         ("number", {}, "so 3 + 4 = 1,007.0 apples", "#### 1007", 1), ("number", {}, "none", "5", 0), ("number", {}, "5", "none", 0),
         ("number", {}, "-5", "5", 0),
         ("number", {}, "5 or 6", "5", 0), ("number", {}, "1" * 5000, "1", 0), ("number", {}, ".5", "0.50", 1),
         ("number", {}, "It is 3-5", "5", 1), ("number", {}, "4,5", "5", 1), ("number", {}, "x=-1,234", "-1234", 1), ("number", {}, "1,23", "123", 0),
         ("json", {}, "[1]", "[true]", 0), ("json", {}, '{"a": [1.0, false]}', '{"a": [1, false]}', 1),
         ("regex", {"pattern": "^<a>.*</a>$"}, "<a>x\ny</a>", "", 1), ("regex", {"pattern": "b"}, "a", "", 0),
         ("json", {}, '{"a": [1, 2.0]}', '{ "a" : [1, 2] }', 1), ("json", {}, '{"a": 1}', '{"a": 2}', 0), ("json", {}, "[1,", "x", 0),
         ("json", {}, "[1]", "x", 1),
         ("json", {}, "[" * 200_000, "", 0), ("length", {"least": 4}, "two words", "", 0.5), ("length", {"most": 2}, "a b c d", "", 0.5),
         ("length", {"least": 1, "most": 2}, "a b", "", 1), ("length", {"least": 1}, "", "", 0)]


def one(name, text="", answer="", **settings):
    rewards = Rewards([{"name": name, "settings": settings}])
    try:
        return rewards.judge([{"text": text, "answer": answer, "prompt": ""}])[0][0]
    finally:
        rewards.close()


@pytest.fixture(scope="module")
def several():
    """All rewards of the cases in one process."""
    rewards = Rewards([{"name": name, "settings": settings} for name, settings, *_ in CASES])
    yield rewards
    rewards.close()


def test_the_named_rewards(several):
    found = several.judge([{"text": text, "answer": answer, "prompt": ""} for _, _, text, answer, _ in CASES])
    assert [found[number][number] for number in range(len(CASES))] == [wanted for *_, wanted in CASES]
    assert FUNCTIONS.keys() == REWARDS.keys()


@given(st.integers(), st.text("abc ,"), st.text("abc ,"))
def test_a_number_is_found_in_any_text(value, before, after):
    assert FUNCTIONS["number"](f"{before} {value}{after}", f"#### {value:,}") == 1
    assert FUNCTIONS["number"](f"{before} {value + 1}{after}", f"#### {value}") == 0


@given(st.recursive(st.none() | st.integers(-5, 5) | st.text(max_size=3), lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=3), one,
                                                                                                                                max_size=3)))
def test_json_is_compared_by_value(value):
    assert FUNCTIONS["json"](json.dumps(value, indent=3), json.dumps(value, sort_keys=True)) == 1


def test_a_pattern_that_never_ends_is_stopped_and_the_next_text_is_judged():
    rewards = Rewards([{"name": "regex", "settings": {"pattern": "(a+)+b"}, "seconds": 0.5}])
    with pytest.raises(UserError, match=r"reward regex: it takes more than 0.5 s, for the text \"aaaa.* and the answer \"7\""):
        rewards.judge([{"text": "a" * 50, "answer": "7", "prompt": ""}])
    assert rewards.judge([{"text": "aab", "answer": "7", "prompt": ""}]) == [[1.0]]
    rewards.close()


def test_what_cannot_be_printed_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.py").write_text("class Odd(Exception):\n    def __str__(self):\n        raise ValueError\n\n"
                                     "def score(text, answer, prompt):\n    raise Odd\n")
    with pytest.raises(UserError, match="reward odd:score: it raises Odd, for the text"):
        Rewards([{"name": "odd:score"}]).judge([ONE])


def test_a_reward_is_ended_with_what_it_has_started(tmp_path, monkeypatch):
    """A child of it holds its output: nobody waits for that."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forks.py").write_text("import os, time\ndef score(text, answer, prompt):\n    os.fork()\n    time.sleep(60)\n")
    started = time.monotonic()
    with pytest.raises(UserError, match=r"takes more than 0\.5 s"):
        Rewards([{"name": "forks:score", "seconds": 0.5}]).judge([ONE])
    assert time.monotonic() - started < 50


def test_a_reward_ends_although_nobody_is_there_to_end_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.py").write_text("import time\ndef score(text, answer, prompt):\n    time.sleep(60)\n")
    sent = json.dumps([{"name": "slow:score", "seconds": 0.5}]) + "\n" + json.dumps([ONE]) + "\n"
    done = subprocess.run([sys.executable, "-c", "from lmplay.rewards.process import main; main()"], input=sent.encode(), capture_output=True, timeout=50,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert done.returncode == -signal.SIGALRM
    assert done.stdout.splitlines() == [b'{"reward": 0.0}']


def test_a_request_to_stop_is_heard_between_texts():
    rewards, asked = Rewards([{"name": "exact"}]), iter([False, False, True])
    assert rewards.judge([ONE] * 9, lambda: next(asked)) is None
    assert rewards.judge([ONE]) == [[0.0]]
    rewards.close()


@pytest.mark.parametrize(("body", "told"), [("return 1e300", "returns 1e+300, allowed: from -1e+30 to 1e+30"), ("return Loud()", "returns what is Loud, not")])
def test_what_is_no_reward_is_told(body, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(f"class Loud:\n    def __repr__(self):\n        raise ValueError\ndef score(text, answer, prompt):\n    {body}\n")
    with pytest.raises(UserError, match=re.escape(told)):
        Rewards([{"name": "wrong:score"}]).judge([ONE])


def test_sets_have_the_same_order_in_each_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hashes.py").write_text("def score(text, answer, prompt):\n    return hash(text) % 1000003\n")
    found = []
    for _ in range(2):
        rewards = Rewards([{"name": "hashes:score"}])
        found.append(rewards.judge([{**ONE, "text": "some words"}]))
        rewards.close()
    assert found[0] == found[1]


def test_functions_of_other_modules_get_text_answer_and_prompt(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import numpy\nprint('loud')\ndef score(text, answer, prompt):\n    print(text)\n"
                                      "    return numpy.float32(len(text) + 10 * len(answer) + 100 * len(prompt))\nnothing = 3\n")
    rewards = Rewards([{"name": "mine:score"}])
    assert rewards.judge([{"text": "a\nb", "answer": "cd", "prompt": "e"}] * 2) == [[123.0]] * 2
    rewards.close()
    for name, told in (("mine:nothing", "it is int, not a function"), ("mine:other", "no attribute 'other'"), ("never:score", "No module named 'never'")):
        with pytest.raises(UserError, match=f"reward {name}: it cannot be imported .*{told}"):
            Rewards([{"name": name}]).open()
