"""Orders: permutations, and which rows are held out."""
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lmplay.data.permutation import HeldOut, Permutation


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 50))
def test_a_permutation_is_one(n, seed, epoch):
    order = Permutation(n, seed, epoch)
    assert sorted(order[i] for i in range(n)) == list(range(n))
    assert [order.index(order[i]) for i in range(n)] == list(range(n))


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


def test_orders_are_new_each_epoch_and_for_each_source_and_spread_evenly():
    n = 400
    orders = {(source, epoch): tuple(Permutation(n, source, epoch)[i] for i in range(n)) for source in range(4) for epoch in range(4)}
    assert len(set(orders.values())) == 16
    one = orders[0, 0]
    for key, other in orders.items():
        if key != (0, 0):  # two random orders agree in one place on average
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 10
    for order in orders.values():
        assert 120 < sum(a < b for a, b in pairwise(order)) < 280  # half of the steps go up: 200, standard deviation 6
        half = sum(index < n // 2 for index in order[:n // 2])
        assert 60 < half < 140  # half of the first half comes from it: 100, standard deviation 5
    cells = Counter((place // 50, index // 50) for order in orders.values() for place, index in enumerate(order))
    chi_square = sum((cells[a, b] - 100) ** 2 / 100 for a in range(8) for b in range(8))
    assert chi_square < 100  # 49 degrees of freedom: above 100 once in 25,000 draws


@given(st.sampled_from([0.1, 1 / 3, 0.5]), st.integers(1, 3000), st.integers(1, 60), st.booleans(), st.integers(0, 9))
def test_no_more_rows_are_held_out_than_the_most(fraction, n, most, spread, seed):
    rule, unlimited = HeldOut(fraction, seed, most, n if spread else None), HeldOut(fraction, seed)
    held = [i for i in range(n) if i in rule]
    assert len(held) == rule.count(n) <= most
    if unlimited.count(n + unlimited.count(n)) <= most:
        assert held == [i for i in range(n) if i in unlimited]  # the limit changes nothing where it is not reached
    elif spread and n * fraction > most and n >= 4 * most:
        assert len(held) >= most / 2 - 1
        assert max(b - a for a, b in pairwise([0, *held, n])) < 2 * -(-n // most) + 1  # from all of the rows alike
    assert rule.end is None or all(i not in rule for i in range(rule.end, rule.end + 50))
