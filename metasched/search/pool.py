"""Replays on every core: by this process and by workers that send back keys and vectors.

The results do not depend on the number of workers. If a worker fails, a warning says so, and this
process does the work itself from then on. Functions of users run only in workers, if they can be
pickled: a function that ends its process costs one candidate and a new worker.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from metasched.cost.features import FeatureSet
from metasched.errors import MeasureError, warn
from metasched.foreign import failure
from metasched.ir.func import PrimFunc
from metasched.measure.pickled import dump
from metasched.measure.process import Reply, Worker, wait
from metasched.schedule.plugin import Postproc
from metasched.schedule.trace import Trace
from metasched.search.replaying import Request, Summary
from metasched.search.shared_queue import SharedQueue
from metasched.target import Target
from metasched.watch import is_built_in

_JOBS = "metasched.search.replaying:"
_LIMIT = 120.0  # seconds for one batch
_ENOUGH = 3  # a user's function that has ended this many processes is not called any more


class ReplayPool:
    """Workers shared by the tasks of a session; `close` ends them."""

    def __init__(self, workers: int, plugins: Sequence[str] = ()) -> None:
        """Start the workers; returns before they are ready.

        Args:
            workers: how many processes replay, including this process.
            plugins: plug-in files that were loaded here; the workers load them, too.
        """
        preload = _JOBS.rstrip(":")
        self._queue = SharedQueue(workers)
        fds = (self._queue.fd,)
        self._workers = [
            Worker(f"replayer {n}", preload=preload, fds=fds) for n in range(workers - 1)
        ]
        self._plugins = tuple(plugins)
        self._tasks: dict[int, tuple[Any, ...]] = {}  # the arguments of `prepare` in a worker
        self._apart: set[int] = set()  # tasks with functions of users
        self._ended: Counter[str] = Counter()  # how many processes each user's function has ended
        self._numbers = count()
        self._broken = workers < 2
        if not self._broken:
            for worker in self._workers:
                self._tried(worker.start)
                if plugins:
                    self._submit(worker, "load_plugins", tuple(plugins))

    def prepare(
        self,
        func: PrimFunc,
        spaces: Sequence[Trace],
        postprocs: tuple[Postproc, ...],
        target: Target,
        features: FeatureSet | None = None,
    ) -> int | None:
        """Enter a task; returns its number, or None when this process must replay the task itself.

        Workers that are still starting join when they are ready.
        """
        while not self._broken and any(worker.busy for worker in self._workers):
            self._went_well(self._tried(lambda: wait(self._workers)))
        if self._broken:
            return None
        for what, sent in (("postprocs", postprocs), ("feature extractor", features)):
            try:
                pickle.dumps(sent)
            except Exception as error:  # pickling raises errors of many types
                text = f"the {what} cannot be sent to other processes ({failure(error)})"
                warn(f"{text}; this one replays alone")
                return None
        number = next(self._numbers)
        texts = [trace.to_json() for trace in spaces]
        self._tasks[number] = number, func, texts, postprocs, target, features
        vector = None if features is None else features.vector
        if not all(is_built_in(one) for one in (*postprocs, *filter(None, [vector]))):
            self._apart.add(number)
        for worker in self._workers:
            self._submit(worker, "prepare", *self._tasks[number])
        return None if self._broken else number

    def replay(
        self, number: int, requests: Sequence[Request], here: Callable[[Request], Summary | str]
    ) -> list[Summary | str] | None:
        """Replay requests; the results in their order, or None when a worker has failed.

        Args:
            here: replays one request in this process, which takes its share of the work.
        """
        if self._broken:
            return None
        order = sorted(range(len(requests)), key=lambda n: repr(requests[n][:2]))
        found: dict[int, Summary | str] = {}
        while order:  # requests with equal first decisions stand together: they share steps
            made = self._round(number, [requests[n] for n in order], here)
            if made is None:
                return None
            found.update({order[n]: result for n, result in made.items()})
            order = [n for n in order if n not in found]  # the requests of a worker that ended
        return [found[n] for n in range(len(requests))]

    def _round(
        self, number: int, jobs: Sequence[Request], here: Callable[[Request], Summary | str]
    ) -> dict[int, Summary | str] | None:
        """Results by position, without the results of workers that ended; None after a failure."""
        gone = [what for what, times in self._ended.items() if times >= _ENOUGH]
        if gone and number in self._apart:
            return dict.fromkeys(range(len(jobs)), f"crash in {gone[0]}")
        self._queue.deal(len(jobs))
        made: dict[int, Summary | str] = {}
        asked: set[Worker] = set()

        def ask() -> None:
            for part, worker in enumerate(self._workers):
                if worker not in asked and not worker.busy:
                    place = (self._queue.fd, self._queue.parts, part)
                    self._submit(worker, "replay_part", number, jobs, *place)
                    asked.add(worker)

        def take_replies(timeout: float | None) -> bool:
            well = []
            for worker, reply in self._tried(lambda: wait(self._workers, timeout)) or ():
                if worker in asked and self._ended_by_user(worker, reply, made):
                    asked.discard(worker)
                    continue
                made.update(reply.value or {})  # None if the worker has only prepared a task
                well.append((worker, reply))
            return self._went_well(well)

        try:
            if number in self._apart:
                while self._queue.left or any(worker.busy for worker in asked):
                    ask()
                    if not take_replies(None):
                        return None
            else:
                for n in self._queue.take(len(self._workers)):
                    ask()
                    made[n] = here(jobs[n])
                    if not take_replies(0.0):
                        return None
        finally:  # after an interrupt too: no worker may take requests of the next round
            self._queue.deal(0)
            while any(worker.busy for worker in asked) and take_replies(None):
                pass
        if self._broken:
            return None
        for worker in asked:
            self._submit(worker, "tidy")
        return made

    def _ended_by_user(self, worker: Worker, reply: Reply, made: dict[int, Summary | str]) -> bool:
        """Whether a function of a user has ended its worker, or has not returned in time.

        The candidate of the call is left out, and a new worker takes over the worker's tasks.
        """
        part = self._workers.index(worker)
        request, what = self._queue.last(part)
        if reply.kind not in ("crash", "timeout") or not what:
            return False
        self._queue.note(part)[0] = 0
        made[request] = f"crash in {what}"
        self._ended[what] += 1
        if self._ended[what] == 1:
            text = f"{what} ended a replay process ({reply.message})"
            warn(f"{text}; the candidates on which it does are left out")
        elif self._ended[what] == _ENOUGH:
            text = f"{what} ended {_ENOUGH} replay processes and is not called any more"
            warn(f"{text}; no candidate is left")
            self._queue.deal(0)
        given = self._plugins, dump(list(self._tasks.values()))
        self._submit(worker, "begin_again", *given)
        return True

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()
        self._queue.close()

    def _submit(self, worker: Worker, job: str, *arguments: Any) -> None:
        self._tried(lambda: worker.submit(_JOBS + job, *arguments, limit=_LIMIT))

    def _tried(self, act: Callable[[], Any]) -> Any:
        """What an action on workers returns; None if one cannot be started, and from then on."""
        if self._broken:
            return None
        try:
            return act()
        except MeasureError as error:
            self._give_up(str(error))
            return None

    def _went_well(self, ended: list[tuple[Worker, Reply]] | None) -> bool:
        """Whether all ended jobs succeeded; otherwise this process continues without workers."""
        for _, reply in ended or ():
            if reply.kind != "value":
                self._give_up(f"{reply.kind}: {reply.message}", _help_for(reply))
        return not self._broken

    def _give_up(self, why: str, hint: str = "") -> None:
        """Continue without workers."""
        if self._broken:
            return
        warn(f"a replay worker failed ({why}); replaying in process{hint and f'. {hint}'}")
        self._broken = True
        for one in self._workers:
            one.close()


def _help_for(reply: Reply) -> str:
    """What to do if a worker cannot import what it was sent."""
    absent = reply.error == "AttributeError" and reply.message.startswith("Can't get attribute")
    if reply.error != "ModuleNotFoundError" and not absent:
        return ""
    return (
        "Workers import the modules of your functions: put these functions into a plug-in file "
        "(tune(..., plugins=FILE), or --plugin FILE), which the workers load, or set PYTHONPATH to "
        "the folder of their module"
    )
