"""One schedule primitive (or family) a file; this front lists them all."""

from metasched.schedule.primitives.annotate import annotate, unannotate
from metasched.schedule.primitives.blockize import blockize
from metasched.schedule.primitives.buffer_access import (
    annotate_buffer_access,
    unsafe_hide_buffer_access,
)
from metasched.schedule.primitives.cache import cache_read, cache_write
from metasched.schedule.primitives.cache_index import cache_index
from metasched.schedule.primitives.cache_inplace import cache_inplace
from metasched.schedule.primitives.compute_at import compute_at, reverse_compute_at
from metasched.schedule.primitives.compute_location import sample_compute_location
from metasched.schedule.primitives.copy_at import read_at, write_at
from metasched.schedule.primitives.decompose_padding import decompose_padding
from metasched.schedule.primitives.decompose_reduction import decompose_reduction
from metasched.schedule.primitives.fuse import fuse
from metasched.schedule.primitives.fuse_reduction_epilogue import fuse_reduction_epilogue
from metasched.schedule.primitives.inline import compute_inline, reverse_compute_inline
from metasched.schedule.primitives.loop_kind import bind, parallel, unroll, vectorize
from metasched.schedule.primitives.loop_partition import loop_partition
from metasched.schedule.primitives.merge import merge
from metasched.schedule.primitives.overcompute import overcompute
from metasched.schedule.primitives.pad_einsum import pad_einsum
from metasched.schedule.primitives.query import (
    get_block,
    get_child_blocks,
    get_consumers,
    get_loops,
    get_output_blocks,
    get_producers,
)
from metasched.schedule.primitives.reindex import reindex
from metasched.schedule.primitives.reindex_cache import reindex_cache_read, reindex_cache_write
from metasched.schedule.primitives.reorder import reorder
from metasched.schedule.primitives.reorder_block_iter_var import reorder_block_iter_var
from metasched.schedule.primitives.rfactor import rfactor
from metasched.schedule.primitives.rolling_buffer import rolling_buffer
from metasched.schedule.primitives.sample import (
    enter_postproc,
    require,
    sample_categorical,
    sample_padded_tile,
    sample_partitioned_tile,
    sample_perfect_tile,
)
from metasched.schedule.primitives.split import split
from metasched.schedule.primitives.storage import set_scope
from metasched.schedule.primitives.storage_align import storage_align
from metasched.schedule.primitives.tensorize import tensorize
from metasched.schedule.primitives.transform_block_layout import transform_block_layout
from metasched.schedule.primitives.transform_layout import transform_layout
from metasched.schedule.primitives.unit_loop import add_unit_loop
from metasched.schedule.primitives.unsafe_set_dtype import unsafe_set_dtype

__all__ = [
    "add_unit_loop", "annotate", "annotate_buffer_access", "bind", "blockize", "cache_index",
    "cache_inplace", "cache_read", "cache_write", "compute_at", "compute_inline",
    "decompose_padding", "decompose_reduction", "enter_postproc", "fuse",
    "fuse_reduction_epilogue", "get_block", "get_child_blocks", "get_consumers", "get_loops",
    "get_output_blocks", "get_producers", "loop_partition", "merge", "overcompute", "pad_einsum",
    "parallel",
    "read_at", "reindex", "reindex_cache_read", "reindex_cache_write", "reorder",
    "reorder_block_iter_var", "require", "reverse_compute_at", "reverse_compute_inline", "rfactor",
    "rolling_buffer", "sample_categorical", "sample_compute_location", "sample_padded_tile",
    "sample_partitioned_tile",
    "sample_perfect_tile", "set_scope", "split", "storage_align", "tensorize",
    "transform_block_layout", "transform_layout", "unannotate", "unroll",
    "unsafe_hide_buffer_access", "unsafe_set_dtype", "vectorize", "write_at",
]  # fmt: skip
