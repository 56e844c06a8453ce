"""Refuses a step that changes when foreign functions are called, or how often."""

from __future__ import annotations

from itertools import zip_longest

from metasched.analysis.foreign import foreign_calls
from metasched.ir.describe import describe
from metasched.schedule.state import Snapshot, State

_HINT = (
    "write T.call_pure_extern if the function only computes its result; a function that gets "
    "pointers is bound by T.reads and T.writes of its block alone"
)


def require_same_calls(state: State, saved: Snapshot) -> None:
    """The foreign calls happen in the same order, and as often, as before the step.

    A step that runs the instances of all blocks in the same order (`State.same_order`) may change
    where they stand: then calls of loop ends, bindings and conditions alone are compared.

    If not, the state is restored from `saved`, so that the error shows the program before the step.
    """
    for name, func in state.mod.functions.items():
        before, after = (
            [call for call in foreign_calls(body) if not (state.same_order and call.in_instance)]
            for body in (saved.mod.functions[name].body, func.body)
        )
        pairs = zip_longest((call[:2] for call in before), (call[:2] for call in after))
        changed = next((at for at, (old, new) in enumerate(pairs) if old != new), None)
        if changed is None:
            continue
        state.restore(saved)
        if changed >= len(before):
            called, around = after[changed].function, None
        else:
            called, around = before[changed].function, before[changed].around
        where = "" if around is None else f" in {describe(around)}"
        raise state.error(
            "foreign-order",
            f"the call of {called}{where} would run in another order or another number of times, "
            "and it may do more than compute its result",
            around,
            hint=_HINT,
        )
