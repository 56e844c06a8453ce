"""Random expressions over all types, compiled for scalars and for vectors, beside the interpreter.

All operations here are exact or rounded to nearest, so both give the same bits: casts that
saturate, NaN in min and max, division by negative numbers, shifts, rounding of 16-bit floats. The
arrays hold both infinities, NaN, both zeros, subnormal numbers, and the ends of integer ranges.
Three liberties of the machine code are avoided. A product of floats is not added to, as the sum
would be rounded once. Of two zeros, min and max may give either. A computed NaN has either sign.

    python -m tests.codegen.random_expressions --cases 5000
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import ml_dtypes
import numpy as np

from metasched.ir.dtype import DType
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.runtime.build import build
from metasched.script import parse

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
TYPES = (*INTEGERS, *FLOATS, "bool")
SCALARS = tuple(t for t in TYPES if t not in ("int32", "int64"))  # these two do not overflow
LOOPS = ("range({n})", "T.vectorized({n})", "T.serial({n})")
SIZE = 37
BOTH = ("T.min({}, {})", "T.max({}, {})", "({} + {})", "({} - {})", "({} * {})")
FLOATING = ("(T.min({}, {}) + 0)", "(T.max({}, {}) + 0)", "({} + {})", "({} - {})",
            "T.abs({} * {})", "({} / {})", "({} // {})", "({} % {})",
            "T.copysign({}, {})")  # fmt: skip
WHOLE = ("({} & {})", "({} | {})", "({} ^ {})")
ROUNDINGS = ("T.floor({})", "T.ceil({})", "T.trunc({})", "T.nearbyint({})", "T.round({})",
             "T.abs({})", "T.sqrt({})", "(-{})")  # fmt: skip
TESTS = ("T.isnan({})", "T.isinf({})", "T.isfinite({})")
COMPARISONS = ("<", "<=", "==", "!=", ">", ">=")


class Writer:
    """Draws expressions; x_TYPE[i] and y_TYPE[i] are the elements of two arrays of each type,
    s_TYPE is a scalar, which all iterations share."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def value(self, dtype: str, depth: int) -> str:
        """An expression of a type."""
        rng, pick = self.rng, self.rng.choice
        if depth <= 0 or rng.random() < 0.1:
            return pick([f"x_{dtype}[i]", f"y_{dtype}[i]", *([f"s_{dtype}"] * (dtype in SCALARS))])
        if dtype == "bool":
            return self.condition(depth)
        form = rng.random()
        if form < 0.3:
            source = pick(TYPES)
            return f'T.cast({self.value(source, depth - 1)}, "{dtype}")'
        if form < 0.42:
            word = pick(("T.Select", "T.if_then_else"))
            sides = self.value(dtype, depth - 1), self.value(dtype, depth - 1)
            return f"{word}({self.condition(depth - 1)}, {', '.join(sides)})"
        one = self.value(dtype, depth - 1)
        if dtype in FLOATS:
            if form < 0.6:
                return pick(ROUNDINGS).format(one)
            word = pick(FLOATING)
            return word.format(one, self.value(dtype, 0 if "copysign" in word else depth - 1))
        if form < 0.6:
            divisor = f"T.{dtype}({self.divisor(dtype)})"
            word = pick(("({} // {})", "({} % {})", "T.truncdiv({}, {})", "T.truncmod({}, {})"))
            return word.format(one, divisor)
        if form < 0.7:
            bits = DType(dtype).bits
            count = pick((f"T.{dtype}({rng.randrange(bits)})",
                          f"({self.value(dtype, 0)} & T.{dtype}({bits - 1}))"))  # fmt: skip
            return pick(("({} << {})", "({} >> {})")).format(one, count)
        if form < 0.78:
            return pick(("(~{})", "(-{})", "T.abs({})", "T.popcount({})")).format(one)
        return pick((*BOTH, *WHOLE)).format(one, self.value(dtype, depth - 1))

    def divisor(self, dtype: str) -> int:
        """A divisor, seldom zero's neighbours alone: powers of two, odd numbers, the ends."""
        low, high = DType(dtype).range
        numbers = (1, 2, 3, 7, 16, 100, high, high - 1, *((-1, -2, -3, -64, low) if low else ()))
        return self.rng.choice(numbers)

    def condition(self, depth: int) -> str:
        """A comparison, or a combination of some."""
        rng, pick = self.rng, self.rng.choice
        if depth > 1 and rng.random() < 0.4:
            a, b = self.condition(depth - 1), self.condition(depth - 1)
            return pick((f"({a} and {b})", f"({a} or {b})", f"(not {a})", f"({a} == {b})"))
        if rng.random() < 0.2:
            return pick(TESTS).format(self.value(pick(FLOATS), depth - 1))
        dtype = pick(TYPES[:-1])
        a, b = self.value(dtype, depth - 1), self.value(dtype, depth - 1)
        return f"({a} {pick(COMPARISONS)} {b})"


def numbers(dtype: str, rng: np.random.Generator) -> np.ndarray:
    """Values of a type with its special ones."""
    if dtype == "bool":
        return rng.integers(0, 2, SIZE).astype(bool)
    kind = DType(dtype).numpy
    if dtype in INTEGERS:
        low, high = DType(dtype).range
        known = [v for v in (0, 1, 2, 3, 7, 100, 127, -1, -2, -100, low, low + 1, high, high - 1)
                 if low <= v <= high]  # fmt: skip
        special = np.array([known[k] for k in rng.integers(0, len(known), SIZE)], kind)
        return np.where(rng.random(SIZE) < 0.6, special, rng.integers(-50, 50, SIZE).astype(kind))
    info = ml_dtypes.finfo(kind)
    known = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 127.5, 128, 255.5,
             -128.5, 32767.5, 2.0**31, -(2.0**31), 2.0**63, -(2.0**63), 2.0**64, float(info.max),
             float(info.smallest_subnormal), float(info.eps), 1 + float(info.eps)]  # fmt: skip
    with np.errstate(all="ignore"):
        special = np.array([known[k] for k in rng.integers(0, len(known), SIZE)]).astype(kind)
        usual = (rng.standard_normal(SIZE) * 100).astype(kind)
    return np.where(rng.random(SIZE) < 0.5, special, usual)


def text_of(number: int) -> tuple[str, str]:
    """The type and the expression of a case."""
    rng = random.Random(number)
    dtype = rng.choice(TYPES)
    return dtype, Writer(rng).value(dtype, rng.choice((1, 2, 2, 3, 4)))


def function(dtype: str, text: str, loop: str) -> PrimFunc:
    """The function that stores the expression in O."""
    params = [f'{p}_{t}: T.Buffer(({SIZE},), "{t}")' for t in TYPES for p in "xy"]
    params += [f"s_{t}: T.{t}" for t in SCALARS]
    head = f'@T.prim_func\ndef f({", ".join(params)}, O: T.Buffer(({SIZE},), "{dtype}")):\n'
    made = parse(f"{head}    for i in {loop.format(n=SIZE)}:\n        O[i] = {text}\n")
    assert isinstance(made, PrimFunc)
    return made


def play(number: int) -> None:
    """Check a case; AssertionError says which kind of loop differs where."""
    dtype, text = text_of(number)
    rng = np.random.default_rng(number)
    given = [numbers(t, rng) for t in TYPES for _ in "xy"]
    given += [numbers(t, rng)[0].item() for t in SCALARS]
    out = np.zeros(SIZE, DType(dtype).numpy)
    want = out.copy()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        run(function(dtype, text, LOOPS[0]), *given, want)
        for loop in LOOPS[: 2 if number % 2 else 1]:
            got = out.copy()
            build(function(dtype, text, loop))(*given, got)
            same = (got == want) | ((got != got) & (want != want))
            if dtype in FLOATS and "T.min" not in text and "T.max" not in text:
                same &= (np.signbit(got) == np.signbit(want)) | (want != want)
            wrong = np.flatnonzero(~same)
            assert not wrong.size, (
                f"{loop}: O[{wrong[0]}] is {got[wrong[0]]}, expected {want[wrong[0]]}"
            )


def main() -> int:
    """Play cases; print those that fail."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    options = parser.parse_args()
    failed = 0
    for number in range(options.start, options.start + options.cases):
        try:
            play(number)
        except Exception as error:  # a fuzz reports any exception
            failed += 1
            print(f"case {number}: {' = '.join(text_of(number))}\n    {type(error).__name__}: "
                  f"{error}", flush=True)  # fmt: skip
    print(f"{options.cases} cases, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
