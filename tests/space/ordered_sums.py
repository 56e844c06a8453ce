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
