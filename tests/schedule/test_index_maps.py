"""Index maps over shape variables, by name, and of 64-bit indices."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable

import pytest
from oracle import check_refused, check_trace, check_transform

from metasched.arith.indexmap import IndexMap
from metasched.errors import MetaschedError, TraceError
from metasched.ir.expr import Var
from metasched.schedule.instruction import PRIMITIVES
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script import tir as T


@T.prim_func
def rows(a: T.handle, b: T.handle, c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (4, n), "float32")
    V = T.match_buffer(b, (n,), "float32")
    C = T.match_buffer(c, (n * 4,), "float32")
    B = T.alloc_buffer((4, n), "float32")
    for i, j in T.grid(4, n):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + V[vj]
    for i, j in T.grid(4, n):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi * n + vj] = B[vi, vj]


@T.prim_func
def wide(A: T.Buffer((T.int64(58), T.int64(6)), "float32"),
         C: T.Buffer((T.int64(58), T.int64(6)), "float32")):  # fmt: skip
    B = T.alloc_buffer((T.int64(58), T.int64(6)), "float32")
    for i, j in T.grid(T.int64(58), T.int64(6)):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
    for i, j in T.grid(T.int64(58), T.int64(6)):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] * T.float32(2)


N = rows.params[1].shape[0]


def test_a_block_over_a_shape_variable_is_flattened() -> None:
    sch = Schedule(rows, check=True)
    sch.transform_block_layout("C", lambda i, j: (i * N + j,))
    (loop,) = sch.get_loops("C")
    assert sch.get(loop).extent is not None
    check_transform(rows, sch)


def test_a_layout_over_a_shape_variable_can_be_inverted() -> None:
    sch = Schedule(rows, check=True)
    sch.transform_layout("B", ("write", 0), lambda i, j: i * N + j)
    assert 'B = T.alloc_buffer((n * 4,), "float32")' in sch.script()
    sch.transform_layout("B", ("write", 0), lambda x: (x // N, x % N))
    assert 'B = T.alloc_buffer((4, n), "float32")' in sch.script()
    check_transform(rows, sch)


def test_a_variable_is_found_by_its_name() -> None:
    sch = Schedule(rows)
    sch.transform_block_layout("C", lambda n, j: (n * T.Var("n", "int32") + j,))
    text = sch.trace.as_python()
    assert '    n = T.Var("n", "int32")' in text
    assert "lambda n_, j: (n_ * n + j,)" in text
    check_trace(rows, sch)


def test_a_factor_over_a_shape_variable_is_stored() -> None:
    sch = Schedule(rows)
    sch.split(sch.get_loops("C")[1], [N, None])
    again = Schedule(rows)
    Trace.from_json(sch.trace.to_json()).apply(again)
    assert again.script() == sch.script()


def test_other_variables_are_refused() -> None:
    sch = Schedule(rows)
    message = "the index map mentions m, which is no variable of the function"
    check_refused(
        sch,
        lambda: sch.transform_block_layout("C", lambda i, j: (i * Var("m") + j,)),
        "bad-index-map",
        message,
    )
    message = "no iterator has the stride n"
    check_refused(
        sch,
        lambda: sch.transform_block_layout("C", lambda i, j: (i * N * 2 + j,)),
        "not-bijective",
        message,
    )


def test_keyword_only_indices_are_the_last() -> None:
    assert IndexMap.of(lambda *i, k: [k, *i], 3) == IndexMap.of(lambda i, j, k: (k, i, j))
    assert IndexMap.of(lambda i, scale=4: (i // scale, i % scale), 1) == IndexMap.of(
        lambda i: (i // 4, i % 4)
    )
    assert IndexMap.of(lambda *i, by=2: (i[0] // by, i[0] % by), 1) == IndexMap.of(
        lambda i: (i // 2, i % 2)
    )
    with pytest.raises(MetaschedError, match=r"\*\*names stands for no indices"):
        IndexMap.of(lambda **names: names, 2)
    sch = Schedule(wide)
    sch.transform_layout("B", ("write", 0), lambda *i, k: [*i, k // 3, k % 3])
    check_transform(wide, sch)


def test_padding_of_a_wide_buffer() -> None:
    sch = Schedule(wide, check=True)
    sch.transform_layout(
        "B", ("write", 0), lambda i, j: (j // 4, i // 8, i % 8, j % 4), pad_value=0.0
    )
    check_transform(wide, sch)
    sch = Schedule(wide, check=True)
    outer, _ = sch.split(sch.get_loops("C")[0], [None, 8])
    sch.compute_at("B", outer)
    sch.transform_layout("B", ("write", 0), lambda i, j: (i // 8, j, i % 8), pad_value=2)
    check_transform(wide, sch)


Step = Callable[[Schedule, IndexMap], object]
TAKES_MAPS: dict[str, Step] = {
    "transform_layout": lambda sch, m: sch.transform_layout("B", ("write", 0), m),
    "transform_block_layout": lambda sch, m: sch.transform_block_layout("C", m),
    "reindex_cache_read": lambda sch, m: sch.reindex_cache_read("C", 0, "local", m),
    "reindex_cache_write": lambda sch, m: sch.reindex_cache_write("B", 0, "local", m),
    "annotate_buffer_access": lambda sch, m: sch.annotate_buffer_access(
        "C", 0, "read", IndexMap(m.inputs, (m.inputs[0], m.inputs[0] + 1, 0 * m.inputs[1], N6))
    ),
}
"""For each primitive that takes an index map, a step with a map of the indices of B."""
N6 = T.int64(6)


@pytest.mark.parametrize("kinds", [("int64", "int64"), ("int32", "int64"), ("int32", "int32")])
@pytest.mark.parametrize("name", TAKES_MAPS)
def test_a_trace_keeps_the_types_of_a_map(name: str, kinds: tuple[str, str]) -> None:
    i, j = (Var(which, kind) for which, kind in zip("ij", kinds, strict=True))
    sch = Schedule(wide, check=True)
    TAKES_MAPS[name](sch, IndexMap((i, j), (j // 3, i, j % 3)))
    (entry,) = Trace.from_json(sch.trace.to_json()).entries[-1:]
    (read,) = (v for v in entry.values if isinstance(v, IndexMap))
    assert [str(v.dtype) for v in read.inputs] == list(kinds)
    check_trace(wide, sch, python=kinds[0] == kinds[1])
    check_transform(wide, sch)


def test_each_primitive_that_takes_an_index_map_is_tried() -> None:
    takes = {
        name
        for name in PRIMITIVES.names()
        for p in inspect.signature(PRIMITIVES.get(name).fn).parameters.values()
        if "IndexMap" in str(p.annotation) or "MapArg" in str(p.annotation)
    }
    assert takes == {*TAKES_MAPS}


def test_a_trace_keeps_wide_padding_values_and_inverses() -> None:
    i, j, k = (Var(name, "int64") for name in "ijk")
    sch = Schedule(wide, check=True)
    pad = IndexMap((i, j, k), (T.Cast("float32", i + k),))
    sch.transform_layout("B", ("write", 0), IndexMap((i, j), (j // 4, i, j % 4)), pad_value=pad)
    check_trace(wide, sch)
    sch = Schedule(wide, check=True)
    back = IndexMap.of(lambda a, b: (b, a), index_dtype="int64")
    sch.transform_block_layout("C", IndexMap((i, j), (j, i), back))
    check_trace(wide, sch)
    assert "IndexMap.of(lambda i, j: (j, i), index_dtype=" in sch.trace.as_python()


def test_a_wrong_inverse_is_refused() -> None:
    sch = Schedule(wide)
    wrong = IndexMap.of(lambda i, j: (j, i), inverse=lambda a, b: (a, b))
    check_refused(
        sch,
        lambda: sch.transform_block_layout("C", wrong),
        "not-bijective",
        "the given inverse is not proved to lead back",
    )


def test_a_map_of_a_trace_with_a_strange_input_is_refused() -> None:
    sch = Schedule(wide)
    sch.transform_block_layout("C", lambda i, j: (j, i))
    for strange in (["Var", "float32", "i"], ["Var", "int64"], ["Add", "int64", "i"], 3):
        data = json.loads(sch.trace.to_json())
        data["steps"][-1]["args"]["index_map"]["index_map"]["inputs"][0] = strange
        with pytest.raises(TraceError, match="has an index map that cannot be read"):
            Trace.from_json(json.dumps(data))
