"""parallel, vectorize, unroll, bind: how the iterations of a loop are executed."""

from __future__ import annotations

from functools import partial

from metasched.errors import brief
from metasched.ir.expr import Var, as_int
from metasched.ir.stmt import Break, Continue, For, ForKind, Stmt, evolve
from metasched.schedule import ways
from metasched.schedule.checks import confirm_cover, proof, refuse_jumps, require_independent
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State

THREAD_TAGS = tuple(
    f"{level}.{axis}" for level in ("blockIdx", "threadIdx", "vthread") for axis in "xyz"
)


def _set_kind(state: State, loop: For, kind: ForKind, what: str, thread: str | None = None) -> None:
    """Set the loop's kind; iterations must be independent unless the loop is unrolled."""
    if kind is not ForKind.UNROLLED:
        _require_independent(state, loop, kind, what, thread)
    state.relabel(loop, partial(_of_kind, kind, thread))
    if loop.kind is ForKind.THREAD_BINDING:
        _confirm_unshared(state, loop.var)


@proof
def _confirm_unshared(state: State, var: Var) -> None:
    """Refuse a loop that was bound to threads and reads what other iterations write."""
    loop = state.index.loops[var]
    confirm_cover(state, *[c.token for c in state.scope(loop).under(loop)])


def _require_independent(
    state: State, loop: For, kind: ForKind, what: str, thread: str | None
) -> None:
    require_independent(
        state,
        loop,
        kind,
        thread,
        f"only loops whose iterations are independent can be {what}; split a reduction with "
        "rfactor, or choose a spatial loop",
    )


def _of_kind(kind: ForKind, thread: str | None, node: Stmt) -> For:
    assert isinstance(node, For)
    return evolve(node, kind=kind, thread=thread)


@primitive(of_loop=ways.plain())
def parallel(state: State, loop: LoopRV) -> None:
    """Execute the iterations of `loop` on several threads.

    The step replaces the kind that the loop has.

    requires  no iteration depends on another
    rewrite   for i in range(128): S(i)
              ->
              for i in T.parallel(128): S(i)
    """
    node = state.labelled(loop)
    assert isinstance(node, For)
    if node.kind is not ForKind.PARALLEL:
        _set_kind(state, node, ForKind.PARALLEL, "parallel")


@primitive(of_loop=ways.plain())
def vectorize(state: State, loop: LoopRV) -> None:
    """Execute the iterations of `loop` as lanes of vector operations.

    The step replaces the kind that the loop has.

    requires  the loop is of constant extent; no iteration depends on another, or the body is one
              store, which may read what later iterations write
    rewrite   for i in range(16): S(i)
              ->
              for i in T.vectorized(16): S(i)
    """
    node = state.labelled(loop)
    assert isinstance(node, For)
    if node.kind is ForKind.VECTORIZED:
        return
    if as_int(node.extent) is None:
        raise state.error(
            "symbolic-extent", f"the extent of {node.var.name} is not a constant", node,
            hint="split the loop by a constant factor and vectorize the inner one",
        )  # fmt: skip
    _set_kind(state, node, ForKind.VECTORIZED, "vectorized")


@primitive(of_loop=ways.plain())
def unroll(state: State, loop: LoopRV) -> None:
    """Replicate the body of `loop` for each iteration in the generated code.

    The step replaces the kind that the loop has.

    requires  no break or continue that belongs to the loop; for a loop that was bound to threads,
              no iteration uses what another iteration writes
    rewrite   for i in range(4): S(i)
              ->
              for i in T.unroll(4): S(i)
    """
    node = state.labelled(loop)
    assert isinstance(node, For)
    if node.kind is not ForKind.UNROLLED:
        refuse_jumps(state, node, Break, Continue)
        _set_kind(state, node, ForKind.UNROLLED, "unrolled")


@primitive(of_loop=ways.plain("threadIdx.x"))
def bind(state: State, loop: LoopRV, thread_axis: str) -> None:
    """Execute the iterations of `loop` on the threads of a GPU axis.

    The step replaces the kind or the thread axis that the loop has.

    requires  `thread_axis` is a thread tag; iterations are independent, but for a reduction bound
              to threadIdx, which becomes a cross-thread reduction
    rewrite   for i in range(128): S(i)
              ->
              for i in T.thread_binding(128, thread="threadIdx.x"): S(i)
    """
    node = state.labelled(loop)
    assert isinstance(node, For)
    base = thread_axis.split(".")[0]
    if thread_axis not in THREAD_TAGS and base != "vthread":
        raise state.error(
            "unknown-thread-axis", f"{brief(thread_axis)} is no thread axis",
            hint=f"use one of {', '.join(THREAD_TAGS)}",
        )  # fmt: skip
    _set_kind(state, node, ForKind.THREAD_BINDING, "bound to threads", thread_axis)
