"""Histories: they stay small, and their sums exact."""
import json

from hypothesis import given
from hypothesis import strategies as st

from lmplay.stats.histories import History


@given(st.integers(0, 300), st.sampled_from([2, 4, 10, 16]))
def test_a_history_stays_small_and_its_sums_exact(n, most_rows):
    history = History(most_rows)
    for i in range(1, n + 1):
        history.add(step=i, samples=10 * i, loss_sum=i, n_tokens=2, steps=1)
    assert len(history) <= most_rows
    assert sum(history.rows["loss_sum"]) == n * (n + 1) / 2
    assert sum(history.rows["steps"]) == n
    assert history.rows["step"] == sorted(history.rows["step"])
    if n:
        assert history.rows["step"][-1] == n
        assert len(history) >= min(n, most_rows // 2)
    sizes = history.rows["steps"][:-1]
    assert len(set(sizes)) <= 1  # thinned evenly


def test_two_validations_at_one_step_share_a_row():
    history = History(4)
    for step in range(11):
        for _ in range(2):
            history.add(step=step, samples=step, loss_sum=1.0, n_tokens=1)
    assert sum(history.rows["loss_sum"]) == 22
    assert len(history) <= 4
    assert history.rows["n_tokens"][0] == 2 * (history.rows["step"][1] - history.rows["step"][0])


@given(st.integers(0, 100), st.integers(0, 100))
def test_a_history_goes_on_where_it_was(before, after):
    untouched, stopped, resumed = History(8), History(8), History(8)
    for i in range(before):
        untouched.add(step=i, loss_sum=i / 3)
        stopped.add(step=i, loss_sum=i / 3)
    resumed.restore(json.loads(json.dumps(stopped.state())))
    for i in range(after):
        untouched.add(step=before + i, loss_sum=i / 7)
        resumed.add(step=before + i, loss_sum=i / 7)
    assert resumed.state() == untouched.state()


PARTS = st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=3)


@given(st.lists(PARTS, max_size=40), st.sampled_from([2, 4, 10]), st.integers(0, 40))
def test_sources_keep_their_sums_beside_the_rows_also_when_a_run_goes_on(steps, most_rows, stop):
    history = History(most_rows)
    for i, parts in enumerate(steps, 1):
        if i == stop:
            state = json.loads(json.dumps(history.state()))
            history = History(most_rows)
            history.restore(state)
        history.add(parts, step=i, loss_sum=sum(loss for loss, _ in parts.values()), n_tokens=sum(tokens for _, tokens in parts.values()))
    for source in {name for parts in steps for name in parts}:
        columns = history.sources[source]
        assert sum(columns["loss_sum"]) == sum(parts[source][0] for parts in steps if source in parts)
        assert sum(columns["n_tokens"]) == sum(parts[source][1] for parts in steps if source in parts)
    for row in range(len(history)):
        for name in ("loss_sum", "n_tokens"):
            assert sum(columns[name][row] for columns in history.sources.values()) == history.rows[name][row]
