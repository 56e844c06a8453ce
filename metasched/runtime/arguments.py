"""Checking the arguments of a kernel before native code sees them.

A `Checker` is made once for a signature. `quick` reads a few attributes of each plain array and
number, and accepts the common calls. `complete` turns tensors into arrays and makes the outputs
that the caller left out. Calling the checker itself makes the error message for an argument that
does not fit.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from metasched.codegen.signature import BufferArg, ScalarArg, Signature, extent_value
from metasched.errors import KernelError, brief
from metasched.ir.dtype import DType
from metasched.runtime.arrays import aligned_zeros
from metasched.runtime.dlpack import Unreadable, array_of, is_tensor
from metasched.runtime.extents import because, extent_text, solve
from metasched.runtime.quick import address_of, may_clash, quick_check


class Checker:
    """Turns Python arguments into the values of the C call, or refuses them by name."""

    def __init__(self, signature: Signature, name: str, layout: str = "") -> None:
        self.name = name
        self._signature = signature
        self._count = len(signature.params)
        self._specs = [
            _Buffer(p, n) if isinstance(p, BufferArg) else _Scalar(p, n)
            for n, p in enumerate(signature.params)
        ]
        for position, plain, packed in signature.packed:
            self._specs[position].layout = layout
            if plain.shape != packed.shape:
                self._specs[position].hint = (
                    f"; {plain.name} is a constant weight, which the kernel takes packed: call its "
                    f"pack({', '.join(w.name for _, w, _ in signature.packed)}) once and pass its "
                    "result"
                )
        scalars = {p.name for p in signature.params if isinstance(p, ScalarArg)}
        self._named = bool(signature.symbols or scalars)
        self._pairs = may_clash(signature)
        self._positions = {p.name: n for n, p in enumerate(signature.params)}
        self.quick = quick_check(signature)

    def complete(
        self, arguments: Sequence[Any], named: Mapping[str, Any] | None = None
    ) -> tuple[list[Any], list[np.ndarray[Any, Any]], list[Any]]:
        """All arguments in order with tensors as arrays, the outputs that `complete` allocated, and
        the objects that hold the tensors' memory.

        Raises KernelError for arguments that are missing, unknown or given twice, and for tensors
        that cannot be read.
        """
        given = self._in_order(arguments, named or {})
        held = []
        for n, value in enumerate(given):
            if is_tensor(value):
                try:
                    given[n], keep = array_of(value)
                except Unreadable as error:
                    raise self.refuse(n, str(error)) from None
                held.append(keep)
        missing = [n for n, value in enumerate(given) if value is _LEFT_OUT]
        return given, self._make(given, missing) if missing else [], held

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Pointers, scalars, then symbolic extents, in the order of the C function.

        Raises KernelError naming the argument, what was given and what is expected.
        """
        if len(arguments) != self._count:
            raise KernelError(
                f"{self.name} takes {self._count} arguments "
                f"({', '.join(p.name for p in self._signature.params)}), {len(arguments)} given"
            )
        values: dict[str, int] = {}
        out = []
        for spec, value in zip(self._specs, arguments, strict=True):
            out.append(spec.accept(value, values, self))
        if self._named:
            self._bind(arguments, values)
            out += [values[name] for name in self._signature.symbols]
        for written, other in self._pairs:
            self._disjoint(arguments, out, written, other)
        return out

    def refuse(self, position: int, text: str) -> KernelError:
        """The error for the argument at `position`."""
        param = self._signature.params[position]
        return KernelError(f"{self.name}: argument {position + 1} ({param.name}): {text}")

    def _in_order(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """The arguments by position; _LEFT_OUT stands for an output that the caller left out."""
        params = self._signature.params
        given = [*arguments, *[_LEFT_OUT] * (self._count - len(arguments))]
        for name, value in named.items():
            position = self._positions.get(name)
            if position is None:
                known = ", ".join(self._positions)
                raise KernelError(
                    f"{self.name}: no parameter is called {name!r}; there are {known}"
                )
            if given[position] is not _LEFT_OUT:
                raise self.refuse(position, "is given twice, by position and by name")
            given[position] = value
        needed = [
            p.name
            for p, value in zip(params, given, strict=False)
            if value is _LEFT_OUT and not (isinstance(p, BufferArg) and p.written)
        ]
        if needed or len(given) > self._count:
            lacks = f"; {', '.join(needed)} must be given, outputs alone may be left out"
            raise KernelError(
                f"{self.name} takes {self._count} arguments "
                f"({', '.join(p.name for p in params)}), {len(arguments) + len(named)} given"
                + (lacks if needed else "")
            )
        return given

    def _make(self, given: list[Any], missing: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        """Allocate arrays of zeros for the outputs that the caller left out, and return the
        arrays."""
        values: dict[str, int] = {}
        there = [s for s in self._specs if s.position not in missing]
        for spec in there:
            spec.accept(given[spec.position], values, self)
        for plain in (True, False):
            for spec in there:
                if isinstance(spec, _Buffer):
                    _learn(spec, given[spec.position], values, {}, plain)
        made = []
        for n in missing:
            spec = self._specs[n]
            assert isinstance(spec, _Buffer)
            if not spec.compact:
                raise self.refuse(n, "has strides of its own and cannot be left out: pass an array")
            try:
                shape = [extent_value(e, values) for e in spec.param.shape]
            except KeyError as error:
                raise self.refuse(
                    n, f"cannot be left out: the other arguments do not determine {error.args[0]}"
                ) from None
            if min(shape, default=0) < 0:
                raise self.refuse(n, f"would have the shape {tuple(shape)}")
            given[n] = aligned_zeros(shape, spec.dtype)
            made.append(given[n])
        return made

    def _bind(self, arguments: Sequence[Any], values: dict[str, int]) -> None:
        """Give each symbol its extent in the arrays, then check all shapes against these
        extents."""
        origin: dict[str, str] = {}
        buffers = [s for s in self._specs if isinstance(s, _Buffer)]
        for plain in (True, False):
            for spec in buffers:
                _learn(spec, arguments[spec.position], values, origin, plain)
        missing = [s for s in self._signature.symbols if s not in values]
        if missing:
            raise KernelError(f"{self.name}: the arguments do not determine {', '.join(missing)}")
        for spec in buffers:
            spec.check_extents(arguments[spec.position], values, origin, self)

    def _disjoint(self, arguments: Sequence[Any], out: list[Any], a: int, b: int) -> None:
        """Refuse an output that shares a byte with any other argument."""
        x, y = arguments[a], arguments[b]
        if self._specs[a].compact and self._specs[b].compact:
            clash = out[a] < out[b] + y.nbytes and out[b] < out[a] + x.nbytes
        else:
            (low, high), (low2, high2) = byte_bounds(x), byte_bounds(y)
            clash = low < high2 and low2 < high
        if clash and x.size and y.size:
            other = self._signature.params[b].name
            raise self.refuse(
                a,
                f"is written by the kernel and overlaps argument {b + 1} ({other}) in memory; "
                "pass a copy of one of them",
            )


def overlaps_itself(value: np.ndarray[Any, Any]) -> bool:
    """Whether two elements of an array share a byte, as after `numpy.broadcast_to`."""
    axes = sorted((abs(s), n) for s, n in zip(value.strides, value.shape, strict=True) if n > 1)
    if not value.size:
        return False
    span = value.itemsize
    for stride, extent in axes:
        if stride < span:
            break  # rows interlace, which needs a closer look
        span += stride * (extent - 1)
    else:
        return False
    places = np.zeros((), np.int64)
    for stride, extent in axes:
        places = np.add.outer(places, stride * np.arange(extent))
    return bool((np.diff(np.sort(places, axis=None)) < value.itemsize).any())


_LEFT_OUT = object()
_DECLARE = (
    "pass a compact array and copy it back, or declare the strides of the buffer in the script"
)


class _Buffer:
    """Check of one buffer parameter; `hint` is appended to the message about a wrong shape.

    `layout` names the kernel that packs the array. An array without such a name is recognised by
    its shape, which always differs from the shape of the unpacked weight.
    """

    hint, layout = "", ""

    def __init__(self, param: BufferArg, position: int) -> None:
        self.param, self.position = param, position
        self.dtype = DType(param.dtype).numpy
        self.compact = param.compact
        self.fixed = all(isinstance(e, int) for e in param.shape)
        self.shape = param.shape if self.fixed else None
        self.symbolic_strides = not all(isinstance(e, int) for e in param.strides)
        self.align = self.dtype.itemsize

    def accept(self, value: Any, values: dict[str, int], checker: Checker) -> int:
        """The array's address, after the checks that involve no other argument."""
        if (
            isinstance(value, np.ndarray)
            and value.dtype == self.dtype
            and (value.shape == self.shape or (not self.fixed and self._rank(value)))
        ):
            flags = value.flags
            address = address_of(value)
            if (
                (flags.c_contiguous if self.compact else self._strides(value, values))
                and (flags.writeable or not self.param.written)
                and not address % self.align
                and (type(value) is np.ndarray or self._mine(value))
            ):
                return address
        raise checker.refuse(self.position, self._complaint(value))

    def _mine(self, value: Any) -> bool:
        """Whether an array of another class than NumPy's own may be used: not one with a mask, nor
        a weight that another kernel packed."""
        masked = isinstance(value, np.ma.MaskedArray)
        return not masked and getattr(value, "layout", None) in (None, self.layout)

    def _rank(self, value: np.ndarray[Any, Any]) -> bool:
        return value.ndim == len(self.param.shape)

    def _strides(self, value: np.ndarray[Any, Any], values: dict[str, int]) -> bool:
        """Whether the declared strides hold; symbolic strides are checked once all symbols are
        known."""
        if self.symbolic_strides or not value.size:
            return all(s % self.align == 0 for s in value.strides)
        return all(
            extent <= 1 or stride == declared * self.align
            for extent, stride, declared in zip(
                value.shape, value.strides, self.param.strides, strict=True
            )
        )

    def check_extents(
        self,
        value: np.ndarray[Any, Any],
        values: dict[str, int],
        origin: dict[str, str],
        checker: Checker,
    ) -> None:
        """Check shape and strides against the extents that the symbols have in this call."""
        if not self.fixed:
            for axis, (extent, given) in enumerate(zip(self.param.shape, value.shape, strict=True)):
                wanted = extent_value(extent, values)
                if wanted != given:
                    why = because(extent, values, origin)
                    raise checker.refuse(
                        self.position,
                        f"dimension {axis} is {given}, expected {extent_text(extent)} = {wanted}"
                        f"{why}",
                    )
        if self.symbolic_strides and not self.compact and value.size:
            wanted_strides = [extent_value(e, values) * self.align for e in self.param.strides]
            for axis, (n, a, b) in enumerate(
                zip(value.shape, value.strides, wanted_strides, strict=True)
            ):
                if n > 1 and a != b:
                    raise checker.refuse(
                        self.position, f"stride of dimension {axis} is {a} bytes, expected {b}"
                    )
        if self.param.written and not self.compact and overlaps_itself(value):
            raise checker.refuse(
                self.position,
                f"is written by the kernel, and its strides {value.strides} give elements the same "
                "memory; pass a copy",
            )

    def _complaint(self, value: Any) -> str:
        """The first mismatch between an array and its parameter, in words."""
        shape = "(" + ", ".join(extent_text(e) for e in self.param.shape) + ")"
        wanted = f"expected a NumPy array of {self.param.dtype} {shape}"
        if not isinstance(value, np.ndarray):
            listed = isinstance(value, (list, tuple, memoryview)) and not self.param.written
            hint = f'; pass numpy.asarray(..., "{self.param.dtype}")' if listed else ""
            return f"{wanted}, got {type(value).__name__}{hint}"
        if isinstance(value, np.ma.MaskedArray):
            return "is a masked array, and a kernel knows no masks; pass its filled() or its data"
        if value.dtype != self.dtype:
            number = value.dtype.kind in "biuf" and not self.param.written
            hint = f'; pass its astype("{self.param.dtype}")' if number else ""
            return f"has dtype {value.dtype}, {wanted}{hint}"
        if not self._rank(value):
            return f"has {value.ndim} dimensions, {wanted}{self.hint}"
        if self.fixed and value.shape != self.shape:
            return f"has shape {value.shape}, {wanted}{self.hint}"
        if self.compact and not value.flags.c_contiguous:
            return f"has strides {value.strides} bytes, expected a compact row-major array; " + (
                _DECLARE if self.param.written else "pass numpy.ascontiguousarray of it"
            )
        if not self.compact and not self._strides(value, {}):
            if any(s % self.align for s in value.strides):
                return f"has strides {value.strides} bytes, which are no multiples of its item " + (
                    f"size of {self.align} bytes; pass a copy"
                )
            declared = ", ".join(extent_text(e) for e in self.param.strides)
            return f"has strides {value.strides} bytes, expected ({declared}) elements"
        if not self._mine(value):
            return f"was packed by another kernel{self.hint}"
        if self.param.written and not value.flags.writeable:
            return "is written by the kernel, but the array is read-only; pass a copy"
        return f"is not aligned to its item size of {self.align} bytes; pass a copy"


class _Scalar:
    """One parameter passed by value."""

    compact = True
    hint, layout = "", ""

    def __init__(self, param: ScalarArg, position: int) -> None:
        self.param, self.position = param, position
        self.dtype = DType(param.dtype)

    def accept(self, value: Any, values: dict[str, int], checker: Checker) -> Any:
        """The Python value converted to the value of the C call."""
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if self.dtype.is_float:
            if not isinstance(value, numbers.Real | np.floating):
                raise self._refuse(value, checker)
            if not self.dtype.rounds_to_finite(value):
                text = f"{brief(value)} does not fit in {self.param.dtype}"
                raise checker.refuse(self.position, text)
            if self.dtype.bits < 32:
                bits = f"uint{self.dtype.bits}"
                return int(np.asarray(float(value)).astype(self.dtype.numpy).view(bits))
            return float(value)
        if self.dtype.is_bool:
            if not isinstance(value, bool | np.bool_):
                raise self._refuse(value, checker)
            values[self.param.name] = int(value)
            return bool(value)
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise self._refuse(value, checker)
        low, high = self.dtype.range
        number = int(value)
        if not low <= number <= high:
            raise checker.refuse(self.position, f"{number} does not fit in {self.param.dtype}")
        values[self.param.name] = number
        return number

    def _refuse(self, value: Any, checker: Checker) -> KernelError:
        text = f"expected a number of type {self.param.dtype}, got {type(value).__name__}"
        return checker.refuse(self.position, text)


def _learn(
    spec: _Buffer,
    value: np.ndarray[Any, Any],
    values: dict[str, int],
    origin: dict[str, str],
    plain: bool,
) -> None:
    """Find the values of symbols from the shape of an array: dimensions that are a symbol first,
    then by solving."""
    item = value.dtype.itemsize
    known = [
        (e, n, f"dimension {k}")
        for k, (e, n) in enumerate(zip(spec.param.shape, value.shape, strict=True))
    ]
    if not spec.compact:
        known += [
            (e, n // item, f"stride {k}")
            for k, (e, n) in enumerate(zip(spec.param.strides, value.strides, strict=True))
        ]
    for extent, number, where in known:
        found = (extent, number) if isinstance(extent, str) else None
        if not plain and not isinstance(extent, str):
            found = solve(extent, number, values)
        if found is not None and found[0] not in values:
            name = str(found[0])
            values[name] = found[1]
            origin[name] = f"{where} of {spec.param.name}"
