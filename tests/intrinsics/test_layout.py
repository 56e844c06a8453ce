"""Layout changes in registers: each implementation moves elements as its description says."""

from __future__ import annotations

import numpy as np
import pytest

from metasched import Schedule, TensorIntrin, build
from metasched.ir.dtype import DType
from metasched.script import tir as T

NAMES = [name for name in TensorIntrin.names() if name.startswith("lanes.interleave_")]


def copies(rows: int, columns: int, lanes: int, source: str, kind: str):
    """D[column, row] = S[row, column], in groups of `lanes` columns."""

    @T.prim_func
    def copies(S: T.Buffer((rows, columns), source), D: T.Buffer((columns, rows), kind)):
        for i, j, k in T.grid(columns // lanes, lanes, rows):
            with T.block("D"):
                vj, vk = T.axis.spatial(columns, i * lanes + j), T.axis.spatial(rows, k)
                D[vj, vk] = T.cast(S[vk, vj], kind)

    return copies


@pytest.mark.parametrize("name", NAMES)
def test_interleaving_puts_columns_side_by_side(name):
    """Compiled, for rows of two groups, over all values of bytes."""
    source, result = TensorIntrin.get(name).desc.buffers
    rows, lanes = source.constant_shape()
    func = copies(rows, 2 * lanes, lanes, str(source.dtype), str(result.dtype))
    sch = Schedule(func)
    sch.tensorize(sch.get_loops(sch.get_block("D"))[1], name)
    words = np.random.default_rng(0).integers(-(1 << 15), 1 << 15, (rows, 2 * lanes))
    bits = "int8" if source.dtype.bits == 8 else "int16"
    given = words.astype(bits).view(DType(source.dtype).numpy)
    made = np.zeros((2 * lanes, rows), result.dtype.numpy)
    build(sch)(given, made)
    wanted = np.ascontiguousarray(given.T).astype(made.dtype, copy=False)
    assert made.tobytes() == wanted.tobytes()
