"""The rules of a well-formed program: each rule is broken once; random programs break none."""

import random
import re
import sys

import pytest
from hypothesis import given, settings
from strategies import funcs, function, random_func, stage

from metasched.errors import VerifyError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.expr import TRUE, Var, as_expr
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    Break,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    IterVar,
    LetStmt,
    MatchBufferRegion,
    Return,
    SeqStmt,
    evolve,
    seq,
)
from metasched.ir.verify import RULES, verify
from metasched.ir.visit import fresh_copy

A, B = Buffer.of("A", (8,)), Buffer.of("B", (8,))
i, j, v, n = Var("i"), Var("j"), Var("v"), Var("n")
ZERO, NOTHING = as_expr(0), Evaluate(as_expr(0))
LONG = as_expr(4, "int64")


def root(body, *params, **kw):
    whole = BlockRealize.plain(Block("root", (), (), (), body, **kw))
    return PrimFunc(params or (A, B), whole)


def copy_block(**changes):
    """B[v] = A[v] as a block of its own, with parts changed."""
    block = Block(
        "copy", (IterVar(v, Range.of(0, 8)),), (BufferRegion.point(A, [v]),),
        (BufferRegion.point(B, [v]),), BufferStore(B, A[v], (v,)),
    )  # fmt: skip
    return evolve(block, **changes)


def chain(length):
    """Variables, each inside of the one before."""
    body = NOTHING
    for n in range(length):
        body = LetStmt(Var(f"x{n}"), ZERO, body)
    return body


def over(block, binding=i, predicate=TRUE):
    values = (binding,) if binding is not None else ()
    return For.serial(i, 8, BlockRealize(values, predicate, block))


def store(buffer=B, value=None, index=ZERO):
    return BufferStore(buffer, as_expr(0.0) if value is None else value, (index,))


def vector_loop(**changes):
    return root(evolve(For.serial(i, 8, store(index=i)), **changes))


def two_blocks_one_token():
    first = copy_block()
    second = fresh_copy(over(first))
    again = evolve(second.body.block, token=first.token)
    return root(seq([over(first), evolve(second, body=evolve(second.body, block=again))]))


def sum_block(**changes):
    out = Buffer.of("S", (1,))
    total = Block(
        "sum", (IterVar(v, Range.of(0, 8), IterKind.REDUCE),), (BufferRegion.point(A, [v]),),
        (BufferRegion.point(out, [ZERO]),), store(out, out[0] + A[v]), store(out),
    )  # fmt: skip
    return root(over(evolve(total, **changes)), A, B, out)


BROKEN = {
    "unique-variable": lambda: root(For.serial(i, 8, For.serial(i, 8, NOTHING))),
    "unique-token": two_blocks_one_token,
    "parameters": lambda: root(NOTHING, A, A),
    "layout-free": lambda: root(NOTHING, A, B).with_attr("layout_free_buffers", [2]),
    "root-block": lambda: PrimFunc((A, B), BlockRealize((ZERO,), TRUE, copy_block())),
    "undefined-variable": lambda: root(store(index=j)),
    "undefined-buffer": lambda: root(store(Buffer.of("X", (8,)))),
    "loop-variable-in-block": lambda: root(over(copy_block(body=BufferStore(B, A[i], (v,))))),
    "bindings": lambda: root(over(copy_block(), binding=None)),
    "iterator-domain": lambda: root(over(copy_block(iter_vars=(IterVar(v, Range.of(0, LONG)),)))),
    "predicate": lambda: root(over(copy_block(), predicate=i)),
    "region-rank": lambda: root(over(copy_block(reads=(BufferRegion(A, ()),)))),
    "match-buffer": lambda: root(
        over(
            copy_block(match_buffers=(MatchBufferRegion(Buffer.of("M", (8,), "int32"), A.whole()),))
        )
    ),
    "init": lambda: sum_block(init=store(B)),
    "loop-type": lambda: vector_loop(extent=LONG),
    "loop-step": lambda: vector_loop(step=as_expr(-1)),
    "counting-loop": lambda: vector_loop(step=as_expr(2)),
    "loop-kind": lambda: root(
        evolve(For.serial(i, n, store(index=i)), kind=ForKind.VECTORIZED), A, B, n
    ),
    "thread-tag": lambda: vector_loop(kind=ForKind.THREAD_BINDING, thread="lane.x"),
    "store-type": lambda: root(store(value=ZERO)),
    "let-type": lambda: root(LetStmt(j, as_expr(1.0), NOTHING)),
    "sequence": lambda: root(SeqStmt((NOTHING,))),
    "leave-loop": lambda: root(Break()),
    "return": lambda: root(Return(ZERO)),
    "storage-scope": lambda: root(NOTHING, alloc_buffers=(Buffer.of("X", (1,), scope="moon"),)),
    "declared-reads": lambda: root(over(copy_block(reads=()))),
    "declared-writes": lambda: root(over(copy_block(writes=()))),
    "inside-regions": lambda: root(over(copy_block(body=BufferStore(B, A[v + 1], (v,))))),
    "nested-deep": lambda: root(chain(sys.getrecursionlimit() // 4)),
}


@pytest.mark.parametrize("slug", [r.slug for r in RULES])
def test_each_rule_is_enforced(slug):
    with pytest.raises(VerifyError) as caught:
        verify(BROKEN[slug](), closed=True)
    error = caught.value
    assert error.rule == slug, str(error)
    sentence = next(r.sentence for r in RULES if r.slug == slug)
    assert sentence in str(error) and "\n  > " in str(error)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: root(store(index=j)), "variable j is not in scope"),
        (BROKEN["loop-variable-in-block"], "i is a loop variable outside block copy"),
        (BROKEN["bindings"], "block copy has 1 iterators and 0 bindings"),
        (BROKEN["store-type"], "B is float32, the stored value int32"),
        (lambda: root(store(value=BufferLoad(A, [j]))), "variable j is not in scope"),
        (lambda: root(over(copy_block(), binding=i.astype("int64"))), "its binding int64"),
        (BROKEN["declared-reads"], "block copy loads A without declaring it"),
        (BROKEN["inside-regions"], re.escape("A[v + 1] is outside the declared region A[v]")),
        (
            lambda: root(seq([Allocate(Buffer.of("X", (n,)), NOTHING), NOTHING])),
            "variable n is not in scope",
        ),
        (
            lambda: root(evolve(For.serial(i, 4, Break()), kind=ForKind.PARALLEL)),
            "break has no loop to act on",
        ),
        (lambda: root(IfThenElse(i < 3, NOTHING)), "variable i is not in scope"),
        (
            BROKEN["nested-deep"],
            "more than [0-9]+ statements nest, each variable that is set once with what follows; "
            "keep values in a buffer",
        ),
    ],
)
def test_messages(build, message):
    with pytest.raises(VerifyError, match=message):
        verify(build(), closed=True)


def test_the_message_shows_the_statements_around():
    with pytest.raises(VerifyError) as caught:
        verify(BROKEN["loop-variable-in-block"](), closed=True)
    assert "block copy(v=i)" in str(caught.value)
    assert "  > " in str(caught.value) and "B[v] = A[i]" in str(caught.value)


@pytest.mark.parametrize(
    "slug", ["loop-variable-in-block", "declared-reads", "declared-writes", "counting-loop"]
)
def test_a_program_as_written_need_not_be_closed(slug):
    verify(BROKEN[slug]())


def test_a_buffer_of_a_block_has_no_shape_of_loop_variables():
    with pytest.raises(VerifyError, match="i is a loop variable outside block copy"):
        verify(root(over(copy_block(alloc_buffers=(Buffer.of("T", (i,)),)))))


def test_well_formed_programs():
    verify(root(over(copy_block())))
    verify(sum_block())
    verify(IRModule.of({"a": root(over(copy_block())), "b": root(over(copy_block()))}))
    flat = Buffer.of("F", (4,))
    inside = Allocate(flat, DeclBuffer(Buffer.of("G", (2, 2)), flat, store(flat)))
    verify(PrimFunc((), inside))
    shape = Buffer.of("N", (n,))
    verify(root(For.serial(i, n, store(shape, index=i)), shape))
    whole = copy_block(reads=(A.whole(),), body=BufferStore(B, A[7 - v], (v,)))
    verify(root(over(whole)))


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        ([0, 5], "there is no parameter 5, the function has 3"),
        ([-1], "there is no parameter -1"),
        (["A"], "layout_free_buffers is ['A'], not a list of integers"),
        (1, "layout_free_buffers is 1, not a list"),
        ([2], "parameter n is no buffer"),
        ([0, 0], "parameter A is listed twice"),
        ([1], "B is marked as constant and written"),
    ],
)
def test_constant_weights_are_buffers_that_are_only_read(marked, message):
    func = root(over(copy_block()), A, B, n)
    verify(func.with_attr("layout_free_buffers", [0]))
    with pytest.raises(VerifyError, match=re.escape(message)) as caught:
        verify(func.with_attr("layout_free_buffers", marked))
    assert caught.value.rule == "layout-free"


def test_matches_define_their_layout():
    s = Var("s")
    m = Buffer.of("M", (8,), strides=[s])
    block = copy_block(
        match_buffers=(MatchBufferRegion(m, A.whole()),), reads=(A.whole(),),
        body=BufferStore(B, m[v] + s.astype("float32"), (v,)),
    )  # fmt: skip
    verify(root(over(block)))


def test_guarded_accesses_may_leave_the_region():
    """Accesses under a condition are not checked."""
    guarded = IfThenElse(v < 7, BufferStore(B, A[v + 1], (v,)))
    verify(root(over(copy_block(body=guarded))))


@given(funcs())
@settings(max_examples=60, deadline=None)
def test_random_programs_are_well_formed(func):
    verify(func)


def test_a_window_inside_its_declared_region_is_accepted():
    out, r = Buffer.of("O", (6,)), Var("r")
    box = BufferRegion(A, (Range.of(v, 3),))
    body = For.serial(r, 3, BufferStore(out, A[v + r], (v,)))
    good = Block("w", (IterVar(v, Range.of(0, 6)),), (box,), (BufferRegion.point(out, [v]),), body)
    verify(root(For.serial(i, 6, BlockRealize((i,), TRUE, good)), A, out))
    small = evolve(good, reads=(BufferRegion(A, (Range.of(v, 2),)),))
    with pytest.raises(VerifyError, match="outside the declared region") as caught:
        verify(root(For.serial(i, 6, BlockRealize((i,), TRUE, small)), A, out))
    assert caught.value.rule == "inside-regions"


def test_generated_stages_and_programs_are_well_formed():
    out = Buffer.of("T", (8,))
    copy = stage("s", [("i", 8, "S")], out, lambda i: (i,), lambda i: A[i])
    verify(function([A, out], [copy], []))
    for seed in range(40):
        verify(random_func(random.Random(seed)))
