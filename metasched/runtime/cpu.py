"""The device row of CPUs: machine code by LLVM, called in this process on arrays between guard
pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from metasched.codegen.compile import Compiled, compile_func
from metasched.codegen.openmp import REMEDY
from metasched.codegen.peak import measured_peak
from metasched.errors import warn
from metasched.ir.equal import structural_hash
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.runtime.devices import DEVICES, DeviceOf, ProgramsOf
from metasched.runtime.export import Exported, export
from metasched.runtime.guarded_memory import AT_END, AT_START, GuardedMemory
from metasched.runtime.kernel import Kernel
from metasched.runtime.native import Native
from metasched.runtime.parallel import has_openmp, usable
from metasched.runtime.timing import Repeat, clocked
from metasched.target import Target


class NativeProgram:
    """Machine code in this process; see `devices.LoadedProgram`."""

    def __init__(self, native: Native, clock: Callable[[], float]) -> None:
        """`clock` gives the seconds by which calls are timed."""
        self._native, self._clock = native, clock

    def call(self, values: Sequence[Any]) -> tuple[int, float]:
        """Run once; gives the failure code and the seconds."""
        start = self._clock()
        code = self._native.call(*values)
        return code, self._clock() - start

    def repeat(self, values: Sequence[Any]) -> Repeat:
        """Give a function that runs the program n times in one native loop and is timed."""
        native = self._native  # keeps the machine code loaded
        return clocked(lambda calls: native.repeat(*values, calls), self._clock)

    def pack(self, values: Sequence[Any]) -> int:
        """Pack the constant weights; gives the failure code."""
        return int(self._native.pack(*values))


def build_kernel(
    func: PrimFunc, target: Target, name: str, opt_level: int | None, checked: bool, *,
    forced: bool = False,
) -> Kernel:  # fmt: skip
    """The Kernel that `metasched.build` returns for a CPU."""
    compiled = _compiled(func, target, name, opt_level, checked, forced=forced)
    return Kernel(
        compiled.signature,
        Native.of(compiled),
        target,
        compiled=compiled,
        workload_hash=structural_hash(func),
    )


def export_files(
    func: PrimFunc, target: Target, name: str, opt_level: int | None, checked: bool,
    folder: str | Path, stem: str | None,
) -> Exported:  # fmt: skip
    """Write the files of `metasched.export` for a CPU, of this machine or another."""
    compiled = _compiled(func, target, name, opt_level, checked, forced=stem is not None)
    return export(compiled, target, folder, name=stem, workload_hash=structural_hash(func))


def _compiled(
    func: PrimFunc, target: Target, name: str, opt_level: int | None, checked: bool, *,
    forced: bool,
) -> Compiled:  # fmt: skip
    """Compile; serially, with a warning, for this machine if it has no OpenMP runtime.

    The C name is `name` if that is `forced`; otherwise the function's own name comes first.
    """
    symbol = name if forced else str(func.attrs.get("global_symbol", name))
    parallel = has_openmp() or target.here() is not None
    if not parallel and _is_parallel(func):
        warn(
            f"{symbol} has parallel loops but no OpenMP runtime (libgomp) was found: it runs "
            f"serially; {REMEDY}"
        )
    if not forced:
        func = func.with_attr("global_symbol", symbol)
    return compile_func(func, target, name if forced else None, opt_level, parallel, checked)


def compile_program(func: PrimFunc, target: Target, parallel: bool = True) -> Compiled:
    """Compile to machine code, serially without an OpenMP runtime. The LLVM text is dropped, since
    a runner needs the object only."""
    parallel = parallel and has_openmp()
    return replace(compile_func(func, target, parallel=parallel), llvm_ir="")


def load_program(program: Compiled, serial: bool = False) -> NativeProgram:
    """Link an object into this process; a serial program is timed by the CPU time of its thread."""
    return NativeProgram(Native.of(program), time.thread_time if serial else time.perf_counter)


def _peak(target: Target, threads: int) -> float:
    return measured_peak(target, "float32", threads)


def _is_parallel(func: PrimFunc) -> bool:
    return any(isinstance(s, For) and s.kind is ForKind.PARALLEL for s in walk_stmts(func.body))


PROGRAMS = ProgramsOf(compile_program, load_program, GuardedMemory, (AT_START, AT_END))
DEVICES.register("cpu", DeviceOf(build_kernel, export_files, usable, _peak, PROGRAMS))
