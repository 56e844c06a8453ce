"""One schedule primitive (or family) a file; this front lists them all."""

from metasched.schedule.primitives.annotate import annotate, unannotate
from metasched.schedule.primitives.fuse import fuse
from metasched.schedule.primitives.loop_kind import bind, parallel, unroll, vectorize
from metasched.schedule.primitives.query import (
    get_block,
    get_child_blocks,
    get_consumers,
    get_loops,
    get_output_blocks,
    get_producers,
)
from metasched.schedule.primitives.reorder import reorder
from metasched.schedule.primitives.sample import (
    enter_postproc,
    require,
    sample_categorical,
    sample_partitioned_tile,
    sample_perfect_tile,
)
from metasched.schedule.primitives.split import split
from metasched.schedule.primitives.unit_loop import add_unit_loop

__all__ = [
    "add_unit_loop",
    "annotate",
    "bind",
    "enter_postproc",
    "fuse",
    "get_block",
    "get_child_blocks",
    "get_consumers",
    "get_loops",
    "get_output_blocks",
    "get_producers",
    "parallel",
    "reorder",
    "require",
    "sample_categorical",
    "sample_partitioned_tile",
    "sample_perfect_tile",
    "split",
    "unannotate",
    "unroll",
    "vectorize",
]
