"""Sampling: random choices that are recorded with their domain, and constraints on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metasched.errors import brief
from metasched.ir.expr import Expr, as_int
from metasched.schedule import domain as domains
from metasched.schedule.handles import ExprRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.numbers import number_of
from metasched.schedule.state import State

MOST = 64  # the most factors of a tile


def decide(state: State, domain: domains.Domain, decision: Any) -> Any:
    """The decision of a sampling step: the given one if `domain` allows it, a fresh draw for None.

    `state.mode` says what happens to a given decision that is not allowed. It is refused live and
    in a stored replay, repaired by rule in search, and drawn again in a redraw.
    """
    if decision is None:
        if state.mode in ("stored", "repair"):
            raise state.error("no-decision", "the trace holds no decision for this step")
        taken: Any = domains.draw(domain, state.rng)
    elif domains.allows(domain, decision):
        taken = list(decision) if isinstance(decision, (list, tuple)) else decision
    elif state.mode == "repair":
        state.repairs += 1
        taken = domains.repair(domain, decision)
    elif state.mode == "keep":
        taken = domains.draw(domain, state.rng)
    else:
        raise state.error(
            "decision-not-allowed",
            f"the decision {brief(decision)} is not in the domain {brief(domain)}",
            hint='replay with decisions="repair" or "fresh", or correct the decision',
        )
    state.drawn = (taken, domain)
    return taken


@primitive()
def sample_categorical(
    state: State, candidates: Sequence[int], probs: Sequence[float], decision: int | None = None
) -> ExprRV:
    """Draw one of `candidates` with the given probabilities; the decision is its index.

    requires  as many probabilities as candidates, none negative, a positive sum
    """
    values, weights = [int(c) for c in candidates], [float(p) for p in probs]
    if not values or len(values) != len(weights):
        raise state.error(
            "bad-candidates", f"{len(values)} candidates, {len(weights)} probabilities"
        )
    if min(weights) < 0 or sum(weights) <= 0:
        raise state.error("bad-probabilities", f"probabilities {weights} are not a distribution")
    domain = {"kind": "categorical", "candidates": values, "probs": weights}
    return state.new_value(values[decide(state, domain, decision)])


@primitive()
def sample_perfect_tile(
    state: State,
    loop: LoopRV,
    n: int,
    max_innermost_factor: int = 16,
    decision: list[int] | None = None,
) -> list[ExprRV]:
    """Draw `n` factors whose product is the loop's extent, uniformly over all such tilings.

    The last factor is at most `max_innermost_factor` (-1: no limit). A symbolic extent counts as
    its representative size (the attribute `metasched.sizes`). Without a size it leaves no choice:
    the first factor is -1, which `split` infers, and the others are 1.

    requires  1 <= n <= 64; a limit that is positive or -1, unless n is 1
    """
    extent = state.size(state.loop(loop).extent)
    if not 1 <= n <= MOST or (max_innermost_factor < 1 and max_innermost_factor != -1):
        raise state.error("bad-tile", f"n={n}, max_innermost_factor={max_innermost_factor}")
    if extent is None or extent < 1:
        domain: domains.Domain = {"kind": "fixed", "value": [-1] + [1] * (n - 1)}
    else:
        limit = max(0, max_innermost_factor)
        domain = {"kind": "perfect_tile", "extent": extent, "n": n, "max_innermost": limit}
    return [state.new_value(f) for f in decide(state, domain, decision)]


@primitive()
def sample_padded_tile(
    state: State,
    loop: LoopRV,
    n: int,
    max_innermost_factor: int,
    sizes: Sequence[int],
    probs: Sequence[float],
    decision: list[int] | None = None,
) -> list[ExprRV]:
    """Draw one of `sizes`, then `n` factors whose product is this size.

    The sizes are the loop's extent and larger numbers for `overcompute`. So a prime extent gets
    tiles other than 1 and itself. A loop without iterations leaves no choice.

    requires  1 <= n <= 64; a limit that is positive or -1; as many probabilities as sizes, none
              negative, a positive sum; no size below the extent, which is constant or has a
              representative size (the attribute `metasched.sizes`)
    """
    extent = state.size(state.loop(loop).extent)
    given, weights = [int(s) for s in sizes], [float(p) for p in probs]
    if not 1 <= n <= MOST or (max_innermost_factor < 1 and max_innermost_factor != -1):
        raise state.error("bad-tile", f"n={n}, max_innermost_factor={max_innermost_factor}")
    if not given or len(given) != len(weights) or min(weights) < 0 or sum(weights) <= 0:
        raise state.error("bad-probabilities", f"sizes {given} with probabilities {weights}")
    if extent is None or min(given) < extent:
        raise state.error("bad-size", f"{given} are not all at least the extent {extent}")
    if extent < 1:
        domain: domains.Domain = {"kind": "fixed", "value": [-1] + [1] * (n - 1)}
    else:
        limit = max(0, max_innermost_factor)
        domain = {
            "kind": "padded_tile", "sizes": given, "probs": weights, "n": n, "max_innermost": limit
        }  # fmt: skip
    return [state.new_value(f) for f in decide(state, domain, decision)]


@primitive()
def sample_partitioned_tile(
    state: State,
    loop: LoopRV,
    n: int,
    partition_pos: int = 0,
    innerpart_factor: int = 1,
    decision: list[int] | None = None,
) -> list[ExprRV]:
    """Draw `n` factors whose product is the loop's extent, with a constraint on the inner factors.

    The product of the factors from `partition_pos` on is a multiple of `innerpart_factor`. An
    extent that is no multiple of `innerpart_factor` leaves no choice.

    requires  1 <= n <= 64, 0 <= partition_pos <= n, innerpart_factor >= 1
    """
    extent = as_int(state.loop(loop).extent)
    if not 1 <= n <= MOST or not 0 <= partition_pos <= n or innerpart_factor < 1:
        raise state.error("bad-tile", f"n={n}, position {partition_pos}, factor {innerpart_factor}")
    inside = 0 < partition_pos < n
    if extent is None or extent < 1 or extent % innerpart_factor:
        domain: domains.Domain = {"kind": "fixed", "value": [-1] + [1] * (n - 1)}
    else:
        domain = {
            "kind": "partitioned_tile", "extent": extent, "n": n,
            "position": partition_pos if inside else 0,
            "inner_factor": innerpart_factor if inside else 1,
        }  # fmt: skip
    return [state.new_value(f) for f in decide(state, domain, decision)]


@primitive()
def require(state: State, condition: Expr) -> None:
    """Require that `condition`, over sampled values, holds: a constraint of the design space.

    If the condition fails while decisions are drawn, its latest sampling step is drawn again among
    the decisions that satisfy the condition. In a replay, a failing condition is refused.

    requires  the sampled values determine the condition
    """
    value = number_of(condition, state.table)
    if value is None:
        value = as_int(state.expr(condition))
    if value is None:
        raise state.error("not-a-constraint", "the condition does not reduce to true or false")
    if not value:
        raise state.error("constraint", "a required condition does not hold")


@primitive()
def enter_postproc(state: State) -> None:
    """Mark where post-processing begins; mutators change only decisions before the mark."""
