"""Random programs in plain loops whose extents are known at run time only.

Each program is tuned for one size, and runs at others, with 0 and 1 among them: as written, by the
default schedule, by autoschedule, and by candidates of its space. All must compute what the
interpreter does. Programs of the kind `idioms` have one extent n; of the kind `wild`, arrays have
extents such as n + 1, n // 2 and n * m.

    python -m tests.space.run_time --cases 500
    python -m tests.space.run_time --cases 500 --kind wild
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import teams
from space.fuzz import (
    TARGETS,
    Broken,
    Case,
    Drawn,
    Tally,
    autoscheduled,
    built,
    by_default,
    candidates,
    check_kernel,
    check_texts,
    holds_exactly,
    report,
    with_changes,
)
from space.plain_idioms import run_time_idioms
from space.random_kinds import Draw
from space.row_machines import run_time_rows
from space.wild_extents import wild_extents

from metasched.analysis.sizes import run_time_extents, with_sizes
from metasched.errors import ParseError
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.measure.data import TAMINGS, Task, fill, nudged, steady
from metasched.measure.task import make_task
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse, script

SIZES = (0, 1, 2, 3, 5, 16, 17, 33)


KINDS: dict[str, Callable[[Draw], str]] = {
    "idioms": run_time_idioms, "wild": wild_extents, "rows": run_time_rows,
}  # fmt: skip


def program(number: int, kind: str = "idioms") -> PrimFunc:
    """Program n, with the sizes for which it is tuned."""
    rng = random.Random(number)
    text = KINDS[kind](Draw(rng, 40))
    try:
        made = parse(text.replace("T.int32()", f"T.{rng.choice(('int32', 'int64'))}()"))
    except ParseError:  # a position is kept in a variable that began as an int32
        made = parse(text)
    assert isinstance(made, PrimFunc)
    return with_sizes(
        made, {v.name: rng.choice((1, 8, 24, 64, 200)) for v in run_time_extents(made)}
    )


def data_of(func: PrimFunc, sizes: Mapping[str, int], seed: int) -> tuple[Task, Any, Any] | None:
    """The task at some sizes, with the arguments before and after a call; None where rounding
    errors ruin the results."""
    signature = build(func).signature
    task = make_task(func, signature, key="run time", seed=seed, extents=sizes)
    for level in range(TAMINGS + 1):
        tried = task.tamed(level) if level else task
        given, after = _results(func, tried, fill)
        if not (tried.exact and holds_exactly(after)):
            _, moved = _results(func, tried, nudged)
            tried = with_changes(tried, moved, after)
        if steady(tried, after):
            return tried, given, after
    return None


def _results(func: PrimFunc, task: Task, drawn: Drawn) -> tuple[list[Any], list[Any]]:
    """The arguments before and after a call; P holds indices that stay inside."""
    rng = np.random.default_rng(task.seed)
    given = [
        rng.integers(0, max(*array.shape, 1), array.shape).astype(array.dtype)
        if array.name == "P"
        else drawn(array, task, n)
        for n, array in enumerate(task.arrays)
    ]
    after = [array.copy() for array in given]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(func, *after)
    return given, after


def play(number: int, tally: Tally, count: int = 2, kind: str = "idioms") -> None:
    """Check one program at three sizes; raises Broken."""
    func, rng = program(number, kind), random.Random(number)
    case = Case(number, "plain_idioms", (number, 1), rng.choice(list(TARGETS)))
    names = [v.name for v in run_time_extents(func)]
    sizes = zip(*(rng.sample(SIZES, 3) for _ in names), strict=True)
    drawn = [data_of(func, dict(zip(names, each, strict=True)), number) for each in sizes]
    tried = [data for data in drawn if data is not None]
    for how in (Schedule, lambda f: by_default(case, f), lambda f: autoscheduled(case, f)):
        _check(case, how(func), tried)
    for sch in candidates(case, func, tally, count):
        check_texts(func, sch)
        _check(case, sch, tried)
        tally.ran["run time"] += 1


def _check(case: Case, sch: Schedule, tried: list[tuple[Task, Any, Any]]) -> None:
    kernel = built(case, sch)
    for data in tried:
        check_kernel(case, sch, kernel, data)


def main() -> int:
    """Play cases; print those that fail."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--kind", choices=[*KINDS], default="idioms")
    teams.add_options(parser)
    options = parser.parse_args()
    teams.use(options)
    tally, failed = Tally(), 0
    for number in range(options.start, options.start + options.cases):
        try:
            play(number, tally, kind=options.kind)
        except Exception as error:  # a fuzz reports any exception
            failed += 1
            case = Case(number, "plain_idioms", (number, 1), "")
            text = report(case, error) if isinstance(error, Broken) else repr(error)
            print(
                f"{'=' * 80}\ncase {number}\n{script(program(number, options.kind))}\n{text}",
                flush=True,
            )
    print(f"{options.cases} cases, {tally.ran.total()} candidates ran, {failed} failures")
    for what, count in (*tally.reasons.most_common(8), *tally.modules.most_common(8)):
        print(f"{count:6} {what}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
