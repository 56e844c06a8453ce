"""What candidates are compared with: who computes the expected results, and when they are proved.

Expected results come from the unscheduled program, compiled serially. Where that takes seconds and
results must be equal bit for bit, the default schedule stands in for it: candidates are compared in
full with its results. They are accepted when those of the program as written, run beside the
search, equal them. Of a program that takes long a sample is run (`measure.sampling`): all elements
of some rows, exactly as the whole program gives them. So what enters the store equals the program
as written in these rows, and the default schedule everywhere else. Should a candidate differ from
the default schedule, one of the two is wrong: the whole program is run then and decides.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from typing import NoReturn

from metasched.analysis.flops import flops
from metasched.errors import MeasureError, StandInError
from metasched.ir.equal import structural_hash
from metasched.ir.func import PrimFunc
from metasched.measure.candidate import Outcome, Status
from metasched.measure.crew import Crew
from metasched.measure.data import Task, inexact_reason
from metasched.measure.jobs import Baseline
from metasched.measure.loaded_task import shared_size
from metasched.measure.process import Reply
from metasched.measure.sampling import Sample, sampled
from metasched.measure.settings import MeasureOptions
from metasched.target import Target

_LONG = 5e8  # operations of a program that is not waited for
_PATIENCE = 10.0  # seconds after which a run says that it waits for the program as written


class References:
    """The expected results of a task on both kinds of data.

    Attributes:
        tasks: by whether the data are normally distributed; absent until results are there.
        memory: the shared memory of each.
        quick: what stood in for the program as written, None without.
        baseline: time of the program as written, once its results are accepted.
        failure: why there are none.
        no_verification: why there are none on normal data.
    """

    def __init__(
        self, func: PrimFunc, target: Target, options: MeasureOptions, fds: Sequence[int],
        stand_in: PrimFunc | None,
    ) -> None:  # fmt: skip
        """`fds`: memory for the results on each kind of data, and for those set aside."""
        self._given, self._options = (func, target), options
        slow = flops(func) > _LONG and not inexact_reason(func)  # equal means equal bit for bit
        self._stand_in = stand_in if slow else None
        self._sample: Sample | None = sampled(func) if self._stand_in is not None else None
        self.memory = {False: fds[0], True: fds[1]}
        self._aside = fds[0] if self._stand_in is None else fds[2]
        self.tasks: dict[bool, Task] = {}
        self.quick: Baseline | None = None
        self.baseline: Outcome | None = None
        self.failure, self.no_verification = "", ""
        self._written: Baseline | None = None
        self._doubted = False  # a candidate differed from the stand-in

    def start(self, crew: Crew) -> None:
        """Set workers to the unscheduled program: the runner, or another where something stands in
        for it. It needs no attention until it ends, so the search goes on meanwhile."""
        self._crew = crew
        self._alarm = threading.Timer(_PATIENCE, self._say)
        self._alarm.daemon = True
        self._alarm.start()
        if self._stand_in is None:
            self._run_written(crew.runner)
            return
        crew.submit(
            crew.runner, self._stand_in_ready, self._options.baseline_timeout,
            "baseline", *self._given, self.memory[False], self._settings, self._stand_in,
        )  # fmt: skip
        self._run_written(crew.reference)

    def stop(self) -> None:
        """Say nothing any more."""
        self._alarm.cancel()

    def doubt(self) -> None:
        """A candidate differs from what stands in for the program as written: let the whole of
        that decide, if a sample was all that was compared."""
        if self._sample is None or self.quick is None:
            return
        self._doubted = True
        if self.baseline is not None and not self._crew.reference.busy:
            self._whole()

    def prepare_verification(self) -> None:
        """Start computing the expected results on normal data at low priority, unless done."""
        crew = self._crew
        if True in self.tasks or crew.reference.busy or self.no_verification:
            return
        source = self.quick or self._written
        assert source is not None
        task = self.tasks[False].with_normal_data()
        os.ftruncate(self.memory[True], shared_size(task))
        crew.submit(
            crew.reference, self._verification_ready, self._options.baseline_timeout,
            "expect", task, self.memory[True], source.program,
        )  # fmt: skip

    # -- how it goes on ----------------------------------------------------------------------------

    @property
    def _settings(self) -> dict[str, object]:
        o = self._options
        return {
            "key": structural_hash(self._given[0]), "seed": o.seed, "extents": dict(o.extents),
            "scalars": dict(o.scalars),
        }  # fmt: skip

    def _run_written(self, worker: object) -> None:
        """Run the program as written, or the sample of it."""
        crew = self._crew
        crew.submit(
            crew.runner if worker is crew.runner else crew.reference, self._baseline_ready,
            self._options.baseline_timeout, "baseline", *self._given, self._aside, self._settings,
            None, self._sample,
        )  # fmt: skip

    def _whole(self) -> None:
        """Run all of the program as written; until it has ended nothing is proved."""
        self._sample = self._written = self.baseline = None
        self._run_written(self._crew.reference)

    def _say(self) -> None:
        name = str(self._given[0].attrs.get("global_symbol", "main"))
        warnings.warn(
            f"{name}: the program as written has run for {_PATIENCE:.0f} s and goes on; a time "
            f"limit ends it, at the latest {self._options.baseline_timeout:.0f} s do",
            stacklevel=2,
        )

    def _stand_in_ready(self, reply: Reply) -> None:
        """Candidates can be tried; a stand-in that failed (as candidate 0 will) is done without."""
        if reply.kind == "value":
            self.quick = reply.value
            self.tasks[False] = reply.value.task
        self._stand_in = None
        self._compare()

    def _baseline_ready(self, reply: Reply) -> None:
        if reply.kind != "value":
            built = os.fstat(self._aside).st_size > 0
            what = "run" if built else "built"
            self._fail(f"the unscheduled program cannot be {what}: {reply.reason}")
        self._written = reply.value
        self._compare()

    def _compare(self) -> None:
        """Accept the unscheduled program's results, if they equal those of what stood in for it."""
        if self._written is None or self._stand_in is not None:
            return
        if self.quick is None and self._sample is not None:
            self._whole()
            return
        self.stop()
        if self.quick is None:
            self.memory[False] = self._aside
            self.tasks[False] = self._written.task
            self._accept(Reply("value", ""))
            return
        given = self.quick.task, self._aside, self.memory[False], self._sample
        self._crew.submit(self._crew.reference, self._accept, 60.0, "agree", *given)

    def _accept(self, reply: Reply) -> None:
        if reply.kind != "value":
            self._fail(f"two kinds of expected results cannot be compared: {reply.reason}")
        if reply.value:
            self.failure = (
                "the default schedule gives other results than the program as written: "
                f"{reply.value}"
            )
            raise StandInError(self.failure)
        assert self._written is not None
        if self._doubted and self._sample is not None:
            self._whole()
            return
        self.baseline = Outcome(Status.OK, (self._written.seconds,))

    def _fail(self, reason: str) -> NoReturn:
        self.failure = reason
        raise MeasureError(reason)

    def _verification_ready(self, reply: Reply) -> None:
        self._crew.reference.close()
        if reply.kind != "value":
            self.no_verification = f"no expected results on normal data: {reply.reason}"
        else:
            self.tasks[True] = reply.value[0]
        if self._doubted and self._sample is not None:
            self._whole()
