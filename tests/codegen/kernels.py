"""Compile a program, run it in this process, and compare with the interpreter."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

from metasched.codegen.compile import Compiled, compile_func
from metasched.codegen.load import load
from metasched.codegen.signature import BufferArg, extent_value
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.script import parse
from metasched.target import Target

NATIVE = Target.native()
WIDE = Target.of("llvm -mcpu=x86-64-v4 -mtriple=x86_64-linux-gnu")
"""Vectors of 512 bits with masks, to read the code of a program that does not run here."""
_C_TYPES = {
    "float32": ctypes.c_float, "float64": ctypes.c_double, "bool": ctypes.c_uint8,
    "float16": ctypes.c_uint16, "bfloat16": ctypes.c_uint16,
    **{f"{u}int{b}": getattr(ctypes, f"c_{u}int{b}") for u in ("", "u") for b in (8, 16, 32, 64)},
}  # fmt: skip


def program(text: str, name: str = "main") -> PrimFunc:
    """One function of the script dialect, from its body with decorator."""
    func = parse(text)
    assert isinstance(func, PrimFunc)
    return func


def build(source: str | PrimFunc, **options: Any) -> Compiled:
    """The compiled function for this machine."""
    func = program(source) if isinstance(source, str) else source
    target = options.pop("target", NATIVE)
    return compile_func(func, target, "kernel", **options)


def call(compiled: Compiled, *arguments: Any, repeat: int | None = None) -> int:
    """Run a compiled kernel on arrays and numbers; its return code."""
    loaded = load(compiled)
    symbols: dict[str, int] = {}
    values: list[Any] = []
    for param, argument in zip(compiled.signature.params, arguments, strict=True):
        if isinstance(param, BufferArg):
            for extent, size in zip(param.shape, argument.shape, strict=True):
                if isinstance(extent, str):
                    symbols[extent] = size
            values.append(ctypes.c_void_p(argument.ctypes.data))
        else:
            kind = _C_TYPES[param.dtype]
            number = argument
            if param.dtype in ("float16", "bfloat16"):
                number = int(np.asarray(argument).view(np.uint16))
            symbols[param.name] = number
            values.append(kind(number))
    for param, argument in zip(compiled.signature.params, arguments, strict=True):
        if isinstance(param, BufferArg):
            shape = tuple(extent_value(x, symbols) for x in param.shape)
            assert shape == argument.shape
    values += [ctypes.c_int64(symbols[s]) for s in compiled.signature.symbols]
    address = loaded.address
    if repeat is not None:
        address = loaded.repeat_address
        values.append(ctypes.c_int64(repeat))
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *[type(v) for v in values])(address)
    return function(*values)


def agree(source: str | PrimFunc, *arguments: Any, exact: bool = True, **options: Any) -> Compiled:
    """Run compiled code and interpreter on copies; all arrays must agree. Gives the kernel."""
    func = program(source) if isinstance(source, str) else source
    expected = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    actual = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    with np.errstate(all="ignore"):
        run(func, *expected)
    compiled = build(func, **options)
    assert call(compiled, *actual) == 0
    for want, got in zip(expected, actual, strict=True):
        if not isinstance(want, np.ndarray):
            continue
        if want.dtype == ml_dtypes.bfloat16:  # NumPy's comparison knows no NaN of this type
            want, got = want.astype("float32"), got.astype("float32")
        if exact:
            np.testing.assert_array_equal(got, want)
        else:
            scale = np.abs(want.astype(np.float64)).max(initial=1.0)
            np.testing.assert_allclose(got.astype(float), want.astype(float), atol=scale * 1e-5)
    return compiled


def integers(shape: tuple[int, ...], dtype: Any = "float32", seed: int = 0) -> np.ndarray:
    """Small integers in the type: sums and products of them are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)
