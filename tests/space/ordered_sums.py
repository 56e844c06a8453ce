"""Random sums of floats in plain loops, whose terms have an order: see `space.kept_bits`."""

from __future__ import annotations

from space.random_kinds import Draw, Text


def ordered_sums(d: Draw) -> str:
    """Sums over rows, columns and windows, of all or of chosen elements, without products."""
    n, m, kind = d.size(2, 33), d.size(2, 65), d.pick("float32", "float32", "float64")
    t = Text.of(kind, A=(n, m), B=(n, m), R=(n,), C=(m,), S=(1,))
    for _ in range(d.rng.choice((1, 1, 2, 3))):
        sign, form = d.pick("+", "+", "-"), d.rng.randrange(4)
        term = d.pick("A[i, k]", "B[i, k]", "A[i, k] + B[i, k]", "A[i, k] - C[k]",
                      "T.max(A[i, k], R[i])", "A[n - 1 - i, k]", "A[i, (k + 3) % m]")  # fmt: skip
        term = term.replace("n -", f"{n} -").replace("% m", f"% {m}")
        test = d.pick("", "", "if B[i, k] > A[i, k]:", "if k != i:", "if k <= i:")
        if form == 0:  # a scalar of each row
            t.add(1, f"for i in range({n}):", f"    s = T.{kind}({d.pick('0', '1')})")
            t.add(2, f"for k in range({m}):")
            total, depth = "s", 3
        else:  # elements in memory
            total = ("R[i]", "C[k]", "S[0]")[form - 1]
            t.add(1, d.pick(f"for i, k in T.grid({n}, {m}):",
                            f"for i in range({n}):\n        for k in range({m}):"))  # fmt: skip
            depth = 3 if "range" in t.lines[-1] else 2
        if total[0] in term:  # the sum would read what it makes
            term = "A[i, k]"
        if test:
            t.add(depth, test)
            depth += 1
        t.add(depth, d.pick(f"{total} {sign}= {term}", f"{total} = {total} {sign} ({term})"))
        if form == 0:
            t.add(2, "R[i] = s")
    return str(t)


def centred_rows(d: Draw) -> str:
    """Scalars of each row, sums in one loop or several, then stores along the row."""
    n, c, m = d.size(2, 37), d.pick(1, 1, 2, 3), d.size(2, 65)
    kind, outer = d.pick("float32", "float32", "float64"), d.pick(0, 0, 2)
    lead, at = ((outer,), "b, i") if outer else ((), "i")
    row = f"{at}, p, k" if c > 1 else f"{at}, k"
    shape = (*lead, n, *((c,) if c > 1 else ()), m)
    t = Text.of(kind, A=shape, B=shape, W=(m,))
    depth = 1
    if outer:
        t.add(1, f"for b in range({outer}):")
        depth = 2
    t.add(depth, f"for i in range({n}):")
    depth += 1

    def walk(*lines: str) -> None:
        inner = depth
        if c > 1:
            t.add(inner, f"for p in range({c}):")
            inner += 1
        t.add(inner, f"for k in range({m}):")
        t.add(inner + 1, *lines)

    terms = [f"A[{row}]", f"A[{row}] - W[k]", f"T.max(A[{row}], W[k])"]
    t.add(depth, f"s = T.{kind}(0)", f"q = T.{kind}(1)")
    first, second = (
        f"s += {d.rng.choice(terms)}",
        f"q -= {d.rng.choice(terms)} - {d.pick('s', 'q')}",
    )
    if d.rng.randrange(2):
        walk(first, second.replace("- s", "- W[k]"))
    else:
        walk(first)
        if d.rng.randrange(2):
            t.add(depth, "s = s * 0.5")
        walk(second)
    if d.rng.randrange(2):
        t.add(depth, "q = T.max(q, s)")
    walk(f"B[{row}] = {d.pick('A', 'B')}[{row}] - s + {d.pick('q', 'W[k]')}")
    return str(t)


def ordered_triangles(d: Draw) -> str:
    """Sums in order for each element of a triangle."""
    n, m, kind = d.pick(16, 24, 32, 33, 48, 49), d.size(2, 40), d.pick("float32", "float64")
    span = d.pick("range(i + 1)", "range(i)", f"range(i, {n})", f"range(i + 1, {n})",
                  "range(i // 2 + 1)", f"range({n} - i)")  # fmt: skip
    t = Text.of(kind, A=(n, m), B=(n, m), C=(n, n))
    t.add(1, f"for i in range({n}):", f"    for j in {span}:")
    total = d.pick("s", "s", "C[i, j]")
    t.add(3, f"{total} = {d.pick(f'T.{kind}(0)', 'C[j, i]', 'A[i, 0]')}" if total == "s" else
          f"C[i, j] = {d.pick(f'T.{kind}(0)', 'B[j, 0]')}")  # fmt: skip
    term = d.pick("A[i, k] - A[j, k]", "A[i, k] - B[j, k]", "T.max(A[i, k], B[j, k])")
    t.add(3, f"for k in range({m}):", f"    {total} += {term}")
    if total == "s":
        t.add(3, d.pick("C[i, j] = s", "C[i, j] = T.max(s, B[j, 0])"))
        if d.rng.randrange(3) == 0:
            t.add(3, "C[j, i] = s")
    return str(t)
