"""The oracle: what every transformation must keep, checked in one call (`check_transform`)."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import places
import pytest
import teams
from strategies import random_args

from metasched.errors import ScheduleError
from metasched.ir.equal import assert_structural_equal
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.interp import run
from metasched.ir.stmt import AttrStmt, For, ForKind
from metasched.ir.verify import verify
from metasched.ir.visit import walk_stmts
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script.printer import script
from metasched.target import Target

GOLDEN = Path(__file__).parent / "golden"
HARD = False
"""Whether programs are compared on infinities, NaN and whole integers."""
UPDATE = False
"""Whether goldens are rewritten instead of compared (`pytest --update-golden`)."""


class Wrong(AssertionError):
    """A transformed program computes something else."""


@functools.lru_cache(maxsize=64)
def expected(func: PrimFunc, hard: bool = False) -> tuple[list[Any], list[Any]]:
    """Arguments for a function, and what it makes of them (interpreted as written): read-only."""
    args = random_args(func, random.Random(0), hard=hard)
    out = [a.copy() for a in args]
    run(func, *out)
    for array in (*args, *out):
        if isinstance(array, np.ndarray):  # scalars cannot be written anyway
            array.flags.writeable = False
    return args, out


def has_order(mod: IRModule) -> bool:
    """Whether the interpreter draws the order of iterations from its seed."""
    drawn = (ForKind.PARALLEL, ForKind.THREAD_BINDING)
    return any(
        isinstance(s, AttrStmt) or (isinstance(s, For) and s.kind in drawn)
        for func in mod.functions.values()
        for s in walk_stmts(func.body)
    )


def check_numbers(
    before: PrimFunc,
    mod: IRModule,
    *,
    seeds: Iterable[int] = (0, 1),
    compiled: bool = False,
    convert: Callable[[list[Any], bool], list[Any]] | None = None,
) -> None:
    """`mod` computes what `before` does, interpreted (and compiled); raises Wrong.

    The order of parallel iterations is drawn from each seed; blocks keep to their regions.
    `convert` gives the arguments in the layout that `mod` takes, of results with padding to be
    overwritten or as it shall become.
    """
    args, want = expected(before, HARD)
    if convert is not None:
        args, want = convert(args, True), convert(want, False)
    for seed in seeds if has_order(mod) else (0,):
        got = [a.copy() for a in args]
        run(mod, *got, seed=seed, check_regions=True)
        _compare(before, want, got, f"interpreted with seed {seed}")
    if compiled:
        kernel = build(mod, teams.with_threads(Target.native()))
        for _ in range(teams.RUNS):
            got = [a.copy() for a in args]
            kernel(*got)
            _compare(before, want, got, "compiled")


def _compare(before: PrimFunc, want: list[Any], got: list[Any], how: str) -> None:
    for param, a, b in zip(before.params, want, got, strict=True):
        a64, b64 = (np.asarray(x, "float64" if x.dtype.kind not in "iub" else None) for x in (a, b))
        if not np.array_equal(a64, b64, equal_nan=a64.dtype.kind == "f"):
            raise Wrong(f"{how}: {param.name} differs\nexpected {a}\ngot {b}")


def check_transform(
    before: PrimFunc, sch: Schedule, golden: str | None = None, *, compiled: bool = True
) -> None:
    """Everything that must hold of a schedule made from `before`.

    The module verifies, its script is the golden one (`tests/golden/<golden>.txt`), it computes
    the same through the interpreter and as machine code, and its trace, through JSON and as Python
    text, gives a structurally equal module and an equal trace.
    """
    verify(sch.mod, closed=True)
    if golden is not None:
        check_golden(golden, script(sch.mod))
    check_numbers(before, sch.mod, compiled=compiled)
    check_trace(before, sch)


def check_golden(name: str, text: str) -> None:
    """`text` is what the golden file holds."""
    path = GOLDEN / f"{name}.txt"
    text = text.rstrip("\n") + "\n"
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"no golden {path.name}: run pytest --update-golden"
    assert text == path.read_text(encoding="utf-8")


def check_trace(before: PrimFunc | IRModule, sch: Schedule, *, python: bool = True) -> None:
    """The trace of `sch` replays to the same module, from JSON, as Python and simplified."""
    text = sch.trace.to_json()
    read = Trace.from_json(text)
    assert read.to_json() == text and read.as_python() == sch.trace.as_python()
    for trace in (sch.trace, read, sch.trace.simplified()):
        again = Schedule(before, seed=1)
        trace.apply(again)
        assert_structural_equal(again.mod, sch.mod)
    if python:
        source = sch.trace.as_python()
        scope: dict[str, Any] = {}
        exec(source, scope)  # the trace as a user would run it
        again = Schedule(before, seed=1)
        scope["apply_trace"](again)
        assert_structural_equal(again.mod, sch.mod)
        assert again.trace.as_python() == source


def picture(sch: Schedule) -> tuple[Any, ...]:
    """All that a refused step must leave as it was."""
    s = sch.state
    return (s.mod, sch.trace, dict(s.table), s.serial, s.rng.state, s.func_name, len(sch._history))


@contextmanager
def refusal(reason: str, message: str) -> Iterator[list[ScheduleError]]:
    """What stands inside is refused for `reason` with `message` (a regular expression)."""
    found: list[ScheduleError] = []
    with pytest.raises(ScheduleError, match=message) as caught:
        yield found
    found.append(caught.value)
    assert caught.value.reason == reason, f"{caught.value.reason}: {caught.value.message}"
    assert caught.value.primitive
    assert caught.value.hint, f"{reason}: no hint says what to do; see metasched/schedule/advice.py"
    places.note(caught.value)


def check_refused(
    sch: Schedule, step: Callable[[], object], reason: str, message: str
) -> ScheduleError:
    """`step` is refused for `reason` with `message` (a regular expression); nothing changed."""
    before = picture(sch)
    with refusal(reason, message) as found:
        step()
    assert picture(sch) == before
    return found[0]
