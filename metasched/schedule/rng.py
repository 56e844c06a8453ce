"""The seeded generator of a schedule: splitmix64, whose whole state is one integer.

The state is small, because a schedule saves it before every step, and restores it if the step is
refused. The seed of a candidate is a hash of its position in the search.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")
_MASK = (1 << 64) - 1


class Rng:
    """A stream of random numbers. Copying `state` copies the stream."""

    __slots__ = ("state",)

    def __init__(self, seed: int = 0) -> None:
        self.state = seed & _MASK

    def next(self) -> int:
        """64 random bits (Steele, Lea, Flood: splitmix64)."""
        self.state = (self.state + 0x9E3779B97F4A7C15) & _MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        """A uniform integer in [0, n), without modulo bias."""
        if n <= 0:
            raise ValueError("below() needs a positive bound")
        limit = (1 << 64) - (1 << 64) % n
        while True:
            value = self.next()
            if value < limit:
                return value % n

    def random(self) -> float:
        """A uniform float in [0, 1)."""
        return (self.next() >> 11) * (1.0 / (1 << 53))

    def choice(self, items: Sequence[T]) -> T:
        """A uniform element of a non-empty sequence."""
        return items[self.below(len(items))]

    def weighted(self, weights: Sequence[float]) -> int:
        """An index drawn with probability proportional to its weight."""
        point = self.random() * sum(weights)
        for index, weight in enumerate(weights):
            point -= weight
            if point < 0:
                return index
        return max(i for i, w in enumerate(weights) if w > 0)

    def sample(self, n: int, k: int) -> list[int]:
        """k distinct integers of [0, n), sorted (Floyd's algorithm)."""
        chosen: set[int] = set()
        for j in range(n - k, n):
            t = self.below(j + 1)
            chosen.add(j if t in chosen else t)
        return sorted(chosen)

    def fork(self) -> int:
        """A seed for an independent child stream."""
        return self.next() & 0x7FFFFFFFFFFFFFFF


def derive_seed(*parts: Any) -> int:
    """A 63-bit seed from anything with a stable repr, such as (seed, round, slot)."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
