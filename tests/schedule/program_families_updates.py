"""Random programs that update in place, scatter, scan, sum twice, or rescale a sum by a maximum."""

from __future__ import annotations

import random
from collections.abc import Callable

_UPDATES = (
    "{old} + {new}", "{old} + {new}", "{new} + {old}", "{old} - {new}", "{old} * {new}",
    "T.max({old}, {new})", "T.min({new}, {old})",
)  # fmt: skip


def _lines(depth: int, *lines: str) -> str:
    return "".join("    " * depth + line + "\n" for line in lines)


def _head(*params: str) -> str:
    return f"@T.prim_func\ndef f({', '.join(params)}):\n"


def _int(rng: random.Random) -> str:
    return rng.choice(["int32", "int32", "int64", "int8"])


def sweeps(rng: random.Random) -> str:
    """Stencils in place below a loop over time, in one or two dimensions."""
    ndim, dtype, times = rng.choice([1, 1, 2]), _int(rng), rng.randint(2, 4)
    sizes, axes = [rng.randint(4, 7) for _ in range(ndim)], "ij"[:ndim]
    reach = rng.choice([1, 1, 2])

    def load() -> str:
        shifts = [rng.randint(-reach, reach) for _ in axes]
        return f"A[{', '.join(f'{a} + {s}' for a, s in zip(axes, shifts, strict=True))}]"

    loads = [load() for _ in range(rng.randint(1, 4))]
    value = " + ".join(rng.choice(["{}", "{} * 2"]).format(x) for x in loads)
    ends = ", ".join(f"({reach}, {s - reach})" for s in [max(s, 2 * reach + 1) for s in sizes])
    shape = "".join(f"{max(s, 2 * reach + 1)}, " for s in sizes)
    text = _head(f'A: T.Buffer(({shape}), "{dtype}")', f'X: T.Buffer(({times},), "{dtype}")')
    text += _lines(1, f"for t in range({times}):")
    loops = f"for {', '.join(axes)} in T.grid({ends}):"
    text += _lines(2, loops) + _lines(3, 'with T.block("A"):')
    source = rng.choice(["", "", " + X[t]", " - X[t]"])
    if rng.random() < 0.3:
        text += _lines(4, f"T.where(({' + '.join(axes)} + t) % 2 == 0)")
    text += _lines(4, f"A[{', '.join(axes)}] = {value}{source}")
    return text


def time_steps(rng: random.Random) -> str:
    """Two or three stencils, each from one array to another, below a loop over time."""
    dtype, times, n, m = _int(rng), rng.randint(2, 4), rng.randint(5, 8), rng.randint(3, 4)
    names = ["AB", "BA"] if rng.random() < 0.6 else ["AB", "BC", "CA"]
    plain = rng.random() < 0.3
    text = _head(*(f'{x}: T.Buffer(({n}, {m}), "{dtype}")' for x in "ABC"))
    text += _lines(1, f"for t in range({times}):")
    for source, target in names:
        low, high = rng.choice([(1, n - 1), (1, n - 1), (2, n - 2), (0, n)])
        reach = min(1, low)
        shifts = [rng.randint(-reach, reach) for _ in range(rng.randint(1, 3))]
        value = " + ".join(f"{source}[i + {shift}, j]" for shift in shifts)
        text += _lines(2, f"for i, j in T.grid(({low}, {high}), {m}):")
        if not plain:
            text += _lines(3, f'with T.block("{target}"):')
        store = f"{target}[i, j] = {value}{rng.choice(['', f' + {target}[i, j]'])}"
        text += _lines(3 if plain else 4, store)
    return text


def scatters(rng: random.Random) -> str:
    """Updates of elements that indices in memory choose: histograms, scatter-adds, with guards."""
    n, m, size = rng.randint(1, 9), rng.randint(1, 4), rng.randint(1, 5)
    dtype, wide = rng.choice(["int32", "float32", "int64", "uint8", "int8"]), rng.random() < 0.5
    index = rng.choice([f"N[vi] % {size}", f"T.max(T.min(N[vi], {size - 1}), 0)",
                        f"(N[vi] + vi) % {size}"])  # fmt: skip
    out, new = ("O[{}, vj]", "X[vi, vj]") if wide else ("O[{}]", "X[vi, 0]")
    new = rng.choice([new, new, f"{new} * {new}", f"T.{dtype}(1)"])
    old = out.format(index)
    value = rng.choice(_UPDATES).format(old=old, new=new)
    shape = f"({size}, {m})" if wide else f"({size},)"
    text = _head(f'N: T.Buffer(({n},), "int32")', f'X: T.Buffer(({n}, {m}), "{dtype}")',
                 f'O: T.Buffer({shape}, "{dtype}")')  # fmt: skip
    loops = ["i", "j"] if wide else ["i"]
    if wide and rng.random() < 0.3:
        loops.reverse()
    extents = {"i": n, "j": m}
    text += _lines(
        1, f"for {', '.join(loops)} in T.grid({', '.join(str(extents[x]) for x in loops)}):"
    )
    text += _lines(2, 'with T.block("O"):')
    text += _lines(3, f"vi = T.axis.{rng.choice(['reduce', 'reduce', 'opaque'])}({n}, i)")
    if wide:
        text += _lines(3, f"vj = T.axis.spatial({m}, j)")
    if rng.random() < 0.2:
        text += _lines(3, "T.where(N[i] > -2)")
    guard = rng.choice(["", "", "", "if N[vi] > 0: ", f"if 0 <= N[vi] and N[vi] < {size}: "])
    text += _lines(3, f"{guard}{old} = {value}")
    if guard and rng.random() < 0.5:
        second = out.format(f"vi % {size}")
        text += _lines(3, f"{second} = {rng.choice(_UPDATES).format(old=second, new=new)}")
    return text


def scans(rng: random.Random) -> str:
    """Running sums, products, minima and maxima, along rows or columns."""
    n, m, dtype = rng.randint(2, 12), rng.randint(1, 4), rng.choice(["int32", "int64", "float32"])
    form = rng.choice(["{} + {}", "{} + {}", "T.max({}, {})", "T.min({}, {})"])
    rows, back = rng.random() < 0.6, rng.random() < 0.2
    place = f"{n - 1} - vk" if back else "vk"
    before = f"{n} - vk" if back else "vk - 1"

    def at(buffer: str, index: str) -> str:
        return f"{buffer}[vi, {index}]" if rows else f"{buffer}[{index}, vi]"

    new = rng.choice([at("A", place), at("A", place), f"{at('A', place)} * {at('A', place)}"])
    first = rng.choice([new, f"T.{dtype}(3)"])
    shape = f"({m}, {n})" if rows else f"({n}, {m})"
    text = _head(f'A: T.Buffer({shape}, "{dtype}")', f'B: T.Buffer({shape}, "{dtype}")')
    loops = f"for i, k in T.grid({m}, {n}):" if rows else f"for k, i in T.grid({n}, {m}):"
    text += _lines(1, loops) + _lines(2, 'with T.block("B"):')
    text += _lines(3, f"vi, vk = T.axis.spatial({m}, i), T.axis.scan({n}, k)")
    value = form.format(at("B", before), new)
    text += _lines(3, f"{at('B', place)} = T.if_then_else(vk == 0, {first}, {value})")
    return text


def outputs(rng: random.Random) -> str:
    """A block with several stores; each may read what the others write."""
    n, m = rng.randint(2, 5), rng.randint(1, 5)
    names = "SUV"[: rng.randint(2, 3)]
    dtype = rng.choice(["int32", "int32", "float32"])
    params = [f'X: T.Buffer(({n}, {m}), "{dtype}")']
    reduced = rng.random() < 0.6
    place = "vi" if reduced else "vi, vj"
    params += [f'{b}: T.Buffer(({n}{"" if reduced else f", {m}"},), "{dtype}")' for b in names]
    stores, starts = [], []
    for name in names:
        old = f"{name}[{place}]"
        other = rng.choice(names)
        new = rng.choice(["X[vi, vj]", "X[vi, vj]", "X[vi, vj] * X[vi, vj]", f"{other}[{place}]"])
        stores.append(
            f"{old} = " + rng.choice(_UPDATES[:1] * 3 + _UPDATES).format(old=old, new=new)
        )
        starts.append(f"    {old} = T.{dtype}({rng.randint(0, 2)})")
    kinds = "SR" if reduced else "SS"
    text = _head(*params) + _lines(1, f"for i, j in T.grid({n}, {m}):")
    text += _lines(2, 'with T.block("S"):', f'    vi, vj = T.axis.remap("{kinds}", [i, j])')
    if reduced and rng.random() < 0.6:
        text += _lines(3, "with T.init():", *starts)
    return text + _lines(3, *stores)


def nests(rng: random.Random) -> str:
    """Several blocks in one nest of loops, which use each other's results, near and far."""
    n, m, dtype = rng.randint(2, 5), rng.randint(1, 4), _int(rng)
    count = rng.randint(2, 3)
    params = [f'{b}: T.Buffer(({n + 2}, {m}), "{dtype}")' for b in "AXYZ"[: count + 1]]
    text = _head(*params) + _lines(1, f"for i in range({n}):")
    names = "AXYZ"[: count + 1]
    for k in range(1, count + 1):
        source = rng.choice(names[:k] * 3 + names[k:])
        target = rng.choice(names[k] * 4 + "A")
        shift = rng.choice([0, 0, 1, 2])
        load = f"{source}[vi + {shift}, vj]"
        old = f"{target}[vi + {rng.choice([0, 0, 0, 1])}, vj]"
        value = rng.choice([f"{load} * 2", f"{load} + 1", f"{old} + {load}"])
        body = (f'with T.block("B{k}"):', f"    vi = T.axis.spatial({n}, i)")
        if rng.random() < 0.7:
            text += _lines(2, f"for j in range({m}):")
            text += _lines(3, *body, f"    vj = T.axis.spatial({m}, j)", f"    {old} = {value}")
        else:
            row = [x.replace("vj", "0") for x in (old, value)]
            text += _lines(2, *body, f"    {row[0]} = {row[1]}")
    return text


def private_triangles(rng: random.Random) -> str:
    """A triangle in a buffer of its own, and what reads it."""
    n, m, dtype = rng.randint(2, 6), rng.randint(1, 4), rng.choice(["int32", "float32", "int64"])
    span = rng.choice(["range(i + 1)", f"range(i, {n})", f"range({n} - i)", "range(i)",
                       f"range(T.max(i - 1, 0), T.min(i + 2, {n}))"])  # fmt: skip
    text = _head(f'A: T.Buffer(({n}, {m}), "{dtype}")', f'C: T.Buffer(({n}, {n}), "{dtype}")')
    text += _lines(1, f'B = T.alloc_buffer(({n}, {n}), "{dtype}")', f"for i in range({n}):")
    text += _lines(2, f"for j in {span}:")
    if rng.random() < 0.6:
        text += _lines(3, f"for k in range({m}):", '    with T.block("B"):')
        text += _lines(5, 'vi, vj, vk = T.axis.remap("SSR", [i, j, k])', "with T.init():")
        text += _lines(6, f"B[vi, vj] = T.{dtype}(0)")
        text += _lines(5, "B[vi, vj] = B[vi, vj] + A[vi, vk] * A[vj, vk]")
    else:
        text += _lines(3, 'with T.block("B"):', '    vi, vj = T.axis.remap("SS", [i, j])')
        text += _lines(4, f"B[vi, vj] = A[vi, 0] + A[vj, {m - 1}]")
    text += _lines(1, f"for i in range({n}):") + _lines(2, f"for j in {span}:")
    text += _lines(3, 'with T.block("C"):', '    vi, vj = T.axis.remap("SS", [i, j])')
    place = "vi, vj" if rng.random() < 0.7 else "vj, vi"
    return text + _lines(4, f"C[{place}] = B[vi, vj] {rng.choice('+-*')} C[{place}]")


def shifted_products(rng: random.Random) -> str:
    """Products of integers with zero points, as quantized operators have."""
    n, m, k = (rng.randint(1, 5) for _ in range(3))
    a, b = rng.choice(["uint8", "int8"]), rng.choice(["uint8", "int8", "int32"])

    def factor(load: str, where: str) -> str:
        zero = rng.choice(["Z[0]", where, "3", "vk", f"{where} * 2"])
        return rng.choice([f"({load} - {zero})", f"({load} + {zero})", load, f"({zero} - {load})"])

    left = factor("T.cast(A[vi, vk], 'int32')", "V[vi]")
    right = factor("T.cast(B[vk, vj], 'int32')", "W[vj]")
    value = rng.choice(
        [f"{left} * {right}", f"{left} * {right}", f"{left} * {right} * V[vi]", left]
    )
    text = _head(f'A: T.Buffer(({n}, {k}), "{a}")', f'B: T.Buffer(({k}, {m}), "{b}")',
                 'Z: T.Buffer((1,), "int32")', f'V: T.Buffer(({n},), "int32")',
                 f'W: T.Buffer(({m},), "int32")', f'C: T.Buffer(({n}, {m}), "int32")')  # fmt: skip
    text += _lines(1, f"for i, j, k in T.grid({n}, {m}, {k}):") + _lines(2, 'with T.block("C"):')
    text += _lines(3, 'vi, vj, vk = T.axis.remap("SSR", [i, j, k])', "with T.init():")
    return text + _lines(4, "C[vi, vj] = 0") + _lines(3, f"C[vi, vj] = C[vi, vj] + {value}")


def narrow(rng: random.Random) -> str:
    """A stage of a narrow type, or of integers that fit a narrow type, and a wide sum of it."""
    n, k = rng.randint(1, 5), rng.randint(1, 6)
    small = rng.choice(["int8", "uint8", "int16", "float16", "bfloat16", "float32"])
    wide = "float64" if small == "float32" else "float32" if "float" in small else "int32"
    fits = "int" in small and rng.random() < 0.8
    stage = wide if fits else small
    text = _head(f'A: T.Buffer(({n}, {k}), "{small}")', f'C: T.Buffer(({n},), "{wide}")')
    text += _lines(
        1, f'B = T.alloc_buffer(({n}, {k}), "{stage}")', f"for i, k in T.grid({n}, {k}):"
    )
    text += _lines(2, 'with T.block("B"):', '    vi, vk = T.axis.remap("SS", [i, k])')
    value = rng.choice(["A[vi, vk]", "A[vi, vk] * A[vi, vk]", "A[vi, vk] + A[vi, vk]"])
    if fits:
        value = f"T.cast(A[vi, vk], '{wide}') - {rng.choice([0, 3, 121])}"
        edge = f"vk < {rng.randint(0, k)}"
        large = f"T.Select({edge}, T.min({value}, 90), {rng.choice([0, 300])})"
        chosen = f"T.if_then_else({edge}, {value}, 0)"
        value = rng.choice([value, chosen, f"T.max({value}, 0)", large])
    text += _lines(3, f"B[vi, vk] = {value}") + _lines(1, f"for i, k in T.grid({n}, {k}):")
    text += _lines(2, 'with T.block("C"):', '    vi, vk = T.axis.remap("SR", [i, k])')
    text += _lines(3, "with T.init():", f"    C[vi] = T.{wide}(0)")
    return text + _lines(3, f"C[vi] = C[vi] + T.cast(B[vi, vk], '{wide}')")


def rescaled(rng: random.Random) -> str:
    """A maximum, powers of two of the differences to it, their sum, and a weighted sum."""
    n, k, m = rng.randint(1, 3), 2 * rng.randint(1, 4), rng.randint(1, 3)
    largest = rng.random() < 0.8
    call, start, rate = ("max", "min", "1") if largest else ("min", "max", "-1")
    power = f"T.exp2((X[vi, vk] - M[vi]) * T.float32({rate}))"
    params = {"X": f"{n}, {k}", "V": f"{k}, {m}", "S": f"{n},", "O": f"{n}, {m}"}
    text = _head(*[f'{b}: T.Buffer(({shape}), "float32")' for b, shape in params.items()])
    text += _lines(1, f'M = T.alloc_buffer(({n},), "float32")')
    text += _lines(1, f'E = T.alloc_buffer(({n}, {k}), "float32")')

    def stage(name: str, axes: str, kinds: str, out: str, first: str, value: str) -> str:
        sizes = {"i": n, "j": m, "k": k}
        lines = _lines(
            1, f"for {', '.join(axes)} in T.grid({', '.join(str(sizes[a]) for a in axes)}):"
        )
        lines += _lines(2, f'with T.block("{name}"):')
        lines += _lines(3, f'{", ".join("v" + a for a in axes)} = '
                           f'T.axis.remap("{kinds}", [{", ".join(axes)}])')  # fmt: skip
        if first:
            lines += _lines(3, "with T.init():", f"    {out} = {first}")
        return lines + _lines(3, f"{out} = {value}")

    text += stage(
        "M", "ik", "SR", "M[vi]", f'T.{start}_value("float32")', f"T.{call}(M[vi], X[vi, vk])"
    )
    staged = rng.random() < 0.5
    if staged:
        text += stage("E", "ik", "SS", "E[vi, vk]", "", power)
    weight = "E[vi, vk]" if staged else power
    text += stage("S", "ik", "SR", "S[vi]", "T.float32(0)", f"S[vi] + {weight}")
    if rng.random() < 0.6:
        text += stage(
            "O", "ijk", "SSR", "O[vi, vj]", "T.float32(0)", f"O[vi, vj] + {weight} * V[vk, vj]"
        )
    return text


def solves(rng: random.Random) -> str:
    """Rows that first subtract multiples of earlier rows, as in a triangular solve."""
    n, m = rng.randint(3, 6), rng.randint(1, 4)
    many, first = rng.random() < 0.5, rng.choice([0, 0, 1])
    shape, at = (f"{n}, {m}", "[{}, j]") if many else (f"{n},", "[{}]")
    text = _head(f'A: T.Buffer(({n}, {n}), "int32")', f'X: T.Buffer(({shape}), "int32")')
    row, earlier = (f"X{at.format(name)}" for name in ("i", "k"))
    step, depth = rng.choice(["-", "+"]), 4 if many else 3
    text += _lines(1, f"for i in range({first}, {n}):")
    if rng.random() < 0.3:
        added = rng.choice(["A[i, i]", f"X{at.format(0)}", f"X{at.format('i - 1')}"])
        text += _lines(2, f"for j in range({m}):") if many else ""
        text += _lines(depth - 1, 'with T.block("begin"):')
        guard = "" if "-" not in added else "T.where(i > 0)"
        text += _lines(depth, guard) if guard else ""
        text += _lines(depth, f"{row} = {row} {rng.choice('+-')} {added}")
    text += _lines(2, f"for k in range({first}, i):")
    text += _lines(3, f"for j in range({m}):") if many else ""
    text += _lines(depth, 'with T.block("update"):')
    text += _lines(depth + 1, f"{row} = {row} {step} A[i, k] * {earlier}")
    text += _lines(2, f"for j in range({m}):") if many else ""
    text += _lines(depth - 1, 'with T.block("finish"):')
    return text + _lines(depth, f"{row} = {row} * A[i, i]")


def accumulators(rng: random.Random) -> str:
    """Scalars that collect a value in several blocks before they are stored; two may share one."""
    n, m, size = rng.randint(2, 5), rng.randint(1, 4), rng.choice([1, 1, 1, 3])
    dtype = rng.choice(["int32", "int64", "float32"])
    shapes = {"A": f"{n}, {n}", "B": f"{n},", "C": f"{n}, {n}"}
    text = _head(*[f'{b}: T.Buffer(({s}), "{dtype}")' for b, s in shapes.items()])
    text += _lines(1, f't = T.alloc_buffer(({size},), "{dtype}")')
    late = rng.random() < 0.2
    if late:
        text += _lines(1, f"for i in range({size}):", '    with T.block("start"):')
        text += _lines(3, f"t[i] = T.{dtype}(1)")
    text += _lines(1, f"for i in range({n}):")
    span = rng.choice([f"range({n})", "range(i)", f"range(i, {n})"])
    text += _lines(2, f"for j in {span}:")
    place = rng.choice(["A[i, j]", "A[i, j]", "A[j, i]", "C[i, j]", f"C[{n - 1} - i, j]", "B[j]"])
    for part in range(rng.randint(1, 2)):
        at = f"t[{rng.choice([0, 0, 0, size - 1])}]"
        first = rng.choice([place, place, "B[i]", "A[i, j]", f"T.{dtype}(0)"])
        text += _lines(3, f'with T.block("set{part}"):', f"    {at} = {first}")
        steps = rng.choice([f"range({m})", "range(j)", "range(i)"]) if n >= m else "range(j)"
        new = rng.choice(["A[i, k]", "A[k, j]", "B[k]", "C[i, k]", "B[j]"])
        text += _lines(3, f"for k in {steps}:", f'    with T.block("update{part}"):')
        text += _lines(5, f"{at} = " + rng.choice(_UPDATES).format(old=at, new=new))
        if rng.random() < 0.2:
            text += _lines(3, f'with T.block("other{part}"):', "    B[i] = A[j, i]")
        last = rng.choice([at, at, f"{at} * 2", f"{at} + {rng.choice(['A[j, j]', 'B[i]', place])}"])
        text += _lines(3, f'with T.block("store{part}"):', f"    {place} = {last}")
    if late:
        text += _lines(2, 'with T.block("late"):', "    B[i] = t[0]")
    return text


def ragged_products(rng: random.Random) -> str:
    """Rows of a product whose number of steps depends on the row, also in place."""
    n, m, dtype = rng.randint(3, 8), rng.randint(1, 5), rng.choice(["int32", "int64"])
    span = rng.choice(["range(i)", f"range(i + 1, {n})", "range(i + 1)", f"range({n} - i)",
                       f"range(i // 2, {n})"])  # fmt: skip
    source = rng.choice(["B", "C", "C"])
    text = _head(
        *[f'{b}: T.Buffer(({n}, {s}), "{dtype}")' for b, s in zip("ABC", (n, m, m), strict=True)]
    )
    text += _lines(1, f"for i, j in T.grid({n}, {m}):")
    if rng.random() < 0.3:
        text += _lines(2, 'with T.block("before"):', '    vi, vj = T.axis.remap("SS", [i, j])')
        text += _lines(3, "B[vi, vj] = B[vi, vj] * 3")
    text += _lines(2, f"for k in {span}:", '    with T.block("product"):')
    text += _lines(4, 'vi, vj, vk = T.axis.remap("SSR", [i, j, k])')
    factor = rng.choice(["A[vk, vi]", "A[vi, vk]"])
    text += _lines(4, f"B[vi, vj] = B[vi, vj] {rng.choice('+-')} {factor} * {source}[vk, vj]")
    if rng.random() < 0.5:
        text += _lines(2, 'with T.block("after"):', '    vi, vj = T.axis.remap("SS", [i, j])')
        text += _lines(3, "B[vi, vj] = B[vi, vj] * 2")
    return text


def overwritten(rng: random.Random) -> str:
    """Elementwise updates of one matrix one after the other, some of a part, and a row sum."""
    n, m, dtype = rng.randint(2, 5), rng.randint(1, 4), _int(rng)
    shape = f'({n}, {m}), "{dtype}"'
    text = _head(
        f"A: T.Buffer({shape})", f"C: T.Buffer({shape})", f'S: T.Buffer(({n},), "{dtype}")'
    )
    text += _lines(1, f'P = T.alloc_buffer(({n},), "{dtype}")')
    for k in range(rng.randint(2, 4)):
        loops, extents = rng.choice([("i, j", f"{n}, {m}"), ("j, i", f"{m}, {n}")])
        if rng.random() < 0.15:
            loops, extents = f"t, {loops}", f"2, {extents}"
        text += _lines(1, f"for {loops} in T.grid({extents}):") + _lines(
            2, f'with T.block("U{k}"):'
        )
        text += _lines(3, 'vi, vj = T.axis.remap("SS", [i, j])')
        if rng.random() < 0.15:
            text += _lines(3, "T.where(i <= j)")
        target, other = rng.choice(["CA", "CA", "CA", "AC"])
        at = rng.choice(["vi, vj"] * 6 + ["vi, 0"])
        value = rng.choice(["{0} * 2", "{0} + {1}", "{1} - {0} * {0}", "{1} + vi"])
        value = value.format(f"{target}[{at}]", f"{other}[vi, vj]")
        value = value if dtype == "int32" else value.replace("+ vi", f"+ T.{dtype}(1)")
        text += _lines(3, f"{target}[vi, vj] = {value}")
    text += _lines(1, f"for i, k in T.grid({n}, {m}):") + _lines(2, 'with T.block("P"):')
    text += _lines(
        3, 'vi, vk = T.axis.remap("SR", [i, k])', "with T.init():", f"    P[vi] = T.{dtype}(0)"
    )
    factor = rng.choice(["", "3 * "])
    text += _lines(3, f"P[vi] = P[vi] + {factor}A[vi, vk]")
    text += _lines(1, f"for i in range({n}):") + _lines(2, 'with T.block("S"):')
    text += _lines(3, f"vi = T.axis.spatial({n}, i)", "S[vi] = S[vi] * 2 + P[vi]")
    return text


def planes(rng: random.Random) -> str:
    """Reductions into planes of one buffer, which read elements of the planes before them."""
    n, m, count, dtype = rng.randint(1, 6), rng.randint(1, 5), rng.randint(2, 3), _int(rng)
    text = _head(f'A: T.Buffer(({n}, {m}), "{dtype}")', f'D: T.Buffer(({n},), "{dtype}")')
    text += _lines(1, f'C = T.alloc_buffer(({count}, {n}), "{dtype}")')
    at = rng.choice(["vi", "vi", f"{n - 1} - vi", f"vk % {n}"])
    from_init = f"{n - 1} - vi" if "vk" in at else at
    if rng.random() < 0.4:  # one block for all planes after the first
        text += _lines(1, f"for i in range({n}):") + _lines(2, 'with T.block("C0"):')
        text += _lines(3, f"vi = T.axis.spatial({n}, i)", f"C[0, vi] = A[vi, {m - 1}]")
        loops = rng.sample([("i", n, "S"), ("k", m, "R")], 2)
        text += _grid_of([("p", count - 1, "S"), *loops], "C1")
        start = f"C[vp, {from_init}]" if rng.random() < 0.4 else f"T.{dtype}({rng.randint(0, 2)})"
        old = rng.choice(["", f" * C[vp, {at}]", f" * C[vp, {at}]"])
        text += _lines(3, "with T.init():") + _lines(4, f"C[vp + 1, vi] = {start}")
        text += _lines(3, f"C[vp + 1, vi] = C[vp + 1, vi] + A[vi, vk]{old}")
    for plane in range(count) if "C0" not in text else ():
        old = f" * C[{rng.randrange(plane)}, {at}]" if plane else ""
        start = f"T.{dtype}({rng.randint(0, 2)})"
        if plane and rng.random() < 0.3:
            start = f"C[{rng.randrange(plane)}, {from_init}]"
        loops = rng.choice([[("i", n, "S"), ("k", m, "R")], [("k", m, "R"), ("i", n, "S")]])
        text += _grid_of(loops, f"C{plane}") + _lines(3, "with T.init():")
        text += _lines(4, f"C[{plane}, vi] = {start}")
        text += _lines(3, f"C[{plane}, vi] = C[{plane}, vi] + A[vi, vk]{old}")
    text += _lines(1, f"for i in range({n}):") + _lines(2, 'with T.block("D"):')
    value = " + ".join(f"C[{plane}, vi]" for plane in range(count))
    text += _lines(3, f"vi = T.axis.spatial({n}, i)", f"D[vi] = {value}")
    return text


def _grid_of(loops: list[tuple[str, int, str]], name: str) -> str:
    """Loops and a block with an iterator for each: names, extents, kinds."""
    names, extents, kinds = zip(*loops, strict=True)
    sizes = ", ".join(map(str, extents))
    text = _lines(1, f"for {', '.join(names)} in T.grid({sizes}):")
    text += _lines(2, f'with T.block("{name}"):')
    iters = ", ".join(f"v{x}" for x in names)
    return text + _lines(3, f'{iters} = T.axis.remap("{"".join(kinds)}", [{", ".join(names)}])')


UPDATES: dict[Callable[[random.Random], str], tuple[str, ...]] = {
    sweeps: ("wavefront", "wavefront", "skew", "parallel", "unroll"),
    time_steps: ("enclose", "time_tiles", "time_tiles", "time_tiles", "delay", "merge"),
    scatters: (
        "privatize_update",
        "privatize_update",
        "update_in_chunks",
        "parallel",
        "reorder",
    ),
    scans: ("scan_in_chunks", "scan_in_chunks", "parallel", "tile"),
    outputs: ("decompose_outputs", "outputs_apart", "fission", "rfactor"),
    nests: ("fission", "fission", "fission", "merge", "parallel"),
    private_triangles: ("overcompute_box", "overcompute_box", "skip_unused", "tile"),
    shifted_products: ("expand_reduction", "chain_sum", "privatize_reduction", "tile"),
    narrow: ("narrow_dtype", "narrow_dtype", "narrow_dtype", "unsafe_set_dtype widen_dtype"),
    solves: ("right_looking", "right_looking", "fission", "reorder", "parallel"),
    accumulators: ("keep_in_result", "keep_in_result", "expand_buffer", "fission", "reorder"),
    ragged_products: ("cache_update", "cut_and_join", "ragged_tile", "ragged_tile", "fission"),
    overwritten: ("compute_inline", "compute_inline", "reverse_compute_at", "privatize_reduction"),
    rescaled: ("rolling_update", "rolling_update", "compute_at", "compute_inline"),
    planes: (
        "compute_at",
        "compute_at",
        "reverse_compute_at",
        "rfactor",
        "reorder",
        "decompose_reduction",
        "decompose_reduction",
        "parallel",
    ),
}
"""Each family with the operations of the machine that it is made for."""
