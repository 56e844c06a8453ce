"""Loops over time whose values grow, compared so closely that no wrong step looks like rounding.

All programs are linear: sums of elements with factors. So the error of a result is at most
(1 + u)^k - 1 times the result of the same program with the sizes of all factors and elements, where
u is the rounding error of the type and k the number of roundings on the longest path to a result
(Higham, Accuracy and Stability, 3.1), in any order of the sums, fused or not. The reference is
computed in float64. Programs with whole factors and elements, whose sizes stay exact, must agree
in each bit.

    python -m tests.space.growing_loops --cases 500
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import teams
from space.fuzz import (
    TARGETS,
    Broken,
    Case,
    Tally,
    autoscheduled,
    built,
    by_default,
    candidates,
    check_texts,
    report,
)
from space.random_kinds import Draw, Text

from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.schedule.schedule import Schedule
from metasched.script import parse

REALS = ("0.3", "1.7", "-2.3", "0.9", "3.1", "-0.7", "5.0", "1.0")
WHOLE = ("1.0", "2.0", "-1.0", "3.0", "-2.0")
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}


@dataclass
class Update:
    """`target = factor * place + ...` in one sweep over the grid, under a condition."""

    target: str
    terms: list[tuple[str, str]]
    condition: str = ""

    def text(self, dtype: str, sizes: bool) -> str:
        terms = (f"T.{dtype}({f.lstrip('-') if sizes else f}) * {place}" for f, place in self.terms)
        return f"{self.target} = {' + '.join(terms)}"


@dataclass
class Growing:
    """A program in the making.

    Attributes:
        shape: the extents of the grid.
        times: the iterations over time.
        arrays: the shape of each parameter.
        sweeps: the updates of one iteration over time.
        chained: whether an element of a sweep may need one before it in the same sweep.
    """

    d: Draw
    shape: tuple[int, ...]
    times: int
    whole: bool
    arrays: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sweeps: list[Update] = field(default_factory=list)
    chained: bool = False
    border: str = ""

    def point(self, shift: tuple[int, ...]) -> str:
        """The indices of a neighbour, inside of the grid."""
        found = []
        for axis, by, size in zip("ij", shift, self.shape, strict=False):
            at = f"{axis} + {by}" if by >= 0 else f"{axis} - {-by}"
            if self.border == "wrapped":
                at = f"({at}) % {size}"
            elif self.border == "clamped":
                at = f"T.min(T.max({at}, 0), {size - 1})"
            found.append(at)
        return ", ".join(found)

    def star(self, *sources: str) -> list[tuple[str, str]]:
        """Terms over neighbours; `sources` end with an open bracket."""
        rng, factors = self.d.rng, WHOLE if self.whole else REALS
        shifts = [(0,) * len(self.shape)]
        shifts += [tuple(rng.randint(-1, 1) for _ in self.shape) for _ in range(rng.randint(1, 4))]
        return [(rng.choice(factors), f"{rng.choice(sources)}{self.point(s)}]") for s in shifts]

    def draw(self) -> None:
        d, here = self.d, ", ".join("ij"[: len(self.shape)])
        self.border = d.pick("inner", "inner", "wrapped", "clamped")
        form = d.rng.randrange(5)
        names = {0: "AB", 1: "A", 2: "U", 3: "ABE", 4: "U"}[form]
        planes = {2: (2,), 4: (self.times + 2,)}.get(form, ())
        self.arrays = dict.fromkeys(names, (*planes, *self.shape))
        if form == 0:
            self.sweeps = [Update(f"B[{here}]", self.star("A[")),
                           Update(f"A[{here}]", self.star("B["))]  # fmt: skip
        elif form == 1:
            self.sweeps, self.chained = [Update(f"A[{here}]", self.star("A["))], True
        elif form == 2:
            self.sweeps = [Update(f"U[(t + 1) % 2, {here}]", self.star("U[t % 2, "))]
        elif form == 3:
            self.sweeps = [Update(f"{a}[{here}]", [("1.0", f"{a}[{here}]"), *self.star(f"{b}[")])
                           for a, b in ("EB", "AE", "BA")]  # fmt: skip
        else:
            before = ("U[t + 1, ", "U[t + 1, ", "U[t, ")
            self.sweeps = [Update(f"U[t + 2, {here}]", self.star(*before))]
        if d.often(0.3):
            self.arrays["F"] = self.shape
            self.sweeps[0].terms.append((d.pick(*WHOLE), f"F[{here}]"))
        if d.often(0.2):
            self.chained = True
            last = self.sweeps[-1]
            last.condition = d.pick("i % 2 == 0", "i % 2 == 1", "i > 1", "t % 2 == 0")

    def text(self, dtype: str, sizes: bool) -> str:
        """The program, or that of the sizes of all factors."""
        t = Text.of(dtype, **self.arrays)
        t.add(1, f"for t in range({self.times}):")
        inner = self.border == "inner"
        for update in self.sweeps:
            depth = 2
            for axis, size in zip("ij", self.shape, strict=False):
                t.add(depth, f"for {axis} in range({f'1, {size - 1}' if inner else size}):")
                depth += 1
            if update.condition:
                t.add(depth, f"if {update.condition}:")
                depth += 1
            t.add(depth, update.text(dtype, sizes))
        return str(t)

    def roundings(self) -> int:
        """At most so many lie on a path from an argument to a result."""
        chain = int(np.prod(self.shape)) if self.chained else 1
        return self.times * chain * sum(len(s.terms) + 1 for s in self.sweeps)


def drawn(number: int, most: int = 33) -> tuple[Growing, str]:
    """Program n and its type."""
    rng = random.Random(number)
    d = Draw(rng, most)
    shape = (d.size(3),) if d.often(0.5) else (d.size(3, 19), d.size(3))
    p = Growing(d, shape, rng.randint(1, 9), d.often(0.4))
    p.draw()
    return p, d.pick("float32", "float32", "float64")


def results(p: Growing, dtype: str, sizes: bool, given: list[Any]) -> list[Any]:
    """What the interpreter computes of a program of a type."""
    func = parse(p.text(dtype, sizes))
    after = [np.abs(a) if sizes else a.copy() for a in given]
    run(func, *after)
    return after


def limits(p: Growing, dtype: str, given: list[Any]) -> tuple[list[Any], list[Any]]:
    """The expected results in float64, and what may differ of each element."""
    wide = [a.astype(np.float64) for a in given]
    expected, sizes = results(p, "float64", False, wide), results(p, "float64", True, wide)
    unit = UNIT[dtype]
    if p.whole and max(s.max() for s in sizes) * 2 * unit < 1:
        return expected, [np.zeros_like(s) for s in sizes]
    both = 2 if dtype == "float64" else 1  # the reference is rounded as often
    factor = np.expm1(p.roundings() * np.log1p(unit)) * both
    return expected, [factor * s + s.max() * 2.0**-48 for s in sizes]


def check(
    sch: Schedule, case: Case, given: list[Any], expected: list[Any], most: list[Any]
) -> None:
    """Compile a program and run it; raises Broken where a result is further away than it may be."""
    kernel = built(case, sch)
    for _ in range(teams.RUNS):
        got = [a.copy() for a in given]
        kernel(*got)
        _compare(sch, got, expected, most)


def _compare(sch: Schedule, got: list[Any], expected: list[Any], most: list[Any]) -> None:
    for array, want, limit in zip(got, expected, most, strict=True):
        off = np.abs(array.astype(np.float64) - want)
        if not (off <= limit).all():
            place = np.unravel_index(np.nanargmax(np.where(off <= limit, 0, off)), off.shape)
            raise Broken("growth", f"{array[place]!r} at {place}, expected {want[place]!r} within "
                         f"{limit[place]:.3g}; {(~(off <= limit)).sum()} differ", sch)  # fmt: skip


def play(number: int, tally: Tally, count: int = 2, most: int = 33) -> bool:
    """Check one program, as written and by schedules; whether it was compared in each bit."""
    p, dtype = drawn(number, most)
    func = parse(p.text(dtype, False))
    assert isinstance(func, PrimFunc)
    rng = np.random.default_rng(number)
    given = [rng.integers(-4, 5, s).astype(dtype) for s in p.arrays.values()]
    if not p.whole:
        given = [(a + rng.standard_normal(a.shape)).astype(dtype) for a in given]
    expected, limit = limits(p, dtype, given)
    case = Case(number, "time_loops", (number, 1), random.Random(number).choice(list(TARGETS)))
    for how in (Schedule, lambda f: by_default(case, f), lambda f: autoscheduled(case, f)):
        check(how(func), case, given, expected, limit)
    for sch in candidates(case, func, tally, count):
        check_texts(func, sch)
        check(sch, case, given, expected, limit)
        tally.ran["growing"] += 1
    return not any(m.any() for m in limit)


def main() -> int:
    """Play cases; print those that fail."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    teams.add_options(parser)
    options = parser.parse_args()
    teams.use(options)
    tally, failed, exact = Tally(), 0, 0
    warnings.simplefilter("ignore")
    for number in range(options.start, options.start + options.cases):
        try:
            exact += play(number, tally)
        except Exception as error:  # a fuzz reports any exception
            failed += 1
            case = Case(number, "time_loops", (number, 1), "")
            text = report(case, error) if isinstance(error, Broken) else repr(error)
            p, dtype = drawn(number)
            print(f"{'=' * 80}\ncase {number}\n{p.text(dtype, False)}\n{text}", flush=True)
    print(f"{options.cases} cases, {exact} bit by bit, {tally.ran.total()} candidates ran, "
          f"{failed} failures")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
