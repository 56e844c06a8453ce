"""Random programs of idioms that do not multiply matrices: bit tricks, sorts, tables, grids.

Arrays of one size n, as in `space.plain_idioms`; I and J hold indices below n, X bytes, and H has
256 elements.
"""

from __future__ import annotations

from collections.abc import Callable

from space.plain_idioms import TYPES, Program
from space.random_kinds import Draw

WHOLE = ("int32", "int32", "int64", "uint8", "uint32", "int16", "uint64", "int8")


def butterflies(p: Program) -> None:
    """Partners at a distance that doubles: transforms and sums in place."""
    v, n, d = p.pick(1), p.n, p.d
    form = d.rng.randrange(5)
    steps = max(1, n.bit_length() - 1)
    if form == 0:  # Walsh-Hadamard
        p.add(f"for s in range({steps}):", f"    for i in range({n}):",
              f"        if (i & (1 << s)) == 0 and (i | (1 << s)) < {n}:",
              f"            x = {v}[i]", f"            y = {v}[i | (1 << s)]",
              f"            {v}[i] = x + y", f"            {v}[i | (1 << s)] = x - y")  # fmt: skip
    elif form == 1:  # bitonic
        up = d.pick("(i & (2 << s)) == 0", "(i & (2 << s)) != 0", "i >= 0")
        p.add(f"for s in range({steps}):", "    for q in range(s + 1):",
              f"        for i in range({n}):", "            j = i ^ (1 << (s - q))",
              f"            if j > i and j < {n}:",
              f"                if ({v}[i] > {v}[j]) == ({up}):",
              f"                    x = {v}[i]", f"                    {v}[i] = {v}[j]",
              f"                    {v}[j] = x")  # fmt: skip
    elif form == 2:  # sums by doubling, from one array to another and back
        w = p.pick(1)
        x = p.load(f"{v}[T.max(i - (1 << s), 0)]", p.types[w])
        p.add(f"for s in range({steps}):", f"    for i in range({n}):",
              f"        {w}[i] = T.if_then_else(i >= (1 << s), {x}, T.{p.types[w]}(0))"
              f" + {p.load(f'{v}[i]', p.types[w])}",
              f"    for i in range({n}):",
              f"        {v}[i] = {p.load(f'{w}[i]', p.types[v])}")  # fmt: skip
    elif form == 3:  # a tree
        p.add(f"for s in range({steps}):", f"    for i in range({n} >> (s + 1)):",
              f"        {p.step(f'{v}[i]', f'{v}[i + ({n} >> (s + 1))]')}")  # fmt: skip
    else:  # pairs
        p.add(f"for i in range({n // 2}):",
              f"    x = {v}[2 * i]", f"    y = {v}[2 * i + 1]",
              f"    {v}[{d.pick('2 * i', '2 * i + 1')}] = x + y",
              f"    {v}[{d.pick('2 * i ^ 1', '(i << 1) | 1')}] = x - y")  # fmt: skip


def permuted(p: Program) -> None:
    """Indices that xor, shifts and remainders compute."""
    a, b, n, d = p.pick(1), p.pick(1), p.n, p.d
    far = [f"(i ^ {d.rng.choice((1, 2, 3, 5))}) % {n}", f"(i * 7 + 3) % {n}", f"(i - 5) % {n}",
           f"T.max((i - {d.rng.randint(1, 9)}) // 3, 0)", f"(i ^ (i >> 1)) % {n}",
           f"(i & -2) % {n}", f"{n - 1} - i", f"{n - 1} - i // 2", f"(i + {n - 1}) % {n}",
           f"T.min(T.max(i + {d.rng.randint(-3, 3)}, 0), {n - 1})", f"(3 - i) % {n}",
           f"T.truncmod(i * 5, {n})", f"(i << 1) % {n}", f"(~i) % {n}", "I[i]", "J[i]", "I[J[i]]",
           f"(i | 1) % {n}", f"(i & {d.rng.choice((1, 3, 6, 8))}) % {n}", "i // 2 * 2",
           f"(i // 2 + i % 2 * {n // 2}) % {n}", f"abs(i - {n // 2}) % {n}"]  # fmt: skip
    one, two = d.pick(*far), d.pick(*far)
    kind = p.types[a]
    x, y = p.load(f"{b}[{one}]", kind), p.load(f"{p.pick(1)}[{two}]", kind)
    form = d.rng.randrange(4)
    if form == 0:
        p.loops("i")
        p.guard("i")
        p.add(f"{a}[i] = {x} {d.pick('+', '-')} {y}")
    elif form == 1:
        p.loops("i")
        p.guard("i")
        p.add(f"{a}[{one.replace('I[J[i]]', 'J[i]')}] = {p.load(f'{b}[i]', kind)}")
    elif form == 2:
        p.loops("i")
        p.add(p.step(f"{a}[{one}]", y))
    else:
        m = p.pick(2)
        p.loops("ij")
        p.guard("ij")
        p.add(f"{m}[i, j] = {p.load(f'{p.pick(2)}[{one}, (j * 3 - i) % {n}]', p.types[m])}")


def packed_bits(p: Program) -> None:
    """Bits of words, unpacked, packed, counted."""
    n, d, v = p.n, p.d, p.pick(1)
    kind, form = p.types[v], p.d.rng.randrange(5)
    if form == 0:
        p.add(
            f"for i in range({n}):",
            f'    {v}[i] = T.cast((X[i // 8] >> T.uint8(i % 8)) & T.uint8(1), "{kind}")',
        )
    elif form == 1:
        p.add(f"for i in range({(n + 7) // 8}):", "    w = T.uint8(0)", "    for b in range(8):",
              f"        if i * 8 + b < {n}:", f"            if {v}[i * 8 + b] > T.{kind}(0):",
              "                w = w | (T.uint8(1) << T.cast(b, \"uint8\"))",
              "    X[i] = w")  # fmt: skip
    elif form == 2:
        p.add(f"for i in range({n}):", "    q = 0", f"    for k in range({n}):",
              '        q += T.cast(T.popcount(X[i] ^ X[k]), "int32")',
              f'    {v}[i] = T.cast(q, "{kind}")')  # fmt: skip
    elif form == 3:
        p.add(f"for i in range({n}):", "    x = X[i]", "    c = 0", "    while x != T.uint8(0):",
              "        x = x & (x - T.uint8(1))", "        c = c + 1",
              f'    {v}[i] = T.cast(c, "{kind}")')  # fmt: skip
    else:
        p.add(f"for i in range({n}):", "    x = T.cast(X[i], \"uint32\")",
              "    x = (x ^ (x << T.uint32(13))) & T.uint32(65535)",
              "    x = x ^ (x >> T.uint32(7))",
              f"    X[i] = T.cast(x {d.pick('>>', '&')} T.uint32(8), \"uint8\")")  # fmt: skip


def bytes_of_images(p: Program) -> None:
    """Bytes widened, weighted, shifted, saturated; tables of 256 entries."""
    n, d, form = p.n, p.d, p.d.rng.randrange(6)
    v = p.pick(1)
    if form == 0:
        by = d.rng.choice((1, 2, 3))
        p.add(f"for i in range({n}):",
              f"    s = T.int32(X[i]) * 77 + T.int32(X[T.min(i + {by}, {n - 1})]) * 150 - "
              f"T.int32(X[T.max(i - 1, 0)]) * {d.rng.choice((29, 200))}",
              "    X[i] = T.uint8(T.max(T.min(s >> 8, 255), 0))")  # fmt: skip
    elif form == 1:
        p.add("for i in range(256):", "    H[i] = 0", f"for i in range({n}):",
              "    H[X[i]] += 1", "for i in range(1, 256):", "    H[i] = H[i] + H[i - 1]",
              f"for i in range({n}):", "    X[i] = T.uint8(T.max(T.min("
              f"H[X[i]] * 255 // {n}, 255), 0))")  # fmt: skip
    elif form == 2:
        kind = p.types[v]
        p.add(f"for i in range({n}):", f'    {v}[i] = T.cast(H[X[i]] & 63, "{kind}")')
    elif form == 3:
        p.add(
            f"for i in range({n}):",
            f"    X[i] = (X[i] + X[{n - 1} - i]) {d.pick('>>', '//')} T.uint8(1)",
        )
    elif form == 4:
        p.add(
            f"for i in range({n}):",
            f"    X[i] = T.uint8((T.int32(X[i]) - T.int32(X[(i + 1) % {n}])) & 255)",
        )
    else:
        p.add("for i in range(256):", "    c = T.uint32(i)", "    for b in range(8):",
              "        if (c & T.uint32(1)) == T.uint32(1):",
              "            c = (c >> T.uint32(1)) ^ T.uint32(3988292384)", "        else:",
              "            c = c >> T.uint32(1)", "    H[i] = T.int32(c & T.uint32(65535))",
              f"r = T.int32({d.rng.choice((0, 65535))})",
              f"for i in range({n}):", "    r = (r >> 8) ^ H[(r ^ T.int32(X[i])) & 255]",
              f'{v}[0] = T.cast(r & 63, "{p.types[v]}")')  # fmt: skip


def counting(p: Program) -> None:
    """Keys counted, summed, and elements placed; runs and unique values."""
    n, d, v, w = p.n, p.d, p.pick(1), p.pick(1)
    form, kind = p.d.rng.randrange(4), p.types[w]
    x = p.load(f"{v}[i]", kind)
    if form == 0:
        p.add("for i in range(256):", "    H[i] = 0", f"for i in range({n}):",
              "    H[I[i]] = H[I[i]] + 1", "before = 0", "for i in range(256):", "    c = H[i]",
              "    H[i] = before", "    before += c", f"for i in range({n}):",
              "    at = H[I[i]]", "    H[I[i]] = at + 1", f"    {w}[at] = {x}")  # fmt: skip
    elif form == 1:
        p.add("c = 0", f"for i in range({n}):",
              f"    if i == 0 or {v}[i] != {v}[T.max(i - 1, 0)]:",
              f"        {w}[c] = {x}" if v != w else "        H[c] = i", "        c = c + 1",
              "H[0] = c")  # fmt: skip
    elif form == 2:  # smaller elements
        p.add(f"for i in range({n}):", "    c = 0", f"    for j in range({n}):",
              f"        if {v}[j] < {v}[i] or ({v}[j] == {v}[i] and j < i):", "            c += 1",
              "    H[i] = c", f"for i in range({n}):",
              f"    {w}[{d.pick('H[i]', 'i')}] = {p.load(f'{v}[H[i]]', kind)}" if v != w else
              "    X[H[i]] = X[i]")  # fmt: skip
    else:
        p.add(f"for i in range({n}):", "    H[i] = 1 if i > 1 else 0",
              f"for q in range(2, {n}):", "    if H[q] == 1:",
              f"        for j in range(q, {n} // q + 1):", f"            if q * j < {n}:",
              "                H[q * j] = 0")  # fmt: skip


def sorts(p: Program) -> None:
    """Bubbles, selection and exchanges of neighbours in place; searches in halves."""
    n, d, v, w = p.n, p.d, p.pick(1), p.pick(1)
    form = p.d.rng.randrange(4)
    if form == 0:  # bubbles
        p.add(f"for t in range({n}):", f"    for i in range({d.pick('0', 't % 2')}, {n - 1}):",
              f"        if {v}[i] > {v}[i + 1]:", f"            x = {v}[i]",
              f"            {v}[i] = {v}[i + 1]", f"            {v}[i + 1] = x")  # fmt: skip
    elif form == 1:  # selection
        p.add(f"for i in range({n}):", "    at = i", f"    for j in range(i + 1, {n}):",
              f"        if {v}[j] < {v}[at]:", "            at = j", f"    x = {v}[i]",
              f"    {v}[i] = {v}[at]", f"    {v}[at] = x")  # fmt: skip
    elif form == 2:  # odd-even
        p.add(f"for t in range({d.rng.randint(1, 6)}):", f"    for i in range({n // 2}):",
              f"        if 2 * i + t % 2 + 1 < {n}:",
              f"            x = {v}[2 * i + t % 2]", f"            y = {v}[2 * i + t % 2 + 1]",
              f"            {v}[2 * i + t % 2] = T.min(x, y)",
              f"            {v}[2 * i + t % 2 + 1] = T.max(x, y)")  # fmt: skip
    else:  # binary searches
        kind = p.types[w]
        p.add(f"for i in range({n}):", "    lo = 0", f"    hi = {n}", "    while lo < hi:",
              "        mid = (lo + hi) // 2",
              f"        if {p.load(f'{v}[mid]', kind)} < {p.load(f'{w}[i]', kind)}:",
              "            lo = mid + 1", "        else:", "            hi = mid",
              "    H[i] = lo")  # fmt: skip


def periodic(p: Program) -> None:
    """Several time loops with wrapped borders, in place or between planes."""
    n, d, times = p.n, p.d, p.d.rng.randint(1, 4)
    form, v, w, m, k = d.rng.randrange(6), p.pick(1), p.pick(1), p.pick(2), p.pick(2)
    if form == 0:
        kind = p.types[w]
        x = f"{p.load(f'{v}[(i + {n - 1}) % {n}]', kind)} + {p.load(f'{v}[(i + 1) % {n}]', kind)}"
        p.add(f"for t in range({times}):", f"    for i in range({n}):", f"        {w}[i] = {x}",
              f"    for i in range({n}):",
              f"        {v}[i] = {p.load(f'{w}[i]', p.types[v])}")  # fmt: skip
    elif form == 1:
        p.add(f"for t in range({times}):", f"    for i in range({n}):",
              f"        {v}[i] = {v}[i] - {v}[(i - {d.rng.randint(0, 2)}) % {n}]")  # fmt: skip
    elif form == 2:
        kind = p.types[v]
        p.add(f'Z = T.alloc_buffer((2, {n}), "{kind}")', f"for i in range({n}):",
              f"    Z[0, i] = {v}[i]", f"for t in range({times}):", f"    for i in range({n}):",
              f"        Z[(t + 1) % 2, i] = Z[t % 2, i] + Z[t % 2, (i + 1) % {n}] - "
              f"Z[t % 2, (i - 1) % {n}]", f"for i in range({n}):",
              f"    {v}[i] = Z[{times % 2}, i]")  # fmt: skip
    elif form == 3:  # inner points, then the borders
        p.add(f"for t in range({times}):", f"    for i, j in T.grid((1, {n - 1}), (1, {n - 1})):",
              f"        {m}[i, j] = {m}[i - 1, j] + {m}[i, j + 1] - {m}[i, j]",
              f"    for i in range({n}):", f"        {m}[i, 0] = {m}[i, {max(n - 2, 0)}]",
              f"        {m}[i, {n - 1}] = {m}[i, {min(1, n - 1)}]", f"    for j in range({n}):",
              f"        {m}[0, j] = {m}[{max(n - 2, 0)}, j]",
              f"        {m}[{n - 1}, j] = {m}[{min(1, n - 1)}, j]")  # fmt: skip
    elif form == 4:  # life
        kind, c = p.types[m], p.types[k]
        up, down = f"(i + {n - 1}) % {n}", f"(i + 1) % {n}"
        left, right = (x.replace("i", "j") for x in (up, down))
        cells = [f"{m}[{a}, {b}]" for a in (up, "i", down) for b in (left, "j", right)]
        del cells[4]
        total = " + ".join(cells)
        p.add(f"for t in range({times}):", f"    for i, j in T.grid({n}, {n}):",
              f"        s = {total}",
              f"        if s == T.{kind}(3) or (s == T.{kind}(2) and {m}[i, j] == T.{kind}(1)):",
              f"            {k}[i, j] = T.{c}(1)", "        else:",
              f"            {k}[i, j] = T.{c}(0)", f"    for i, j in T.grid({n}, {n}):",
              f"        {m}[i, j] = {p.load(f'{k}[i, j]', kind)}")  # fmt: skip
    else:  # two fields that leap
        kind = p.types[v]
        p.add(f"for t in range({times}):", f"    for i in range(1, {n}):",
              f"        {v}[i] = {v}[i] + {p.load(f'{w}[i]', kind)} - "
              f"{p.load(f'{w}[i - 1]', kind)}",
              f"    {v}[0] = {v}[{n - 1}]" if d.often(0.5) else f"    {v}[0] = T.{kind}(0)",
              f"    for i in range({n - 1}):",
              f"        {w}[i] = {w}[i] + {p.load(f'{v}[i + 1]', p.types[w])}")  # fmt: skip


def tables(p: Program) -> None:
    """Dynamic programs: edit distance, rolling rows, intervals, shortest paths."""
    n, d, m, v, w = p.n, p.d, p.pick(2), p.pick(1), p.pick(1)
    form, kind = d.rng.randrange(6), p.types[m]
    one = f"T.{kind}(1)"
    if form == 0:
        same = f"{v}[i] == {p.load(f'{w}[j]', p.types[v])}"
        p.add(f"for i, j in T.grid((1, {n}), (1, {n})):", f"    if {same}:",
              f"        {m}[i, j] = {m}[i - 1, j - 1]", "    else:",
              f"        {m}[i, j] = T.min(T.min({m}[i - 1, j], {m}[i, j - 1]), {m}[i - 1, j - 1])"
              f" + {one}")  # fmt: skip
    elif form == 1:
        p.add(f'R = T.alloc_buffer((2, {n + 1}), "{kind}")', f"for j in range({n + 1}):",
              f"    R[0, j] = T.{kind}(j % 7)", f"for i in range({n}):",
              f"    R[(i + 1) % 2, 0] = {m}[i, 0]", f"    for j in range({n}):",
              f"        R[(i + 1) % 2, j + 1] = T.min(R[i % 2, j], R[(i + 1) % 2, j]) "
              f"+ {m}[i, j]", f"for j in range({n}):",
              f"    {m}[0, j] = R[{n % 2}, j + 1]")  # fmt: skip
    elif form == 2:
        p.add(f"for s in range(1, {n}):", f"    for i in range({n} - s):",
              "        for k in range(i, i + s):",
              f"            {m}[i, i + s] = T.{d.pick('min', 'max')}({m}[i, i + s], "
              f"{m}[i, k] + {m}[k + 1, i + s])")  # fmt: skip
    elif form == 3:
        p.add(f"for k in range({n}):", f"    for i, j in T.grid({n}, {n}):",
              f"        {m}[i, j] = T.min({m}[i, j], {m}[i, k] + {m}[k, j])")  # fmt: skip
    elif form == 4:
        p.add(f"for i in range({n}):", "    H[i] = 1", "    for j in range(i):",
              f"        if {v}[j] < {v}[i]:",
              "            H[i] = T.max(H[i], H[j] + 1)")  # fmt: skip
    else:
        k = p.types[v]
        p.add(f"for c in range({n}):",
              f"    for q in range({n - 1}, {d.pick('c', '0', str(n // 2))}, -1):",
              f"        {v}[q] = T.max({v}[q], {v}[q - {d.pick('1', 'T.min(c, q)')}] + "
              f"{p.load(f'{w}[c]', k)})" if v != w else
              f"        {v}[q] = T.max({v}[q], {v}[q - 1])")  # fmt: skip


def ties(p: Program) -> None:
    """The place of an extremum among equals, two extremes, the largest few."""
    n, d, m, v = p.n, p.d, p.pick(2), p.pick(1)
    form = d.rng.randrange(4)
    sign = d.pick("<", "<=", ">", ">=")
    if form == 0:
        p.add(f"for j in range({n}):", "    at = 0", f"    for i in range({n}):",
              f"        if {m}[i, j] {sign} {m}[at, j]:", "            at = i",
              "    H[j] = at")  # fmt: skip
    elif form == 1:
        p.add(f"for i in range({n}):", f"    a = {m}[i, 0]", f"    b = {m}[i, 0]",
              f"    for j in range({n}):", f"        if {m}[i, j] {sign} a:", "            b = a",
              f"            a = {m}[i, j]", f"        elif {m}[i, j] {sign} b:",
              f"            b = {m}[i, j]", f"    {m}[i, 0] = a - b")  # fmt: skip
    elif form == 2:
        p.add(f"a = {v}[0]", "far = T.int64(0)", f"for i in range({n}):",
              f"    if {v}[i] {sign} a:", f"        a = {v}[i]",
              '        far = T.cast(i, "int64")', "H[0] = T.int32(far)", f"{v}[0] = a")  # fmt: skip
    else:
        p.add(f"lo = {m}[0, 0]", f"hi = {m}[0, 0]", f"for i, j in T.grid({n}, {n}):",
              f"    lo = T.min(lo, {m}[i, j])", f"    hi = T.max({m}[i, j], hi)",
              f"for i, j in T.grid({n}, {n}):",
              f"    {m}[i, j] = {d.pick('hi', 'lo')} - {m}[i, j]")  # fmt: skip


def guarded_reads(p: Program) -> None:
    """Borders by conditions, by clamps and by remainders; values chosen before they are read."""
    n, d, a, b = p.n, p.d, p.pick(2), p.pick(2)
    kind, form = p.types[b], d.rng.randrange(4)
    zero, r = f"T.{kind}(0)", d.rng.randint(1, 3)
    x = p.load(f"{a}[i - {r}, j]", kind)
    if form == 0:
        p.loops("ij")
        p.add(f"{b}[i, j] = T.if_then_else(i >= {r}, {x}, {zero})" if a != b else
              f"{b}[{n - 1} - i, j] = {b}[i, j]")  # fmt: skip
    elif form == 1:
        p.loops("ij")
        p.add(f"s = {zero}", f"for q in range(-{r}, {r + 1}):",
              f"    if i + q >= 0 and i + q < {n}:",
              f"        s = s + {p.load(f'{a}[i + q, {n - 1} - j]', kind)}",
              "    elif i + q < 0:", f"        s = s - {p.load(f'{a}[0, j]', kind)}",
              f"{b}[i, j] = s")  # fmt: skip
    elif form == 2:
        p.loops("ij")
        y = p.load(f"{a}[T.max(T.min(i * 2 - {n // 2}, {n - 1}), 0), (j * 3 - {n}) % {n}]", kind)
        p.add(f"{b}[i, j] = {b}[i, j] + {y}")
    else:
        p.loops("ij")
        p.add(f"k = (i - {n // 2}) // 2 + (j - {n // 2}) % 3",
              "if k >= 0:", f"    if k < {n}:",
              f"        {b}[i, j] = {p.load(f'{a}[k, j]', kind)}")  # fmt: skip


def rounded(p: Program) -> None:
    """Chains of types up and down."""
    d, w = p.d, p.pick(1)
    middle = d.pick("float16", "bfloat16", "int8", "uint8", "float32", "int32", "bool")
    x = "X[i]" if "int" in middle else 'T.cast(X[i], "float32") * T.float32(0.5)'
    p.loops("i")
    p.add(f'x = T.cast(T.cast({x}, "{middle}"), "{p.types[w]}")', p.step(f"{w}[i]", "x"))


IDIOMS: tuple[Callable[[Program], None], ...] = (
    butterflies, permuted, permuted, packed_bits, bytes_of_images, counting, sorts, periodic,
    periodic, tables, ties, guarded_reads, rounded,
)  # fmt: skip


def user_idioms(d: Draw) -> str:
    """A few idioms over shared arrays."""
    n = d.rng.choice((4, 8, 16, 32)) if d.often(0.5) else d.size(2, 40)
    p = Program(d, n)
    kinds = [d.pick(*(WHOLE if d.often(0.5) else TYPES)) for _ in range(d.rng.choice((1, 1, 2)))]
    for name in ("M0", "M1", "V0", "V1"):
        p.types[name] = d.pick(*kinds)
        p.t.param(name, (n,) if name[0] == "V" else (n, n), p.types[name])
    for name in "IJ":
        p.t.param(name, (n,), d.pick("int32", "int32", "int64", "uint8"))
    p.t.param("X", (n,), "uint8")
    p.t.param("H", (256,), "int32")
    for _ in range(d.rng.choice((1, 1, 2, 3))):
        p.depth = 1
        d.rng.choice(IDIOMS)(p)
    return str(p.t)
