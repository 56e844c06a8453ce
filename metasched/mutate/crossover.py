"""Combine two traces: mix the decisions of one space (crossover), or move decisions from another
space (graft)."""

from __future__ import annotations

from metasched.mutate.base import ATTEMPTS, consistent
from metasched.schedule import domain as domains
from metasched.schedule.rng import Rng
from metasched.schedule.trace import Trace


def same_space(a: Trace, b: Trace) -> bool:
    """Whether two traces consist of the same steps, decisions aside."""
    return len(a) == len(b) and all(
        x.kind is y.kind and len(x.outputs) == len(y.outputs)
        for x, y in zip(a.entries, b.entries, strict=True)
    )


def crossover(a: Trace, b: Trace, rng: Rng) -> Trace | None:
    """A mixture of two traces of one space that keeps every constraint.

    Each decision comes from one parent, by a fair coin. None when the parents are of different
    spaces, or when every mixture tried equals a parent.
    """
    a, b = a.before_postproc(), b.before_postproc()
    if not same_space(a, b):
        return None
    differing = [
        i
        for i, entry in a.sampling()
        if entry.decision != b.entries[i].decision
        and domains.allows(entry.domain, b.entries[i].decision)
    ]
    if len(differing) < 2:
        return None
    for _ in range(ATTEMPTS):
        taken = [i for i in differing if rng.random() < 0.5]
        if not 0 < len(taken) < len(differing):
            continue
        child = a
        for position in taken:
            child = child.with_decision(position, b.entries[position].decision)
        if consistent(child):
            return child
    return None


def graft(a: Trace, b: Trace) -> Trace | None:
    """Put decisions of `a`, a trace of another space, into `b`.

    A step of `b` takes the decision of the next step of `a` that draws from the same domain: mostly
    a tiling of the same loop. None when the result is not new or not consistent.
    """
    child, start = b.before_postproc(), 0
    places = child.sampling()
    for _, given in a.before_postproc().sampling():
        for n, (position, entry) in enumerate(places[start:], start):
            if entry.kind is given.kind and entry.domain == given.domain:
                child, start = child.with_decision(position, given.decision), n + 1
                break
    return child if child.decisions() != b.decisions() and consistent(child) else None
