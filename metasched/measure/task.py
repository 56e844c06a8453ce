"""make_task: the test data of a workload, decided by scanning its operations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from metasched.codegen.signature import BufferArg, Signature, extent_value
from metasched.errors import MeasureError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    Add,
    BinaryOp,
    Cast,
    Div,
    Expr,
    FloatImm,
    FloorDiv,
    FloorMod,
    Mod,
    Mul,
    Sub,
    Var,
)
from metasched.ir.func import FAST_MATH, PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import Block, BufferStore
from metasched.ir.visit import free_vars, reads_memory, walk, walk_exprs, walk_stmts
from metasched.measure.data import Array, Task
from metasched.measure.given import Arrays
from metasched.measure.indices import IndexData, index_data, scalar_limits
from metasched.measure.terms import accumulates, longest_sum

_FAST = 4  # factor of the tolerance for a function that allows fast mathematics
_HALVINGS = 10  # floats that scale a sum of n products of bytes go down to 2**-10 / n, about
_EXACT_CALLS = frozenset(
    """if_then_else likely assume abs popcount clz isnan isinf isfinite bitwise_not bitwise_and
    bitwise_or bitwise_xor shift_left shift_right floor ceil round nearbyint trunc copysign
    reinterpret fma ignore_loop_partition""".split()
)
_POSITIVE_CALLS = frozenset("log log2 log10 log1p sqrt rsqrt pow fmod acosh".split())
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52,
        "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}  # fmt: skip
_DIVISIONS = (Div, Mod, FloorDiv, FloorMod)


def make_task(
    func: PrimFunc,
    signature: Signature,
    *,
    key: str,
    seed: int = 0,
    extents: Mapping[str, int] | None = None,
    scalars: Mapping[str, float] | None = None,
    data: Arrays | None = None,
) -> Task:
    """Decide data and comparison of a workload by scanning its operations.

    Args:
        func: the unscheduled function.
        signature: the signature of the compiled function.
        extents: a value for each symbolic extent, by name.
        scalars: values of scalar parameters, by name; see `_values` for all others.
        data: given contents of buffer parameters, by their positions.

    Raises MeasureError when an extent has no value.
    """
    why = inexact_reason(func) or (f"the attribute {FAST_MATH}" if func.liberties else "")
    values = _values(func, signature, {**(extents or {}), **(scalars or {})})
    numbers = {name: int(v) for name, v in values.items()}
    coarse = max((_EPS[t] for t in _float_types(func)), default=0.0)
    positive, indexes = _needs_positive(func), index_data(func, values)
    terms, divisors = longest_sum(func, numbers), _divisors(func)
    rounded = longest_sum(func, numbers, _rounded(func)) if why else 1
    most = _largest_value(terms, coarse)
    sums, casts = _accumulators(func), _casts_to_integers(func)
    all_bytes = bool(sums) and all(kind.is_int for kind in sums)
    scaled = all_bytes and (bool(why) or any(kind.bits <= 16 for kind in casts))
    if coarse and not why:
        named = {*(scalars or {}), *_computed_with(func)}
        inexact = (n for n, v in values.items() if v % 1 or not -most <= v <= most)
        why = next((f"the value of {name}" for name in inexact if name in named), "")
    arrays = []
    given = data or {}
    for number, (buffer, arg) in enumerate(zip(func.buffers, signature.buffers, strict=True)):
        dtype, index = DType(arg.dtype), indexes.get(buffer)
        low, high = _limits(dtype, index, most, positive, all_bytes)
        shape, strides = _extents(buffer, arg, numbers)
        if number in given and not why and _coarse(given[number], coarse, index, most):
            why = f"the data of {arg.name}"
        initial = not arg.written or reads_before_writing(func, buffer)
        eps = max(coarse, _EPS.get(str(dtype), 0.0)) * (_FAST if func.liberties else 1)
        halvings = _HALVINGS + terms.bit_length() if scaled and dtype.is_float else None
        arrays.append(
            Array(
                arg.name, arg.dtype, shape, strides, arg.written, initial, low, high, eps,
                halvings=halvings, rounded=dtype.is_int and bool(casts),
                ascending=index is not None and index.ascending, divisor=buffer in divisors,
                given=number in given, place=index is not None,
            )
        )  # fmt: skip
    task = Task(
        key, tuple(arrays), tuple(values.items()), exact=True, seed=seed, terms=terms,
        rounded_terms=rounded,
    )  # fmt: skip
    return task.with_tolerance(why, rounded) if why else task


def _limits(
    dtype: DType, index: IndexData | None, most: int, positive: bool, all_bytes: bool
) -> tuple[int, int]:
    """The smallest and the largest integer that fills an array."""
    if dtype.is_bool or (dtype.is_int and dtype.bits == 1):
        return 0, 1
    low, high = (1, most) if positive else (-most, most)
    if index is not None:
        low, high = index.low, index.largest(dtype, most)
    elif dtype.is_int and dtype.bits == 8 and all_bytes:
        return max(low, 1) if positive else dtype.range[0], dtype.range[1]
    return max(low, 0) if dtype.kind == "uint" else low, high


def _extents(
    buffer: Buffer, arg: BufferArg, numbers: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape and the strides of an array."""
    try:
        shape = tuple(extent_value(e, numbers) for e in arg.shape)
        strides = tuple(extent_value(e, numbers) for e in arg.strides)
    except KeyError as error:
        raise _unknown(str(error)) from None
    if not buffer.strides:  # the strides of the compiled function may be padded
        strides = tuple(math.prod(shape[n + 1 :]) for n in range(len(shape)))
    return shape, strides


def _coarse(values: NDArray[np.generic], eps: float, index: IndexData | None, most: int) -> bool:
    """Whether sums and products of given values may depend on their order."""
    if values.dtype.kind not in "biu":
        return True
    return (
        bool(eps)
        and index is None
        and values.size > 0
        and not -most <= values.min() <= values.max() <= most
    )


def _largest_value(terms: int, eps: float) -> int:
    """The largest input value: 4, or less if a sum of `terms` products would not be exact.

    The expected result is a serial sum, which loses more digits than any other order of summation.
    """
    exact = 2.0 / eps if eps else math.inf
    return max((n for n in (4, 3, 2) if terms * n * n <= exact), default=1)


def _values(func: PrimFunc, signature: Signature, given: Mapping[str, float]) -> dict[str, float]:
    """The values of scalars and symbolic extents: 2, and the largest value that stays inside for a
    scalar that bounds loops or is an index of buffers whose shapes are numbers."""
    limits = {} if signature.symbols else scalar_limits(func)
    values: dict[str, float] = dict(given)
    for param in signature.params:
        if not isinstance(param, BufferArg):
            usual = limits.get(param.name, 1 if param.dtype == "bool" else 2)
            values[param.name] = given.get(param.name, usual)
    for symbol in signature.symbols:
        if symbol not in given:
            raise _unknown(repr(symbol))
        values[symbol] = given[symbol]
    return values


def _unknown(symbol: str) -> MeasureError:
    return MeasureError(
        f"the extent {symbol} has no value, so there is no size to measure at: "
        f"tune(func, sizes={{{symbol}: 1024}}) names one"
    )


def inexact_reason(func: PrimFunc) -> str:
    """Why results may depend on the order of evaluation; empty when small integers stay exact."""
    return next((why for node in _expressions(func) if (why := _inexact(node))), "")


def _inexact(node: Expr) -> str:
    """The operation of a node whose result is rounded although its operands are small integers."""
    if isinstance(node, Call) and node.op.name not in _EXACT_CALLS:
        return node.op.name
    if isinstance(node, Div | Mod) and node.dtype.is_float:
        return "division"
    if isinstance(node, FloatImm) and math.isfinite(node.value) and node.value % 1:
        return f"the constant {node.value:g}"
    if isinstance(node, Add | Sub | Mul) and node.dtype.is_float and node.dtype.bits < 32:
        return f"{node.dtype.scalar} arithmetic"
    return ""


def _rounded(func: PrimFunc) -> set[Buffer]:
    """The buffers that take results of inexact operations, also by way of other buffers."""
    stores = [s for s in walk_stmts(func.body) if isinstance(s, BufferStore)]
    found: set[Buffer] = set()
    for _ in stores:
        more = {
            s.buffer
            for s in stores
            for e in walk_exprs(s.value)
            if _inexact(e) or (isinstance(e, BufferLoad) and e.buffer in found)
        }
        if more == found:
            break
        found = more
    return found


def _expressions(func: PrimFunc) -> Iterable[Expr]:
    return (node for node in walk(func.body) if isinstance(node, Expr))


def _computed_with(func: PrimFunc) -> set[str]:
    """The integer parameters that the program converts to floats."""
    casts = (n for n in _expressions(func) if isinstance(n, Cast) and n.dtype.is_float)
    names = set[Var]().union(*(free_vars(cast.value) for cast in casts))
    return {var.name for var in names.intersection(func.params)}


def _float_types(func: PrimFunc) -> set[str]:
    """The floating-point types that the program calculates in."""
    kinds = (BinaryOp, Call)
    return {
        str(node.dtype.scalar)
        for node in _expressions(func)
        if isinstance(node, kinds) and node.dtype.is_float
    }


def _accumulators(func: PrimFunc) -> set[DType]:
    """The types of elements that are computed from themselves, as sums are."""
    return {
        node.buffer.dtype
        for node in walk_stmts(func.body)
        if isinstance(node, BufferStore) and accumulates(node)
    }


def _casts_to_integers(func: PrimFunc) -> set[DType]:
    """The integer types to which the program converts floats; the conversion saturates."""
    return {
        node.dtype.scalar
        for node in _expressions(func)
        if isinstance(node, Cast) and node.dtype.is_int and node.value.dtype.is_float
    }


def _needs_positive(func: PrimFunc) -> bool:
    """Whether zero or negative inputs could give division by zero or NaN everywhere."""
    for node in _expressions(func):
        if isinstance(node, Call) and node.op.name in _POSITIVE_CALLS:
            return True
        if isinstance(node, _DIVISIONS) and reads_memory(node.b):
            return True
    return False


def _divisors(func: PrimFunc) -> set[Buffer]:
    """The buffers of floats that the program divides by."""
    return {
        load.buffer
        for node in _expressions(func)
        if isinstance(node, Div) and node.dtype.is_float
        for load in walk_exprs(node.b)
        if isinstance(load, BufferLoad)
    }


def reads_before_writing(func: PrimFunc, buffer: Buffer) -> bool:
    """Whether the first access to a written buffer, in program order, is a load."""

    def loaded(expressions: Iterable[Expr]) -> bool:
        return any(
            isinstance(part, BufferLoad) and part.buffer is buffer
            for expression in expressions
            for part in walk_exprs(expression)
        )

    for stmt in walk_stmts(func.body):  # a block's init comes before its body
        if isinstance(stmt, Block):
            continue  # its declared regions are no accesses
        if loaded(stmt.exprs):
            return True
        if isinstance(stmt, BufferStore) and stmt.buffer is buffer:
            return False
    return False
