"""Contents of memory that are known within one basic block: loads are reused, dead stores dropped.

Unrolled code loads the same element many times and stores to an accumulator after each step.
Removing these while emitting keeps the text small and saves time in LLVM's optimiser. Buffers do
not overlap (parameters are `noalias`), so only accesses to the same buffer matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metasched.codegen.values import Val
from metasched.ir.dtype import DType
from metasched.ir.expr import Var


@dataclass(frozen=True, slots=True)
class Spot:
    """`lanes` elements of the memory of `data` from `base` (a register) + `offset` elements."""

    data: Var
    dtype: DType
    base: str
    offset: int
    lanes: int

    def overlaps(self, other: Spot) -> bool:
        """Whether two spots may share an element; spots with different base registers may."""
        if self.base != other.base or self.dtype is not other.dtype:
            return True
        return self.offset < other.offset + other.lanes and other.offset < self.offset + self.lanes


@dataclass(slots=True)
class Known:
    """The value at a spot, and the line that stored the value while the line may still be
    dropped."""

    value: Val
    lines: list[str] | None = None
    position: int = 0


@dataclass(slots=True)
class KnownMemory:
    """The known spots of each buffer; `clear` at every start of a basic block and foreign call.

    Attributes:
        hints: the prefetches already emitted.
    """

    spots: dict[Var, dict[Spot, Known]] = field(default_factory=dict)
    disabled: bool = False
    hints: set[str] = field(default_factory=set)

    def clear(self) -> None:
        """Forget everything."""
        self.spots.clear()
        self.hints.clear()

    def find(self, spot: Spot) -> Val | None:
        """The value known to be at the spot, None if there is none."""
        known = self.spots.get(spot.data, {}).get(spot)
        return None if known is None else known.value

    def loaded(self, spot: Spot, value: Val) -> None:
        """Record a load from the spot: stores that the load may have seen must stay."""
        here = self.spots.setdefault(spot.data, {})
        for other, known in here.items():
            if known.lines is not None and spot.overlaps(other):
                known.lines = None
        if not self.disabled:
            here[spot] = Known(value)

    def stored(self, spot: Spot, value: Val, lines: list[str]) -> None:
        """Record a store to the spot by the line that is appended next, and drop the stores it
        overwrites."""
        here = self.spots.setdefault(spot.data, {})
        before = here.get(spot)
        if before is not None and before.lines is lines:
            lines[before.position] = ""
        for other in [s for s in here if spot.overlaps(s)]:
            del here[other]
        if not self.disabled:
            here[spot] = Known(value, lines, len(lines))

    def touched(self, data: Var, written: bool) -> None:
        """Record an access to the buffer at an unknown place, a read or a write."""
        here = self.spots.get(data, {})
        if written:
            here.clear()
        for known in here.values():
            known.lines = None
