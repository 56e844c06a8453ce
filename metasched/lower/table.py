"""The table of lowerings: the passes of each target kind.

A kind has one row, a function of the target that gives its `Pipeline`, entered by
`PIPELINES.register`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from metasched.ir.func import PrimFunc
from metasched.registry import Registry
from metasched.target import Target

Pass = Callable[[PrimFunc], PrimFunc]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The passes for one target, as pairs of a pass and the reason for its place.

    Attributes:
        structured: run on blocks and buffers of several dimensions.
        flat: run after `flatten`, on flat buffers and 64-bit indices.
    """

    structured: tuple[tuple[Pass, str], ...]
    flat: tuple[tuple[Pass, str], ...]


PIPELINES: Registry[Callable[[Target], Pipeline]] = Registry(
    "pipeline", Callable, package="metasched.kinds"
)
"""The pipeline of each target kind: a function of the target."""
