"""LLVM intrinsics that scripts may call by name: types and needed feature, checked before LLVM sees
them, since a wrong type or a missing feature ends the process inside LLVM."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence

from metasched.errors import BuildError

Shape = tuple[str, int]

# name: (result, operands, feature)
_TABLE: dict[str, tuple[Shape, tuple[Shape, ...], str]] = {}


def _entry(name: str, result: str, operands: str, feature: str) -> None:
    shapes = [_shape(word) for word in operands.split()]
    _TABLE[name] = (_shape(result), tuple(shapes), feature)


def _shape(word: str) -> Shape:
    base, _, lanes = word.partition("x")
    return base, int(lanes or 1)


for _bits, _feature in ((128, "avx512vl"), (256, "avx512vl"), (512, "avx512f")):
    _i32 = f"int32x{_bits // 32}"
    _bytes = f"uint8x{_bits // 8} int8x{_bits // 8}"
    for _sat in ("", "s"):
        _entry(f"llvm.x86.avx512.vpdpbusd{_sat}.{_bits}", _i32, f"{_i32} {_bytes}", "avx512vnni")
        _words = f"int16x{_bits // 16} int16x{_bits // 16}"
        _entry(f"llvm.x86.avx512.vpdpwssd{_sat}.{_bits}", _i32, f"{_i32} {_words}", "avx512vnni")
    _pairs = f"bfloat16x{_bits // 16}"
    _entry(
        f"llvm.x86.avx512bf16.dpbf16ps.{_bits}", f"float32x{_bits // 32}",
        f"float32x{_bits // 32} {_pairs} {_pairs}", "avx512bf16",
    )  # fmt: skip
_entry("llvm.x86.avx2.pmadd.ub.sw", "int16x16", "uint8x32 int8x32", "avx2")
_entry("llvm.x86.avx2.pmadd.wd", "int32x8", "int16x16 int16x16", "avx2")
_entry("llvm.x86.avx512.pmaddubs.w.512", "int16x32", "uint8x64 int8x64", "avx512bw")
_entry("llvm.x86.avx512.pmaddw.d.512", "int32x16", "int16x32 int16x32", "avx512bw")

_GENERIC = re.compile(
    r"llvm\.(sqrt|fabs|floor|ceil|trunc|rint|nearbyint|roundeven|round|fma|fmuladd|minnum|maxnum|"
    r"minimum|maximum|copysign|ctpop|bswap|bitreverse|smin|smax|umin|umax|sadd\.sat|uadd\.sat|"
    r"ssub\.sat|usub\.sat)\.(?:v(\d+))?([fi])(\d+)"
)
_TWO = {"minnum", "maxnum", "minimum", "maximum", "copysign", "smin", "smax", "umin", "umax"}
_FLOATING = {"sqrt", "fabs", "floor", "ceil", "trunc", "rint", "nearbyint", "roundeven", "round",
             "fma", "fmuladd", "minnum", "maxnum", "minimum", "maximum", "copysign"}  # fmt: skip


def require_intrinsic(
    name: str, result: Shape, operands: Sequence[Shape], features: Collection[str]
) -> None:
    """Raise BuildError unless `name` is known, has these types and the target has its feature."""
    entry = _TABLE.get(name)
    if entry is None:
        _require_generic(name, result, operands)
        return
    expected_result, expected, feature = entry
    if result != expected_result or tuple(operands) != expected:
        given = ", ".join(f"{d}x{n}" for d, n in operands)
        wanted = ", ".join(f"{d}x{n}" for d, n in expected)
        raise BuildError(
            f"{name} takes ({wanted}) and gives {expected_result[0]}x{expected_result[1]}, "
            f"not ({given}) giving {result[0]}x{result[1]}"
        )
    if f"+{feature}" not in features and feature not in features:
        raise BuildError(f"{name} needs the feature {feature}, which the target lacks")


def _require_generic(name: str, result: Shape, operands: Sequence[Shape]) -> None:
    found = _GENERIC.fullmatch(name)
    if found is None:
        near = difflib.get_close_matches(name, _TABLE, n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise BuildError(f"{name!r} is not a known LLVM intrinsic{hint}")
    base, lanes, kind, bits = found.groups()
    if (kind == "f") is not (base in _FLOATING):
        raise BuildError(f"{name}: {base} has no form for this type")
    count = 3 if base in ("fma", "fmuladd") else 2 if base in _TWO or ".sat" in base else 1
    names = {f"float{bits}"} if kind == "f" else {f"int{bits}", f"uint{bits}"}
    for dtype, n in (result, *operands):
        if dtype not in names or n != int(lanes or 1):
            raise BuildError(f"{name} does not take or give {dtype}x{n}")
    if len(operands) != count:
        raise BuildError(f"{name} takes {count} operands, not {len(operands)}")
