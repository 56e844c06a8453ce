"""Programs in TVM's JSON (`tvm.ir.save_json`, TVM 0.26) as IR: a graph of nodes, read as data.

A text is `{"root_index": i, "nodes": [{"type": "tirx.Add", "data": {...}}, ...]}`; a field holds
the position of another node, which stands earlier. Each kind of node in a TIR function has a reader
here. Nodes that do not belong to the program (positions in files, types of Relax) are skipped; any
other kind is an error that names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from metasched.arith.indexmap import IndexMap
from metasched.errors import ParseError, clipped
from metasched.ir import expr as nodes
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.dtype import HANDLE, VOID, DType
from metasched.ir.expr import (
    Broadcast,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Let,
    Not,
    Select,
    StringImm,
    Var,
    as_int,
)
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.op import OPS, Call, Ramp, Shuffle
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    Break,
    BufferStore,
    Continue,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    FrozenMap,
    IfThenElse,
    IterKind,
    IterVar,
    LetStmt,
    MatchBufferRegion,
    Return,
    Stmt,
    While,
    frozen,
    seq,
)
from metasched.ir.visit import substitute, substitute_buffers
from metasched.script.builder import call_intrin
from metasched.script.tvm_graph import Foreign, Graph, Reader, Record, Wrapping


@dataclass(frozen=True)
class _Memory:
    """The description of a buffer without its name."""

    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr | None
    scope: str
    align: int
    factor: int


# ---- types, variables, buffers --------------------------------------------------------------


def _prim_type(r: Record) -> DType:
    text = r.raw("dtype")
    return VOID if text == "" else DType(text)


def _memory(r: Record) -> _Memory:
    offset = r.at("elem_offset")
    return _Memory(
        r.dtype("dtype"), r.many("shape"), r.many("strides"),
        None if offset is None or as_int(offset) == 0 else offset,
        r.typed("storage_scope", str) or "global", max(int(r.raw("data_alignment")), 1),
        max(int(r.raw("offset_factor")), 1),
    )  # fmt: skip


def _var(r: Record) -> Var | Buffer:
    kind, name = r.typed("ty", (DType, _Memory)), r.typed("name", str)
    if isinstance(kind, DType):
        return Var(name, kind)
    return Buffer(
        name, kind.shape, kind.dtype, kind.scope, kind.strides, kind.offset, kind.align, kind.factor
    )


# ---- expressions ----------------------------------------------------------------------------


def _binary(kind: type[nodes.BinaryOp]) -> Callable[[Record], Expr]:
    return lambda r: kind(r.expr("a"), r.expr("b"))


def _lanes(r: Record) -> int:
    lanes = as_int(r.at("lanes"))
    if lanes is None:
        raise ParseError(f"a {r.kind} without a fixed number of lanes cannot be read")
    return lanes


def _shuffle(r: Record) -> Expr:
    places = [as_int(i) for i in r.many("indices")]
    if None in places:
        raise ParseError("a tirx.Shuffle with indices that are not constant cannot be read")
    return Shuffle(r.many("vectors"), [p for p in places if p is not None])


def _call(r: Record) -> Any:
    """Read a call; calls that are statements in metasched's IR become statements."""
    name, args = r.typed("op", str).rpartition(".")[2], r.many("args", (Expr, Buffer))
    if name == "buffer_data":
        r.graph.owners[args[0].data] = args[0]
        return args[0].data
    jump = {"break_loop": Break, "continue_loop": Continue}.get(name)
    if jump is not None:
        return jump()
    if any(isinstance(a, Buffer) for a in args):
        raise ParseError(f"{name} on a buffer cannot be read")
    if name == "tvm_access_ptr":
        return Call(HANDLE, OPS.get("access_ptr"), args[1:])
    if name == "type_annotation":
        return Call(r.dtype(), OPS.get("undef"), ())
    return call_intrin(r.dtype(), name, *args)


def _load(r: Record) -> Expr:
    return BufferLoad(r.typed("buffer", Buffer), r.many("indices"), r.at("predicate"))


# ---- statements -----------------------------------------------------------------------------

_FOR_KINDS = (
    ForKind.SERIAL, ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.UNROLLED, ForKind.THREAD_BINDING
)  # fmt: skip
_ITER_KINDS = {0: IterKind.SPATIAL, 1: IterKind.SPATIAL, 2: IterKind.REDUCE, 3: IterKind.SCAN,
               4: IterKind.OPAQUE}  # fmt: skip


def _iter_var(r: Record) -> Any:
    """Read an iterator of a block; an iterator without a domain is a thread, given by its tag."""
    if r.at("dom") is None:
        return r.typed("thread_tag", str)
    kind = _ITER_KINDS.get(r.raw("iter_type"))
    if kind is None:
        raise ParseError(f"an iterator of kind {r.raw('iter_type')} cannot be read")
    return IterVar(r.typed("var", Var), r.typed("dom", Range), kind)


def _for(r: Record) -> Stmt:
    number = r.raw("kind")
    if not isinstance(number, int) or not 0 <= number < len(_FOR_KINDS):
        raise ParseError(f"a loop of kind {number} cannot be read")
    extent, step, thread = r.expr("extent"), r.at("step"), r.at("thread_binding")
    if as_int(step) == 1:
        step = None
    if step is not None:  # TVM's extent is stop - start; metasched's is the number of steps
        extent = (extent + (step - 1)) // step
    return For(r.typed("loop_var", Var), r.expr("min"), extent, _FOR_KINDS[number],
               r.body("body"), thread, r.notes(), step)  # fmt: skip


def _block(r: Record) -> Stmt:
    return Block(
        r.typed("name_hint", str), r.many("iter_vars", IterVar), r.many("reads", BufferRegion),
        r.many("writes", BufferRegion), r.body("body"),
        None if r.at("init") is None else r.body("init"), r.many("alloc_buffers", Buffer),
        r.many("match_buffers", MatchBufferRegion), r.notes(),
    )  # fmt: skip


def _sequence(r: Record) -> Stmt | Wrapping:
    items = r.many("seq", (Stmt, Wrapping))
    tail: list[Stmt] = []
    for item in reversed(items):
        tail = [item.wrap(seq(tail))] if isinstance(item, Wrapping) else [item, *tail]
    return seq(tail)


def _decl(r: Record) -> Wrapping:
    """Read a buffer declaration: a view of the memory of its pointer, or fresh memory."""
    buffer, pointer = r.typed("buffer", Buffer), r.at("data")
    if pointer is None:
        return Wrapping(lambda body: Allocate(buffer, body))
    owner = r.graph.owners.get(pointer)
    if owner is None:
        raise ParseError(f"no earlier buffer has the memory of {buffer.name}")
    root = r.graph.roots.setdefault(buffer.data, r.graph.roots.get(owner.data, owner.data))
    view = replace(buffer, data=root)

    def wrap(body: Stmt) -> Stmt:
        inner = substitute(substitute_buffers(body, {buffer: view}), {buffer.data: root})
        return DeclBuffer(view, owner, inner)

    return Wrapping(wrap)


def _allocate(r: Record) -> Wrapping:
    buffer, notes = r.typed("buffer", Buffer), r.notes()
    return Wrapping(lambda body: Allocate(buffer, body, notes))


def _bind(r: Record) -> Wrapping:
    var, value = r.typed("var", Var), r.expr("value")
    return Wrapping(lambda body: LetStmt(var, value, body))


def _attr(r: Record) -> Stmt:
    node = r.at("node")
    key, value = r.typed("attr_key", str), r.expr("value")
    owner = node if isinstance(node, (Buffer, Var, str)) else None
    return AttrStmt(owner, key, value, r.body("body"))


def _assertion(r: Record) -> Stmt:
    return AssertStmt(r.expr("condition"), "".join(s.value for s in r.many("message_parts")))


def _evaluate(r: Record) -> Stmt:
    found = r.typed("value", (Expr, Stmt))
    return found if isinstance(found, Stmt) else Evaluate(found)


def _branch(r: Record) -> Stmt:
    orelse = None if r.at("else_case") is None else r.body("else_case")
    return IfThenElse(r.expr("condition"), r.body("then_case"), orelse)


def _function(r: Record) -> PrimFunc:
    attrs = {} if r.at("attrs") is None else dict(r.notes("attrs"))
    attrs.pop("s_tir", None)
    renamed = {("tir." + k[5:] if k.startswith("tirx.") else k): v for k, v in attrs.items()}
    result = r.at("ret_type")
    return PrimFunc(r.many("params", (Var, Buffer)), r.body("body"), frozen(renamed),
                    result if isinstance(result, DType) else VOID)  # fmt: skip


def _module(r: Record) -> IRModule:
    functions = r.typed("functions", dict)
    for name, func in functions.items():
        if not isinstance(func, PrimFunc):
            what = func.kind if isinstance(func, Foreign) else type(func).__name__
            raise ParseError(
                f"{clipped(name)} is a {clipped(what)}; only TIR functions can be read"
            )
    return IRModule(FrozenMap(functions))


def _index_map(r: Record) -> IndexMap:
    inverse = r.at("inverse_index_map")
    return IndexMap(r.many("initial_indices", Var), r.many("final_indices"), inverse)


_BINARY = "Add Sub Mul Div Mod FloorDiv FloorMod Min Max EQ NE LT LE GT GE And Or".split()
_READERS: dict[str, Reader] = {
    "ir.PrimType": _prim_type,
    "ir.PointerType": lambda r: HANDLE,
    "ir.TupleType": lambda r: VOID,
    "ir.DictAttrs": lambda r: r.typed("__dict__", dict),
    "ir.GlobalVar": lambda r: r.typed("name_hint", str),
    "ir.Var": _var,
    "tirx.BufferType": _memory,
    "ir.IntImm": lambda r: IntImm(r.dtype(), int(r.raw("value"))),
    "ir.FloatImm": lambda r: FloatImm(r.dtype(), float(r.raw("value"))),
    "tirx.StringImm": lambda r: StringImm(r.typed("value", str)),
    **{f"tirx.{name}": _binary(getattr(nodes, name)) for name in _BINARY},
    "tirx.Not": lambda r: Not(r.expr("a")),
    "tirx.Cast": lambda r: Cast(r.dtype(), r.expr("value")),
    "tirx.Select": lambda r: Select(
        r.expr("condition"), r.expr("true_value"), r.expr("false_value")
    ),
    "tirx.Let": lambda r: Let(r.typed("var", Var), r.expr("value"), r.expr("body")),
    "tirx.Ramp": lambda r: Ramp(r.expr("base"), r.expr("stride"), _lanes(r)),
    "tirx.Broadcast": lambda r: Broadcast(r.expr("value"), _lanes(r)),
    "tirx.Shuffle": _shuffle,
    "ir.Call": _call,
    "tirx.BufferLoad": _load,
    "ir.Range": lambda r: Range(r.expr("min"), r.expr("extent")),
    "tirx.BufferRegion": lambda r: BufferRegion(r.typed("buffer", Buffer), r.many("region", Range)),
    "tirx.MatchBufferRegion": lambda r: MatchBufferRegion(
        r.typed("buffer", Buffer), r.typed("source", BufferRegion)
    ),
    "tirx.IterVar": _iter_var,
    "tirx.For": _for,
    "tirx.While": lambda r: While(r.expr("condition"), r.body("body")),
    "tirx.SBlock": _block,
    "tirx.SBlockRealize": lambda r: BlockRealize(
        r.many("iter_values"), r.expr("predicate"), r.typed("block", Block)
    ),
    "tirx.BufferStore": lambda r: BufferStore(
        r.typed("buffer", Buffer), r.expr("value"), r.many("indices"), r.at("predicate")
    ),
    "tirx.SeqStmt": _sequence,
    "tirx.IfThenElse": _branch,
    "tirx.Evaluate": _evaluate,
    "tirx.AssertStmt": _assertion,
    "tirx.AttrStmt": _attr,
    "tirx.AllocBuffer": _allocate,
    "tirx.DeclBuffer": _decl,
    "tirx.Bind": _bind,
    "tirx.Break": lambda r: Break(),
    "tirx.Continue": lambda r: Continue(),
    "tirx.Return": lambda r: Return(r.at("value")),
    "tirx.PrimFunc": _function,
    "ir.IRModule": _module,
    "tirx.IndexMap": _index_map,
}


def _root(text: str | bytes) -> Any:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"not JSON: {error}") from None
    if isinstance(data, dict) and "b64ndarrays" in data:
        raise ParseError("JSON of a TVM before 0.20; save the program again with a later one")
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise ParseError("not a program of TVM's: there is no list of nodes")
    graph = Graph(_READERS)
    for node in data["nodes"]:
        graph.done.append(graph.read(node))
    found = graph.at(data.get("root_index"))
    if isinstance(found, Foreign):
        raise found.error()
    return found


def program_of(text: str | bytes) -> IRModule | PrimFunc:
    """Read the program that `tvm.ir.save_json` of TVM 0.26 wrote; nothing is executed.

    Raises ParseError that names the kind of node which cannot be read.
    """
    found = _root(text)
    if not isinstance(found, (IRModule, PrimFunc)):
        raise ParseError(f"a {type(found).__name__} is no program")
    return found


def index_map_of(text: str | bytes) -> IndexMap:
    """Read the index map that `tvm.ir.save_json` wrote; ParseError for anything else."""
    found = _root(text)
    if not isinstance(found, IndexMap):
        raise ParseError(f"a {type(found).__name__} is no index map")
    return found
