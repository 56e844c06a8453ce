"""Measure the memory bandwidth of this machine: the sloping roof of a roofline."""

from __future__ import annotations

import functools

import numpy as np

from metasched.codegen.peak import together

_BYTES = 64 << 20  # bytes of each array, more than the caches of a core hold
_RUNS = 5


@functools.lru_cache(maxsize=4)
def measured_bandwidth(threads: int) -> float:
    """GB/s of copying large arrays, `threads` at once; bytes read and bytes written both count.

    The best of several runs; takes about a quarter of a second, once in a process.
    """
    pairs = [(np.ones(_BYTES // 8), np.zeros(_BYTES // 8)) for _ in range(threads)]
    copies = [functools.partial(np.copyto, to, source) for source, to in pairs]
    best = min(together(copies) for _ in range(_RUNS))
    return 2.0 * _BYTES * threads / best / 1e9
