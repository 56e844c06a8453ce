"""Tensor expressions with TVM's names: each element of a tensor as an expression of its indices.

    from metasched import te

    A, B = te.placeholder((64, 32), name="A"), te.placeholder((32, 48), name="B")
    k = te.reduce_axis((0, 32), name="k")
    C = te.compute((64, 48), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    func = te.create_prim_func([A, B, C])

Every tensor that is computed becomes one block. The words of scripts are here as well: `te.exp`,
`te.if_then_else`, `te.all`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from metasched.errors import MetaschedError, TypeMismatchError
from metasched.frontend.blocks import function, reduce, spatial, stage, store
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    Add,
    BinaryOp,
    Expr,
    ExprLike,
    Max,
    Min,
    Var,
    as_expr,
    logical_and,
    logical_or,
)
from metasched.ir.func import PrimFunc
from metasched.ir.operators import users_code
from metasched.ir.stmt import IterVar, Stmt
from metasched.ir.visit import substitute, substitute_buffers, walk_exprs
from metasched.script.builder import cast_word, lookup, max_value, min_value, pair, typed


class ReduceAxis(Var):
    """A reduction axis: `extent` integers from `low` on."""

    __slots__ = ("extent", "low")
    low: Expr
    extent: Expr


@dataclass(frozen=True)
class Reduction:
    """A sum, maximum or minimum of `value` over `axes`: the whole value of a `compute`."""

    kind: type[BinaryOp]
    value: Expr
    axes: tuple[ReduceAxis, ...]

    def _alone(self, *_: Any) -> NoReturn:
        raise TypeMismatchError(
            "a reduction is the whole value of a te.compute: compute it as a tensor of its own, "
            "and use its elements in the next"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _alone
    __rtruediv__ = __floordiv__ = __mod__ = __neg__ = __lt__ = __gt__ = _alone


@dataclass(frozen=True, slots=True, eq=False)
class Tensor(Buffer):
    """A tensor that is given (`value` is None) or computed from its indices, in a block."""

    block: str = ""
    indices: tuple[Var, ...] = ()
    value: Expr | Reduction | None = None

    def __call__(self, *indices: ExprLike) -> BufferLoad:
        """An element, as `tensor[indices]` gives it."""
        return self[indices]

    def _whole(self, *_: Any) -> NoReturn:
        raise TypeMismatchError(
            f"{self.name} is a tensor, not an element; write te.compute({self.name}.shape, "
            f"lambda *i: f({self.name}(*i))) for an expression f of its elements"
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _whole
    __rtruediv__ = __floordiv__ = __mod__ = __neg__ = _whole


def const(value: float, dtype: str | None = None) -> Expr:
    """A number of a type; None takes int32, float32 or bool, by the number's type in Python."""
    return typed(value) if dtype is None else cast_word(value, dtype)


def var(name: str = "n", dtype: str = "int32") -> Var:
    """A variable extent, which the arguments of a call determine."""
    return Var(name, dtype)


def placeholder(
    shape: Sequence[ExprLike] | ExprLike, dtype: str = "float32", name: str = "placeholder"
) -> Tensor:
    """A tensor that is given."""
    return Tensor(name, _extents(shape), DType(dtype))


def reduce_axis(dom: tuple[ExprLike, ExprLike], name: str = "rv") -> ReduceAxis:
    """An axis that `sum`, `max` and `min` reduce over: the integers from dom[0] up to dom[1]."""
    if not isinstance(dom, (tuple, list)) or len(dom) != 2:
        text = f"te.reduce_axis: the domain is (begin, end), not {dom!r}; write (0, n)"
        raise MetaschedError(text)
    low, high = (as_expr(bound) for bound in dom)
    axis = ReduceAxis.__new__(ReduceAxis, name, high.dtype)
    assert isinstance(axis, ReduceAxis)
    object.__setattr__(axis, "low", low)
    object.__setattr__(axis, "extent", high - low)
    return axis


def compute(
    shape: Sequence[ExprLike] | ExprLike,
    fcompute: Callable[..., Any],
    name: str = "compute",
    *,
    block: str | None = None,
    varargs_names: Sequence[str] | None = None,
) -> Tensor:
    """A tensor whose element at (i, j, ...) is `fcompute(i, j, ...)`.

    Args:
        name: the tensor's name.
        block: the block's name; None for the tensor's name.
        varargs_names: the names of the indices, for a function of `*indices`.

    Raises MetaschedError when the function takes another number of indices, or gives no value.
    """
    extents = _extents(shape)
    names = varargs_names or _index_names(fcompute, len(extents), name)
    indices = tuple(Var(n, e.dtype) for n, e in zip(names, extents, strict=True))
    with users_code():
        value = fcompute(*indices)
    if isinstance(value, (bool, int, float)):
        value = typed(value)
    if not isinstance(value, (Expr, Reduction)):
        what = "several values" if isinstance(value, (tuple, list)) else type(value).__name__
        raise MetaschedError(f"te.compute {name!r}: the function gives {what}, not one expression")
    inside = value.value if isinstance(value, Reduction) else value
    reduced = value.axes if isinstance(value, Reduction) else ()
    for part in walk_exprs(inside):
        if isinstance(part, ReduceAxis) and part not in reduced:
            raise MetaschedError(
                f"te.compute {name!r}: {part.name} is a reduce_axis that nothing reduces; write "
                f"te.sum(..., axis={part.name})"
            )
    return Tensor(name, extents, inside.dtype, block=block or name, indices=indices, value=value)


def _extents(shape: Sequence[ExprLike] | ExprLike) -> tuple[Expr, ...]:
    sizes = shape if isinstance(shape, Sequence) else (shape,)
    return tuple(as_expr(size) for size in sizes)


def _index_names(fcompute: Callable[..., Any], count: int, name: str) -> list[str]:
    """The names of a function's indices; parameters with defaults are not indices."""
    params = [*inspect.signature(fcompute).parameters.values()]
    if [p for p in params if p.kind is inspect.Parameter.VAR_POSITIONAL]:
        return [f"i{n}" for n in range(count)]
    needed = [p.name for p in params if p.default is inspect.Parameter.empty]
    if len(needed) != count:
        raise MetaschedError(
            f"te.compute {name!r}: the shape has {count} dimensions, the function takes "
            f"{len(needed)} indices"
        )
    return needed


# -- reductions ----------------------------------------------------------------------------------


def _reduction(
    kind: type[BinaryOp], expr: ExprLike, axis: ReduceAxis | Sequence[ReduceAxis] | None
) -> Reduction:
    axes = tuple(axis) if isinstance(axis, Sequence) else (axis,)
    known = tuple(a for a in axes if isinstance(a, ReduceAxis))
    if not axes or len(known) < len(axes):
        text = "axis takes what te.reduce_axis gives, one or a list of them: axis=k"
        raise TypeMismatchError(text)
    return Reduction(kind, typed(expr), known)


def sum(expr: ExprLike, axis: ReduceAxis | Sequence[ReduceAxis] | None = None) -> Reduction:
    """The sum of `expr` over one or several axes."""
    return _reduction(Add, expr, axis)


def max(expr: ExprLike, axis: ReduceAxis | Sequence[ReduceAxis] | ExprLike) -> Reduction | Expr:
    """The maximum of `expr` over axes; of two expressions, the larger one."""
    return _extreme(Max, expr, axis)


def min(expr: ExprLike, axis: ReduceAxis | Sequence[ReduceAxis] | ExprLike) -> Reduction | Expr:
    """The minimum of `expr` over axes; of two expressions, the smaller one."""
    return _extreme(Min, expr, axis)


def _extreme(kind: type[BinaryOp], expr: ExprLike, other: Any) -> Reduction | Expr:
    if isinstance(other, (ReduceAxis, Sequence)):
        return _reduction(kind, expr, other)
    a, b = pair(expr, other)
    return kind(a, b)  # type: ignore[no-any-return]


# -- to a function -------------------------------------------------------------------------------


def create_prim_func(
    args: Sequence[Tensor], name: str = "main", attrs: Mapping[str, Any] | None = None
) -> PrimFunc:
    """The function that computes the last of `args`, and all that it needs, from the others.

    Each computed tensor becomes a block of its name. Tensors not in `args` are temporaries.

    Args:
        args: parameters in calling order, given and computed ones.
        name: the function's `global_symbol`.
        attrs: further attributes of the function, `tir.finite` for one.

    Raises MetaschedError for a tensor that is given, used, and no argument.
    """
    order: dict[Tensor, None] = {}
    for tensor in args:
        _collect(tensor, order)
    missing = [t.name for t in order if t.value is None and t not in args]
    if missing:
        raise MetaschedError(
            f"te.create_prim_func: {missing[0]!r} is used and no argument; the list holds all "
            "placeholders, then the outputs"
        )
    plain: dict[Buffer, Buffer] = {t: Buffer(t.name, t.shape, t.dtype) for t in order}
    taken: set[str] = {"root"}
    stages = [_stage(t, plain, taken) for t in order if t.value is not None]
    return function(name, [plain[t] for t in args], stages, attrs)


def _collect(tensor: Tensor, order: dict[Tensor, None]) -> None:
    """Append a tensor to `order`, after all tensors that it is computed from."""
    work: list[tuple[Tensor, Iterator[Tensor]]] = [(tensor, _inputs(tensor))]
    while work:
        top, left = work[-1]
        found = next((t for t in left if t not in order), None)
        if found is None:
            order[top] = None
            work.pop()
        else:
            work.append((found, _inputs(found)))


def _inputs(tensor: Tensor) -> Iterator[Tensor]:
    value = tensor.value.value if isinstance(tensor.value, Reduction) else tensor.value
    for part in () if value is None else walk_exprs(value):
        if isinstance(part, BufferLoad) and isinstance(part.buffer, Tensor):
            yield part.buffer


def _stage(tensor: Tensor, plain: Mapping[Buffer, Buffer], taken: set[str]) -> Stmt:
    """The block that computes a tensor, in its own loop nest."""
    iters: list[IterVar] = []
    values: dict[Var, Expr] = {}
    for index, extent in zip(tensor.indices, tensor.shape, strict=True):
        iters.append(spatial(f"v{index.name}", extent))
        values[index] = iters[-1].var
    out = [i.var for i in iters]
    init, value = None, tensor.value
    if isinstance(value, Reduction):
        for axis in value.axes:
            iters.append(reduce(f"v{axis.name}", axis.extent))
            values[axis] = iters[-1].var + axis.low
        init = store(tensor, out, _identity(value.kind, tensor.dtype))
        new = substitute(value.value, values)
        body = store(tensor, out, value.kind(tensor[tuple(out)], new))
    else:
        assert value is not None
        body = store(tensor, out, substitute(value, values))
    name = next(n for n in _numbered(tensor.block) if n not in taken)
    taken.add(name)
    return substitute_buffers(stage(name, iters, body, init=init), plain)


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        yield f"{name}_{number}"
        number += 1


def _identity(kind: type[BinaryOp], dtype: DType) -> ExprLike:
    if kind is Add:
        return 0.0 if dtype.is_float else 0
    return min_value(dtype) if kind is Max else max_value(dtype)


def all(*conditions: ExprLike) -> Expr:
    """Whether all conditions hold."""
    return functools.reduce(logical_and, map(typed, conditions))


def any(*conditions: ExprLike) -> Expr:
    """Whether one of the conditions holds."""
    return functools.reduce(logical_or, map(typed, conditions))


def __getattr__(name: str) -> Any:
    found = None if name.startswith("__") else lookup(name)
    if found is None:
        raise AttributeError(
            f"te has no {name!r}: what placeholder, compute, reduce_axis, sum, max and min cannot "
            "say, a T.prim_func can"
        )
    return found
