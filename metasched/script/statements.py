"""The statement words of the T namespace: what `T.grid`, `T.block`, `T.reads`, ... build.

Each word is a function of the reader, the call and the evaluated arguments; its signature lists the
arguments that users may pass. It returns what the reader must do next: a stack of loops, a scope
around the statements that follow, a block, or a value to bind. A word that only changes the reader
returns a `Bound` without value.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.dtype import BOOL
from metasched.ir.expr import Expr, Var
from metasched.ir.op import OPS
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IterKind,
    MatchBufferRegion,
    frozen,
)
from metasched.script.buffers import UNSAID, described, renamed
from metasched.script.builder import WORDS, Namespace, StatementWord, dtype_of, near, typed
from metasched.script.builder import lookup as expression_word
from metasched.script.hints import name_hint
from metasched.script.plain import describe
from metasched.script.reader import BlockDraft, Bound, Loops, Reader, Region, Scoped
from metasched.script.sections import Section
from metasched.script.words import ALIASES, REMAP

Handler = Callable[..., Any]
H = TypeVar("H", bound=Callable[..., Any])
STATEMENTS: dict[str, Handler] = {}


def word(*names: str) -> Callable[[H], H]:
    """Register a handler for the words `names`."""

    def enter(handler: H) -> H:
        for name in names:
            STATEMENTS[name] = handler
        return handler

    return enter


def lookup(name: str, prefix: str = "") -> Any:
    """The word T.`name`, for expressions or statements; the error for an unknown word suggests a
    similar word."""
    full = ALIASES.get(prefix + name, prefix + name)
    if full in STATEMENTS:
        return StatementWord(full)
    if full == "axis":
        return AXIS
    found = expression_word(full)
    if found is None and any(known.startswith(f"{full}.") for known in ALIASES):
        return Namespace(full, lambda inner: lookup(inner, f"{full}."))
    if found is None:
        known = [*STATEMENTS, *WORDS, *OPS, *ALIASES]
        hint = name_hint(name, ())
        hint = f": {hint}" if hint else near(prefix + name, known)
        raise AttributeError(f"T has no word {prefix + name!r}{hint}")
    return found


# ---- loops -----------------------------------------------------------------------------------


def _loop(kind: ForKind) -> Handler:
    def handler(
        p: Reader, node: ast.Call, start: Any, stop: Any = None, *,
        annotations: Mapping[str, Any] | None = None, step: Any = None,
    ) -> Loops:  # fmt: skip
        return p.loop(node, kind, start, stop, step, annotations)

    return handler


for _kind in ForKind:
    if _kind is not ForKind.THREAD_BINDING:
        STATEMENTS[_kind.value] = _loop(_kind)


@word("thread_binding")
def thread_binding(
    p: Reader, node: ast.Call, start: Any, stop: Any = None, thread: str | None = None, *,
    annotations: Mapping[str, Any] | None = None, step: Any = None,
) -> Loops:  # fmt: skip
    """A loop whose iterations are the threads of a tag."""
    if isinstance(stop, str) and thread is None:
        stop, thread = None, stop
    if not isinstance(thread, str):
        p.fail(node, 'T.thread_binding needs thread=, such as thread="threadIdx.x"')
    loops = p.loop(node, ForKind.THREAD_BINDING, start, stop, step, annotations)
    loops.thread = thread
    return loops


@word("grid")
def grid(p: Reader, node: ast.Call, *extents: Any) -> Loops:
    """Nested serial loops from zero."""
    if not extents:
        p.fail(node, "T.grid needs an extent for each loop")
    ranges = []
    places = node.args if len(node.args) == len(extents) else [node] * len(extents)
    for arg, extent in zip(places, extents, strict=True):
        if isinstance(extent, tuple) and len(extent) == 2:
            ranges.append(p.domain(arg, *extent))
        else:
            ranges.append(p.domain(arg, 0, extent))
    return Loops(ranges)


# ---- blocks ----------------------------------------------------------------------------------


@word("block")
def block(p: Reader, node: ast.Call, name: str = "", no_realize: bool = False) -> Region:
    """A block; without a name it is anonymous."""
    if not isinstance(name, str):
        p.fail(node, f"a block's name is a text, not {describe(name)}")
    return Region("block", BlockDraft(p.block_name(name)))


@word("init")
def init(p: Reader, node: ast.Call) -> Region:
    """The init of a block: it runs before the first update of each result of a reduction."""
    draft = p.draft(node)
    if draft.init is not None:
        p.fail(node, f"block {draft.name!r} has an init already")
    return Region("init", draft)


def _axis(kind: IterKind) -> Handler:
    def handler(p: Reader, node: ast.Call, dom: Any, value: Any, dtype: Any = None) -> Bound:
        bounds = dom if isinstance(dom, (tuple, list)) else (0, dom)
        if len(bounds) != 2:
            p.fail(node, "a domain is an extent or a pair (start, stop)")
        numbers = not any(isinstance(b, Expr) for b in bounds)
        if numbers and isinstance(value, Expr) and value.dtype.is_int:
            bounds = tuple(p.guard(node, typed, b, value.dtype) for b in bounds)
        low, size = p.domain(node, *bounds)
        return Bound(p.iterator(node, p.hint(0, "v"), Range(low, size), kind, value))

    return handler


for _iter_kind in IterKind:
    STATEMENTS[f"axis.{_iter_kind.value}"] = _axis(_iter_kind)


@word("axis.remap")
def remap(
    p: Reader, node: ast.Call, kinds: str, bindings: Sequence[Any], dtype: Any = None
) -> Bound:
    """Iterators over the domains of the loops they are bound to."""
    if not isinstance(kinds, str) or len(kinds) != len(bindings):
        p.fail(node, f"T.axis.remap: {len(bindings)} loops need as many letters, not {kinds!r}")
    out = []
    for i, (letter, loop) in enumerate(zip(kinds, bindings, strict=True)):
        if letter not in REMAP:
            p.fail(node, f"T.axis.remap knows {' and '.join(REMAP)}, not {letter!r}")
        domain = p.loops.get(loop) if isinstance(loop, Var) else None
        if domain is None:
            p.fail(
                node.args[1] if len(node.args) > 1 else node,
                f"T.axis.remap binds loop variables; binding {i} is no loop variable",
                "write T.axis.spatial(extent, value) or T.axis.reduce(extent, value)",
            )
        out.append(p.iterator(node, p.hint(i, "v"), domain, REMAP[letter], loop))
    return Bound(tuple(out) if len(out) > 1 else out[0])


@word("where")
def where(p: Reader, node: ast.Call, predicate: Any) -> Bound:
    """The predicate of a block: instances run only where it holds."""
    draft = p.draft(node)
    found = p.guard(node, typed, predicate, BOOL)
    if not found.dtype.is_bool:
        p.fail(node, f"T.where needs a condition, not {found.dtype}", "compare with != 0")
    draft.predicate = found
    return Bound()


@word("reads")
def reads(p: Reader, node: ast.Call, *regions: Any) -> Bound:
    """The regions the block reads."""
    p.draft(node).reads = _regions(p, node, regions)
    return Bound()


@word("writes")
def writes(p: Reader, node: ast.Call, *regions: Any) -> Bound:
    """The regions the block writes."""
    p.draft(node).writes = _regions(p, node, regions)
    return Bound()


def _regions(p: Reader, node: ast.Call, items: Sequence[Any]) -> tuple[BufferRegion, ...]:
    places: Sequence[ast.expr] = node.args
    if len(items) == 1 and isinstance(items[0], (list, tuple)):
        items = items[0]
        places = getattr(places[0], "elts", ())
    if len(places) != len(items):
        places = [node] * len(items)
    return tuple(_region(p, node, i, place) for place, i in zip(places, items, strict=True))


def _region(p: Reader, node: ast.AST, item: Any, place: ast.AST | None = None) -> BufferRegion:
    if isinstance(item, BufferLoad):
        return BufferRegion.point(item.buffer, item.indices)
    if isinstance(item, Buffer):
        return item.whole()
    if isinstance(item, Section):
        return p.guard(place or node, lambda: item.region)  # type: ignore[no-any-return]
    if not isinstance(item, BufferRegion):
        p.fail(node, f"a region such as A[0:4, i] is needed, not {describe(item)}")
    return item


@word("block_attr")
def block_attr(p: Reader, node: ast.Call, attrs: Mapping[str, Any]) -> Bound:
    """Annotations of the block; `layout_free_placeholders` marks parameters of the function."""
    draft, notes = p.draft(node), p.mapping(node, attrs)
    free = notes.pop("layout_free_placeholders", [])
    if not isinstance(free, (list, tuple)) or not all(isinstance(b, Buffer) for b in free):
        p.fail(node, "layout_free_placeholders is a list of buffers")
    p.layout_free.extend(free)
    draft.annotations = frozen({**draft.annotations, **notes})
    return Bound()


@word("func_attr")
def func_attr(p: Reader, node: ast.Call, attrs: Mapping[str, Any]) -> Bound:
    """Attributes of the function."""
    p.attrs.update(p.mapping(node, attrs))
    return Bound()


# ---- buffers ---------------------------------------------------------------------------------


@word("alloc_buffer")
def alloc_buffer(p: Reader, node: ast.Call, *args: Any, **kwargs: Any) -> Bound | Scoped:
    """A buffer allocated by the enclosing block; outside of blocks, for the statements after it."""
    if not p.drafts:
        return allocate(p, node, *args, **kwargs)
    buffer = _declared(p, node, *args, **kwargs)
    p.drafts[-1].allocs.append(buffer)
    return Bound(buffer)


@word("allocate")
def allocate(p: Reader, node: ast.Call, extents: Any, dtype: Any = "float32", scope: str = "global",
             condition: Any = None, *, annotations: Mapping[str, Any] | None = None,
             **kwargs: Any) -> Scoped:  # fmt: skip
    """Fresh memory for the statements after it."""
    buffer = _declared(p, node, extents, dtype, scope=scope, **kwargs)
    notes = frozen(p.mapping(node, annotations or {}))
    return Scoped(lambda body: Allocate(buffer, body, notes), buffer)


@word("decl_buffer")
def decl_buffer(p: Reader, node: ast.Call, *args: Any, data: Any = None, source: Any = None,
                **kwargs: Any) -> Scoped:  # fmt: skip
    """Another view of memory in scope; without `data`, fresh memory."""
    if data is None and source is None:
        return allocate(p, node, *args, **kwargs)
    pointer = data.data if isinstance(data, Buffer) else data
    owner = source if source is not None else data
    written = [k.value for k in node.keywords if k.arg == "data"]
    if source is None and isinstance(written[0], ast.Attribute):
        owner = p.value(written[0].value)
    if not isinstance(owner, Buffer) or not isinstance(pointer, (Var, type(None))):
        p.fail(node, f"data= is A.data of a buffer A, not {describe(data)}")
    buffer = _declared(p, node, *args, data=pointer, **kwargs)
    p.views[buffer] = owner
    return Scoped(lambda body: DeclBuffer(buffer, owner, body), buffer)


def _declared(p: Reader, node: ast.AST, *args: Any, **kwargs: Any) -> Buffer:
    found = p.guard(node, described, *args, **kwargs)
    return renamed(found, p.hint(0, "buffer"))


@word("match_buffer")
def match_buffer(
    p: Reader, node: ast.Call, param: Any, shape: Any = None, dtype: Any = None, data: Any = None,
    strides: Any = None, elem_offset: Any = UNSAID, scope: str = "global", align: int = -1,
    offset_factor: int = 0, buffer_type: str = "default", axis_separators: Any = None,
) -> Bound:  # fmt: skip
    """A buffer for a handle parameter; inside a block, a buffer for a region."""
    handle = isinstance(param, Var)
    region = None if handle else _region(p, node, param)
    if shape is None:
        if region is None:
            p.fail(node, "T.match_buffer on a handle needs a shape")
        shape = tuple(r.extent for r in region.region)
    name = p.hint(0, "buffer")
    if elem_offset is UNSAID:
        elem_offset = Var(f"{name}_elem_offset", "int32") if offset_factor > 0 else None
    if dtype is None:
        dtype = "float32" if region is None else region.buffer.dtype
    rest = (strides, elem_offset, scope, align, offset_factor)
    buffer = _declared(p, node, shape, dtype, data, *rest)
    if region is None:
        p.bind_handle(node, param, buffer)
    else:
        if buffer.dtype is not region.buffer.dtype:
            p.fail(node, f"{name} is {buffer.dtype}, its source {region.buffer.name} is "
                   f"{region.buffer.dtype}: a matched buffer has the type of its source",
                   hint="convert what is loaded: T.cast(value, dtype)")  # fmt: skip
        p.draft(node).matches.append(MatchBufferRegion(buffer, region))
        p.views[buffer] = region.buffer
    return Bound(buffer)


# ---- other statements ------------------------------------------------------------------------


@word("LetStmt")
def let_stmt(
    p: Reader, node: ast.Call, value: Any, dtype: Any = None, *, var: Var | None = None
) -> Scoped:
    """A variable for a value, in the statements after it: `x = T.let(value)`."""
    want = None if dtype is None else dtype_of(dtype)
    return p.let(node, p.hint(0, "v"), value, want, var)


@word("evaluate")
def evaluate(p: Reader, node: ast.Call, value: Any) -> Evaluate:
    """Evaluate an expression for its effect."""
    return Evaluate(p.guard(node, typed, p.lanes(node, value)))


@word("Assert")
def assert_stmt(p: Reader, node: ast.Call, condition: Any, message: str = "") -> AssertStmt:
    """Stop the kernel with the message unless the condition holds."""
    return p.assertion(node, condition, message)


@word("attr")
def attr(p: Reader, node: ast.Call, node_: Any, key: str, value: Any) -> Scoped:
    """Set `key` of the node to `value` for the statements after it."""
    if not isinstance(node_, (Buffer, Var, str, type(None))):
        p.fail(node, f"T.attr: {describe(node_)} cannot carry an attribute; a buffer, a variable, "
               "a text or None can")  # fmt: skip
    if not isinstance(key, str):
        p.fail(node, f"T.attr: the key is a text, not {describe(key)}")
    found = p.guard(node, typed, value)
    return Scoped(lambda body: AttrStmt(node_, key, found, body))


@word("env_thread")
def env_thread(p: Reader, node: ast.Call, thread_tag: str, dtype: Any = "int32") -> Bound:
    """A variable for the index of a thread; T.launch_thread gives its extent."""
    var = Var(p.hint(0, "thread"), dtype_of(dtype))
    p.threads[var] = thread_tag
    return Bound(var)


@word("launch_thread")
def launch_thread(p: Reader, node: ast.Call, thread: Any, extent: Any) -> Scoped:
    """Run the statements after it once for each thread of a tag."""
    if isinstance(thread, str):
        size = p.guard(node, typed, extent)
        var, tag = Var(p.hint(0, thread.replace(".", "_")), size.dtype), thread
    elif isinstance(thread, Var) and thread in p.threads:
        var, tag = thread, p.threads[thread]
    else:
        p.fail(node, f"T.launch_thread needs a tag or T.env_thread(...), not {describe(thread)}")
    low, size = p.domain(node, 0, p.guard(node, typed, extent, var.dtype))
    p.loops[var] = Range(low, size)
    kind = ForKind.THREAD_BINDING
    return Scoped(lambda body: For(var, low, size, kind, body, tag), var)


@word("If")
def if_word(p: Reader, node: ast.Call, condition: Any) -> Region:
    """`with T.If(condition):` around `with T.Then():` and `with T.Else():`."""
    return Region("if", p.condition(node, condition))


@word("Then")
def then_word(p: Reader, node: ast.Call) -> Region:
    """The statements that run where the condition holds."""
    return Region("then")


@word("Else")
def else_word(p: Reader, node: ast.Call) -> Region:
    """The statements that run where the condition does not hold."""
    return Region("else")


@word("While")
def while_word(p: Reader, node: ast.Call, condition: Any) -> Region:
    """`with T.While(condition):` is `while condition:`."""
    return Region("while", p.condition(node, condition))


AXIS = Namespace("axis", lambda name: lookup(name, "axis."))
