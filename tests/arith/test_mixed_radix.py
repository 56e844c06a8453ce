"""The fast normal form of bindings equals the normal form of the iterator map."""

from __future__ import annotations

import math
import random

from metasched.arith.itermap import Level, _simplified, detect_iter_map, iter_map_simplify
from metasched.arith.mixed_radix import in_mixed_radix, tiles
from metasched.ir.buffer import Range
from metasched.ir.expr import TRUE, Expr, Var, as_expr


def a_sum(rng: random.Random, name: str, ranges: dict[Var, Range]) -> Expr:
    """A random nest of splits (perhaps over a fused digit), nested as substitution does."""
    sizes = [rng.choice([1, 1, 2, 3, 4]) for _ in range(rng.randint(1, 5))]
    digits: list[Expr] = []
    at = 0
    while at < len(sizes):
        if at and at + 1 < len(sizes) and rng.random() < 0.2 and sizes[at] > 1 < sizes[at + 1]:
            fused = Var(f"{name}_{at}_fused")
            ranges[fused] = Range.of(0, sizes[at] * 2)
            digits.append(fused // 2)
            sizes[at] = sizes[at]
        else:
            var = Var(f"{name}_{at}")
            ranges[var] = Range.of(0, sizes[at])
            digits.append(var)
        at += 1
    total: Expr = as_expr(0)
    for n, digit in reversed(list(enumerate(digits))):
        step = math.prod(sizes[n + 1 :])
        total = digit * step + total
    return total


def test_same_as_the_analysis() -> None:
    rng, taken = random.Random(0), 0
    for _ in range(600):
        ranges: dict[Var, Range] = {}
        bindings = [a_sum(rng, name, ranges) for name in "ij"[: rng.randint(1, 2)]]
        cheap = in_mixed_radix(bindings, ranges)
        if cheap is not None:
            taken += 1
            assert cheap == _simplified(bindings, ranges, (TRUE, "surjective", False))
            assert cheap == iter_map_simplify(bindings, ranges, simplify_trivial=False)
    assert taken > 200


def test_tiles_agrees_with_the_iterator_map() -> None:
    rng, counts = random.Random(1), {False: 0, True: 0}
    for _ in range(600):
        ranges: dict[Var, Range] = {}
        values = [a_sum(rng, name, ranges) + rng.choice([0, 0, 2]) for name in "ij"]
        if rng.random() < 0.5:
            fused = next((v for v in ranges if v.name.endswith("fused")), rng.choice([*ranges]))
            values.append(rng.choice([fused % 2, fused // 2, fused % 4 // 2, fused]))
        for every in (False, True):
            if tiles(values, ranges, every=every):
                counts[every] += 1
                level: Level = "bijective" if every else "surjective"
                assert detect_iter_map(values, ranges, level=level).error is None
    assert min(counts.values()) > 60


def test_bindings_that_are_no_digits_are_left_to_the_analysis() -> None:
    i, j, f = Var("i"), Var("j"), Var("f")
    ranges = {i: Range.of(0, 4), j: Range.of(0, 3), f: Range.of(0, 12)}
    for bindings in (
        [i + j],  # overlap
        [i * 4 + j],  # a gap
        [i * 3 + j, i],  # used twice
        [i * 3 + j + 1],  # an offset
        [i * j],
        [f // 4 * 4 + f % 4],  # folds back
        [f // 4, f // 2],  # overlapping digits
        [f % 5],  # no exact part
        [Var("n") + i],
        [f % 4, f // 6],  # parts that do not fit together
    ):
        assert in_mixed_radix(bindings, ranges) is None
    assert in_mixed_radix([f // 4, f % 4], ranges) == [f // 4, f % 4]
    assert in_mixed_radix([j + i * 3, as_expr(0)], ranges) == [i * 3 + j, as_expr(0)]
