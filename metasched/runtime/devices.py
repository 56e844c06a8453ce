"""The table of devices: how a program for one kind of target becomes code that runs, and how fast.

A kind of target has one row, `DeviceOf`, registered under the kind's name by `DEVICES.register`.
The table of `kinds` holds the search space of each kind of target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from metasched.codegen.signature import Signature
from metasched.errors import TargetError
from metasched.ir.func import PrimFunc
from metasched.registry import Registry
from metasched.runtime.timing import Repeat
from metasched.target import Target


class Program(Protocol):
    """A candidate in machine code; picklable."""

    @property
    def kind(self) -> str:
        """The kind of target that the program runs on."""
        ...

    @property
    def signature(self) -> Signature:
        """Its parameters."""
        ...


class LoadedProgram(Protocol):
    """A program that can be called in this process.

    The values of a call are what `DeviceMemory.handles` gives for each array, scalars and symbolic
    extents, in the order of the signature.
    """

    def call(self, values: Sequence[Any]) -> tuple[int, float]:
        """Run once: the failure code (0 for none), and seconds by the device's own clock."""
        ...

    def repeat(self, values: Sequence[Any]) -> Repeat:
        """Give a function that runs the program n times and is timed by the device's own clock."""
        ...

    def pack(self, values: Sequence[Any]) -> int:
        """Pack the constant weights; the failure code, 0 for none."""
        ...


class ArrayLayout(Protocol):
    """One array of a task: its name, element type and place of each element."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element."""
        ...


class DeviceMemory(Protocol):
    """The arrays of a task in the memory of a device.

    Attributes:
        where: the present layout of the arrays (see `place`).
        usual: the default layout.
    """

    where: str
    usual: str

    @property
    def handles(self) -> Sequence[Any]:
        """The values by which a program gets each array: addresses on a CPU."""
        ...

    def place(self, where: str) -> None:
        """Move the arrays to another layout in memory; their contents are lost."""
        ...

    def write(self, number: int, values: NDArray[Any]) -> None:
        """Set the contents of an array."""
        ...

    def read(self, number: int) -> NDArray[Any]:
        """The contents of an array; they may change with the next run."""
        ...

    def poison(self, number: int) -> None:
        """Fill an array with a value that no program writes."""
        ...

    def reset_zones(self) -> None:
        """Fill the memory beside the arrays with known values."""
        ...

    def breach(self) -> str:
        """Name the memory beside an array that was written; empty if none was."""
        ...


@dataclass(frozen=True, slots=True)
class ProgramsOf:
    """How worker processes compile, load and feed programs of one kind.

    Attributes:
        compile: `(function, target, parallel) -> program`; without `parallel`, parallel loops run
            serially.
        load: `(program, serial) -> LoadedProgram`. A serial program runs in the calling thread
            alone; the time that this thread waits for a core is not counted.
        memory: `(arrays) -> DeviceMemory`; MeasureError when there is not enough.
        guarding: layouts of arrays (`DeviceMemory.place`) in which an access outside of an array
            ends the process. A candidate runs once in each layout before it is timed. Empty where
            the memory of the device has no such layout.
    """

    compile: Callable[[PrimFunc, Target, bool], Program]
    load: Callable[[Any, bool], LoadedProgram]
    memory: Callable[[Sequence[ArrayLayout]], DeviceMemory]
    guarding: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceOf:
    """How code for targets of one kind is compiled, exported and timed.

    Attributes:
        build: `(function, target, name, options) -> kernel`, an object callable on arrays; the
            options are the other options of `metasched.build`.
        export: the same arguments, then a folder and the stem of the files, for `metasched.export`;
            None where no files are made.
        usable: the target as this process can use it, with fewer cores for example.
        peak: `(target, threads)` -> the measured GFLOP/s of float32; None where no rate bounds
            kernels.
        programs: how a LocalRunner measures on the device; None where a LocalRunner cannot.
    """

    build: Callable[..., Any]
    export: Callable[..., Any] | None = None
    usable: Callable[[Target], Target] = lambda target: target
    peak: Callable[[Target, int], float | None] = lambda target, threads: None
    programs: ProgramsOf | None = None


DEVICES: Registry[DeviceOf] = Registry("device", DeviceOf, package="metasched.kinds")


def device_of(target: Target) -> DeviceOf:
    """The row of a target's kind; TargetError when the kind has none."""
    return _row(target.kind)


def programs_of(kind: str) -> ProgramsOf:
    """How programs of a kind are measured; TargetError for a kind that a LocalRunner cannot
    measure."""
    found = _row(kind).programs
    if found is None:
        raise TargetError(
            f"the device of kind {kind!r} has no `programs`, so no LocalRunner can measure on it; "
            "tune takes a runner of your own as `runner=`"
        )
    return found


def _row(kind: str) -> DeviceOf:
    if kind not in DEVICES:
        known = ", ".join(DEVICES.names())
        raise TargetError(
            f"no code is made for targets of kind {kind!r}; kinds with a device: {known}"
        )
    return DEVICES.get(kind)
