"""parallel, vectorize, unroll, bind: how the iterations of a loop are executed."""

from __future__ import annotations

from metasched.analysis.dependence import carried_dependence
from metasched.ir.expr import as_int
from metasched.ir.stmt import For, ForKind, evolve
from metasched.schedule import edit
from metasched.schedule.checks import refuse_on, require_serial
from metasched.schedule.handles import LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State

THREAD_TAGS = tuple(
    f"{level}.{axis}" for level in ("blockIdx", "threadIdx", "vthread") for axis in "xyz"
)


def _independent(state: State, loop: For, what: str) -> None:
    """The iterations of the loop may run in any order, or together."""
    refuse_on(
        state,
        carried_dependence(loop, state.scope(loop), private=what == "parallel"),
        loop,
        hint=f"only loops whose iterations are independent can be {what}; split a reduction with "
        "rfactor, or choose a spatial loop",
    )


@primitive()
def parallel(state: State, loop: LoopRV) -> None:
    """Execute the iterations of `loop` on several threads.

    requires  the loop is serial; no iteration depends on another
    rewrite   for i in range(128): S(i)
              ->
              for i in T.parallel(128): S(i)
    """
    node = state.loop(loop)
    require_serial(state, node)
    _independent(state, node, "parallel")
    state.commit(edit.replace(node, evolve(node, kind=ForKind.PARALLEL)))


@primitive()
def vectorize(state: State, loop: LoopRV) -> None:
    """Execute the iterations of `loop` as lanes of vector operations.

    requires  the loop is serial and of constant extent; no iteration depends on another
    rewrite   for i in range(16): S(i)
              ->
              for i in T.vectorized(16): S(i)
    """
    node = state.loop(loop)
    require_serial(state, node)
    if as_int(node.extent) is None:
        raise state.error(
            "symbolic-extent", f"the extent of {node.var.name} is not a constant", node,
            hint="split the loop by a constant factor and vectorize the inner one",
        )  # fmt: skip
    _independent(state, node, "vectorized")
    state.commit(edit.replace(node, evolve(node, kind=ForKind.VECTORIZED)))


@primitive()
def unroll(state: State, loop: LoopRV) -> None:
    """Replicate the body of `loop` for each iteration when code is made.

    requires  the loop is serial (or unrolled already)
    rewrite   for i in range(4): S(i)
              ->
              for i in T.unroll(4): S(i)
    """
    node = state.loop(loop)
    if node.kind is not ForKind.UNROLLED:
        require_serial(state, node)
        state.commit(edit.replace(node, evolve(node, kind=ForKind.UNROLLED)))


@primitive()
def bind(state: State, loop: LoopRV, thread_axis: str) -> None:
    """Execute the iterations of `loop` on the threads of a GPU axis.

    requires  the loop is serial; `thread_axis` is a thread tag; iterations are independent, but
              for a reduction bound to threadIdx, which becomes a cross-thread reduction
    rewrite   for i in range(128): S(i)
              ->
              for i in T.thread_binding(128, thread="threadIdx.x"): S(i)
    """
    node = state.loop(loop)
    require_serial(state, node)
    base = thread_axis.split(".")[0]
    if thread_axis not in THREAD_TAGS and base != "vthread":
        raise state.error(
            "unknown-thread-axis", f"{thread_axis!r} is no thread axis",
            hint=f"use one of {', '.join(THREAD_TAGS)}",
        )  # fmt: skip
    reduction = base == "threadIdx"
    failure = carried_dependence(
        node, state.scope(node), thread=thread_axis, allow_reduction=reduction
    )
    refuse_on(state, failure, node, hint="only independent iterations can run on threads")
    bound = evolve(node, kind=ForKind.THREAD_BINDING, thread=thread_axis)
    state.commit(edit.replace(node, bound))
