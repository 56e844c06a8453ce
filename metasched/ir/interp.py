"""The interpreter: the definition of what a program means, on NumPy arrays.

The interpreter runs every function, as written, scheduled or lowered. It exposes programs that rely
on an undefined order or value: the iterations of parallel and thread-bound loops run in a shuffled
order (by `seed`), and fresh memory holds NaN or a sentinel. The lanes of a vectorized loop run in
lockstep: every lane finishes a statement before any lane begins the next, and the stores of one
statement run in lane order.

The semantics in short:
- Integers wrap; `//` and `%` round down, Div and Mod truncate; division of integers by zero is an
  error. Floats are rounded to their type after each operation; min and max propagate NaN; a float
  converted to an integer saturates (NaN gives 0). `And`, `Or` and `Select` evaluate all operands,
  only `if_then_else` does not.
- A block binds its iterators where its predicate holds, makes its buffers afresh, runs `init` when
  every reduce iterator is at the minimum of its domain (for a block without reduce iterators:
  always), then its body. A reduction whose length is a run-time extent of 0 has no result: an
  error (`interp_lengths`). A spatial or reduce iterator outside its domain is an error.
- An access outside a buffer is an error. A loop over a non-positive extent does nothing.
- `threadIdx` loops that contain a storage barrier run in lockstep, like vector lanes, so a missing
  second barrier does not show; other thread loops run one thread after the other, nested loops of
  one tag as separate loops. A thread loop that carries a reduction runs in order, like the
  cross-thread reduction it is lowered to. `break` and `continue` of the loop that runs in
  lockstep are errors, and so is `return`; a loop inside with a jump runs in lane after lane.
- Foreign calls, raw pointers and hardware instructions without a declared meaning cannot be
  interpreted: an error is raised when one is evaluated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from metasched.errors import InterpretError, brief, shown_at_caller
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Expr, Var
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.interp_fence import Env
from metasched.ir.interp_lanes import LaneCompiler
from metasched.ir.interp_memory import bind_or_check, full_shape, layout_binders
from metasched.ir.interp_ops import OP_RULES, as_value, storage
from metasched.ir.interp_stmt import ReturnSignal

__all__ = ["OP_RULES", "run"]


@shown_at_caller
def run(
    source: PrimFunc | IRModule,
    *args: Any,
    name: str | None = None,
    seed: int = 0,
    check_undefined: bool = False,
    check_regions: bool = False,
) -> Any:
    """Execute a function in place on its arguments.

    Args:
        source: the function, or a module with it.
        args: one argument for each parameter: a NumPy array of the buffer's type and shape, a
            number for a scalar. A one-dimensional buffer also takes a contiguous array of any rank.
        name: which function of a module that has several.
        seed: seed of the order in which parallel iterations run.
        check_undefined: also raise when an element of fresh memory is read before it is written.
        check_regions: also raise when a block touches an element outside its declared regions.

    Returns:
        The function's return value, None for most functions.

    Raises:
        InterpretError: the arguments do not fit, or the program has an undefined operation.
    """
    func = _choose(source, name)
    compiler = LaneCompiler(check_undefined, check_regions)
    if len(args) != len(func.params):
        raise InterpretError(f"{len(func.params)} arguments expected, {len(args)} given")
    env: Env = [None]
    body = _bind_arguments(compiler, func, args, env)
    env[0] = random.Random(seed)
    with np.errstate(all="ignore"):
        try:
            body(env)
        except ReturnSignal as signal:
            return signal.value
    return None


def _choose(source: PrimFunc | IRModule, name: str | None) -> PrimFunc:
    if isinstance(source, PrimFunc):
        return source
    if name is not None:
        if name not in source:
            raise InterpretError(f"no function {name!r} in the module, only {', '.join(source)}")
        return source[name]
    if len(source) != 1:
        raise InterpretError(f"the module has {len(source)} functions; choose one by name")
    return next(iter(source.values()))


def _bind_arguments(compiler: LaneCompiler, func: PrimFunc, args: Sequence[Any], env: Env) -> Any:
    """Put arguments into the environment, bind the symbolic extents, compile the body."""
    scalars = [(p, a) for p, a in zip(func.params, args, strict=True) if isinstance(p, Var)]
    arrays = [(p, a) for p, a in zip(func.params, args, strict=True) if isinstance(p, Buffer)]
    todo: list[tuple[Any, ...]] = [(compiler.slot(v), _scalar(v, x)) for v, x in scalars]
    checked = [(b, _array(b, a)) for b, a in arrays]
    binders = []
    for plain in (
        True,
        False,
    ):  # first the extents that are variables: others may be computed from them
        for buffer, array in checked:
            for i, extent in enumerate(buffer.shape):
                if _is_new(compiler, extent) is plain:
                    what = f"extent {i} of {buffer.name}"
                    binders.append((bind_or_check(compiler, extent, what), array.shape[i]))
    layouts = [(layout_binders(compiler, b, offset_known=True), a) for b, a in checked]
    for buffer, array in checked:
        todo.append((compiler.slot(buffer), array))
    compiler.symbols = frozenset(v for v in compiler.slots if isinstance(v, Var))
    body = compiler.one(func.body)
    env.extend([None] * (compiler.size - 1))
    for slot, value in todo:
        env[slot] = value
    for bind, value in binders:
        bind(env, value)
    for layout, array in layouts:
        layout(env, array, 0)
    return body


def _is_new(compiler: LaneCompiler, extent: Expr) -> bool:
    return isinstance(extent, Var) and extent not in compiler.slots


def _scalar(var: Var, value: Any) -> Any:
    if np.ndim(value) != 0:
        raise InterpretError(f"{var.name} is a scalar of type {var.dtype}, an array was given")
    if var.dtype.is_int:
        low, high = var.dtype.range
        if int(value) != value or not low <= int(value) <= high:
            raise InterpretError(f"{var.name}: {value} does not fit in {var.dtype}")
    if var.dtype.is_float and not var.dtype.rounds_to_finite(value):
        raise InterpretError(f"{var.name}: {brief(value)} does not fit in {var.dtype}")
    return as_value(var.dtype, value)


def _array(buffer: Buffer, array: Any) -> Any:
    if not isinstance(array, np.ndarray):
        raise InterpretError(f"{buffer.name} is a buffer, {type(array).__name__} was given")
    if array.dtype != storage(buffer.dtype):
        raise InterpretError(f"{buffer.name} is {buffer.dtype}, not {array.dtype} as its argument")
    rank = len(full_shape(buffer, [0] * len(buffer.shape)))
    if array.ndim != rank and rank == 1 and array.flags.c_contiguous:
        return array.reshape(-1)
    if array.ndim != rank:
        raise InterpretError(f"{buffer.name} has {rank} dimensions, the array {array.ndim}")
    return array
