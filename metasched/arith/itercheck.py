"""Checks that the digits in an iterator map do not overlap, and leave no gaps where forbidden."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metasched.arith.iterform import Group, IterMark, IterSplit, IterSum, NotAffine, Reader, Size
from metasched.ir.describe import show_expr
from metasched.ir.expr import Expr, Var


def depth(mark: IterMark) -> int:
    """How many sums are nested in a mark."""
    source = mark.source
    if isinstance(source, Var):
        return 0
    return 1 + max((depth(s.mark) for s in source.splits), default=0)


def check(reader: Reader, exprs: Sequence[Expr], sums: list[IterSum], bijective: bool) -> None:
    """Check that no digit is used twice and, if `bijective`, that every digit is used.

    Raises:
        NotAffine: if a check fails.
    """
    uses: dict[IterMark, list[IterSplit]] = {}
    for total in sums:
        for s in total.splits:
            uses.setdefault(s.mark, []).append(s)
    waiting = sorted(uses, key=depth, reverse=True)
    done: set[IterMark] = set()
    while waiting:
        mark = waiting.pop(0)
        if mark in done:
            continue
        done.add(mark)
        _check_mark(reader, mark, uses[mark], bijective, exprs)
        if isinstance(mark.source, IterSum):
            for s in mark.source.splits:
                uses.setdefault(s.mark, []).append(s)
                if s.mark not in waiting:
                    waiting.append(s.mark)
            waiting.sort(key=depth, reverse=True)
    for group in reader.groups:
        _check_group(reader, group, done)
    if bijective:
        for mark, _ in reader.marks.values():
            if mark.extent != 1 and mark not in done:
                raise NotAffine(f"the iterator {_name(mark)} is not used")


def _check_group(reader: Reader, group: Group, done: set[IterMark]) -> None:
    whole: Size = 1
    for s in group.order:
        whole = reader.times(whole, s.extent)
    if group.mark() in done or reader.same(whole, group.count(reader)):
        return
    if any(leaf in done for s in group.order for leaf in _leaves(s.mark)):
        names = " and ".join(_name(s.mark) for s in reversed(group.order))
        raise NotAffine(f"the predicate ties {names} together, but they are used apart")


def _leaves(mark: IterMark) -> Iterator[IterMark]:
    """The marks of the variables in a mark."""
    if isinstance(mark.source, Var):
        yield mark
    else:
        for s in mark.source.splits:
            yield from _leaves(s.mark)


def _check_mark(
    reader: Reader, mark: IterMark, splits: list[IterSplit], bijective: bool, exprs: Sequence[Expr]
) -> None:
    left = [s for s in splits if s.extent != 1]
    if not bijective and len(left) <= 1:
        if left and not reader.at_most(left[0].extent, reader.ceildiv(mark.extent, left[0].lower)):
            raise NotAffine(f"the parts of {_name(mark)} take fewer values than their radix")
        return
    expected: Size = 1
    left.sort(key=lambda s: s.lower if isinstance(s.lower, int) else 0)
    while left:
        found = next((s for s in left if reader.same(s.lower, expected)), None)
        if found is None and not bijective:
            found = next((s for s in left if reader.divides(expected, s.lower)), None)
        if found is None:
            shown = ", ".join(show_expr(e) for e in exprs)
            raise NotAffine(f"the parts of {_name(mark)} in ({shown}) overlap or leave gaps")
        left.remove(found)
        expected = reader.times(found.lower, found.extent)
    exact = reader.same(expected, mark.extent)
    if not exact and (bijective or not reader.at_most(expected, mark.extent)):
        shown = ", ".join(show_expr(e) for e in exprs)
        raise NotAffine(f"({shown}) do not split {_name(mark)} evenly")


def _name(mark: IterMark) -> str:
    if isinstance(mark.source, Var):
        return mark.source.name
    return " with ".join(_name(s.mark) for s in mark.source.splits)
