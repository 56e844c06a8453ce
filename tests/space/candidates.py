"""Candidates of design spaces for tests: tiny programs, candidates, the interpreter's verdict."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from metasched.errors import ScheduleError
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.kinds import default_modules, default_postprocs
from metasched.kinds.cpu import reference_modules
from metasched.postproc import run_postprocs
from metasched.schedule.schedule import Schedule
from metasched.schedule.selfcheck import check_module
from metasched.schedule.trace import Trace
from metasched.space.generate import SpaceGenerator
from metasched.target import Target
from metasched.workloads import get

TARGET = Target.of({"kind": "cpu", "mcpu": "skylake-avx512", "num_cores": 2})
TINY = {
    "gmm": (1, 16, 32, 8),
    "tbg": (1, 8, 2, 4),
    "c1d": (1, 8, 2, 32, 3, 2, 1),
    "c2d": (1, 4, 4, 2, 16, 3, 1, 1),
    "cbr": (1, 4, 4, 2, 16, 3, 2, 1),
    "dep": (1, 4, 4, 32, 3, 1, 1),
    "grp": (1, 4, 4, 4, 32, 3, 1, 1, 1, 2),
    "t2d": (1, 2, 2, 2, 16, 4, 2, 1),
    "cap": (1, 2, 2, 2, 8, 3, 1, 1),
    "sfm": (8, 32),
    "nrm": (1, 16, 32),
}


@functools.cache
def tiny(name: str) -> PrimFunc:
    """A workload at a shape that the interpreter runs in milliseconds."""
    return get(name).func(TINY[name])


@functools.cache
def spaces(name: str, kind: str = "default") -> tuple[Trace, ...]:
    """The design spaces of a tiny workload: the default or the reference ones."""
    modules = default_modules(TARGET) if kind == "default" else reference_modules(TARGET)
    generator = SpaceGenerator(modules)
    found = tuple(generator.generate(tiny(name), TARGET))
    assert not generator.failures
    return found


def draw(func: PrimFunc, space: Trace, seed: int, *, check: bool = True) -> Schedule | None:
    """One candidate with its postprocs, None when it is rejected.

    The finished program is checked: a step that breaks the rules or a cached fact shows there too.
    """
    sch = Schedule(func, seed=seed)
    try:
        space.apply(sch, decisions="fresh")
        run_postprocs(sch, TARGET, default_postprocs(TARGET))
    except ScheduleError:
        return None
    if check:
        check_module(sch.mod)
    return sch


def drawn(name: str, kind: str = "default", count: int = 2) -> Iterator[Schedule | None]:
    """Candidates of every design space of a tiny workload."""
    for space in spaces(name, kind):
        for seed in range(count):
            yield draw(tiny(name), space, seed, check=seed == 0)


@functools.cache
def expected(name: str) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """Inputs and the output of the program as written."""
    workload = get(name)
    inputs = tuple(workload.inputs(TINY[name]))
    output = workload.output(TINY[name])
    run(tiny(name), *inputs, output)
    return inputs, output


def assert_same(name: str, source: object) -> None:
    """The program computes what the workload as written computes."""
    inputs, wanted = expected(name)
    output = np.full_like(wanted, 7)
    run(source, *inputs, output)  # type: ignore[arg-type]
    if name in ("sfm", "nrm"):
        np.testing.assert_allclose(output, wanted, rtol=1e-5)
    else:
        np.testing.assert_array_equal(output, wanted)
