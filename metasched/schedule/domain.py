"""Domains: the set of decisions that a sampling step may take, as plain data.

A domain is a dictionary of JSON values with a "kind". A row of `DOMAINS` holds the operations of a
kind: draw a decision, test a decision, repair a decision that is not allowed, list all decisions,
convert a decision to the values that the step returns, and list the nearest other decisions.
Mutators, constraints and replay work on domains alone, without knowledge of primitives (idea:
Hypothesis' choice sequence). A plug-in enters a kind of its own by `DOMAINS.register`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from typing import Any, TypeAlias

from metasched.registry import Registry
from metasched.schedule.rng import Rng

Domain: TypeAlias = "dict[str, Any]"
Decision: TypeAlias = "list[int] | int"


@dataclass(frozen=True, slots=True)
class DomainKind:
    """A kind of domain: its fields and operations.

    Attributes:
        fields: names of integers (`n`) and, with a star, of lists of numbers (`sizes*`).
        draw: a random decision.
        allows: whether the domain allows a decision.
        repair: the allowed decision that replaces an impossible decision; deterministic.
        enumerate: all decisions.
        values: the integers that the sampling step returns for a decision.
        near: the other decisions, only the nearest ones if the domain has an order; some may be
            outside of the domain. Steps from one to the next reach every decision.
        tiling: whether decisions are factors of a size, which mutators move between parts.
    """

    fields: str
    draw: Callable[[Domain, Rng], Decision]
    allows: Callable[[Domain, Any], bool]
    repair: Callable[[Domain, Any], Decision]
    enumerate: Callable[[Domain], Iterator[Decision]]
    values: Callable[[Domain, Any], list[int]]
    near: Callable[[Domain, Any], Iterator[Decision]]
    tiling: bool = False


def sound(domain: Domain) -> bool:
    """Whether data from a file are a domain: a known kind with all fields of this kind."""
    kind = domain.get("kind")
    if not isinstance(kind, str) or kind not in DOMAINS:
        return False
    for name in DOMAINS.get(kind).fields.split():
        value = domain.get(name.rstrip("*"))
        if name.endswith("*") and isinstance(value, list) and value:
            if all(isinstance(v, (int, float)) for v in value):
                continue
        elif not name.endswith("*") and _is_int(value):
            continue
        return False
    return True


def draw(domain: Domain, rng: Rng) -> Decision:
    """A random decision."""
    return DOMAINS.get(domain["kind"]).draw(domain, rng)


def allows(domain: Domain, decision: Any) -> bool:
    """Whether the domain allows `decision`."""
    return DOMAINS.get(domain["kind"]).allows(domain, decision)


def repair(domain: Domain, decision: Any) -> Decision:
    """The allowed decision that replaces an impossible decision; deterministic."""
    return DOMAINS.get(domain["kind"]).repair(domain, decision)


def enumerated(domain: Domain, limit: int) -> list[Decision] | None:
    """All decisions, or None when there are more than `limit`."""
    found = list(islice(DOMAINS.get(domain["kind"]).enumerate(domain), limit + 1))
    return found if len(found) <= limit else None


def values(domain: Domain, decision: Any) -> list[int]:
    """The integers that the sampling step returns for `decision`."""
    return DOMAINS.get(domain["kind"]).values(domain, decision)


def near(domain: Domain, decision: Any) -> Iterator[Decision]:
    """The decisions one small step away, some perhaps outside of the domain."""
    return DOMAINS.get(domain["kind"]).near(domain, decision)


def is_tiling(domain: Domain) -> bool:
    """Whether the decisions are factors of a size."""
    return DOMAINS.get(domain["kind"]).tiling


@functools.lru_cache(maxsize=4096)
def factorize(n: int) -> tuple[tuple[int, int], ...]:
    """Prime factors of n with their exponents, ascending."""
    out, p = [], 2
    while p * p <= n:
        e = 0
        while n % p == 0:
            n //= p
            e += 1
        if e:
            out.append((p, e))
        p += 1 if p == 2 else 2
    if n > 1:
        out.append((n, 1))
    return tuple(out)


@functools.lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """All divisors of n, ascending."""
    out = [1]
    for p, e in factorize(n):
        out = [d * p**k for d in out for k in range(e + 1)]
    return tuple(sorted(out))


def _tilings(n: int, slots: int) -> int:
    """How many ways there are to write n as an ordered product of `slots` factors."""
    return math.prod(math.comb(e + slots - 1, slots - 1) for _, e in factorize(n))


def _draw_product(n: int, slots: int, rng: Rng) -> list[int]:
    """A uniformly random ordered factorisation: stars and bars for each prime."""
    tile = [1] * slots
    for p, e in factorize(n):
        bars = rng.sample(e + slots - 1, slots - 1)
        last = -1
        for slot, bar in enumerate([*bars, e + slots - 1]):
            tile[slot] *= p ** (bar - last - 1)
            last = bar
    return tile


def moved(tile: Sequence[int], source: int, goal: int, factor: int) -> list[int]:
    """The tiling with `factor` moved from part `source` to part `goal`."""
    parts = list(tile)
    parts[source] //= factor
    parts[goal] *= factor
    return parts


def _near_tiles(d: Domain, tile: Any) -> Iterator[Decision]:
    """One prime factor moves from one part to another."""
    for source, goal in permutations(range(len(tile)), 2):
        yield from (moved(tile, source, goal, prime) for prime, _ in factorize(tile[source]))


# -- perfect tile: {"kind", "extent", "n", "max_innermost"} (max_innermost 0: no limit) ------------


@functools.lru_cache(maxsize=4096)
def _innermost(extent: int, n: int, limit: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes = tuple(d for d in divisors(extent) if limit <= 0 or d <= limit)
    return sizes, tuple(_tilings(extent // d, n - 1) for d in sizes)


def _draw_tile(d: Domain, rng: Rng) -> Decision:
    if d["n"] == 1:
        return [d["extent"]]
    sizes, weights = _innermost(d["extent"], d["n"], d["max_innermost"])
    inner = sizes[rng.weighted(weights)]
    return [*_draw_product(d["extent"] // inner, d["n"] - 1, rng), inner]


def _allows_tile(d: Domain, tile: Any) -> bool:
    if not isinstance(tile, (list, tuple)) or len(tile) != d["n"]:
        return False
    if not all(isinstance(f, int) and f >= 1 for f in tile) or math.prod(tile) != d["extent"]:
        return False
    return bool(d["max_innermost"] <= 0 or d["n"] == 1 or tile[-1] <= d["max_innermost"])


def _repair_tile(d: Domain, tile: Any) -> Decision:
    """The nearest tiling.

    From the innermost, each factor becomes the largest divisor, at most the factor, of what the
    inner factors leave of the extent.
    """
    wanted = (
        [f if isinstance(f, int) and f > 0 else 1 for f in tile]
        if isinstance(tile, (list, tuple))
        else []
    )
    wanted = ([1] * d["n"] + wanted)[-d["n"] :]
    left, out = d["extent"], []
    for position in range(d["n"] - 1, 0, -1):
        cap = wanted[position]
        if position == d["n"] - 1 and d["max_innermost"] > 0:
            cap = min(cap, d["max_innermost"])
        factor = max(f for f in divisors(left) if f <= max(cap, 1))
        out.append(factor)
        left //= factor
    return [left, *reversed(out)]


def _all_products(n: int, slots: int) -> Iterator[list[int]]:
    if slots == 1:
        yield [n]
        return
    for d in divisors(n):
        for rest in _all_products(n // d, slots - 1):
            yield [d, *rest]


def _all_tiles(d: Domain) -> Iterator[Decision]:
    if d["n"] == 1:
        yield [d["extent"]]
        return
    for inner in _innermost(d["extent"], d["n"], d["max_innermost"])[0]:
        for rest in _all_products(d["extent"] // inner, d["n"] - 1):
            yield [*rest, inner]


# -- partitioned tile: {"kind", "extent", "n", "position", "inner_factor"} -------------------------
# The product of the factors from `position` on is a multiple of `inner_factor`.


def _draw_partitioned(d: Domain, rng: Rng) -> Decision:
    n, position, inner = d["n"], d["position"], d["inner_factor"]
    if position <= 0 or position >= n:
        return _draw_product(d["extent"], n, rng)
    free = d["extent"] // inner
    shares = [
        (f, _tilings(free // f, position) * _tilings(f * inner, n - position))
        for f in divisors(free)
    ]
    share = shares[rng.weighted([w for _, w in shares])][0]
    outer = _draw_product(free // share, position, rng)
    return [*outer, *_draw_product(share * inner, n - position, rng)]


def _allows_partitioned(d: Domain, tile: Any) -> bool:
    plain = {"extent": d["extent"], "n": d["n"], "max_innermost": 0}
    if not _allows_tile(plain, tile):
        return False
    return bool(math.prod(tile[d["position"] :]) % d["inner_factor"] == 0)


def _repair_partitioned(d: Domain, tile: Any) -> Decision:
    plain = {"extent": d["extent"], "n": d["n"], "max_innermost": 0}
    fixed = _repair_tile(plain, tile)
    if _allows_partitioned(d, fixed):
        return fixed
    n, position, inner = d["n"], d["position"], d["inner_factor"]
    out = [1] * n
    out[0] = d["extent"] // inner
    out[position] *= inner
    return out


def _all_partitioned(d: Domain) -> Iterator[Decision]:
    return (t for t in _all_products(d["extent"], d["n"]) if _allows_partitioned(d, t))


# -- padded tile: {"kind", "sizes", "probs", "n", "max_innermost"} ---------------------------------
# A perfect tile of one of `sizes`, an extent and numbers a little above it.


def _of_size(d: Domain, size: int) -> Domain:
    return {"extent": size, "n": d["n"], "max_innermost": d["max_innermost"]}


def _size_of(d: Domain, tile: Any) -> int:
    """The product of the tile's factors if it is one of the sizes, else the first size."""
    plain = isinstance(tile, (list, tuple)) and all(isinstance(f, int) for f in tile)
    return math.prod(tile) if plain and math.prod(tile) in d["sizes"] else d["sizes"][0]


def _draw_padded(d: Domain, rng: Rng) -> Decision:
    return _draw_tile(_of_size(d, d["sizes"][rng.weighted(d["probs"])]), rng)


def _near_padded(d: Domain, tile: Any) -> Iterator[Decision]:
    """The nearest tile of each other size; then one prime factor moves."""
    for size in d["sizes"]:
        if size != math.prod(tile):
            yield _repair_tile(_of_size(d, size), tile)
    yield from _near_tiles(d, tile)


# -- categorical: {"kind", "candidates", "probs"}; the decision is an index ------------------------


def _repair_index(d: Domain, index: Any) -> Decision:
    last = len(d["candidates"]) - 1
    return max(0, min(index, last)) if isinstance(index, int) else 0


# -- location: {"kind", "candidates"}: -2 inline, -1 root, else the position of a loop -------------


def _repair_location(d: Domain, place: Any) -> Decision:
    """The nearest smaller candidate, else root, else the first."""
    candidates: list[int] = d["candidates"]
    below = [c for c in candidates if isinstance(place, int) and c <= place]
    return max(below) if below else -1 if -1 in candidates else candidates[0]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


DOMAINS: Registry[DomainKind] = Registry("domain kind", DomainKind)

DOMAINS.register("perfect_tile", DomainKind(
    "extent n max_innermost",
    _draw_tile, _allows_tile, _repair_tile, _all_tiles,
    values=lambda d, t: list(t),
    near=_near_tiles,
    tiling=True,
))  # fmt: skip
DOMAINS.register("partitioned_tile", DomainKind(
    "extent n position inner_factor",
    _draw_partitioned, _allows_partitioned, _repair_partitioned, _all_partitioned,
    values=lambda d, t: list(t),
    near=_near_tiles,
    tiling=True,
))  # fmt: skip
DOMAINS.register("padded_tile", DomainKind(
    "sizes* probs* n max_innermost",
    _draw_padded,
    allows=lambda d, t: _allows_tile(_of_size(d, _size_of(d, t)), t),
    repair=lambda d, t: _repair_tile(_of_size(d, _size_of(d, t)), t),
    enumerate=lambda d: (t for size in d["sizes"] for t in _all_tiles(_of_size(d, size))),
    values=lambda d, t: list(t),
    near=_near_padded,
    tiling=True,
))  # fmt: skip
DOMAINS.register("categorical", DomainKind(
    "candidates* probs*",
    draw=lambda d, rng: rng.weighted(d["probs"]),
    allows=lambda d, i: _is_int(i) and 0 <= i < len(d["candidates"]),
    repair=_repair_index,
    enumerate=lambda d: (i for i, p in enumerate(d["probs"]) if p > 0),
    values=lambda d, i: [d["candidates"][i]],
    near=lambda d, own: (i for i, p in enumerate(d["probs"]) if p > 0 and i != own),
))  # fmt: skip
DOMAINS.register("location", DomainKind(
    "candidates*",
    draw=lambda d, rng: rng.choice(d["candidates"]),
    allows=lambda d, p: _is_int(p) and p in d["candidates"],
    repair=_repair_location,
    enumerate=lambda d: iter(d["candidates"]),
    values=lambda d, p: [p],
    near=lambda d, own: (place for place in d["candidates"] if place != own),
))  # fmt: skip
# no choice (a symbolic extent): {"kind", "value"}
DOMAINS.register("fixed", DomainKind(
    "value*",
    draw=lambda d, rng: list(d["value"]),
    allows=lambda d, t: isinstance(t, (list, tuple)) and list(t) == list(d["value"]),
    repair=lambda d, t: list(d["value"]),
    enumerate=lambda d: iter([list(d["value"])]),
    values=lambda d, t: list(t),
    near=lambda d, own: iter(()),
))  # fmt: skip
