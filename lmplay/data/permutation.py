"""Seeded orders as functions of (seed, position): nothing to store, nothing to replay.  Data floor, no imports.

One Feistel network gives every shuffle of the project, over an epoch of indexed rows or over a block of streamed ones, and the
choice of held-out rows; so a position in any order is one number.
"""
from __future__ import annotations

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio
_MASK = (1 << 64) - 1
_ROUNDS = 4


def splitmix64(state: int) -> int:
    """Turn a state into a random number: the output function of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).

    :param state: any integer, of which 64 bits count; a generator adds `GOLDEN` to it before each number.
    :return: 0 to 2**64 - 1, the same on every machine.
    """
    state &= _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def hash64(*values: int, state: int = 0) -> int:
    """Hash integers to 64 bits, by :func:`splitmix64`.

    :param values: any integers.
    :param state: the hash of the integers that come before them.
    :return: 0 to 2**64 - 1, the same on every machine.
    """
    for value in values:
        state = splitmix64(state + value + GOLDEN)
    return state


class Permutation:
    """A seeded one-to-one map of 0 … n-1 onto itself, computed one index at a time.

    Four Feistel rounds over the smallest even number of bits that holds n, repeated while the image is n or more
    (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): at most four steps on average.
    """

    def __init__(self, n: int, *seed: int):
        """
        :param n: how many things to permute, at least 1.
        :param seed: integers that name the order (run seed, epoch, block …).
        """
        self._n = n
        self._half_bits = max(1, ((n - 1).bit_length() + 1) // 2)
        named = hash64(*seed)
        self._keys = [hash64(round_, state=named) for round_ in range(_ROUNDS)]

    def __getitem__(self, index: int) -> int:
        """Give the image of an index; both lie in 0 … n-1."""
        mask = (1 << self._half_bits) - 1
        while True:
            left, right = index >> self._half_bits, index & mask
            for key in self._keys:
                left, right = right, left ^ _round(right, key, mask)
            index = (left << self._half_bits) | right
            if index < self._n:
                return index

    def index(self, image: int) -> int:
        """Give the index that has an image: the rounds backwards."""
        mask = (1 << self._half_bits) - 1
        while True:
            left, right = image >> self._half_bits, image & mask
            for key in reversed(self._keys):
                left, right = right ^ _round(left, key, mask), left
            image = (left << self._half_bits) | right
            if image < self._n:
                return image


def _round(half: int, key: int, mask: int) -> int:
    """Hash one half of an index by the key of a round."""
    hashed = (half ^ key) * 0x9E3779B97F4A7C15 & _MASK
    hashed = ((hashed ^ (hashed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
    return (hashed >> 32) & mask


class HeldOut:
    """The rule that says which rows are for validation: in every block of rows, a seeded choice of a fixed number of them.

    `end` is the row behind the last block that rows are held out of; None = there is no last one.
    """

    def __init__(self, fraction: float, seed: int, most: int | None = None, n_rows: int | None = None):
        """
        :param fraction: share of the rows held out, 0 to 0.5; rounded to the nearest fraction with a denominator up to 1000.
        :param seed: integer that names the choice.
        :param most: the most rows that are held out; None = no limit.
        :param n_rows: the rows over which that many are spread; None = they are all among the first rows.
        """
        from fractions import Fraction

        exact = Fraction(fraction).limit_denominator(1000)
        if fraction > 0 and not exact:
            exact = Fraction(1, 1000)
        self._per_block, self._block = exact.numerator, exact.denominator
        self.end: int | None = None
        if most is not None and self._per_block:
            if n_rows is None:
                self.end = most // self._per_block * self._block
            elif n_rows * exact > most:
                self._per_block, self._block = 1, -(-n_rows // most)
        self._seed = seed
        self._choices: tuple[int, frozenset[int]] = (-1, frozenset())

    def __contains__(self, index: int) -> bool:
        """Tell whether a row is held out.

        :param index: the row's ordinal number in its source.
        """
        if not self._per_block or (self.end is not None and index >= self.end):
            return False
        block, offset = divmod(index, self._block)
        return offset in self._chosen(block)

    def row(self, number: int) -> int:
        """Give the held-out row of a number, counted from 0 in the order of the source."""
        block, place = divmod(number, self._per_block)
        return block * self._block + sorted(self._chosen(block))[place]

    def count(self, n_rows: int) -> int:
        """Count the held-out rows among the first `n_rows`."""
        if not self._per_block:
            return 0
        blocks, rest = divmod(n_rows if self.end is None else min(n_rows, self.end), self._block)
        return blocks * self._per_block + sum(offset < rest for offset in self._chosen(blocks))

    def _chosen(self, block: int) -> frozenset[int]:
        """Give the held-out offsets of a block, and remember them for the next question."""
        if self._choices[0] != block:
            order = Permutation(self._block, self._seed, block)
            self._choices = (block, frozenset(order[i] for i in range(self._per_block)))
        return self._choices[1]
