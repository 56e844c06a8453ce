"""Expected results of candidates: which program computes them, and when they are confirmed.

Expected results come from the unscheduled program, compiled serially. If that program takes
seconds, the default schedule first computes expected results. Candidates are compared with them in
full. The unscheduled program runs beside the search; equal results, bit for bit or within the
tolerance of the task, confirm the expected results. Of a slow program only a sample is run
(`measure.sampling`): at least four whole rows, exactly as the whole program computes them. So the
stored programs equal the unscheduled program in these rows, and the default schedule in all
elements. If a candidate differs from the default schedule, one of the two is wrong: then the whole
unscheduled program is run and decides.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import NoReturn

from metasched.analysis.flops import flops
from metasched.errors import DefaultScheduleError, MeasureError, warn
from metasched.ir.equal import structural_hash
from metasched.ir.func import DATA, PrimFunc
from metasched.measure.candidate import Outcome, Status
from metasched.measure.data import Task
from metasched.measure.indices import index_data
from metasched.measure.jobs import Baseline
from metasched.measure.loaded_task import shared_size
from metasched.measure.process import Reply, Worker
from metasched.measure.sampling import Sample, sampled, why_whole
from metasched.measure.settings import MeasureOptions
from metasched.measure.workers import Workers
from metasched.target import Target

_LONG = 5e8  # a search does not wait for a program of more operations
_PATIENCE = 10.0  # seconds after which a warning says that the run waits for the program


class References:
    """The expected results of a task on both kinds of data.

    Attributes:
        tasks: the task on normally distributed data (True) and on integers (False); absent until
            the results are known.
        memory: the shared memory for each kind of data.
        by_default: results of the default schedule, None if it did not run or failed.
        baseline: time of the unscheduled program, once the expected results are confirmed.
        failure: why there are no expected results.
        no_verification: why there are no expected results on normal data.
    """

    def __init__(
        self, func: PrimFunc, target: Target, options: MeasureOptions, fds: Sequence[int],
        default_schedule: PrimFunc | None,
    ) -> None:  # fmt: skip
        """`fds`: memory for the results on each kind of data, and of the default schedule."""
        self._given, self._options = (func, target), options
        drawn = not (options.data or options.scalars)
        slow = flops(func) > _LONG and drawn
        self._default = default_schedule if slow else None
        self._sample: Sample | None = sampled(func) if self._default is not None else None
        self.memory = {False: fds[0], True: fds[1]}
        self._aside = fds[0] if self._default is None else fds[2]
        self.tasks: dict[bool, Task] = {}
        self.by_default: Baseline | None = None
        self.baseline: Outcome | None = None
        self.failure, self.no_verification = "", ""
        self._unscheduled: Baseline | None = None
        self._doubted = False  # a candidate differed from the default schedule

    def start(self, workers: Workers) -> None:
        """Start the unscheduled program, while the search continues.

        The program runs in the runner; if the default schedule computes expected results first, the
        program runs in a background process.
        """
        self._workers = workers
        workers.remind(_PATIENCE, self._warn_slow)
        if self._sample is None:
            self._warn_whole()
        if self._default is None:
            self._run_unscheduled(workers.runner)
            return
        workers.submit(
            workers.runner, self._default_ready, self._options.baseline_timeout,
            "baseline", *self._given, self.memory[False], self.settings, self._default,
        )  # fmt: skip
        self._run_unscheduled(workers.reference)

    def stop(self) -> None:
        """Stop giving warnings."""
        self._workers.forget()

    def doubt(self) -> None:
        """React to a candidate that differs from the default schedule: run the whole unscheduled
        program, if only its sample was compared."""
        if self._sample is None or self.by_default is None:
            return
        self._doubted = True
        if self.baseline is not None and not self._workers.reference.busy:
            self._whole()

    def prepare_verification(self) -> None:
        """Start computing the expected results on normal data at low priority, unless done."""
        workers = self._workers
        if True in self.tasks or workers.reference.busy or self.no_verification:
            return
        source = self.by_default or self._unscheduled
        assert source is not None
        task = self.tasks[False].with_normal_data()
        os.ftruncate(self.memory[True], shared_size(task))
        workers.submit(
            workers.reference, self._verification_ready, self._options.baseline_timeout,
            "expect", task, self.memory[True], source.program, None, self._options.data,
        )  # fmt: skip

    # -- how it goes on ----------------------------------------------------------------------------

    @property
    def settings(self) -> dict[str, object]:
        """The arguments of `make_task`."""
        o = self._options
        return {
            "key": structural_hash(self._given[0]), "seed": o.seed, "extents": dict(o.extents),
            "scalars": dict(o.scalars), "data": dict(o.data),
        }  # fmt: skip

    def _run_unscheduled(self, worker: Worker) -> None:
        """Run the unscheduled program or its sample."""
        self._workers.submit(
            worker, self._baseline_ready,
            self._options.baseline_timeout, "baseline", *self._given, self._aside, self.settings,
            None, self._sample,
        )  # fmt: skip

    def _whole(self) -> None:
        """Run the whole unscheduled program; the expected results are unconfirmed until it ends."""
        self._sample = self._unscheduled = self.baseline = None
        self._run_unscheduled(self._workers.reference)

    def _warn_whole(self) -> None:
        """Warn that an unscheduled program which takes long is run as a whole, and say why."""
        func = self._given[0]
        why = why_whole(func)
        if not why:
            return
        if self._options.data or self._options.scalars:
            why = "its data are given"
        elif self._default is None:
            why = "no default schedule is there to be compared with the rest"
        warn(
            f"{self._name}: the program as written is run as a whole to check results, not for "
            f"some rows alone: {why}"
        )

    @property
    def _name(self) -> str:
        return str(self._given[0].attrs.get("global_symbol", "main"))

    def _warn_slow(self) -> None:
        warn(
            f"{self._name}: the program as written gave no results within {_PATIENCE:.0f} s; "
            f"the run waits for them for at most {self._options.baseline_timeout:.0f} s"
        )

    def _warn_lost(self, task: Task) -> None:
        """Warn of results that are NaN, because a comparison of NaN with NaN finds no fault."""
        for array in task.arrays:
            if array.lost:
                warn(
                    f"{self._name}: {array.lost} of {math.prod(array.shape)} elements of "
                    f"{array.name} are NaN on the test data, also on small floats and diagonals "
                    "near one: their values are not checked"
                )

    def _default_ready(self, reply: Reply) -> None:
        """Take the results of the default schedule, so that candidates can be checked.

        If the default schedule failed (as candidate 0 will), or its results grow too large to be
        exact, only the unscheduled program computes expected results.
        """
        if reply.kind == "value":
            self.by_default = reply.value
            self.tasks[False] = reply.value.task
        self._default = None
        self._compare()

    def _baseline_ready(self, reply: Reply) -> None:
        if reply.kind != "value":
            built = os.fstat(self._aside).st_size > 0
            what, hint = "run" if built else "built", ""
            guessed = [b.name for b, data in index_data(self._given[0]).items() if not data.whole]
            if built and reply.signal == "SIGSEGV" and guessed:
                hint = (
                    f"; the limits of {', '.join(guessed)} as an index are not known, so the test "
                    "data may lead outside: clamp the index with T.min and T.max, and "
                    "build(func, check_bounds=True) names the access"
                )
            elif built and reply.signal == "SIGSEGV" and DATA in self._given[0].attrs:
                hint = (
                    "; the given data may lead outside of an array: "
                    "build(func, check_bounds=True) names the access"
                )
            self._fail(f"the unscheduled program cannot be {what}: {reply.reason}{hint}")
        self._unscheduled = reply.value
        self._compare()

    def _compare(self) -> None:
        """Accept the unscheduled program's results if they equal the default schedule's results."""
        if self._unscheduled is None or self._default is not None:
            return
        if self.by_default is None and self._sample is not None:
            self._whole()
            return
        self.stop()
        if self.by_default is None:
            self.memory[False] = self._aside
            self.tasks[False] = self._unscheduled.task
            self._accept(Reply("value", ""))
            return
        given = self.by_default.task, self._aside, self.memory[False], self._sample
        self._workers.submit(self._workers.reference, self._accept, 60.0, "agree", *given)

    def _accept(self, reply: Reply) -> None:
        if reply.kind != "value":
            self._fail(f"two kinds of expected results cannot be compared: {reply.reason}")
        if reply.value:
            self.failure = (
                "the default schedule gives other results than the program as written: "
                f"{reply.value}"
            )
            raise DefaultScheduleError(self.failure)
        assert self._unscheduled is not None
        self._warn_lost(self.tasks[False])
        if self._doubted and self._sample is not None:
            self._whole()
            return
        self.baseline = Outcome(Status.OK, (self._unscheduled.seconds,))

    def _fail(self, reason: str) -> NoReturn:
        self.failure = reason
        raise MeasureError(reason)

    def _verification_ready(self, reply: Reply) -> None:
        self._workers.reference.close()
        if reply.kind != "value":
            self.no_verification = f"no expected results on normal data: {reply.reason}"
        else:
            self.tasks[True] = reply.value[0]
        if self._doubted and self._sample is not None:
            self._whole()
