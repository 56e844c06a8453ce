"""The mutators of CPU targets and their weights."""

from __future__ import annotations

from metasched.mutate.base import MUTATORS, Weighted
from metasched.mutate.choice import (
    mutate_categorical,
    mutate_compute_location,
    mutate_parallel,
    mutate_unroll,
)
from metasched.mutate.tile_size import MutateTileSize
from metasched.target import Target


def cpu_mutators(target: Target) -> Weighted:
    """Mostly tile sizes; the reference's weights, with vector widths as a decision of their own."""
    return (
        (MutateTileSize(), 0.84),
        (mutate_categorical, 0.07),
        (mutate_compute_location, 0.03),
        (mutate_unroll, 0.03),
        (mutate_parallel, 0.03),
    )


MUTATORS.register("cpu", cpu_mutators)
