"""How long it takes to hash, verify and interpret: `pytest tests/benchmarks/test_ir.py`."""

import random

import numpy as np
from strategies import function, random_args, stage

from metasched.ir.buffer import Buffer
from metasched.ir.equal import structural_hash
from metasched.ir.expr import Var, as_expr
from metasched.ir.func import IRModule
from metasched.ir.interp import run
from metasched.ir.stmt import BlockRealize, For, evolve, seq
from metasched.ir.verify import verify
from metasched.ir.visit import substitute


def tiled(stmt, sizes):
    """A nest over `sizes[d]` loops for each dimension d, as splits leave it."""
    loops = []
    while isinstance(stmt, For):
        loops.append(stmt)
        stmt = stmt.body
    values, nest = {}, []
    for loop, parts in zip(loops, sizes, strict=True):
        index = as_expr(0)
        for part in parts:
            var = Var(f"{loop.var.name}_{len(nest)}")
            index = index * part + var
            nest.append((var, part))
        values[loop.var] = index
    body = substitute(stmt, values)
    for var, part in reversed(nest):
        body = For.serial(var, part, body)
    return body


def candidate(rng, blocks):
    """A two-level tiled matmul with its write cache and epilogue: 25 loops, 3 blocks."""
    stages, func = blocks
    factors = [rng.sample([2, 4, 8, 16], 4) for _ in range(2)]
    first = tiled(stages[0], [*factors, rng.sample([4, 16, 16], 2)])
    rest = [
        tiled(s, [rng.sample([2, 4, 8, 16], 4), rng.sample([2, 4, 8, 16], 4)]) for s in stages[1:]
    ]
    root = func.body.block
    return IRModule.of(func.with_body(BlockRealize.plain(evolve(root, body=seq([first, *rest])))))


def blocks(n=1024):
    a, b, t, c, d = (Buffer.of(x, (n, n)) for x in "ABTCD")
    where = lambda i, j, *_: (i, j)  # noqa: E731
    axes = [("i", n, "S"), ("j", n, "S")]
    mm = stage(
        "T", [*axes, ("k", n, "R")], t, where, lambda i, j, k: t[i, j] + a[i, k] * b[k, j], 0
    )
    copy = stage("C", axes, c, where, lambda i, j: t[i, j])
    relu = stage("D", axes, d, where, lambda i, j: c[i, j] * 2)
    stages = [mm, copy, relu]
    return stages, function([a, b, c, d], stages, [t])


def test_hash_of_a_fresh_candidate(benchmark, budget):
    """Budget 0.3 ms: the blocks are shared between candidates, the loops are new."""
    budget("structural hash of a candidate", 0.3e-3)
    rng, base = random.Random(0), blocks()
    structural_hash(candidate(rng, base))
    benchmark.pedantic(structural_hash, setup=lambda: ((candidate(rng, base),), {}), rounds=200)


def test_verify_of_a_candidate(benchmark, budget):
    budget("verify of a candidate", 5e-3)
    module = candidate(random.Random(0), blocks())
    benchmark(verify, module)


def test_interpretation_of_a_matmul(benchmark):
    """About 3 µs for one multiply-add with its block."""
    (mm, *_), func = blocks(12)
    only = function([*func.buffers[:2], mm_result(mm)], [mm], [])
    args = random_args(only, random.Random(0))
    benchmark(run, only, *args)
    assert np.array_equal(args[2], args[0] @ args[1])


def mm_result(stmt):
    while isinstance(stmt, For):
        stmt = stmt.body
    return stmt.block.writes[0].buffer
