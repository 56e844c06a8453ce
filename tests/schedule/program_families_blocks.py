"""Random programs of unusual blocks: opaque, triangular, sharing loops, with views."""

from __future__ import annotations

import random


def _size(rng: random.Random) -> int:
    return rng.randint(2, 6)


def _lines(depth: int, *lines: str) -> str:
    return "".join("    " * depth + line + "\n" for line in lines)


def _head(*params: str) -> str:
    return f"@T.prim_func\ndef f({', '.join(params)}):\n"


def opaque(rng: random.Random) -> str:
    """Blocks without iterators, or with some, over the variables of the loops around them."""
    n, m, dtype = _size(rng), _size(rng), rng.choice(["int32", "int32", "float32"])
    parts = [
        _head(f'A: T.Buffer(({n}, {m}), "{dtype}")', f'C: T.Buffer(({n}, {m}), "{dtype}")',
              f'D: T.Buffer(({n},), "{dtype}")'),
        _lines(1, f'B = T.alloc_buffer(({n}, {m}), "{dtype}")'),
    ]  # fmt: skip
    first = rng.choice(["B[i, j] = A[i, j] + 1", "B[vi, j] = A[vi, j] * 2", "B[i, vj] = A[i, vj]"])
    axes = [f"v{x} = T.axis.spatial({e}, {x})" for x, e in (("i", n), ("j", m)) if f"v{x}" in first]
    if rng.random() < 0.2:
        axes += ["T.reads()", "T.writes()"]
    parts.append(_lines(1, f"for i, j in T.grid({n}, {m}):"))
    parts.append(_lines(2, 'with T.block("B"):'))
    parts.append(_lines(3, *axes, first))
    second = rng.choice([
        ("C[i, j] = B[i, j] * 3",), ("C[i, j] = B[i, j] + C[i, j]",),
        (f"C[i, (j + i) % {m}] = B[i, j]",), ("C[i, j] = T.max(B[i, j], B[i, 0])",),
        ("vi = T.axis.spatial({n}, i)", "C[vi, j] = B[i, j] + 2"),
    ])  # fmt: skip
    parts.append(_lines(1, f"for i, j in T.grid({n}, {m}):"))
    parts.append(_lines(2, 'with T.block("C"):'))
    parts.append(_lines(3, *[line.format(n=n) for line in second]))
    third = rng.choice([
        "D[i] = D[i] + C[i, j]", "D[i] = T.max(D[i], C[i, j])", "D[i] = C[i, j] - D[i]",
        "D[i] = C[i, j]",
    ])  # fmt: skip
    parts.append(_lines(1, f"for i, j in T.grid({n}, {m}):"))
    parts.append(_lines(2, 'with T.block("D"):'))
    parts.append(_lines(3, third))
    return "".join(parts)


def triangles(rng: random.Random) -> str:
    """Loops whose extents depend on the loops around them, iterators over these loops."""
    n, dtype = _size(rng), rng.choice(["int32", "float32", "int64"])
    spans = ["range(i)", "range(i + 1)", f"range(i, {n})", f"range({n} - i)", "range(i // 2 + 1)"]
    span, again = rng.choice(spans), rng.choice(spans)
    same = rng.random() < 0.5
    parts = [
        _head(f'A: T.Buffer(({n}, {n}), "{dtype}")', f'C: T.Buffer(({n}, {n}), "{dtype}")',
              f'D: T.Buffer(({n},), "{dtype}")'),
        _lines(1, f'B = T.alloc_buffer(({n}, {n}), "{dtype}")'),
    ]  # fmt: skip
    if rng.random() < 0.5:
        parts.append(_lines(1, f"for i, j in T.grid({n}, {n}):"))
        parts.append(_lines(2, 'with T.block("B"):'))
        parts.append(_lines(3, 'vi, vj = T.axis.remap("SS", [i, j])', "B[vi, vj] = A[vi, vj] + 1"))
    else:
        parts.append(_lines(1, f"for i in range({n}):", f"    for j in {span}:"))
        parts.append(_lines(3, 'with T.block("B"):'))
        parts.append(_lines(4, 'vi, vj = T.axis.remap("SS", [i, j])', "B[vi, vj] = A[vi, vj] + 1"))
        again = span if same else again
        if not same:  # every element that is read has been written
            parts[-3:] = [
                _lines(1, f"for i, j in T.grid({n}, {n}):"),
                _lines(2, 'with T.block("B"):'),
                _lines(3, "B[i, j] = A[i, j] + 1"),
            ]
    parts.append(_lines(1, f"for i in range({n}):", f"    for j in {again}:"))
    parts.append(_lines(3, 'with T.block("C"):'))
    if rng.random() < 0.5:
        parts.append(_lines(4, 'vi, vj = T.axis.remap("SS", [i, j])', "C[vi, vj] = B[vi, vj] * 2"))
    else:
        parts.append(_lines(4, "C[i, j] = B[i, j] * 2"))
    parts.append(_lines(1, f"for i in range({n}):", f"    for k in {rng.choice(spans)}:"))
    parts.append(_lines(3, 'with T.block("D"):'))
    start = [f"with T.init():\n{'    ' * 5}D[vi] = T.{dtype}(0)"] if rng.random() < 0.6 else []
    parts.append(_lines(4, 'vi, vk = T.axis.remap("SR", [i, k])', *start,
                        "D[vi] = D[vi] + A[vi, vk]"))  # fmt: skip
    return "".join(parts)


def shared(rng: random.Random) -> str:
    """Several blocks under one loop, which each tile of the work goes through."""
    n, m, dtype = _size(rng), _size(rng), rng.choice(["int32", "float32"])
    depth = rng.choice([1, 1, 2])
    temp = rng.random() < 0.7
    params = [f'A: T.Buffer(({n}, {m}), "{dtype}")', f'C: T.Buffer(({n}, {m}), "{dtype}")']
    if not temp:
        params.append(f'B: T.Buffer(({n}, {m}), "{dtype}")')
    params.append(f'D: T.Buffer(({n},), "{dtype}")')
    parts = [_head(*params)]
    if temp:
        parts.append(_lines(1, f'B = T.alloc_buffer(({n}, {m}), "{dtype}")'))
    parts.append(_lines(1, f"for i in range({n}):"))

    def stage(name: str, kinds: str, *body: str) -> str:
        text = ""
        at = 2
        if depth == 1:
            text += _lines(2, f"for j in range({m}):")
            at = 3
        text += _lines(at, f'with T.block("{name}"):')
        axes = f'vi, vj = T.axis.remap("{kinds}", [i, j])'
        return text + _lines(at + 1, axes, *body)

    if depth == 2:
        parts.append(_lines(2, f"for j in range({m}):"))
        parts = [p.replace(f"        for j in range({m}):\n", f"    for j in range({m}):\n")
                 .replace(f"    for i in range({n}):\n", f"    for i, j in T.grid({n}, {m}):\n")
                 for p in parts if p != _lines(2, f"for j in range({m}):")]  # fmt: skip
    parts.append(stage("B", "SS", "B[vi, vj] = A[vi, vj] + 1"))
    parts.append(stage("C", "SS", rng.choice(["C[vi, vj] = B[vi, vj] * 2",
                                              "C[vi, vj] = B[vi, vj] + A[vi, vj]"])))  # fmt: skip
    last = ["with T.init():", f"    D[vi] = T.{dtype}(0)", "D[vi] = D[vi] + B[vi, vj]"]
    parts.append(stage("D", "SR", *last))
    return "".join(parts)


def views(rng: random.Random) -> str:
    """Blocks that look at regions of their buffers through views."""
    n, m, dtype = _size(rng), _size(rng), rng.choice(["int32", "float32"])
    parts = [
        _head(f'A: T.Buffer(({n}, {m}), "{dtype}")', f'C: T.Buffer(({n}, {m}), "{dtype}")'),
        _lines(1, f'B = T.alloc_buffer(({n}, {m}), "{dtype}")'),
    ]
    for name, source in (("B", "A"), ("C", "B")):
        whole = rng.random() < 0.4
        if whole:
            parts.append(_lines(1, f"for i in range({n}):"))
            parts.append(_lines(2, f'with T.block("{name}"):'))
            parts.append(_lines(
                3, f"vi = T.axis.spatial({n}, i)",
                f"T.reads({source}[vi, 0:{m}])", f"T.writes({name}[vi, 0:{m}])",
                f'S = T.match_buffer({source}[vi, 0:{m}], ({m},), "{dtype}", offset_factor=1)',
                f'R = T.match_buffer({name}[vi, 0:{m}], ({m},), "{dtype}", offset_factor=1)',
                f"for j in range({m}):", "    R[j] = S[j] + 1",
            ))  # fmt: skip
        else:
            parts.append(_lines(1, f"for i, j in T.grid({n}, {m}):"))
            parts.append(_lines(2, f'with T.block("{name}"):'))
            shape, at = rng.choice([("()", "()"), ("(1,)", "0"), ("(1, 1)", "0, 0")])
            parts.append(_lines(
                3, 'vi, vj = T.axis.remap("SS", [i, j])',
                f"T.reads({source}[vi, vj])", f"T.writes({name}[vi, vj])",
                f'S = T.match_buffer({source}[vi, vj], {shape}, "{dtype}", offset_factor=1)',
                f"{name}[vi, vj] = S[{at}] * 3",
            ))  # fmt: skip
    return "".join(parts)


def updates(rng: random.Random) -> str:
    """Updates in place without init, two outputs of a block, statements that share loops."""
    n, m, dtype = _size(rng), _size(rng), rng.choice(["int32", "int64", "float32"])
    head = _head(f'A: T.Buffer(({n}, {m}), "{dtype}")', f'C: T.Buffer(({n},), "{dtype}")',
                 f'D: T.Buffer(({m},), "{dtype}")')  # fmt: skip
    first = rng.choice(["C[vi] = C[vi] + A[vi, vk]", "C[vi] = T.max(A[vi, vk], C[vi])",
                        "C[vi] = C[vi] - A[vi, vk] * D[vk]"])  # fmt: skip
    second = rng.choice(["D[vk] = D[vk] + A[vi, vk]", "D[vk] = T.min(D[vk], C[vi])"])
    start = f"        C[vi] = C[vi] * {rng.randint(2, 3)}"
    nest = ['    with T.block("Z"):', f"        vi = T.axis.spatial({n}, i)", start]
    together = rng.random() < 0.5
    sums = ['        vi, vk = T.axis.remap("RR", [i, k])', f"        {first}", f"        {second}"]
    if rng.random() < 0.5:
        sums = ['        vi, vk = T.axis.remap("SR", [i, k])', f"        {first}"]
    inner = [f"    for k in range({m}):", *("    " + x for x in ['    with T.block("S"):', *sums])]
    between = [] if together else [f"for i in range({n}):"]
    return head + _lines(1, f"for i in range({n}):", *nest, *between, *inner)


def scans(rng: random.Random) -> str:
    """Cumulative sums and maxima along rows or columns, in chunks or whole."""
    chunk = rng.choice([2, 3, 4])
    n, m = chunk * rng.randint(2, 3), rng.randint(2, 4)
    added = rng.choice(["A[vi, vj]", "A[vi, vj] * 2", "A[vi, 0] - A[vi, vj]"])
    value = rng.choice([f"C[vi, vj] + {added}", f"T.max({added}, C[vi, vj])"])
    store = [f"C[vi, vj + 1] = {value}"]
    if rng.random() < 0.6:
        first = rng.choice(["7", "A[vi, 0]"])
        store = [f"C[vi, vj + 1] = T.if_then_else(vj == 0, {first}, {value})"]
        if rng.random() < 0.3:
            store = ["if vj == 0:", f"    C[vi, vj + 1] = {first}",
                     "else:", f"    C[vi, vj + 1] = {value}"]  # fmt: skip
    loops, at = (f"i, j, k in T.grid({m}, {n // chunk}, {chunk})", f"j * {chunk} + k")
    if rng.random() < 0.3:
        loops, at = (f"i, j in T.grid({m}, {n})", "j")
    kind = rng.choice(["scan", "opaque", "spatial"])
    shapes = f'A: T.Buffer(({m}, {n}), "int32"), C: T.Buffer(({m}, {n + 1}), "int32")'
    nest = [
        f"for {loops}:",
        '    with T.block("S"):',
        f"        vi, vj = T.axis.spatial({m}, i), T.axis.{kind}({n}, {at})",
        *(" " * 8 + line for line in store),
    ]
    return f"@T.prim_func\ndef f({shapes}):\n" + _lines(1, *nest)


def normalisations(rng: random.Random) -> str:
    """A maximum of each row, powers of two of the differences to it, and sums of these powers.

    All results are exact, so that the order of the additions does not matter: a power and a sum of
    powers have up to 19 binary digits each, so their products are of float64.
    """
    n, m, dtype = rng.randint(2, 4), _size(rng), rng.choice(["float32", "float64"])
    value = rng.choice(["E[vi, vj]", "E[vi, vj] * V[vi, vj]", "V[vi, vj] * E[vi, vj] * S[vi]"])
    dtype = "float64" if "S" in value else dtype
    text = _head(*(f'{b}: T.Buffer(({n}, {m}), "{dtype}")' for b in "XV"),
                 f'Y: T.Buffer(({n},), "{dtype}")')  # fmt: skip
    text += _lines(1, *(f'{b} = T.alloc_buffer({shape}, "{dtype}")' for b, shape in
                        (("M", f"({n},)"), ("S", f"({n},)"), ("E", f"({n}, {m})"))))  # fmt: skip
    power = f"T.exp2({rng.choice(['X[vi, vj] - M[vi]', 'X[vi, vj] * 2.0 - M[vi] * 2.0'])})"
    if rng.random() < 0.4:
        power = f"T.if_then_else(vj <= vi, {power}, T.{dtype}(0))"
    start = rng.choice([f'T.min_value("{dtype}")', f'T.{dtype}("-inf")'])
    stages = [
        ("M", "SR", "M[vi]", start, "T.max(M[vi], X[vi, vj])"),
        ("E", "SS", "E[vi, vj]", "", power),
        ("S", "SR", "S[vi]", f"T.{dtype}(0)", "S[vi] + E[vi, vj]"),
        ("Y", "SR", "Y[vi]", f"T.{dtype}(0)", f"Y[vi] + {value}"),
    ]
    shared = rng.random() < 0.3
    text += _lines(1, f"for i in range({n}):") if shared else ""
    for name, kinds, element, init, value in stages:
        inside = [f'vi, vj = T.axis.remap("{kinds}", [i, j])']
        if init:
            inside += ["with T.init():", f"    {element} = {init}"]
        loops = f"j in range({m})" if shared else f"i, j in T.grid({n}, {m})"
        text += _lines(1 + shared, f"for {loops}:", f'    with T.block("{name}"):')
        text += _lines(3 + shared, *inside, f"{element} = {value}")
    return text


def sums_of_products(rng: random.Random) -> str:
    """Integer sums of products whose factors are sums, as of quantized operands."""
    n, m, dtype = _size(rng), _size(rng), rng.choice(["int32", "int64"])
    text = _head(f'A: T.Buffer(({n}, {m}), "{dtype}")', f'Z: T.Buffer(({n},), "{dtype}")',
                 f'C: T.Buffer(({n},), "{dtype}")')  # fmt: skip
    left = rng.choice(["A[vi, vk] - Z[vi]", "A[vi, vk] + 3", "A[vi, vk]"])
    right = rng.choice(["A[vi, vk] - 2", "Z[vi] + A[0, vk]", "Z[vi]"])
    text += _lines(1, f"for i, k in T.grid({n}, {m}):", '    with T.block("C"):')
    return text + _lines(3, 'vi, vk = T.axis.remap("SR", [i, k])', "with T.init():",
                         "    C[vi] = 0", f"C[vi] = C[vi] + ({left}) * ({right})")  # fmt: skip


def running_values(rng: random.Random) -> str:
    """Values that a loop hands from iteration to iteration, with blocks that use them."""
    n, m = rng.randint(2, 9), rng.randint(1, 4)
    dtype = rng.choice(["int32", "int64", "float32"])
    params = [f'{b}: T.Buffer(({m}, {n}), "{dtype}")' for b in "ABC"]
    text = _head(*params) + _lines(1, f's = T.alloc_buffer((2,), "{dtype}")')
    own = rng.choice(["s[0]", "s[0]", "s[1]"])
    text += _lines(1, 'with T.block("first"):', f"    {own} = T.{dtype}({rng.randint(-2, 2)})")
    text += _lines(1, f"for i in range({m}):")
    if rng.random() < 0.5:
        start = rng.choice(["A[i, 0]", f"T.{dtype}(0)"])
        text += _lines(2, 'with T.block("reset"):', f"    {own} = {start}")
    text += _lines(2, f"for j in range({n}):")
    forms = ["{} + {}", "{} + {}", "T.max({}, {})", "T.min({}, {})", "{} * 2 + {}", "{} - {}"]
    new = rng.choice(["A[i, j]", "A[i, j]", f"A[i, {n - 1} - j]", "A[i, j] * A[i, j]"])
    uses = [("early", "B"), ("sum", ""), ("late", "C")]
    if rng.random() < 0.3:
        rng.shuffle(uses)
    for name, out in uses:
        other = rng.choice([own, own, f"{own} - A[i, j]", f"{own} * {own}"])
        where = f"{out}[i, j]" if out else own
        value = other if out else rng.choice(forms).format(own, new)
        text += _lines(3, f'with T.block("{name}"):', f"    {where} = {value}")
    if rng.random() < 0.4:
        text += _lines(2, 'with T.block("last"):', f"    A[i, 0] = {own}")
    if rng.random() < 0.3:
        text += _lines(1, 'with T.block("end"):', f"    C[0, 0] = {own}")
    return text


BLOCKS = {
    sums_of_products: (
        *["expand_reduction"] * 4,
        *["chain_sum"] * 2,
        "split",
        "rfactor",
        "parallel",
    ),
    normalisations: (*["rolling_update"] * 4, "split", "parallel", "reorder", "compute_inline"),
    running_values: (*["expand_running_value"] * 4, "fission", "expand_buffer", "reorder"),
    scans: ("split", "parallel", "reorder", *["decompose_scan"] * 3, "compute_at"),
    updates: ("decompose_outputs", "privatize_reduction", "fission", "parallel", "split"),
    opaque: ("parallel", "reorder", "tile", "compute_at", "reverse_compute_at", "cache_write"),
    triangles: (
        "overcompute_box",
        "split",
        "parallel",
        "compute_at",
        "cache_read",
        "blockize",
        "rfactor",
    ),
    shared: (
        "rfactor",
        "reindex_cache_read reindex_cache_write",
        "compute_at",
        "merge",
        "loop_partition",
    ),
    views: (
        "set_scope",
        "unsafe_set_dtype widen_dtype",
        "compute_at",
        "cache_read",
        "transform_layout",
    ),
}
"""Each family with the operations of the machine that it is made for."""
