"""The row of CPU targets: modules, postprocs, mutators, default schedule and features."""

from __future__ import annotations

from metasched.config import Config
from metasched.cost.features import CPU_FEATURE_SET
from metasched.ir.func import PrimFunc
from metasched.kinds.table import SPACES, SpaceOf
from metasched.measure.candidate import Builder, Runner
from metasched.measure.given import GivenData
from metasched.measure.local import LocalRunner
from metasched.measure.settings import MeasureOptions
from metasched.mutate.choice import (
    mutate_categorical,
    mutate_compute_location,
    mutate_parallel,
    mutate_unroll,
)
from metasched.mutate.tile_size import MutateTileSize
from metasched.postproc.dynamic_loop import DisallowDynamicLoop
from metasched.postproc.parallel_vectorize_unroll import RewriteParallelVectorizeUnroll
from metasched.postproc.reduction_block import RewriteReductionBlock
from metasched.postproc.rewrite_layout import RewriteLayout
from metasched.postproc.size_limits import LimitCode, LimitStack, LimitVector
from metasched.postproc.tensorize import RewriteTensorize
from metasched.schedule.plugin import Postproc, Weighted
from metasched.space.combinators import chain
from metasched.space.default_schedule import vectors_and_threads
from metasched.space.module import Module
from metasched.space.modules.auto_inline import AutoInline, InlineConstantScalars
from metasched.space.modules.blocked_elimination import BlockedElimination
from metasched.space.modules.compute_location import FuseRows, RandomComputeLocation, StageAtTile
from metasched.space.modules.custom_rule import ApplyCustomRule
from metasched.space.modules.cut_digits import CutDigits
from metasched.space.modules.depth_blocking import DepthBlocking
from metasched.space.modules.enclose_statements import EncloseStatements
from metasched.space.modules.interleave import Interleave
from metasched.space.modules.join_iterators import JoinIterators
from metasched.space.modules.loop_distribution import LoopDistribution
from metasched.space.modules.matrix_form import MatrixForm
from metasched.space.modules.multi_level_tiling import MultiLevelTiling, Reuse
from metasched.space.modules.multi_level_tiling_with_intrin import MultiLevelTilingWithIntrin
from metasched.space.modules.narrow_operands import NarrowOperands
from metasched.space.modules.overlapped_tiling import OverlappedTiling
from metasched.space.modules.parallel_vectorize_unroll import ParallelVectorizeUnroll
from metasched.space.modules.pivot import Pivot
from metasched.space.modules.prefetch import PrefetchRows
from metasched.space.modules.ragged_tiling import RaggedTiling
from metasched.space.modules.register_tiling import RegisterTiling
from metasched.space.modules.rfactor import AddRFactor, VectorReduction
from metasched.space.modules.rolling_update import RollingUpdate
from metasched.space.modules.row_blocks import FuseRowBlocks
from metasched.space.modules.row_elimination import RowElimination
from metasched.space.modules.scan import VectorScan
from metasched.space.modules.scatter import Scatter
from metasched.space.modules.scatter_to_gather import ScatterToGather
from metasched.space.modules.separate_phases import SeparatePhases
from metasched.space.modules.separate_windows import SeparateWindows
from metasched.space.modules.skip_zeros import SkipZeros
from metasched.space.modules.stage_values import StageValues
from metasched.space.modules.step_blocks import StepBlocks
from metasched.space.modules.step_over_zeros import StepOverZeros
from metasched.space.modules.tensor_instruction import UseTensorInstruction
from metasched.space.modules.time_tiling import TimeTiling
from metasched.space.modules.transposition import TileTransposition
from metasched.space.modules.turned_operands import TurnedOperands
from metasched.space.modules.vector_rows import VectorRows
from metasched.space.modules.vector_update import VectorUpdate
from metasched.space.modules.wavefront import Wavefront
from metasched.space.modules.whole_iterations import WholeIterations
from metasched.space.modules.widen_operands import WidenOperands
from metasched.space.modules.zero_points import ZeroPoints
from metasched.target import Target, cpu_of


def cpu_modules(target: Target) -> tuple[Module, ...]:
    """Register blocks for what reuses data, vector lanes for reductions, rows kept in the cache.

    The order carries meaning: what prepares programs comes first (`_preparing`); fusing and
    staging fill tiles; the loop kinds come last.
    """
    cpu = cpu_of(target)
    bits, cores = cpu.vector_bits, cpu.num_cores
    blocks = RegisterTiling(bits, cpu.vector_registers, cpu.num_cores, max(cpu.l2_bytes, 1 << 18))
    rows = FuseRowBlocks(cpu.num_cores, max(cpu.l2_bytes, 1 << 18))
    return (
        *_preparing(target, rows),
        NarrowOperands(),
        ZeroPoints(),
        MatrixForm(bits),
        WidenOperands(),
        UseTensorInstruction(DepthBlocking(blocks), target.features),
        MultiLevelTilingWithIntrin(
            features=target.features, vector_bits=bits, registers=cpu.vector_registers, cores=cores
        ),
        DepthBlocking(blocks),
        blocks,
        AddRFactor(target.num_cores),
        VectorReduction(bits, cpu.vector_registers),
        VectorScan(bits, cores=cpu.num_cores),
        Scatter(cpu.num_cores, bits),
        RaggedTiling(bits, cpu.vector_registers, cpu.num_cores),
        VectorUpdate(bits),
        Pivot(cpu.num_cores, bits),
        Wavefront(cpu.num_cores),
        VectorRows(bits, cache_bytes=max(cpu.l1_bytes, 1 << 15)),
        Interleave(),
        MultiLevelTiling(reuse_write=Reuse("may", (1, 2), "global")),
        FuseRows(),
        StageAtTile(bits),
        TileTransposition(bits),
        PrefetchRows(),
        ParallelVectorizeUnroll(target.num_cores, vector_bits=bits),
    )


def _preparing(target: Target, rows: FuseRowBlocks) -> tuple[Module, ...]:
    """What gives programs the nests and stages that are tiled then.

    Conditions in sums become conditions of statements, which all that follows reads. Distribution
    comes early, because tiling needs a nest for each block; windows are gathered before it, because
    it gives sums buffers of their own, and after it, in the nests that it separated; whole
    iterations in lanes are offered for what it left together; zeros between inputs are stepped over
    before inlining hides their stage, and slow values of sums get stages after it, as do copies of
    operands; iterators are joined before inlining, whose results have the indices of their
    consumers; inlining comes before tiling, which sees fewer blocks then, but after overlapped
    tiling, which keeps stages that neighbours share.
    """
    cpu = cpu_of(target)
    bits, cores = cpu.vector_bits, cpu.num_cores
    return (
        ApplyCustomRule(target),
        EncloseStatements(),
        SkipZeros(),
        ScatterToGather(),
        LoopDistribution(),
        ScatterToGather(),
        StepBlocks(),
        WholeIterations(bits),
        TimeTiling(cores, max(cpu.l2_bytes, 1 << 18)),
        RowElimination(cores),
        BlockedElimination(bits, cpu.vector_registers, cores),
        StepOverZeros(),
        JoinIterators(),
        InlineConstantScalars(),
        OverlappedTiling(bits),
        AutoInline(),
        chain(StageValues(), SeparatePhases(), TurnedOperands()),
        CutDigits(),
        SeparateWindows(),
        RollingUpdate(rows),
        rows,
    )


def reference_modules(target: Target) -> tuple[Module, ...]:
    """The classical space of MetaSchedule for CPUs, for comparison."""
    return (
        ApplyCustomRule(target),
        StepOverZeros(),
        InlineConstantScalars(),
        AutoInline(),
        AddRFactor(target.num_cores),
        MultiLevelTiling("SSRSRS", 64, reuse_write=Reuse("may", (1, 2), "global")),
        ParallelVectorizeUnroll(
            target.num_cores, (16,), cpu_of(target).vector_bits, (1,), unroll=(0, 16, 64, 512)
        ),
        RandomComputeLocation(),
    )


def cpu_postprocs(target: Target) -> tuple[Postproc, ...]:
    """Cheap rejections first, then the rewriting, then the rejections that depend on it."""
    return (
        DisallowDynamicLoop(),
        RewriteParallelVectorizeUnroll(),
        LimitVector(),
        LimitCode(),
        RewriteReductionBlock(),
        RewriteTensorize(),
        RewriteLayout(),
        LimitStack(),
    )


def cpu_mutators(target: Target) -> Weighted:
    """Mostly tile sizes; MetaSchedule's weights, with vector widths as a decision of their own."""
    return (
        (MutateTileSize(), 0.84),
        (mutate_categorical, 0.07),
        (mutate_compute_location, 0.03),
        (mutate_unroll, 0.03),
        (mutate_parallel, 0.03),
    )


def cpu_runner(
    func: PrimFunc, target: Target, settings: Config, by_default: PrimFunc | None,
    builder: Builder | None = None, given: GivenData | None = None,
) -> Runner:  # fmt: skip
    """Measures on this machine, in isolated processes."""
    values = {} if given is None else {"data": given.arrays, "scalars": given.scalars}
    options = MeasureOptions.of(settings, cores=target.num_cores, **values)
    return LocalRunner(func, target, options, by_default, builder=builder)


SPACES.register(
    "cpu",
    SpaceOf(
        cpu_modules, cpu_postprocs, cpu_mutators, vectors_and_threads, CPU_FEATURE_SET, cpu_runner
    ),
)
