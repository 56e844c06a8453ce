"""Random programs of unusual statements: outside of blocks, partial writes, odd loops.

Every stage fills or changes a buffer in one of several ways: under conditions and `else`, in loops
that start elsewhere or have steps, by stores outside of blocks, over halves, in place, through
views, in a `while`, under predicates on reductions. Programs that read what nothing has written are
drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from strategies import random_args

from metasched.errors import InterpretError, ParseError
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.script.parser import parse

TYPES = ["int32"] * 6 + ["float32"] * 3 + ["int64", "int8", "uint8", "bool"]
TRIES = 50


class Draft:
    """A program under construction: its sizes, its type, the buffers written so far, its lines."""

    def __init__(self, rng: random.Random, kinds: list[Callable[[Draft], None]]) -> None:
        self.rng = rng
        self.n, self.m = rng.randint(1, 6), rng.randint(1, 5)
        self.dtype = rng.choice(TYPES)
        self.params, self.lines, self.temps = [], [], []
        self.whole: list[str] = []  # what may be read everywhere
        self.count = 0
        for name in "AR":
            self.param(name)
        self.scalar = rng.choice(["s", "t", ""]) if rng.random() < 0.4 else ""
        if self.scalar:
            self.params.append(f"{self.scalar}: T.int32")
        for _ in range(rng.randint(2, 4)):
            rng.choice(kinds)(self)
        if len(self.whole) > 2:  # what was made is seen outside
            self.param("Z")
            self.copy("Z", self.whole[-2])

    def text(self) -> str:
        head = f"@T.prim_func\ndef f({', '.join(self.params)}):"
        return "\n".join([head, *self.temps, *self.lines]) + "\n"

    # -- buffers -----------------------------------------------------------------------------------

    def param(self, name: str) -> None:
        self.params.append(f'{name}: T.Buffer(({self.n}, {self.m}), "{self.dtype}")')
        self.whole.append(name)

    def target(self, *, filled: bool) -> str:
        """A buffer to write, new or existing; `filled` if parts of it may keep their values."""
        made = [b for b in self.whole if b not in "AR"]
        if made and self.rng.random() < 0.4:
            return self.rng.choice(made)
        name = f"T{self.count}"
        self.count += 1
        if self.rng.random() < 0.4:
            self.param(name)
            return name
        strides = f", strides=[{self.m + 2}, 1]" if self.rng.random() < 0.1 else ""
        shape = f'({self.n}, {self.m}), "{self.dtype}"{strides}'
        self.temps.append(f"    {name} = T.alloc_buffer({shape})")
        if filled:
            self.copy(name, self.source())
        self.whole.append(name)
        return name

    def copy(self, target: str, source: str) -> None:
        self.block(target, ["i", "j"], [f"{target}[vi, vj] = {source}[vi, vj]"])

    def source(self, less: str = "") -> str:
        return self.rng.choice([b for b in self.whole if b != less])

    # -- expressions -------------------------------------------------------------------------------

    def condition(self, i: str, j: str) -> str:
        n, m, rng = self.n, self.m, self.rng
        k, by = rng.randint(0, max(n, m)), rng.choice([2, 2, 3])
        data = "A[{}, {}]" if self.dtype == "bool" else "A[{}, {}] > 0"
        if (s := self.scalar) and rng.random() < 0.3:
            return rng.choice([f"{i} < {s}", f"{j} % {s} == 0", f"{i} + {s} > {j}", f"{s} == {k}"])
        return rng.choice([
            f"{i} < {k}", f"{i} >= {k}", f"{i} % {by} == {k % by}", f"{i} + {j} < {k}",
            f"{j} != {k % m}", f"{i} // {by} == {j} // {by}", f"{j} * {by} + 1 < {m}",
            f"{i} < {k} and {j} >= 1", f"{i} == 0 or {j} > {k}", f"{i} < {n}", f"{i} > {n + 5}",
            data.format(i, j), data.format(0, j), f"not ({j} <= {i})",
        ])  # fmt: skip

    def load(self, source: str, i: str, j: str) -> str:
        n, m, rng = self.n, self.m, self.rng
        by = rng.choice([1, 2, 3])
        one = self.number()
        if (s := self.scalar) and rng.random() < 0.2:
            return rng.choice([
                f"{source}[({i} + {s}) % {n}, {j}]", f"{source}[{i}, ({j}) * {s} % {m}]",
                f"{source}[T.min({i} + {s}, {n - 1}), {j}]", f"{source}[{i}, ({j}) // {s}]",
                f"T.if_then_else({i} >= {s}, {source}[{i} - {s}, {j}], {one})",
            ])  # fmt: skip
        return rng.choice([
            *[f"{source}[{i}, {j}]"] * 4, f"{source}[{n - 1} - {i}, {j}]",
            f"{source}[{i}, {m - 1} - ({j})]", f"{source}[({i}) // {by}, {j}]",
            f"{source}[({i} + {by}) % {n}, {j}]", f"{source}[{i}, 0]", f"{source}[0, {j}]",
            f"T.if_then_else({i} >= {by}, {source}[{i} - {by}, {j}], {one})",
            f"T.if_then_else({j} * {by} + 1 < {m}, {source}[{i}, {j} * {by} + 1], {one})",
            f"T.if_then_else({self.condition(i, j)}, {source}[{i}, {j}], {one})",
            f"T.if_then_else(({i}) % {by} == 0, {source}[({i}) // {by}, {j}], {one})",
        ])  # fmt: skip

    def number(self) -> str:
        if self.dtype == "bool":
            return self.rng.choice(["T.bool(True)", "T.bool(False)"])
        return f"T.{self.dtype}({self.rng.randint(0, 3)})"

    def join(self, a: str, b: str) -> str:
        if self.dtype == "bool":
            return self.rng.choice([f"({a}) and ({b})", f"({a}) or ({b})", f"({a}) != ({b})"])
        forms = ["{} + {}", "{} - ({})", "T.max({}, {})", "T.min({}, {})"]
        if not self.dtype.startswith("float"):
            forms.append("{} ^ ({})")
        return self.rng.choice(forms).format(a, b)

    def value(self, less: str, i: str = "vi", j: str = "vj") -> str:
        """A value to store, which reads buffers other than `less`."""
        first = self.load(self.source(less), i, j)
        return (
            first
            if self.rng.random() < 0.5
            else self.join(first, self.load(self.source(less), i, j))
        )

    # -- loops and blocks --------------------------------------------------------------------------

    def loops(self, axes: list[str], depth: int = 1) -> tuple[int, dict[str, str], str]:
        """Loops over `axes`, in odd ways; the depth below, what each axis is there, a predicate."""
        rng, at, where = self.rng, {}, "1"
        if rng.random() < 0.1:
            self.put(depth, "for u in range(1):")
            depth += 1
        for a in axes:
            extent, kind = (self.n if a == "i" else self.m), rng.randrange(10)
            if kind == 0:
                first = rng.randint(1, 3)
                self.put(depth, f"for {a} in range({first}, {extent + first}):")
                at[a] = f"({a} - {first})"
            elif kind == 1:
                step = rng.choice([2, 3])
                self.put(depth, f"for {a} in T.serial(0, {extent * step}, step={step}):")
                at[a] = f"({a} // {step})"
            elif kind == 2:
                t = rng.choice([2, 3])
                self.put(depth, f"for {a}o, {a} in T.grid({-(-extent // t)}, {t}):")
                at[a] = f"({a}o * {t} + {a})"
                where = f"{where} and {at[a]} < {extent}" if extent % t else where
            elif kind == 3:
                self.put(depth, f"for {a} in range({extent}):")
                at[a] = f"({extent - 1} - {a})"
            else:
                self.put(depth, f"for {a} in range({extent}):")
                at[a] = a
            depth += 1
        return depth, at, where.removeprefix("1 and ")

    def put(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def block(self, name: str, axes: list[str], body: list[str], kinds: str = "SS") -> None:
        depth, at, where = self.loops(axes)
        self.inner(depth, name, axes, at, where, body, kinds)

    def inner(
        self, depth: int, name: str, axes: list[str], at: dict[str, str], where: str,
        body: list[str], kinds: str = "SS",
    ) -> None:  # fmt: skip
        self.count += 1
        self.put(depth, f'with T.block("{name}_{self.count}"):')
        if where != "1":
            self.put(depth + 1, f"T.where({where})")
        for a, kind in zip(axes, kinds, strict=True):
            word = {"S": "spatial", "R": "reduce", "O": "opaque"}[kind]
            extent = self.n if a == "i" else self.m
            self.put(depth + 1, f"v{a} = T.axis.{word}({extent}, {at[a]})")
        self.put(depth + 1, *body)


# -- stages --------------------------------------------------------------------------------------


def plain(d: Draft) -> None:
    out = d.target(filled=False)
    d.block(out, ["i", "j"], [f"{out}[vi, vj] = {d.value(out)}"])


def in_place(d: Draft) -> None:
    out = d.target(filled=True)
    value = d.join(f"{out}[vi, vj]", d.value(out))
    d.block(out, ["i", "j"], [f"{out}[vi, vj] = {value}"])


def conditional(d: Draft) -> None:
    """A block under a condition outside of it, or one for each case."""
    both = d.rng.random() < 0.4
    out = d.target(filled=not both)
    depth, at, where = d.loops(["i", "j"])
    d.put(depth, f"if {d.condition(at['i'], at['j'])}:")
    d.inner(depth + 1, out, ["i", "j"], at, where, [f"{out}[vi, vj] = {d.value(out)}"])
    if both:
        d.put(depth, "else:")
        d.inner(depth + 1, out, ["i", "j"], at, where, [f"{out}[vi, vj] = {d.value(out)}"])


def around_loop(d: Draft) -> None:
    """A condition around the inner loop, or around the whole nest."""
    out = d.target(filled=True)
    condition = d.condition("i", "0") if d.rng.random() < 0.6 else "A[0, 0] > A[0, 0]"
    if "A[0, 0]" in condition:
        condition = condition if d.dtype != "bool" else "A[0, 0]"
        d.put(1, f"if {condition}:", f"    for i in range({d.n}):")
    else:
        d.put(1, f"for i in range({d.n}):", f"    if {condition}:")
    d.put(3, f"for j in range({d.m}):")
    at = {"i": "i", "j": "j"}
    d.inner(4, out, ["i", "j"], at, "1", [f"{out}[vi, vj] = {d.value(out)}"])


def inside(d: Draft) -> None:
    """A condition in the body."""
    both = d.rng.random() < 0.4
    out = d.target(filled=not both)
    body = [f"if {d.condition('vi', 'vj')}:", f"    {out}[vi, vj] = {d.value(out)}"]
    if both:
        body += ["else:", f"    {out}[vi, vj] = {d.value(out)}"]
    d.block(out, ["i", "j"], body)


def outside(d: Draft) -> None:
    """A store outside of any block, perhaps with a let."""
    out = d.target(filled=False)
    depth, at, where = d.loops(["i", "j"])
    if where != "1":
        d.put(depth, f"if {where}:")
        depth += 1
    i, j = at["i"], at["j"]
    if d.rng.random() < 0.4:
        d.put(depth, f"x{d.count} = {i}")
        i, d.count = f"x{d.count}", d.count + 1
    d.put(depth, f"{out}[{i}, {j}] = {d.value(out, i, j)}")


def named(d: Draft) -> None:
    """A variable between the loops and the block, or one in the block."""
    out = d.target(filled=False)
    depth, at, where = d.loops(["i", "j"])
    name, d.count = f"x{d.count}", d.count + 1
    if d.rng.random() < 0.5:
        d.put(depth, f"{name} = {at['i']}")
        at["i"] = name
        d.inner(depth, out, ["i", "j"], at, where, [f"{out}[vi, vj] = {d.value(out)}"])
        return
    body = [f"{name} = {d.value(out)}", f"{out}[vi, vj] = {d.join(name, name)}"]
    d.inner(depth, out, ["i", "j"], at, where, body)


def halves(d: Draft) -> None:
    """Two writers of one buffer, side by side, overlapping, or every second element each."""
    out = d.target(filled=True)
    cut = d.rng.randint(0, d.n)
    again = max(0, cut - d.rng.randint(0, 2))
    first, second = f"vi < {cut}", f"vi >= {again}"
    if d.rng.random() < 0.3:
        first, second = "vi % 2 == 0", "vi % 2 == 1"
    if d.rng.random() < 0.5 and 0 < cut and again < d.n:
        for start, end in ((0, cut), (again, d.n)):
            d.count += 1
            d.put(1, f"for i, j in T.grid({end - start}, {d.m}):")
            d.put(2, f'with T.block("{out}_{d.count}"):')
            d.put(3, f"vi = T.axis.spatial({end - start}, i)", f"vj = T.axis.spatial({d.m}, j)")
            d.put(3, f"{out}[vi + {start}, vj] = {d.value(out, f'(vi + {start})')}")
        return
    for where in (first, second):
        depth, at, own = d.loops(["i", "j"])
        there = where.replace("vi", f"({at['i']})")
        where = there if own == "1" else f"{own} and {there}"
        d.inner(depth, out, ["i", "j"], at, where, [f"{out}[vi, vj] = {d.value(out)}"])


def reduced(d: Draft) -> None:
    """A reduction of a row or of parts of a row; the init may read a start value."""
    out = d.target(filled=True)
    rng, column = d.rng, d.rng.randrange(d.m)
    start = rng.choice([d.number(), "R[vi, 0]", f"R[vi, {column}]"])
    if d.dtype != "bool" and rng.random() < 0.6:
        start = f"T.{d.dtype}(0)"
    element = f"{out}[vi, {column}]"
    form = rng.choice(["{} + {}", "{} + {}", "T.max({}, {})", "{} - {}"])
    form = rng.choice(["{} or {}", "{} and {}"]) if d.dtype == "bool" else form
    update = [f"{element} = {form.format(element, '(' + d.load(d.source(out), 'vi', 'vj') + ')')}"]
    if rng.random() < 0.2:
        update = [f"if {d.condition('vi', 'vj')}:", *[f"    {line}" for line in update]]
    body = ["with T.init():", f"    {element} = {start}", *update]
    body = body if rng.random() < 0.8 else update
    depth, at, where = d.loops(["i", "j"] if rng.random() < 0.7 else ["j", "i"])
    if rng.random() < 0.3:
        limit = rng.choice(
            [f"{at['j']} < {max(1, d.m - 1)}", f"{at['j']} >= 1", f"{at['j']} <= {at['i']}"]
        )
        where = limit if where == "1" else f"{where} and {limit}"
    if rng.random() < 0.15:
        d.put(depth, f"if {d.condition(at['i'], at['j'])}:")
        depth += 1
    d.inner(depth, out, ["i", "j"], at, where, body, "SR")


def running(d: Draft) -> None:
    """A running sum: each element from the one before it."""
    out = d.target(filled=True)
    kind = d.rng.choice(["OS", "SO", "OO"])
    before = f"{out}[vi - 1, vj]" if kind != "SO" else f"{out}[vi, vj - 1]"
    over = "vi" if kind != "SO" else "vj"
    value = d.join(before, d.load(d.source(out), "vi", "vj"))
    d.block(out, ["i", "j"], [f"if {over} >= 1:", f"    {out}[vi, vj] = {value}"], kind)


def repeated(d: Draft) -> None:
    """A `while` in the body, which counts in a buffer of the block."""
    out = d.target(filled=False)
    d.count += 1
    count = f"t{d.count}"
    body = [
        f'{count} = T.alloc_buffer((1,), "int32", scope="local")', f"{count}[0] = 0",
        f"{out}[vi, vj] = {d.value(out)}", f"while {count}[0] < {d.rng.randint(0, 2)}:",
        f"    {out}[vi, vj] = {d.join(f'{out}[vi, vj]', d.number())}",
        f"    {count}[0] = {count}[0] + 1",
    ]  # fmt: skip
    d.block(out, ["i", "j"], body)


def viewed(d: Draft) -> None:
    """A row read or written through views, or both, and also directly."""
    out = d.target(filled=False)
    source = d.source(out)
    d.count += 1
    m, dtype, name = d.m, d.dtype, d.count
    d.put(1, f"for i in range({d.n}):", f'    with T.block("{out}_{name}"):')
    d.put(3, f"vi = T.axis.spatial({d.n}, i)", f"T.reads({source}[vi, 0:{m}])",
          f"T.writes({out}[vi, 0:{m}])")  # fmt: skip
    read, written = f"{source}[vi, j]", f"{out}[vi, j]"
    if d.rng.random() < 0.7:
        d.put(
            3, f'S{name} = T.match_buffer({source}[vi, 0:{m}], ({m},), "{dtype}", offset_factor=1)'
        )
        read = f"S{name}[j]"
    if d.rng.random() < 0.7:
        d.put(3, f'W{name} = T.match_buffer({out}[vi, 0:{m}], ({m},), "{dtype}", offset_factor=1)')
        written = f"W{name}[j]"
    also = f"{source}[vi, j]" if d.rng.random() < 0.4 else d.number()
    d.put(3, f"for j in range({m}):", f"    {written} = {d.join(read, also)}")


def nested(d: Draft) -> None:
    """A block in a block, with a buffer of its own between two stages."""
    out = d.target(filled=False)
    d.count += 1
    m, name = d.m, d.count
    source = d.source(out)
    d.put(1, f"for i in range({d.n}):", f'    with T.block("{out}_{name}"):')
    axis = f"vi = T.axis.{d.rng.choice(['spatial', 'spatial', 'opaque'])}({d.n}, i)"
    whole = ", ".join(f"{b}[0:{d.n}, 0:{m}]" for b in dict.fromkeys([source, "A"]))
    declared = [f"T.reads({whole})", f"T.writes({out}[vi, 0:{m}])"]
    d.put(3, axis, *(declared if d.rng.random() < 0.5 else []))
    d.put(3, f'L{name} = T.alloc_buffer(({m},), "{d.dtype}")', f"for j in range({m}):")
    if d.rng.random() < 0.3:
        d.put(4, f"L{name}[j] = {d.number()}")
    else:
        d.put(4, f'with T.block("L_{name}"):')
        d.put(5, f"vj = T.axis.spatial({m}, j)", f"L{name}[vj] = {d.load(source, 'vi', 'vj')}")
    index = d.rng.choice(["vj", f"{m - 1} - vj", "0"])
    under = d.rng.random() < 0.3
    d.put(3, f"for j in range({m}):")
    if under:
        d.put(4, f"if {d.condition('vi', 'j')}:")
    d.put(5 if under else 4, f'with T.block("M_{name}"):')
    d.put(6 if under else 5, f"vj = T.axis.spatial({m}, j)", f"{out}[vi, vj] = L{name}[{index}]")


STAGES: list[Callable[[Draft], None]] = [
    plain, in_place, conditional, around_loop, inside, outside, named, halves, reduced, running,
    repeated, viewed, nested,
]  # fmt: skip
STRUCTURED = [plain, in_place, inside, halves, reduced, running, repeated, viewed, nested]


def _defined(text: str) -> bool:
    """Whether a program reads only defined elements, and touches only declared regions.

    Conditions on data fail everywhere, hold everywhere, or hold in some places.
    """
    try:
        func = parse(text)
        assert isinstance(func, PrimFunc)
        args = random_args(func, random.Random(0))
        for fill in (None, 0, 1):
            given = [np.full_like(a, fill) if np.ndim(a) and fill is not None else a for a in args]
            run(func, *given, check_undefined=True, check_regions=True)
    except (InterpretError, ParseError):
        return False
    return True


def _drawn(rng: random.Random, kinds: list[Callable[[Draft], None]]) -> str:
    for _ in range(TRIES):
        text = Draft(rng, kinds).text()
        if _defined(text):
            return text
    raise AssertionError(f"none of {TRIES} programs is defined, such as\n{text}")


def odd(rng: random.Random) -> str:
    """Stages of all kinds; most programs are no stage pipeline."""
    return _drawn(rng, STAGES)


def mixed(rng: random.Random) -> str:
    """Stages of blocks and loops alone."""
    return _drawn(rng, STRUCTURED)


def simple(rng: random.Random) -> str:
    """Plain stages, with one stage of any kind among them."""
    return _drawn(rng, [plain, plain, plain, rng.choice(STAGES)])


ODD: dict[Callable[[random.Random], str], tuple[str, ...]] = {
    odd: ("parallel", "reorder", "tile", "cache_read", "cache_write", "merge", "blockize"),
    mixed: ("compute_at", "reverse_compute_at", "compute_inline", "cache_write", "cache_read",
            "rfactor", "decompose_reduction", "reindex_cache", "transform_layout", "parallel"),
    simple: ("compute_at", "reverse_compute_at", "compute_inline", "reverse_compute_inline",
             "cache_write", "transform_layout", "reindex", "transform_block_layout"),
}  # fmt: skip
"""Each family with the operations of the machine that it is made for."""
