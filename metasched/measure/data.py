"""Test data of a task: which values its inputs get, and how closely results must agree.

Inputs are small integers in their dtype, smaller for longer sums. So sums and products are
bit-equal in any order, and the comparison is exact. In sums of integers, which wrap around, bytes
take all values: only large values show a sum that saturates too early. Floats that scale sums of
bytes are powers of two, small enough that results do not all saturate. Indices and bounds of rows
take all values that stay inside, see `indices`.

If the program divides, takes exponentials or rounds, results may differ. The tolerance is 64 eps of
the largest magnitude, or 64 times the change that one more rounding of the inputs makes. The second
bound is for small differences of large sums, whose rounding errors are as large as the errors of
the sums. Integers that were rounded from inexact floats may differ by one. Sums of over 4096 terms
of such programs get no integers but real numbers near them: see `Task.with_tolerance`.

Recurrences (triangular solves, factorizations) may overflow on such inputs, or amplify rounding
errors. Then inputs are small, and what divides is near one: see `Task.tamed`.

A user may give the contents of parameters (`measure.given`). They are taken as they are in every
kind of data; results are compared with tolerance unless the given values are small or indices.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metasched.ir.dtype import DType
from metasched.measure.given import Arrays

_LIBC = ctypes.CDLL(None)
TOLERANCE = 64  # in eps of the largest magnitude
TAMINGS = 2  # the most that `Task.tamed` can scale inputs down
_SUMMANDS = 1 << 16  # the most normally distributed terms of a sum; further terms are zero
_LONG = 4096  # terms of a sum up to which the tolerance does not grow
_GROWTH = 16  # times 64 eps: what more one rounding of the inputs changes in a recurrence alone
_FEW = 1 / 8  # of the results may be NaN: a check that compares NaN with NaN finds no fault
_NOTHING = 2.0**-30  # replaces zero in inputs that must be positive


@dataclass(frozen=True, slots=True)
class Array:
    """One buffer parameter with concrete extents.

    Attributes:
        strides: in elements.
        initial: False for an output that the program initialises itself; it is poisoned instead.
        low, high: the smallest and the largest integer that fills the array.
        eps: the unit of the relative tolerance of its values.
        noise: the largest change of its values after one more rounding of each input; 0 if it was
            not measured.
        halvings: the array holds powers of two from 1 down to 2 ** -halvings; None for integers.
        rounded: whether its integers may be rounded floats.
        ascending: its integers are in ascending order, as the bounds of rows.
        divisor: the program divides by its elements.
        place: its elements are indices or bounds of loops, floats too.
        given: a user gave its contents.
        lost: how many of its expected results are NaN on all kinds of data, if they are many.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    written: bool
    initial: bool
    low: int
    high: int
    eps: float
    noise: float = 0.0
    halvings: int | None = None
    rounded: bool = False
    ascending: bool = False
    divisor: bool = False
    place: bool = False
    given: bool = False
    lost: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes from its first to its last element."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * DType(self.dtype).numpy.itemsize


@dataclass(frozen=True, slots=True)
class Task:
    """The data of a workload that a runner needs besides the compiled program.

    Attributes:
        key: identifies the task and its kind of data in a worker.
        arrays: the buffer parameters in order.
        values: scalars by name, and the symbolic extents.
        exact: results must be equal; else see `tolerance`.
        normal: inputs are normally distributed instead of small integers.
        why: the operation that makes the comparison inexact, empty when exact.
        terms: the most elements that one result is accumulated from.
        rounded_terms: the same, of elements that are rounded themselves, as exponentials are.
        growth: the factor by which long sums have increased the `eps` of the arrays.
        tame: how far floats are scaled down, see `tamed`; 0 for data as described above.
    """

    key: str
    arrays: tuple[Array, ...]
    values: tuple[tuple[str, float], ...]
    exact: bool
    seed: int
    normal: bool = False
    why: str = ""
    terms: int = 1
    tame: int = 0
    rounded_terms: int = 1
    growth: float = 1.0

    def tamed(self, level: int) -> Task:
        """The same task on floats so small that a recurrence does not grow from step to step.

        With n, the longest sum or extent: floats are scaled to about 1 / sqrt(n) at level 1, to
        1 / 2n at level 2. Square matrices get a diagonal near one and values of both signs, other
        divisors get values near one. So triangular and positive definite systems are well
        conditioned.
        """
        task = self.with_tolerance("values that grow from step to step")
        return replace(task, key=f"{self.key}/tame{level}", tame=level)

    def with_normal_data(self) -> Task:
        """The same task on normally distributed inputs, compared with tolerance.

        Sums of more than 65536 terms would stagnate, so most of their inputs are zero: see `fill`.
        Terms that are rounded themselves would round zeros in one direction, so they stay.
        """
        terms = min(self.terms, _SUMMANDS)
        task = self.with_tolerance("normally distributed data", terms)
        return replace(task, key=f"{self.key}/normal", normal=True)

    def with_tolerance(self, why: str, terms: int = 1) -> Task:
        """The same task, compared with tolerance; `why` is kept if it is compared so already.

        The expected result is a serial sum, whose rounding errors grow as the square root of its
        length if its terms differ (Higham and Mary 2019). Beyond `_LONG` rounded terms the
        tolerance grows in the same way.
        """
        growth = max(self.growth, math.sqrt(terms / _LONG))
        arrays = tuple(replace(a, eps=a.eps * growth / self.growth) for a in self.arrays)
        return replace(self, arrays=arrays, exact=False, why=self.why or why, growth=growth)


def fill(
    array: Array, task: Task, position: int, data: Arrays | None = None
) -> NDArray[np.generic]:
    """The initial contents of an array: its given data, or drawn values, which are the same for the
    same seed and position."""
    if array.given:
        given: NDArray[np.generic] = (data or {})[position]
        return given
    rng = np.random.default_rng([task.seed, position])
    values = _drawn(array, task, rng)
    dtype = DType(array.dtype)
    if task.tame and dtype.is_float:
        values = _small(values.astype(np.float64), array, task, rng).astype(dtype.numpy)
    return values


def _small(values: Any, array: Array, task: Task, rng: np.random.Generator) -> Any:
    """Floats scaled down as `Task.tamed` describes."""
    most = max(task.terms, *(n for each in task.arrays for n in each.shape), 1)
    scale = 4 * math.sqrt(most) if task.tame == 1 else 8 * most
    values = values * 2.0 ** -math.ceil(math.log2(scale))
    rows, columns = array.shape[-2:] if len(array.shape) > 1 else (1, 1)
    if rows == columns > 1:
        return values * rng.choice([-1.0, 1.0], values.shape) + np.eye(rows)
    return values + 1.0 if array.divisor else values


def _drawn(array: Array, task: Task, rng: np.random.Generator) -> NDArray[np.generic]:
    """Values before they are scaled down."""
    dtype = DType(array.dtype)
    if task.normal and dtype.is_float and not array.place:
        drawn = rng.standard_normal(array.shape)
        if array.low > 0:
            drawn = np.abs(drawn) + 0.5
        if task.terms > _SUMMANDS and task.rounded_terms <= _LONG:
            kept = rng.random(array.shape) * task.terms < _SUMMANDS
            drawn = np.where(kept, drawn, _NOTHING if array.low > 0 else 0.0)
        return np.ascontiguousarray((drawn * _powers(rng, array)).astype(dtype.numpy))
    if array.halvings is not None:
        signs = 1 if array.low > 0 else rng.choice([-1.0, 1.0], array.shape)
        return np.ascontiguousarray((signs * _powers(rng, array)).astype(dtype.numpy))
    wide = np.int8 if array.high < 127 else np.int16 if array.high < 32767 else np.int64
    small = rng.integers(array.low, array.high + 1, array.shape, dtype=wide)
    if array.ascending:
        small = np.sort(small, axis=-1)
    if dtype.is_float and task.rounded_terms > _LONG:
        # A sum of many equal terms rounds each in the same direction: no two terms are equal.
        return np.ascontiguousarray(
            (small + rng.uniform(-0.5, 0.5, array.shape)).astype(dtype.numpy)
        )
    return np.ascontiguousarray(small.astype(dtype.numpy))


def _powers(rng: np.random.Generator, array: Array) -> Any:
    """A power of two for each element, from 1 down by the halvings of the array."""
    if array.halvings is None:
        return 1.0
    return 2.0 ** -rng.integers(0, array.halvings + 1, array.shape).astype(np.float64)


def nudged(
    array: Array, task: Task, position: int, data: Arrays | None = None
) -> NDArray[np.generic]:
    """The initial contents, each number moved up or down by one rounding error."""
    values = fill(array, task, position, data)
    signs = np.random.default_rng([task.seed, position, 1]).integers(0, 2, values.shape) * 2 - 1
    moved = values.astype(np.float64) * (1 + array.eps * signs)
    return moved.astype(values.dtype) if DType(array.dtype).is_float else values


def steady(task: Task, results: Iterable[NDArray[np.generic]]) -> bool:
    """Whether a comparison with expected results finds faults, and allows sums in another order.

    It does not if the results are NaN, or integers too large for exact sums. Nor does it if one
    rounding of the inputs changes them by more than a difference of large sums changes.
    """
    for array, values in zip(task.arrays, results, strict=True):
        if not (array.written and DType(array.dtype).is_float):
            continue
        if _nan(values) > _FEW * values.size:
            return False
        wide = np.abs(values.astype(np.float64))
        largest = float(wide[np.isfinite(wide)].max(initial=0.0))
        if (
            largest * array.eps >= 2.0
            if task.exact
            else array.noise > _GROWTH * TOLERANCE * array.eps * largest
        ):
            return False
    return True


def _nan(values: NDArray[np.generic]) -> int:
    return int(np.isnan(values.astype(np.float64)).sum())


def with_lost(task: Task, results: Iterable[NDArray[np.generic]]) -> Task:
    """The task with the number of results that are NaN, in arrays with many."""
    arrays = [
        replace(a, lost=count)
        if a.written and DType(a.dtype).is_float and (count := _nan(v)) > _FEW * v.size
        else a
        for a, v in zip(task.arrays, results, strict=True)
    ]
    return replace(task, arrays=tuple(arrays))


def tolerance(array: Array, largest: float) -> float:
    """The largest difference allowed in a result whose largest magnitude is given.

    A program that amplifies rounding errors gets at most TOLERANCE squared eps.
    """
    once = array.eps * largest
    return TOLERANCE * max(once, min(array.noise, TOLERANCE * once))


def compare(
    array: Array, got: NDArray[np.generic], expected: NDArray[np.generic], exact: bool
) -> tuple[str, float]:
    """The fault of a result in words (empty when it agrees), and the largest difference."""
    if got.nbytes == expected.nbytes and _same_bytes(got, expected):
        return "", 0.0
    wide: Any = np.float64 if DType(array.dtype).is_float else np.int64
    if array.dtype == "float64":
        wide = np.longdouble
    x, y = got.astype(wide), expected.astype(wide)
    with np.errstate(all="ignore"):
        equal = (x == y) | ((x != x) & (y != y))
        difference = np.where(equal, 0, np.abs(x - y))
        limit = 0.0
        if not exact and (DType(array.dtype).is_float or array.rounded):
            limit = tolerance(array, float(np.abs(y[np.isfinite(y)]).max(initial=0.0)))
            limit = max(limit, 1.0) if array.rounded else limit  # halves are rounded up or down
        wrong = ~(equal | (difference <= limit))
    count = int(wrong.sum())
    finite = difference[np.isfinite(difference)] if wide is not np.int64 else difference
    largest = float(finite.max(initial=0))
    if not count:
        return "", largest
    first = tuple(int(k[0]) for k in np.nonzero(wrong))
    place = f"{array.name}[{', '.join(map(str, first))}]"
    allowed = "they must be equal" if not limit else f"{limit:.3g} is allowed"
    return (
        f"{place} is {got[first]}, expected {expected[first]}; {count} of {wrong.size} elements "
        f"differ, by up to {largest:.6g} ({allowed})",
        largest,
    )


def _same_bytes(a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    """Whether two arrays hold the same bytes; also False if a quick test cannot decide."""
    if not (a.flags.c_contiguous and b.flags.c_contiguous):
        return False
    address = (array.__array_interface__["data"][0] for array in (a, b))
    return not _LIBC.memcmp(*(ctypes.c_void_p(x) for x in address), ctypes.c_size_t(a.nbytes))
