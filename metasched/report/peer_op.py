"""An operator of another library, ready to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]
Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class PeerOp:
    """An operator with its data, in the layouts that are fastest for the library.

    Attributes:
        call: runs the operator once, or one step of a loop over time.
        back: converts the result into the layout of the workload.
        over: the arguments of each call that makes up the operator.
    """

    call: Callable[..., Any]
    back: Callable[[Any], Any] = lambda y: y
    over: tuple[tuple[Any, ...], ...] = ((),)

    def run(self) -> Any:
        """Run the operator once, with all of its steps; the result of the last step."""
        result = None
        for arguments in self.over:
            result = self.call(*arguments)
        return result
