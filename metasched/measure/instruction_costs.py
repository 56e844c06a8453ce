"""Measure the costs of the instructions in a task's design spaces on this machine, once."""

from __future__ import annotations

from collections.abc import Iterable

from metasched.analysis.block import AUTO_TENSORIZE
from metasched.ir.op import HardwareOp
from metasched.measure.process import Worker
from metasched.registry import plugin_files
from metasched.schedule.intrinsics import TensorIntrin, called
from metasched.schedule.trace import Trace
from metasched.target import Target
from metasched.target.cpu import Cpu, read_costs_again
from metasched.target.rates import measured_costs

_LIMIT = 10.0  # seconds for one instruction


def measure_costs(spaces: Iterable[Trace], target: Target) -> None:
    """Measure the instructions of the spaces that were never measured here, for the cost model.

    Another process runs the instructions: a wrongly declared instruction may end the process. An
    instruction that fails keeps its declared cost, `HardwareOp.cost`.
    """
    if not isinstance(target, Cpu) or target.here() is not None:
        return
    wanted = dict.fromkeys(op.name for name in _intrinsics(spaces) for op in _ops(name))
    missing = wanted.keys() - measured_costs(target.key).keys()
    if not missing:
        return
    worker = Worker("instruction costs", plugins=plugin_files())
    try:
        for name in (n for n in wanted if n in missing):
            worker.run("metasched.codegen.peak:measured_cost", target, name, limit=_LIMIT)
    finally:
        worker.close()
    read_costs_again()


def _ops(name: str) -> Iterable[HardwareOp]:
    intrin = TensorIntrin.get(name, allow_missing=True)
    return () if intrin is None else called(intrin.impl)


def _intrinsics(spaces: Iterable[Trace]) -> dict[str, None]:
    """The names of the intrinsics that the annotations of the spaces offer."""
    found: dict[str, None] = {}
    for trace in spaces:
        for entry in trace.entries:
            given = {**entry.attrs, **entry.inputs}
            if given.get("ann_key") == AUTO_TENSORIZE:
                found.update(dict.fromkeys(str(given.get("ann_val")).split(",")))
    return found
