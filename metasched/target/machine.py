"""MachineModel: a machine in the numbers by which the cost model estimates cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Level:
    """A memory near a core.

    Attributes:
        bytes: its size.
        per_cycle: bytes that a core moves in a cycle from beyond this memory; an order of size.
        ways: lines that one set holds, 0 where every line may lie anywhere.
    """

    bytes: int
    per_cycle: float
    ways: int = 0


TRANSFER = 100.0
"""Cycles of a line that another core wrote, on a machine where nobody measured them."""


@dataclass(frozen=True, slots=True)
class MachineModel:
    """What the cost model knows of a machine; cycles are cycles of one core.

    Attributes:
        cores: that run iterations of a parallel loop.
        vector_bytes: of a vector register.
        registers: vector registers.
        pipes: vector operations, and vector loads, of one cycle.
        levels: three memories, the nearest first.
        line: bytes that memory moves at once.
        page: bytes of a page.
        pages: whose addresses a core has at hand.
        page_miss: cycles of one more page.
        transfer: cycles of a line that another core wrote.
        latency: cycles from a sum to the next sum that needs it.
        loop_step: cycles of a step of a loop that is not unrolled.
        launch: cycles of a parallel region.
        costs: of declared instructions by name, where they were measured: how many vector
            multiply-adds of float32 run in the time of one call.
    """

    cores: int
    vector_bytes: int
    registers: int
    levels: tuple[Level, Level, Level]
    pipes: int = 2
    line: int = 64
    page: int = 4096
    pages: int = 64
    page_miss: float = 8.0
    transfer: float = TRANSFER
    latency: float = 4.0
    loop_step: float = 2.0
    launch: float = 5000.0
    costs: Mapping[str, float] = field(default_factory=dict)
