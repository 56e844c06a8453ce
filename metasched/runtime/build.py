"""`build` compiles a program to a kernel, or the functions of a module to kernels by name; `export`
compiles a program to files, for any machine; `lower` gives the loops before compilation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, overload, runtime_checkable

from metasched.arith.outside import require_well_formed
from metasched.errors import BuildError, LowerError, TargetError, shown_at_caller
from metasched.ir.func import IRModule, PrimFunc
from metasched.lower.pipeline import lower_and_show, to_stderr
from metasched.runtime import rows as rows  # enters the devices by kind
from metasched.runtime.devices import device_of
from metasched.runtime.export import Exported
from metasched.runtime.kernel import Kernel
from metasched.target import Cpu, Target
from metasched.tvm_names import KERNEL, hint


@runtime_checkable
class HasModule(Protocol):
    """A schedule, or anything else with a module."""

    @property
    def mod(self) -> IRModule: ...


class KernelModule(Mapping[str, Kernel]):
    """The kernels of a module by name: `module["f"]` or `module.f`."""

    def __init__(self, kernels: Mapping[str, Kernel]) -> None:
        self._kernels = dict(kernels)

    def __getitem__(self, name: str) -> Kernel:
        try:
            return self._kernels[name]
        except KeyError:
            known = ", ".join(self._kernels)
            raise KeyError(f"no kernel is called {name!r}; there are {known}") from None

    def __getattr__(self, name: str) -> Kernel:
        kernels = self.__dict__.get("_kernels", {})
        if name not in kernels:
            words = hint(name, KERNEL) or f"; there are {', '.join(kernels)}"
            raise AttributeError(f"no kernel is called {name!r}{words}")
        found: Kernel = kernels[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def __repr__(self) -> str:
        return f"<KernelModule {', '.join(self._kernels)}>"


@overload
def build(
    source: PrimFunc,
    target: Cpu | None = None,
    *,
    name: str | None = None,
    opt_level: int | None = None,
    check_bounds: bool = False,
) -> Kernel: ...
@overload
def build(
    source: PrimFunc | IRModule | HasModule,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    opt_level: int | None = None,
    check_bounds: bool = False,
) -> Any: ...
@shown_at_caller
def build(
    source: PrimFunc | IRModule | HasModule,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    opt_level: int | None = None,
    check_bounds: bool = False,
) -> Any:
    """Compile a program for this machine.

    Args:
        source: a function, a module, or something with a `.mod` (a Schedule).
        target: see `Target.of`; None means this machine.
        name: C name of the kernel; by default the function's `global_symbol`, else its name.
        opt_level: LLVM's optimisation level, 0 to 3; None chooses 1.
        check_bounds: check every load and store at run time, for debugging: a kernel that leaves
            a buffer stops with a KernelError that names block, buffer, indices and shape. (Foreign
            functions and masked lanes are not looked into.)

    Returns:
        A Kernel; for a module of several functions a KernelModule of kernels by name.

    Raises LowerError and BuildError for a program that cannot be compiled, TargetError for a
    target whose code cannot run here, and VerifyError for a program that breaks a rule of
    `ir.verify`, or has an access that is certainly outside its buffer.
    """
    machine = Target.of(target)
    machine.require_here()
    device = device_of(machine)
    module = _checked(source)
    if len(module) == 1:
        ((key, func),) = module.items()
        return device.build(
            func, machine, name or key, opt_level, check_bounds, forced=name is not None
        )
    if name is not None:
        raise BuildError(f"name={name!r} is for a single function, the module has {len(module)}")
    return KernelModule(
        {
            key: device.build(func, machine, key, opt_level, check_bounds)
            for key, func in module.items()
        }
    )


@shown_at_caller
def export(
    source: PrimFunc | IRModule | HasModule,
    folder: str | Path,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    opt_level: int | None = None,
    check_bounds: bool = False,
) -> Exported:
    """Compile a program to files for a machine, which need not be this one.

    The files are NAME.o, NAME.so, NAME.h and NAME.json. The manifest NAME.json holds the target;
    `load_exported` refuses the files on a machine without the target's features. The shared library
    needs a linker for the target, `aarch64-linux-gnu-gcc` say; without one, `note` of the result
    says what is missing.

    Args:
        source: a function, a module of one, or something with a `.mod` (a Schedule).
        folder: created when missing.
        target: see `Target.of`; None means this machine.
        name: C name of the kernel and stem of the files; by default the function's `global_symbol`,
            else its name.
        opt_level, check_bounds: as in `build`.

    Raises LowerError and BuildError for a program that cannot be compiled, TargetError for a target
    of a kind without files, and ExportError naming the place and the reason.
    """
    machine = Target.of(target)
    write = device_of(machine).export
    if write is None:
        raise TargetError(f"no files are made for targets of kind {machine.kind!r}")
    module = _checked(source)
    if len(module) != 1:
        raise BuildError(f"export takes one function, the module has {len(module)}")
    ((key, func),) = module.items()
    symbol = name or str(func.attrs.get("global_symbol", key))
    found: Exported = write(func, machine, symbol, opt_level, check_bounds, folder, name)
    return found


def _checked(source: Any) -> IRModule:
    """The module of a source, with functions, each of which is well formed."""
    module = _module(source)
    if not module:
        raise BuildError("the module has no functions")
    for func in module.values():
        require_well_formed(func)
    return module


def lower(
    source: PrimFunc | IRModule | HasModule,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    show: bool = False,
) -> PrimFunc:
    """A program as plain loops over flat buffers, as `build` hands it to the code generator.

    Args:
        source: a function, a module of one, or something with a `.mod` (a Schedule).
        target: see `Target.of`; None means this machine.
        show: print the script after each pass that changed it, on standard error.

    Raises LowerError for what has no plain form on the target.
    """
    functions = list(_module(source).values())
    if len(functions) != 1:
        raise LowerError(f"lower takes one function, the module has {len(functions)}")
    return lower_and_show(functions[0], Target.of(target), show=to_stderr if show else None)


def _module(source: Any) -> IRModule:
    if isinstance(source, PrimFunc | IRModule):
        return IRModule.of(source)
    module = getattr(source, "mod", None)
    if isinstance(module, IRModule):
        return module
    raise BuildError(f"build takes a PrimFunc, an IRModule or a Schedule, not {_kind(source)}")


def _kind(source: Any) -> str:
    return getattr(source, "__name__", None) or type(source).__name__
