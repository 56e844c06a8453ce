"""Mathematical functions: our own float32 polynomials, one text for scalars and vectors alike.

Largest errors measured over the stated ranges, in units in the last place (tests hold them):
exp 1.1, exp2 1.2, exp10 2, log 1.1, log2 2, log10 2, tanh 2, sigmoid 3, erf 2, sin and cos 2 (for
|x| up to 2**28), rsqrt 1.5; sqrt is exact. float16 and bfloat16 compute in float32. Other
functions, and all transcendental ones in float64, call libm lane by lane.

Sources: the polynomials of exp, log and tanh are those of the Cephes library (S. Moshier), the one
of erf is N. Juffa's; sin and cos reduce in float64 by Cody and Waite.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from metasched.codegen.arithmetic import binary, convert
from metasched.codegen.emit import Emitter
from metasched.codegen.types import register_type, type_suffix
from metasched.codegen.values import Val, literal
from metasched.errors import BuildError
from metasched.ir.dtype import FLOAT32, DType
from metasched.ir.expr import Div

FLOAT64 = DType("float64")
# One rounding instruction of the processor (or a short sequence) each.
_NATIVE = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
           "nearbyint": "roundeven", "round": "round", "copysign": "copysign"}  # fmt: skip
_LIBM = frozenset(
    """exp exp2 exp10 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh
    atanh erf pow atan2 hypot fmod""".split()
)
LIBM_SYMBOLS = frozenset(n + s for n in (*_LIBM, "ldexp") for s in ("", "f"))


def apply(e: Emitter, name: str, operands: list[Val]) -> Val:
    """The function `name` of operands of one floating-point type."""
    dtype = operands[0].dtype
    if not dtype.is_float:
        if name in ("floor", "ceil", "trunc", "round", "nearbyint") and dtype.is_int:
            return operands[0]
        raise BuildError(f"{name} needs floating-point operands, not {dtype}")
    if dtype in ("float16", "bfloat16"):
        wide = [convert(e, v, FLOAT32) for v in operands]
        return convert(e, apply(e, name, wide), dtype)
    operands = e.same_lanes(*operands)
    lanes = operands[0].lanes
    if name in _NATIVE:
        suffix = type_suffix(dtype, lanes)
        return e.intrinsic(f"llvm.{_NATIVE[name]}.{suffix}", dtype, lanes, *operands)
    if name in _POLYNOMIALS and dtype == "float32":
        symbol = _define(e, name, lanes)
        text = f"call {operands[0].type} @{symbol}({operands[0].typed})"
        return e.pure(text, dtype, lanes, operands[0])
    if name == "rsqrt":
        root = apply(e, "sqrt", operands)
        return binary(e, Div, literal(1.0, dtype, lanes), root)
    return _sigmoid64(e, operands[0]) if name == "sigmoid" else _libm(e, name, operands)


def _sigmoid64(e: Emitter, x: Val) -> Val:
    text = f"fneg {x.typed}"
    power = _libm(e, "exp", [e.pure(text, x.dtype, x.lanes, x)])
    one = literal(1.0, x.dtype, x.lanes)
    below = e.pure(f"fadd {one.typed}, {power.text}", x.dtype, x.lanes, power)
    return binary(e, Div, one, below)


def _libm(e: Emitter, name: str, operands: list[Val]) -> Val:
    """Call a function of the C library for each lane."""
    dtype, lanes = operands[0].dtype, operands[0].lanes
    symbol = name if dtype == "float64" else name + "f"
    kind = register_type(dtype)
    integer = name == "ldexp"
    parameters = [kind] * len(operands)
    if integer:
        parameters[1] = "i32"
        operands = [operands[0], convert(e, operands[1], DType("int32"))]
    e.module.declare(symbol, f"{kind} @{symbol}({', '.join(parameters)})", "memory(none) nounwind")
    e.module.externs.add(symbol)
    result = Val("poison", dtype, lanes, 0)
    for i in range(lanes):
        lane = [e.extract(v, i) for v in operands]
        inside = ", ".join(v.typed for v in lane)
        one = e.pure(f"call {kind} @{symbol}({inside})", dtype, 1, *lane)
        if lanes == 1:
            return one
        text = f"insertelement {result.typed}, {one.typed}, i64 {i}"
        result = e.pure(text, dtype, lanes, result, one)
    return result


# -- the text of a polynomial function


class _Text:
    """Writes the instructions of one function on `lanes` float32 values."""

    def __init__(self, lanes: int, has_fma: bool, features: frozenset[str]) -> None:
        self.lanes, self.has_fma = lanes, has_fma
        wanted = {16: {"avx512f"}, 8: {"avx512f", "avx512vl"}}.get(lanes, {"none"})
        self.has_scalef = wanted <= features
        self.f = register_type(FLOAT32, lanes)
        self.d = register_type(FLOAT64, lanes)
        self.i = register_type(DType("int32"), lanes)
        self.b = register_type(DType("bool"), lanes)
        self.lines: list[str] = []
        self.declares: set[str] = set()

    def _name(self) -> str:
        return f"%t{len(self.lines)}"

    def emit(self, text: str) -> str:
        name = self._name()
        self.lines.append(f"{name} = {text}")
        return name

    def const(self, value: float) -> str:
        number = struct.unpack("<f", struct.pack("<f", value))[0]
        return self._splat("0x" + struct.pack(">d", number).hex().upper(), "float")

    def const64(self, value: float) -> str:
        return self._splat("0x" + struct.pack(">d", value).hex().upper(), "double")

    def int(self, value: int) -> str:
        return self._splat(str(value), "i32")

    def _splat(self, text: str, kind: str) -> str:
        return text if self.lanes == 1 else f"splat ({kind} {text})"

    def op(self, op: str, a: str, b: str) -> str:
        return self.emit(f"{op} {self.f} {a}, {b}")

    def iop(self, op: str, a: str, b: str) -> str:
        return self.emit(f"{op} {self.i} {a}, {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        if not self.has_fma:
            return self.op("fadd", self.op("fmul", a, b), c)
        return self._fma(self.f, "f32", a, b, c)

    def fma64(self, a: str, b: str, c: str) -> str:
        return self._fma(self.d, "f64", a, b, c)

    def _fma(self, kind: str, suffix: str, a: str, b: str, c: str) -> str:
        return self.call(f"llvm.fma.{self._mangle(suffix)}", kind, kind, a, b, c)

    def _mangle(self, suffix: str) -> str:
        return suffix if self.lanes == 1 else f"v{self.lanes}{suffix}"

    def call(self, name: str, result: str, kind: str, *operands: str) -> str:
        self.declares.add(f"{result} @{name}({', '.join([kind] * len(operands))})")
        inside = ", ".join(f"{kind} {v}" for v in operands)
        return self.emit(f"call {result} @{name}({inside})")

    def unary(self, name: str, a: str) -> str:
        return self.call(f"llvm.{name}.{self._mangle('f32')}", self.f, self.f, a)

    def copysign(self, a: str, b: str) -> str:
        return self.call(f"llvm.copysign.{self._mangle('f32')}", self.f, self.f, a, b)

    def less(self, a: str, b: str, order: str = "olt") -> str:
        return self.emit(f"fcmp {order} {self.f} {a}, {b}")

    def pick(self, condition: str, a: str, b: str, kind: str = "") -> str:
        kind = kind or self.f
        return self.emit(f"select {self.b} {condition}, {kind} {a}, {kind} {b}")

    def scalef(self, x: str, power: str, where: str) -> str:
        """Multiply x by 2**power, a whole power of any size, in the lanes of `where`; the others
        get 0. One instruction of AVX-512."""
        mask = self.emit(f"bitcast {self.b} {where} to i{self.lanes}")
        rest, rounding = self.const(0.0), ", i32 4" if self.lanes == 16 else ""
        name, f, m = f"llvm.x86.avx512.mask.scalef.ps.{self.lanes * 32}", self.f, f"i{self.lanes}"
        self.declares.add(f"{f} @{name}({f}, {f}, {f}, {m}{rounding[:5]})")
        operands = f"{f} {x}, {f} {power}, {f} {rest}, {m} {mask}{rounding}"
        return self.emit(f"call {f} @{name}({operands})")

    def poly(self, x: str, coefficients: list[float]) -> str:
        """Horner's rule, highest power first."""
        total = self.const(coefficients[0])
        for c in coefficients[1:]:
            total = self.fma(total, x, self.const(c))
        return total

    def bits(self, x: str) -> str:
        return self.emit(f"bitcast {self.f} {x} to {self.i}")

    def floating(self, x: str) -> str:
        return self.emit(f"bitcast {self.i} {x} to {self.f}")


_MAGIC = 12582912.0  # 1.5 * 2**23: adding it rounds to an integer in the low bits


def _clamp(t: _Text, x: str, low: float, high: float) -> tuple[str, str]:
    """Limit x to at most `high`; the second result is the mask of lanes that are not below `low`
    (NaN counts as not below).

    Without AVX-512's scalef, lanes below `low` are replaced by 0 before the computation. Their
    results would be subnormal numbers, which take up to a hundred times as long on many processors.
    A softmax with a mask has many such lanes.
    """
    where = t.less(x, t.const(low), "uge")
    x = t.pick(t.less(x, t.const(high), "ogt"), t.const(high), x)
    return x if t.has_scalef else t.pick(where, x, t.const(0.0)), where


def _exp_tail(t: _Text, where: str, shifted: str, r: str) -> str:
    """Compute exp(r) * 2**n for |r| <= ln(2) / 2, and 0 outside of `where`; n is in the low bits of
    `shifted`, offset by the rounding constant."""
    p = t.poly(r, [1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2,
                   1.6666665459e-1, 5.0000001201e-1])  # fmt: skip
    y = t.fma(p, t.op("fmul", r, r), r)
    y = t.op("fadd", y, t.const(1.0))
    if t.has_scalef:
        return t.scalef(y, t.op("fsub", shifted, t.const(_MAGIC)), where)
    bits = struct.unpack("<i", struct.pack("<f", _MAGIC))[0]
    n = t.iop("sub", t.bits(shifted), t.int(bits))
    half = t.iop("ashr", n, t.int(1))
    for part in (half, t.iop("sub", n, half)):
        power = t.iop("shl", t.iop("add", part, t.int(127)), t.int(23))
        y = t.op("fmul", y, t.floating(power))
    return t.pick(where, y, t.const(0.0))


def _reduced(t: _Text, x: str, factor: float, high: float, low: float) -> tuple[str, str]:
    """Reduce an argument: n = round(x * factor), and x - n * (high + low)."""
    shifted = t.fma(x, t.const(factor), t.const(_MAGIC))
    n = t.op("fsub", shifted, t.const(_MAGIC))
    r = t.fma(n, t.const(-high), x)
    return shifted, t.fma(n, t.const(-low), r)


def _exp(t: _Text, x: str) -> str:
    x, where = _clamp(t, x, -104.0, 89.0)
    shifted, r = _reduced(t, x, 1.44269504088896341, 0.693359375, -2.12194440e-4)
    return _exp_tail(t, where, shifted, r)


def _exp2(t: _Text, x: str) -> str:
    x, where = _clamp(t, x, -151.0, 129.0)
    shifted = t.op("fadd", x, t.const(_MAGIC))
    r = t.op("fsub", x, t.op("fsub", shifted, t.const(_MAGIC)))
    return _exp_tail(t, where, shifted, t.op("fmul", r, t.const(math.log(2.0))))


def _exp10(t: _Text, x: str) -> str:
    x, where = _clamp(t, x, -46.0, 39.0)
    high = 0.301025390625
    shifted, r = _reduced(t, x, math.log2(10.0), high, math.log10(2.0) - high)
    return _exp_tail(t, where, shifted, t.op("fmul", r, t.const(math.log(10.0))))


def _log_parts(t: _Text, x: str) -> tuple[str, str, str]:
    """Split positive finite x = 2**e * (1 + m): gives e, m and log(1 + m) - m + m*m/2."""
    tiny = t.less(x, t.const(2.0**-126))
    scaled = t.op("fmul", x, t.const(2.0**23))
    x = t.pick(tiny, scaled, x)
    bits = t.bits(x)
    offset = t.iop("sub", bits, t.int(0x3F3504F3))  # the bits of sqrt(1/2)
    exponent = t.iop("ashr", offset, t.int(23))
    mantissa = t.floating(t.iop("sub", bits, t.iop("shl", exponent, t.int(23))))
    m = t.op("fsub", mantissa, t.const(1.0))
    number = t.emit(f"sitofp {t.i} {exponent} to {t.f}")
    lower = t.op("fsub", number, t.const(23.0))
    number = t.pick(tiny, lower, number)
    square = t.op("fmul", m, m)
    p = t.poly(m, [7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1,
                   1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1,
                   3.3333331174e-1])  # fmt: skip
    return number, m, t.op("fmul", t.op("fmul", m, square), p)


def _log_edges(t: _Text, x: str, y: str) -> str:
    """Replace the results of a logarithm at 0, below 0, at infinity and at NaN."""
    inf = t.const(math.inf)
    y = t.pick(t.less(x, inf, "oeq"), inf, y)
    y = t.pick(t.less(x, t.const(0.0), "oeq"), t.const(-math.inf), y)
    y = t.pick(t.less(x, t.const(0.0)), t.const(math.nan), y)
    return t.pick(t.less(x, x, "uno"), x, y)


def _log(t: _Text, x: str) -> str:
    e, m, y = _log_parts(t, x)
    y = t.fma(e, t.const(-2.12194440e-4), y)
    square = t.op("fmul", m, m)
    y = t.fma(square, t.const(-0.5), y)
    y = t.op("fadd", m, y)
    return _log_edges(t, x, t.fma(e, t.const(0.693359375), y))


def _log_in_base(t: _Text, x: str, base: float) -> str:
    """log(x) / log(base), the logarithm of m kept in two parts."""
    e, m, y = _log_parts(t, x)
    square = t.op("fmul", m, m)
    y = t.fma(square, t.const(-0.5), y)
    scale = 1.0 / math.log(base)
    high = struct.unpack("<f", struct.pack("<f", scale))[0]
    tail = t.fma(m, t.const(scale - high), t.op("fmul", y, t.const(high)))
    total = t.fma(m, t.const(high), tail)
    unit = math.log(2.0) / math.log(base)
    unit_high = math.floor(unit * 4096.0) / 4096.0
    total = t.fma(e, t.const(unit - unit_high), total)
    return _log_edges(t, x, t.fma(e, t.const(unit_high), total))


def _tanh(t: _Text, x: str) -> str:
    size = t.unary("fabs", x)
    z = t.op("fmul", x, x)
    p = t.poly(z, [-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
                   -3.33332819422e-1])  # fmt: skip
    small = t.fma(t.op("fmul", p, z), x, x)
    double = t.op("fadd", size, size)
    power = _exp(t, double)
    below = t.op("fadd", power, t.const(1.0))
    large = t.op("fsub", t.const(1.0), t.op("fdiv", t.const(2.0), below))
    large = t.copysign(large, x)
    return t.pick(t.less(size, t.const(0.625), "ult"), small, large)


def _sigmoid(t: _Text, x: str) -> str:
    power = _exp(t, t.emit(f"fneg {t.f} {x}"))
    return t.op("fdiv", t.const(1.0), t.op("fadd", power, t.const(1.0)))


def _erf(t: _Text, x: str) -> str:
    size, square = t.unary("fabs", x), t.op("fmul", x, x)
    r = t.fma(t.const(-1.72853470e-5), size, t.const(3.83197126e-4))
    u = t.fma(t.const(-3.88396438e-3), size, t.const(2.42546219e-2))
    r = t.fma(r, square, u)
    for c in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = t.fma(r, size, t.const(c))
    r = t.fma(r, size, t.emit(f"fneg {t.f} {size}"))
    large = t.copysign(t.op("fsub", t.const(1.0), _exp(t, r)), x)
    p = t.poly(square, [-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1,
                        -3.76125336e-1, 1.28379166e-1])  # fmt: skip
    small = t.fma(p, x, x)
    return t.pick(t.less(size, t.const(0.927734375), "ogt"), large, small)


def _turn(t: _Text, x: str, quarter: int) -> str:
    """Compute sin(x + quarter * pi / 2), with the argument reduced in float64."""
    wide = t.emit(f"fpext {t.f} {x} to {t.d}")
    magic = 6755399441055744.0  # 1.5 * 2**52
    scaled = t.emit(f"fmul {t.d} {wide}, {t.const64(2.0 / math.pi)}")
    shifted = t.emit(f"fadd {t.d} {scaled}, {t.const64(magic)}")
    n = t.emit(f"fsub {t.d} {shifted}, {t.const64(magic)}")
    r = t.fma64(n, t.const64(-math.pi / 2), wide)
    r = t.fma64(n, t.const64(-6.123233995736766e-17), r)
    low = t.emit(f"fptrunc {t.d} {r} to {t.f}")
    longs = register_type(DType("int64"), t.lanes)
    octant = t.emit(f"trunc {longs} {t.emit(f'bitcast {t.d} {shifted} to {longs}')} to {t.i}")
    octant = t.iop("add", octant, t.int(quarter))
    z = t.op("fmul", low, low)
    sine = t.poly(z, [2.7181216275e-6, -1.9839334836e-4, 8.3333293855e-3, -1.6666654611e-1])
    sine = t.fma(t.op("fmul", sine, z), low, low)
    cosine = t.poly(z, [2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2, -0.5])
    cosine = t.fma(cosine, z, t.const(1.0))
    odd = t.emit(f"icmp ne {t.i} {t.iop('and', octant, t.int(1))}, {t.int(0)}")
    value = t.pick(odd, cosine, sine)
    sign = t.iop("shl", t.iop("and", octant, t.int(2)), t.int(30))
    return t.floating(t.iop("xor", t.bits(value), sign))


def _rsqrt(t: _Text, x: str) -> str:
    return t.op("fdiv", t.const(1.0), t.unary("sqrt", x))


_POLYNOMIALS: dict[str, Callable[[_Text, str], str]] = {
    "exp": _exp,
    "exp2": _exp2,
    "exp10": _exp10,
    "log": _log,
    "log2": lambda t, x: _log_in_base(t, x, 2.0),
    "log10": lambda t, x: _log_in_base(t, x, 10.0),
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "sin": lambda t, x: _turn(t, x, 0),
    "cos": lambda t, x: _turn(t, x, 1),
    "rsqrt": _rsqrt,
}


def _define(e: Emitter, name: str, lanes: int) -> str:
    """Add the function for `lanes` lanes to the module once; gives its symbol."""
    symbol = f"ms.{name}.v{lanes}f32"
    if symbol not in e.module.definitions:
        text = _Text(lanes, e.module.has_fma, e.module.features)
        result = _POLYNOMIALS[name](text, "%x")
        body = "\n".join([*text.lines, f"ret {text.f} {result}"])
        for declaration in sorted(text.declares):
            e.module.declare(declaration.split("@")[1].split("(")[0], declaration)
        e.module.definitions[symbol] = (
            f"define internal {text.f} @{symbol}({text.f} %x) alwaysinline nounwind "
            f"memory(none) {e.module.target_attribute} {{\n{body}\n}}"
        )
    return symbol
