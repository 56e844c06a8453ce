"""suggest_index_map: the layout in which loops read a buffer from first to last element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import check_transform

import metasched as ms
from metasched.arith.indexmap import IndexMap
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Expr, IntImm, Var, as_int
from metasched.ir.stmt import Evaluate, For, ForKind
from metasched.ir.visit import substitute
from metasched.schedule.analysis import suggest_index_map


def loops_of(**extents: int) -> tuple[dict[str, Var], list[For]]:
    names = {name: Var(name) for name in extents}
    zero, nothing = IntImm("int32", 0), Evaluate(IntImm("int32", 0))
    made = [
        For(names[name], zero, IntImm("int32", n), ForKind.SERIAL, nothing)
        for name, n in extents.items()
    ]
    return names, made


def buffer(*shape: int) -> Buffer:
    return ms.einsum("ab->a" if len(shape) == 2 else "abcd->a", shape).params[0]


def in_order(found: IndexMap, whole: Buffer, indices: Sequence[Expr], loops: Sequence[For]) -> bool:
    """Whether successive iterations touch successive elements of the layout."""
    shape = [as_int(n) or 0 for n in found.map_shape(whole.shape)]
    last = -1
    for point in product(*(range(as_int(loop.extent) or 1) for loop in loops)):
        values = {loop.var: IntImm("int32", n) for loop, n in zip(loops, point, strict=True)}
        place = [as_int(i) for i in found.apply([substitute(i, values) for i in indices])]
        assert None not in place
        flat = sum(p * math.prod(shape[n + 1 :]) for n, p in enumerate(place) if p is not None)
        if flat != last + 1:
            return False
        last = flat
    return True


def test_digits_of_loops_as_in_tvm():
    """The first example of TVM's tests."""
    v, loops = loops_of(i=32, j=64)
    i, j = v["i"], v["j"]
    found = suggest_index_map(buffer(8, 256), [i // 16 * 4 + j // 16, i % 16 * 16 + j % 16], loops)
    assert found == IndexMap.of(lambda i, j: (i // 4, j // 16, i % 4, j % 16))


@settings(max_examples=25, derandomize=True, deadline=None)
@given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4))
def test_tiles_in_any_order_of_the_loops_are_read_front_to_back(order, extents):
    v, _ = loops_of(a=1, b=1, c=1, d=1)
    names = [list(v)[n] for n in order]
    sizes = dict(zip(v, extents, strict=True))
    v, loops = loops_of(**{name: sizes[name] for name in names})
    indices = [v["a"] * sizes["b"] + v["b"], v["c"] * sizes["d"] + v["d"]]
    whole = buffer(sizes["a"] * sizes["b"], sizes["c"] * sizes["d"])
    found = suggest_index_map(whole, indices, loops)
    if math.prod(extents) == 1:
        assert found is None
        return
    assert found is not None
    assert in_order(found, whole, indices, loops)


@pytest.mark.parametrize("case", ["overlap", "diagonal", "half", "beyond", "offset", "square"])
def test_no_layout_is_suggested(case):
    v, loops = loops_of(i=4, j=4)
    i, j = v["i"], v["j"]
    shape, indices = {
        "overlap": ((7, 4), [i + j, j]), "diagonal": ((4, 4), [i, i]),
        "half": ((8, 4), [i, j]), "beyond": ((3, 4), [i, j]), "offset": ((5, 4), [i + 1, j]),
        "square": ((10, 4), [i * i, j]),
    }[case]  # fmt: skip
    assert suggest_index_map(buffer(*shape), indices, loops) is None
    if case == "beyond":
        assert suggest_index_map(buffer(*shape), indices, loops, i < 3) is not None


def test_transform_layout_takes_what_is_suggested():
    func = ms.einsum("ik,kj->ij", (4, 6), (6, 8), dtype="int32")
    sch = ms.Schedule(func)
    block = sch.get_block("Z")
    i, j, k = sch.get_loops(block)
    outer, inner = sch.split(j, [None, 4])
    sch.reorder(outer, k, i, inner)
    realize = sch.state.block(block)
    loops = sch.state.loops_above(realize)
    load = next(r for r in realize.block.reads if r.buffer.name == "B")
    values = dict(zip((v.var for v in realize.block.iter_vars), realize.iter_values, strict=True))
    indices = [substitute(r.min, values) for r in load.region]
    found = suggest_index_map(load.buffer, indices, loops, realize.predicate)
    assert found == IndexMap.of(lambda k, j: (j // 4, k, j % 4))
    copy = sch.cache_read(block, 1, "global")
    sch.transform_layout(copy, ("write", 0), found)
    check_transform(func, sch)
