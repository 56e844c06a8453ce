"""What a primitive's docstring shows under `rewrite` is what it does; each names its conditions."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from metasched.schedule.instruction import PRIMITIVES
from metasched.schedule.schedule import Schedule
from metasched.script.parser import parse

HEADER = re.compile(r"for (.*?) in (T\.\w+|range)\((.*?)\)")
STEPS: dict[str, Callable[[Schedule, list], object]] = {
    "split": lambda s, x: s.split(x[0], [None, 64]),
    "fuse": lambda s, x: s.fuse(*x),
    "reorder": lambda s, x: s.reorder(*reversed(x)),
    "parallel": lambda s, x: s.parallel(x[0]),
    "vectorize": lambda s, x: s.vectorize(x[0]),
    "unroll": lambda s, x: s.unroll(x[0]),
    "bind": lambda s, x: s.bind(x[0], "threadIdx.x"),
}


def rewrite(name: str) -> tuple[str, str]:
    """The loop headers before and after in the docstring."""
    text = " ".join((PRIMITIVES.get(name).fn.__doc__ or "").split())
    before, after = text.split("rewrite ")[1].split(" -> ")[:2]
    shown = [HEADER.search(side) for side in (before, after)]
    assert shown[0] and shown[1]
    return shown[0].group(0), shown[1].group(0)


@pytest.mark.parametrize("name", STEPS)
def test_rewrite(name: str) -> None:
    before, after = rewrite(name)
    variables = HEADER.search(before).group(1).split(", ")
    shape = HEADER.search(before).group(3)
    iters = ", ".join(f"v{v}" for v in variables)
    func = parse(
        f'@T.prim_func\ndef f(A: T.Buffer(({shape},), "int32"), '
        f'B: T.Buffer(({shape},), "int32")):\n'
        f"    {before}:\n"
        '        with T.block("S"):\n'
        f'            {iters} = T.axis.remap("{"S" * len(variables)}", [{", ".join(variables)}])\n'
        f"            B[{iters}] = A[{iters}] + 1\n"
    )
    sch = Schedule(func, seed=0)
    assert f"{before}:" in sch.script()
    STEPS[name](sch, sch.get_loops("S"))
    assert f"{after}:" in sch.script()


@pytest.mark.parametrize("name", list(PRIMITIVES))
def test_every_primitive_says_what_it_does_and_needs(name: str) -> None:
    kind = PRIMITIVES.get(name)
    doc = kind.fn.__doc__ or ""
    assert len(doc.splitlines()[0]) > 20
    if not kind.pure and kind.params and name != "enter_postproc":
        assert "requires" in doc
