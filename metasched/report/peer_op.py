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
        call: runs the operator once.
        back: converts the result into the layout of the workload.
    """

    call: Call
    back: Callable[[Any], Any] = lambda y: y
