"""One rule for each operation of `ir.op.OPS`: (emitter, call) -> value, or a typed refusal."""

from __future__ import annotations

import re
from collections.abc import Callable

from metasched.analysis.guarded import loads_in_any_case, parts_in_any_case
from metasched.codegen import vectormath
from metasched.codegen.arithmetic import binary, compare, convert, negate, select
from metasched.codegen.branch import choose
from metasched.codegen.emit import TRUE_VAL, Emitter
from metasched.codegen.in_memory import from_memory, to_memory
from metasched.codegen.intrinsics import require_intrinsic
from metasched.codegen.places import place_of
from metasched.codegen.tiles import tile_product
from metasched.codegen.types import (
    held_as_float32,
    instruction_type,
    memory_type,
    register_type,
    type_suffix,
)
from metasched.codegen.values import Val, literal
from metasched.errors import BuildError
from metasched.ir.buffer import BufferLoad
from metasched.ir.dtype import BOOL, INT32, INT64, DType
from metasched.ir.expr import LT, NE, Add, Expr, IntImm, Min, Mul, StringImm, Sub, Var  # fmt: skip
from metasched.ir.op import Call, Effect
from metasched.ir.visit import loads_of, walk_exprs
from metasched.lower.passes.tiles import is_tile_product

Rule = Callable[[Emitter, Call], Val]


def touches_memory(expr: Expr) -> bool:
    """Whether an expression reads memory or runs foreign code, so that it must run only where its
    value is needed."""
    return bool(loads_of(expr)) or _acts(expr)


def _math(e: Emitter, node: Call) -> Val:
    return vectormath.apply(e, node.op.name, [e.value(a) for a in node.args])


def _if_then_else(e: Emitter, node: Call) -> Val:
    """Evaluate the chosen side only; in a vectorized loop each side runs under its mask, unless it
    loads only what the condition loads, too."""
    from_condition = e.value(node.args[0])
    a, b = node.args[1:]
    if from_condition.const is not None:
        return e.value(a if from_condition.const else b)
    if not (touches_memory(a) or touches_memory(b)):
        return select(e, from_condition, *e.same_lanes(e.value(a), e.value(b)))
    _share_certain_parts(e, a, b)
    if from_condition.lanes > 1:
        loaded = set(loads_in_any_case(node.args[0]))
        one = _side(e, a, from_condition, loaded)
        two = _side(e, b, negate(e, from_condition), loaded)
        return select(e, from_condition, *e.same_lanes(one, two))
    return choose(e, from_condition, lambda: e.value(a), lambda: e.value(b))


def _share_certain_parts(e: Emitter, a: Expr, b: Expr) -> None:
    """Compute ahead what either side of a choice computes in any case: in a chain of choices that
    share parts, each side would repeat the chain before it."""
    if e.shared is None or _acts(a) or _acts(b):
        return
    other = parts_in_any_case(b)
    common = [part for part in parts_in_any_case(a) if part in other]
    inside = {child for part in common for child in part.children}
    for part in common:
        if part.children and part not in inside:
            e.value(part)


def _side(e: Emitter, side: Expr, chosen: Val, loaded: set[BufferLoad]) -> Val:
    """One side of a choice in lanes. A mask of its own would repeat the loads of the condition."""
    if all(load in loaded for load in loads_of(side)) and not _acts(side):
        return e.value(side)
    with e.masked(chosen):
        return e.value(side)


def _acts(expr: Expr) -> bool:
    """Whether an expression runs foreign code, or has an effect."""
    return any(
        isinstance(node, Call) and (node.op.effect is not Effect.PURE or node.op.arity is None)
        for node in walk_exprs(expr)
    )


def _identity(e: Emitter, node: Call) -> Val:
    return e.value(node.args[0])


def _assume(e: Emitter, node: Call) -> Val:
    return TRUE_VAL


def _undef(e: Emitter, node: Call) -> Val:
    zero = 0.0 if node.dtype.is_float else 0
    return literal(zero, node.dtype.scalar, node.dtype.lanes)


def _abs(e: Emitter, node: Call) -> Val:
    value = e.value(node.args[0])
    if value.dtype.is_float:
        return e.intrinsic(_name("llvm.fabs", value), value.dtype, value.lanes, value)
    if value.dtype.kind == "uint":
        return value
    return select(
        e, compare(e, LT, value, literal(0, value.dtype)),
        binary(e, Sub, literal(0, value.dtype), value), value,
    )  # fmt: skip


def _any_lane(e: Emitter, node: Call) -> Val:
    value = e.value(node.args[0])
    if value.lanes == 1:
        return value
    return e.intrinsic(f"llvm.vector.reduce.or.v{value.lanes}i1", BOOL, 1, value)


def _name(base: str, value: Val) -> str:
    return f"{base}.{type_suffix(value.dtype, value.lanes)}"


def _integer(e: Emitter, node: Call, position: int = 0) -> Val:
    value = e.value(node.args[position])
    if not (value.dtype.is_int or value.dtype.is_bool):
        raise BuildError(f"{node.op.name} needs integers, not {value.dtype}")
    return value


def _popcount(e: Emitter, node: Call) -> Val:
    value = _integer(e, node)
    result = e.intrinsic(_name("llvm.ctpop", value), value.dtype, value.lanes, value)
    return convert(e, result, node.dtype.scalar)


def _clz(e: Emitter, node: Call) -> Val:
    value = _integer(e, node)
    zero_is_defined = literal(0, BOOL)
    name = _name("llvm.ctlz", value)
    result = e.intrinsic(name, value.dtype, value.lanes, value, zero_is_defined)
    return convert(e, result, node.dtype.scalar)


def _not(e: Emitter, node: Call) -> Val:
    value = _integer(e, node)
    ones = literal(1 if value.dtype.is_bool else -1, value.dtype, value.lanes)
    return e.pure(f"xor {value.typed}, {ones.text}", value.dtype, value.lanes, value)


def _bitwise(op: str) -> Rule:
    def rule(e: Emitter, node: Call) -> Val:
        a, b = e.same_lanes(_integer(e, node), _integer(e, node, 1))
        return e.pure(f"{op} {a.type} {a.text}, {b.text}", a.dtype, a.lanes, a, b)

    return rule


def _shift(left: bool) -> Rule:
    def rule(e: Emitter, node: Call) -> Val:
        """Shifting by the width or more gives 0 (or the sign)."""
        a, b = e.same_lanes(_integer(e, node), _integer(e, node, 1))
        dtype, n = a.dtype, a.lanes
        op = "shl" if left else "ashr" if dtype.kind == "int" else "lshr"
        width = literal(dtype.bits, _unsigned(dtype), n)
        amount = Val(b.text, width.dtype, n, b.depth)
        inside = compare(e, LT, amount, width)
        last = literal(dtype.bits - 1, dtype, n)
        safe = select(e, inside, b, last)
        result = e.pure(f"{op} {a.type} {a.text}, {safe.text}", dtype, n, a, safe)
        return result if op == "ashr" else select(e, inside, result, literal(0, dtype, n))

    return rule


def _unsigned(dtype: DType) -> DType:
    return DType(f"uint{dtype.bits}")


def _isnan(e: Emitter, node: Call) -> Val:
    value = e.value(node.args[0])
    if not value.dtype.is_float:
        return literal(0, BOOL, value.lanes)
    return compare(e, NE, value, value)


def _magnitude(order: str, dual: bool) -> Rule:
    def rule(e: Emitter, node: Call) -> Val:
        value = e.value(node.args[0])
        if not value.dtype.is_float:
            return literal(int(dual), BOOL, value.lanes)
        size = e.intrinsic(_name("llvm.fabs", value), value.dtype, value.lanes, value)
        limit = literal(value.dtype.largest, value.dtype, value.lanes)
        text = f"fcmp {order} {size.type} {size.text}, {limit.text}"
        return e.pure(text, BOOL, value.lanes, size)

    return rule


def _reinterpret(e: Emitter, node: Call) -> Val:
    value, dtype = e.value(node.args[0]), node.dtype.scalar
    lanes = value.lanes if value.dtype.bits == dtype.bits else node.dtype.lanes
    same = value.dtype.bits * value.lanes == dtype.bits * lanes
    if not same or dtype.is_bool or value.dtype.is_bool:
        raise BuildError(f"reinterpret: {value.dtype} and {dtype} differ in size")
    held = to_memory(e, value)
    kind = memory_type(dtype, lanes)
    return from_memory(e, e.inline(f"bitcast {held} to {kind}", dtype, lanes))


def _fma(e: Emitter, node: Call) -> Val:
    a, b, c = e.same_lanes(*(e.value(x) for x in node.args))
    if not a.dtype.is_float or held_as_float32(a.dtype):
        return binary(e, Add, binary(e, Mul, a, b), c)
    return e.intrinsic(_name("llvm.fma", a), a.dtype, a.lanes, a, b, c)


def _q_multiply_shift(e: Emitter, node: Call) -> Val:
    """round(x * y * 2**(s - q)) in 64 bits, ties up."""
    x, y, q, s = (convert(e, e.value(a), INT64) for a in node.args)
    lanes = max(v.lanes for v in (x, y, q, s))
    zero, one = literal(0), literal(1)
    up = select(e, compare(e, LT, zero, s), s, zero)
    down = binary(e, Sub, q, binary(e, Min, s, zero))
    x, y, up, down = (e.widen(v, lanes) for v in (x, y, up, down))

    def step(op: str, a: Val, b: Val) -> Val:
        b = e.widen(b, lanes)
        return e.pure(f"{op} {a.type} {a.text}, {b.text}", INT64, lanes, a, b)

    product = step("mul", step("shl", x, up), y)
    half = step("shl", e.widen(one, lanes), step("sub", down, one))
    return convert(e, step("ashr", step("add", product, half), down), node.dtype.scalar)


# -- pointers and foreign code


def _address_of(e: Emitter, node: Call) -> Val:
    access = node.args[0] if node.args else None
    if not isinstance(access, BufferLoad) or len(access.indices) != 1:
        raise BuildError(f"{node.op.name} takes an element of a buffer")
    return place_of(e, access.buffer, access.indices[0]).pointer


def _access_ptr(e: Emitter, node: Call) -> Val:
    """access_ptr(pointer of a buffer, offset in its elements, extent, mask)."""
    base = node.args[0] if node.args else None
    element = e.elements.get(base) if isinstance(base, Var) else None
    if element is None or len(node.args) < 2:
        raise BuildError("access_ptr takes the pointer of a buffer, an offset, an extent, a mask")
    pointer = e.value(node.args[0])
    offset = convert(e, e.value(node.args[1]), INT64)
    text = f"getelementptr {memory_type(element)}, ptr {pointer.text}, {offset.typed}"
    return e.pure(text, pointer.dtype, 1, pointer, offset)


_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _symbol(node: Call) -> str:
    if not node.args or not isinstance(node.args[0], StringImm):
        raise BuildError(f"{node.op.name}: the first argument must be the function's name")
    return node.args[0].value


def _call_extern(e: Emitter, node: Call) -> Val:
    name = _symbol(node)
    if not _SYMBOL.fullmatch(name):
        raise BuildError(f"{node.op.name}: {name!r} is not a C function name")
    arguments = [e.value(a) for a in node.args[1:]]
    if e.mask is not None or any(a.lanes > 1 for a in arguments):
        raise BuildError(f"{name} is called on vectors; foreign functions take scalars")
    e.module.externs.add(name)
    return _foreign(e, node, name, [(a.type, a.text) for a in arguments])


def _foreign(e: Emitter, node: Call, name: str, operands: list[tuple[str, str]]) -> Val:
    """Call a foreign function; its operands are pairs (type, text)."""
    dtype = node.dtype
    result = "void" if dtype.kind == "void" else register_type(dtype.scalar, dtype.lanes)
    e.module.declare(name, f"{result} @{name}({', '.join(kind for kind, _ in operands)})")
    text = f"call {result} @{name}({', '.join(f'{kind} {text}' for kind, text in operands)})"
    if not name.startswith("llvm."):
        e.known_memory.clear()
    if result == "void":
        e.line(text)
        return literal(0, INT32)
    return e.inline(text, dtype.scalar, dtype.lanes)


def _call_llvm(e: Emitter, node: Call) -> Val:
    name, dtype = _symbol(node), node.dtype
    if is_tile_product(name):
        kinds = [(str(a.dtype.scalar), a.dtype.lanes) for a in node.args[1:]]
        require_intrinsic(name, (str(dtype.scalar), dtype.lanes), kinds, e.module.features)
        return tile_product(e, name, node)
    arguments = [e.value(a) for a in node.args[1:]]
    shapes = [(str(a.dtype), a.lanes) for a in arguments]
    require_intrinsic(name, (str(dtype.scalar), dtype.lanes), shapes, e.module.features)
    return _foreign(e, node, name, [_operand(e, a) for a in arguments])


def _operand(e: Emitter, value: Val) -> tuple[str, str]:
    """Type and text of a value as an operand of an intrinsic; bfloat16 is not passed as float."""
    if value.dtype.kind != "bfloat":
        return value.type, value.text
    kind = instruction_type(value.dtype.with_lanes(value.lanes))
    held = to_memory(e, value)
    return kind, e.inline(f"bitcast {held} to {kind}", value.dtype, value.lanes).text


def _prefetch(e: Emitter, node: Call) -> Val:
    address = e.value(node.args[0])
    hints = [a.value for a in node.args[1:] if isinstance(a, IntImm)]
    hints += [0, 3, 1][len(hints) :]
    e.module.declare("llvm.prefetch.p0", "void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    words = ", ".join(f"i32 {h}" for h in hints[:3])
    hint = f"call void @llvm.prefetch.p0(ptr {address.text}, {words})"
    if hint not in e.known_memory.hints:  # the rows of a register block repeat a prefetch
        e.known_memory.hints.add(hint)
        e.line(hint)
    return literal(0, INT32)


def _refuse(e: Emitter, node: Call) -> Val:
    raise BuildError(f"{node.op.name} has no code on {e.module.kind} targets")


_MATH = """exp exp2 exp10 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh tanh asin
    acos atan asinh acosh atanh erf sigmoid floor ceil round nearbyint trunc pow atan2 hypot fmod
    copysign ldexp"""
_REFUSED = """vscale ret call_packed tvm_call_intrin tvm_storage_sync tvm_thread_allreduce
    tvm_fill_fragment tvm_load_matrix_sync tvm_store_matrix_sync tvm_mma_sync ptx_ldmatrix ptx_mma
    ptx_commit_group ptx_wait_group ptx_cp_async mma_fill mma_store make_filled_simdgroup_matrix
    simdgroup_load simdgroup_store simdgroup_multiply_accumulate tvm_stack_make_array
    tvm_stack_make_shape"""

OP_RULES: dict[str, Rule] = {
    **dict.fromkeys(_MATH.split(), _math),
    **dict.fromkeys(_REFUSED.split(), _refuse),
    **dict.fromkeys(("likely", "ignore_loop_partition"), _identity),
    **dict.fromkeys(("assume", "start_profile_intrinsic", "end_profile_intrinsic"), _assume),
    **dict.fromkeys(("call_extern", "call_pure_extern"), _call_extern),
    **dict.fromkeys(("call_llvm_intrin", "call_llvm_pure_intrin"), _call_llvm),
    "abs": _abs, "popcount": _popcount, "clz": _clz, "bitwise_not": _not,
    "isnan": _isnan, "isinf": _magnitude("ogt", False), "isfinite": _magnitude("ole", True),
    "reinterpret": _reinterpret, "fma": _fma, "q_multiply_shift": _q_multiply_shift,
    "shift_left": _shift(True), "shift_right": _shift(False),
    "bitwise_and": _bitwise("and"), "bitwise_or": _bitwise("or"), "bitwise_xor": _bitwise("xor"),
    "any_lane": _any_lane, "if_then_else": _if_then_else, "undef": _undef,
    "address_of": _address_of, "access_ptr": _access_ptr, "prefetch": _prefetch,
}  # fmt: skip
