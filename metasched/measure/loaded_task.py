"""LoadedTask: a task in the process that runs its programs: arrays, contents, expected results.

Initial contents and expected results lie in shared memory that the parent owns, mapped read-only. A
candidate cannot overwrite them, and a process restarted after a crash maps them again instead of
computing them again.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metasched.codegen.signature import BufferArg, Signature, extent_value
from metasched.errors import MetaschedError
from metasched.ir.dtype import DType
from metasched.measure.candidate import Status
from metasched.measure.data import Array, Task, compare
from metasched.runtime.devices import DeviceMemory, LoadedProgram, Program, programs_of
from metasched.runtime.timing import Repeat


class SharedLayout:
    """Where a task's initial contents and expected results lie in the shared memory.

    Attributes:
        initial, expected: the offset of each array in bytes.
        size: the bytes of the whole shared memory.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.initial: list[int] = []
        self.expected: list[int] = []
        end = 0
        for places in (self.initial, self.expected):
            for array in arrays:
                places.append(end)
                end += (_compact_bytes(array) + 63) // 64 * 64
        self.size = max(end, 1)


def shared_size(task: Task) -> int:
    """Bytes of shared memory that a task needs."""
    return SharedLayout(task.arrays).size


def mapped(memory: mmap.mmap, array: Array, place: int) -> NDArray[np.generic]:
    """A view of an array in shared memory."""
    count = int(np.prod(array.shape, dtype=np.int64))
    flat = np.frombuffer(memory, DType(array.dtype).numpy, count, place)
    return flat.reshape(array.shape)


class LoadedTask:
    """A task set up for running programs of one kind.

    Attributes:
        task: the test data and how results are compared.
        initial, expected: contents of each array before and after a run.
        memory: the arrays that programs work on.
        packed: the constant weights as candidates packed them.
        clean: whether the last run had no fault (see `fault`).
    """

    def __init__(self, task: Task, fd: int, kind: str, reference: Signature | None = None) -> None:
        """Map the shared memory and allocate the arrays.

        Args:
            task: the test data and how results are compared.
            fd: the shared memory.
            kind: the kind of the target that runs the programs.
            reference: the signature of the program that computes the expected results, whose rows
                may be padded. None for candidates: they read these results and must not change
                them.

        Raises MeasureError when there is not enough memory.
        """
        self.task, self._kind = task, kind
        layout = SharedLayout(task.arrays)
        access = mmap.ACCESS_READ if reference is None else mmap.ACCESS_WRITE
        self._shared = mmap.mmap(fd, layout.size, access=access)
        self.initial, self.expected = (
            [mapped(self._shared, a, p) for a, p in zip(task.arrays, places, strict=True)]
            for places in (layout.initial, layout.expected)
        )
        arrays = task.arrays if reference is None else _laid_out(task, reference)
        self.memory = programs_of(kind).memory(arrays)
        self.packed: list[DeviceMemory] = []
        self.clean = False

    def restore(self, where: str | None = None) -> None:
        """Bring every array to its state before a run: poisoned, or with its initial contents.

        `where` is the placement of the arrays in memory, None for the usual one.
        """
        where = self.memory.usual if where is None else where
        if where != self.memory.where:
            self.memory.place(where)
            self.clean = False
        for number, array in enumerate(self.task.arrays):
            if array.initial and (array.written or not self.clean):
                self.memory.write(number, self.initial[number])
            elif not array.initial:
                self.memory.poison(number)
        if not self.clean:
            self.memory.reset_zones()
        self.clean = True

    def bind(self, program: Program, serial: bool = False) -> tuple[LoadedProgram, list[Any]]:
        """Load a program into this process; returns the program and the arguments of its call.

        Packs constant weights into separate memory.

        Raises MetaschedError when packing fails.
        """
        loaded, signature = programs_of(self._kind).load(program, serial), program.signature
        known = dict(self.task.values)
        handles = iter(self.memory.handles)
        names = {b.name for b in signature.buffers}
        assert len(names) == len(self.task.arrays)
        values: list[Any] = []
        for param in signature.params:
            if param.name in names:
                values.append(next(handles))
            else:
                number = known[param.name]
                values.append(number if DType(param.dtype).is_float else int(number))
        symbols = [int(known[s]) for s in signature.symbols]
        if signature.pack is not None:
            self._pack(loaded, signature, values)
        return loaded, [*values, *symbols]

    def repeat(self, program: Program) -> Repeat:
        """A function that runs a program on the arrays and returns the device's seconds."""
        loaded, values = self.bind(program)
        return loaded.repeat(values)

    def _pack(self, loaded: LoadedProgram, signature: Signature, values: list[Any]) -> None:
        """Replace the constant weights among `values` by the candidate's packed copies."""
        pack, extents = signature.pack, {n: int(v) for n, v in self.task.values}
        assert pack is not None
        arrays = [_packed_array(b, extents) for _, _, b in signature.packed]
        room = programs_of(self._kind).memory(arrays)
        if room.where != self.memory.where:
            room.place(self.memory.where)
        for number in range(len(arrays)):
            room.poison(number)
        given = [values[position] for position in signature.weights]
        code = loaded.pack([*given, *room.handles, *(extents[s] for s in pack.symbols)])
        if code:
            raise MetaschedError(f"packing the constant weights failed: {pack.failure(code)}")
        self.packed.append(room)
        for position, handle in zip(signature.weights, room.handles, strict=True):
            values[position] = handle

    def breach(self) -> str:
        """The name of a red zone that was written, also of a packed weight; empty without one."""
        return next(filter(None, (room.breach() for room in (self.memory, *self.packed))), "")

    def fault(self) -> tuple[Status, str, float]:
        """The fault of the last run (OK without one), its message, and the largest difference."""
        breach = self.breach()
        if breach:
            self.clean = False
            return Status.OUT_OF_BOUNDS, breach, 0.0
        largest = 0.0
        for number, array in enumerate(self.task.arrays):
            found = self.memory.read(number)
            if array.written:
                text, difference = compare(array, found, self.expected[number], self.task.exact)
                largest = max(largest, difference)
            else:
                text, _ = compare(array, found, self.initial[number], True)
                text = text and f"the input {array.name} was changed: {text}"
            if text:
                self.clean = False
                return Status.WRONG_RESULT, text, largest
        return Status.OK, "", largest


def _packed_array(param: BufferArg, extents: Mapping[str, int]) -> Array:
    """A packed weight as an array between red zones."""
    shape, strides = (
        tuple(extent_value(e, extents) for e in which) for which in (param.shape, param.strides)
    )
    return Array(param.name, param.dtype, shape, strides, False, False, 0, 0, 0.0)


def _laid_out(task: Task, signature: Signature) -> list[Array]:
    """The arrays of a task with the strides that a program declares."""
    extents = {n: int(v) for n, v in task.values}
    return [
        a if p.compact else replace(a, strides=_packed_array(p, extents).strides)
        for a, p in zip(task.arrays, signature.buffers, strict=True)
    ]


def _compact_bytes(array: Array) -> int:
    count = int(np.prod(array.shape, dtype=np.int64))
    return count * DType(array.dtype).numpy.itemsize
