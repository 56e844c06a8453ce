"""Loops of many statements: scheduled in seconds, whatever their statements share."""

from __future__ import annotations

import numpy as np

import metasched as ms
from metasched.analysis import sequence
from metasched.script import tir as T
from metasched.space.default_schedule import vectors_and_threads

QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
QUARTERS += ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def turned(x, by):
    return (x << T.uint32(by)) | (x >> T.uint32(32 - by))


@T.prim_func
def chacha(key: T.Buffer((16,), "uint32"), out: T.Buffer((50, 16), "uint32")):
    for n in range(50):
        x = T.alloc_buffer((16,), "uint32")
        for i in range(16):
            x[i] = key[i] + T.if_then_else(i == 12, T.cast(n, "uint32"), T.uint32(0))
        for _ in range(10):
            for a, b, c, d in QUARTERS:
                x[a] = x[a] + x[b]
                x[d] = turned(x[d] ^ x[a], 16)
                x[c] = x[c] + x[d]
                x[b] = turned(x[b] ^ x[c], 12)
                x[a] = x[a] + x[b]
                x[d] = turned(x[d] ^ x[a], 8)
                x[c] = x[c] + x[d]
                x[b] = turned(x[b] ^ x[c], 7)
        for i in range(16):
            out[n, i] = x[i] + key[i]


def test_statements_that_need_each_other_are_found_at_once(monkeypatch):
    """64 statements that all need each other were compared 65 times, each pair: 20 s."""
    asked = []
    monkeypatch.setattr(
        sequence,
        "interleaving_violation",
        lambda *given, real=sequence.interleaving_violation: asked.append(1) or real(*given),
    )
    sch = ms.Schedule(chacha)
    vectors_and_threads(chacha, ms.Target.of("native")).apply(sch)
    assert len(asked) < 2000  # 258,125 before
    key = np.random.default_rng(0).integers(0, 2**32, 16, np.uint32)
    assert np.array_equal(ms.build(sch.mod)(key), ms.build(chacha)(key))
