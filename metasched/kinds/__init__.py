"""kinds: one row for each kind of target, and the functions that ask for a target's row."""

from metasched.kinds import cpu as cpu
from metasched.kinds.table import (
    SPACES,
    SpaceOf,
    default_modules,
    default_mutators,
    default_postprocs,
    default_space,
    default_trace,
    space_of,
)

__all__ = [
    "SPACES",
    "SpaceOf",
    "default_modules",
    "default_mutators",
    "default_postprocs",
    "default_space",
    "default_trace",
    "space_of",
]
