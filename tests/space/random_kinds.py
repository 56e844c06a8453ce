"""Random programs of the kinds that users write beside single operators, for the fuzz of the space.

Each kind is a function of a `Draw`, which gives numbers and odd extents up to a limit; the text it
returns is a script. All indices stay inside, and all that is read was written or is an argument.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

ODD = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 19, 24, 31, 32, 33, 37, 48, 63, 64, 65)
INTS = ("int32", "int32", "int64", "int16", "int8", "uint8")
REALS = ("float32", "float32", "float32", "float64")


@dataclass
class Draw:
    """A generator of the numbers of one program.

    Attributes:
        most: the largest extent.
    """

    rng: random.Random
    most: int

    def size(self, low: int = 1, most: int = 65) -> int:
        sizes = [s for s in ODD if low <= s <= min(self.most, most)]
        return self.rng.choice(sizes or [low])

    def pick(self, *items: str) -> str:
        return self.rng.choice(items)

    def often(self, share: float) -> bool:
        return self.rng.random() < share

    def dtype(self) -> str:
        return self.rng.choice(REALS + REALS + INTS)

    def number(self, dtype: str) -> str:
        return f"T.{dtype}({self.rng.choice((0, 1, 2, 3))})"


@dataclass
class Text:
    """A script in the making."""

    params: list[str]
    lines: list[str]

    @classmethod
    def of(cls, dtype: str, **shapes: tuple[int, ...]) -> Text:
        return cls([_declared(b, s, dtype, "T.Buffer", ": ") for b, s in shapes.items()], [])

    def param(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self.params.append(_declared(name, shape, dtype, "T.Buffer", ": "))

    def temp(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self.add(1, _declared(name, shape, dtype, "T.alloc_buffer", " = "))

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def block(self, name: str, axes: dict[str, tuple[int, str]], *body: str, init: str = "",
              where: str = "", depth: int = 1) -> None:  # fmt: skip
        """Loops around one block; `axes` has the extent and kind of each, the body uses v<loop>."""
        loops, kinds = ", ".join(axes), "".join(kind for _, kind in axes.values())
        sizes = ", ".join(str(extent) for extent, _ in axes.values())
        self.add(depth, f"for {loops} in T.grid({sizes}):", f'    with T.block("{name}"):')
        iters = ", ".join(f"v{a}" for a in axes)
        self.add(depth + 2, f'{iters} = T.axis.remap("{kinds}", [{loops}])')
        if where:
            self.add(depth + 2, f"T.where({where})")
        if init:
            self.add(depth + 2, "with T.init():", *(f"    {line}" for line in init.split("; ")))
        self.add(depth + 2, *body)

    def __str__(self) -> str:
        return f"@T.prim_func\ndef f({', '.join(self.params)}):\n" + "\n".join(self.lines) + "\n"


def _declared(name: str, shape: tuple[int, ...], dtype: str, word: str, sign: str) -> str:
    return f'{name}{sign}{word}(({"".join(f"{s}, " for s in shape)}), "{dtype}")'


def arg_reductions(d: Draw) -> str:
    """The place and the value of an extremum, along rows or columns, in one block."""
    n, m, dtype = d.size(), d.size(), d.pick("float32", "float64", "int32", "int8", "uint8")
    rows, largest = d.often(0.6), d.often(0.5)
    index, sign = d.pick("int32", "int64"), (">" if largest else "<") + d.pick("", "=")
    t = Text.of(dtype, A=(n, m) if rows else (m, n), V=(n,))
    t.param("I", (n,), index)
    x = "A[vi, vk]" if rows else "A[vk, vi]"
    axes = {"i": (n, "S"), "k": (m, "R")}
    if not rows and d.often(0.5):
        axes = dict(reversed(axes.items()))
    start = f'T.{"min" if largest else "max"}_value("{dtype}")'
    place = "vk" if index == "int32" else 'T.cast(vk, "int64")'
    better = d.pick(f"V[vi] {sign} {x}", f"{x} {sign} V[vi]")
    keep = (f"V[vi] {sign} {x}") == better
    old, new = ("I[vi]", place) if keep else (place, "I[vi]")
    first, second = ("V[vi]", x) if keep else (x, "V[vi]")
    t.block(
        "arg", axes,
        f"i_new: T.{index} = T.Select({better}, {old}, {new})",
        f"v_new: T.{dtype} = T.Select({better}, {first}, {second})",
        "I[vi] = i_new", "V[vi] = v_new",
        init=f"I[vi] = {'-1' if index == 'int32' else 'T.int64(-1)'}; V[vi] = {start}",
    )  # fmt: skip
    return str(t)


def several_outputs(d: Draw) -> str:
    """Several stores in one nest: sums of powers, products of a matrix from both sides."""
    n, m, dtype = d.size(), d.size(), d.dtype()
    form = d.rng.randrange(4)
    axes = {"i": (n, "S"), "j": (m, "R")}
    if form == 0:  # a sum and a sum of squares
        t = Text.of(dtype, A=(n, m), S=(n,), Q=(n,))
        zero = f"T.{dtype}(0)"
        t.block("S", axes, "S[vi] = S[vi] + A[vi, vj]", "Q[vi] = Q[vi] + A[vi, vj] * A[vi, vj]",
                init=f"S[vi] = {zero}; Q[vi] = {zero}")  # fmt: skip
        return str(t)
    if form == 1:  # bicg, as loops
        t = Text.of(dtype, A=(n, m), P=(m,), R=(n,), Q=(n,), S=(m,))
        t.add(1, f"for j in range({m}):", f"    S[j] = T.{dtype}(0)", f"for i in range({n}):",
              f"    Q[i] = T.{dtype}(0)", f"    for j in range({m}):")  # fmt: skip
        t.add(3, "S[j] = S[j] + R[i] * A[i, j]", "Q[i] = Q[i] + A[i, j] * P[j]")
        return str(t)
    if form == 2:  # spatial, the second reads the first
        t = Text.of(dtype, A=(n, m), X=(n, m), Y=(n, m))
        later = d.pick("X[vi, vj]", "A[vi, vj]", "Y[vi, vj]")
        t.block("X", {"i": (n, "S"), "j": (m, "S")}, "X[vi, vj] = A[vi, vj] * A[vi, vj]",
                f"Y[vi, vj] = {later} + {d.number(dtype)}")  # fmt: skip
        return str(t)
    t = Text.of(dtype, A=(n, m), L=(n,), H=(n,))
    t.block("L", axes, "L[vi] = T.min(L[vi], A[vi, vj])", "H[vi] = T.max(H[vi], A[vi, vj])",
            init=f'L[vi] = T.max_value("{dtype}"); H[vi] = T.min_value("{dtype}")')  # fmt: skip
    return str(t)


def accumulations(d: Draw) -> str:
    """Products into what the result held: C = beta * C + A B, or an init that reads."""
    n, m, k, dtype = d.size(), d.size(), d.size(), d.dtype()
    a = ("A[vi, vk]", (n, k)) if d.often(0.6) else ("A[vk, vi]", (k, n))
    b = ("B[vk, vj]", (k, m)) if d.often(0.6) else ("B[vj, vk]", (m, k))
    t = Text.of(dtype, A=a[1], B=b[1], C=(n, m))
    axes = {"i": (n, "S"), "j": (m, "S"), "k": (k, "R")}
    scaled = f"C[vi, vj] * {d.number(dtype)}"
    form = d.rng.randrange(4)
    update = f"C[vi, vj] {d.pick('+', '+', '-')} {a[0]} * {b[0]}"
    if form == 0:
        t.block("C", axes, f"C[vi, vj] = {update}", init=f"C[vi, vj] = {scaled}")
    elif form == 1:
        t.block("scale", {"i": (n, "S"), "j": (m, "S")}, f"C[vi, vj] = {scaled}")
        t.block("C", axes, f"C[vi, vj] = {update}")
    elif form == 2:
        t.block("C", axes, f"C[vi, vj] = {update}")
        if d.often(0.5):
            t.block("relu", {"i": (n, "S"), "j": (m, "S")},
                    f"C[vi, vj] = T.max(C[vi, vj], {d.number(dtype)})")  # fmt: skip
    else:
        x, y = (s.replace("v", "") for s in (a[0], b[0]))
        t.add(1, f"for i, j in T.grid({n}, {m}):", f"    C[i, j] = C[i, j] * {d.number(dtype)}",
              f"    for k in range({k}):", f"        C[i, j] += {x} * {y}")  # fmt: skip
    return str(t)


def in_place(d: Draw) -> str:
    """Results that overwrite what they were computed from."""
    n, m, dtype = d.size(), d.size(2), d.dtype()
    form = d.rng.randrange(6)
    t = Text.of(dtype, A=(n, m), B=(m, m))
    if form == 0:  # doitgen: a row by a combination of itself, through a temporary
        t.temp("R", (m,), dtype)
        t.add(1, f"for i in range({n}):", f"    for j in range({m}):",
              f"        R[j] = T.{dtype}(0)", f"        for k in range({m}):",
              "            R[j] += A[i, k] * B[k, j]", f"    for j in range({m}):",
              "        A[i, j] = R[j]")  # fmt: skip
    elif form == 1:  # reversed in place
        t.add(1, f"for i, j in T.grid({n}, {m // 2}):")
        t.add(2, "x = A[i, j]", f"A[i, j] = A[i, {m - 1} - j]", f"A[i, {m - 1} - j] = x")
    elif form == 2:  # transposed in place, each pair once
        t.add(1, f"for i in range({m}):", "    for j in range(i):", "        x = B[i, j]",
              "        B[i, j] = B[j, i]", "        B[j, i] = x")  # fmt: skip
    elif form == 3:  # shifted: forwards reads are parallel only with a copy
        shift = d.rng.randint(1, min(3, m - 1))
        t.add(1, f"for i, j in T.grid({n}, {m - shift}):",
              f"    A[i, j] = A[i, j + {shift}] + B[0, j]")  # fmt: skip
    elif form == 4:  # several updates of one array
        for k in range(d.rng.randint(2, 4)):
            value = d.pick("A[vi, vj] + B[0, vj]", "T.max(A[vi, vj], B[vj, 0])",
                           f"A[vi, vj] * {d.number(dtype)}", "A[vi, vj] - B[vj, vj]")  # fmt: skip
            t.block(f"U{k}", {"i": (n, "S"), "j": (m, "S")}, f"A[vi, vj] = {value}")
    else:  # each row adds the row before the last
        t.add(1, f"for i in range({n}):", f"    for j in range({m}):")
        t.add(3, "if i >= 2:", "    A[i, j] = A[i, j] + A[i - 2, j] * B[j, j]")
    return str(t)


def triangles(d: Draw) -> str:
    """Products and updates over triangles and bands."""
    n, m, dtype = d.size(2, 40), d.size(1, 40), d.pick(*REALS, "int32", "int64")
    span = d.pick("range(i + 1)", f"range(i, {n})", "range(i)", f"range(i + 1, {n})",
                  f"range(T.max(i - 2, 0), T.min(i + 3, {n}))", f"range({n} - i)")  # fmt: skip
    form = d.rng.randrange(6)
    if form == 0:  # syrk
        t = Text.of(dtype, A=(n, m), C=(n, n))
        other = d.pick("A[j, k]", "A[j, k]", "A[i, k]")
        t.add(1, f"for i in range({n}):", f"    for j in {span}:",
              f"        C[i, j] = C[i, j] * {d.number(dtype)}", f"    for k in range({m}):",
              f"        for j in {span}:", f"            C[i, j] += A[i, k] * {other}")  # fmt: skip
    elif form == 1:  # syrk as blocks
        t = Text.of(dtype, A=(n, m), C=(n, n))
        t.add(1, f"for i in range({n}):", f"    for j in {span}:", f"        for k in range({m}):",
              '            with T.block("C"):')  # fmt: skip
        t.add(5, 'vi, vj, vk = T.axis.remap("SSR", [i, j, k])')
        if d.often(0.6):
            t.add(5, "with T.init():", f"    C[vi, vj] = T.{dtype}(0)")
        t.add(5, "C[vi, vj] = C[vi, vj] + A[vi, vk] * A[vj, vk]")
    elif form == 2:  # trmm, in place
        t = Text.of(dtype, A=(n, n), B=(n, m))
        t.add(1, f"for i in range({n}):", f"    for j in range({m}):")
        t.add(3, f"for k in range(i + 1, {n}):", "    B[i, j] += A[k, i] * B[k, j]")
        t.add(3, f"B[i, j] = B[i, j] * {d.number(dtype)}")
    elif form == 3:  # a triangular product
        t = Text.of(dtype, A=(n, n), B=(n, m), C=(n, m))
        t.add(1, f"for i, j in T.grid({n}, {m}):", f"    C[i, j] = T.{dtype}(0)",
              f"    for k in {span}:", "        C[i, j] += A[i, k] * B[k, j]")  # fmt: skip
    elif form == 4:  # symm: both sides of a triangle at once
        t = Text.of(dtype, A=(n, n), B=(n, m), C=(n, m))
        t.add(1, f"for i, j in T.grid({n}, {m}):")
        t.temp("S", (1,), dtype)
        t.lines.insert(0, t.lines.pop())
        t.add(2, f"S[0] = T.{dtype}(0)", "for k in range(i):",
              "    C[k, j] += B[i, j] * A[i, k]", "    S[0] += B[k, j] * A[i, k]",
              "C[i, j] = C[i, j] + B[i, j] * A[i, i] + S[0]")  # fmt: skip
    else:  # the rest of a triangle from a full product
        t = Text.of(dtype, A=(n, m), C=(n, n))
        t.temp("F", (n, n), dtype)
        axes = {"i": (n, "S"), "j": (n, "S"), "k": (m, "R")}
        t.block("F", axes, "F[vi, vj] = F[vi, vj] + A[vi, vk] * A[vj, vk]",
                init=f"F[vi, vj] = T.{dtype}(0)")  # fmt: skip
        t.block("C", {"i": (n, "S"), "j": (n, "S")},
                f"C[vi, vj] = T.if_then_else(vj <= vi, F[vi, vj], {d.number(dtype)})")  # fmt: skip
    return str(t)


def solvers(d: Draw) -> str:
    """Rows that need the rows before them: triangular solves, factorizations."""
    n, m = d.size(2, 33), d.size(1, 33)
    dtype = d.pick("float64", "float32", "int32")
    by = "//" if dtype == "int32" else "/"
    form = d.rng.randrange(4)
    if form == 0:
        t = Text.of(dtype, L=(n, n), b=(n,), x=(n,))
        t.add(1, f"for i in range({n}):", "    x[i] = b[i]", "    for j in range(i):",
              "        x[i] -= L[i, j] * x[j]")  # fmt: skip
    elif form == 1:  # backwards, several right sides
        t = Text.of(dtype, U=(n, n), X=(n, m))
        t.add(1, f"for r in range({n}):", f"    for j in range({m}):",
              f"        for k in range({n} - r, {n}):",
              f"            X[{n - 1} - r, j] -= U[{n - 1} - r, k] * X[k, j]")  # fmt: skip
    elif form == 2:  # lu without pivots, of a matrix with ones below
        t = Text.of(dtype, A=(n, n))
        t.add(1, f"for i in range({n}):", "    for j in range(i):", "        for k in range(j):",
              "            A[i, j] -= A[i, k] * A[k, j] * T." + dtype + "(0)",
              f"    for j in range(i, {n}):", "        for k in range(i):",
              "            A[i, j] -= A[i, k] * A[k, j] * T." + dtype + "(0)")  # fmt: skip
    else:
        t = Text.of(dtype, L=(n, n), X=(n, m), D=(n,))
        t.add(1, f"for i in range({n}):", "    for k in range(i):", f"        for j in range({m}):",
              "            X[i, j] = X[i, j] - L[i, k] * X[k, j]", f"    for j in range({m}):",
              f"        X[i, j] = X[i, j] {by} (D[i] * D[i] + T.{dtype}(1))")  # fmt: skip
    return str(t)


def ragged(d: Draw) -> str:
    """Rows of different lengths, bounded by offsets in memory: sparse products, bags."""
    n, size, m, dtype = d.size(), d.size(), d.size(), d.pick(*REALS, "int32")
    kind = d.pick("int32", "int32", "int64")
    form = d.rng.randrange(3)
    t = Text([], [])
    t.param("P", (n + 1,), kind)
    t.param("J", (size,), kind)
    t.param("V", (size,), dtype)
    if form < 2:
        t.param("X", (m,), dtype)
        t.param("Y", (n,), dtype)
        term = "V[k] * X[J[k]]" if form == 0 else "X[J[k]]"
        t.add(1, f"for i in range({n}):", f"    Y[i] = T.{dtype}(0)",
              "    for k in range(P[i], P[i + 1]):", f"        Y[i] += {term}")  # fmt: skip
    else:
        width = d.size()
        t.param("X", (m, width), dtype)
        t.param("Y", (n, width), dtype)
        t.add(1, f"for i, j in T.grid({n}, {width}):", f"    Y[i, j] = {d.number(dtype)}",
              f"for i in range({n}):", "    for k in range(P[i], P[i + 1]):",
              f"        for j in range({width}):")  # fmt: skip
        t.add(4, d.pick("Y[i, j] += V[k] * X[J[k], j]", "Y[i, j] = T.max(Y[i, j], X[J[k], j])"))
    return str(t)


def normalisations(d: Draw) -> str:
    """Softmax, log-sum-exp, layer and RMS norms, with masks, and products of what they give."""
    n, m, w = d.size(1, 33), d.size(2), d.size(1, 33)
    dtype = d.pick("float32", "float32", "float64")
    value = d.pick("X[vi, vk]", f"X[vi, vk] * T.{dtype}(0.5)",
                   f'T.if_then_else(vk <= vi, X[vi, vk], T.{dtype}("-inf"))',
                   f"T.if_then_else(vk <= vi + 3, X[vi, vk], T.{dtype}(-1000))")  # fmt: skip
    t = Text.of(dtype, X=(n, m), W=(m, w))
    red, row = {"i": (n, "S"), "k": (m, "R")}, {"i": (n, "S"), "k": (m, "S")}
    zero = f"T.{dtype}(0)"
    form = d.rng.randrange(4)
    if form < 2:
        lowest = d.pick(f'T.min_value("{dtype}")', f'T.{dtype}("-inf")')
        t.temp("M", (n,), dtype)
        t.temp("S", (n,), dtype)
        t.block("M", red, f"M[vi] = T.max(M[vi], {value})", init=f"M[vi] = {lowest}")
        power, staged = f"T.exp({value} - M[vi])", d.often(0.6)
        if staged:
            t.temp("E", (n, m), dtype)
            t.block("E", row, f"E[vi, vk] = {power}")
            power = "E[vi, vk]"
        t.block("S", red, f"S[vi] = S[vi] + {power}", init=f"S[vi] = {zero}")
        share = f"{power} / S[vi]"
    elif form == 2:
        t.temp("S", (n,), dtype)
        t.block("S", red, "S[vi] = S[vi] + X[vi, vk] * X[vi, vk]", init=f"S[vi] = {zero}")
        share = f"X[vi, vk] / T.sqrt(S[vi] + T.{dtype}(1))"
    else:
        t.temp("S", (n,), dtype)
        t.temp("Q", (n,), dtype)
        t.block("S", red, "S[vi] = S[vi] + X[vi, vk]", "Q[vi] = Q[vi] + X[vi, vk] * X[vi, vk]",
                init=f"S[vi] = {zero}; Q[vi] = {zero}")  # fmt: skip
        mean, size = f"S[vi] / T.{dtype}({m})", f"T.{dtype}({m})"
        share = (f"(X[vi, vk] - {mean}) / T.sqrt(Q[vi] / {size} - {mean} * ({mean})"
                 f" + T.{dtype}(1))")  # fmt: skip
    end = d.rng.randrange(3)
    if end == 0 and form < 2:
        t.param("O", (n,), dtype)
        t.block("O", {"i": (n, "S")}, "O[vi] = T.log(S[vi]) + M[vi]")
    elif end < 2:
        t.param("O", (n, m), dtype)
        t.block("O", row, f"O[vi, vk] = {share}")
    else:
        t.param("O", (n, w), dtype)
        axes = {"i": (n, "S"), "j": (w, "S"), "k": (m, "R")}
        if d.often(0.5):
            t.temp("N", (n, m), dtype)
            t.block("N", row, f"N[vi, vk] = {share}")
            share = "N[vi, vk]"
        t.block("O", axes, f"O[vi, vj] = O[vi, vj] + {share} * W[vk, vj]",
                init=f"O[vi, vj] = {zero}")  # fmt: skip
    return str(t)


def attentions(d: Draw) -> str:
    """Scores, softmax with or without a mask, weighted values, for several heads."""
    h, n, m, e, f = d.size(1, 3), d.size(1, 33), d.size(1, 33), d.size(1, 17), d.size(1, 17)
    dtype = "float32"
    t = Text.of(dtype, Q=(h, n, e), K=(h, m, e), V=(h, m, f))
    mask = d.pick("", "vj <= vi", "vj <= vi", "vi - 3 <= vj and vj <= vi + 1")
    if d.often(0.2):
        t.param("B", (n, m), dtype)
    biased = len(t.params) == 4
    t.param("O", (h, n, f), dtype)
    for name, shape in (("S", (h, n, m)), ("P", (h, n, m)), ("M", (h, n)), ("D", (h, n))):
        t.temp(name, shape, dtype)
    head, rows = {"h": (h, "S")}, {"i": (n, "S")}
    t.block("S", {**head, **rows, "j": (m, "S"), "e": (e, "R")},
            "S[vh, vi, vj] = S[vh, vi, vj] + Q[vh, vi, ve] * K[vh, vj, ve]",
            init="S[vh, vi, vj] = T.float32(0)")  # fmt: skip
    source = "S[vh, vi, vj]"
    scaled = f"{source} * T.float32(0.25)" + (" + B[vi, vj]" if biased else "")
    if mask:
        scaled = f"T.if_then_else({mask}, {scaled}, T.float32({d.pick('-1e30', '-100')}))"
    if mask or d.often(0.5):
        t.temp("Z", (h, n, m), dtype)
        t.block("Z", {**head, **rows, "j": (m, "S")}, f"Z[vh, vi, vj] = {scaled}")
        source = "Z[vh, vi, vj]"
    keys = {**head, **rows, "j": (m, "R")}
    t.block("M", keys, f"M[vh, vi] = T.max(M[vh, vi], {source})",
            init='M[vh, vi] = T.min_value("float32")')  # fmt: skip
    t.block("P", {**head, **rows, "j": (m, "S")},
            f"P[vh, vi, vj] = T.exp({source} - M[vh, vi])")  # fmt: skip
    t.block("D", keys, "D[vh, vi] = D[vh, vi] + P[vh, vi, vj]", init="D[vh, vi] = T.float32(0)")
    t.block("O", {**head, **rows, "f": (f, "S"), "j": (m, "R")},
            "O[vh, vi, vf] = O[vh, vi, vf] + P[vh, vi, vj] / D[vh, vi] * V[vh, vj, vf]",
            init="O[vh, vi, vf] = T.float32(0)")  # fmt: skip
    return str(t)
