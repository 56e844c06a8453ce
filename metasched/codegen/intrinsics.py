"""LLVM intrinsics that scripts call by name. Their types and the features they need are checked
here: inside LLVM a wrong type or a missing feature ends the process.

Machine instructions are declared in `ir.op.HARDWARE`; LLVM's generic intrinsics follow one rule.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence

from metasched.errors import BuildError
from metasched.ir.op import HARDWARE, hardware_op, lacking

Shape = tuple[str, int]

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
    declared = hardware_op(name)
    if declared is None:
        _require_generic(name, result, operands)
        return
    wanted = [(str(kind.scalar), kind.lanes) for kind in (declared.result, *declared.operands)]
    if [result, *operands] != wanted:
        given = ", ".join(f"{d}x{n}" for d, n in operands)
        takes = ", ".join(f"{d}x{n}" for d, n in wanted[1:])
        raise BuildError(
            f"{name} takes ({takes}) and gives {wanted[0][0]}x{wanted[0][1]}, "
            f"not ({given}) giving {result[0]}x{result[1]}"
        )
    missing = lacking(declared.feature, features)
    if missing:
        noun = "features" if " and " in missing else "feature"
        raise BuildError(f"{name} needs the {noun} {missing}, which the target lacks")


def _require_generic(name: str, result: Shape, operands: Sequence[Shape]) -> None:
    found = _GENERIC.fullmatch(name)
    if found is None:
        near = difflib.get_close_matches(name, HARDWARE.names(), n=3)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        known = "an instruction of your own is declared in a plug-in file (HARDWARE.register)"
        raise BuildError(f"{name!r} is not a known LLVM intrinsic{hint}; {known}")
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
