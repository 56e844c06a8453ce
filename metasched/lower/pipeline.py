"""The lowering: a function goes through the passes of its target's kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from metasched import config
from metasched.errors import TargetError
from metasched.ir.dtype import INT64
from metasched.ir.expr import Var
from metasched.ir.func import PrimFunc
from metasched.lower import cpu as cpu  # enters the passes of CPUs
from metasched.lower.passes.flatten import flatten
from metasched.lower.table import PIPELINES
from metasched.target import Target

Wide = dict[Var, Var]
"""The 64-bit variable for each shape variable."""


def lower(func: PrimFunc, target: Target) -> PrimFunc:
    """Lower a function to plain loops over flat buffers with 64-bit indices.

    Raises LowerError for a program that has no plain form on the target, TargetError for a target
    kind without passes.
    """
    return lower_with_symbols(func, target, ())[0]


def lower_with_symbols(
    func: PrimFunc, target: Target, symbols: Sequence[Var]
) -> tuple[PrimFunc, tuple[Var, ...]]:
    """Lower a function, and give the 64-bit variables that replace the shape variables `symbols`.

    The setting `debug="passes"` prints the program after each pass.
    """
    wide = tuple(v if v.dtype is INT64 else Var(v.name, INT64) for v in symbols)
    show = to_stderr if config.load().debug == "passes" else None
    return lower_and_show(func, target, dict(zip(symbols, wide, strict=True)), show), wide


def lower_and_show(
    func: PrimFunc, target: Target, wide: Wide | None = None,
    show: Callable[[str], object] | None = None,
) -> PrimFunc:  # fmt: skip
    """Run all passes; `show` is called with the script after each pass that changed it.

    Raises LowerError and TargetError as `lower` does.
    """
    for name, changed in apply_passes(func, target, wide):
        if show is not None and changed is not func:
            show(f"# after {name}\n{changed.script()}")
        func = changed
    return func


def to_stderr(text: str) -> None:
    """Print a program on standard error."""
    print(text, file=sys.stderr)  # noqa: T201  asked for


def apply_passes(
    func: PrimFunc, target: Target, wide: Wide | None = None
) -> Iterator[tuple[str, PrimFunc]]:
    """Run the passes one after another; yields the name of each pass and its result.

    Args:
        wide: the 64-bit variable for each shape variable.

    Raises LowerError and TargetError as `lower` does.
    """
    if target.kind not in PIPELINES:
        known = ", ".join(PIPELINES.names())
        raise TargetError(
            f"there are no passes for targets of kind {target.kind!r}; kinds with passes: {known}"
        )
    pipeline = PIPELINES.get(target.kind)(target)
    for run, _ in pipeline.structured:
        func = run(func)
        yield run.__name__, func
    func = flatten(func, wide or {})
    yield flatten.__name__, func
    for run, _ in pipeline.flat:
        func = run(func)
        yield run.__name__, func
