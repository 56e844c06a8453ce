"""Random programs of variables around blocks, and reductions that leave results alone.

Such a result keeps its value from before, because the init of an empty reduction never runs. The
length of a reduction comes from an iterator of a block around, from a variable, from memory, from a
predicate, or from a condition around the block.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Nest:
    """The lines of a program under construction, with the depth of the next line."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1

    def put(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def open(self, line: str) -> None:
        self.put(line)
        self.depth += 1


def _bounds(rng: random.Random, row: str, m: int) -> tuple[str, str]:
    """The first and the last end of a loop in `row`, at most `m`; the loop may be empty."""
    low = rng.choice(["0", "0", "0", f"T.min({row}, {m})", f"T.min({row} * 2, {m})"])
    high = rng.choice([
        f"T.min({row}, {m})", f"T.max(T.min({row}, {m}) - 1, 0)", f"T.min({row} * 2, {m})",
        f"T.min(T.max(N[{row}], 0), {m})", f"T.min(T.max(N[{row}], 0), {m})",
        f"T.min(T.max(N[0], 0), {m})", f"T.min(s, {m})", f"T.min(T.max(s - {row}, 0), {m})",
        str(m) if low != "0" else f"T.min({row} % 2, {m})",
    ])  # fmt: skip
    return low, high


def hollow(rng: random.Random) -> str:
    """Rows of reductions, some without an iteration, over results that have a value before."""
    n, m, p = rng.randint(2, 5), rng.randint(1, 4), rng.randint(1, 3)
    dtype = rng.choice(["int32", "int32", "float32", "int64"])
    wide, own = rng.random() < 0.5, rng.random() < 0.6  # columns of results; rows in a block
    nest, at = Nest(), ("vr, vj" if wide else "vr")
    shape = f"({n}, {p})" if wide else f"({n},)"
    kept = rng.random() < 0.5  # C is an argument
    head = [f'A: T.Buffer(({n}, {m}), "{dtype}")', f'N: T.Buffer(({n},), "int32")',
            f'B: T.Buffer({shape}, "{dtype}")', f'R: T.Buffer({shape}, "{dtype}")']  # fmt: skip
    head.append("s: T.int32")
    if kept:
        head.append(f'C: T.Buffer({shape}, "{dtype}")')
    else:
        nest.put(f'C = T.alloc_buffer({shape}, "{dtype}")')
        _each(nest, "F", n, p if wide else 0, f"C[{at}] = B[{at}]")
    source = "A"
    if rng.random() < 0.3:
        source = "P"
        nest.put(f'P = T.alloc_buffer(({n}, {m}), "{dtype}")')
        _each(nest, "P", n, m, "P[vr, vj] = A[vr, vj] * 2")
    nest.open(f"for r in range({n}):")
    inside = _reader(rng, at, p if wide else 0) if rng.random() < 0.4 else None
    if own:
        nest.open('with T.block("O"):')
        nest.put(f"vr = T.axis.spatial({n}, r)")
    row, outside = ("vr", []) if own else ("r", [f"vr = T.axis.spatial({n}, r)"])
    _reduction(rng, nest, row, outside, source, m, p if wide else 0)
    if inside and own:
        inside(nest, [])
    elif inside:
        inside(nest, outside)
    nest.depth = 1
    if not inside:
        nest.open(f"for r in range({n}):")
        _reader(rng, at, p if wide else 0)(nest, [f"vr = T.axis.spatial({n}, r)"])
    return "\n".join([f"@T.prim_func\ndef f({', '.join(head)}):", *nest.lines]) + "\n"


def _each(nest: Nest, name: str, n: int, columns: int, line: str) -> None:
    """A stage that writes each row, and each column of a row."""
    depth = nest.depth
    nest.open(f"for r in range({n}):")
    if columns:
        nest.open(f"for j in range({columns}):")
    nest.open(f'with T.block("{name}"):')
    nest.put(f"vr = T.axis.spatial({n}, r)")
    if columns:
        nest.put(f"vj = T.axis.spatial({columns}, j)")
    nest.put(line)
    nest.depth = depth


def _reader(rng: random.Random, at: str, columns: int) -> Callable[[Nest, list[str]], None]:
    """A stage that reads the results of one row."""
    value = rng.choice(["C[{}] + B[{}]", "C[{}] * 2", "C[{}]", "T.max(C[{}], B[{}])"])
    value = value.replace("{}", at)

    def put(nest: Nest, rows: list[str]) -> None:
        depth = nest.depth
        if columns:
            nest.open(f"for j in range({columns}):")
        nest.open('with T.block("D"):')
        nest.put(*rows)
        if columns:
            nest.put(f"vj = T.axis.spatial({columns}, j)")
        elif not rows:
            nest.put("vu = T.axis.spatial(1, 0)")
        nest.put(f"R[{at}] = {value}")
        nest.depth = depth

    return put


def _reduction(
    rng: random.Random, nest: Nest, row: str, rows: list[str], source: str, m: int, columns: int
) -> None:
    """The reduction of one row, whose length may be zero."""
    depth, at = nest.depth, ("vr, vj" if columns else "vr")
    low, high = _bounds(rng, row, m)
    how = rng.choice(["ends", "ends", "named", "named", "where", "where", "condition", "both"])
    if how in ("named", "both"):
        nest.put(f"e = {high}")
        high = "e"
    if how == "condition":
        nest.open(f"if {low} < {high}:")
    ends = f"{low}, {high}" if low != "0" else high
    inner = f"for k in range({m}):" if how == "where" else f"for k in range({ends}):"
    loops = [inner, f"for j in range({columns}):"] if columns else [inner]
    for line in loops if rng.random() < 0.5 else reversed(loops):
        nest.open(line)
    nest.open('with T.block("C"):')
    nest.put(*rows)
    if columns:
        nest.put(f"vj = T.axis.spatial({columns}, j)")
    nest.put(f"vk = T.axis.reduce({m}, k)")
    if how == "where":
        nest.put(f"T.where({low} <= k and k < {high})")
    elif how == "both":
        nest.put(f"T.where(k {rng.choice(['<', '!=', '>'])} {row})")
    nest.open("with T.init():")
    nest.put(f"C[{at}] = {rng.choice(['0', '0', '1'])}")
    nest.depth -= 1
    form = rng.choice(["C[{0}] + {1}", "C[{0}] + {1}", "T.max(C[{0}], {1})", "{1} + C[{0}]"])
    term = f"{source}[vr, vk]"
    if columns and rng.random() < 0.5:
        term += " * B[vr, vj]"
    nest.put(f"C[{at}] = {form.format(at, term)}")
    nest.depth = depth


def named_values(rng: random.Random) -> str:
    """Rows of stages that use a variable: as an index, a value, an end or a condition. A later
    stage may change the memory that gave the variable its value."""
    n, m = rng.randint(2, 6), rng.randint(2, 5)
    dtype = rng.choice(["int32", "int32", "float32"])
    nest = Nest()
    head = [f'{b}: T.Buffer(({n}, {m}), "{dtype}")' for b in "AY"]
    head += [f'N: T.Buffer(({n},), "int32")', f'X: T.Buffer(({n * m},), "{dtype}")']
    nest.open(f"for r in range({n}):")
    own = rng.random() < 0.3
    if own:
        nest.open('with T.block("O"):')
        nest.put(f"vr = T.axis.spatial({n}, r)")
    row, rows = ("vr", []) if own else ("r", [f"vr = T.axis.spatial({n}, r)"])
    nest.put("e = " + rng.choice([
        f"N[{row}] % {m}", f"N[{row}] % {m}", f"({row} + N[0]) % {m}", f"({row} * 3) % {m}",
        f"N[({row} + 1) % {n}] % {m}",
    ]))  # fmt: skip
    for name in rng.sample("UVW", rng.randint(1, 3)):
        depth = nest.depth
        low = rng.choice(["0", "0", "e"])
        nest.open(f"for k in range({low}, {m}):" if low == "e" else f"for k in range({m}):")
        if rng.random() < 0.2:
            nest.open("if k != e:")
        nest.open(f'with T.block("{name}"):')
        nest.put(*rows, f"vk = T.axis.spatial({m}, k)")
        if rng.random() < 0.2:
            nest.put(f"T.where(k {rng.choice(['<', '>=', '!='])} e)")
        place = rng.choice([
            f"X[vr * {m} + vk]", f"X[e * {n - 1} + vk]", f"X[(e + vk) % {m}]", "Y[vr, vk]",
            f"Y[vr, (vk + e) % {m}]", f"X[vr * {m} + e]",
        ])  # fmt: skip
        other = "Y[vr, vk]" if place[0] == "X" else f"X[(vr + e) % {n * m}]"
        value = rng.choice([
            "A[vr, vk]", f"A[vr, (vk + e) % {m}]", f"T.cast(e, '{dtype}')", other,
            f"A[vr, vk] * T.cast(e + 1, '{dtype}')", f"A[e % {n}, vk]",
        ])  # fmt: skip
        nest.put(f"{place} = {value}")
        nest.depth = depth
    if rng.random() < 0.4:
        nest.open('with T.block("N"):')
        nest.put(*(rows or ["vu = T.axis.spatial(1, 0)"]))
        nest.put(f"N[{'vr' if rng.random() < 0.5 else f'(vr + 1) % {n}'}] = e + 1")
    return "\n".join([f"@T.prim_func\ndef f({', '.join(head)}):", *nest.lines]) + "\n"


HOLLOW = {
    hollow: (
        *["cache_write", "reindex_cache_write", "decompose_reduction", "rfactor"] * 2,
        "privatize_reduction",
        "reverse_compute_at",
        "compute_at",
        "fuse_reduction_epilogue",
        "expand_buffer",
        "keep_in_result",
        "reverse_compute_inline",
        "unblockize",
        "reorder",
        "parallel",
    ),
    named_values: (
        "parallel",
        "parallel",
        "vectorize",
        "fission",
        "fission",
        "reorder",
        "unblockize",
        "merge",
        "compute_at",
        "cache_read",
        "cache_write",
    ),
}
"""Each family with the operations of the machine that it is made for."""
