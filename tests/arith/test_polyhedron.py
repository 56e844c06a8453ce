"""is_empty: every claim against enumeration, and systems that must be decided."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.arith.polyhedron import Inequality, is_empty

NAMES = "abc"
VALUES = range(-3, 4)


def box() -> list[Inequality]:
    return [row for n in NAMES for row in (({n: 1}, VALUES[-1]), ({n: -1}, -VALUES[0]))]


def solutions(system: list[Inequality]) -> int:
    """How many points of the box satisfy all inequalities."""
    points = (dict(zip(NAMES, p, strict=True)) for p in product(VALUES, repeat=len(NAMES)))
    return sum(
        all(sum(c * p[str(n)] for n, c in terms.items()) <= most for terms, most in system)
        for p in points
    )


rows = st.tuples(
    st.dictionaries(st.sampled_from(NAMES), st.integers(-3, 3), min_size=1), st.integers(-6, 6)
)


@given(st.lists(rows, max_size=6))
def test_a_system_that_is_called_empty_has_no_solution(system):
    if is_empty([*box(), *system]):
        assert solutions(system) == 0


units = st.tuples(
    st.lists(st.sampled_from(NAMES), min_size=2, max_size=2, unique=True).map(
        lambda pair: {pair[0]: 1, pair[1]: -1}
    ),
    st.integers(-4, 4),
)


@given(st.lists(units, max_size=8))
def test_systems_of_differences_are_decided(system):
    """Elimination is exact where an inequality bounds a difference."""
    assert is_empty([*box(), *system]) == (solutions(system) == 0)


@pytest.mark.parametrize(
    ("system", "empty"),
    [
        ([], False),
        ([({}, -1)], True),
        ([({"a": 2}, 1), ({"a": -2}, -1)], True),  # 1 <= 2a <= 1: no integer
        ([({"a": 3, "b": 3}, 4), ({"a": -3, "b": -3}, -4)], True),
        ([({"a": 1}, 0), ({"a": -1}, 0)], False),
    ],
)
def test_small_systems(system, empty):
    assert is_empty(system) == empty


def test_a_system_that_grows_too_large_counts_as_not_empty():
    names = [f"x{n}" for n in range(9)]
    signs = product((1, -1), repeat=len(names))
    system = [(dict(zip(names, s, strict=True)), -1) for s in signs]
    assert not is_empty(system)
