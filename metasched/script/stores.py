"""Reads assignments to elements and slices of buffers."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import numpy as np

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType, promote
from metasched.ir.expr import Expr, FloatImm, Var, cast
from metasched.ir.op import Broadcast
from metasched.ir.stmt import Allocate, BufferStore, For, Stmt, seq
from metasched.ir.visit import substitute, walk_exprs
from metasched.script.builder import typed
from metasched.script.hints import name_hint
from metasched.script.plain import describe
from metasched.script.reader import Reader
from metasched.script.sections import Axis, NoVector, Section, apart


class StoreReader(Reader):
    """Reads stores: one element, a vector, or a nest of loops over a slice."""

    def store(
        self, node: ast.stmt, target: ast.Subscript, source: ast.expr, op: ast.operator | None
    ) -> Stmt:
        """`target = source`, or `target op= source`."""
        buffer = self.value(target.value)
        if not isinstance(buffer, Buffer):
            whole = isinstance(buffer, (list, tuple)) or hasattr(buffer, "__array__")
            hint = name_hint("empty", ()) if whole else ""
            self.fail(target, f"only buffers are stored to, not {describe(buffer)}", hint)
        place = self.access(target, buffer)
        if isinstance(place, BufferLoad):
            return self._single(node, place, source, op)
        place = self.guard(target, place.checked)
        if place.is_vector:
            self.may_loop = True
            try:
                vector = self.guard(target, place.vector)
                self.note(vector, target)
                return self._single(node, vector, source, op)
            except NoVector:
                pass
            finally:
                self.may_loop = False
        return self._nest(node, target, place, source, op)

    def store_value(self, node: ast.AST, target: ast.Subscript, value: Any) -> Stmt:
        """Store a value that is already evaluated, for one target of several in an assignment."""
        buffer = self.value(target.value)
        place = self.access(target, buffer) if isinstance(buffer, Buffer) else None
        if not isinstance(place, BufferLoad):
            self.fail(target, "elements of buffers are assigned together, not slices",
                      "write an assignment for each slice")  # fmt: skip
        return BufferStore(buffer, self.stored(node, value, place.dtype), place.indices)

    def _single(
        self, node: ast.stmt, place: BufferLoad, source: ast.expr, op: ast.operator | None
    ) -> Stmt:
        value = self.weak(source)
        if op is not None:
            value = self.apply(node, op, place, value)
        return BufferStore(place.buffer, self.stored(source, value, place.dtype), place.indices)

    def _nest(
        self, node: ast.stmt, target: ast.Subscript, place: Section, source: ast.expr,
        op: ast.operator | None,
    ) -> Stmt:  # fmt: skip
        """Loops over the target's axes; the right side is read before anything is written."""
        axes = _axes(place.extents)
        into = self.guard(target, place.element, axes)
        self.note(into, target)
        self.axes = axes
        try:
            value = self.weak(source)
            if op is not None:
                value = self.apply(node, op, into, value)
            value = self.stored(source, value, into.dtype)
        finally:
            self.axes = None
        memory = self.memory(into.buffer)
        for load in _loads(into.indices):
            if self.memory(load.buffer) is memory:
                name = load.buffer.name
                self.fail(target, f"the slice's bounds read {name}, which the slice writes",
                          "name the bound before the assignment: n = T.let(...)")  # fmt: skip
        for load in _loads([value]):
            same = load.buffer is into.buffer and load.indices == into.indices
            if same or self.memory(load.buffer) is not memory:
                continue
            if load.buffer is not into.buffer or not apart(load, into, axes):
                return _through_copy(axes, into, value)
        return _loops(axes, BufferStore(into.buffer, value, into.indices))

    def memory(self, buffer: Buffer) -> Any:
        """The identity of a buffer's memory: the data pointer of the buffer behind all views."""
        while buffer in self.views:
            buffer = self.views[buffer]
        return buffer.data

    def stored(self, node: ast.AST, value: Any, dtype: DType) -> Expr:
        """`value` in the type of its destination; converted only if no value can be lost."""
        found = self.typed(node, value, dtype)
        if found.dtype is dtype:
            return found
        if isinstance(found, FloatImm):
            number = _rounded(found.dtype, found.value)
            if number is not None and _rounded(dtype, number) == number:
                return FloatImm(dtype, number)
        if found.dtype.scalar is dtype.scalar and found.dtype.lanes == 1:
            return Broadcast(found, dtype.lanes)
        lanes = found.dtype.lanes
        if lanes != dtype.lanes or self.guard(node, promote, found.dtype, dtype) != dtype:
            self.fail(node, f"a value of type {found.dtype} is stored where {dtype} is kept",
                      f'write T.cast(value, "{dtype}")')  # fmt: skip
        return cast(dtype, found)

    def vstore(self, node: ast.Call, func: ast.Attribute) -> Stmt:
        """A.vstore([i], value, predicate=mask)."""
        buffer = self.value(func.value)
        args, kwargs = self.arguments(node)
        if not isinstance(buffer, Buffer) or len(args) != 2 or set(kwargs) - {"predicate"}:
            self.fail(node, "write A.vstore([indices], value, predicate=mask)")
        items = args[0] if isinstance(args[0], (tuple, list)) else (args[0],)
        indices = [self.index(node, i) for i in items]
        place = self.guard(node, BufferLoad, buffer, indices)
        mask = kwargs.get("predicate")
        predicate = None if mask is None else self.guard(node, typed, mask)
        value = self.stored(node.args[1], args[1], place.dtype)
        return BufferStore(buffer, value, tuple(indices), predicate)


def _axes(extents: Sequence[Expr]) -> list[Axis]:
    return [Axis(Var(f"ax{k}", e.dtype), e) for k, e in enumerate(extents)]


def _loads(exprs: Sequence[Expr]) -> list[BufferLoad]:
    return [e for top in exprs for e in walk_exprs(top) if isinstance(e, BufferLoad)]


def _loops(axes: Sequence[Axis], body: Stmt) -> Stmt:
    for axis in reversed(axes):
        body = For.serial(axis.var, axis.extent, body)
    return body


def _through_copy(axes: Sequence[Axis], into: BufferLoad, value: Expr) -> Stmt:
    """Store the right side in a temporary buffer, then copy it to the target.

    NumPy does this if both sides overlap.
    """
    extents = [a.extent for a in axes]
    copy = Buffer.of(f"{into.buffer.name}_copy", extents, into.dtype)
    fill = BufferStore(copy, value, tuple(a.var for a in axes))
    again = _axes(extents)
    renamed = {a.var: b.var for a, b in zip(axes, again, strict=True)}
    write = BufferStore(
        into.buffer,
        BufferLoad(copy, [b.var for b in again]),
        tuple(substitute(i, renamed) for i in into.indices),
    )
    return Allocate(copy, seq([_loops(axes, fill), _loops(again, write)]))


def _rounded(dtype: DType, value: float) -> float | None:
    """The number that a floating-point type represents; None for another type, and for vectors."""
    if not dtype.is_float or dtype.lanes > 1:
        return None
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(dtype.numpy))
