"""Lists every schedule primitive as a method of a schedule; each one has its own file.

A new primitive is imported here and has a row in `Methods`. Its own file holds the rest: signature,
docstring, conditions, and the arguments with which it is tried.
"""

from metasched.schedule.instruction import recorded
from metasched.schedule.primitives.annotate import annotate, unannotate
from metasched.schedule.primitives.blockize import blockize
from metasched.schedule.primitives.buffer_access import (
    annotate_buffer_access,
    unsafe_hide_buffer_access,
)
from metasched.schedule.primitives.cache import cache_read, cache_write
from metasched.schedule.primitives.cache_index import cache_index
from metasched.schedule.primitives.cache_inplace import cache_inplace
from metasched.schedule.primitives.cache_update import cache_update
from metasched.schedule.primitives.cache_values import cache_values
from metasched.schedule.primitives.chain_sum import chain_sum
from metasched.schedule.primitives.compute_at import compute_at, reverse_compute_at
from metasched.schedule.primitives.compute_location import sample_compute_location
from metasched.schedule.primitives.copy_at import read_at, write_at
from metasched.schedule.primitives.cut_loop import cut_loop
from metasched.schedule.primitives.decompose_padding import decompose_padding
from metasched.schedule.primitives.decompose_reduction import decompose_reduction
from metasched.schedule.primitives.decompose_scan import decompose_scan
from metasched.schedule.primitives.delay import delay
from metasched.schedule.primitives.enclose import enclose
from metasched.schedule.primitives.expand_buffer import expand_buffer
from metasched.schedule.primitives.expand_reduction import expand_reduction
from metasched.schedule.primitives.expand_running_value import expand_running_value
from metasched.schedule.primitives.fission import decompose_outputs, fission
from metasched.schedule.primitives.fuse import fuse
from metasched.schedule.primitives.fuse_reduction_epilogue import fuse_reduction_epilogue
from metasched.schedule.primitives.inline import compute_inline, reverse_compute_inline
from metasched.schedule.primitives.join_loops import join_loops
from metasched.schedule.primitives.keep_in_result import keep_in_result
from metasched.schedule.primitives.loop_kind import bind, parallel, unroll, vectorize
from metasched.schedule.primitives.loop_partition import loop_partition
from metasched.schedule.primitives.merge import merge
from metasched.schedule.primitives.narrow_loop import narrow_loop
from metasched.schedule.primitives.overcompute import overcompute
from metasched.schedule.primitives.overcompute_box import overcompute_box
from metasched.schedule.primitives.pad_einsum import pad_einsum
from metasched.schedule.primitives.partition_at import partition_at
from metasched.schedule.primitives.privatize_reduction import privatize_reduction
from metasched.schedule.primitives.privatize_update import privatize_update
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
from metasched.schedule.primitives.right_looking import right_looking
from metasched.schedule.primitives.rolling_buffer import rolling_buffer
from metasched.schedule.primitives.rolling_update import rolling_update
from metasched.schedule.primitives.sample import (
    enter_postproc,
    require,
    sample_categorical,
    sample_padded_tile,
    sample_partitioned_tile,
    sample_perfect_tile,
)
from metasched.schedule.primitives.separate_window import separate_window
from metasched.schedule.primitives.skew import skew
from metasched.schedule.primitives.skip_unused import skip_unused
from metasched.schedule.primitives.skip_zeros import skip_zeros
from metasched.schedule.primitives.split import split
from metasched.schedule.primitives.step_over_zeros import step_over_zeros
from metasched.schedule.primitives.storage import set_scope
from metasched.schedule.primitives.storage_align import storage_align
from metasched.schedule.primitives.tensorize import tensorize
from metasched.schedule.primitives.transform_block_layout import transform_block_layout
from metasched.schedule.primitives.transform_layout import transform_layout
from metasched.schedule.primitives.unblockize import unblockize
from metasched.schedule.primitives.unit_loop import add_unit_loop
from metasched.schedule.primitives.unsafe_set_dtype import (
    narrow_dtype,
    unsafe_set_dtype,
    widen_dtype,
)


class Methods:
    """The primitives as methods of a schedule: each runs on its state and is recorded in its trace.

    Written out, so that type checkers and editors know every signature. Primitives of plug-ins are
    found by name (`Schedule.__getattr__`).
    """

    get_block = get_sblock = recorded(get_block)
    get_loops = recorded(get_loops)
    get_child_blocks = recorded(get_child_blocks)
    get_producers = recorded(get_producers)
    get_consumers = recorded(get_consumers)
    get_output_blocks = recorded(get_output_blocks)

    sample_categorical = recorded(sample_categorical)
    sample_perfect_tile = recorded(sample_perfect_tile)
    sample_partitioned_tile = recorded(sample_partitioned_tile)
    sample_padded_tile = recorded(sample_padded_tile)
    sample_compute_location = recorded(sample_compute_location)
    require = recorded(require)
    enter_postproc = recorded(enter_postproc)

    split = recorded(split)
    fuse = recorded(fuse)
    reorder = recorded(reorder)
    skew = recorded(skew)
    narrow_loop = recorded(narrow_loop)
    delay = recorded(delay)
    enclose = recorded(enclose)
    add_unit_loop = recorded(add_unit_loop)
    parallel = recorded(parallel)
    vectorize = recorded(vectorize)
    unroll = recorded(unroll)
    bind = recorded(bind)
    annotate = recorded(annotate)
    unannotate = recorded(unannotate)

    compute_at = recorded(compute_at)
    reverse_compute_at = recorded(reverse_compute_at)
    compute_inline = recorded(compute_inline)
    reverse_compute_inline = recorded(reverse_compute_inline)
    cache_read = recorded(cache_read)
    cache_write = recorded(cache_write)
    decompose_reduction = recorded(decompose_reduction)
    rfactor = recorded(rfactor)
    separate_window = recorded(separate_window)
    step_over_zeros = recorded(step_over_zeros)
    skip_zeros = recorded(skip_zeros)
    decompose_scan = recorded(decompose_scan)
    expand_buffer = recorded(expand_buffer)
    expand_running_value = recorded(expand_running_value)
    keep_in_result = recorded(keep_in_result)
    expand_reduction = recorded(expand_reduction)
    chain_sum = recorded(chain_sum)
    privatize_reduction = recorded(privatize_reduction)
    privatize_update = recorded(privatize_update)
    set_scope = recorded(set_scope)
    blockize = recorded(blockize)
    unblockize = recorded(unblockize)
    tensorize = recorded(tensorize)
    merge = recorded(merge)
    fission = recorded(fission)
    decompose_outputs = recorded(decompose_outputs)
    loop_partition = recorded(loop_partition)
    cut_loop = recorded(cut_loop)
    join_loops = recorded(join_loops)
    right_looking = recorded(right_looking)
    partition_at = recorded(partition_at)
    skip_unused = recorded(skip_unused)
    rolling_buffer = recorded(rolling_buffer)
    rolling_update = recorded(rolling_update)
    read_at = recorded(read_at)
    write_at = recorded(write_at)
    fuse_reduction_epilogue = recorded(fuse_reduction_epilogue)
    reorder_block_iter_var = recorded(reorder_block_iter_var)
    reindex = recorded(reindex)
    reindex_cache_read = recorded(reindex_cache_read)
    reindex_cache_write = recorded(reindex_cache_write)
    cache_inplace = recorded(cache_inplace)
    cache_update = recorded(cache_update)
    cache_index = recorded(cache_index)
    cache_values = recorded(cache_values)
    storage_align = recorded(storage_align)
    unsafe_set_dtype = recorded(unsafe_set_dtype)
    widen_dtype = recorded(widen_dtype)
    narrow_dtype = recorded(narrow_dtype)
    annotate_buffer_access = recorded(annotate_buffer_access)
    unsafe_hide_buffer_access = recorded(unsafe_hide_buffer_access)
    transform_block_layout = recorded(transform_block_layout)
    pad_einsum = recorded(pad_einsum)
    overcompute = recorded(overcompute)
    overcompute_box = recorded(overcompute_box)
    decompose_padding = recorded(decompose_padding)
    transform_layout = recorded(transform_layout)
