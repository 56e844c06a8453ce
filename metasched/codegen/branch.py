"""A value with two alternatives: only the code of the alternative chosen at run time is
executed."""

from __future__ import annotations

from collections.abc import Callable

from metasched.codegen.emit import Emitter
from metasched.codegen.values import Val


def choose(e: Emitter, condition: Val, a: Callable[[], Val], b: Callable[[], Val]) -> Val:
    """The value of one of two pieces of code, chosen by a scalar condition at run time."""
    yes, no, done = e.fresh_label("yes"), e.fresh_label("no"), e.fresh_label("chosen")
    e.branch_if(condition, yes, no)
    shared = e.shared  # computed before both alternatives
    e.label(yes)
    e.shared = None if shared is None else dict(shared)
    one = a()
    one_end = len(e.scopes[-1].lines)
    one_block = e.block
    e.branch(done)
    e.label(no)
    e.shared = None if shared is None else dict(shared)
    two = b()
    if one.lanes != two.lanes:
        one, two = _widen_at(e, one, two, one_end)
    two_block = e.block
    e.branch(done)
    e.label(done)
    e.shared = shared
    text = f"phi {one.type} [ {one.text}, %{one_block} ], [ {two.text}, %{two_block} ]"
    return e.inline(text, one.dtype, one.lanes)


def _widen_at(e: Emitter, one: Val, two: Val, position: int) -> tuple[Val, Val]:
    """Give two values the same number of lanes; code that widens `one` is inserted at
    `position`."""
    lanes = max(one.lanes, two.lanes)
    if one.lanes == lanes:
        return one, e.widen(two, lanes)
    lines = e.scopes[-1].lines
    tail = lines[position:]
    del lines[position:]
    one = e.widen(one, lanes)
    lines += tail
    return one, two
