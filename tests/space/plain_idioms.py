"""Random programs in plain loops as users write them: idioms over shared arrays, no blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from space.random_kinds import Draw, Text

TYPES = ("float32", "float32", "float64", "int32", "int32", "int64", "int16", "int8", "uint8",
         "float16", "bfloat16", "uint16", "uint32")  # fmt: skip


@dataclass
class Program:
    """A program in the making: matrices M.., vectors V.. of one size, and indices P.

    Attributes:
        n: the extent of all dimensions.
        types: the type of each array.
        depth: the depth of the next statement.
        named: how many names `fresh` gave.
    """

    d: Draw
    n: int
    t: Text = field(default_factory=lambda: Text([], []))
    types: dict[str, str] = field(default_factory=dict)
    depth: int = 1
    named: int = 0

    def fresh(self, base: str) -> str:
        self.named += 1
        return f"{base}{self.named}"

    def pick(self, rank: int) -> str:
        """An array of a rank."""
        found = [a for a in self.types if a[0] == "VM"[rank - 1]]
        return self.d.rng.choice(found)

    def load(self, place: str, dtype: str) -> str:
        kind = self.types[place.split("[")[0]]
        if kind == dtype:
            return place
        if "float" in kind and "int" in dtype:
            low, high = ("0", "100") if dtype[0] == "u" else ("-100", "100")
            return f'T.cast(T.max(T.min({place}, T.{kind}({high})), T.{kind}({low})), "{dtype}")'
        return f'T.cast({place}, "{dtype}")'

    def add(self, *lines: str) -> None:
        self.t.add(self.depth, *lines)

    def loops(self, names: str, *ends: str) -> None:
        """Loops around the next statements, written in one of three ways."""
        ends = ends or (str(self.n),) * len(names)
        if len(names) > 1 and self.d.often(0.5) and not any("," in e or e.isalpha() for e in ends):
            self.add(f"for {', '.join(names)} in T.grid({', '.join(ends)}):")
            self.depth += 1
            return
        for name, end in zip(names, ends, strict=True):
            self.add(f"for {name} in range({end}):")
            self.depth += 1

    def guard(self, names: str) -> None:
        """Sometimes a condition around the next statements."""
        if self.d.often(0.25):
            a, b, d = names[0], names[-1], self.d
            vector = self.pick(1)
            self.add("if " + d.pick(f"{a} != {b}", f"{a} >= {b}", f"{a} < {self.n // 2}",
                                    f"{b} % 2 == 0", f"{a} + {b} < {self.n}",
                                    f"{vector}[{b}] > T.{self.types[vector]}(0)")
                     + ":")  # fmt: skip
            self.depth += 1

    def step(self, target: str, value: str) -> str:
        d = self.d
        return d.pick(f"{target} += {value}", f"{target} = {target} + {value}",
                      f"{target} = {value} + {target}", f"{target} = T.max({target}, {value})",
                      f"{target} = T.min({value}, {target})", f"{target} -= {value}")  # fmt: skip


def product(p: Program) -> None:
    a, b, c = p.pick(2), p.pick(2), p.pick(2)
    kind = p.types[c]
    x = p.load(p.d.pick(f"{a}[i, k]", f"{a}[k, i]"), kind)
    y = p.load(p.d.pick(f"{b}[k, j]", f"{b}[j, k]"), kind)
    form = p.d.rng.randrange(4)
    top = p.d.pick(str(p.n), str(p.n), "i", "i + 1", "j")
    if form == 0:
        p.loops("ij")
        p.add(f"s = T.{kind}(0)")
        p.loops("k", top)
        p.guard("ik")
        p.add(f"s += {x} * {y}")
        p.depth = _depth_of(p, "s = T.")
        p.add(
            p.d.pick(
                f"{c}[i, j] = s", f"{c}[i, j] += s", f"{c}[i, j] = {c}[i, j] * T.{kind}(2) - s"
            )
        )
    elif form == 1:
        p.loops("ij")
        start = p.depth
        p.add(p.d.pick(f"{c}[i, j] = T.{kind}(0)", f"{c}[i, j] *= T.{kind}(2)"))
        if p.d.often(0.5):
            p.depth = start
        else:
            p.depth = 1
            p.loops("ij")
        p.loops("k", top)
        p.guard("kj")
        p.add(f"{c}[i, j] += {x} * {y}")
    elif form == 2:
        order = "".join(p.d.rng.sample("ijk", 3))
        p.loops(order)
        p.guard("ik")
        p.add(f"{c}[i, j] = {c}[i, j] {p.d.pick('+', '-')} {x} * {y}")
    else:  # two products at once
        v, w, u = p.pick(1), p.pick(1), p.pick(1)
        p.loops("ij")
        p.add(f"{v}[i] += {p.load(f'{a}[i, j]', p.types[v])} * {p.load(f'{u}[j]', p.types[v])}")
        p.guard("ij")
        p.add(f"{w}[j] += {p.load(f'{a}[i, j]', p.types[w])} * {p.load(f'{u}[i]', p.types[w])}")


def _depth_of(p: Program, start: str) -> int:
    line = next(x for x in reversed(p.t.lines) if x.lstrip().startswith(start))
    return (len(line) - len(line.lstrip())) // 4


def rows(p: Program) -> None:
    a, v = p.pick(2), p.pick(1)
    kind = p.types[v]
    s, end = p.fresh("s"), p.d.pick(str(p.n), str(p.n), f"1, {p.n}", "i", "i + 1", f"i, {p.n}")
    first = p.d.pick(f"T.{kind}(0)", p.load(f"{a}[i, 0]", kind))
    p.loops("i")
    p.add(f"{s} = {first}")
    p.loops("k", end)
    p.guard("ik")
    value = p.load(p.d.pick(f"{a}[i, k]", f"{a}[i, k]", f"{a}[k, i]"), kind)
    p.add(p.step(s, p.d.pick(value, value, f"{value} * {p.load(p.pick(1) + '[k]', kind)}")))
    p.depth = 2
    p.add(f"{v}[i] = {s}")
    if p.d.often(0.4):
        p.loops("j")
        p.add(f"{a}[i, j] = {a}[i, j] - {p.load(f'{v}[i]', p.types[a])}")


def extremum(p: Program) -> None:
    a, v, w = p.pick(2), p.pick(1), p.pick(1)
    kind = p.types[a]
    p.loops("i")
    p.add(f"best = {a}[i, 0]", "at = 0")
    p.loops("k", p.d.pick(str(p.n), f"1, {p.n}"))
    p.add(f"if {a}[i, k] {p.d.pick('>', '<', '>=')} best:", f"    best = {a}[i, k]", "    at = k")
    p.depth = 2
    if v != w:
        p.add(f"{v}[i] = {_cast('best', kind, p.types[v])}")
    p.add(f'{w}[i] = T.cast(at, "{p.types[w]}")')


def _cast(value: str, kind: str, dtype: str) -> str:
    if "float" in kind and "int" in dtype:
        return f'T.cast(T.max(T.min({value}, T.{kind}(100)), T.{kind}(0)), "{dtype}")'
    return value if kind == dtype else f'T.cast({value}, "{dtype}")'


def stencil(p: Program) -> None:
    a, b = p.pick(2), p.pick(2)
    kind, n = p.types[b], p.n
    points = ["[i, j]", "[i - 1, j]", "[i + 1, j]", "[i, j - 1]", "[i, j + 1]", "[i - 1, j - 1]"]
    value = " + ".join(p.load(a + x, kind) for x in p.d.rng.sample(points, p.d.rng.randint(2, 4)))
    if p.d.often(0.3):
        p.loops("t", str(p.d.rng.randint(1, 4)))
    inside = f"1, {n - 1}"
    start = p.depth
    if p.d.often(0.6):
        p.loops("ij", inside, inside)
        p.add(f"{b}[i, j] = {value}")
    else:
        p.loops("ij")
        p.add(f"if i >= 1 and i < {n - 1} and j >= 1 and j < {n - 1}:", f"    {b}[i, j] = {value}",
              "else:", f"    {b}[i, j] = {p.load(f'{a}[i, j]', kind)}")  # fmt: skip
    if p.d.often(0.4):
        p.depth = start
        p.loops("ij", inside, inside)
        p.add(f"{a}[i, j] = {p.load(f'{b}[i, j]', p.types[a])}")


def running(p: Program) -> None:
    a, b, n = p.pick(2), p.pick(2), p.n
    kind, back = p.types[b], p.d.often(0.3)
    k = f"{n - 1} - k" if back else "k"
    form = p.d.rng.randrange(3)
    x = p.load(f"{a}[i, {k}]" if p.d.often(0.6) else f"{a}[{k}, i]", kind)
    place = f"{b}[i, {k}]" if p.d.often(0.6) else f"{b}[{k}, i]"
    if form < 2:
        p.loops("i")
        p.add(f"s = T.{kind}(0)")
        p.loops("k")
        after = [p.step("s", x), f"{place} = s"]
        p.add(*(after if form else after[::-1]))
    else:
        place = f"{b}[i, k]"
        p.loops(p.d.pick("ik", "ki"), str(n), str(n))
        x = p.load(f"{a}[i, k]", kind)
        p.add("if k == 0:", f"    {place} = {x}", "else:",
              f"    {place} = {b}[i, k - 1] {p.d.pick('+', '-')} {x}")  # fmt: skip


def indexed(p: Program) -> None:
    v, w = p.pick(1), p.pick(1)
    kind, form = p.types[v], p.d.rng.randrange(5)
    x = p.load(f"{w}[i]", kind)
    p.loops("i")
    p.guard("i")
    if form == 0:
        p.add(p.step(f"{v}[P[i]]", p.d.pick(x, f"T.{kind}(1)")))
    elif form == 1:
        p.add(f"{v}[i] = {p.load(f'{w}[P[i]]', kind)}")
    elif form == 2:
        p.add(f"if P[i] > {p.n // 2}:", f"    {v}[P[i]] = {x}")
    elif form == 3:
        m = p.pick(2)
        p.loops("j")
        p.add(p.step(f"{m}[P[i], j]", p.load(f"{p.pick(2)}[i, j]", p.types[m])))
    else:
        m = p.pick(2)
        p.add(f"s = T.{kind}(0)")
        p.loops("k")
        p.add(p.step("s", p.load(f"{m}[P[k], {p.d.pick('i', 'P[i]', 'k')}]", kind)))
        p.depth = _depth_of(p, "s = T.")
        p.add(f"{v}[i] = s")


def element(p: Program) -> None:
    a, b, v = p.pick(2), p.pick(2), p.pick(1)
    kind = p.types[a]
    p.loops("ij")
    x, y = p.load(f"{b}[i, j]", kind), p.load(f"{v}[{p.d.pick('i', 'j')}]", kind)
    form = p.d.rng.randrange(5)
    if form == 0:
        p.add(f"if {x} > {y}:", f"    {a}[i, j] = {x}", "else:", f"    {a}[i, j] = {y} + {x}")
    elif form == 1:
        p.guard("ij")
        p.add(f"x = {x} + {y}", f"{a}[i, j] = x * x - x")
    elif form == 2:
        p.add(f"{a}[i, j] = {p.load(f'{b}[{p.n - 1} - i, j]', kind)} + {y}")
    elif form == 3:
        p.add(f"{a}[i, j] = {p.load(f'{b}[j, i]', kind)}")
    else:
        p.add("if i < j:", f"    x = {a}[i, j]", f"    {a}[i, j] = {a}[j, i]", f"    {a}[j, i] = x")


def elimination(p: Program) -> None:
    a, v, n = p.pick(2), p.pick(1), p.n
    kind, form = p.types[a], p.d.rng.randrange(3)
    if form == 0:
        p.loops("k")
        p.add(f"for i in range(k + 1, {n}):")
        p.depth += 1
        p.add(f"for j in range({p.d.pick('k', 'k + 1')}, {n}):",
              f"    {a}[i, j] = {a}[i, j] - {a}[i, k] * {a}[k, j]")  # fmt: skip
    elif form == 1:
        v_kind = p.types[v]
        p.loops("i")
        p.add(f"s = {v}[i]", "for j in range(i):",
              f"    s -= {p.load(f'{a}[i, j]', v_kind)} * {v}[j]", f"{v}[i] = s")  # fmt: skip
    else:
        p.loops("i")
        p.add(f"for j in range(i, {n}):")
        p.depth += 1
        p.add(f"s = {a}[i, j]", "for k in range(i):", f"    s -= {a}[k, i] * {a}[k, j]",
              f"{a}[i, j] = s")  # fmt: skip


def window(p: Program) -> None:
    a, b, n = p.pick(2), p.pick(2), p.n
    kind, r = p.types[b], p.d.rng.choice((2, 3, 5))
    p.loops("ij")
    p.add(f"s = T.{kind}(0)")
    p.loops("pq", str(r), str(r))
    p.add(f"y = i + p - {r // 2}", f"x = j + q - {r // 2}",
          f"if y >= 0 and y < {n} and x >= 0 and x < {n}:")  # fmt: skip
    p.depth += 1
    p.add(p.step("s", p.load(f"{a}[y, x]", kind)))
    p.depth = _depth_of(p, "s = T.")
    p.add(f"{b}[i, j] = s")


def search(p: Program) -> None:
    a, v, n = p.pick(2), p.pick(1), p.n
    kind, form = p.types[a], p.d.rng.randrange(4)
    p.loops("i")
    if form == 0:
        p.add("at = -1", f"for k in range({n}):", f"    if {a}[i, k] > T.{kind}(1):",
              "        at = k", "        break",
              f'{v}[i] = T.cast(at, "{p.types[v]}")')  # fmt: skip
    elif form == 1:
        p.add(f"s = T.{kind}(0)", f"for k in range({n}):", f"    if {a}[i, k] > T.{kind}(1):",
              "        continue", f"    s += {a}[i, k]",
              f"{v}[i] = {_cast('s', kind, p.types[v])}")  # fmt: skip
    elif form == 2:
        p.add("k = 0", f"while k < {n - 1} and {a}[i, k] <= T.{kind}(1):", "    k = k + 1",
              f'{v}[i] = T.cast(k, "{p.types[v]}")')  # fmt: skip
    else:  # insertion sort of a row
        p.add(f"for k in range(1, {n}):", f"    x = {a}[i, k]", "    j = k",
              f"    while j > 0 and {a}[i, T.max(j - 1, 0)] > x:",
              f"        {a}[i, j] = {a}[i, j - 1]", "        j = j - 1",
              f"    {a}[i, j] = x")  # fmt: skip


def dynamic(p: Program) -> None:
    a, b = p.pick(2), p.pick(2)
    kind = p.types[a]
    low = p.d.pick("T.min", "T.max")
    p.loops("ij", f"1, {p.n}", f"1, {p.n}")
    p.add(f"{a}[i, j] = {low}({a}[i - 1, j], {a}[i, j - 1]) + {p.load(f'{b}[i, j]', kind)}")


def moments(p: Program) -> None:
    a, v, w = p.pick(2), p.pick(1), p.pick(1)
    kind = p.types[v]
    x = p.load(f"{a}[i, k]", kind)
    p.loops("i")
    p.add(f"s = T.{kind}(0)", f"q = T.{kind}(0)", "c = 0", f"for k in range({p.n}):",
          f"    s += {x}", f"    q = q + {x} * {x}", f"    if {x} > T.{kind}(0):", "        c += 1",
          f"{v}[i] = s", f"{w}[i] = {_cast('q', kind, p.types[w])}",
          f'{v}[i] = {v}[i] - T.cast(c, "{kind}")')  # fmt: skip


def polynomial(p: Program) -> None:
    v, w, a = p.pick(1), p.pick(1), p.pick(2)
    kind = p.types[v]
    p.loops("i")
    p.add(f"s = T.{kind}(0)", f"for k in range({p.n}):",
          f"    s = s * T.{kind}({p.d.pick('1', '2')}) + {p.load(f'{a}[i, k]', kind)}",
          f"{v}[i] = s")  # fmt: skip


def own_memory(p: Program) -> None:
    """Iterations that fill and sort a small array, or step a state, of their own."""
    a, b, n = p.pick(2), p.pick(2), p.n
    kind, r = p.types[b], p.d.rng.choice((2, 3, 4))
    p.loops("ij")
    v, s, t = p.fresh("v"), p.fresh("s"), p.fresh("t")
    p.add(f'{v} = T.alloc_buffer(({r},), "{kind}")', f"{s} = T.{kind}(1)",
          f"for k in range({r}):",
          f"    {v}[k] = {p.load(f'{a}[i, T.min(j + k, {n - 1})]', kind)}",
          f"for k in range({r - 1}):", f"    {t} = T.min({v}[k], {v}[k + 1])",
          f"    {v}[k + 1] = T.max({v}[k], {v}[k + 1])", f"    {v}[k] = {t}",
          f"    if {v}[k] > T.{kind}(0):", f"        {s} = {s} + {v}[k]",
          f"{b}[i, j] = {v}[{r - 1}] + {s}")  # fmt: skip


IDIOMS: tuple[Callable[[Program], None], ...] = (
    product, product, rows, rows, extremum, stencil, running, indexed, element, element,
    elimination, window, search, dynamic, moments, polynomial, own_memory,
)  # fmt: skip


def plain_idioms(d: Draw) -> str:
    """A few idioms over shared matrices and vectors."""
    p = Program(d, d.size(1, 40))
    _declare(p, lambda name, shape, dtype: p.t.param(name, shape, dtype))
    _some(p)
    return str(p.t)


class Extent(str):
    """The text of an extent that is known at run time only."""

    def __sub__(self, number: int) -> Extent:
        return Extent(f"({self} - {number})")

    def __floordiv__(self, number: int) -> Extent:
        return Extent(f"({self} // {number})")


Declare = Callable[[str, tuple[int, ...], str], None]
"""Adds an array to a program: its name, shape and type."""


def run_time_program(d: Draw, declared: Callable[[Program, Declare], None]) -> Program:
    """A program whose arrays have the extent `n` in all dimensions; `declared` adds the arrays."""
    p = Program(d, Extent("n"))  # type: ignore[arg-type]
    p.add("n = T.int32()")

    def declare(name: str, shape: tuple[int, ...], dtype: str) -> None:
        p.t.params.append(f"arg_{name}: T.handle")
        sizes = ", ".join(map(str, shape))
        p.add(f'{name} = T.match_buffer(arg_{name}, ({sizes},), "{dtype}")')

    declared(p, declare)
    return p


def run_time_idioms(d: Draw) -> str:
    """The idioms of `plain_idioms`, where the extent of all dimensions is `n`."""
    p = run_time_program(d, _declare)
    _some(p)
    return str(p.t)


def _declare(p: Program, declare: Declare) -> None:
    kinds = [p.d.pick(*TYPES) for _ in range(p.d.rng.choice((1, 1, 1, 2, 3)))]
    for name in ("M0", "M1", "M2", "V0", "V1", "V2"):
        p.types[name] = p.d.pick(*kinds)
        declare(name, (p.n,) if name[0] == "V" else (p.n, p.n), p.types[name])
    declare("P", (p.n,), p.d.pick("int32", "int64", "uint8"))


def _some(p: Program) -> None:
    for _ in range(p.d.rng.choice((1, 1, 2, 3))):
        p.depth = 1
        p.d.rng.choice(IDIOMS)(p)
