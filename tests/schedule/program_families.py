"""Random programs for primitives that seldom apply to ordinary programs.

Each family gives a program and the operations of the machine that it is made for.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping

from schedule.program_families_blocks import BLOCKS
from schedule.program_families_borders import BORDERS
from schedule.program_families_hollow import HOLLOW
from schedule.program_families_odd import ODD
from schedule.program_families_shapes import SHAPES
from schedule.program_families_updates import UPDATES

from metasched.ir.func import PrimFunc
from metasched.script.parser import parse

Family = Callable[[random.Random], str]
Axes = Mapping[str, tuple[int | str, str]]  # of each loop the extent, and whether it reduces


def _header(params: list[str], temps: list[str]) -> str:
    return f"@T.prim_func\ndef f({', '.join(params)}):\n" + "".join(f"    {t}\n" for t in temps)


def _buffer(name: str, shape: list[int], dtype: str) -> str:
    sizes = "".join(f"{s}, " for s in shape)
    return f'{name}: T.Buffer(({sizes}), "{dtype}")'


def _temp(name: str, shape: list[int], dtype: str) -> str:
    sizes = "".join(f"{s}, " for s in shape)
    return f'{name} = T.alloc_buffer(({sizes}), "{dtype}")'


def _stage(name: str, axes: Axes, body: list[str]) -> str:
    """Loops over `axes` (name: extent and kind) around one block with trivial bindings."""
    loops, kinds = ", ".join(axes), "".join(k for _, k in axes.values())
    sizes = ", ".join(str(e) for e, _ in axes.values())
    iters = ", ".join(f"v{a}" for a in axes)
    lines = [
        f"    for {loops} in T.grid({sizes}):", f'        with T.block("{name}"):',
        f'            {iters} = T.axis.remap("{kinds}", [{loops}])',
        *[f"            {line}" for line in body],
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _reduction(name: str, axes: Axes, out: str, start: str, value: str) -> str:
    body = ["with T.init():", f"    {out} = {start}", f"{out} = {value}"]
    return _stage(name, axes, body)


def _number(rng: random.Random, dtype: str) -> str:
    return f"T.{dtype}({rng.randint(0, 3)})"


def windows(rng: random.Random) -> str:
    """Stencils of stencils, in one or two dimensions: neighbouring elements share inputs."""
    dtype, ndim = rng.choice(["int32", "int32", "float32", "int64"]), rng.choice([1, 1, 2])
    count = rng.randint(2, 3)
    names, axes = [f"T{n}" for n in range(count)], "ij"[:ndim]
    shape = [rng.randint(2, 8) for _ in axes]
    shapes, stages = [shape], []
    for n in reversed(range(count)):
        source = names[n - 1] if n else "X"
        width = [rng.choice([1, 2, 3, 3]) for _ in axes]
        step = [rng.choice([1, 1, 1, 2]) for _ in axes]
        gap = rng.choice([1, 1, 1, 2])
        outer = {a: (s, "S") for a, s in zip(axes, shape, strict=True)}
        point = ", ".join(f"v{a}" for a in axes)
        at = [f"v{a} * {s}" for a, s in zip(axes, step, strict=True)]
        if rng.random() < 0.5:
            inner = {f"r{a}": (w, "R") for a, w in zip(axes, width, strict=True)}
            where = ", ".join(f"{x} + vr{a} * {gap}" for a, x in zip(axes, at, strict=True))
            largest = rng.random() < 0.5
            old, new = f"{names[n]}[{point}]", f"{source}[{where}]"
            value = f"T.max({old}, {new})" if largest else f"{old} + {new}"
            start = f'T.min_value("{dtype}")' if largest else f"T.{dtype}(0)"
            stages.append(_reduction(names[n], outer | inner, old, start, value))
        else:
            offsets = [[0] * ndim, [(w - 1) * gap for w in width], [gap * (w // 2) for w in width]]
            loads = [
                f"{source}[{', '.join(f'{x} + {o}' for x, o in zip(at, offset, strict=True))}]"
                for offset in offsets
            ]
            stages.append(_stage(names[n], outer, [f"{names[n]}[{point}] = {' + '.join(loads)}"]))
        sizes = zip(shape, step, width, strict=True)
        shape = [(s - 1) * by + (w - 1) * gap + 1 for s, by, w in sizes]
        shapes.append(shape)
    shapes.reverse()
    params = [_buffer("X", shapes[0], dtype), _buffer(names[-1], shapes[-1], dtype)]
    temps = [_temp(b, s, dtype) for b, s in zip(names[:-1], shapes[1:-1], strict=True)]
    return _header(params, temps) + "".join(reversed(stages))


def epilogues(rng: random.Random) -> str:
    """A reduction and an epilogue, mostly by the operation of the reduction."""
    form, start = rng.choice([
        ("{} + {}", "T.{}(0)"), ("{} + {}", "T.{}(0)"), ("{} + {}", "T.{}(0)"),
        ("{} * {}", "T.{}(1)"), ("T.max({}, {})", "T.min_value('{}')"),
        ("T.min({}, {})", "T.max_value('{}')"),
    ])  # fmt: skip
    dtype = "int32" if "*" in form else rng.choice(["int32", "float32", "int64", "float64"])
    init = start.format(dtype)
    n, m = rng.randint(1, 6), rng.randint(1, 6)
    axes = {"i": (n, "S"), "j": (m, "S"), "k": (rng.randint(1, 6), "R")}
    spatial, sizes = ["vi", "vj"], [n, m]
    if rng.random() < 0.3:
        del axes["j"]
        spatial, sizes = ["vi"], [n]
    if rng.random() < 0.3:
        axes["l"] = (rng.randint(1, 3), "R")
    if rng.random() < 0.3:
        axes = dict(sorted(axes.items(), reverse=True))
    source = [f"v{a}" for a in sorted(axes)]
    shape_a = [axes[a][0] for a in sorted(axes)]
    point = ", ".join(spatial)
    out = f"C[{point}]"
    parts = [_reduction("C", axes, out, init, form.format(out, f"A[{', '.join(source)}]"))]
    params = [
        _buffer("A", shape_a, dtype),
        _buffer("E", sizes, dtype),
        _buffer("F", sizes[-1:], dtype),
    ]
    temps = [_temp("C", sizes, dtype)]
    operand = rng.choice([
        f"E[{point}]", f"E[{point}]", f"F[{spatial[-1]}]", _number(rng, dtype),
        f"T.cast({spatial[0]}, '{dtype}') - E[{point}]", f"E[{point}] * F[{spatial[-1]}]",
    ])  # fmt: skip
    use = form if rng.random() < 0.8 else rng.choice(["{} - {}", "{} * {}", "T.max({}, {})"])
    pair = (out, operand) if rng.random() < 0.7 or "-" in use else (operand, out)
    flip = len(sizes) == 2 and rng.random() < 0.3
    where, shape_d = (point, sizes) if not flip else (", ".join(reversed(spatial)), sizes[::-1])
    last = {s[1:]: (e, "S") for s, e in zip(spatial, sizes, strict=True)}
    more = rng.random() < 0.3
    parts.append(_stage("D", last, [f"D[{where}] = {use.format(*pair)}"]))
    (temps if more else params).append((_temp if more else _buffer)("D", shape_d, dtype))
    if more:
        parts.append(_stage("G", last, [f"G[{point}] = D[{where}] + {_number(rng, dtype)}"]))
        params.append(_buffer("G", sizes, dtype))
    return _header(params, temps) + "".join(parts)


def declared(rng: random.Random) -> str:
    """Blocks that declare to read buffers which they do not touch."""
    n, m = rng.randint(1, 6), rng.randint(1, 6)
    axes = {"i": (n, "S"), "j": (m, "S")}
    region = rng.choice(["X[vi, vj]", "X[vi, 0:{m}]", "X[0:{n}, 0:{m}]"]).format(n=n, m=m)
    also = rng.choice(["A[vi, vj]", "A[vi, vj]", "X[vi, vj]", "B[vi, vj]"])
    params = [_buffer("A", [n, m], "int32"), _buffer("C", [n, m], "int32")]
    temps, parts = [_temp("B", [n, m], "int32")], []
    if rng.random() < 0.5:
        temps.append(_temp("X", [n, m], "int32"))
        parts.append(_stage("X", axes, ["X[vi, vj] = A[vi, vj] * 2"]))
    else:
        params.append(_buffer("X", [n, m], "int32"))
    order = rng.sample(["A[vi, vj]", region], 2)
    reads = f"T.reads({', '.join(order)})"
    body = [reads, "T.writes(B[vi, vj])", "B[vi, vj] = A[vi, vj] + 1"]
    parts.append(_stage("B", axes, body))
    reads = f"T.reads({', '.join(rng.sample(['B[vi, vj]', also], 2))})"
    parts.append(_stage("C", axes, [reads, "T.writes(C[vi, vj])", "C[vi, vj] = B[vi, vj] * 3"]))
    return _header(params, temps) + "".join(parts)


def kernels(rng: random.Random) -> str:
    """A matrix product of even sizes between element-wise stages, for intrinsics."""
    n, m, k = (rng.choice([2, 4, 4, 6, 8]) for _ in range(3))
    wide = rng.random() < 0.4
    a, c = rng.choice([("uint8", "int32"), ("int8", "int32")]) if wide else ("float32", "float32")
    lift = f"T.cast({{}}, '{c}')" if wide else "{}"
    b_at, b_shape = ("vk, vj", [k, m]) if rng.random() < 0.5 else ("vj, vk", [m, k])
    axes = {"i": (n, "S"), "j": (m, "S"), "k": (k, "R")}
    parts = []
    params = [_buffer("A", [n, k], a), _buffer("B", b_shape, a), _buffer("D", [n, m], c)]
    temps = [_temp("C", [n, m], c)]
    left = "A"
    if rng.random() < 0.5:
        left = "P"
        temps.append(_temp("P", [n, k], a))
        pad = {"i": (n, "S"), "k": (k, "S")}
        parts.append(_stage("P", pad, ["P[vi, vk] = A[vi, vk]"]))
    value = f"C[vi, vj] + {lift.format(f'{left}[vi, vk]')} * {lift.format(f'B[{b_at}]')}"
    parts.append(_reduction("C", axes, "C[vi, vj]", f"T.{c}(0)", value))
    last = {"i": (n, "S"), "j": (m, "S")}
    end = rng.choice(["T.max(C[vi, vj], {})", "C[vi, vj] + {}"]).format(_number(rng, c))
    parts.append(_stage("D", last, [f"D[vi, vj] = {end}"]))
    return _header(params, temps) + "".join(parts)


def twins(rng: random.Random) -> str:
    """Stages over one domain, independent or each from the last; indices are computed."""
    n, m = rng.randint(2, 6), rng.randint(1, 6)
    axes = {"i": (n, "S"), "j": (m, "S")}
    dtype = rng.choice(["int32", "float32", "int64"])
    index = rng.choice([f"(vi * {m} + vj) // 2", f"(vi * 3 + vj) % {n}", "vi", "vi"])
    twice = f"X[{index}] + X[{index}]" if rng.random() < 0.7 else f"X[{index}]"
    params = [_buffer("A", [n, m], dtype), _buffer("X", [n * m], dtype)]
    temps, parts, source = [], [], "A"
    count = rng.randint(2, 3)
    chained = rng.random() < 0.4
    for k in range(count):
        name = "UVW"[k]
        load = f"{source}[vi, vj]"
        value = f"{load} + {twice if rng.random() < 0.5 else _number(rng, dtype)}"
        kinds = dict(sorted(axes.items(), reverse=rng.random() < 0.2))
        parts.append(_stage(name, kinds, [f"{name}[vi, vj] = {value}"]))
        last = k == count - 1
        (params if last or not chained else temps).append(
            (_buffer if last or not chained else _temp)(name, [n, m], dtype)
        )
        source = name if chained else source
    return _header(params, temps) + "".join(parts)


def symbols(rng: random.Random) -> str:
    """A product of matrices of unknown sizes between element-wise stages."""
    dtype, n = rng.choice(["float32", "int32"]), rng.choice(["n", "n", "5"])
    shapes = {"A": (n, "q"), "B": ("q", "m"), "D": (n, "m"), "C": (n, "m"), "P": (n, "q")}
    head = "@T.prim_func\ndef f(a: T.handle, b: T.handle, d: T.handle):\n"
    head += "".join(f"    {v} = T.int32()\n" for v in {n, "m", "q"} - {"5"})
    for name in "ABD":
        shape = ", ".join(shapes[name])
        head += f'    {name} = T.match_buffer({name.lower()}, ({shape}), "{dtype}")\n'
    staged = rng.random() < 0.5
    for name in "CP" if staged else "C":
        head += f'    {name} = T.alloc_buffer(({", ".join(shapes[name])}), "{dtype}")\n'
    i, j, k = (n, "S"), ("m", "S"), ("q", "R")
    parts, left = [], "A"
    if staged:
        left, body = "P", [f"P[vi, vk] = A[vi, vk] + {_number(rng, dtype)}"]
        parts.append(_stage("P", {"i": i, "k": ("q", "S")}, body))
    value = f"C[vi, vj] + {left}[vi, vk] * B[vk, vj]"
    axes = {"i": i, "j": j, "k": k}
    parts.append(_reduction("C", axes, "C[vi, vj]", f"T.{dtype}(0)", value))
    body = [f"D[vi, vj] = T.max(C[vi, vj], {_number(rng, dtype)})"]
    parts.append(_stage("D", {"i": i, "j": j}, body))
    return head + "".join(parts)


FAMILIES: dict[Family, tuple[str, ...]] = {
    windows: ("rolling_buffer", "rolling_buffer", "compute_at", "separate_window"),
    epilogues: (*["fuse_reduction_epilogue"] * 4, "decompose_reduction", "rfactor"),
    symbols: ("tile", "tile", "cache_write", "reverse_compute_at", "rfactor"),
    twins: ("merge", "cache_index", "reverse_compute_inline", "unsafe_set_dtype widen_dtype"),
    declared: ("unsafe_hide_buffer_access",),
    kernels: (
        "tensorize",
        "tensorize",
        "pad_einsum",
        "transform_layout_of_parameter",
        "fuse_reduction_epilogue",
        "rfactor",
    ),
    **BLOCKS,
    **BORDERS,
    **HOLLOW,
    **ODD,
    **SHAPES,
    **UPDATES,
}
SHARE = 0.45  # of all programs


def family(number: int) -> Family | None:
    """The family of program `number`, None for an ordinary one."""
    rng = random.Random(number * 31 + 5)
    return rng.choice(list(FAMILIES)) if rng.random() < SHARE else None


@functools.lru_cache(64)
def special(number: int) -> PrimFunc:
    """Program `number`, of a family."""
    found = family(number)
    assert found is not None
    made = parse(found(random.Random(number * 37 + 11)))
    assert isinstance(made, PrimFunc)
    return made
