"""The postprocs of CPU targets, in their order."""

from __future__ import annotations

from metasched.postproc.base import POSTPROCS, Postproc
from metasched.postproc.dynamic_loop import DisallowDynamicLoop
from metasched.postproc.parallel_vectorize_unroll import RewriteParallelVectorizeUnroll
from metasched.postproc.reduction_block import RewriteReductionBlock
from metasched.postproc.rewrite_layout import RewriteLayout
from metasched.postproc.size_limits import LimitCode, LimitStack, LimitVector
from metasched.target import Target


def cpu_postprocs(target: Target) -> tuple[Postproc, ...]:
    """Cheap rejections first, then the rewriting, then the rejections that depend on it."""
    return (
        DisallowDynamicLoop(),
        RewriteParallelVectorizeUnroll(),
        LimitVector(),
        LimitCode(),
        RewriteReductionBlock(),
        RewriteLayout(),
        LimitStack(),
    )


POSTPROCS.register("cpu", cpu_postprocs)
