"""auto_inline with each of its options on and off; inline_constant_scalars; a sampled location."""

from __future__ import annotations

import re

import pytest
from oracle import check_numbers

from metasched.ir.expr import Expr
from metasched.ir.visit import walk
from metasched.schedule.schedule import Schedule
from metasched.script.parser import parse
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.auto_inline import AutoInline, InlineConstantScalars
from metasched.space.modules.compute_location import RandomComputeLocation
from metasched.space.modules.rfactor import AddRFactor
from metasched.workloads import get

PROGRAM = """
@T.prim_func
def rows(A: T.Buffer((4, 4), "float32"), B: T.Buffer((4,), "float32")):
    S = T.alloc_buffer((4, 4), "float32")
    for i, j in T.grid(4, 4):
        with T.block("S"):
            vi, vj = T.axis.remap("SS", [i, j])
            NOTE
            S[vi, vj] = VALUE
    for i, j in T.grid(4, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + S[vi, vj] * A[vi, vj]
"""


def rows(value, note="T.block_attr({})"):
    return parse(PROGRAM.replace("VALUE", value).replace("NOTE", note))


def left(module, func, block="S"):
    """The blocks that are left after a module has seen one."""
    (sch,) = module(made := Schedule(func, check=True), made.get_block(block))
    check_numbers(func, sch.mod)
    return [r.block.name for r in sch.state.index.blocks.values() if r.block.name != "root"]


@pytest.mark.parametrize(
    ("value", "allow"),
    [
        ("T.exp(A[vi, vj])", {"disallow_op": ()}),
        ("T.if_then_else(vi < 2, A[vi, vj], T.float32(0))", {"disallow_if_then_else": False}),
        ("T.Select(vi < 2, A[vi, vj], T.float32(0))", {"disallow_if_then_else": False}),
        ("A[vj, vi]", {"require_ordered": False}),
        ("A[vi, vi]", {"require_injective": False}),
    ],
)
def test_auto_inline_inlines_only_what_its_options_allow(value, allow):
    assert left(AutoInline(), rows(value)) == ["S", "B"]
    assert left(AutoInline(**allow), rows(value)) == ["B"]
    assert left(AutoInline(**allow, into_consumer=False), rows(value)) == ["S", "B"]


LOOKUP = """
@T.prim_func
def lookup(P: T.Buffer((64,), "uint8"), A: T.Buffer((8,), "int32"), B: T.Buffer((64,), "int32")):
    S = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("S"):
            vi = T.axis.remap("S", [i])
            S[vi] = VALUE
    for i in range(TIMES):
        with T.block("B"):
            vi = T.axis.remap("S", [i])
            B[vi] = S[PLACE] + 1
"""


@pytest.mark.parametrize(
    ("value", "place", "times", "kept"),
    [
        ("A[vi] * 255 // 7", "T.int32(P[vi]) % 8", 64, True),
        ("vi * vi", "T.int32(P[vi]) % 8", 64, True),
        ("A[vi] * 255 // 7", "T.int32(P[vi]) % 8", 8, False),
        ("A[vi] * 255 // 7", "vi // 8", 64, False),
        ("A[7 - vi]", "T.int32(P[vi]) % 8", 64, False),
        ("vi", "T.int32(P[vi]) % 8", 64, False),
    ],
)
def test_a_table_that_saves_work_is_looked_up(value, place, times, kept):
    """Each element of a table is computed once, also where the table is looked up many times."""
    text = LOOKUP.replace("VALUE", value).replace("PLACE", place).replace("TIMES", str(times))
    assert left(AutoInline(), parse(text)) == (["S", "B"] if kept else ["B"])


PRODUCT = """
@T.prim_func
def product(A: T.Buffer((8, 8), "float32"), D: T.Buffer((8, 8), "float32"),
            W: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
    S = T.alloc_buffer((8, 8), "float32")
    for i, k in T.grid(8, 8):
        with T.block("S"):
            vi, vk = T.axis.remap("SS", [i, k])
            S[vi, vk] = VALUE
    for i, j, k in T.grid(8, 8, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + S[vi, vk] * W[vk, vj]
"""


def test_what_a_product_would_repeat_is_kept():
    func = parse(PRODUCT.replace("VALUE", "A[vi, vk] - D[vi, vk]"))
    assert left(AutoInline(), func) == ["S", "C"]
    assert left(AutoInline(disallow_repeated=False), func) == ["C"]


def test_what_a_product_with_a_vector_reads_once_is_inlined():
    """Kept, a matrix of scaled weights would pass through memory twice more."""
    vector = PRODUCT.replace("VALUE", "A[vi, vk] * D[vi, vk]").replace(
        "T.grid(8, 8, 8)", "T.grid(8, 1, 8)"
    )
    assert left(AutoInline(), parse(vector)) == ["C"]


@pytest.mark.parametrize("value", ["A[vi, vk] * D[vi, vk // 4]", "A[vi, vk // 2] * D[vi, vk % 4]"])
def test_weights_with_a_scale_for_each_group_are_inlined_where_each_is_used_once(value):
    product = PRODUCT.replace("VALUE", value)
    assert left(AutoInline(), parse(product.replace("T.grid(8, 8, 8)", "T.grid(8, 1, 8)"))) == ["C"]
    assert left(AutoInline(), parse(product)) == ["S", "C"]


def test_tables_computed_from_nothing_are_always_inlined():
    table = rows("T.exp(T.cast(vi, 'float32'))")
    assert left(AutoInline(), table) == ["B"]
    assert left(AutoInline(inline_const_tensor=False), table) == ["S", "B"]


def test_an_annotation_keeps_a_block():
    assert left(AutoInline(), rows("A[vi, vj]")) == ["B"]
    kept = rows("A[vi, vj]", 'T.block_attr({"inline_rule": "disable"})')
    assert left(AutoInline(), kept) == ["S", "B"]


FINISH = """
@T.prim_func
def finish(A: T.Buffer((4, 4), "float32"), C: T.Buffer((4,), "float32")):
    B = T.alloc_buffer((4,), "float32")
    D = T.alloc_buffer((), "float32")
    E = T.alloc_buffer((4,), "float32")
    with T.block("D"):
        T.writes(D[()])
        D[()] = T.float32(3)
    for i, j in T.grid(4, 4):
        with T.block("B"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi, vj]
    for i in range(4):
        with T.block("E"):
            vi = T.axis.spatial(4, i)
            E[vi] = A[vi, 0] * D[()]
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = E[vi] + T.float32(1)
"""


def test_into_the_producer():
    func = parse(FINISH)
    assert "C" in left(AutoInline(), func, "C")
    assert left(AutoInline(into_producer=True), func, "C") == ["D", "B", "E"]


def test_a_constant_scalar_is_inlined():
    func = parse(FINISH)
    assert left(InlineConstantScalars(), func, "D") == ["B", "E", "C"]
    assert left(InlineConstantScalars(), func, "E") == ["D", "B", "E", "C"]


def test_a_sampled_location_moves_a_producer():
    func = rows("T.exp(A[vi, vj])")
    places = set()
    for seed in range(12):
        sch = Schedule(func, seed=seed, check=True)
        (moved,) = RandomComputeLocation()(sch, sch.get_block("S"))
        check_numbers(func, moved.mod)
        there = [r for r in moved.state.index.blocks.values() if r.block.name == "S"]
        places.add(len(moved.get_loops(moved.get_block("S"))) if there else "inlined")
        (same,) = RandomComputeLocation()(moved, moved.get_block("B"))  # an output stays
        assert same is moved
    assert len(places) > 1


def test_a_reduction_with_few_results_is_offered_in_two_ways():
    func = parse(
        """
@T.prim_func
def total(A: T.Buffer((256,), "float32"), B: T.Buffer((1,), "float32")):
    for i, j in T.grid(1, 256):
        with T.block("B"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vj]
"""
    )
    sch = Schedule(func, seed=0)
    factored, plain = AddRFactor(cores=4, jobs_per_core=8)(sch, sch.get_block("B"))
    assert plain is sch
    check_numbers(func, factored.mod)
    (tile,) = [e.decision for _, e in factored.trace.sampling()]
    assert 4 <= tile[0] <= 32
    busy = get("gmm").func((1, 8, 8, 4))  # 64 results are enough for four cores
    many = Schedule(busy)
    assert AddRFactor(cores=4)(many, many.get_block("Z")) == [many]


def chain(levels, value, halved=True):
    """Stages of one dimension, each with half as many elements as the stage before or as many."""
    names = ["A", *(f"L{n}" for n in range(1, levels)), "C"]
    sizes = [2 ** (levels + 2 - n) if halved else 8 for n in range(levels + 1)]
    lines = ["@T.prim_func", f'def f(A: T.Buffer(({sizes[0]},), "float32"), '
             f'C: T.Buffer(({sizes[-1]},), "float32")):']  # fmt: skip
    lines += [
        f'    {name} = T.alloc_buffer(({size},), "float32")'
        for name, size in zip(names[1:-1], sizes[1:-1], strict=True)
    ]
    for before, after, size in zip(names, names[1:], sizes[1:], strict=False):
        stored = value.replace("X", before).replace("LAST", str(2 * size - 1))
        lines += [
            f"    for i in range({size}):",
            f'        with T.block("{after}"):',
            f"            vi = T.axis.spatial({size}, i)",
            f"            {after}[vi] = {stored}",
        ]
    return parse("\n".join(lines) + "\n")


CLAMPED = " + ".join(f"X[T.max(T.min(vi * 2 + {n}, LAST), 0)]" for n in range(-2, 3))


def nodes(sch):
    """The most distinct expressions of a block."""
    blocks = [r.block for r in sch.state.index.blocks.values() if r.block.name != "root"]
    return max(sum(isinstance(n, Expr) for n in walk(block.body)) for block in blocks)


def test_levels_of_a_pyramid_stay_small():
    """Inlined into one another, 8 stages of 5 taps have 400,000 loads."""
    func = chain(8, CLAMPED)
    space = SpaceGenerator((AutoInline(),))
    (trace,) = space.generate(func)
    trace.apply(sch := Schedule(func))
    check_numbers(func, sch.mod)
    assert nodes(Schedule(func)) < 50 < nodes(sch) < 1000
    first = space.refusals[0]
    assert (first.module, first.block) == ("auto_inline", "L6")
    assert re.fullmatch(
        r"auto_inline leaves block L6 alone: auto_inline: C reads L6 25 times: inlined, the "
        r"\d+ nodes of L6 would become \d+, and at most 512 may be added \[grows\]",
        first.text,
    )


def test_a_large_expression_that_is_read_once_is_inlined():
    large = " + ".join(f"A[vi, vj] * T.float32({n})" for n in range(300))
    assert left(AutoInline(), rows(large)) == ["B"]


def test_what_each_stage_reads_twice_stays_small():
    """The script has an expression as often as it occurs: 40 squares would be 2 ** 40 loads."""
    func = chain(40, "X[vi] * X[vi] + T.float32(LAST)", halved=False)
    space = SpaceGenerator((AutoInline(),))
    (trace,) = space.generate(func)
    trace.apply(sch := Schedule(func))
    check_numbers(func, sch.mod)
    assert len(str(sch.mod)) < 100 * len(str(func))
    assert {note.block for note in space.refusals} and len(sch.state.index.blocks) < 20
