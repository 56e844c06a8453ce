"""separate_windows: which reductions it offers side by side, and their results."""

from __future__ import annotations

import pytest
from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.ir.expr import as_int
from metasched.kinds import default_modules
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.separate_windows import SeparateWindows


def window(value: str, sides: str = "3, 5", dtype: str = "uint8"):
    start = "T.uint8(0)" if dtype == "uint8" else "T.float32('-inf')"
    return parse(f"""
@T.prim_func
def main(A: T.Buffer((40, 90), "{dtype}"), W: T.Buffer((8, 8), "{dtype}"),
         B: T.Buffer((12, 32), "{dtype}")):
    for y, x, i, j in T.grid(12, 32, {sides}):
        with T.block("B"):
            vy, vx, vi, vj = T.axis.remap("SSRR", [y, x, i, j])
            with T.init():
                B[vy, vx] = {start}
            B[vy, vx] = T.max(B[vy, vx], {value})
""")


CASES = {
    "dilation": (window("A[vy + vi, vx + vj]"), ["SSR", "SSR"]),
    "along columns": (window("A[vx + vi, vy + vj]"), ["SSR", "SSR"]),
    "one side": (window("A[vy + vi, vx + vj]", "1, 5"), ["SSRR"]),
    "pooling": (window("A[2 * vy + vi, 2 * vx + vj]", "2, 2"), ["SSRR"]),
    "pooling, steps of 2": (window("A[2 * vy + vi, 2 * vx + vj]", "3, 3"), ["SSRR"]),
    "weights": (window("A[vy + vi, vx + vj] + W[vi, vj]"), ["SSRR"]),
}


@pytest.mark.parametrize("case", CASES)
def test_windows_are_separated_where_that_saves_operations(case: str) -> None:
    func, kinds = CASES[case]
    sch = Schedule(func)
    *offered, plain = SeparateWindows()(sch, sch.get_block("B"))
    assert plain is sch and not sch.refused
    blocks = [offered[0].get(b) for b in offered[0].get_child_blocks("root")] if offered else []
    found = ["".join("S" if v.is_spatial else "R" for v in block.iter_vars) for block in blocks]
    assert found == (kinds if len(kinds) > 1 else [])
    if offered:  # the side along memory comes last
        assert as_int(blocks[-1].iter_vars[-1].dom.extent) == 5


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_candidates_of_a_window_compute_the_same(dtype: str) -> None:
    func = window("A[vy + vi, vx + vj]", dtype=dtype)
    generator = SpaceGenerator(default_modules(TARGET))
    found = generator.generate(func, TARGET)
    assert not generator.failures and any("separate_window" in str(s) for s in found)
    for space in found:
        drawn = [sch for seed in range(4) if (sch := draw(func, space, seed)) is not None]
        assert drawn
        for sch in drawn[:2]:
            check_numbers(func, sch.mod, compiled=True)
