"""keep_in_result: what updates its result in place, and every refusal."""

from __future__ import annotations

import textwrap

import pytest
from oracle import check_refused, check_transform

from metasched.ir.stmt import IterKind
from metasched.schedule.schedule import Schedule
from metasched.script import parse

SOLVE = """
@T.prim_func
def main(A: T.Buffer((6, 6), "int32"), B: T.Buffer((6,), "int32"), P: T.Buffer((6,), "int32")):
    t = T.alloc_buffer(({size},), "int32")
    {view}
    for i in {outer}:
        {before}
        for j in range(i):
            with T.block("set"):
                {where}
                t[0] = {first}
            for k in range({steps}):
                with T.block("update"):
                    {each}
            {between}
            with T.block("store"):
                {last}
            {beside}
        {behind}
    {after}
"""

PARTS = {
    "size": "1", "view": "T.evaluate(0)", "outer": "range(6)", "before": "T.evaluate(0)",
    "where": "T.evaluate(0)", "first": "A[i, j]", "steps": "j",
    "each": "t[0] -= A[i, k] * A[k, j]", "between": "T.evaluate(0)", "last": "A[i, j] = t[0] * 3",
    "beside": "T.evaluate(0)", "behind": "T.evaluate(0)", "after": "T.evaluate(0)",
}  # fmt: skip


def solve(**parts: str) -> Schedule:
    """The program with some of its parts; of several lines, each stands below the one before."""
    lines = []
    for line in SOLVE.splitlines():
        space = line[: len(line) - len(line.lstrip())]
        text = line.strip().format(**{**PARTS, **parts})
        lines += [space + one for one in text.split("\n") if one.strip() != "T.evaluate(0)"]
    return Schedule(parse("\n".join(lines)))


BLOCK = 'with T.block("{}"):\n    {}'


def block(name: str, *lines: str) -> str:
    return BLOCK.format(name, "\n    ".join(lines))


def call(buffer: str) -> str:
    """A block that passes a pointer on."""
    called = f'T.evaluate(T.call_extern("void", "g", {buffer}.data))'
    return block("call", "T.reads(B[0])", "T.writes(B[0])", called)


@pytest.mark.parametrize(
    ("parts", "blocks"),
    [
        ({}, ["update", "store"]),
        ({"last": "A[i, j] = t[0]"}, ["update"]),
        ({"first": "B[j]"}, ["set", "update", "store"]),
        ({"first": "B[j]", "last": "A[5 - i, j] = t[0]", "each": "t[0] -= P[k]"},
         ["set", "update"]),
        ({"steps": "P[j]", "each": "t[0] -= B[0]"}, ["update", "store"]),
        ({"size": "7", "first": "A[i, j]", "each": "t[0] += k"}, ["update", "store"]),
        ({"between": block("other", "B[j] = A[j, i]")}, ["update", "other", "store"]),
        ({"last": "A[i, P[j] % 1 + j] = t[0]", "each": "t[0] -= B[k]"}, ["set", "update"]),
    ],
)  # fmt: skip
def test_a_value_is_kept_in_the_element(parts, blocks):
    sch = solve(**parts)
    before = sch.func
    sch.keep_in_result("store", "t")
    assert not sch.func.root.alloc_buffers
    assert [c.block.name for c in sch.state.scope(sch.func.root.body).realizes] == blocks
    check_transform(before, sch)


def test_new_iterators_are_spatial_where_instances_are_independent():
    sch = solve(first="B[j]", each="t[0] -= P[k]")
    sch.keep_in_result("store", 0)
    kinds = {
        name: [v.kind for v in sch.get(sch.get_block(name)).iter_vars] for name in ("set", "update")
    }
    spatial, opaque = IterKind.SPATIAL, IterKind.OPAQUE
    assert kinds == {"set": [spatial, spatial], "update": [opaque, spatial, spatial]}


def test_other_uses_of_the_buffer_stay():
    others = block("set_again", "t[0] = B[i]") + "\n" + block("store_again", "B[i] = t[0] + 1")
    for place in ("before", "behind"):
        sch = solve(**{place: others})
        before = sch.func
        sch.keep_in_result("store", "t")
        assert [b.name for b in sch.func.root.alloc_buffers] == ["t"]
        sch.keep_in_result("store_again", "t")
        assert not sch.func.root.alloc_buffers
        check_transform(before, sch)


def test_a_copy_of_an_element_to_itself_stays_alone():
    sch = Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((6,), "int32")):
    t = T.alloc_buffer((1,), "int32")
    for i in range(6):
        with T.block("set"):
            t[0] = A[i]
        with T.block("store"):
            A[i] = t[0]
""")
    )
    before = sch.func
    sch.keep_in_result("store", "t")
    check_transform(before, sch)


@pytest.mark.parametrize(
    ("parts", "reason", "message"),
    [
        ({"last": "A[i, j] = t[0]\nA[i, 0] = 1"}, "no-store", "does nothing but store one element"),
        ({"last": "T.where(i > 2)\nA[i, j] = t[0]"}, "no-store", "store one element"),
        ({"where": "T.where(i > 2)"}, "not-set", "no block beside store always sets t before"),
        ({"first": "t[0] + 1"}, "not-set", "no block beside store always sets t before"),
        ({"last": "t[0] = t[0] * 2"}, "other-type", "store stores to t, which is no other buffer"),
        ({"between": "B[0] = A[i, j]"}, "not-structured", "a statement outside of blocks"),
        ({"between": block("leave", "if B[0] == 3:", "    return")}, "not-structured", "leaves"),
        ({"between": "if i == 3:\n    break"}, "not-structured", "outside of blocks"),
        ({"size": "7", "each": "t[k + 1] = A[i, k]"}, "several-elements",
         "block update uses another element of t"),
        ({"last": "A[i, j] = t[0] - A[i, j]"}, "element-used", "store loads it, perhaps the"),
        ({"each": "t[0] -= A[i, k + 1]"}, "element-used", "block update reads A"),
        ({"between": block("other", "A[i, 4 - j] = 2")}, "element-used", "block other writes A"),
        ({"last": "A[i, j] = t[0] + A[4, j]"}, "element-used", "block store reads A"),
        ({"steps": "A[i, j] % 2", "each": "t[0] -= B[k]"}, "element-used", "the ends of k read A"),
        ({"last": "A[i, P[j] % 6] = t[0]", "each": "t[0] -= B[k]",
          "between": block("move", "P[j] = 2")}, "moving-element", "block move writes P"),
        ({"beside": block("late", "B[i] = t[0]")}, "value-used",
         "block late may read the value of t that store stores"),
        ({"last": "A[i, j] = t[0]", "beside": block("late", "A[i, 4 - j] = t[0]")}, "element-used",
         "block late writes A"),
        ({"last": "A[i, j] = t[0]", "behind": block("late", "B[i] = t[0]")}, "value-used",
         "block late may read the value of t that store stores"),
        ({"behind": block("late", "B[i] = t[0]")}, "value-used",
         "block late may read the value of t that store stores"),
        ({"before": block("early", "B[i] = t[0]")}, "value-used", "block early may read"),
        ({"after": block("late", "B[0] = t[0]")}, "value-used", "block late may read"),
        ({"after": "B[0] = t[0]"}, "outside-blocks", "outside of any block, uses t"),
        ({"between": call("t")},
         "opaque-use", "a pointer to t is taken"),
        ({"between": call("A")},
         "opaque-use", "a pointer to A is taken"),
        ({"between": block("part", "V = T.match_buffer(A[i, 0:6], (6,))", "B[j] = V[j]")},
         "opaque-use", "A has a view or is a view"),
        ({"view": 'A_1 = T.decl_buffer((36,), "int32", data=A.data)',
          "each": "t[0] -= A_1[i * 6 + k]"}, "opaque-use", "A has a view or is a view"),
    ],
)  # fmt: skip
def test_refusals(parts, reason, message):
    sch = solve(**parts)
    check_refused(sch, lambda: sch.keep_in_result("store", "t"), reason, message)


def test_what_is_no_temporary_buffer():
    sch = solve(last="A[i, j] = t[0] + B[i]")
    message = "B is a parameter or view"
    check_refused(sch, lambda: sch.keep_in_result("store", "B"), "not-allocated", message)


NESTED = """
@T.prim_func
def main(A: T.Buffer((4, 2), "int32"), B: T.Buffer((4,), "int32")):
    t = T.alloc_buffer((1,), "int32")
    for i in range(4):
        with T.block("outer"):
            vi = T.axis.spatial(4, i)
            t[0] = A[vi, 0]
        for j in range(2):
            with T.block("sums"):
                vi, vj = T.axis.remap("SS", [i, j])
                with T.block("inner"):
                    t[0] = t[0] + A[vi, vj]
                with T.block("part"):
                    B[vi] = t[0]
        with T.block("store"):
            B[i] = t[0]
"""


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [
        ("store", "not-leaf", "sums is no leaf: block inner stands inside it"),
        ("part", "not-allocated", "t is not allocated by the block around part"),
    ],
)
def test_blocks_inside_of_blocks(name, reason, message):
    sch = Schedule(parse(NESTED))
    check_refused(sch, lambda: sch.keep_in_result(name, "t"), reason, message)


def test_iterations_that_store_the_same_value_do_not_share_an_element():
    sch = Schedule(
        parse("""
@T.prim_func
def main(A: T.Buffer((6,), "int32"), B: T.Buffer((2,), "int32")):
    t = T.alloc_buffer((1,), "int32")
    for i in T.parallel(6):
        with T.block("set"):
            t[0] = A[0]
        with T.block("update"):
            t[0] = t[0] * 2
        with T.block("store"):
            B[0] = t[0]
""")
    )
    message = "different iterations of loop i may touch the same element of B"
    check_refused(sch, lambda: sch.keep_in_result("store", "t"), "carried-dependence", message)


@pytest.mark.parametrize("updates", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_blocks_behind_read_the_value_in_the_result(updates, again):
    """A multiplier of an elimination: stored, then used along the row; a later value is another."""
    row = "for l in range(j + 1, 6):\n" + textwrap.indent(
        block("row", "A[i, l] -= t[0] * A[j, l]"), "    "
    )
    other = block("other", "t[0] = B[i]") + "\n" + block("use", "B[i] = t[0] * 2")
    steps = {} if updates else {"steps": "0"}
    sch = solve(last="A[i, j] = t[0]", beside=f"{row}\n{other}" if again else row, **steps)
    before = sch.func
    sch.keep_in_result("store", "t")
    assert all(r.buffer.name != "t" for r in sch.get(sch.get_block("row")).reads)
    assert ("t = T.alloc_buffer" in sch.script()) == again
    check_transform(before, sch)
