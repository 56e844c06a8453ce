"""TensorForm: how instructions of one shape lie in the register block of a tiling.

The instructions compute `lanes` results side by side, each the sum of `group` products. One operand
has a value in each lane, the other is shared by all lanes:

    for i in lanes, k in group: C[i] += shared[k] * own[i, k]

The block's innermost reduction is cut into groups. The operand of the lanes is packed in the order
in which the instruction reads it, the group innermost; the copy is an instruction, too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from metasched.analysis.access import accesses
from metasched.analysis.block import AUTO_TENSORIZE, TENSOR_CHOICE, TILED
from metasched.analysis.flops import flops
from metasched.arith.indexmap import IndexMap
from metasched.errors import ScheduleError
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import DType
from metasched.ir.expr import Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block
from metasched.ir.visit import free_vars
from metasched.schedule.handles import BlockRV, ExprRV, LoopRV
from metasched.schedule.intrinsics import TensorIntrin, called
from metasched.schedule.schedule import Schedule
from metasched.schedule.tensorize_mapping import nest_of
from metasched.space.strides import iter_stride, vector_iter

SLOWER = 0.25
"""Instructions slower than this share of the fastest instruction's rate are left out."""


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Instructions of one shape and how they lie in a block.

    Attributes:
        names: the names of the intrinsics, one of which is sampled.
        lanes, group: the number of results of an instruction, and of products in each result.
        own: the type of the operand with a value in each lane.
        structure: the structure of the tiling around the instruction.
    """

    names: tuple[str, ...]
    lanes: int
    group: int
    own: DType
    structure: str

    def without(self, families: Collection[str]) -> TensorForm:
        """The instructions of the form without these families."""
        return replace(self, names=tuple(n for n in self.names if family(n) not in families))

    def place(self, sch: Schedule, loops: Sequence[LoopRV], group: Sequence[LoopRV]) -> None:
        """Unroll the loops of a register block, the lanes last, around instructions."""
        outer, inner = sch.split(loops[-1], [None, self.lanes])
        sch.reorder(*loops[:-1], outer, inner, *group)
        for loop in (*loops[:-1], outer):
            sch.unroll(loop)
        self.mark(sch, inner)

    def mark(self, sch: Schedule, loop: LoopRV) -> BlockRV:
        """Make a block that one instruction computes, and sample the instruction.

        Raises ScheduleError when no instruction of `names` computes the block.
        """
        outer = sch.blockize(loop)
        offer_instructions(sch, outer, self.names)
        sch.annotate(outer, TILED, self.structure)
        return outer

    def strips(self, sch: Schedule, panel: BlockRV, lane: int, width: ExprRV) -> None:
        """Store a panel in strips of `width` columns, in the order in which instructions read it.

        A strip holds its groups in order, and a group holds its columns in order.
        """
        inputs = tuple(Var(f"i{n}") for n in range(len(sch.get(panel).writes[0].region)))
        at, group = inputs[lane], inputs[self.group_of(sch, panel)]
        rest = [i for i in inputs[lane + 1 :] if i is not group]
        before = [i for i in inputs[:lane] if i is not group]
        order = (*before, at // width, *rest, at % width, group)
        sch.transform_layout(panel, ("write", 0), IndexMap(inputs, order))

    def group_of(self, sch: Schedule, panel: BlockRV) -> int:
        """The iterator of a panel that is the group: the last iterator."""
        return len(sch.get(panel).iter_vars) - 1

    def together(self, rows: int, columns: int, registers: int) -> int:
        """The most columns of a panel that are copied at once, where the results of a tile of all
        rows and of these columns fit the registers."""
        for many in (4, 2):
            wide = many * self.lanes
            fits = many * (rows + 1) < registers and columns % wide == 0
            if fits and TensorIntrin.get(self._interleave(wide), allow_missing=True) is not None:
                return wide
        return self.lanes

    def _interleave(self, wide: int, source: DType | None = None) -> str:
        """The name of the intrinsic that copies a group of `wide` columns."""
        kind = self.own if source in (None, self.own) else f"{source}_{self.own}"
        return f"lanes.interleave_{wide}x{self.group}_{kind}"

    def fill(
        self, sch: Schedule, panel: BlockRV, place: LoopRV, depth: int, wide: int | None = None
    ) -> None:
        """Compute a panel at the innermost of `depth` loops, a group of lanes at once.

        Args:
            sch: the schedule.
            panel: the block that copies.
            place: the loop at which the panel is computed.
            depth: how many loops there are down to `place`.
            wide: how many columns are copied at once to registers; None for a panel in memory.
        """
        if wide is not None:
            sch.set_scope(panel, 0, "local")
        node = sch.get(panel)
        used = free_vars(node.writes[0].region[-2].min)
        lane = next(n for n, v in enumerate(node.iter_vars) if v.var in used)
        (source,) = [a for a in accesses(node) if not a.is_write]
        across = iter_stride(source, node.iter_vars[lane].var) == 1
        group = self.group_of(sch, panel)
        sch.compute_at(panel, place, preserve_unit_loops=True)
        loops = list(sch.get_loops(panel)[depth:])
        lanes, last = loops[lane], loops[group]
        rest = [loop for n, loop in enumerate(loops) if n not in (lane, group)]
        outer, inner = sch.split(lanes, [None, wide or self.lanes])
        sch.reorder(*rest, outer, inner, last)
        for loop in () if wide is None else (*rest, outer):
            sch.unroll(loop)
        interleave = self._interleave(wide or self.lanes, source.buffer.dtype)
        if across and TensorIntrin.get(interleave, allow_missing=True) is not None:
            sch.tensorize(inner, interleave)
        else:
            sch.vectorize(last)


def offer_instructions(sch: Schedule, block: BlockRV, names: Sequence[str]) -> None:
    """Note on a block that an instruction computes it; if several instructions fit, sample one.

    Raises ScheduleError if no instruction of `names` computes the block.
    """
    fitting = []
    for name in names:
        probe = sch.copy()
        try:
            probe.tensorize(block, name)
        except ScheduleError as error:
            refused = error.with_traceback(None)
            continue
        fitting.append(name)
    if not fitting:
        try:
            raise refused
        finally:
            del refused  # its traceback holds this frame, and the frame must not hold it
    sch.annotate(block, AUTO_TENSORIZE, ",".join(fitting))
    if len(fitting) > 1:
        shares = [1.0 / _cost(name) ** 2 for name in fitting]
        shares = [share / sum(shares) for share in shares]
        drawn = sch.sample_categorical(list(range(len(fitting))), shares)
        sch.annotate(block, TENSOR_CHOICE, drawn)


Kinds: TypeAlias = tuple[DType, DType]
"""The types of the operand that all lanes share and of the operand of the lanes."""


def forms(
    block: Block, bits: int, features: Collection[str], intrins: Sequence[str] | None = None,
    kinds: Kinds | None = None,
) -> list[TensorForm]:  # fmt: skip
    """The shapes of instructions of a target that may lie in a block, the widest first.

    Args:
        block: an unscheduled block.
        bits: the bits of a vector register.
        features: the features of the target.
        intrins: the names to choose from; None for all registered intrinsics.
        kinds: the types of the operands, by default the types that the block has.
    """
    own = operands(block)
    kinds = kinds or (None if own is None else (own[0].dtype, own[1].dtype))
    found: dict[tuple[int, int, DType], list[str]] = {}
    for name, shape in _fitting(block, bits, features, intrins):
        if (shape[0].dtype, shape[1].dtype) == kinds:
            lanes, group = shape[1].constant_shape() or (0, 0)
            found.setdefault((lanes, group, shape[1].dtype), []).append(name)
    work = {name: _rate(name) for names in found.values() for name in names}
    least = SLOWER * max(work.values(), default=0.0)
    fast = {key: tuple(n for n in names if work[n] >= least) for key, names in found.items()}
    order = sorted(fast, key=lambda key: -key[0])
    return [TensorForm(fast[key], *key, "SSRRSR") for key in order if fast[key]]


def fastest(
    block: Block, bits: int, features: Collection[str], intrins: Sequence[str] | None = None,
    kinds: Kinds | None = None,
) -> float:  # fmt: skip
    """The rate of the fastest instruction for a block's operands (see `_rate`); 0 without one."""
    names = [name for form in forms(block, bits, features, intrins, kinds) for name in form.names]
    return max(map(_rate, names), default=0.0)


def wider_types(
    block: Block, bits: int, features: Collection[str], intrins: Sequence[str] | None = None
) -> dict[DType, float]:
    """Wider types that hold a block's operands and for which the target has instructions, each with
    the rate of the fastest instruction."""
    both = operands(block)
    found: dict[DType, float] = {}
    if both is None:
        return found
    now = {b.dtype for b in both}
    for name, (shared, own, _) in _fitting(block, bits, features, intrins):
        wide = own.dtype
        if shared.dtype is wide and {wide} != now and all(wide.holds(k) for k in now):
            found[wide] = max(found.get(wide, 0.0), _rate(name))
    return found


def _fitting(
    block: Block, bits: int, features: Collection[str], intrins: Sequence[str] | None = None
) -> Iterator[tuple[str, tuple[Buffer, Buffer, Buffer]]]:
    """The intrinsics of a target with the type of a block's result, and the operands of each."""
    for name in TensorIntrin.names() if intrins is None else intrins:
        intrin = TensorIntrin.get(name)
        if intrin.lacks(features):
            continue
        shape = lane_shape(intrin.desc)
        if shape is None:
            continue
        lanes, result = (shape[1].constant_shape() or (0,))[0], shape[2].dtype
        if lanes * result.bits <= bits and block.writes[0].buffer.dtype is result:
            yield name, shape


def _rate(name: str) -> float:
    """How many products an instruction computes in the time of a vector multiply-add."""
    shape = lane_shape(TensorIntrin.get(name).desc)
    assert shape is not None
    return math.prod(shape[1].constant_shape() or ()) / _cost(name)


def family(name: str) -> str:
    """The part of a name that an intrinsic has on all register widths, such as `x86.vnni`."""
    return name.rpartition(".")[0]


def lane_shape(desc: PrimFunc) -> tuple[Buffer, Buffer, Buffer] | None:
    """The shared operand, the operand of the lanes and the result of an intrinsic's description.

    None for a description that is not of the form in the file's docstring.
    """
    _, realize = nest_of(desc)
    if realize is None or len(realize.block.iter_vars) != 2 or len(desc.buffers) != 3:
        return None
    (lane, group) = realize.block.iter_vars
    if not lane.is_spatial or not group.is_reduce:
        return None
    result = realize.block.writes[0].buffer
    loads = {a.buffer: a.indices for a in accesses(realize.block) if a.buffer is not result}
    shared = [b for b, at in loads.items() if at == (group.var,)]
    own = [b for b, at in loads.items() if at == (lane.var, group.var)]
    if len(shared) != 1 or len(own) != 1 or len(loads) != 2:
        return None
    return shared[0], own[0], result


def operands(block: Block) -> tuple[Buffer, Buffer] | None:
    """The operand that all lanes share and the operand of the lanes; None unless the block has one
    of each."""
    vector, result = vector_iter(block), block.writes[0].buffer
    loads = [a for a in accesses(block) if not a.is_write and a.buffer is not result]
    if vector is None:
        return None
    along = [any(vector.var in free_vars(i) for i in a.indices) for a in loads]
    if sorted(along) != [False, True]:
        return None
    buffers = {moves: a.buffer for a, moves in zip(loads, along, strict=True)}
    return buffers[False], buffers[True]


def grouped(sch: Schedule, block: BlockRV, form: TensorForm) -> None:
    """Cut a reduction iterator into groups; the group becomes the last iterator.

    The last reduction along which the shared operand is contiguous is cut. If there is none, the
    last reduction that the group divides is cut, and the operand is copied to be contiguous along
    it. Raises ScheduleError if no reduction can be cut.
    """
    node = sch.get(block)
    vector = vector_iter(node)
    assert vector is not None
    result = node.writes[0].buffer
    (shared,) = [
        a
        for a in accesses(node)
        if a.buffer is not result and not any(vector.var in free_vars(i) for i in a.indices)
    ]
    able = [
        v for v in node.iter_vars if v.is_reduce and not (as_int(v.dom.extent) or 1) % form.group
    ]
    beside = [v for v in able if iter_stride(shared, v.var) == 1]
    if not able:
        why = f"no reduction of {node.name} has a multiple of {form.group} steps"
        raise ScheduleError("use_tensor_instruction", "no-group", why, block_or_loop=node)
    cut = (beside or able)[-1]
    inputs = tuple(Var(v.var.name) for v in node.iter_vars)
    at = inputs[node.iter_vars.index(cut)]
    order = (*(at // form.group if i is at else i for i in inputs), at % form.group)
    if not beside:
        sch.reindex(block, ("read", [r.buffer for r in node.reads].index(shared.buffer)))
    sch.transform_block_layout(block, IndexMap(inputs, order))


def _cost(name: str) -> float:
    """The cost of an implementation, in vector multiply-adds.

    The sum of the declared costs of the machine instructions that it calls; without a declared
    cost, the number of its operations on each result.
    """
    intrin = TensorIntrin.get(name)
    declared = [op.cost for op in called(intrin.impl)]
    if declared:
        return max(0.25, sum(declared))
    _, realize = nest_of(intrin.desc)
    results = () if realize is None else realize.block.writes[0].buffer.constant_shape()
    return max(0.25, flops(intrin.impl) / 2 / math.prod(results or ()))
