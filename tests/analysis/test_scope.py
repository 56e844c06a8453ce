"""Scopes: children in order, edges refined by regions, statements outside of blocks."""

from __future__ import annotations

from analysis.programs import concat, halo, loop, matmul, matmul_relu, named, scope_of

from metasched.analysis.scope import EdgeKind, Scope, may_overlap
from metasched.script import tir as T


def kinds(scope: Scope) -> list[tuple[str, str, EdgeKind, str]]:
    name = {c.token: c.block.name for c in scope.realizes}
    return [(name[e.src], name[e.dst], e.kind, e.buffer.name) for e in scope.edges]


def test_children_come_in_program_order_with_their_loops() -> None:
    scope = scope_of(matmul_relu)
    assert [c.block.name for c in scope.realizes] == ["C", "D"]
    assert [[p.var.name for p in c.loops] for c in scope.realizes] == [["i", "j", "k"], ["x", "y"]]
    child = scope.realizes[0]
    assert scope.child(child.token) is child
    assert scope.get(matmul.root.token) is None


def test_a_scope_is_made_once_for_each_block() -> None:
    once, again = scope_of(matmul), scope_of(matmul)
    assert once.realizes is again.realizes and once.edges is again.edges


def test_producers_consumers_writers_and_readers() -> None:
    scope = scope_of(matmul_relu)
    first, second = scope.realizes
    assert kinds(scope) == [("C", "D", EdgeKind.RAW, "C")]
    assert scope.producers(second.token) == [first]
    assert scope.consumers(first.token) == [second]
    assert scope.producers(first.token) == [] == scope.consumers(second.token)
    buffer = first.block.writes[0].buffer
    assert scope.writers(buffer) == [first]
    assert scope.readers(buffer) == [second]


def test_write_after_read_is_an_edge_but_makes_no_producer() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.block("read"):
                v = T.axis.spatial(8, i)
                B[v] = A[v]
        for j in T.serial(8):
            with T.block("write"):
                v = T.axis.spatial(8, j)
                A[v] = T.float32(0)

    scope = scope_of(f)
    assert kinds(scope) == [("read", "write", EdgeKind.WAR, "A")]
    assert scope.producers(scope.realizes[1].token) == []


def test_disjoint_regions_drop_the_edge() -> None:
    assert kinds(scope_of(concat)) == []


def test_interleaved_regions_drop_the_edge() -> None:
    @T.prim_func
    def f(A: T.Buffer((16,), "float32")):
        for i in T.serial(8):
            with T.block("even"):
                v = T.axis.spatial(8, i)
                A[v * 2] = T.float32(0)
        for j in T.serial(8):
            with T.block("odd"):
                v = T.axis.spatial(8, j)
                A[v * 2 + 1] = T.float32(1)

    assert kinds(scope_of(f)) == []


def test_touching_regions_keep_the_edge() -> None:
    @T.prim_func
    def f(A: T.Buffer((16,), "float32")):
        for i in T.serial(9):
            with T.block("low"):
                v = T.axis.spatial(9, i)
                A[v] = T.float32(0)
        for j in T.serial(8):
            with T.block("high"):
                v = T.axis.spatial(8, j)
                A[v + 8] = T.float32(1)

    scope = scope_of(f)
    assert kinds(scope) == [("low", "high", EdgeKind.WAW, "A")]
    low, high = scope.realizes
    buffer = low.block.writes[0].buffer
    assert may_overlap(low.block, high.block, buffer, reads_a=False, reads_b=False)
    assert not may_overlap(low.block, high.block, buffer, reads_a=True, reads_b=False)


def test_symbolic_extents_count_as_touching() -> None:
    @T.prim_func
    def f(n: T.int32, A: T.Buffer((n,), "float32")):
        for i in T.serial(n):
            with T.block("one"):
                v = T.axis.spatial(n, i)
                A[v] = T.float32(0)
        for j in T.serial(n):
            with T.block("two"):
                v = T.axis.spatial(n, j)
                A[v] = A[v] + T.float32(1)

    found = {k for _, _, k, _ in kinds(scope_of(f))}
    assert found == {EdgeKind.RAW, EdgeKind.WAW}


def test_statements_outside_of_blocks_are_listed() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            if i < 4:
                with T.block("b"):
                    v = T.axis.spatial(8, i)
                    A[v] = T.float32(0)

    scope = scope_of(f)
    assert [type(s).__name__ for s, _ in scope.loose] == ["IfThenElse"]
    assert [p.var.name for _, loops in scope.loose for p in loops] == ["i"]
    assert [c.block.name for c in scope.realizes] == ["b"]


def test_children_under_a_loop() -> None:
    scope = scope_of(halo)
    assert scope.under(loop(halo, "t")) == scope.realizes
    assert scope.under(loop(halo, "u")) == [named(scope, "P")]
