"""Random scripts that are Python programs over NumPy as well; `random_script(rng)` gives the text.

Sums, products with powers of two and negations of floating-point numbers are exact in any
contraction; integers wrap. Indices are inside their buffers, variables have values where
they are read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROWS, COLUMNS = 8, 6
HEAD = f"""@T.prim_func
def f(A: T.Buffer(({ROWS}, {COLUMNS}), "float32"), B: T.Buffer(({ROWS}, {COLUMNS}), "float32"),
      V: T.Buffer((90,), "float32"), N: T.Buffer(({ROWS},), "int32"),
      U: T.Buffer(({ROWS},), "uint8"), p: T.int32):
"""


def arguments(seed: int) -> list[Any]:
    """Arguments of a random script; both zeros are among the numbers."""
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> Any:
        values = rng.integers(-4, 5, shape).astype("float32")
        return np.where(rng.random(shape) < 0.1, np.float32(-0.0), values)

    low, high = np.iinfo("int32").min, np.iinfo("int32").max
    n = rng.integers(-9, 10, ROWS).astype("int32")
    n[rng.integers(0, ROWS)] = rng.choice([low, high, 0])
    sizes = (ROWS, COLUMNS), (ROWS, COLUMNS), (90,)
    u = rng.integers(0, 256, ROWS).astype("uint8")
    return [*(floats(*s) for s in sizes), n, u, int(rng.integers(0, 7))]


REALS = [
    "(@r + @r)", "(@r - @r)", "(-@r)", "(@r * 0.5)", "(@r * -2.0)", "(2 * @r)", "(1 + @r)",
    "(-0.0 + @r)", "(@r + 0.0)", "(0 - @r)", "(@r / 4)", "(@r if @c else @r)", "(-@r * -1.0)",
    "(@r * 0.0)", "T.float32(@i % 64)", "(@r % 4.0)", "(@r // 2.0)", "(@r % -2.0)", "-(@r - @r)",
]  # fmt: skip
INTEGERS = [
    "(@i + @i)", "(@i - @i)", "(@i * 3)", "(@i * -2)", "(-@i)", "(~@i)", "(@i // 2)", "(@i // -3)",
    "(@i // 4)", "(@i % 3)", "(@i % -4)", "(@i % 8)", "(@i & @i)", "(@i | 5)", "(@i ^ @i)",
    "(@i >> 2)", "(@i << 3)", "(@i if @c else @i)", "min(@i, @i)", "max(@i, 3)", "(@i ** 2)",
    "T.int32(@r % 16.0)", "T.int32(T.int8(@i % 128))", "(@i * 4 + @i) // 4", "(@i // 3 * 3)",
]  # fmt: skip


@dataclass
class Writer:
    """The text of a script in the making, and the names that have values at this place."""

    rng: random.Random
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    names: dict[str, str] = field(default_factory=lambda: {"p": "int32"})  # with their types
    loops: list[str] = field(default_factory=list)  # variables in [0, 6)
    fixed: set[str] = field(default_factory=set)  # names that are not assigned again here
    count: int = 0
    inside: int = 0  # loops that a break may leave

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    @contextmanager
    def body(self, keep: bool = False) -> Iterator[None]:
        """Deeper statements; what they assign first has no value after them."""
        before, loops, fixed = dict(self.names), list(self.loops), set(self.fixed)
        self.depth += 1
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self.depth -= 1
        self.loops, self.fixed = loops, fixed
        if not keep:
            self.names = before

    # ---- expressions -----------------------------------------------------------------------

    def index(self, size: int) -> str:
        choice = self.rng.random()
        if self.loops and choice < 0.6:
            i = self.rng.choice(self.loops)
            return self.rng.choice([i, i, f"{size - 1} - {i}", f"{i} // 2", f"({i} + 3) % {size}"])
        if choice < 0.8:
            return f"({self.integer(0)}) % {size}"
        return str(self.rng.randrange(size))

    def pick(self, kind: str) -> str | None:
        found = [n for n, k in self.names.items() if k == kind]
        return self.rng.choice(found) if found else None

    def fill(self, templates: list[str], depth: int) -> str:
        """One of the templates, with @r, @i and @c replaced by expressions of the three types."""
        rules = {"r": self.real, "i": self.integer, "c": self.condition}
        parts = self.rng.choice(templates).split("@")
        return parts[0] + "".join(rules[part[0]](depth) + part[1:] for part in parts[1:])

    def real(self, depth: int) -> str:
        """A float32 expression."""
        rng = self.rng
        if depth > 0 and rng.random() < 0.8:
            return self.fill(REALS, depth - 1)
        name = self.pick("float32")
        return rng.choice([
            f"A[{self.index(ROWS)}, {self.index(COLUMNS)}]", f"V[{self.index(90)}]",
            f"T.float32({rng.choice(['0', '1', '-2', '-0.0', '0.5'])})", *[name] * 3,
        ][: 6 if name else 3])  # fmt: skip

    def integer(self, depth: int) -> str:
        """An int32 expression."""
        rng = self.rng
        if depth > 0 and rng.random() < 0.8:
            return self.fill(INTEGERS, depth - 1)
        name = self.pick("int32")
        leaves = [f"N[{rng.randrange(ROWS)}]", f"T.int32(U[{rng.randrange(ROWS)}])"]
        leaves += [f"T.int32({rng.randint(-9, 9)})", *self.loops, *([name] * 3 if name else [])]
        return rng.choice(leaves)

    def condition(self, depth: int) -> str:
        rng = self.rng
        sign = rng.choice(["<", "<=", "==", "!=", ">", ">="])
        kind = rng.random()
        if depth > 0 and kind < 0.25:
            word = rng.choice(["and", "or"])
            return f"({self.condition(depth - 1)} {word} {self.condition(depth - 1)})"
        if depth > 0 and kind < 0.35:
            return f"(not {self.condition(depth - 1)})"
        name = self.pick("bool")
        if name and kind < 0.5:
            return name
        if kind < 0.6:
            return f"({rng.randint(-4, 2)} <= {self.integer(0)} < {rng.randint(0, 9)})"
        if kind < 0.8:
            return f"({self.integer(0)} {sign} {self.integer(0)})"
        return f"({self.real(0)} {sign} {self.real(0)})"

    def value(self, kind: str, depth: int = 2) -> str:
        rule = {"float32": self.real, "int32": self.integer, "bool": self.condition}[kind]
        return rule(depth)

    # ---- statements ------------------------------------------------------------------------

    def statements(self, budget: int, depth: int) -> None:
        for _ in range(budget):
            plain = [self.assign] * 3 + [self.again] * 4 + [self.element] * 4
            plain += [self.section] * 3 + [self.swap]
            nested = [self.branch] * 3 + [self.loop] * 3 + [self.repeat, self.lanes, self.block]
            choice = self.rng.randrange(len(plain) + (len(nested) if depth > 0 else 0))
            if choice < len(plain):
                plain[choice]()
            else:
                nested[choice - len(plain)](depth - 1)

    def assign(self) -> None:
        kind = self.rng.choice(["float32", "float32", "int32", "bool"])
        text, name = self.value(kind), self.fresh("x")
        self.line(f"{name} = {text}")
        self.names[name] = kind

    def again(self) -> None:
        free = [n for n in self.names if n not in self.fixed]
        if not free:
            return self.assign()
        name = self.rng.choice(free)
        kind = self.names[name]
        if kind == "bool" or self.rng.random() < 0.6:
            self.line(f"{name} = {self.value(kind)}")
        elif kind == "float32":
            self.line(f"{name} {self.rng.choice(['+=', '-='])} {self.real(1)}")
        else:
            op = self.rng.choice(["+=", "-=", "&=", "|=", "^="])
            self.line(f"{name} {op} {self.integer(1)}")

    def element(self) -> None:
        rng = self.rng
        op = rng.choice(["=", "=", "+=", "-="])
        if rng.random() < 0.7:
            target = rng.choice([f"B[{self.index(ROWS)}, {self.index(COLUMNS)}]",
                                 f"V[{self.index(90)}]"])  # fmt: skip
            self.line(f"{target} {op} {self.real(2)}")
        else:
            self.line(f"N[{self.index(ROWS)}] {op} {self.integer(2)}")

    def swap(self) -> None:
        free = [n for n in self.names if n not in self.fixed]
        pairs = [(n, m) for n in free for m in free if n < m and self.names[n] == self.names[m]]
        if pairs and self.rng.random() < 0.6:
            a, b = self.rng.choice(pairs)
        else:
            a, b = f"N[{self.index(ROWS)}]", f"N[{self.rng.randrange(ROWS)}]"
        self.line(f"{a}, {b} = {b}, {a}")

    def section(self) -> None:
        """An assignment to a slice, of one or two dimensions."""
        rng = self.rng
        op = rng.choice(["=", "=", "=", "+=", "-="])
        if rng.random() < 0.4:
            size = rng.choice([1, 3, 4, 8, 40, 70])
            shape = [size]
        else:
            shape = [rng.randint(1, 4), rng.randint(1, 4)]
        target = self.view(shape, exact=True)
        terms = [self.view(shape) if rng.random() < 0.8 else self.real(0)
                 for _ in range(rng.randint(1, 3))]  # fmt: skip
        text = terms[0]
        for term in terms[1:]:
            text = f"{text} {rng.choice('+-')} {term}"
        text = f"-({text})" if rng.random() < 0.2 else text
        text = "0" if rng.random() < 0.1 else text
        self.line(f"{target} {op} {text}")

    def view(self, shape: list[int], exact: bool = False) -> str:
        """A slice of a buffer that has the shape, or is repeated over it."""
        rng = self.rng
        shape = shape if exact else [1 if rng.random() < 0.15 else n for n in shape]
        if len(shape) == 2 and not exact and rng.random() < 0.2:
            shape = shape[1:]
        if len(shape) == 1:
            n = shape[0]
            row = n <= COLUMNS and rng.random() < 0.4
            if row:
                other = self.index(ROWS)
                return f"A[{other}, {self.span(n, COLUMNS)}]"
            if n <= ROWS and rng.random() < 0.3:
                return f"B[{self.span(n, ROWS)}, {self.index(COLUMNS)}]"
            return f"V[{self.span(n, 90)}]"
        name = rng.choice("AB")
        return f"{name}[{self.span(shape[0], ROWS)}, {self.span(shape[1], COLUMNS)}]"

    def span(self, count: int, size: int) -> str:
        steps = [s for s in (1, 1, 1, 2, 3) if (count - 1) * s < size]
        step = self.rng.choice(steps)
        reach = (count - 1) * step + 1
        low = self.rng.randint(0, size - reach)
        if count == size:
            return ":"
        if self.loops and step == 1 and size - reach >= 5 and self.rng.random() < 0.5:
            i = self.rng.choice(self.loops)
            return f"{i}:{i} + {count}"
        tail = "" if step == 1 else f":{step}"
        return f"{low}:{low + reach}{tail}"

    def branch(self, depth: int) -> None:
        self.line(f"if {self.condition(2)}:")
        joined = self.rng.random() < 0.3
        name, kind = self.fresh("y"), self.rng.choice(["float32", "int32"])
        with self.body():
            self.statements(self.rng.randint(1, 3), depth)
            if self.inside and self.rng.random() < 0.2:
                self.line(self.rng.choice(["break", "continue"]))
                joined = False
            elif joined:
                self.line(f"{name} = {self.value(kind)}")
        if joined or self.rng.random() < 0.4:
            self.line("else:")
            with self.body():
                self.statements(self.rng.randint(1, 2), depth)
                if joined:
                    self.line(f"{name} = {self.value(kind)}")
        if joined:
            self.names[name] = kind

    def loop(self, depth: int) -> None:
        i = self.fresh("i")
        bounds = [str(self.rng.randint(1, 6)), "6", "p % 7", "2, 6", "0, 6, 2", "p % 4, 6", "5, 5"]
        ints = self.pick("int32")
        if ints:
            bounds.append(f"({ints}) % 6")
        self.line(f"for {i} in range({self.rng.choice(bounds)}):")
        with self.body():
            self.inside += 1
            self.loops.append(i)
            self.statements(self.rng.randint(1, 3), depth)
            self.inside -= 1

    def repeat(self, depth: int) -> None:
        k = self.fresh("k")
        self.line(f"{k} = 0")
        self.line(f"while {k} < {self.rng.randint(1, 5)} and {self.condition(1)}:")
        with self.body():
            self.inside += 1
            self.line(f"{k} = {k} + 1")
            self.names[k] = "int32"
            self.fixed.add(k)
            self.statements(self.rng.randint(1, 3), depth)
            self.inside -= 1

    def lanes(self, depth: int) -> None:
        """A loop whose iterations run side by side: each writes its own row."""
        i, s = self.fresh("i"), self.fresh("s")
        word = self.rng.choice(["T.parallel", "T.vectorized", "T.unroll"])
        self.line(f"for {i} in {word}({COLUMNS}):")
        with self.body():
            self.fixed |= set(self.names)
            self.loops.append(i)
            self.line(f"{s} = {self.real(1)}")
            self.names[s] = "float32"
            j = self.fresh("j")
            self.line(f"for {j} in range({self.rng.choice(['3', 'p % 7'])}):")
            with self.body():
                self.loops.append(j)
                if self.rng.random() < 0.5:
                    self.line(f"if {self.condition(1)}:")
                    self.line(f"    {s} = {self.real(1)}")
                self.line(f"{s} += {self.real(1)}")
            self.line(f"B[{i}, {self.rng.randrange(COLUMNS)}] = {s}")

    def block(self, depth: int) -> None:
        i, v = self.fresh("i"), self.fresh("v")
        self.line(f"for {i} in range(6):")
        with self.body():
            self.line(f'with T.block("{self.fresh("b")}"):')
            inside, self.inside = self.inside, 0
            with self.body():
                self.line(f"{v} = T.axis.spatial(6, {i})")
                self.loops = [v]
                self.statements(self.rng.randint(1, 3), depth)
            self.inside = inside


def random_script(rng: random.Random) -> str:
    """The text of a random function `f` over `arguments(seed)`."""
    writer = Writer(rng)
    writer.statements(rng.randint(2, 6), 3)
    if "p" in writer.names:
        writer.line("N[0] = p")
    return HEAD + "\n".join(writer.lines) + "\n"
