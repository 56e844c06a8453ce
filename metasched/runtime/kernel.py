"""Kernel: a compiled function, callable on NumPy arrays."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metasched.codegen.compile import Compiled
from metasched.codegen.signature import Signature
from metasched.errors import BuildError, KernelError, clipped, shortened, shown_at_caller
from metasched.runtime.arguments import Checker
from metasched.runtime.export import Exported, export
from metasched.runtime.native import Native
from metasched.runtime.packing import Packer
from metasched.runtime.timing import Repeat, Timing, clocked, measure
from metasched.target import Target
from metasched.tvm_names import KERNEL, hint


class Bound:
    """A kernel with arguments that were checked once; calling it runs the kernel on them.

    Attributes:
        kernel: the kernel.
    """

    __slots__ = ("kernel", "_run", "_held")

    def __init__(self, kernel: Kernel, values: Sequence[Any], held: Any) -> None:
        self.kernel = kernel
        self._run = partial(kernel._native.call, *values)
        self._held = held  # the memory that the values point to

    def __call__(self) -> None:
        """Run the kernel; KernelError if an assertion of the program fails or memory runs out."""
        code = self._run()
        if code:
            raise KernelError(f"{self.kernel.name}: {self.kernel._failure_text(code)}")

    def __repr__(self) -> str:
        return f"<Bound {self.kernel!r}>"


class Kernel:
    """A function on NumPy arrays, in place: outputs are parameters and are written.

    Calling checks every argument first (type, dtype, shape, strides, alignment, writeable
    outputs, outputs that overlap nothing) and raises KernelError naming the argument. Kernels
    keep no state: any number of threads may call one.

    Attributes:
        name: the C name.
        signature: parameters as plain data.
        target: what it was compiled for.
        workload_hash: structural hash of the program it came from, empty when unknown.
        compiled: the object with its LLVM text; None for a kernel loaded from files.
    """

    def __init__(
        self,
        signature: Signature,
        native: Native,
        target: Target,
        *,
        compiled: Compiled | None = None,
        workload_hash: str = "",
    ) -> None:
        self.name = signature.symbol
        self.signature = signature
        self.target = target
        self.workload_hash = workload_hash
        self.compiled = compiled
        self._native = native
        self._call = native.call
        self._check = Checker(signature, self.name, workload_hash)
        self._packer = Packer(signature, native, workload_hash) if signature.pack else None

    if not TYPE_CHECKING:  # type checkers still refuse unknown names

        def __getattr__(self, name: str) -> Any:
            known = () if name.startswith("_") else dir(type(self))
            raise AttributeError(f"a kernel has no {name!r}{hint(name, KERNEL, known)}")

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Run on arrays and scalars in the order of the program's parameters, or by their names.

        An array is NumPy's, or a CPU tensor of any library with DLPack, PyTorch for example; the
        kernel works on its memory. Outputs that are left out are allocated with zeros and returned:
        one array, or a tuple in the order of the parameters. None if no output is left out.

        Raises KernelError before running for arguments that do not fit; and when an assertion of
        the program fails or a temporary buffer cannot be allocated.
        """
        values = None if named else self._check.quick(arguments)
        if values is None:
            try:
                return self._general(arguments, named)
            except KernelError as error:
                raise shortened(error) from error.__cause__
        code = self._call(*values)
        if code:
            raise KernelError(f"{self.name}: {self._failure_text(code)}")
        return None

    def _general(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Run on any arguments that a call accepts, by the complete check."""
        given, made, held = self._check.complete(arguments, named)
        Bound(self, self._check(given), (given, held))()
        return (made[0] if len(made) == 1 else tuple(made)) if made else None

    @shown_at_caller
    def bind(self, /, *arguments: Any, **named: Any) -> Bound:
        """Check arguments once; calling the result runs the kernel on them.

        The arrays are kept alive. They must not be resized or made read-only meanwhile.

        Raises KernelError as a call does; outputs cannot be left out.
        """
        given, made, held = self._check.complete(arguments, named)
        if made:
            raise KernelError(f"{self.name}: bind takes all arguments, outputs too")
        return Bound(self, self._check(given), (given, held))

    @shown_at_caller
    def pack(self, *weights: Any) -> Any:
        """Pack the constant weights into the kernel's own layout: new arrays, made once before the
        calls.

        The weights are the parameters that the function marks by `layout_free_buffers`, in the
        order of the mark; the result is one array for one weight, a tuple for several. Another
        kernel, even of the same function, may need another layout, and refuses these arrays. Of
        arrays that were stored and read again, a kernel checks the shape only.

        Raises KernelError without such a parameter, or naming the weight that does not fit.
        """
        if self._packer is None:
            raise KernelError(
                f"{self.name} has no constant weights to pack; mark them in the function by "
                'T.func_attr({"layout_free_buffers": [positions]})'
            )
        packed = self._packer(weights)
        return packed[0] if len(packed) == 1 else packed

    @shown_at_caller
    def time(
        self,
        *arguments: Any,
        warmup: int = 1,
        repeats: int = 10,
        min_repeat_ms: float = 1.0,
        before: Callable[[], None] | None = None,
    ) -> Timing:
        """Time calls on these arguments, repeated natively (the arrays are overwritten).

        Args:
            warmup: calls before the first sample.
            repeats: number of samples.
            min_repeat_ms: a sample makes as many calls as fill this many milliseconds.
            before: run before each sample, untimed; a sample is then a single call.

        Raises KernelError as a call does, and for an option that is no number or too small.
        """
        repeat = self.repeat(*arguments)
        for what, count, least in (("warmup", warmup, 0), ("repeats", repeats, 1)):
            if not isinstance(count, Integral) or count < least:
                raise KernelError(f"{what} is {count!r}, not an integer from {least}")
        if not isinstance(min_repeat_ms, Real) or min_repeat_ms < 0:
            raise KernelError(f"min_repeat_ms is {min_repeat_ms!r}, not a number from 0")
        return measure(
            repeat, warmup=warmup, repeats=repeats, min_repeat_ms=min_repeat_ms, before=before
        )

    def repeat(self, *arguments: Any) -> Repeat:
        """Give a function that runs the kernel n times on these arguments in one native loop, and
        returns the seconds.

        Raises KernelError as a call does, also while it runs.
        """
        given, _, held = self._check.complete(arguments)
        values, native = self._check(given), self._native

        def run(count: int, alive: Any = (given, held)) -> None:  # the memory of the values
            code = native.repeat(*values, count)
            if code:
                raise KernelError(f"{self.name}: {self.signature.failure(code)}")

        return clocked(run)

    def export(self, folder: str | Path, name: str | None = None) -> Exported:
        """Write NAME.o, NAME.so, NAME.h and NAME.json to a folder; see `runtime.export.export`."""
        return export(
            self._need(), self.target, folder, name=name, workload_hash=self.workload_hash
        )

    @property
    def llvm_ir(self) -> str:
        """The LLVM text as emitted, before LLVM's own optimisation."""
        return self._need().llvm_ir

    @property
    def asm(self) -> str:
        """The assembly text."""
        return self._need().asm()

    def __copy__(self) -> Kernel:
        return self  # it has no state

    def __deepcopy__(self, memo: Any) -> Kernel:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as machine code; PicklingError for a kernel that was loaded from files."""
        if self.compiled is None:
            advice = "export the files, and load them in the other process"
            raise pickle.PicklingError(f"{self.name} was loaded from files; {advice}")
        return _linked, (self.compiled, self.target, self.workload_hash)

    def _failure_text(self, code: int) -> str:
        return self._native.failure(self.signature, code)

    def _need(self) -> Compiled:
        if self.compiled is None:
            raise BuildError(f"{self.name} was loaded from files, which hold machine code only")
        return self.compiled

    def __repr__(self) -> str:
        params = ", ".join(p.name for p in self.signature.params)
        return f"<Kernel {self.name}({params}) for {self.target.mcpu}>"


def _linked(compiled: Compiled, target: Target, workload_hash: str) -> Kernel:
    """The kernel of machine code that was made here or, for the same kind of machine, elsewhere.

    Raises BuildError if this machine lacks what the code needs.
    """
    lacking = target.here()
    if lacking is not None:
        raise BuildError(f"{compiled.symbol}: the kernel cannot run here: {clipped(lacking)}")
    native = Native.of(compiled)
    return Kernel(
        compiled.signature, native, target, compiled=compiled, workload_hash=workload_hash
    )
