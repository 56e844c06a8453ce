"""Random loops of few iterations around accesses whose places memory names, for the fuzz: taps of
an interpolation and its gradient, bits of words, tables, small states."""

from __future__ import annotations

from space.random_kinds import Draw, Text


def few_iterations(d: Draw) -> str:
    """Several nests, each with one or two loops of at most nine iterations inside."""
    n, m, kind = d.size(2, 40), d.size(2, 20), d.pick("float32", "float32", "float64", "int32")
    few, more = d.rng.choice((1, 2, 2, 3, 4, 4, 7, 8, 9)), d.rng.choice((1, 2, 2, 3, 4))
    t = Text.of(kind, V=(n, few, more), S=(m, more), C=(m,), Y=(n, few))
    t.param("P", (n,), "float32")
    t.param("K", (n, few), "int32")
    place = d.pick("T.int32(T.floor(P[i]))", "T.int32(P[i] * T.float32(3))", "i // 2 - 1")
    for _ in range(d.rng.choice((1, 2, 3))):
        t.add(1, f"for i in range({n}):")
        nest = [f"for a in range({few}):", f"    for b in range({more}):"]
        both = d.pick(nest, [f"for a, b in T.grid({few}, {more}):"])
        depth = 2 + len(both)
        form = d.rng.randrange(4)
        t.add(2, f"at = {place}")
        if form == 0:  # a gradient: updates side by side, under tests
            inner = d.pick("at + a", "at - a", "at + a * 2")
            column = d.pick("S[{}, b]", "S[{}, b]", "C[{} + b]")
            end = m - more + 1 if column[0] == "C" else m
            t.add(2, *both)
            t.add(depth, f"if {inner} >= 0 and {inner} < {end}:")
            value = d.pick("V[i, a, b]", "T.if_then_else(a == 1, V[i, a, b], V[i, 0, b])")
            t.add(depth + 1, f"{column.format(inner)} += {value}")
        elif form == 1:  # the bits of a number
            t.add(2, f"for a in range({few}):")
            t.add(3, f"K[i, a] = (at >> {d.pick('(9 - a)', 'a', f'({few} - a)')}) & {d.pick(1, 3)}")
        elif form == 2:  # taps of a table
            t.add(2, f"for a in range({few}):")
            tap = f"C[T.max(T.min(at + a, {m - 1}), 0)]"
            t.add(3, f"Y[i, a] = {tap}" + d.pick("", " + V[i, a, 0]", f" - C[{m - 1} - i % {m}]"))
        else:  # a state that each step turns
            t.lines[-2] = f"    for i in range(1, {n}):"
            t.add(2, f"for a in range({few}):")
            t.add(3, f"Y[i, a] = Y[i - 1, (a + 1) % {few}] + V[i, a, 0]")
    return str(t)
