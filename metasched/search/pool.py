"""Replays on every core: by this process and by workers that send back keys and vectors.

The results do not depend on how many workers there are. A worker that fails is named in a warning
and this process does the work itself from then on.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from itertools import count

from metasched.cost.features import FeatureSet
from metasched.foreign import failure
from metasched.ir.func import PrimFunc
from metasched.measure.process import Reply, Worker, wait
from metasched.schedule.plugin import Postproc
from metasched.schedule.trace import Trace
from metasched.search.replaying import Request, Summary
from metasched.search.shared_queue import SharedQueue
from metasched.target import Target

_JOBS = "metasched.search.replaying:"
_LIMIT = 120.0  # seconds for one batch


class ReplayPool:
    """Workers shared by the tasks of a session; `close` ends them."""

    def __init__(self, workers: int, plugins: Sequence[str] = ()) -> None:
        """`workers` is how many processes replay, this one among them; `plugins` are files that
        were loaded here, which the others load as well."""
        preload = _JOBS.rstrip(":")
        self._queue = SharedQueue(workers)
        fds = (self._queue.fd,)
        self._workers = [
            Worker(f"replayer {n}", preload=preload, fds=fds) for n in range(workers - 1)
        ]
        self._numbers = count()
        self._broken = workers < 2
        if not self._broken:
            for worker in self._workers:
                worker.start()
                if plugins:
                    worker.submit(_JOBS + "load_plugins", tuple(plugins), limit=_LIMIT)

    def prepare(
        self,
        func: PrimFunc,
        spaces: Sequence[Trace],
        postprocs: tuple[Postproc, ...],
        target: Target,
        features: FeatureSet | None = None,
    ) -> int | None:
        """Enter a task; its number, or None when this process has to replay it itself.

        Workers that are still starting join in when they are ready.
        """
        while not self._broken and any(worker.busy for worker in self._workers):
            self._went_well(wait(self._workers))
        if self._broken:
            return None
        for what, sent in (("postprocs", postprocs), ("feature extractor", features)):
            try:
                pickle.dumps(sent)
            except Exception as error:  # which one it is depends on what stands in its way
                text = f"the {what} cannot be sent to other processes ({failure(error)})"
                warnings.warn(f"{text}; this one replays alone", stacklevel=4)
                return None
        number = next(self._numbers)
        texts = [trace.to_json() for trace in spaces]
        task = postprocs, target, features
        for worker in self._workers:
            worker.submit(_JOBS + "prepare", number, func, texts, *task, limit=_LIMIT)
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
        jobs = [requests[n] for n in order]  # those that begin alike together: they share steps
        self._queue.deal(len(jobs))
        made: dict[int, Summary | str] = {}
        asked: set[Worker] = set()

        def take_replies(timeout: float | None) -> bool:
            ended = wait(self._workers, timeout)
            for _, reply in ended:
                made.update(reply.value or {})  # nothing, where it has got ready
            return self._went_well(ended)

        try:
            for n in self._queue.take(len(self._workers)):
                for part, worker in enumerate(self._workers):
                    if worker not in asked and not worker.busy:
                        place = (self._queue.fd, self._queue.parts, part)
                        worker.submit(_JOBS + "replay_part", number, jobs, *place, limit=_LIMIT)
                        asked.add(worker)
                made[n] = here(jobs[n])
                if not take_replies(0.0):
                    return None
        finally:  # after an interruption too: nobody may take from what is dealt next
            self._queue.deal(0)
            while any(worker.busy for worker in asked) and take_replies(None):
                pass
        if self._broken:
            return None
        for worker in asked:
            worker.submit(_JOBS + "tidy", limit=_LIMIT)
        found = {order[n]: result for n, result in made.items()}
        return [found[n] for n in range(len(requests))]

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()
        self._queue.close()

    def _went_well(self, ended: list[tuple[Worker, Reply]]) -> bool:
        """Whether all jobs that ended went well; otherwise this process goes on without workers."""
        for _, reply in ended:
            if reply.kind != "value" and not self._broken:
                what = f"a replay worker failed ({reply.kind}: {reply.message})"
                warnings.warn(f"{what}; replaying in process", stacklevel=5)
                self._broken = True
                for one in self._workers:
                    one.close()
        return not self._broken
