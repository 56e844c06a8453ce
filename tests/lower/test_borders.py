"""Loops over tiles are cut where tests inside begin to hold for the whole tile."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, integers

from metasched.ir.expr import Select
from metasched.ir.op import Call
from metasched.ir.stmt import For, ForKind, IfThenElse
from metasched.ir.visit import walk_exprs, walk_stmts
from metasched.lower.passes.borders import STORES
from metasched.lower.pipeline import lower
from metasched.script import parse

WINDOW = """
@T.prim_func
def main(x: T.Buffer((6, {size}), "float32"), w: T.Buffer((6, 3, 16), "float32"),
         y: T.Buffer(({size}, 16), "float32")):
    for t in {loop}({tiles}):
        s = T.alloc_buffer(({rows}, 16), "float32", scope="local")
        for i in T.unroll({rows}):
            for o in T.vectorized(16):
                s[i, o] = T.float32(0)
        for c in {depth}(6):
            for q in T.unroll(3):
                for i in {tile}({rows}):
                    for o in T.vectorized(16):
                        {update}
        for i in T.unroll({rows}):
            for o in T.vectorized(16):
                y[t * {rows} + i, o] = s[i, o]
"""
INSIDE = "{at} >= 0 and {at} < {size}"
UPDATES = {
    "statement": "if {inside}:\n{pad}s[i, o] = s[i, o] + x[c, {at}] * w[c, q, o]",
    "choice": "s[i, o] = s[i, o] + T.if_then_else({inside}, x[c, {at}] * w[c, q, o], T.float32(0))",
    "maximum": "s[i, o] = T.max(s[i, o], T.if_then_else({inside}, x[c, {at}] * w[c, q, o], "
    "T.float32(-5)))",
    "select": "s[i, o] = T.max(s[i, o], T.Select({inside}, x[c, T.max(T.min({at}, {size} - 1), "
    "0)] * w[c, q, o], T.float32(-5)))",
    "load": "s[i, o] = T.max(s[i, o], T.if_then_else({inside}, x[c, {at}], T.float32(0)) * "
    "w[c, q, o])",
    "stage": "if {inside}:\n{pad}s[i, o] = x[c, {at}] * w[c, q, o]",
}


def window(
    update: str = "statement", tiles: int = 5, rows: int = 4, at: str = "t * {rows} + i + q - 1",
    loop: str = "range", depth: str = "range", tile: str = "T.unroll",
) -> str:  # fmt: skip
    size = tiles * rows
    at = at.format(rows=rows)
    inside = INSIDE.format(at=at, size=size)
    text = UPDATES[update].format(inside=inside, at=at, size=size, pad=" " * 28)
    return WINDOW.format(
        size=size, tiles=tiles, rows=rows, update=text, loop=loop, depth=depth, tile=tile
    )


def pieces(source: str) -> list[For]:
    """The loops over `c`, one for each piece of the loop over tiles."""
    stmts = walk_stmts(lower(parse(source), NATIVE).body)
    return [s for s in stmts if isinstance(s, For) and s.var.name == "c"]


def has_tests(piece: For) -> bool:
    choices = (x for s in walk_stmts(piece) for e in s.exprs for x in walk_exprs(e))
    tests = any(isinstance(s, IfThenElse) for s in walk_stmts(piece))
    return tests or any(isinstance(x, (Select, Call)) for x in choices)


def same(source: str, size: int) -> None:
    x, w = integers((6, size)), integers((6, 3, 16), seed=1)
    agree(source, x, w, np.zeros((size, 16), "float32"))
    w[:, 0], w[:, 2] = np.inf, np.nan  # terms outside are left out, not multiplied by zero
    agree(source, x, w, np.zeros((size, 16), "float32"))


@pytest.mark.parametrize("update", ["statement", "choice", "maximum", "select"])
@pytest.mark.parametrize(("tiles", "parts"), [(5, 3), (3, 3), (2, 2)])
def test_tiles_inside_need_no_test(update, tiles, parts):
    source = window(update, tiles)
    found = pieces(source)
    assert len(found) == parts
    assert not has_tests(found[1]) or parts == 2
    same(source, tiles * 4)


@pytest.mark.parametrize("changes", [
    pytest.param({"update": "load"}, id="a load under a test costs little"),
    pytest.param({"update": "stage"}, id="no update"),
    pytest.param({"tiles": 70}, id="many tiles"),
    pytest.param({"rows": STORES // 6, "tiles": 3}, id="much code"),
    pytest.param({"loop": "T.parallel"}, id="threads"),
    pytest.param({"depth": "T.unroll"}, id="tests that run once"),
    pytest.param({"tile": "range", "at": "t * {rows} + i"}, id="no unrolled loop"),
    pytest.param({"at": "t * t + i + q - 1"}, id="places that are not linear"),
])  # fmt: skip
def test_other_loops_stay_whole(changes):
    source = window(**changes)
    loops = walk_stmts(lower(parse(source), NATIVE).body)
    whole = [s for s in loops if isinstance(s, For) and s.var.name == "t"]
    assert len(whole) == 1
    size = changes.get("tiles", 5) * changes.get("rows", 4)
    if size <= 20:
        same(source, size)


def test_a_loop_with_a_note_keeps_it():
    """Each piece unrolls its loops as the whole loop did."""
    source = window().replace("for t in range(5):", (
        'for t in T.serial(5, annotations={"pragma_auto_unroll_max_step": 16}):'
    ))  # fmt: skip
    stmts = walk_stmts(lower(parse(source), NATIVE).body)
    loops = [s for s in stmts if isinstance(s, For) and s.var.name == "t"]
    assert [s.annotations["pragma_auto_unroll_max_step"] for s in loops] == [16] * 3
    assert all(s.kind is ForKind.SERIAL for s in loops)
    same(source, 20)


def test_a_loop_that_is_left_early_stays_whole():
    source = window().replace(
        "        s = T.alloc", "        if x[0, t] > 9:\n            break\n        s = T.alloc"
    )
    loops = [s for s in walk_stmts(lower(parse(source), NATIVE).body) if isinstance(s, For)]
    assert sum(s.var.name == "t" for s in loops) == 1
    same(source, 20)
