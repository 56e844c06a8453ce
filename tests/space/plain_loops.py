"""Random programs in plain loops: conditions, jumps, scalars and arrays between loops, no blocks.

All indices stay inside, and a loop may have no iteration. Each variable is set before it is read.
"""

from __future__ import annotations

from space.random_kinds import INTS, Draw, Text

WIDE = ("float64", "bfloat16", "float16", "float8_e5m2", "uint16", "uint32", "uint64")


class Plain:
    """A program in the making.

    Attributes:
        buffers: shape and type of each array that holds values.
        loops: the loops around the next statement: variable, smallest and largest value.
        scalars: the variables that may be read, with their types.
        left: how many statements may still be drawn.
    """

    def __init__(self, d: Draw) -> None:
        self.d, self.t = d, Text([], [])
        self.sizes = [d.size(1, 33), d.size(1, 19)]
        self.types = [d.dtype() for _ in range(d.rng.choice((1, 1, 2)))]
        if d.often(0.3):
            self.types.append(d.pick(*WIDE))
        self.buffers: dict[str, tuple[tuple[int, ...], str]] = {}
        self.loops: list[tuple[str, int, int]] = []
        self.scalars: dict[str, str] = {}
        self.named, self.left, self.arrays = 0, d.rng.randint(3, 9), 0
        for name in "ABCDE"[: d.rng.randint(2, 5)]:
            shape = tuple(d.rng.choice(self.sizes) for _ in range(d.rng.choice((1, 1, 2))))
            self.param(name, shape, d.rng.choice(self.types))
        self.indices = {}
        for size in set(self.sizes):
            if d.often(0.3):
                name, length = f"N{size}", d.rng.choice(self.sizes)
                self.indices[size] = (name, length)
                self.t.param(name, (length,), d.pick("int32", "int64", "uint8"))

    def param(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self.buffers[name] = shape, dtype
        self.t.param(name, shape, dtype)

    def fresh(self, base: str) -> str:
        self.named += 1
        return f"{base}{self.named}"

    # -- expressions -------------------------------------------------------------------------------

    def index(self, size: int) -> str:
        """An index below `size`."""
        pick = self.d.pick
        if not self.loops or self.d.often(0.07):
            return str(self.d.rng.randrange(size))
        var, low, high = self.d.rng.choice(self.loops)
        found = [f"({var} * 3 + 1) % {size}", f"T.min({var} + 1, {size - 1})" if low >= -1 else "0",
                 f"T.min(T.max({var} - 1, 0), {size - 1})"]  # fmt: skip
        if low >= 0 and high < size:
            found += [var] * 12 + [f"{size - 1} - {var}", f"{var} // 2", f"{var} % 2 * 0 + {var}"]
            other, least, most = self.d.rng.choice(self.loops)
            if least >= 0 and high + most < size:
                found += [f"{var} + {other}"] * 6
        if low >= 1 and high - 1 < size:
            found += [f"{var} - 1"] * 5
        if low >= 0 and high + 1 < size:
            found += [f"{var} + 1"] * 5
        for name, length in [self.indices[size]] if size in self.indices else []:
            if low >= 0 and high < length:
                found += [f"{name}[{var}]"] * 3
        return pick(*found)

    def element(self, name: str) -> str:
        shape, _ = self.buffers[name]
        return f"{name}[{', '.join(self.index(s) for s in shape)}]"

    def value(self, dtype: str, depth: int = 2) -> str:
        d = self.d
        roll = d.rng.random()
        if depth == 0 or roll < 0.45:
            names = [s for s, kind in self.scalars.items() if kind == dtype]
            if names and d.often(0.3):
                return d.pick(*names)
            if d.often(0.1):
                return d.number(dtype)
            if self.loops and d.often(0.1):
                return f'T.cast({d.rng.choice(self.loops)[0]}, "{dtype}")'
            name = d.pick(*self.buffers)
            kind = self.buffers[name][1]
            load = self.element(name)
            if kind == dtype:
                return load
            if kind in INTS or "int" in kind or "int" not in dtype:
                return f'T.cast({load}, "{dtype}")'
            return d.number(dtype)
        a, b = self.value(dtype, depth - 1), self.value(dtype, depth - 1)
        if roll < 0.75:
            return d.pick(f"{a} + {b}", f"({a} - {b})", f"({a} + {b})")
        if roll < 0.82:
            return f"({a}) * {d.number(dtype)}"
        if roll < 0.9:
            return f"T.{d.pick('max', 'min')}({a}, {b})"
        word = d.pick("T.Select", "T.if_then_else")
        return f"{word}({self.condition()}, {a}, {b})"

    def condition(self) -> str:
        d = self.d
        if self.loops and d.often(0.55):
            var, low, high = d.rng.choice(self.loops)
            at = d.rng.randint(min(low, high), max(low, high))
            other = d.rng.choice(self.loops)[0]
            return d.pick(f"{var} < {at}", f"{var} >= {at}", f"{var} == {at}", f"{var} % 2 == 0",
                          f"{var} != {other}", f"{var} + {other} < {at + 2}")  # fmt: skip
        if d.often(0.2):
            return f"{self.condition()} {d.pick('and', 'or')} {self.condition()}"
        name = d.pick(*self.buffers)
        return f"{self.element(name)} {d.pick('<', '>', '==')} {d.number(self.buffers[name][1])}"

    # -- statements --------------------------------------------------------------------------------

    def body(self, depth: int) -> None:
        """Statements at a depth, at least one."""
        scalars, before = dict(self.scalars), dict(self.buffers)
        for _ in range(self.d.rng.choice((1, 1, 2, 3))):
            self.statement(depth)
        self.scalars, self.buffers = scalars, before

    def statement(self, depth: int) -> None:
        self.left -= 1
        d, roll = self.d, self.d.rng.random()
        nested = len(self.loops)
        if nested < 3 and (not nested or (self.left > 0 and roll < 0.3)):
            self.loop(depth)
        elif self.left > 0 and roll < 0.42 and depth < 7:
            self.branch(depth)
        elif self.left > 0 and roll < 0.56 and nested < 3:
            self.summed(depth)
        elif self.left > 0 and roll < 0.6:
            self.counted(depth)
        elif self.left > 0 and roll < 0.64:
            name, kind = self.fresh("x"), d.rng.choice(self.types)
            self.t.add(depth, f"{name} = {self.value(kind)}")
            self.scalars[name] = kind
        elif self.left > 0 and roll < 0.67 and nested and self.arrays < 2:
            self.array(depth)
        else:
            self.store(depth)

    def loop(self, depth: int) -> None:
        d, var = self.d, self.fresh("i")
        size = d.rng.choice(self.sizes)
        form, back = d.rng.random(), False
        low, high = 0, size - 1
        ends = f"{size}"
        if form < 0.12:
            low, high, ends = 1, size - 2, f"1, {size - 1}"
        elif form < 0.18:
            back = True
        elif form < 0.22:
            ends = f"0, {size}, 2"
        elif form < 0.26:
            low, ends = 1, f"1, {size}"
        elif form < 0.42 and self.loops:
            other, least, most = d.rng.choice(self.loops)
            if least >= 0:
                which = d.rng.randrange(3)
                if which == 0:
                    low, high, ends = 0, most - 1, other
                elif which == 1:
                    low, high, ends = least, size - 1, f"{other}, {size}"
                else:
                    low, high, ends = least + 1, size - 1, f"{other} + 1, {size}"
        counter = self.fresh("k") if back else var
        self.t.add(depth, f"for {counter} in range({ends}):")
        if back:
            self.t.add(depth + 1, f"{var} = {size - 1} - {counter}")
        self.loops.append((var, low, high))
        jump = d.rng.random()
        if jump < 0.05:
            self.t.add(depth + 1, f"if {self.condition()}:", f"    {d.pick('break', 'continue')}")
        self.body(depth + 1)
        if 0.05 <= jump < 0.08:
            self.t.add(depth + 1, f"if {self.condition()}:", "    break")
        self.loops.pop()

    def branch(self, depth: int) -> None:
        self.t.add(depth, f"if {self.condition()}:")
        self.body(depth + 1)
        if self.d.often(0.4):
            self.t.add(depth, "else:")
            self.body(depth + 1)

    def summed(self, depth: int) -> None:
        """A variable that a loop changes, and a store of it."""
        d, kind = self.d, self.d.rng.choice(self.types)
        name = self.fresh("s")
        self.t.add(depth, f"{name} = {d.pick(f'T.{kind}(0)', d.number(kind), self.value(kind, 1))}")
        var, size = self.fresh("i"), d.rng.choice(self.sizes)
        self.t.add(depth, f"for {var} in range({size}):")
        self.loops.append((var, 0, size - 1))
        inside = depth + 1
        if d.often(0.25):
            self.t.add(inside, f"if {self.condition()}:")
            inside += 1
        if d.often(0.2):
            self.body(depth + 1 if inside == depth + 1 else inside)
        self.t.add(inside, self.update(name, kind))
        self.loops.pop()
        self.scalars[name] = kind
        self.store(depth)

    def update(self, target: str, kind: str) -> str:
        d, v = self.d, self.value(kind)
        return d.pick(f"{target} += {v}", f"{target} = {target} + {v}",
                      f"{target} = {v} + {target}",
                      f"{target} = T.max({target}, {v})", f"{target} = T.min({v}, {target})",
                      f"{target} -= {v}", f"{target} = {v} - {target}")  # fmt: skip

    def counted(self, depth: int) -> None:
        """A `while` with its counter."""
        name = self.fresh("w")
        self.t.add(depth, f"{name} = {self.d.rng.randint(0, 3)}",
                   f"while {name} < {self.d.rng.randint(1, 5)}:")  # fmt: skip
        self.body(depth + 1)
        self.t.add(depth + 1, f"{name} = {name} + {self.d.rng.randint(1, 2)}")

    def array(self, depth: int) -> None:
        """An array between loops, filled at once."""
        d, name, kind = self.d, self.fresh("L"), self.d.rng.choice(self.types)
        self.arrays += 1
        size, var = d.rng.choice(self.sizes), self.fresh("i")
        self.t.add(depth, f'{name} = T.alloc_buffer(({size},), "{kind}")',
                   f"for {var} in range({size}):")  # fmt: skip
        self.loops.append((var, 0, size - 1))
        self.t.add(depth + 1, f"{name}[{var}] = {self.value(kind)}")
        self.loops.pop()
        self.buffers[name] = (size,), kind

    def store(self, depth: int) -> None:
        name = self.d.pick(*self.buffers)
        kind, target = self.buffers[name][1], self.element(name)
        if self.d.often(0.4):
            self.t.add(depth, self.update(target, kind))
        else:
            self.t.add(depth, f"{target} = {self.value(kind, 3)}")


def plain_loops(d: Draw) -> str:
    """Statements in loops, without blocks."""
    p = Plain(d)
    for _ in range(d.rng.randint(1, 3)):
        p.left = max(p.left, 2)
        p.statement(1)
    return str(p.t)
