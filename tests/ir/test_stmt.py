"""Facts that are cached on a statement."""

from __future__ import annotations

import pytest

from metasched.ir.stmt import Evaluate, fact


def test_a_cached_fact_is_computed_once_for_each_argument():
    asked = []

    @fact
    def about(node: Evaluate, what: int = 0) -> int:
        asked.append(what)
        return what + 1

    node, other = Evaluate(0), Evaluate(0)
    assert [about(node), about(node), about(node, 5), about(node, 5), about(other)] == [
        1,
        1,
        6,
        6,
        1,
    ]
    assert asked == [0, 5, 0]
    with pytest.raises(TypeError, match="what"):
        about(node, what=7)  # type: ignore[call-arg]
