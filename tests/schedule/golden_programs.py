"""Golden programs written as scripts beside the test: `becomes` checks everything at once."""

from __future__ import annotations

from oracle import check_trace, check_transform

from metasched.ir.equal import assert_structural_equal
from metasched.ir.func import PrimFunc
from metasched.ir.verify import verify
from metasched.schedule.schedule import Schedule


def becomes(before: PrimFunc, sch: Schedule, after: PrimFunc, *, numbers: bool = True) -> None:
    """Check that `sch` equals `after` up to names, computes the same as `before`, and replays.

    `numbers=False` skips the comparison of results, for a program whose parameters changed.
    """
    name = lambda f: f.with_attr("global_symbol", "main")  # noqa: E731
    assert_structural_equal(name(sch.mod["main"]), name(after))
    if numbers:
        check_transform(before, sch)
    else:
        verify(sch.mod)
        check_trace(before, sch)
