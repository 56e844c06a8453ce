"""Arithmetic on values: operators, comparisons, casts and selection, scalar or vector alike.

Integers wrap; // and % round down and give 0 for a zero divisor; min and max propagate NaN; float
to integer saturates. float16 computes in its own type; bfloat16 and the types of 8 bits do in
float32, rounded after each step (`small_floats`).
"""

from __future__ import annotations

from collections.abc import Callable

from metasched.codegen.emit import Emitter
from metasched.codegen.small_floats import rounded
from metasched.codegen.types import held_as_float32, register_type, type_suffix
from metasched.codegen.values import Val, literal
from metasched.codegen.wide_division import divides_in_vectors, quotient
from metasched.errors import BuildError
from metasched.ir.dtype import BOOL, FLOAT32, INT32, DType
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    BinaryOp,
    Compare,
    Div,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mod,
    Mul,
    Sub,
    wrap,
)  # fmt: skip

_FLOAT_OP = {Add: "fadd", Sub: "fsub", Mul: "fmul", Div: "fdiv"}
_INT_OP = {Add: "add", Sub: "sub", Mul: "mul"}
_FOLD: dict[type[BinaryOp], Callable[[int, int], int]] = {
    Add: lambda a, b: a + b,
    Sub: lambda a, b: a - b,
    Mul: lambda a, b: a * b,
    FloorDiv: lambda a, b: a // b if b else 0,
    FloorMod: lambda a, b: a % b if b else 0,
    Div: lambda a, b: abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1) if b else 0,
    Mod: lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1) if b else 0,
    Min: min,
    Max: max,
}
_ORDER = {EQ: "eq", NE: "ne", LT: "lt", LE: "le", GT: "gt", GE: "ge"}


def binary(e: Emitter, kind: type[BinaryOp], a: Val, b: Val) -> Val:
    """Emit kind(a, b) for the arithmetic operators and for min and max."""
    dtype = a.dtype
    if dtype.is_float:
        a, b = e.same_lanes(a, b)
        rule = _FLOAT_RULES.get(kind)
        if rule is not None:
            return rule(e, a, b)
        op = f"{_FLOAT_OP[kind]}{'' if e.unfused or kind is Div else ' contract'}{e.flags}"
        result = e.pure(f"{op} {a.type} {a.text}, {b.text}", dtype, a.lanes, a, b)
        return rounded(e, result)
    if a.const is not None and b.const is not None:
        value = wrap(dtype, _FOLD[kind](int(a.const), int(b.const)))
        return literal(value, dtype)
    if dtype.is_bool and kind in (Min, Max):
        return logical(e, "and" if kind is Min else "or", a, b)
    if not dtype.is_int:
        raise BuildError(f"{kind.__name__} has no meaning on {dtype}")
    simple = _identity(kind, a, b)
    if simple is not None:
        return simple
    width = _width(kind, a, b)
    nonneg = a.nonneg and b.nonneg and kind is not Sub and width < 64
    a, b = e.same_lanes(a, b)
    if kind in _INT_OP:
        result = e.pure(f"{_INT_OP[kind]} {a.type} {a.text}, {b.text}", dtype, a.lanes, a, b)
    elif kind in (Min, Max):
        name = f"llvm.{'s' if dtype.kind == 'int' else 'u'}{kind.__name__.lower()}"
        result = _named(e, name, dtype, a, b)
    else:
        result = _divide(e, kind, a, b, nonneg)
    if nonneg and dtype.bits == 64:
        result.nonneg, result.width = True, width
    return result


_INDEX_WIDTH = 40
"""The width of an index that meets a value from memory: buffers have fewer elements."""


def _width(kind: type[BinaryOp], a: Val, b: Val) -> int:
    """The `Val.width` of the result, if neither operand is negative."""
    if not (a.width or b.width):
        return 0
    widths = [
        v.width or (int(v.const).bit_length() if v.const is not None else _INDEX_WIDTH)
        for v in (a, b)
    ]
    if kind is Mul:
        return sum(widths)
    return max(widths) + (kind is Add)


def _identity(kind: type[BinaryOp], a: Val, b: Val) -> Val | None:
    """The result of x + 0, x - 0, x * 1, x * 0, x // 1 or x % 1 without an instruction; None for
    other operands."""
    if b.const is None:
        if a.const == 0 and kind is Add:
            return b
        if kind is Mul and a.const in (0, 1):
            return b if a.const == 1 else a if b.lanes == 1 else literal(0, b.dtype, b.lanes)
        return None
    if b.const == 0:
        if kind in (Add, Sub):
            return a
        return literal(0, a.dtype, a.lanes) if kind is Mul else None
    if b.const == 1:
        if kind in (Mul, FloorDiv, Div):
            return a
        if kind in (FloorMod, Mod):
            return literal(0, a.dtype, a.lanes)
    return None


def _named(e: Emitter, name: str, dtype: DType, *operands: Val) -> Val:
    from_type = operands[0]
    suffix = _suffix(from_type)
    return e.intrinsic(f"{name}.{suffix}", dtype, from_type.lanes, *operands)


def _suffix(value: Val) -> str:
    names = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}
    element = register_type(value.dtype)
    text = names.get(element, element)
    return text if value.lanes == 1 else f"v{value.lanes}{text}"


def _divide(e: Emitter, kind: type[BinaryOp], a: Val, b: Val, nonneg: bool) -> Val:
    """Emit one of the four integer divisions; `nonneg` says that no operand is negative."""
    dtype, lanes = a.dtype, a.lanes
    unsigned = dtype.kind == "uint" or nonneg
    divides = kind in (Div, FloorDiv)
    number = _splat_value(b)
    safe, zero = (b, None) if number not in (None, 0, -1) else _safe_divisor(e, a, b, unsigned)
    op = ("u" if unsigned else "s") + ("div" if divides else "rem")
    floors = kind in (FloorDiv, FloorMod) and not unsigned
    if floors and number is not None and number > 0 and number & (number - 1) == 0:
        shift = literal(number.bit_length() - 1 if divides else number - 1, dtype, lanes)
        text = f"{'ashr' if divides else 'and'} {a.type} {a.text}, {shift.text}"
        return e.pure(text, dtype, lanes, a)
    if number is not None and divides_in_vectors(e, a, number):
        result = quotient(e, a, number, unsigned)
        if not divides:
            whole = e.pure(f"mul {a.type} {result.text}, {b.text}", dtype, lanes, result, b)
            result = e.pure(f"sub {a.type} {a.text}, {whole.text}", dtype, lanes, a, whole)
    else:
        result = e.pure(f"{op} {a.type} {a.text}, {safe.text}", dtype, lanes, a, safe)
    if floors:
        result = _floor_fix(e, a, safe, result, divides)
    if zero is not None:
        none = literal(0, dtype, lanes)
        result = select(e, zero, none, result)
    return result


def _splat_value(value: Val) -> int | None:
    if value.const is not None:
        return int(value.const)
    if value.text.startswith("splat ("):
        return int(value.text.rstrip(")").split()[-1])
    return None


def _safe_divisor(e: Emitter, a: Val, b: Val, unsigned: bool) -> tuple[Val, Val]:
    """A divisor that cannot trap, and whether b is 0. The divisor is 1 if b is 0, or if b is -1 and
    the dividend is the smallest integer; otherwise b."""
    zero, one = literal(0, b.dtype, b.lanes), literal(1, b.dtype, b.lanes)
    is_zero = compare(e, EQ, b, zero)
    trap = is_zero
    if not unsigned:
        low = literal(b.dtype.range[0], b.dtype, b.lanes)
        minus = literal(-1, b.dtype, b.lanes)
        overflow = e.both(compare(e, EQ, a, low), compare(e, EQ, b, minus))
        trap = logical(e, "or", is_zero, overflow)
    return select(e, trap, one, b), is_zero


def _floor_fix(e: Emitter, a: Val, b: Val, truncated: Val, divides: bool) -> Val:
    """Correct a truncated quotient or remainder for a division that rounds down."""
    dtype, lanes = a.dtype, a.lanes
    zero = literal(0, dtype, lanes)
    if divides:
        product = e.pure(f"mul {a.type} {truncated.text}, {b.text}", dtype, lanes, truncated, b)
        rest = e.pure(f"sub {a.type} {a.text}, {product.text}", dtype, lanes, a, product)
    else:
        rest = truncated
    signs = e.pure(f"xor {a.type} {rest.text}, {b.text}", dtype, lanes, rest, b)
    differ = e.both(compare(e, NE, rest, zero), compare(e, LT, signs, zero))
    change, op = (literal(1, dtype, lanes), "sub") if divides else (b, "add")
    text = f"{op} {a.type} {truncated.text}, {change.text}"
    fixed = e.pure(text, dtype, lanes, truncated, change)
    return select(e, differ, fixed, truncated)


# -- floating point


def _extreme(name: str) -> Callable[[Emitter, Val, Val], Val]:
    def rule(e: Emitter, a: Val, b: Val) -> Val:
        """Emit min or max: NaN propagates; of two zeros the result may be either.

        LLVM's code tests the first operand for NaN. So a constant, which needs no test, is put
        first; otherwise b is put first, since a is mostly an accumulator.
        """
        constant = a.text.startswith(("splat", "0x"))
        if not constant:
            a, b = b, a
        if not constant and not b.text.startswith(("splat", "0x")) and not e.no_nan:
            found = _masked_extreme(e, name, a, b)
            if found is not None:
                return found
        kind = type_suffix(a.dtype, a.lanes)
        symbol = f"llvm.{name}.{kind}"
        e.module.declare(symbol, f"{a.type} @{symbol}({a.type}, {a.type})")
        text = f"call nsz{e.no_nan} {a.type} @{symbol}({a.typed}, {b.typed})"
        return e.pure(text, a.dtype, a.lanes, a, b)

    return rule


def _masked_extreme(e: Emitter, name: str, a: Val, b: Val) -> Val | None:
    """The extreme of 512 bits of floats by AVX-512: where a is NaN, a mask keeps a.

    The instruction gives b if an operand is NaN. LLVM's own code takes one instruction more, which
    puts a into the result afterwards. None for other vectors.
    """
    letter = {"float32": "s", "float64": "d"}.get(str(a.dtype))
    wide = a.lanes * a.dtype.bits == 512 == e.module.vector_bits  # LLVM cannot split the call
    if letter is None or not wide or "avx512f" not in e.module.features:
        return None
    symbol = f"llvm.x86.avx512.{name[:3]}.p{letter}.512"
    e.module.declare(symbol, f"{a.type} @{symbol}({a.type}, {a.type}, i32)")
    text = f"call {a.type} @{symbol}({a.typed}, {b.typed}, i32 4)"
    plain = e.pure(text, a.dtype, a.lanes, a, b)
    number = e.pure(f"fcmp ord {a.type} {a.text}, {a.text}", BOOL, a.lanes, a)
    return select(e, number, plain, a)


def _float_mod(e: Emitter, a: Val, b: Val) -> Val:
    """The remainder with the sign of the dividend (C's fmod)."""
    return rounded(e, e.pure(f"frem {a.type} {a.text}, {b.text}", a.dtype, a.lanes, a, b))


def _float_floormod(e: Emitter, a: Val, b: Val) -> Val:
    """The remainder with the sign of the divisor."""
    rest = _float_mod(e, a, b)
    zero = literal(0.0, a.dtype, a.lanes)
    none = _named(e, "llvm.copysign", a.dtype, zero, b)
    exact = select(e, compare(e, EQ, rest, zero), none, rest)
    return select(e, _other_sign(e, rest, b), binary(e, Add, rest, b), exact)


def _other_sign(e: Emitter, rest: Val, b: Val) -> Val:
    """Whether a remainder is not zero and has another sign than the divisor."""
    zero = literal(0.0, b.dtype, b.lanes)
    negative = [compare(e, LT, v, zero) for v in (rest, b)]
    text = f"xor {negative[0].type} {negative[0].text}, {negative[1].text}"
    differ = e.pure(text, BOOL, b.lanes, *negative)
    return e.both(compare(e, NE, rest, zero), differ)


def _float_floordiv(e: Emitter, a: Val, b: Val) -> Val:
    """The exact quotient rounded down, computed from the remainder as NumPy does.

    The plain quotient is the result for a zero divisor. Steps in fewer than 32 bits would
    round too often.
    """
    if a.dtype.bits < 32:
        wide = _float_floordiv(e, convert(e, a, FLOAT32), convert(e, b, FLOAT32))
        return convert(e, wide, a.dtype)
    rest = _float_mod(e, a, b)
    towards_zero = binary(e, Div, binary(e, Sub, a, rest), b)
    below = binary(e, Sub, towards_zero, literal(1.0, a.dtype, a.lanes))
    quotient = select(e, _other_sign(e, rest, b), below, towards_zero)
    whole = _named(e, "llvm.roundeven", a.dtype, quotient)
    zero, plain = literal(0.0, a.dtype, a.lanes), binary(e, Div, a, b)
    signed = _named(e, "llvm.copysign", a.dtype, zero, plain)
    result = select(e, compare(e, EQ, whole, zero), signed, whole)
    return select(e, compare(e, EQ, b, zero), plain, result)


_FLOAT_RULES = {
    Min: _extreme("minimum"),
    Max: _extreme("maximum"),
    Mod: _float_mod,
    FloorMod: _float_floormod,
    FloorDiv: _float_floordiv,
}


# -- comparisons, logic, selection


def compare(e: Emitter, kind: type[Compare], a: Val, b: Val) -> Val:
    """Emit a comparison. If an operand is NaN, only != holds."""
    if a.const is not None and b.const is not None and not a.dtype.is_float:
        x, y = int(a.const), int(b.const)
        result = {EQ: x == y, NE: x != y, LT: x < y, LE: x <= y, GT: x > y, GE: x >= y}[kind]
        return literal(int(result), BOOL)
    a, b = e.same_lanes(a, b)
    word = _ORDER[kind]
    if a.dtype.is_float:
        order = "une" if kind is NE else f"o{word}"
        text = f"fcmp{e.no_nan} {order} {a.type} {a.text}, {b.text}"
        return e.pure(text, BOOL, a.lanes, a, b)
    if kind not in (EQ, NE):
        word = ("s" if a.dtype.kind == "int" else "u") + word
    return e.pure(f"icmp {word} {a.type} {a.text}, {b.text}", BOOL, a.lanes, a, b)


def logical(e: Emitter, op: str, a: Val, b: Val) -> Val:
    """Emit `and` or `or` on bool values; both operands are evaluated."""
    if op == "and":
        return e.both(*e.same_lanes(a, b)) if a.lanes != b.lanes else e.both(a, b)
    if a.const is not None:
        return a if a.const else b
    if b.const is not None:
        return b if b.const else a
    a, b = e.same_lanes(a, b)
    return e.pure(f"or {a.type} {a.text}, {b.text}", BOOL, a.lanes, a, b)


def negate(e: Emitter, a: Val) -> Val:
    """not a, on bool."""
    if a.const is not None:
        return literal(int(not a.const), BOOL)
    return e.pure(f"xor {a.type} {a.text}, {literal(1, BOOL, a.lanes).text}", BOOL, a.lanes, a)


def select(e: Emitter, condition: Val, a: Val, b: Val) -> Val:
    """The value a where the condition holds, else b; both values are computed beforehand."""
    if condition.const is not None:
        return a if condition.const else b
    lanes = max(a.lanes, b.lanes, condition.lanes)
    a, b = e.widen(a, lanes), e.widen(b, lanes)
    if lanes > 1 and condition.lanes > 1:
        condition = e.widen(condition, lanes)
    text = f"select {condition.typed}, {a.typed}, {b.typed}"
    return e.pure(text, a.dtype, lanes, condition, a, b)


# -- conversions


def convert(e: Emitter, value: Val, dtype: DType) -> Val:
    """Convert `value` to `dtype`: round to nearest, saturate from float to integer, wrap between
    integers."""
    source = value.dtype
    if source is dtype:
        return value
    if dtype.is_bool:
        kind: type[Compare] = NE
        return compare(e, kind, value, literal(0, source, value.lanes))
    if value.const is not None and source.kind in ("int", "uint", "bool"):
        number = int(value.const)
        if dtype.is_int:
            return literal(wrap(dtype, number), dtype)
        if abs(number) <= 1 << 8:
            return literal(float(number), dtype)
    if "handle" in (source.kind, dtype.kind):
        raise BuildError(f"no conversion from {source} to {dtype}")
    if source.is_float:
        return _from_float(e, value, dtype)
    if dtype.is_float:
        return _int_to_float(e, value, dtype)
    return _int_to_int(e, value, dtype)


def _step(e: Emitter, op: str, value: Val, dtype: DType) -> Val:
    text = f"{op} {value.typed} to {register_type(dtype, value.lanes)}"
    return e.pure(text, dtype, value.lanes, value)


def _from_float(e: Emitter, value: Val, dtype: DType) -> Val:
    source = value.dtype
    if dtype.is_int:
        if source == "float16":  # LLVM 22 with avx512fp16 converts NaN to the smallest int16
            value = _step(e, "fpext", value, FLOAT32)
        if value.lanes > 1 and not e.module.saturates_vectors:
            return _saturated(e, value, dtype)
        kind = "fptosi" if dtype.kind == "int" else "fptoui"
        suffix = _suffix(Val("", dtype, value.lanes))
        return e.intrinsic(f"llvm.{kind}.sat.{suffix}.{_suffix(value)}", dtype, value.lanes, value)
    if held_as_float32(source):
        value = _relabel(value, FLOAT32)
        return value if dtype == "float32" else convert(e, value, dtype)
    if held_as_float32(dtype):
        if source == "float64":
            value = _odd_rounded(e, value)
        return rounded(e, _relabel(convert(e, value, FLOAT32), dtype))
    if source == "float64" and dtype == "float16":  # the direct conversion would call a library
        value = _odd_rounded(e, value)
    return _step(e, "fpext" if dtype.bits > value.dtype.bits else "fptrunc", value, dtype)


def _saturated(e: Emitter, value: Val, dtype: DType) -> Val:
    """Cut the fractions of a vector and keep it within an integer type; NaN gives 0.

    LLVM 22 has no vector instructions of x86 for `llvm.fptosi.sat`: it converts lane by lane.
    """
    if held_as_float32(value.dtype):
        value = _relabel(value, FLOAT32)
    source, n = value.dtype, value.lanes
    low, high = dtype.range
    if low:  # for unsigned integers the lower limit, 0, replaces NaN
        value = select(e, compare(e, EQ, value, value), value, literal(0.0, source, n))
    least = literal(float(low), source, n)
    value = select(e, compare(e, GT, value, least), value, least)
    exact = dtype.bits <= (24 if source == "float32" else 53)
    limit = literal(float(high if exact else high + 1), source, n)
    inside = compare(e, LT, value, limit)
    value = select(e, inside, value, limit if exact else literal(0.0, source, n))
    if dtype.bits < 32:
        return _step(e, "trunc", _step(e, "fptosi", value, INT32), dtype)
    result = _step(e, "fptosi" if low else "fptoui", value, dtype)
    return result if exact else select(e, inside, result, literal(high, dtype, n))


def _odd_rounded(e: Emitter, value: Val) -> Val:
    """Convert float64 to float32 by rounding to odd, so that a second rounding is exact."""
    near = _step(e, "fptrunc", value, FLOAT32)
    back = _step(e, "fpext", near, value.dtype)
    n, u32 = value.lanes, DType("uint32")
    kind = register_type(u32, n)
    bits = e.pure(f"bitcast {near.typed} to {kind}", u32, n, near)
    size = _named(e, "llvm.fabs", value.dtype, value)
    near_size = _named(e, "llvm.fabs", value.dtype, back)
    above = compare(e, GT, near_size, size)
    one, none = literal(1, u32, n), literal(0, u32, n)
    down = binary(e, Sub, bits, select(e, above, one, none))
    inexact = compare(e, NE, value, back)
    sticky = select(e, inexact, one, none)
    odd = e.pure(f"or {kind} {down.text}, {sticky.text}", u32, n, down, sticky)
    odd = select(e, inexact, odd, bits)
    return e.pure(f"bitcast {odd.typed} to {near.type}", FLOAT32, n, odd)


def _relabel(value: Val, dtype: DType) -> Val:
    """The same register under another type (those of `small_floats` are held as float32)."""
    return Val(value.text, dtype, value.lanes, value.depth, value.const)


def _int_to_float(e: Emitter, value: Val, dtype: DType) -> Val:
    op = "sitofp" if value.dtype.kind == "int" else "uitofp"
    if held_as_float32(dtype):
        wide = _step(e, op, value, DType("float64"))
        return convert(e, wide, dtype)
    return _step(e, op, value, dtype)


def _int_to_int(e: Emitter, value: Val, dtype: DType) -> Val:
    if dtype.bits == value.dtype.bits:
        return Val(value.text, dtype, value.lanes, value.depth, value.const)
    if dtype.bits < value.dtype.bits:
        return _step(e, "trunc", value, dtype)
    result = _step(e, "sext" if value.dtype.kind == "int" else "zext", value, dtype)
    if value.dtype.kind != "int" or value.nonneg:
        result.nonneg = True
        result.width = value.width or (0 if value.nonneg else value.dtype.bits)
    return result
