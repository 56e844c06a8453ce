"""limit_code, limit_stack, limit_vector: reject candidates too large to build or run well."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.analysis.access import touched_bytes
from metasched.analysis.scope import Child, Scope
from metasched.ir.buffer import Buffer
from metasched.ir.expr import as_int
from metasched.ir.stmt import For, ForKind, Stmt
from metasched.postproc.base import rejection
from metasched.schedule.schedule import Schedule
from metasched.target import Target, cpu_of


@dataclass(frozen=True, slots=True)
class LimitCode:
    """Reject unrolled bodies of more than `operations` vector operations: `unroll-too-large`."""

    operations: int = 2048

    @property
    def name(self) -> str:
        return "limit_code"

    def __call__(self, sch: Schedule, target: Target) -> None:
        for child in _leaves(sch):
            copies, lanes = 1, 1
            for loop in child.loops:
                extent = as_int(loop.extent) or 1
                if loop.kind is ForKind.UNROLLED:
                    copies *= extent
                elif loop.kind is ForKind.VECTORIZED:
                    lanes *= extent
            bits = max((r.buffer.dtype.bits for r in child.block.writes), default=32)
            total = copies * max(1, -(-lanes * bits // max(64, cpu_of(target).vector_bits)))
            if total > self.operations:
                raise rejection(
                    self.name,
                    "unroll-too-large",
                    f"the body of {child.block.name} would be some {total} operations long, more "
                    f"than {self.operations}",
                    child.realize,
                )


@dataclass(frozen=True, slots=True)
class LimitStack:
    """Reject more than `max_bytes` of local buffers. Reason: `stack-too-large`."""

    max_bytes: int = 1 << 16

    @property
    def name(self) -> str:
        return "limit_stack"

    def __call__(self, sch: Schedule, target: Target) -> None:
        for func in sch.mod.functions.values():
            if not func.is_schedulable:
                continue
            for buffer in func.root.alloc_buffers:
                if buffer.scope == "local":
                    self._check(Scope.of(func.root), buffer)

    def _check(self, scope: Scope, buffer: Buffer) -> None:
        users = {c.token: c for c in (*scope.writers(buffer), *scope.readers(buffer))}
        place: Stmt = scope.block.body
        for loops in zip(*(c.loops for c in users.values()), strict=False):
            if any(loop is not loops[0] for loop in loops):
                break
            place = loops[0].body
        used = touched_bytes(place, buffer)
        if used is None or used > self.max_bytes:
            raise rejection(
                self.name,
                "stack-too-large",
                f"the local buffer {buffer.name} takes {used} bytes of stack, more than "
                f"{self.max_bytes}",
            )


@dataclass(frozen=True, slots=True)
class LimitVector:
    """Reject vectors of more than `registers` registers. Reason: `vector-too-wide`."""

    registers: int = 16

    @property
    def name(self) -> str:
        return "limit_vector"

    def __call__(self, sch: Schedule, target: Target) -> None:
        for child in _leaves(sch):
            for loop in child.loops:
                if loop.kind is ForKind.VECTORIZED:
                    self._check(child, loop, max(128, cpu_of(target).vector_bits))

    def _check(self, child: Child, loop: For, register: int) -> None:
        bits = max((r.buffer.dtype.bits for r in child.block.writes), default=32)
        width = (as_int(loop.extent) or 1) * bits
        if width > register * self.registers:
            raise rejection(
                self.name,
                "vector-too-wide",
                f"a vector of {width} bits needs more than {self.registers} registers",
                loop,
            )


def _leaves(sch: Schedule) -> list[Child]:
    """The blocks directly in the root of every function."""
    funcs = [f for f in sch.mod.functions.values() if f.is_schedulable]
    return [child for func in funcs for child in Scope.of(func.root).realizes]
