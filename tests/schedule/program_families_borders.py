"""Families of random programs: guarded reads, layouts between stages, tiles of symbolic extents."""

from __future__ import annotations

import random
from collections.abc import Callable


def _guarded(rng: random.Random, lows: list[str], index: str, size: int | str, load: str) -> str:
    """A load guarded by the condition that its index is in range, in one of several forms."""
    hint = "T.likely({})" if rng.random() < 0.3 else "{}"
    parts = [hint.format(f"{index} >= 0"), hint.format(f"{index} < {size}")]
    if rng.random() < 0.3:
        parts = [f"not ({index} < 0 or {index} >= {size})"]
    elif rng.random() < 0.2:
        parts.append(rng.choice([f"({low} < 3 or {low} > 4)" for low in lows]))
    if rng.random() < 0.3 and len(parts) > 1:
        inner = f"T.if_then_else({' and '.join(parts[1:])}, {load}, 1)"
        return f"T.if_then_else({parts[0]}, {inner}, 2)"
    return f"T.if_then_else({' and '.join(parts)}, {load}, 1)"


def _writer(rng: random.Random, size: int) -> tuple[int, str]:
    """How a producer of `size` instances writes: the size of its buffer, the index of `v`."""
    kind = rng.randrange(6)
    if kind == 0:
        return size, f"{size - 1} - v"
    if kind == 1:
        gap, first = rng.choice([2, 3]), rng.choice([0, 1])
        return size * gap + first, f"v * {gap} + {first}"
    return size, "v"


def borders(rng: random.Random) -> str:
    """A stage read at borders: pooling with stride and dilation, padding, slices, in one axis."""
    made = rng.randint(2, 9)
    size, place = _writer(rng, made)
    stride, gap, window = rng.choice([1, 1, 2]), rng.choice([1, 1, 2]), rng.randint(1, 3)
    shift, out = rng.randint(0, 3), rng.randint(1, 9)
    # what is read lies in the buffer under the condition; a strided writer leaves holes, so that
    # most of these programs are no pipelines: the reader then steps as the writer does
    if place != "v" and "-" not in place:
        step, first = place.replace("v * ", "").split(" + ")
        index = f"(vi + vr - {shift}) * {step} + {first}"
    else:
        index = f"vi * {stride} + vr * {gap} - {shift}"
    load = _guarded(rng, ["vi", "vr"], index, size, f"B[{index}]")
    text = (
        f'@T.prim_func\ndef f(A: T.Buffer(({made},), "int32"), C: T.Buffer(({out},), "int32")):\n'
        f'    B = T.alloc_buffer(({size},), "int32")\n'
        f"    for i in range({made}):\n        with T.block('P'):\n"
        f"            v = T.axis.spatial({made}, i)\n            B[{place}] = A[v] * 2\n"
    )
    if rng.random() < 0.5:
        text += f"    for i, r in T.grid({out}, {window}):\n        with T.block('C'):\n"
        text += "            vi, vr = T.axis.remap('SR', [i, r])\n"
        text += "            with T.init():\n                C[vi] = 0\n"
        if rng.random() < 0.4:
            text += f"            if {index} >= 0:\n                if {index} < {size}:\n"
            return text + f"                    C[vi] = C[vi] + B[{index}]\n"
        return text + f"            C[vi] = C[vi] + {load}\n"
    text += f"    for i in range({out}):\n        with T.block('C'):\n"
    text += f"            vi = T.axis.spatial({out}, i)\n"
    return text + f"            C[vi] = {load.replace('vr', str(rng.randrange(window)))}\n"


def layouts(rng: random.Random) -> str:
    """A buffer between two stages in another layout than both, which need not divide evenly."""
    rows, cols = rng.randint(1, 9), rng.randint(1, 9)
    a, b = rng.randint(1, 4), rng.randint(1, 4)
    tall, wide = -(-rows // a), -(-cols // b)
    forms = {
        "tiled": (f"({tall}, {wide}, {a}, {b})", f"I // {a}, J // {b}, I % {a}, J % {b}"),
        "flat": (f"({rows * cols},)", f"I * {cols} + J"),
        "gaps": (f"({rows * (cols + a)},)", f"I * {cols + a} + J"),
        "flipped": (f"({cols}, {rows})", f"{cols - 1} - J, I"),
        "split": (f"({rows}, {wide}, {b})", f"I, J // {b}, J % {b}"),
        "folded": (
            f"({tall}, {a * cols})",
            f"(I * {cols} + J) // {a * cols}, (I * {cols} + J) % {a * cols}",
        ),
    }
    shape, at = forms[rng.choice(list(forms))]
    less, fewer = rng.randint(1, rows), rng.randint(1, cols)
    whole = rng.random() < 0.5
    n, m = (rows, cols) if whole else (less, fewer)
    i, j = ("vi", "vj") if whole else (f"vi + {rows - n}", "vj")
    init = rng.random() < 0.2
    where = at.replace("I", "vi").replace("J", "vj")
    there = at.replace("I", f"({i})").replace("J", j)
    start = f"            with T.init():\n                B[{where}] = 3\n" if init else ""
    value = f"B[{where}] + A[vi, vj]" if init else "A[vi, vj] + 1"
    return (
        f'@T.prim_func\ndef f(A: T.Buffer(({rows}, {cols}), "int32"), '
        f'C: T.Buffer(({n}, {m}), "int32")):\n'
        f'    B = T.alloc_buffer({shape}, "int32")\n'
        f"    for i, j in T.grid({rows}, {cols}):\n        with T.block('P'):\n"
        f"            vi, vj = T.axis.remap('SS', [i, j])\n{start}"
        f"            B[{where}] = {value}\n"
        f"    for i, j in T.grid({n}, {m}):\n        with T.block('C'):\n"
        f"            vi, vj = T.axis.remap('SS', [i, j])\n"
        f"            C[vi, vj] = B[{there}] * 2\n"
    )


def tiles(rng: random.Random) -> str:
    """Tiles over a symbol: under predicates with halos at borders, fused, or as outer blocks."""
    head = "@T.prim_func\ndef f(a: T.handle, b: T.handle, c: T.handle):\n    n = T.int32()\n"
    head += "    D = T.match_buffer(b, (n,), 'int32')\n"
    return head + rng.choice([_cut_tiles, _fused, _outer_tiles])(rng)


def _lines(*lines: str) -> str:
    """Lines of a script, each `>` before one a level of indentation."""
    depths = (len(line) - len(line.lstrip(">")) for line in lines)
    return "".join(f"{'    ' * d}{line[d:]}\n" for d, line in zip(depths, lines, strict=True))


def _cut_tiles(rng: random.Random) -> str:
    near = rng.choice(["v - 1", "v + 1", "n - 1 - v", "v"])
    load = _guarded(rng, ["v"], near, "n", f"B[{near}]")
    out = _lines(
        ">A = T.match_buffer(a, (n,), 'int32')",
        ">C = T.match_buffer(c, (n,), 'int32')",
        ">B = T.alloc_buffer((n,), 'int32')",
    )
    for name, body in (("P", "B[v] = A[v] + 1"), ("C", f"C[v] = D[v] + {load}")):
        t = rng.choice([2, 3, 4, 8])
        out += _lines(
            f">for o, i in T.grid((n + {t - 1}) // {t}, {t}):",
            f">>with T.block('{name}'):",
            f">>>T.where(o * {t} + i < n)",
            f">>>v = T.axis.spatial(n, o * {t} + i)",
            ">>>" + body,
        )
    return out


def _fused(rng: random.Random) -> str:
    t = rng.choice([2, 3, 4, 8])
    out = _lines(
        f">A = T.match_buffer(a, ({t}, n), 'int32')",
        f">C = T.match_buffer(c, ({t}, n), 'int32')",
        f">B = T.alloc_buffer(({t}, n), 'int32')",
    )
    stages = (("P", "B[vi, vj] = A[vi, vj] + D[vj]"), ("C", "C[vi, vj] = B[vi, vj] * 2"))
    for name, body in stages:
        out += _lines(
            f">for g in range(n * {t}):",
            f">>with T.block('{name}'):",
            f">>>vi = T.axis.spatial({t}, g // n)",
            ">>>vj = T.axis.spatial(n, g % n)",
            ">>>" + body,
        )
    return out


def _outer_tiles(rng: random.Random) -> str:
    t, halo = rng.choice([2, 3, 4, 8]), 2 * rng.choice([0, 0, 1])
    return _lines(
        f">A = T.match_buffer(a, (n * {t} + {halo},), 'int32')",
        f">C = T.match_buffer(c, (n * {t},), 'int32')",
        ">for o in range(n):",
        ">>with T.block('O'):",
        ">>>v = T.axis.spatial(n, o)",
        f">>>T.reads(A[v * {t} : v * {t} + {t + halo}], D[v])",
        f">>>T.writes(C[v * {t} : v * {t} + {t}])",
        f">>>B = T.alloc_buffer(({t + halo},), 'int32')",
        f">>>for i in range({t + halo}):",
        ">>>>with T.block('P'):",
        f">>>>>w = T.axis.spatial({t + halo}, i)",
        f">>>>>B[w] = A[v * {t} + w] + 1",
        f">>>for i in range({t}):",
        ">>>>with T.block('C'):",
        f">>>>>w = T.axis.spatial({t}, i)",
        f">>>>>C[v * {t} + w] = B[w] + B[w + {halo}] * D[v]",
    )


def zeros_between(rng: random.Random) -> str:
    """A sum of elements with zeros between them, in a stage or under a condition."""
    step, out = rng.choice([2, 2, 3]), rng.randint(1, 8)
    taps, factor = step * rng.randint(1, 3), rng.choice([1, 1, -1, 2, 5])
    made = (out + abs(factor) * taps) // step + 2
    at = f"vi + vk * {factor} + {taps * abs(factor) + rng.randint(0, 2)}"
    size = made * step * 3
    zero = f"({{}}) % {step} == {rng.randint(0, step - 1)}"
    params = [f"{n}: T.Buffer(({m},), 'int32')" for n, m in (("A", size), ("W", taps), ("C", out))]
    text = f"@T.prim_func\ndef f({', '.join(params)}):\n"
    load, factors = f"T.if_then_else({zero.format(at)}, A[{at}], 0)", rng.choice(["", " * W[vk]"])
    if rng.random() < 0.5:
        text += f"    B = T.alloc_buffer(({size},), 'int32')\n    for i in range({size}):\n"
        text += f"        with T.block('B'):\n            v = T.axis.spatial({size}, i)\n"
        text += f"            B[v] = T.if_then_else({zero.format('v')}, A[v // {step}], 0)\n"
        load = f"B[{at}]"
    text += f"    for i, k in T.grid({out}, {taps}):\n        with T.block('C'):\n"
    text += "            vi, vk = T.axis.remap('SR', [i, k])\n"
    text += "            with T.init():\n                C[vi] = 0\n"
    return text + f"            C[vi] = C[vi] + {load}{factors}\n"


def shared_roots(rng: random.Random) -> str:
    """A sum of products with square roots that rows, columns or terms share; roots of squares, so
    that any rounding gives the same."""
    rows, columns, taps = (rng.randint(1, 5) for _ in range(3))
    sizes = {"A": (rows, taps), "B": (taps, columns), "R": (rows,), "C": (rows, columns)}
    params = [f"{n}: T.Buffer(({', '.join(map(str, s))},), 'float32')" for n, s in sizes.items()]
    root = "T.sqrt({0} * {0})"
    terms = ["A[vi, vk]", "R[vi]", "B[vk, vj]"]
    factors = [root.format(t) if rng.random() < 0.6 else t for t in rng.sample(terms, 3)]
    text = f"@T.prim_func\ndef f({', '.join(params)}):\n"
    text += f"    for i, j, k in T.grid({rows}, {columns}, {taps}):\n        with T.block('C'):\n"
    text += "            vi, vj, vk = T.axis.remap('SSR', [i, j, k])\n"
    text += "            with T.init():\n                C[vi, vj] = T.float32(0)\n"
    return text + f"            C[vi, vj] = C[vi, vj] + {' * '.join(factors)}\n"


def roots_in_chunks(rng: random.Random) -> str:
    """As `shared_roots`, in the chunks of a loop that other statements share; some change a root,
    and the terms of some sums end at the row."""
    chunks, rows, columns, taps = (rng.randint(1, 4) for _ in range(4))
    sizes = {"A": (chunks, rows, taps), "B": (taps, columns), "R": (chunks,), "C": (rows, columns)}
    params = [f"{n}: T.Buffer(({', '.join(map(str, s))},), 'float32')" for n, s in sizes.items()]
    terms = [f"T.sqrt({t} * {t})" if rng.random() < 0.6 else t
             for t in rng.sample(["A[vc, vi, vk]", "R[vc]", "B[vk, vj]"], 3)]  # fmt: skip
    text = f"@T.prim_func\ndef f({', '.join(params)}):\n    for c in range({chunks}):\n"
    text += f"        for i, j in T.grid({rows}, {columns}):\n"
    if rng.random() < 0.5:
        text += "            C[i, j] = C[i, j] - T.float32(1)\n"
    text += f"            for k in range({rng.choice([str(taps), f'T.min(i + 1, {taps})'])}):\n"
    text += "                with T.block('C'):\n"
    text += "                    vc, vi, vj, vk = T.axis.remap('SSSR', [c, i, j, k])\n"
    text += f"                    C[vi, vj] = C[vi, vj] + {' * '.join(terms)}\n"
    changed = rng.choice(["R[c]", "B[0, 0]", f"A[c, {rows - 1}, 0]"])
    depth = rng.choice([8, 8, 12])
    return text + f"{' ' * depth}{changed} = {changed} + T.float32(1)\n"


def choices_in_sums(rng: random.Random) -> str:
    """A sum in order that adds zero outside of a triangle, a band or the border of a window."""
    rows, columns, taps = rng.randint(1, 6), rng.randint(1, 9), rng.randint(1, 7)
    dtype = rng.choice(["int32", "float32"])
    zero = rng.choice(["0", "0", "1", "-0.0"]) if dtype == "float32" else "0"
    at = rng.choice(["vk", "vi + vk - 2", "vi * 2 + vk - 1"])
    test = {
        "vk": rng.choice(["vk <= vi", "vk > vi + 1", "vi - 1 <= vk and vk < vi + 3"]),
    }.get(at, f"{at} >= 0 and {at} < {taps}")
    load = "A[vi, vk]" if at == "vk" else f"A[0, {at}]"
    factor = rng.choice(["", " * B[vk, vj]"])
    inner = f"T.if_then_else({test}, {load}{factor}, T.{dtype}({zero}))"
    if rng.random() < 0.3:
        inner = f"T.if_then_else({test}, {load}, T.{dtype}({zero})){factor}"
    start = rng.choice([f"T.{dtype}(0)", f"T.{dtype}(2)", "B[0, vj]"])
    shapes = {"A": (rows, taps), "B": (taps, columns), "C": (rows, columns)}
    params = ", ".join(f"{n}: T.Buffer({shape}, '{dtype}')" for n, shape in shapes.items())
    text = f"@T.prim_func\ndef f({params}):\n    for i, j in T.grid({rows}, {columns}):\n"
    text += "        with T.block('start'):\n            vi, vj = T.axis.remap('SS', [i, j])\n"
    text += (
        f"            C[vi, vj] = {start}\n    for i, j, k in T.grid({rows}, {columns}, {taps}):\n"
    )
    text += "        with T.block('C'):\n            vi, vj = T.axis.remap('SS', [i, j])\n"
    text += f"            vk = T.axis.opaque({taps}, k)\n"
    return text + f"            C[vi, vj] = C[vi, vj] + {inner}\n"


MOVES = ("compute_at", "compute_at", "reverse_compute_at", "reverse_compute_at")
INLINES = ("compute_inline", "reverse_compute_inline")
BORDERS: dict[Callable[[random.Random], str], tuple[str, ...]] = {
    borders: (*MOVES, "compute_inline", "transform_layout"),
    layouts: (*MOVES, *INLINES, "transform_layout", "transform_block_layout"),
    zeros_between: (*["step_over_zeros"] * 4, "compute_inline", "rfactor", "decompose_reduction"),
    choices_in_sums: (*["skip_zeros"] * 4, *["cache_values"] * 2, "cache_update", "narrow_loop"),
    shared_roots: (*["cache_values"] * 3, "compute_at", "compute_inline", "rfactor"),
    roots_in_chunks: (*["cache_values"] * 3, "fission", "compute_at", "decompose_reduction"),
    tiles: (*MOVES, *INLINES, "cache_read", "cache_write", "transform_block_layout"),
}
