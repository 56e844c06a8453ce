"""GivenData: arrays and scalars of a user, with which a program is checked and timed.

Drawn test data (`measure.data`) stay inside all bounds, but the time of a program with sparse
matrices, graphs or loops that end early depends on the data. Parameters that are not given keep
drawn data.

The attribute `DATA` of a function holds a digest of its given data, so that a database keeps times
of other data apart. The digest changes nothing that the program computes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metasched.analysis.sizes import size_of
from metasched.arith.affine import linear
from metasched.errors import TuneError, brief
from metasched.ir.buffer import Buffer
from metasched.ir.describe import show_expr
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr, Var, as_expr
from metasched.ir.func import DATA, SIZES, PrimFunc
from metasched.runtime.dlpack import Unreadable, array_of, is_tensor

Arrays = Mapping[int, NDArray[Any]]
"""Given arrays by their positions among the buffer parameters of a function."""


@dataclass(frozen=True, slots=True)
class GivenData:
    """The given data of one function.

    Attributes:
        arrays: see `Arrays`.
        scalars: values of scalar parameters by name.
        sizes: the run-time extents that the shapes of the arrays tell, by name.
    """

    arrays: Arrays = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


def given_data(func: PrimFunc, data: Mapping[str, Any]) -> GivenData:
    """The data of a user, checked against the parameters of a function.

    Args:
        func: the unscheduled function.
        data: NumPy arrays, tensors (DLPack) or numbers, by the names of parameters.

    Raises TuneError, which names the parameter, for another name, type, shape or size.
    """
    if not isinstance(data, Mapping):
        raise TuneError(
            f"data are arrays and numbers by the names of parameters, not {brief(data)}"
        )
    params = {param.name: param for param in func.params}
    arrays, scalars, sizes = dict[int, NDArray[Any]](), dict[str, float](), dict[Var, Expr]()
    for name, value in data.items():
        param = params.get(name)
        if param is None:
            raise TuneError(f"data name {name!r}; the parameters are: {', '.join(params)}")
        if isinstance(param, Buffer):
            array = _array(param, value)
            _bind(param, array, sizes)
            arrays[func.buffers.index(param)] = array
        else:
            scalars[name] = _scalar(param, value)
    for position, array in arrays.items():
        _require_shape(func.buffers[position], array, sizes)
    return GivenData(arrays, scalars, {v.name: int(e.value) for v, e in sizes.items()})  # type: ignore[attr-defined]


def with_data(func: PrimFunc, given: GivenData, sizes: Mapping[str, int] | None = None) -> PrimFunc:
    """The function with the digest of its given data, and with the sizes of their arrays.

    Raises TuneError if `sizes`, or the function's own representative sizes, are others.
    """
    known = {**func.attrs.get(SIZES, {}), **(sizes or {})}
    for name, size in given.sizes.items():
        if known.get(name, size) != size:
            raise TuneError(f"the size of {name!r} is {known[name]}, but the data have {size}")
    if given.sizes:
        func = func.with_attr(SIZES, {**func.attrs.get(SIZES, {}), **given.sizes})
    digest = hashlib.blake2b(repr(sorted(given.scalars.items())).encode(), digest_size=8)
    for position, array in sorted(given.arrays.items()):
        digest.update(f"{position} {array.shape}".encode())
        digest.update(array.tobytes())
    return func.with_attr(DATA, digest.hexdigest())


def _array(param: Buffer, value: Any) -> NDArray[Any]:
    """A value as an array of the parameter's type."""
    wanted = DType(param.dtype).numpy
    if is_tensor(value):
        try:
            value = array_of(value)[0]
        except Unreadable as error:
            raise TuneError(f"data of {param.name}: the tensor {error}") from None
    if not isinstance(value, np.ndarray):
        raise TuneError(f"data of {param.name} must be an array of {wanted}, not {brief(value)}")
    if value.dtype != wanted:
        raise TuneError(
            f"data of {param.name} has the type {value.dtype}, the program takes {wanted}: "
            f"convert it by .astype({str(wanted)!r})"
        )
    return np.array(value, order="C")  # a copy: the caller may change the array later


def _bind(param: Buffer, array: NDArray[Any], sizes: dict[Var, Expr]) -> None:
    """Take the run-time extents from the shape of an array, such as n from n + 1."""
    if array.ndim != len(param.shape):
        raise _other_shape(param, array)
    for extent, size in zip(param.shape, array.shape, strict=True):
        form = linear(extent)
        if len(form.terms) == 1:
            [(var, scale)] = form.terms.items()
            number, rest = divmod(size - form.const, scale)
            if isinstance(var, Var) and number < 1 and not rest:
                raise TuneError(
                    f"data of {param.name} have the shape {array.shape}, by which {var.name} is "
                    f"{number}; a size must be an integer above 0"
                )
            if isinstance(var, Var) and not rest:
                sizes.setdefault(var, as_expr(number, var.dtype))


def _require_shape(param: Buffer, array: NDArray[Any], sizes: Mapping[Var, Expr]) -> None:
    for extent, size in zip(param.shape, array.shape, strict=True):
        if size_of(extent, sizes) not in (size, None):
            raise _other_shape(param, array, sizes)


def _other_shape(
    param: Buffer, array: NDArray[Any], sizes: Mapping[Var, Expr] | None = None
) -> TuneError:
    wanted = ", ".join(map(show_expr, param.shape))
    bound = ", ".join(sorted(f"{v.name} = {show_expr(e)}" for v, e in (sizes or {}).items()))
    return TuneError(
        f"data of {param.name} has the shape {array.shape}, the program takes ({wanted})"
        f"{bound and ' with '}{bound}"
    )


def _scalar(param: Var, value: Any) -> float:
    """A value as a number of the parameter's type."""
    array = np.asarray(value)
    dtype = DType(param.dtype)
    kinds = "biu" if dtype.is_int else "biuf"
    if array.ndim or array.dtype.kind not in kinds:
        kind = "an integer" if dtype.is_int else "a number"
        raise TuneError(f"data of {param.name} must be {kind}, not {brief(value)}")
    number = array.item()
    if dtype.is_int and not dtype.range[0] <= number <= dtype.range[1]:
        raise TuneError(f"data of {param.name} is {number}, outside of {dtype}")
    if dtype.is_float and not dtype.rounds_to_finite(number):
        raise TuneError(f"data of {param.name} is {number:g}, outside of {dtype}")
    return float(number) if dtype.is_float else int(number)
