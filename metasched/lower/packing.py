"""packing: split a program into its kernel and a function that packs the constant weights.

A parameter listed in the attribute `layout_free_buffers` is a constant weight: it is the same in
every call. A schedule may copy it into a layout of its choice, in a root-level block annotated
PREPROC. The scheduled program still takes the weight as the user has it. Before code generation
the two parts are taken apart:

    def f(X, W, Y):                          def f_pack(W, W_packed):
        P = alloc_buffer(...)                    for ...: W_packed[...] = W[...]
        for ...: P[...] = W[...]  # PREPROC
        for ...: Y[...] += X[...] * P[...]   def f(X, W, Y):  # W in the layout of W_packed
                                                 for ...: Y[...] += X[...] * W[...]

so that `f_pack` runs once, ahead of time, and `f(X, f_pack(W), Y)` computes what the program says.
`f_pack` copies a constant weight that no block packs, so callers need not know what the schedule
packs. After TVM's layout_rewrite_preproc and SplitLayoutRewritePreproc.

    split_packing(func)            here: Packing(main, pack), None without constant weights
    compile_func(func)             codegen: both in one object; `Signature.pack` describes `f_pack`
    RewriteLayout()(sch, target)   postproc: makes the annotated blocks, in every candidate
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasched.analysis.scope import Child, collect
from metasched.errors import LowerError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.expr import Expr, IntImm, Var
from metasched.ir.func import LAYOUT_FREE, PrimFunc
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    SeqStmt,
    Stmt,
    evolve,
    frozen,
    seq,
)
from metasched.ir.verify_rules import wrong_marks
from metasched.ir.visit import map_exprs, replace_loads, substitute_buffers, walk

PREPROC = "meta_schedule.layout_rewrite_preproc"
"""The annotation of blocks that run ahead of time."""


@dataclass(frozen=True, slots=True)
class Packing:
    """A program in its two parts.

    Attributes:
        main: the kernel; its parameters are the packed weights instead of the constant weights.
        pack: its parameters are the constant weights, in the order in which the attribute lists
            them, then the packed weights.
    """

    main: PrimFunc
    pack: PrimFunc


def split_packing(func: PrimFunc) -> Packing | None:
    """Move the blocks that pack constant weights into a function of their own; None if the function
    has no constant weights.

    Raises LowerError if `layout_free_buffers` marks a wrong parameter, or a block annotated PREPROC
    cannot run ahead of time.
    """
    for complaint in wrong_marks(func):
        raise LowerError(complaint)
    ahead, rest = _parts(func)
    weights = func.constants
    if ahead and not weights:
        raise _refusal(ahead[0], f"no parameter is marked as constant by {LAYOUT_FREE}")
    if not weights:
        return None
    source = _sources(func, ahead)
    chosen = _packed(source, rest)
    params = {w: _as_parameter(w, chosen.get(w)) for w in weights}
    body = seq(rest) if chosen else func.body
    for old, new in ((chosen.get(w, w), params[w]) for w in weights):
        body = _stored_as(body, old, new)
    if chosen:
        allocs = tuple(b for b in func.root.alloc_buffers if b not in source)
        body = BlockRealize.plain(evolve(func.root, body=body, alloc_buffers=allocs))
    attrs = frozen({k: v for k, v in func.attrs.items() if k != LAYOUT_FREE})
    main = PrimFunc(
        tuple(params.get(p, p) if isinstance(p, Buffer) else p for p in func.params),
        body, attrs, func.ret_type,
    )  # fmt: skip
    return Packing(main, _pack_function(func, ahead, chosen, params))


def _parts(func: PrimFunc) -> tuple[list[Child], list[Stmt]]:
    """The blocks that run ahead of time, and the other statements."""
    if not func.is_schedulable:
        return [], []
    body = func.root.body
    ahead: list[Child] = []
    rest: list[Stmt] = []
    for item in body.items if isinstance(body, SeqStmt) else (body,):
        children, loose = collect([item])
        marked = [c for c in children if c.block.annotations.get(PREPROC)]
        if not marked:
            rest.append(item)
        elif loose or len(marked) < len(children):
            raise _refusal(marked[0], "it shares its loops with what does not")
        ahead += marked
    return ahead, rest


def _refusal(child: Child, why: str) -> LowerError:
    return LowerError(
        f"block {child.block.name} is annotated {PREPROC} and cannot run ahead of time: {why}"
    )


def _sources(func: PrimFunc, ahead: Sequence[Child]) -> dict[Buffer, Buffer]:
    """Map each buffer that is written ahead of time to the constant weight that it is made from."""
    source: dict[Buffer, Buffer] = {}
    for child in ahead:
        block = child.block
        read = {r.buffer for r in block.reads} - {r.buffer for r in block.writes}
        foreign = [b for b in read if b not in func.constants and b not in source]
        if foreign:
            name = foreign[0].name
            raise _refusal(child, f"it reads {name}, which is not made of a constant weight")
        origins = {source.get(b, b) for b in read}
        if len(origins) != 1:
            raise _refusal(child, "it does not read exactly one constant weight")
        for region in block.writes:
            if region.buffer not in func.root.alloc_buffers:
                raise _refusal(child, f"it writes {region.buffer.name}, which is no buffer of the "
                                      "root block")  # fmt: skip
            source[region.buffer] = next(iter(origins))
    return source


def _packed(source: dict[Buffer, Buffer], rest: Sequence[Stmt]) -> dict[Buffer, Buffer]:
    """Map each packed weight to the one buffer in which the kernel finds the packed elements."""
    read, written = set(), set()
    for node in (n for stmt in rest for n in walk(stmt)):
        if isinstance(node, BufferLoad):
            read.add(node.buffer)
        elif isinstance(node, BufferStore):
            written.add(node.buffer)
        elif isinstance(node, Block):
            read |= {r.buffer for r in node.reads} | {m.source.buffer for m in node.match_buffers}
            written |= {r.buffer for r in node.writes}
    chosen: dict[Buffer, Buffer] = {}
    for buffer, weight in source.items():
        if buffer in written:
            raise LowerError(f"{buffer.name} is packed ahead of time and written by the kernel")
        if buffer in read:
            if weight in chosen or weight in read:
                raise LowerError(
                    f"the kernel needs the constant weight {weight.name} in two layouts; "
                    "pack it for all of its readers or for none"
                )
            chosen[weight] = buffer
    unused = [b for b in source.values() if b not in chosen]
    if unused:
        raise LowerError(f"{unused[0].name} is packed ahead of time and the result is not used")
    return chosen


def _as_parameter(weight: Buffer, packed: Buffer | None) -> Buffer:
    """The kernel's parameter for a packed buffer, under the weight's name. Its shape differs from
    the weight's, so an unpacked weight is never taken for a packed one."""
    if packed is None:
        plain = not weight.strides and weight.elem_offset is None
        return weight if plain else Buffer(weight.name, weight.shape, weight.dtype)
    shape = packed.shape
    if shape == weight.shape:
        shape = (IntImm(shape[0].dtype if shape else "int32", 1), *shape)
    return Buffer(weight.name, shape, packed.dtype)


def _stored_as(body: Stmt, old: Buffer, new: Buffer) -> Stmt:
    """Replace `old` by `new` in `body`; `new` may have an additional first dimension of extent
    one."""
    if old is new:
        return body
    if len(old.shape) == len(new.shape):
        return substitute_buffers(body, {old: new})
    zero = IntImm(new.shape[0].dtype, 0)
    first = Range(zero, IntImm(zero.dtype, 1))

    def moved(load: BufferLoad) -> Expr:
        return BufferLoad(new, (zero, *load.indices), load.predicate)

    def region(r: BufferRegion) -> BufferRegion:
        return BufferRegion(new, (first, *r.region)) if r.buffer is old else r

    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, Block):
            if any(m.source.buffer is old for m in node.match_buffers):
                raise LowerError(f"{node.name} takes a view of {old.name}, which is packed")
            reads, writes = tuple(map(region, node.reads)), tuple(map(region, node.writes))
            return evolve(node, reads=reads, writes=writes)
        if isinstance(node, BufferStore) and node.buffer is old:
            return evolve(node, buffer=new, indices=(zero, *node.indices))
        return None

    return map_exprs(body, lambda e: replace_loads(e, old, moved), on_stmt)


def _pack_function(
    func: PrimFunc,
    ahead: Sequence[Child],
    chosen: dict[Buffer, Buffer],
    params: dict[Buffer, Buffer],
) -> PrimFunc:
    """The function that fills the packed weights."""
    targets = {w: Buffer(f"{w.name}_packed", params[w].shape, params[w].dtype) for w in params}
    outermost = [c.loops[0] if c.loops else c.realize for c in ahead]
    nests: list[Stmt] = [n for k, n in enumerate(outermost) if k == 0 or n is not outermost[k - 1]]
    body = seq([*nests, *(_copy(w, targets[w]) for w in params if w not in chosen)])
    for weight, packed in chosen.items():
        body = _stored_as(body, packed, targets[weight])
    held = dict.fromkeys(r.buffer for c in ahead for r in c.block.writes)
    allocs = tuple(b for b in held if b not in chosen.values())
    root = Block("root", (), (), (), body, alloc_buffers=allocs)
    symbol = func.attrs.get("global_symbol", "main")
    attrs = frozen({"global_symbol": f"{symbol}_pack", "tir.noalias": True})
    return PrimFunc((*params, *targets.values()), BlockRealize.plain(root), attrs)


def _copy(source: Buffer, target: Buffer) -> Stmt:
    """Copy every element of one buffer into another of the same shape."""
    loops = [(Var(f"i{n}", extent.dtype), extent) for n, extent in enumerate(target.shape)]
    point = tuple(var for var, _ in loops)
    body: Stmt = BufferStore(target, BufferLoad(source, point), point)
    for var, extent in reversed(loops):
        body = For.serial(var, extent, body)
    return body
