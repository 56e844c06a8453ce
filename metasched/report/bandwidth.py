"""Memory bandwidth of this machine, measured: the sloping roof of a roofline."""

from __future__ import annotations

import contextlib
import functools
import threading
import time

import numpy as np

_BYTES = 64 << 20  # of each array: beyond the caches of one core
_RUNS = 5


@functools.lru_cache(maxsize=4)
def measured_bandwidth(threads: int) -> float:
    """GB/s of copying large arrays, `threads` at once; bytes read and bytes written both count.

    The best of several runs; takes about a quarter of a second, once in a process.
    """
    pairs = [(np.ones(_BYTES // 8), np.zeros(_BYTES // 8)) for _ in range(threads)]
    best = min(_together(pairs) for _ in range(_RUNS))
    return 2.0 * _BYTES * threads / best / 1e9


def _together(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Seconds until all copies, started at once in threads of their own, have ended."""
    barrier = threading.Barrier(len(pairs) + 1)

    def copy(source: np.ndarray, to: np.ndarray) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait()
            np.copyto(to, source)

    workers = [threading.Thread(target=copy, args=pair) for pair in pairs]
    try:
        for worker in workers:
            worker.start()
        barrier.wait()
    except BaseException:  # Ctrl-C: those that have started must not wait for ever
        barrier.abort()
        raise
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start
