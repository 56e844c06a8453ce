"""Replays on every core: by this process and by workers that send back keys and vectors.

The results do not depend on how many workers there are. A worker that fails is named in a warning
and this process does the work itself from then on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import count

from metasched.ir.func import PrimFunc
from metasched.measure.process import Reply, Worker, wait
from metasched.schedule.trace import Trace
from metasched.search.replaying import Request, Summary
from metasched.space.generate import Postproc
from metasched.target import Target

_JOBS = "metasched.search.replaying:"
_LIMIT = 120.0  # seconds for one batch


class ReplayPool:
    """Workers shared by the tasks of a session; `close` ends them."""

    def __init__(self, workers: int) -> None:
        """`workers` is how many processes replay, this one among them."""
        preload = _JOBS.rstrip(":")
        self._workers = [Worker(f"replayer {n}", preload=preload) for n in range(workers - 1)]
        self._numbers = count()
        self._broken = workers < 2
        if not self._broken:
            for worker in self._workers:
                worker.start()

    def prepare(
        self,
        func: PrimFunc,
        spaces: Sequence[Trace],
        postprocs: tuple[Postproc, ...],
        target: Target,
    ) -> int | None:
        """Enter a task; its number, or None when this process has to replay it itself.

        Workers that are still starting join in when they are ready.
        """
        while not self._broken and any(worker.busy for worker in self._workers):
            self._took(wait(self._workers))
        if self._broken:
            return None
        number = next(self._numbers)
        texts = [trace.to_json() for trace in spaces]
        for worker in self._workers:
            worker.submit(_JOBS + "prepare", number, func, texts, postprocs, target, limit=_LIMIT)
        return number

    def replay(
        self, number: int, requests: Sequence[Request], here: Callable[[Request], Summary | str]
    ) -> list[Summary | str] | None:
        """The results in the order of the requests; None when a worker has failed.

        Args:
            here: replays one in this process, which does its share between looks at the workers.
        """
        if self._broken:
            return None
        order = sorted(range(len(requests)), key=lambda n: repr(requests[n][:2]))
        results: list[Summary | str] = [""] * len(requests)
        at: dict[Worker, list[int]] = {}
        *shares, share = _shares(order, len(self._workers) + 1)
        everyone = [*shares, share]
        while any(everyone) or at:
            for worker, own in zip(self._workers, shares, strict=True):
                if not worker.busy and any(everyone):
                    at[worker] = batch = _taken(own, everyone)
                    job = (number, [requests[n] for n in batch])
                    worker.submit(_JOBS + "replay_batch", *job, limit=_LIMIT)
            for n in _taken(share, everyone, 1):
                results[n] = here(requests[n])
            ended = wait(self._workers, timeout=0.0 if any(everyone) else None)
            if not self._took(ended):
                return None
            for worker, reply in ended:
                if worker in at:  # else it has entered the task
                    for n, result in zip(at.pop(worker), reply.value, strict=True):
                        results[n] = result
        return results

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()

    def _took(self, ended: list[tuple[Worker, Reply]]) -> bool:
        """Whether all jobs that ended went well; otherwise this process goes on without workers."""
        for _, reply in ended:
            if reply.kind != "value" and not self._broken:
                text = f"{reply.kind}: {reply.message}"
                text = f"a replay worker failed ({text}); replaying in process"
                warnings.warn(text, stacklevel=5)
                self._broken = True
                self.close()
        return not self._broken


def _shares(order: list[int], workers: int) -> list[list[int]]:
    """Each process's part of the requests, those that begin alike together: what a replay shares
    with another was kept by the worker that made it."""
    size = -(-len(order) // workers)
    return [order[n * size : (n + 1) * size] for n in range(workers)]


def _taken(own: list[int], shares: list[list[int]], most: int | None = None) -> list[int]:
    """The next batch of a process: most of its own part, else half of the longest one, its end; at
    most `most`. So all processes end together, and messages, for each of which a worker waits
    until this process looks up from a replay, are few."""
    part = own or max(shares, key=len)
    share = -(-5 * len(part) // 6) if part is own else -(-len(part) // 2)
    count = min(most or len(part), share)
    batch = part[:count] if part is own else part[len(part) - count :]
    part[:] = part[count:] if part is own else part[: len(part) - count]
    return batch
