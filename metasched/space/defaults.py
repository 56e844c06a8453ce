"""The default modules of a target, and the schedule that is used before any search."""

from __future__ import annotations

from metasched.errors import TargetError
from metasched.space.module import Module, user_modules
from metasched.space.modules.auto_inline import AutoInline, InlineConstantScalars
from metasched.space.modules.compute_location import FuseRows, RandomComputeLocation, StageAtTile
from metasched.space.modules.custom_rule import ApplyCustomRule
from metasched.space.modules.depth_blocking import DepthBlocking
from metasched.space.modules.matrix_form import MatrixForm
from metasched.space.modules.multi_level_tiling import MultiLevelTiling, Reuse
from metasched.space.modules.parallel_vectorize_unroll import ParallelVectorizeUnroll
from metasched.space.modules.prefetch import PrefetchRows
from metasched.space.modules.register_tiling import RegisterTiling
from metasched.space.modules.rfactor import AddRFactor, VectorReduction
from metasched.space.modules.transposition import TileTransposition
from metasched.space.zero_search import default_trace
from metasched.target import Target

__all__ = ["default_modules", "default_trace", "reference_modules"]


def default_modules(target: Target) -> tuple[Module, ...]:
    """The modules of a target: those users registered for it first, then the built-in ones.

    Raises TargetError for a target that has none.
    """
    if target.kind != "cpu":
        raise TargetError(f"there is no default space for targets of kind {target.kind!r}")
    return (*user_modules(target), *_cpu(target))


def _cpu(target: Target) -> tuple[Module, ...]:
    """Register blocks for what reuses data, vector lanes for reductions, rows kept in the cache."""
    bits = target.vector_bits
    blocks = RegisterTiling(
        bits, target.vector_registers, target.num_cores, max(target.l2_bytes, 1 << 18)
    )
    return (
        ApplyCustomRule(target),
        InlineConstantScalars(),
        AutoInline(),
        MatrixForm(bits),
        DepthBlocking(blocks),
        blocks,
        AddRFactor(target.num_cores),
        VectorReduction(bits, target.vector_registers),
        MultiLevelTiling(reuse_write=Reuse("may", (1, 2), "global")),
        FuseRows(),
        StageAtTile(bits),
        TileTransposition(bits),
        PrefetchRows(),
        ParallelVectorizeUnroll(target.num_cores, vector_bits=bits),
    )


def reference_modules(target: Target) -> tuple[Module, ...]:
    """The classical space of MetaSchedule for CPUs, for comparison."""
    return (
        ApplyCustomRule(target),
        InlineConstantScalars(),
        AutoInline(),
        AddRFactor(target.num_cores),
        MultiLevelTiling("SSRSRS", 64, reuse_write=Reuse("may", (1, 2), "global")),
        ParallelVectorizeUnroll(
            target.num_cores, (16,), target.vector_bits, (1,), unroll=(0, 16, 64, 512)
        ),
        RandomComputeLocation(),
    )
