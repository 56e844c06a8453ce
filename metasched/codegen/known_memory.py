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

LATE = 4
"""The most stores that are written late; their values stay in registers."""


@dataclass(frozen=True, slots=True)
class Spot:
    """`lanes` elements of the memory of `data` from `base` (a register) + `offset` elements on,
    `stride` elements apart."""

    data: Var
    dtype: DType
    base: str
    offset: int
    lanes: int
    stride: int = 1

    @property
    def end(self) -> int:
        """The offset behind the last element."""
        return self.offset + (self.lanes - 1) * self.stride + 1

    def overlaps(self, other: Spot) -> bool:
        """Whether two spots may share an element; spots with different base registers may."""
        if self.base != other.base or self.dtype is not other.dtype:
            return True
        if self.stride == other.stride and (self.offset - other.offset) % self.stride:
            return False
        return self.offset < other.end and other.offset < self.end


@dataclass(slots=True)
class Known:
    """The value at a spot, and the line that stored the value while the line may still be
    dropped: `lines[position]`, or `late` while it is not written."""

    value: Val
    lines: list[str] | None = None
    position: int = 0
    late: str = ""


@dataclass(slots=True)
class KnownMemory:
    """The known spots of each buffer; `clear` at every start of a basic block and foreign call.

    The last stores are written late, behind loads from other buffers. Large arrays of NumPy begin
    at the same place of a page, and a processor takes a load for a load of what was just stored,
    if both addresses agree in their last 12 bits.

    Attributes:
        hints: the prefetches already emitted.
        late: the stores that are not written yet.
    """

    spots: dict[Var, dict[Spot, Known]] = field(default_factory=dict)
    disabled: bool = False
    hints: set[str] = field(default_factory=set)
    late: list[tuple[Spot, Known]] = field(default_factory=list)

    def clear(self) -> None:
        """Forget everything."""
        self.settle()
        self.spots.clear()
        self.hints.clear()

    def settle(self) -> None:
        """Write all stores."""
        while self.late:
            self._write(0)

    def _write(self, position: int) -> None:
        _, known = self.late.pop(position)
        assert known.lines is not None
        known.position = len(known.lines)
        known.lines.append(known.late)
        known.late = ""

    def _settle(self, data: Var, spot: Spot | None) -> None:
        """Write the stores to a buffer that may share an element with a spot, None for any."""
        for position in reversed(range(len(self.late))):
            other = self.late[position][0]
            if other.data is data and (spot is None or spot.overlaps(other)):
                self._write(position)

    def find(self, spot: Spot) -> Val | None:
        """The value known to be at the spot; None if there is none, and the spot may be loaded."""
        known = self.spots.get(spot.data, {}).get(spot)
        if known is None:
            self._settle(spot.data, spot)
        return None if known is None else known.value

    def loaded(self, spot: Spot, value: Val) -> None:
        """Record a load from the spot: stores that the load may have seen must stay."""
        here = self.spots.setdefault(spot.data, {})
        for other, known in here.items():
            if known.lines is not None and spot.overlaps(other):
                known.lines = None
        if not self.disabled:
            here[spot] = Known(value)

    def stored(self, spot: Spot, value: Val, lines: list[str], line: str) -> None:
        """Record a store to the spot by a line, and drop the stores it overwrites."""
        here = self.spots.setdefault(spot.data, {})
        before = here.get(spot)
        if before is not None and before.late:
            self.late = [one for one in self.late if one[1] is not before]
        elif before is not None and before.lines is lines:
            lines[before.position] = ""
        self._settle(spot.data, spot)
        for other in [s for s in here if spot.overlaps(s)]:
            del here[other]
        if self.disabled:
            lines.append(line)
            return
        here[spot] = known = Known(value, lines, late=line)
        self.late.append((spot, known))
        if len(self.late) > LATE:
            self._write(0)

    def touched(self, data: Var, written: bool) -> None:
        """Record an access to the buffer at an unknown place, a read or a write."""
        self._settle(data, None)
        here = self.spots.get(data, {})
        if written:
            here.clear()
        for known in here.values():
            known.lines = None
