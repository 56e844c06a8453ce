"""Rescaling: recognise values to which a running maximum contributes a factor.

    exp((x(j) - m) * c) * v(j)          # m is the maximum of all x, c > 0

Where the maximum of the x seen so far grows from m0 to m1, such values, and sums of them, change by
the factor exp((m0 - m1) * c), because exp(a + b) = exp(a) * exp(b). The exponents are at most zero,
so neither the values nor the factors overflow. The same holds for a minimum and c < 0.

    x(j) / s                            # s does not depend on j

Such a factor can be applied to the finished sum: multiplication distributes over addition.

Sources: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018; Rabe and Staats,
Self-attention does not need O(n^2) memory, 2021; Dao et al., FlashAttention, 2022.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import TypeAlias

from metasched.analysis.failure import Failure
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import (
    Add,
    Div,
    Expr,
    FloatImm,
    IntImm,
    Mul,
    Select,
    Sub,
    Var,
    as_expr,
)
from metasched.ir.op import Call, call
from metasched.ir.visit import free_vars, loads_of, substitute

EXPONENTIALS = ("exp", "exp2", "exp10")


@dataclass(frozen=True, slots=True, eq=False)
class Indexed:
    """A result of a block: which element an instance writes.

    Attributes:
        indices: of the element.
        iters: the iterators that choose the element.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    iters: tuple[Var, ...]

    def instance(self, indices: Sequence[Expr]) -> dict[Var, Expr] | None:
        """The iterators of the instance that writes an element; None where it is not found."""
        known, found = Analyzer(), dict[Var, Expr]()
        for mine, wanted in zip(self.indices, indices, strict=True):
            moving = free_vars(mine).intersection(self.iters)
            if len(moving) == 1:
                (var,) = moving
                found.setdefault(var, known.simplify(wanted - (mine - var)))
        same = (
            known.equal(substitute(mine, found), wanted)
            for mine, wanted in zip(self.indices, indices, strict=True)
        )
        return found if len(found) == len(self.iters) and all(same) else None


@dataclass(frozen=True, slots=True, eq=False)
class Extremum:
    """A maximum or minimum over one axis.

    Attributes:
        value: what it is the extremum of.
        along: the iterator of the axis.
        sign: 1 for a maximum, -1 for a minimum.
    """

    result: Indexed
    value: Expr
    along: Var
    sign: int


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """The factor exp((x - m) * rate) of values.

    Attributes:
        function: the exponential function.
        instance: the iterators of the instance of the extremum m, in the terms of the reader.
    """

    extremum: Extremum
    function: str
    rate: float
    instance: Mapping[Var, Expr]

    @property
    def key(self) -> tuple[Extremum, str, float]:
        """Equal for factors that one correction serves."""
        return self.extremum, self.function, self.rate

    def power(self, old: Expr, new: Expr) -> Expr:
        """The function of (old - new) * rate."""
        return call(self.function, self.scaled(old - new))

    def scaled(self, difference: Expr) -> Expr:
        """The difference times the rate."""
        return difference if self.rate == 1 else difference * as_expr(self.rate, difference.dtype)


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A value of a reader.

    Attributes:
        value: with the extremum replaced by its stand-in, without the factors of `later`;
            None where nothing is left.
        scale: the factor by which the running extremum enters, None where it does not.
        later: the factors that can be applied to the finished sum, and whether each one divides.
    """

    value: Expr | None
    scale: Scale | None = None
    later: tuple[tuple[Expr, bool], ...] = ()


Shift: TypeAlias = Callable[[Extremum, Mapping[Var, Expr]], Expr]


@dataclass(frozen=True, slots=True)
class Rescaling:
    """Recognises the values of one reader.

    Attributes:
        along: the reader's iterator of the axis.
        fixed: the reader's iterators that choose what it writes.
        extrema: the running extrema by their buffers.
        scaled: buffers whose elements have a factor.
        running: all buffers that change from block to block of the axis, those of `extrema` and
            `scaled` included.
        shift: gives what stands for an extremum at an instance of it.
    """

    along: Var
    fixed: frozenset[Var]
    extrema: Mapping[Buffer, Extremum]
    scaled: Mapping[Buffer, tuple[Indexed, Scale]]
    running: frozenset[Buffer]
    shift: Shift

    def of(self, value: Expr) -> Rescaled | Failure:
        """How a value depends on what changes from block to block of the axis."""
        if not self._moves(value):
            return Rescaled(value)
        if isinstance(value, (Mul, Div)) and value.dtype.is_float:
            return self._product(value)
        if isinstance(value, Call) and value.op.name in EXPONENTIALS:
            found = self._exponential(value)
            if not isinstance(found, Failure) or not self._is_fixed(value):
                return found
        if isinstance(value, BufferLoad) and value.buffer in self.scaled:
            return self._inherited(value)
        if self._is_fixed(value):
            return Rescaled(None, later=((value, False),))
        return self._choice(value) or self._unknown(value)

    def _moves(self, value: Expr) -> bool:
        return any(load.buffer in self.running for load in loads_of(value))

    def _is_fixed(self, value: Expr) -> bool:
        """Whether a value is the same for the whole sum, once its operands are final."""
        moving = any(load.buffer in self.scaled for load in loads_of(value))
        return value.dtype.is_float and not moving and free_vars(value) & self._own() <= self.fixed

    def _own(self) -> frozenset[Var]:
        return self.fixed | {self.along}

    def _product(self, value: Mul | Div) -> Rescaled | Failure:
        a, b = self.of(value.a), self.of(value.b)
        if isinstance(a, Failure) or isinstance(b, Failure):
            return a if isinstance(a, Failure) else b
        divides = isinstance(value, Div)
        if a.scale is not None and b.scale is not None:
            return Failure("two-factors", "a value has a running extremum in two factors", value)
        if b.scale is not None and divides:
            return self._unknown(value)
        later = (*a.later, *((e, inverse != divides) for e, inverse in b.later))
        left, right = a.value, b.value
        if left is None and right is not None and divides:
            left = as_expr(1, value.dtype)
        if left is None or right is None:
            return Rescaled(right if left is None else left, a.scale or b.scale, later)
        kind = type(value)
        return Rescaled(kind(left, right), a.scale or b.scale, later)

    def _exponential(self, value: Call) -> Rescaled | Failure:
        (exponent,) = value.args
        loads = [x for x in loads_of(exponent) if x.buffer in self.running]
        extremum = self.extrema.get(loads[0].buffer)
        if extremum is None or len(set(loads)) != 1:
            return self._unknown(value)
        instance = extremum.result.instance(loads[0].indices)
        if instance is None or not self._is_fixed(loads[0]):
            return self._unknown(value)
        x = substitute(extremum.value, {**instance, extremum.along: self.along})
        terms, wanted = coefficients(exponent), coefficients(x)
        rate = -terms.pop(loads[0], 0.0)
        if rate * extremum.sign <= 0 or not _proportional(terms, wanted, rate):
            return Failure(
                "other-exponent",
                f"the exponent of {value.op.name} is no positive multiple of the difference of a "
                f"value and the {'maximum' if extremum.sign > 0 else 'minimum'} of these values",
                value,
            )
        scale = Scale(extremum, value.op.name, rate, instance)
        return Rescaled(scale.power(x, self.shift(extremum, instance)), scale)

    def _inherited(self, load: BufferLoad) -> Rescaled | Failure:
        stage, scale = self.scaled[load.buffer]
        instance = stage.instance(load.indices)
        if instance is None:
            return self._unknown(load)
        at = {v: substitute(e, instance) for v, e in scale.instance.items()}
        return Rescaled(load, Scale(scale.extremum, scale.function, scale.rate, at))

    def _choice(self, value: Expr) -> Rescaled | Failure | None:
        """A value that is zero under a condition; None for any other."""
        lazy = isinstance(value, Call) and value.op.name == "if_then_else"
        if not (isinstance(value, Select) or lazy):
            return None
        condition, then, other = value.children
        if self._moves(condition) or not (_is_zero(then) or _is_zero(other)):
            return None
        found = self.of(other if _is_zero(then) else then)
        if isinstance(found, Failure) or found.value is None or found.later:
            return found if isinstance(found, Failure) else None
        parts = (condition, then, found.value) if _is_zero(then) else (
            condition, found.value, other
        )  # fmt: skip
        made = call("if_then_else", *parts) if lazy else Select(*parts)
        return Rescaled(made, found.scale)

    def _unknown(self, value: Expr) -> Failure:
        names = sorted({x.buffer.name for x in loads_of(value) if x.buffer in self.running})
        return Failure(
            "no-correction",
            f"no correction is known for a value that depends on {', '.join(names)} other than by "
            "a factor",
            value,
        )


def coefficients(value: Expr) -> dict[Expr, float]:
    """A value as a sum of atoms with constant coefficients."""
    if isinstance(value, (Add, Sub)):
        total = coefficients(value.a)
        sign = 1.0 if isinstance(value, Add) else -1.0
        for atom, factor in coefficients(value.b).items():
            total[atom] = total.get(atom, 0.0) + sign * factor
        return total
    if isinstance(value, (Mul, Div)) and value.dtype.is_float:
        if isinstance(value.b, FloatImm) and value.b.value:
            by = value.b.value if isinstance(value, Mul) else 1.0 / value.b.value
            return {atom: factor * by for atom, factor in coefficients(value.a).items()}
        if isinstance(value.a, FloatImm) and isinstance(value, Mul):
            return {a: factor * value.a.value for a, factor in coefficients(value.b).items()}
    return {value: 1.0}


def _proportional(terms: dict[Expr, float], wanted: dict[Expr, float], rate: float) -> bool:
    """Whether `terms` is `rate` times `wanted`."""
    return all(
        isclose(terms.get(a, 0.0), wanted.get(a, 0.0) * rate, rel_tol=1e-12)
        for a in {**terms, **wanted}
    )


def _is_zero(value: Expr) -> bool:
    return isinstance(value, (IntImm, FloatImm)) and value.value == 0
