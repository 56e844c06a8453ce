"""More kinds of random programs for the fuzz of the space; see `space.random_kinds`."""

from __future__ import annotations

from collections.abc import Callable

from schedule.program_families import FAMILIES
from schedule.program_families_shapes import SHAPES
from space.few_iterations import few_iterations
from space.memory_loops import memory_loops, named_rows
from space.mixed_blocks import mixed_blocks
from space.ordered_sums import centred_rows, ordered_sums, ordered_triangles
from space.own_memory import own_memory
from space.plain_idioms import plain_idioms
from space.plain_loops import plain_loops
from space.random_kinds import (
    INTS,
    REALS,
    Draw,
    Text,
    accumulations,
    arg_reductions,
    attentions,
    in_place,
    normalisations,
    ragged,
    several_outputs,
    solvers,
    triangles,
)
from space.row_machines import row_machines
from space.scattered_windows import gathered_windows, scattered_windows
from space.user_idioms import user_idioms


def time_loops(d: Draw) -> str:
    """Stencils below a loop over time: from one array to another and back, or in place."""
    ndim, times = d.rng.choice([1, 1, 2]), d.rng.randint(1, 4)
    reach = d.rng.choice([1, 1, 2])
    sizes = tuple(d.size(2 * reach + 1, 40) for _ in range(ndim))
    dtype = d.pick(*REALS, "int32", "int64")
    form = d.rng.randrange(3)
    axes = "ij"[:ndim]
    ends = ", ".join(f"({reach}, {s - reach})" for s in sizes)
    grid = f"for {', '.join(axes)} in T.grid({ends}):" if ndim > 1 else (
        f"for i in range({reach}, {sizes[0] - reach}):")  # fmt: skip

    def point(buffer: str, shift: tuple[int, ...]) -> str:
        terms = (f"{a} + {s}" if s >= 0 else f"{a} - {-s}"
                 for a, s in zip(axes, shift, strict=True))  # fmt: skip
        return f"{buffer}[{', '.join(terms)}]"

    def star(buffer: str) -> str:
        terms = [point(buffer, (0,) * ndim)]
        for _ in range(d.rng.randint(1, 4)):
            shift = tuple(d.rng.randint(-reach, reach) for _ in axes)
            terms.append(point(buffer, shift))
        total = " + ".join(terms)
        return f"T.{dtype}(0.25) * ({total})" if dtype in REALS else total

    here = f"[{', '.join(axes)}]"
    t = Text.of(dtype, A=sizes, B=sizes)
    t.add(1, f"for t in range({times}):")
    if form == 0:
        t.add(2, grid, f"    B{here} = {star('A')}", grid, f"    A{here} = {star('B')}")
    elif form == 1:
        t.add(2, grid, f"    A{here} = {star('A')}")
    else:
        t.param("E", sizes, dtype)
        t.add(2, grid, f"    E{here} = E{here} - {star('B')}",
              grid, f"    A{here} = A{here} + {star('E')}",
              grid, f"    B{here} = B{here} + {star('A')}")  # fmt: skip
    return str(t)


def stencil_chains(d: Draw) -> str:
    """Stencils of stencils over images, borders cut or clamped, bytes widened."""
    n, m = d.size(3), d.size(3)
    small = d.pick("float32", "float32", "uint8", "uint16", "int16")
    wide = (
        small if small == "float32" else d.pick("uint16", "int32") if small == "uint8" else "int32"
    )
    count = d.rng.randint(1, 3)
    shifts = [(d.rng.randint(0, 2), d.rng.randint(0, 2)) for _ in range(count)]
    tall, broad = n + sum(a for a, _ in shifts), m + sum(b for _, b in shifts)
    t = Text.of(small, X=(tall, broad))
    source, at_x = "X", True
    for k, (a, b) in enumerate(shifts):
        tall, broad = tall - a, broad - b
        last = k == count - 1
        name = f"S{k}"
        (t.param if last else t.temp)(name, (tall, broad), wide)
        loads = [f"{source}[vi + {p}, vj + {q}]" for p in range(a + 1) for q in range(b + 1)]
        if at_x and small != wide:
            loads = [f'T.cast({load}, "{wide}")' for load in loads]
        value = " + ".join(d.rng.sample(loads, d.rng.randint(1, len(loads))))
        if d.often(0.2):
            value = f"T.if_then_else(vi + vj > 2, {value}, {d.number(wide)})"
        t.block(name, {"i": (tall, "S"), "j": (broad, "S")}, f"{name}[vi, vj] = {value}")
        source, at_x = name, False
    return str(t)


def scans(d: Draw) -> str:
    """Running sums, maxima and recurrences along rows or columns, also backwards and exclusive."""
    n, m, dtype = d.size(2, 130), d.size(1, 33), d.pick(*REALS, *INTS)
    rows, back, exclusive = d.often(0.6), d.often(0.3), d.often(0.2)
    t = Text.of(dtype, A=(m, n) if rows else (n, m), B=(m, n) if rows else (n, m))

    def at(buffer: str, k: str) -> str:
        k = f"{n - 1} - ({k})" if back else k
        return f"{buffer}[i, {k}]" if rows else f"{buffer}[{k}, i]"

    new = at("A", "k - 1" if exclusive else "k")
    old = at("B", "k - 1")
    value = d.pick(f"{old} + {new}", f"{old} + {new}", f"T.max({old}, {new})",
                   f"{old} * {d.number(dtype)} + {new}")  # fmt: skip
    if dtype in REALS and d.often(0.2):
        value = f"{old} * T.{dtype}(0.75) + {new}"
    if d.often(0.3) and not exclusive:
        loops = f"for i, k in T.grid({m}, {n}):" if rows else f"for k, i in T.grid({n}, {m}):"
        t.add(1, loops, '    with T.block("B"):')
        kind, target = d.pick("scan", "spatial"), at("B", "k")
        t.add(3, f"i_, k_ = T.axis.spatial({m}, i), T.axis.{kind}({n}, k)")
        body = [f"{target} = T.if_then_else(k == 0, {new}, {value})"]
        if d.often(0.5):
            body = ["if k == 0:", f"    {target} = {new}", "else:", f"    {target} = {value}"]
        for line in body:
            t.add(3, _renamed(_renamed(line, "i"), "k"))
        return str(t)
    first = f"    {at('B', '0')} = {d.number(dtype) if exclusive else at('A', '0')}"
    t.add(1, f"for i in range({m}):")
    if rows:
        t.add(1, first, f"    for k in range(1, {n}):", f"        {at('B', 'k')} = {value}")
    else:
        t.add(1, first, f"for k in range(1, {n}):", f"    for i in range({m}):",
              f"        {at('B', 'k')} = {value}")  # fmt: skip
    return str(t)


def _renamed(text: str, word: str) -> str:
    """The text with a loop variable replaced by the iterator of its block."""
    out, previous = "", ""
    for k, letter in enumerate(text):
        following = text[k + 1] if k + 1 < len(text) else ""
        alone = letter == word and not (previous.isalnum() or previous in "_.")
        out += f"{word}_" if alone and not (following.isalnum() or following == "_") else letter
        previous = letter
    return out


def indexed(d: Draw) -> str:
    """Gather, scatter-add, one-hot, histogram, embedding sums, with guards."""
    n, size, m = d.size(1, 130), d.size(), d.size(1, 33)
    dtype, kind = d.pick(*REALS, "int32", "int64"), d.pick("int32", "int32", "int64", "uint8")
    form = d.rng.randrange(7)
    index = "N[vi]"
    t = Text([], [])
    t.param("N", (n,), kind)
    if form == 0:  # gather of rows
        t.param("X", (size, m), dtype)
        t.param("O", (n, m), dtype)
        t.block("O", {"i": (n, "S"), "j": (m, "S")}, f"O[vi, vj] = X[{index}, vj] + X[0, vj]")
    elif form == 1:  # scatter of rows
        t.param("X", (n, m), dtype)
        t.param("O", (size, m), dtype)
        update = d.pick("{0} + X[vi, vj]", "T.max({0}, X[vi, vj])", "{0} - X[vi, vj]")
        guard = d.pick("", f"if {index} > 1: ")
        t.block("O", {"i": (n, "R"), "j": (m, "S")},
                f"{guard}O[{index}, vj] = {update.format(f'O[{index}, vj]')}",
                where=d.pick("", "", "N[i] > 1"))  # fmt: skip
    elif form == 2:  # one-hot
        t.param("O", (n, size), dtype)
        t.block("O", {"i": (n, "S"), "j": (size, "S")},
                f'O[vi, vj] = T.cast({index} == T.cast(vj, "{kind}"), "{dtype}")')  # fmt: skip
    elif form == 3:  # histogram, as loops
        t.param("H", (size,), dtype)
        t.add(1, f"for k in range({size}):", f"    H[k] = T.{dtype}(0)", f"for i in range({n}):")
        t.add(2, *d.rng.choice([[f"H[N[i]] += T.{dtype}(1)"],
                                ["if N[i] > 0:", f"    H[N[i]] += T.{dtype}(1)"]]))  # fmt: skip
    elif form == 4:  # sums of embeddings, weighted
        bags = d.size(1, 19)
        t.params.clear()
        t.param("N", (n, bags), kind)
        t.param("W", (n, bags), dtype)
        t.param("X", (size, m), dtype)
        t.param("O", (n, m), dtype)
        t.block("O", {"i": (n, "S"), "j": (m, "S"), "b": (bags, "R")},
                "O[vi, vj] = O[vi, vj] + W[vi, vb] * X[N[vi, vb], vj]",
                init=f"O[vi, vj] = T.{dtype}(0)")  # fmt: skip
    elif form == 5:  # gather with a guard on the index
        t.param("X", (size,), dtype)
        t.param("O", (n,), dtype)
        guard = f"N[vi] < T.{kind}({size})"
        t.block("O", {"i": (n, "S")},
                f"O[vi] = T.if_then_else({guard}, X[N[vi]], {d.number(dtype)})")  # fmt: skip
    else:  # gather of what was computed, twice indexed
        t.param("X", (size,), dtype)
        t.param("O", (n,), dtype)
        t.temp("Y", (size,), dtype)
        t.block("Y", {"i": (size, "S")}, f"Y[vi] = X[vi] * {d.number(dtype)}")
        t.block("O", {"i": (n, "S")}, f"O[vi] = Y[N[vi]] + Y[N[{n - 1} - vi]]")
    return str(t)


def quantized(d: Draw) -> str:
    """Products of bytes and small floats with zero points, bias, rounding and saturation."""
    n, m, k = d.size(), d.size(), d.size()
    a, b, c = d.rng.choice([("uint8", "int8", "int32"), ("uint8", "int8", "int32"),
                            ("int8", "int8", "int32"), ("uint8", "uint8", "int32"),
                            ("int16", "int16", "int32"), ("bfloat16", "bfloat16", "float32"),
                            ("float8_e4m3fn", "float8_e4m3fn", "float32"),
                            ("float16", "float16", "float32")])  # fmt: skip
    integer = c == "int32"
    left, right = f'T.cast(A[vi, vk], "{c}")', f'T.cast(B[vk, vj], "{c}")'
    t = Text.of(a, A=(n, k))
    if d.often(0.6):
        t.param("B", (k, m), b)
    else:
        t.param("B", (m, k), b)
        right = right.replace("vk, vj", "vj, vk")
    if integer and d.often(0.3):
        zero = d.pick("3", "Z[0]", "Z[vi]")
        t.param("Z", (n,), "int32")
        left = f"({left} - {zero})"
    axes = {"i": (n, "S"), "j": (m, "S"), "k": (k, "R")}
    end = d.rng.randrange(4)
    if end:
        t.temp("C", (n, m), c)
    else:
        t.param("C", (n, m), c)
    t.block("C", axes, f"C[vi, vj] = C[vi, vj] + {left} * {right}", init=f"C[vi, vj] = T.{c}(0)")
    cells = {"i": (n, "S"), "j": (m, "S")}
    if end == 1:
        t.param("F", (m,), c)
        t.param("O", (n, m), c)
        t.block("O", cells, f"O[vi, vj] = T.max(C[vi, vj] + F[vj], T.{c}(0))")
    elif end == 2 and integer:
        small = d.pick("int8", "uint8")
        low, high = (-128, 127) if small == "int8" else (0, 255)
        t.param("G", (m,), "float32")
        t.param("O", (n, m), small)
        scaled = "T.nearbyint(T.cast(C[vi, vj], 'float32') * G[vj])"
        t.block("O", cells, f"O[vi, vj] = T.cast(T.min(T.max({scaled}, T.float32({low})), "
                            f"T.float32({high})), '{small}')")  # fmt: skip
    elif end:
        small = a if not integer else d.pick("int8", "int16", "uint8")
        t.param("O", (n, m), small)
        value = "C[vi, vj]" if not integer else "T.max(T.min(C[vi, vj] >> 4, 127), 0)"
        t.block("O", cells, f"O[vi, vj] = T.cast({value}, '{small}')")
    return str(t)


def packed(d: Draw) -> str:
    """Products with weights of 4 bits, several in a word, or of bytes, with a scale for each
    group."""
    n, m, group = d.size(), d.rng.choice([1, 1, 2, d.size()]), d.rng.choice([4, 8, 24, 32])
    k = group * d.size(1, 7)
    word = d.pick("uint8", "uint8", "uint32", "int8")
    c = d.pick("float32", "float32", "int32")
    each = {"uint8": 2, "uint32": 8, "int8": 1}[word]
    t = Text.of(c, X=(m, k))
    t.param("W", (n, -(-k // each)), word)
    t.param("S", (n, k // group), c)
    if each == 1:
        weight = f'T.cast(W[vj, vk], "{c}")'
    else:
        far = word == "uint8" and d.often(0.5)  # the upper halves hold the second half of a row
        place, part = (f"vk % {k // 2}", f"vk // {k // 2}") if far else (
            f"vk // {each}", f"vk % {each}")  # fmt: skip
        bits = f"(W[vj, {place}] >> T.cast({part} * 4, '{word}')) & T.{word}(15)"
        weight = f"(T.cast({bits}, '{c}') - T.{c}(8))"
    value = f"{weight} * S[vj, vk // {group}]"
    axes = {"i": (m, "S"), "j": (n, "S"), "k": (k, "R")}
    if d.often(0.6):
        t.temp("D", (n, k), c)
        t.block("D", {"j": (n, "S"), "k": (k, "S")}, f"D[vj, vk] = {value}")
        value = "D[vj, vk]"
    t.param("O", (m, n), c)
    t.block("O", axes, f"O[vi, vj] = O[vi, vj] + X[vi, vk] * ({value})",
            init=f"O[vi, vj] = T.{c}(0)")  # fmt: skip
    return str(t)


def narrow_chains(d: Draw) -> str:
    """Element-wise work and sums in small floats, with casts up and down."""
    n, m, small = d.size(), d.size(), d.pick("float16", "bfloat16", "float8_e5m2")
    t = Text.of(small, A=(n, m), B=(m,))
    cells = {"i": (n, "S"), "j": (m, "S")}
    wide = 'T.cast({}, "float32")'
    product = f"{wide.format('A[vi, vj]')} * {wide.format('B[vj]')}"
    value = d.pick("A[vi, vj] + B[vj]", "T.max(A[vi, vj], B[vj])", "A[vi, vj] * B[vj]",
                   f"T.cast({product}, '{small}')")  # fmt: skip
    staged = d.often(0.5)
    (t.temp if staged else t.param)("C", (n, m), small)
    t.block("C", cells, f"C[vi, vj] = {value}")
    if staged:
        t.param("O", (n,), "float32")
        t.block("O", {"i": (n, "S"), "j": (m, "R")}, f"O[vi] = O[vi] + {wide.format('C[vi, vj]')}",
                init="O[vi] = T.float32(0)")  # fmt: skip
    return str(t)


def strided(d: Draw) -> str:
    """Products and sums over reversed, strided and diagonal indices."""
    n, m, k, dtype = d.size(1, 33), d.size(1, 33), d.size(1, 33), d.dtype()
    by = d.rng.choice([1, 2, 3])
    form = d.rng.randrange(6)
    zero = f"T.{dtype}(0)"
    if form == 0:
        t = Text.of(dtype, A=(n, k), B=(k, m), C=(n, m))
        left = d.pick(f"A[{n - 1} - vi, vk]", f"A[vi, {k - 1} - vk]",
                      f"A[{n - 1} - vi, {k - 1} - vk]")  # fmt: skip
        right = d.pick("B[vk, vj]", f"B[vk, {m - 1} - vj]", f"B[{k - 1} - vk, vj]")
        t.block("C", {"i": (n, "S"), "j": (m, "S"), "k": (k, "R")},
                f"C[vi, vj] = C[vi, vj] + {left} * {right}",
                init=f"C[vi, vj] = {zero}")  # fmt: skip
    elif form == 1:  # a convolution by hand, with a stride and a gap
        gap, width = d.rng.choice([1, 2]), d.rng.randint(1, 5)
        t = Text.of(dtype, X=((n - 1) * by + (width - 1) * gap + 1,), W=(width, m), O=(n, m))
        t.block("O", {"i": (n, "S"), "j": (m, "S"), "r": (width, "R")},
                f"O[vi, vj] = O[vi, vj] + X[vi * {by} + vr * {gap}] * W[vr, vj]",
                init=f"O[vi, vj] = {zero}")  # fmt: skip
    elif form == 2:  # toeplitz: the sum of two loops
        t = Text.of(dtype, X=(n + m,), O=(n, m))
        t.block("O", {"i": (n, "S"), "j": (m, "S")},
                f"O[vi, vj] = X[{m} - vj + vi] * {d.number(dtype)}")  # fmt: skip
    elif form == 3:  # every other element is written
        t = Text.of(dtype, X=(n, m), O=(n, m * by))
        t.block("O", {"i": (n, "S"), "j": (m, "S")},
                f"O[vi, vj * {by} + {by - 1}] = "
                f"X[vi, {m - 1} - vj] + X[{n - 1} - vi, vj]")  # fmt: skip
    elif form == 4:  # diagonals summed
        t = Text.of(dtype, X=(n, n + m), O=(m,))
        t.block("O", {"j": (m, "S"), "i": (n, "R")}, "O[vj] = O[vj] + X[vi, vi + vj]",
                init=f"O[vj] = {zero}")  # fmt: skip
    else:  # a reshape and a transposition
        t = Text.of(dtype, X=(n, m, k), O=(k * n, m))
        t.block("O", {"i": (k * n, "S"), "j": (m, "S")},
                f"O[vi, vj] = X[vi % {n}, vj, vi // {n}]")  # fmt: skip
    return str(t)


def guarded(d: Draw) -> str:
    """Element-wise chains with predicates, nested conditions, lets and borders."""
    n, m, dtype = d.size(2), d.size(2), d.dtype()
    t = Text.of(dtype, A=(n, m), O=(n, m))
    bound, at = d.rng.randint(0, m), d.rng.randint(0, n)
    form = d.rng.randrange(5)
    cells = {"i": (n, "S"), "j": (m, "S")}
    if form == 0:
        t.block("O", cells, f"O[vi, vj] = A[vi, vj] + {d.number(dtype)}",
                where=d.pick(f"j < {bound}", f"i + j < {bound + at}", f"i >= {at} and j < {bound}",
                             f"i * {m} + j < {at * m + bound}", "i != j"))  # fmt: skip
    elif form == 1:
        t.add(1, f"for i, j in T.grid({n}, {m}):", "    x = A[i, j]", f"    if j < {bound}:")
        t.add(3, f"if i > {at}:", "    y = x * x", "    O[i, j] = y + x", "else:",
              f"    O[i, j] = x - {d.number(dtype)}")  # fmt: skip
        if d.often(0.5):
            t.add(2, "else:", f"    O[i, j] = O[i, j] * {d.number(dtype)}")
    elif form == 2:
        t.temp("P", (n + 2, m + 2), dtype)
        inside = f"1 <= vi and vi < {n + 1} and 1 <= vj and vj < {m + 1}"
        t.block("P", {"i": (n + 2, "S"), "j": (m + 2, "S")},
                f"P[vi, vj] = T.if_then_else({inside}, A[vi - 1, vj - 1], "
                f"{d.number(dtype)})")  # fmt: skip
        t.block("O", cells, "O[vi, vj] = P[vi, vj] + P[vi + 2, vj] + P[vi + 1, vj + 2]")
    elif form == 3:  # clamped neighbours and wrapped ones
        near = d.pick("T.max(vi - 1, 0)", f"T.min(vi + 1, {n - 1})", f"(vi + 1) % {n}",
                      f"(vi * 2 + vj) % {n}", "vi // 2")  # fmt: skip
        t.block("O", cells, f"O[vi, vj] = A[{near}, vj] - A[vi, {m - 1} - vj]")
    else:  # one branch writes, another array is written by both
        t.param("Q", (n, m), dtype)
        t.add(1, f"for i, j in T.grid({n}, {m}):", f"    if A[i, j] > {d.number(dtype)}:",
              "        O[i, j] = A[i, j]", "        Q[i, j] = O[i, j] + A[i, j]", "    else:",
              f"        Q[i, j] = {d.number(dtype)}")  # fmt: skip
    return str(t)


def nested(d: Draw) -> str:
    """Blocks inside blocks: temporaries of a tile or a row, several stages inside."""
    n, m, k, dtype = d.size(1, 33), d.size(1, 33), d.size(1, 33), d.dtype()
    t = Text.of(dtype, A=(n, k), B=(k, m), C=(n, m))
    t.add(1, f"for i in range({n}):", '    with T.block("row"):')
    t.add(3, f"vi = T.axis.spatial({n}, i)", f"T.reads(A[vi, 0:{k}], B[0:{k}, 0:{m}])",
          f"T.writes(C[vi, 0:{m}])", f'R = T.alloc_buffer(({m},), "{dtype}")')  # fmt: skip
    t.block("R", {"j": (m, "S"), "q": (k, "R")}, "R[vj] = R[vj] + A[vi, vq] * B[vq, vj]",
            init=f"R[vj] = T.{dtype}(0)", depth=3)  # fmt: skip
    t.block("C", {"j": (m, "S")}, f"C[vi, vj] = T.max(R[vj], R[{m - 1} - vj])", depth=3)
    return str(t)


def booleans(d: Draw) -> str:
    """Reductions by and, or and counts, comparisons, and integer sums of narrow types."""
    n, m, dtype = d.size(), d.size(), d.pick("float32", "int32", "int8", "uint8")
    form = d.rng.randrange(4)
    sums = {"i": (n, "S"), "j": (m, "R")}
    t = Text.of(dtype, A=(n, m))
    if form == 0:
        t.param("O", (n,), "bool")
        word, start = d.rng.choice([("and", "True"), ("or", "False")])
        t.block("O", sums, f"O[vi] = O[vi] {word} A[vi, vj] > {d.number(dtype)}",
                init=f"O[vi] = {start}")  # fmt: skip
    elif form == 1:
        t.param("O", (n,), "int32")
        t.block("O", sums, f"O[vi] = O[vi] + T.cast(A[vi, vj] > {d.number(dtype)}, 'int32')",
                init="O[vi] = 0")  # fmt: skip
    elif form == 2:
        t.param("O", (n, m), "bool")
        t.block(
            "O", {"i": (n, "S"), "j": (m, "S")}, f"O[vi, vj] = A[vi, vj] <= A[vi, {m - 1} - vj]"
        )
    else:
        t.param("O", (n,), "int64")
        t.block("O", sums, "O[vi] = O[vi] + T.cast(A[vi, vj], 'int64')", init="O[vi] = T.int64(0)")
    return str(t)


KINDS: dict[str, Callable[[Draw], str]] = {
    **{
        kind.__name__: kind
        for kind in (
            arg_reductions, several_outputs, accumulations, in_place, triangles, solvers, ragged,
            normalisations, attentions, time_loops, stencil_chains, scans, indexed, quantized,
            packed, narrow_chains, strided, guarded, nested, booleans, plain_loops, plain_idioms,
            ordered_sums, centred_rows, ordered_triangles, mixed_blocks, user_idioms,
            row_machines, scattered_windows, gathered_windows, few_iterations,
            own_memory, memory_loops, named_rows,
        )
    },
    **{f"tiny {f.__name__}": lambda d, f=f: f(d.rng) for f in FAMILIES
       if f.__name__ not in ("symbols", "tiles")},
    **{f.__name__: lambda d, f=f: f(d.rng, max(d.most, 8)) for f in SHAPES},
}  # fmt: skip
"""The kinds, and the families of tiny programs of the random machine that have known extents, some
with larger extents too."""
