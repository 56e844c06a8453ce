"""The text of one mathematical function in LLVM's language, on scalars or on vectors."""

from __future__ import annotations

import dataclasses
import struct
from dataclasses import dataclass

from metasched.codegen.types import constant, register_type, splat
from metasched.ir.dtype import BOOL, FLOAT32, DType

# Polynomials of at least so many coefficients are evaluated in pairs, and in pairs of pairs.
_SHORT, _LONG = 5, 10


@dataclass(frozen=True, slots=True)
class Format:
    """A floating-point format: its type, the integer type of its bits, and the sizes of its
    fields.

    Attributes:
        mantissa: the number of stored bits of the significand.
        bias: the number that is added to an exponent before it is stored.
    """

    dtype: DType
    integer: DType
    mantissa: int
    bias: int

    @property
    def suffix(self) -> str:
        """The type in names of intrinsics."""
        return f"f{self.dtype.bits}"

    @property
    def magic(self) -> float:
        """1.5 * 2**mantissa. Adding this constant to a number rounds the number to an integer. The
        low bits of the sum hold the integer, because these bits of the constant are zeros."""
        return 1.5 * 2.0**self.mantissa

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    def bits_of(self, value: float) -> int:
        """The bits of a number, read as an integer."""
        float_code, int_code = ("<f", "<i") if self.dtype is FLOAT32 else ("<d", "<q")
        return int(struct.unpack(int_code, struct.pack(float_code, value))[0])


SINGLE = Format(FLOAT32, DType("int32"), 23, 127)
DOUBLE = Format(DType("float64"), DType("int64"), 52, 1023)
_OPPOSITE = {"olt": "uge", "uge": "olt"}


@dataclass
class Text:
    """Writes the instructions of one function on `lanes` values of a format.

    Attributes:
        lines: the instructions so far.
        declares: the functions that the instructions call: name -> signature.
        library: the called functions of the C library.
        helpers: the called functions that are defined in the module: name -> definition.
    """

    format: Format
    lanes: int
    has_fma: bool
    features: frozenset[str]
    lines: list[str] = dataclasses.field(default_factory=list)
    declares: dict[str, str] = dataclasses.field(default_factory=dict)
    library: dict[str, str] = dataclasses.field(default_factory=dict)
    helpers: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.f = register_type(self.format.dtype, self.lanes)
        self.i = register_type(self.format.integer, self.lanes)
        self.b = register_type(BOOL, self.lanes)
        self.true = splat("true", "i1", self.lanes)
        wanted = {512: {"avx512f"}, 256: {"avx512f", "avx512vl"}}
        self.has_scalef = wanted.get(self.lanes * self.format.dtype.bits, {"none"}) <= self.features

    def of(self, format: Format) -> Text:
        """A writer of the same text on values of another format."""
        return dataclasses.replace(self, format=format)

    def emit(self, text: str) -> str:
        """Write an instruction; gives the name of its result."""
        name = f"%t{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    # -- constants

    def const(self, value: float) -> str:
        dtype = self.format.dtype
        return splat(constant(value, dtype), register_type(dtype), self.lanes)

    def int(self, value: int) -> str:
        return splat(str(value), register_type(self.format.integer), self.lanes)

    # -- arithmetic

    def op(self, op: str, a: str, b: str) -> str:
        return self.emit(f"{op} {self.f} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        return self.op("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        return self.op("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        return self.op("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        return self.op("fdiv", a, b)

    def neg(self, a: str) -> str:
        return self.emit(f"fneg {self.f} {a}")

    def iop(self, op: str, a: str, b: str) -> str:
        return self.emit(f"{op} {self.i} {a}, {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        """Compute a * b + c, rounded once where the processor has an instruction for it."""
        if not self.has_fma:
            return self.add(self.mul(a, b), c)
        return self.named("fma", a, b, c)

    def named(self, name: str, *operands: str) -> str:
        """Call LLVM's intrinsic `name` on values of the format."""
        suffix = self.format.suffix
        mangled = suffix if self.lanes == 1 else f"v{self.lanes}{suffix}"
        return self.call(f"llvm.{name}.{mangled}", self.f, *((self.f, v) for v in operands))

    def call(self, name: str, result: str, *operands: tuple[str, str]) -> str:
        """Call a function; the operands are pairs (type, text)."""
        self.declares[name] = f"{result} @{name}({', '.join(kind for kind, _ in operands)})"
        inside = ", ".join(f"{kind} {text}" for kind, text in operands)
        return self.emit(f"call {result} @{name}({inside})")

    def poly(self, x: str, coefficients: tuple[float, ...]) -> str:
        """Evaluate a polynomial, highest power first.

        Neighbouring coefficients are joined in pairs, in long polynomials twice, so that fewer
        steps wait for each other. Horner's rule joins the rest.
        """
        terms = [self.const(c) for c in coefficients]
        for least in (_SHORT, _LONG):
            if len(coefficients) < least:
                break
            odd = len(terms) % 2
            pairs = zip(terms[odd::2], terms[odd + 1 :: 2], strict=True)
            terms = terms[:odd] + [self.fma(high, x, low) for high, low in pairs]
            x = self.mul(x, x)
        total = terms[0]
        for term in terms[1:]:
            total = self.fma(total, x, term)
        return total

    # -- choice

    def test(self, order: str, a: str, b: str) -> str:
        return self.emit(f"fcmp {order} {self.f} {a}, {b}")

    def pick(self, condition: str, a: str, b: str) -> str:
        return self.emit(f"select {self.b} {condition}, {self.f} {a}, {self.f} {b}")

    def pick_again(self, test: tuple[str, str, str], where: str, a: str, b: str) -> str:
        """`pick` by a test whose result, `where`, another pick uses.

        A scalar test of two uses passes through a byte of a general register on AVX-512. The
        processor joins it with the old contents, so that one call waits for the call before. The
        opposite test goes to a mask register of its own.
        """
        if self.lanes > 1:
            return self.pick(where, a, b)
        return self.pick(self.test(_OPPOSITE[test[0]], *test[1:]), b, a)

    def logic(self, op: str, a: str, b: str) -> str:
        return self.emit(f"{op} {self.b} {a}, {b}")

    def odd(self, a: str) -> str:
        """Whether an integer is odd."""
        return self.emit(f"icmp ne {self.i} {self.iop('and', a, self.int(1))}, {self.int(0)}")

    # -- bits

    def bits(self, x: str) -> str:
        return self.emit(f"bitcast {self.f} {x} to {self.i}")

    def floating(self, x: str) -> str:
        return self.emit(f"bitcast {self.i} {x} to {self.f}")

    def power_of_two(self, shifted: str) -> str:
        """2**n, where `shifted` holds n + `format.magic` and 2**n is a normal number."""
        biased = self.iop("add", self.bits(shifted), self.int(self.format.bias))
        return self.floating(self.iop("shl", biased, self.int(self.format.mantissa)))

    def two_factors(self, shifted: str) -> tuple[str, str]:
        """Two normal numbers whose product is 2**n, where `shifted` holds n + `format.magic`: 2**n
        itself may be subnormal, or larger than the largest number."""
        width = self.int(self.format.mantissa)
        biased = self.iop("add", self.bits(shifted), self.int(2 * self.format.bias))
        first = self.iop("shl", self.iop("lshr", biased, self.int(1)), width)
        second = self.iop("sub", self.iop("shl", biased, width), first)
        return self.floating(first), self.floating(second)

    def scalef(self, x: str, power: str, where: str) -> str:
        """Multiply x by 2**power, for any integer power, in the lanes of `where`; others get 0.

        This is one instruction of AVX-512.
        """
        size = self.lanes * self.format.dtype.bits
        mask_bits = max(self.lanes, 8)
        if mask_bits > self.lanes:
            order = ", ".join(f"i32 {i}" for i in range(mask_bits))
            pair = f"{self.b} {where}, {self.b} zeroinitializer, <{mask_bits} x i32> <{order}>"
            where = self.emit(f"shufflevector {pair}")
        mask = self.emit(f"bitcast <{mask_bits} x i1> {where} to i{mask_bits}")
        letter = "s" if self.format is SINGLE else "d"
        rounding = [("i32", "4")] if size == 512 else []
        operands = [(self.f, v) for v in (x, power, self.const(0.0))]
        operands.append((f"i{mask_bits}", mask))
        name = f"llvm.x86.avx512.mask.scalef.p{letter}.{size}"
        return self.call(name, self.f, *operands, *rounding)

    def convert(self, x: str, source: Text) -> str:
        """Convert a value of another format to this one."""
        op = "fpext" if source.format.dtype.bits < self.format.dtype.bits else "fptrunc"
        return self.emit(f"{op} {source.f} {x} to {self.f}")

    # -- what happens rarely

    def rarely(self, name: str, where: str, operands: tuple[str, ...], value: str) -> str:
        """Replace the lanes of `value` in `where` by the C library's function `name` of `operands`.

        A separate function calls the library, behind a branch that is rarely taken.
        """
        helper = f"ms.{name}.rare.v{self.lanes}{self.format.suffix}"
        self.helpers[helper] = self._lane_by_lane(helper, name, operands)
        return self.rare_call(helper, where, operands, value)

    def rare_call(self, helper: str, where: str, operands: tuple[str, ...], value: str) -> str:
        """Call the function `helper` of (operands, where, value) if a lane of `where` is set;
        `value` otherwise."""
        n, f = len(self.lines), self.f
        some = where
        if self.lanes > 1:
            some = self.call(f"llvm.vector.reduce.or.v{self.lanes}i1", "i1", (self.b, where))
        self.lines += [f"br i1 {some}, label %rare{n}, label %usual{n}", f"rare{n}:"]
        rare = self.call(helper, f, *((f, x) for x in operands), (self.b, where), (f, value))
        self.lines += [f"br label %usual{n}", f"usual{n}:"]
        return self.emit(f"phi {f} [ {value}, %start ], [ {rare}, %rare{n} ]")

    def define_rare(
        self, symbol: str, operands: tuple[str, ...], lines: list[str], result: str
    ) -> str:
        """The definition of a function of as many operands, named %x0, %x1 and so on, that is
        called rarely: `result` in the lanes of `where`."""
        f, body = self.f, "\n".join(lines)
        parameters = "".join(f"{f} %x{k}, " for k, _ in enumerate(operands))
        return (
            f"define internal {f} @{symbol}({parameters}{self.b} %where, {f} %value) "
            f"noinline cold memory(none) {{\n{body}\n"
            f"%result = select {self.b} %where, {f} {result}, {f} %value\nret {f} %result\n}}"
        )

    def _lane_by_lane(self, symbol: str, name: str, operands: tuple[str, ...]) -> str:
        """The definition of a function that calls the C library for each lane."""
        kind = register_type(self.format.dtype)
        called = name if self.format is DOUBLE else f"{name}f"
        self.library[called] = f"{kind} @{called}({', '.join(kind for _ in operands)})"
        lines, last = [], "poison" if self.lanes > 1 else "%y0"
        for i in range(self.lanes):
            lane = [f"%x{k}" for k, _ in enumerate(operands)]
            if self.lanes > 1:
                lane = [f"%x{k}.{i}" for k, _ in enumerate(operands)]
                for k, part in enumerate(lane):
                    lines.append(f"{part} = extractelement {self.f} %x{k}, i64 {i}")
            inside = ", ".join(f"{kind} {part}" for part in lane)
            lines.append(f"%y{i} = call {kind} @{called}({inside})")
            if self.lanes > 1:
                lines.append(f"%r{i} = insertelement {self.f} {last}, {kind} %y{i}, i64 {i}")
                last = f"%r{i}"
        return self.define_rare(symbol, operands, lines, last)
