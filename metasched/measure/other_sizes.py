"""Checks at other sizes: a program with run-time extents must be right at more than one size.

A candidate is timed at the representative sizes (`analysis.sizes`). Before, it runs at about seven
other sizes: at 1, 2, primes, and one more and one less than a multiple of all usual tiles. The
expected results come from the program as written, compiled serially. Rows have gaps of 0 to 5
elements if their stride is known at run time only. A size at which the program
as written cannot run is left out: extents that are separate parameters may depend on each other
(the rows of a sparse matrix, and its row offsets).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from metasched.analysis.flops import flops
from metasched.analysis.sizes import at_sizes, run_time_extents, run_time_strides, with_strides
from metasched.errors import warn
from metasched.ir.expr import as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.measure.candidate import Status
from metasched.measure.data import Task
from metasched.measure.flow import Flow, Job, Run
from metasched.measure.process import Reply
from metasched.runtime.devices import Program
from metasched.target import Target

COUNT = 7
"""The most sizes."""
LARGE = (1, 2, 95, 97, 37, 61)  # 96 is a multiple of every tile of at most 12 rows or 6 vectors
_MOST = 2e8  # operations of one check, unless the representative sizes need more


def other_sizes(func: PrimFunc, sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """The sizes at which the candidates of a function are checked, by names of extents."""
    strides = run_time_strides(func)
    names = [v.name for v in run_time_extents(func)]
    if not names or any(name not in sizes for name in names):
        return []
    names = [name for name in names if name not in strides]
    most = max(_MOST, flops(twin(func, sizes)))
    found = [with_strides(func, dict.fromkeys(names, 1))]
    for row in range(len(LARGE) if names else 2):
        chosen = {}
        for place, name in enumerate(names):
            size = sizes[name]
            small = (1, 2, size - 1, size + 1, 3, 5)
            chosen[name] = max(1, (LARGE if size > max(LARGE) else small)[(row + place) % 6])
        while max(chosen.values(), default=0) > 2 and flops(twin(func, chosen)) > most:
            chosen = {
                name: value // 2 | 1 if value > 2 else value for name, value in chosen.items()
            }
        found.append(with_strides(func, chosen, gap=row))
    return [one for n, one in enumerate(found) if _exists(func, one) and one not in found[:n]]


def twin(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """The function for these sizes, by names of extents."""
    named = with_strides(func, sizes)
    extents = {v: as_expr(named[v.name], v.dtype) for v in run_time_extents(func)}
    return at_sizes(func, extents)


def _exists(func: PrimFunc, sizes: Mapping[str, int]) -> bool:
    """Whether every argument has elements at these sizes."""
    shapes = (extent for buffer in twin(func, sizes).buffers for extent in buffer.shape)
    return all((as_int(extent) or 0) > 0 for extent in shapes)


class OtherSizes:
    """The checks of a runner's candidates at other sizes.

    Attributes:
        sizes: the sizes, by names of extents.
        tasks: the test data and the memory of each size with expected results; None before the
            first candidate.
    """

    def __init__(
        self, func: PrimFunc, target: Target, sizes: Sequence[Mapping[str, int]],
        settings: Mapping[str, Any], fds: Sequence[int],
    ) -> None:  # fmt: skip
        """`fds`: memory for the results at each size; `settings`: arguments of `make_task`."""
        self._func, self._target, self._settings, self._fds = func, target, settings, fds
        self.sizes = list(sizes)
        self.tasks: list[tuple[str, Task, int]] | None = None if self.sizes else []

    def tried(self, program: Program, limit: float, patience: float) -> Flow[Reply | None]:
        """Run a program at every size; the reply of the first that fails, else None.

        Args:
            limit: seconds that a run may take.
            patience: seconds that the program as written may take for all sizes.
        """
        if self.tasks is None:
            self.tasks = yield from self._expected(patience)
        for name, task, fd in self.tasks:
            reply = yield Run(Job(limit, "trial", (task, fd, program)))
            if reply.kind != "value":
                return replace(reply, message=f"at {name}: {reply.message}")
            if reply.value.status is not Status.OK:
                found = replace(reply.value, message=f"at {name}: {reply.value.message}")
                return replace(reply, value=found)
        return None

    def _expected(self, patience: float) -> Flow[list[tuple[str, Task, int]]]:
        """Compute the expected results of all sizes; one by one if the program as written fails."""
        reply = yield self._run(slice(None), patience)
        tasks = reply.value if reply.kind == "value" else []
        if reply.kind != "value":
            for place in range(len(self.sizes)):
                one = yield self._run(slice(place, place + 1), patience / len(self.sizes))
                tasks += one.value if one.kind == "value" else [None]
            if not any(tasks):
                warn(
                    f"{self._func.attrs.get('global_symbol', 'main')}: candidates are checked at "
                    "the size that they are timed at alone: at each other size the program as "
                    f"written fails ({reply.reason}). Where an extent follows from another, write "
                    "it so, such as (n + 1,) instead of (m,)"
                )
        return list(self._named(tasks))

    def _run(self, part: slice, patience: float) -> Run:
        """The run of the program as written at a part of the sizes."""
        sizes = self.sizes[part]
        functions = [twin(self._func, one) for one in sizes]
        given = self._func, self._target, functions, sizes, self._settings, self._fds[part]
        return Run(Job(patience, "expected_at", given))

    def _named(self, tasks: Sequence[Task | None]) -> Iterator[tuple[str, Task, int]]:
        for one, task, fd in zip(self.sizes, tasks, self._fds, strict=False):
            if task is not None:
                yield ", ".join(f"{name} = {value}" for name, value in one.items()), task, fd
