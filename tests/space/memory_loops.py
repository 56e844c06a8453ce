"""Random loops whose ends, places and memory depend on data, for the fuzz: rows with buffers of
their own, ends from memory, several writers of a buffer, stores at places where lanes cancel."""

from __future__ import annotations

from collections.abc import Callable

from space.random_kinds import Draw, Text

WORDS = ("alloc_buffer", "decl_buffer", "allocate")


class Nests:
    """A program in the making.

    Attributes:
        n, m: the extents of the arrays: X, Y of (n, m), Z of (m,), S of (n,), the integers K of
            (n,), J of (m,) and the ends E of (n + 1,).
        kind: the type of the numbers.
    """

    def __init__(self, d: Draw) -> None:
        self.d, self.n, self.m = d, d.size(1, 33), d.size(2, 33)
        self.kind = d.pick("float32", "float32", "float64", "int32", "int8", "int64")
        n, m = self.n, self.m
        self.t = Text.of(self.kind, X=(n, m), Y=(n, m), Z=(m,), S=(n,))
        self.t.param("K", (n,), d.pick("int32", "int32", "int64", "int8", "uint8"))
        self.t.param("J", (m,), "int32")
        self.t.param("E", (n + 1,), "int32")

    def value(self) -> str:
        """A number in row i and column j."""
        return self.d.pick(
            "X[i, j]", "X[i, j]", f"X[{self.n - 1} - i, j]", "X[i, j] + Z[j]",
            f"X[i, {self.m - 1} - j]", f"X[i, j] * T.cast(j, '{self.kind}')",
        )  # fmt: skip

    def test(self) -> str:
        """A condition in row i and column j."""
        kind = str(self.t.params[4]).rsplit('"', 2)[1]
        j, two = f"T.cast(j, '{kind}')", f"T.{kind}(2)"
        return self.d.pick(
            f"X[i, j] > {self.d.number(self.kind)}", f"{j} < K[i]", f"{j} + K[i] < {two}",
            f"K[i] - {j} > {two}", f"{j} <= K[i] + {two}", f"K[i] * {two} > {j}",
            f"{j} % {two} == K[i] % {two}", "j >= i",
        )  # fmt: skip


def own_rows(p: Nests) -> None:
    """Memory of each row, filled in order, by memory or under a condition, and read later."""
    d, m = p.d, p.m
    word = d.pick(*WORDS)
    add = p.t.add
    deep = d.often(0.3)
    add(1, f"for i in range({p.n}):")
    depth = 2
    if deep:
        add(2, f"for r in range({d.size(1, 4)}):")
        depth = 3
    add(depth, f'q = T.{word}(({m},), "{p.kind}")')
    fill = d.rng.randrange(5)
    if fill != 1 or d.often(0.5):
        add(depth, f"for j in range({m}):", f"    q[j] = {p.value()}")
    if fill == 1:  # a permutation fills it, or does not
        add(depth, f"for j in range({m}):", f"    q[(j * 3 + i) % {m}] = {p.value()}")
        if m % 3 == 0:
            add(depth, f"for j in range({m}):", f"    q[j] = {p.value()}")
    elif fill == 2:
        add(depth, f"for j in range({m}):", "    q[J[j]] += X[i, j]")
    elif fill == 3:
        add(depth, f"for j in range({m}):", f"    if {p.test()}:", f"        q[j] = {p.value()}")
    elif fill == 4:
        add(depth, "top = 0", f"for j in range({m}):", f"    if {p.test()}:",
            "        q[top] = X[i, j]", "        top += 1")  # fmt: skip
        add(depth, "S[i] = " + d.pick(f"T.cast(top, '{p.kind}')", "q[T.max(top - 1, 0)]"))
    read = d.pick(f"q[{m - 1} - j]", "q[j]", "q[J[j]]", "q[j] + q[0]", "q[T.max(j - 1, 0)]")
    target = d.pick("Y[i, j] = {}", "Y[i, j] = {}", "Z[j] += {}", "S[i] += {}")
    add(depth, f"for j in range({m}):", "    " + target.format(read))


def ends(p: Nests) -> None:
    """Loops whose ends memory says."""
    d, m, add = p.d, p.m, p.t.add
    add(1, f"for i in range({p.n}):")
    end = d.pick(
        "E[i]", "E[i], E[i + 1]", f"T.min(E[i], {m})", "E[i] // 2", "1, E[i]", f"E[i], {m}",
        "0, E[i], 2", f"T.max(E[i] - 2, 0), T.min(E[i] + 2, {m})",
    )  # fmt: skip
    form = d.rng.randrange(6)
    if form == 0:
        add(2, f"s = {d.number(p.kind)}")
    add(2, f"for j in range({end}):")
    if d.often(0.25):
        add(3, f"if {p.test()}:", f"    {d.pick('break', 'continue')}")
    if form == 0:
        add(3, f"s = {d.pick('s + {}', 'T.max(s, {})', 's - {}').format(p.value())}")
        add(2, "S[i] = s")
    elif form == 1:
        add(3, f"Y[i, j] = {p.value()}")
    elif form == 2:
        add(3, f"S[i] += {p.value()}", "Y[i, j] = S[i]")
    elif form == 3:
        add(3, "Y[i, j] = Y[i, T.max(j - 1, 0)] + X[i, j]")
    elif form == 4:
        add(3, f"Z[J[j]] += {p.value()}")
    else:
        count = d.pick("j", f"T.min(E[j % {p.n + 1}], 7)", "3")
        add(3, f"for k in range({count}):")
        add(4, f"S[i] += X[i, j]{d.pick('', f' + X[i, T.min(k, {m - 1})]')}")


def writers(p: Nests) -> None:
    """Several nests that write parts of Y, and a reader of all of it."""
    d, n, m, add = p.d, p.n, p.m, p.t.add
    half = m // 2
    parts = [
        (f"{half}", "Y[i, j]"), (f"{m - half}", f"Y[i, j + {half}]"), (f"{half}", "Y[i, 2 * j]"),
        (f"{half}", "Y[i, 2 * j + 1]"), (f"{m}", "Y[i, j]"), (f"{m}", f"Y[i, {m - 1} - j]"),
        (f"{half}, {m}", "Y[i, j]"), ("1", "Y[i, 0]"),
    ]  # fmt: skip
    together = d.often(0.4)
    if together:
        add(1, f"for i in range({n}):")
    for _ in range(d.rng.choice((2, 2, 3))):
        ends_of_row, place = d.rng.choice(parts)
        if not together:
            add(1, f"for i in range({n}):")
        add(2, f"for j in range({ends_of_row}):")
        depth = 3
        if d.often(0.3):
            add(3, f"if {p.test()}:")
            depth = 4
        old = d.pick("", "", " + Y[i, j]", f" + Y[i, {m - 1} - j]")
        add(depth, f"{place} {d.pick('=', '=', '+=')} {p.value()}{old}")
    if not together or d.often(0.5):
        add(1, f"for i in range({n}):")
    other = "Y[i, 0]" if together else f"Y[{n - 1} - i, j]"
    read = d.pick(f"Y[i, {m - 1} - j]", "Y[i, j]", other)
    add(2, f"for j in range({m}):", f"    {d.pick('Z[j]', 'S[i]', 'Z[J[j]]')} += {read}")


def cancelled(p: Nests) -> None:
    """Stores under a condition to places where variables cancel, or where several lanes meet."""
    d, n, m, add = p.d, p.n, p.m, p.t.add
    place = d.pick(
        f"Y[i, (j + i - i) % {m}]", "S[j - j + i]", "Y[i, j * 0]", f"S[(i * {m} + j) // {m}]",
        "Y[i, j // 2]", f"Y[i, (j + 1) % {m}]", f"Y[i, {m - 1} - j]", "S[i]",
        f"Z[T.min(j + i, {m - 1})]", "Z[T.max(j - i, 0)]", "Y[i, j // 2 * 2]",
    )  # fmt: skip
    add(1, f"for i in range({n}):", f"    for j in range({m}):")
    depth = 3
    if d.often(0.7):
        add(3, f"if {p.test()}:")
        depth = 4
    add(depth, f"{place} {d.pick('=', '=', '+=')} {p.value()}")


def walks(p: Nests) -> None:
    """While loops over a row, up to a place that memory says."""
    d, n, m, add = p.d, p.n, p.m, p.t.add
    add(1, f"for i in range({n}):", "    k = 0")
    some = f"T.int32(X[i, k] > {d.number(p.kind)})"
    step = d.pick("k += 1", "k += 1", "k = k + 2", f"k = k + 1 + {some}")
    add(2, f"while k < {m} and {d.pick('X[i, k] >= ', 'X[i, k] != ')}{d.number(p.kind)}:")
    if d.often(0.5):
        add(3, f"{d.pick('S[i]', 'Y[i, k]', 'Z[k]', 'Z[J[k]]')} {d.pick('+=', '=')} X[i, k]")
    add(3, step)
    add(2, f"S[i] = S[i] + T.cast(k, '{p.kind}')")
    if d.often(0.4):
        add(2, f"for j in range(T.min(k, {m})):", f"    Y[i, j] = {p.value()}")


def backwards(p: Nests) -> None:
    """Steps over other numbers than one, in place."""
    d, n, m, add = p.d, p.n, p.m, p.t.add
    add(1, f"for i in range({n}):")
    low, high, by = d.rng.choice(
        ((m - 1, -1, -1), (m - 1, 0, -2), (0, m, 3), (m - 2, -1, -1), (1, m, 1))
    )
    add(2, f"for j in range({low}, {high}, {by}):")
    add(3, d.pick(
        "Y[i, j] = Y[i, T.max(j - 1, 0)] + X[i, j]", f"Y[i, j] = Y[i, T.min(j + 1, {m - 1})]",
        "S[i] = S[i] + Y[i, j]", f"Y[i, j] = Y[i, {m - 1} - j]", "S[i] = Y[i, j]",
        f"Y[i, j] = Y[{n - 1} - i, j] + Z[j]", "Z[j] = T.max(Z[j], X[i, j])",
    ))  # fmt: skip


FORMS: tuple[Callable[[Nests], None], ...] = (
    own_rows, own_rows, ends, ends, writers, cancelled, walks, backwards,
)  # fmt: skip


def memory_loops(d: Draw) -> str:
    """One to three nests."""
    p = Nests(d)
    for _ in range(d.rng.choice((1, 1, 2, 3))):
        d.rng.choice(FORMS)(p)
    return str(p.t)


def named_rows(d: Draw) -> str:
    """Rows of blocks, with variables for numbers of a row: a factor, a place, an end."""
    n, m = d.size(), d.size(2)
    kind = d.pick("float32", "float32", "int32", "float64")
    t = Text.of(kind, X=(n, m), Y=(n, m), Z=(n, m), S=(n,), R=(n,))
    t.param("J", (n,), "int32")
    t.add(1, f"for i in range({n}):")
    t.add(2, f"s = {d.pick('S[i]', f'S[i] * {d.number(kind)}', 'S[i] - R[i]', 'S[0]')}")
    t.add(2, f"e = J[{d.pick('i', 'i', f'(i + 1) % {n}')}] % {n}")
    for name in d.rng.sample(("A", "B", "C"), d.rng.randint(1, 3)):
        source = {"A": "X", "B": d.pick("Y", "X"), "C": d.pick("Z", "X")}[name]
        row = d.pick("vi", "vi", "e")
        value = d.pick(f"{source}[{row}, vj] * s", f"{source}[{row}, vj] - s", f"{source}[e, vj]")
        t.add(2, f"for j in range({d.pick(str(m), str(m), f'T.min(e + 1, {m})')}):")
        t.add(3, f'with T.block("{name}"):')
        t.add(4, f"vi = T.axis.spatial({n}, i)")
        if name == "C":
            t.add(4, f"vj = T.axis.reduce({m}, j)", "with T.init():", "    R[vi] = s")
            t.add(4, f"R[vi] = R[vi] + {value}")
        else:
            t.add(4, f"vj = T.axis.spatial({m}, j)")
            t.add(4, f"{'Y' if name == 'A' else 'Z'}[vi, vj] = {value}")
    return str(t)
