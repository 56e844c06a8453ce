"""The same text twice: read as a script, and run as Python over NumPy."""

from __future__ import annotations

import contextlib
import itertools
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from metasched.ir.equal import assert_structural_equal
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.verify import verify
from metasched.runtime.build import build
from metasched.script import parse
from metasched.script.printer import script


class _Axis:
    """T.axis: iterators are the values they are bound to."""

    def remap(self, kinds: str, values: Sequence[Any]) -> Any:
        return list(values) if len(values) > 1 else values[0]

    def spatial(self, extent: int, value: Any) -> Any:
        return value

    reduce = spatial


class Copying(np.ndarray):
    """An array that reads the right side before it writes.

    NumPy 2.4 does not for `v[33:73] = v[7:86:2]`, though it says so.
    """

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, np.copy(value))

    def __iadd__(self, other: Any) -> Any:
        return np.add(self, np.copy(other)).astype(self.dtype)

    def __isub__(self, other: Any) -> Any:
        return np.subtract(self, np.copy(other)).astype(self.dtype)


class PythonT:
    """The words of T as a Python program over NumPy arrays understands them."""

    axis = _Axis()
    bool = np.bool_
    float16, float32, float64 = np.float16, np.float32, np.float64
    int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
    uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
    serial = parallel = vectorized = unroll = staticmethod(range)
    min, max = staticmethod(np.minimum), staticmethod(np.maximum)
    exp, sqrt, abs = staticmethod(np.exp), staticmethod(np.sqrt), staticmethod(np.abs)

    @staticmethod
    def if_then_else(condition: Any, a: Any, b: Any) -> Any:
        return a if condition else b

    @staticmethod
    def prim_func(func: Any) -> Any:
        return func

    @staticmethod
    def grid(*extents: int) -> Any:
        return itertools.product(*map(range, extents))

    @staticmethod
    @contextlib.contextmanager
    def block(name: str) -> Iterator[None]:
        yield

    @staticmethod
    def reads(*regions: Any) -> None:
        return None

    writes = reads

    @staticmethod
    def Buffer(shape: Any, dtype: str = "float32") -> None:
        return None

    @staticmethod
    def alloc_buffer(shape: Any, dtype: str = "float32", scope: str = "global") -> Any:
        return np.full(shape, np.nan if "float" in dtype else -77, dtype)

    @staticmethod
    def cast(value: Any, dtype: str) -> Any:
        return np.dtype(dtype).type(value)

    @staticmethod
    def Select(condition: Any, a: Any, b: Any) -> Any:
        return a if condition else b


def program(text: str) -> PrimFunc:
    """The script as a program that the verifier takes, after one round trip."""
    func = parse(textwrap.dedent(text))
    assert isinstance(func, PrimFunc)
    verify(func)
    assert_structural_equal(func, parse(script(func)))
    return func


def agree(text: str, *arrays: Any, compiled: bool = True) -> PrimFunc:
    """Assert that interpreter, machine code and Python leave the same in the arrays."""
    func = program(text)
    want = [np.copy(a).view(Copying) if isinstance(a, np.ndarray) else np.int32(a) for a in arrays]
    names: dict[str, Any] = {"T": PythonT()}
    exec(textwrap.dedent(text), names)
    python = next(v for k, v in names.items() if k == func.attrs["global_symbol"])
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        python(*want)
        got = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arrays]
        run(func, *got)
    same(want, got, f"interpreted:\n{text}")
    if compiled:
        got = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arrays]
        build(func)(*got)
        same(want, got, f"compiled:\n{text}")
    return func


def same(want: Sequence[Any], got: Sequence[Any], what: str) -> None:
    """Assert equality to the sign of zero."""
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        if isinstance(a, np.ndarray):
            a = a.view(np.ndarray)
            np.testing.assert_array_equal(b, a, err_msg=f"argument {k} {what}")
            if a.dtype.kind == "f":
                signs = (
                    np.signbit(np.where(np.isnan(a), 0, a)),
                    np.signbit(np.where(np.isnan(b), 0, b)),
                )
                assert (signs[0] == signs[1]).all(), f"sign of zero, argument {k} {what}"
