"""Operations that Call applies, and the vector expressions.

An Op holds the name, effect and arity of an operation. Each consumer (interpreter, code generator,
features) has a rule for the meaning of each operation; a test checks that no rule is missing.

A HardwareOp describes one machine instruction: its types, the CPU features it needs and its
meaning. The files of the folder intrinsics/ and plug-in files enter instructions in `HARDWARE`.
"""

from __future__ import annotations

import enum
import functools
import importlib
import pkgutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from metasched.errors import TypeMismatchError
from metasched.ir.dtype import DType
from metasched.ir.expr import Broadcast, Expr, ExprLike, StringImm, as_expr, match_types
from metasched.ir.intern import make
from metasched.registry import Registry

__all__ = [
    "HARDWARE", "LIBM_SYMBOLS", "OPS", "Broadcast", "Call", "Effect", "HardwareOp", "Op", "Ramp",
    "Shuffle",
    "call", "called_instruction", "effect_of", "hardware_op", "lacking", "load_intrinsics",
    "op_named",
]  # fmt: skip

OPS: Registry[Op] = Registry("op", entry_points=False)


class Effect(enum.IntEnum):
    """The side effects that evaluating an operation may have; a larger value allows more."""

    PURE = 0
    READ = 1
    UPDATE = 2
    OPAQUE = 3


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """An operation that Call applies, listed in `ir.op.OPS`; each consumer defines its meaning.

    Attributes:
        name: the word after `T.` in scripts.
        effect: the side effects that evaluating the operation may have.
        arity: number of arguments, None for any.
    """

    name: str
    effect: Effect = Effect.PURE
    arity: int | None = 1

    def __reduce__(self) -> tuple[Any, ...]:
        return op_named, (self.name,)


def op_named(name: str) -> Op:
    """The registered operation called `name`."""
    return OPS.get(name)


@dataclass(frozen=True, slots=True, eq=False)
class HardwareOp:
    """A machine instruction that scripts call by its name: `T.call_llvm_pure_intrin(name, ...)`.

    Attributes:
        name: LLVM's name, `llvm.x86.avx512.vpdpbusd.512`.
        result: the type of the result, `int32x16`; text is read as a type.
        operands: the types of the operands, in order.
        feature: the CPU features it needs, joined by `+`; alternatives are separated by `|`.
        meaning: a function from NumPy arrays, one for each operand, to the lanes of the result;
            integers wrap to the type of the result.
        cost: about how many float32 vector multiply-adds run in the time of one call; a tuning run
            on a machine with the instruction measures the number.
        adds: whether the result is the first operand plus products of elements of the two others,
            so that it is the first operand where one of the others is zero.
    """

    name: str
    result: DType
    operands: tuple[DType, ...]
    feature: str
    meaning: Callable[..., Any]
    cost: float = 1.0
    adds: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "result", DType(self.result))
        object.__setattr__(self, "operands", tuple(DType(kind) for kind in self.operands))


HARDWARE: Registry[HardwareOp] = Registry("hardware op", HardwareOp)


def hardware_op(name: str) -> HardwareOp | None:
    """The machine instruction of this name, None when none is declared."""
    if name not in HARDWARE:
        load_intrinsics()
    return HARDWARE.get(name) if name in HARDWARE else None


def called_instruction(node: object) -> HardwareOp | None:
    """The declared machine instruction that an expression calls; None for other expressions."""
    if not isinstance(node, Call) or node.op.name not in INSTRUCTION_CALLS:
        return None
    name = node.args[0]
    return hardware_op(name.value) if isinstance(name, StringImm) else None


def lacking(feature: str, features: Collection[str]) -> str:
    """The CPU features that `feature` of a HardwareOp needs and `features` lack; "" if none.

    Of several alternatives the first is reported.
    """
    have = {name.removeprefix("+") for name in features}
    ways = [[f for f in way.split("+") if f and f not in have] for way in feature.split("|")]
    return "" if [] in ways else " and ".join(ways[0])


@functools.cache
def load_intrinsics() -> None:
    """Run each file of the folder intrinsics/ once; it registers the instructions it declares."""
    package = importlib.import_module("metasched.intrinsics")
    for found in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{found.name}")


class Call(Expr):
    """`op` applied to `args`, giving a value of `dtype`."""

    __slots__ = ("op", "args")
    op: Op
    args: tuple[Expr, ...]

    def __new__(cls, dtype: DType | str, op: Op, args: Sequence[Expr]) -> Call:
        dtype, args = DType(dtype), tuple(args)
        if op.arity is not None and len(args) != op.arity:
            raise TypeMismatchError(f"{op.name} takes {op.arity} arguments, not {len(args)}")
        return make(cls, (cls, dtype, op, args), dtype, (op, args))  # type: ignore[no-any-return]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Call(self.dtype, self.op, children)

    def __reduce__(self) -> tuple[Any, ...]:
        return Call, (self.dtype, self.op, self.args)


class Ramp(Expr):
    """The vector base, base + stride, ..., `lanes` long."""

    __slots__ = ("base", "stride", "lanes")
    base: Expr
    stride: Expr
    lanes: int

    def __new__(cls, base: Expr, stride: Expr, lanes: int) -> Ramp:
        if base.dtype is not stride.dtype or not base.dtype.is_int:
            raise TypeMismatchError(f"Ramp: base is {base.dtype}, stride {stride.dtype}")
        dtype = base.dtype.with_lanes(base.dtype.lanes * lanes)
        return make(cls, (cls, base, stride, lanes), dtype, (base, stride, lanes))  # type: ignore[no-any-return]

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.base, self.stride)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Ramp(children[0], children[1], self.lanes)


class Shuffle(Expr):
    """The lanes of the concatenated `vectors` at the constant positions `indices`."""

    __slots__ = ("vectors", "indices")
    vectors: tuple[Expr, ...]
    indices: tuple[int, ...]

    def __new__(cls, vectors: Sequence[Expr], indices: Sequence[int]) -> Shuffle:
        vectors, indices = tuple(vectors), tuple(int(i) for i in indices)
        total = sum(v.dtype.lanes for v in vectors)
        if not vectors or not all(0 <= i < total for i in indices):
            raise TypeMismatchError(f"Shuffle: positions {indices} outside {total} lanes")
        dtype = vectors[0].dtype.with_lanes(len(indices))
        return make(cls, (cls, vectors, indices), dtype, (vectors, indices))  # type: ignore[no-any-return]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.vectors

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Shuffle(children, self.indices)


def _declare(effect: Effect, arity: int | None, names: str) -> None:
    for name in names.split():
        OPS.register(name, Op(name, effect, arity))


# Floating-point functions of one argument; the result has the argument's type.
FLOATING = """exp exp2 exp10 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh
    tanh asin acos atan asinh acosh atanh erf sigmoid floor ceil round nearbyint trunc"""
_declare(Effect.PURE, 1, FLOATING)
_declare(Effect.PURE, 1, "abs popcount clz isnan isinf isfinite bitwise_not reinterpret")
_declare(
    Effect.PURE,
    2,
    """pow atan2 hypot fmod copysign ldexp
    shift_left shift_right bitwise_and bitwise_or bitwise_xor""",
)
_declare(Effect.PURE, 3, "fma")
_declare(Effect.PURE, 4, "q_multiply_shift")
# Control of evaluation: if_then_else evaluates one side only; likely is a hint.
_declare(Effect.PURE, 3, "if_then_else")
_declare(Effect.PURE, 1, "likely assume ret")
_declare(Effect.PURE, 0, "undef vscale")
# Foreign code: the first argument names it. Functions of the C mathematics library have no effects.
_LIBM = """exp exp2 exp10 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh
    acosh atanh erf pow atan2 hypot fmod ldexp sqrt cbrt fabs floor ceil trunc round rint nearbyint
    fmin fmax fdim copysign fma"""
LIBM_SYMBOLS = frozenset(name + suffix for name in _LIBM.split() for suffix in ("", "f"))
INSTRUCTION_CALLS = frozenset({"call_llvm_pure_intrin", "call_llvm_intrin"})
_declare(Effect.PURE, None, "call_pure_extern call_llvm_pure_intrin")
_declare(Effect.OPAQUE, None, "call_extern call_packed call_llvm_intrin tvm_call_intrin")
# Memory: pointers, prefetch (a hint with no meaning), synchronisation, thread reductions.
_declare(Effect.READ, None, "address_of access_ptr")
_declare(Effect.OPAQUE, None, "prefetch")
_declare(
    Effect.OPAQUE,
    None,
    """tvm_storage_sync tvm_thread_allreduce tvm_fill_fragment
    tvm_load_matrix_sync tvm_store_matrix_sync tvm_mma_sync ptx_ldmatrix ptx_mma
    ptx_commit_group ptx_wait_group ptx_cp_async mma_fill mma_store tvm_stack_make_array
    tvm_stack_make_shape start_profile_intrinsic end_profile_intrinsic""",
)
_declare(Effect.OPAQUE, 5, "make_filled_simdgroup_matrix")
_declare(Effect.OPAQUE, 7, "simdgroup_load simdgroup_store")
_declare(Effect.OPAQUE, 8, "simdgroup_multiply_accumulate")
_declare(Effect.PURE, 1, "ignore_loop_partition")
# Whether a lane of a vector of conditions holds.
_declare(Effect.PURE, 1, "any_lane")

_BOOL_RESULT = frozenset({"isnan", "isinf", "isfinite"})


def call(name: str, *args: ExprLike, dtype: DType | str | None = None) -> Call:
    """Apply the operation called `name`; without `dtype` the result has the arguments' type.

    Raises RegistryError for an unknown name, TypeMismatchError for a wrong number of arguments.
    """
    op = OPS.get(name)
    values = [as_expr(a) for a in args]
    if op.arity is not None and len(values) != op.arity:
        raise TypeMismatchError(f"{name} takes {op.arity} arguments, not {len(values)}")
    if name == "if_then_else":
        values[1:] = match_types(args[1], args[2])
        if not values[0].dtype.is_bool:
            raise TypeMismatchError(
                f"{name} needs a condition, not {values[0].dtype}; compare with != 0"
            )
    elif op.effect is Effect.PURE and op.arity == 2:
        values = list(match_types(args[0], args[1]))
    if dtype is None:
        if name in _BOOL_RESULT:
            dtype = "bool"
        elif values and op.arity is not None:
            dtype = values[-1].dtype
        else:
            raise TypeMismatchError(f"{name}: the result's type must be given")
    return Call(dtype, op, values)


def effect_of(expr: Expr) -> Effect:
    """The strongest effect among the operations in `expr` (loads from buffers count as PURE)."""
    worst, stack, seen = Effect.PURE, [expr], {expr}
    while stack:
        node = stack.pop()
        if isinstance(node, Call):
            worst = max(worst, node.op.effect)
        new = [child for child in node.children if child not in seen]
        seen.update(new)
        stack += new
    return worst
