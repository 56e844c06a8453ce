"""PrimFunc to object bytes: lower, emit LLVM text, optimise, generate code.

llvmlite is imported when the first function is compiled. LLVM holds one lock for the process, so
builds run side by side in processes, not threads.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import Any

from metasched.codegen.elf import undefined_symbols
from metasched.codegen.function import emit_function
from metasched.codegen.module import ModuleEmitter
from metasched.codegen.parameters import shape_symbols
from metasched.codegen.signature import Signature
from metasched.errors import BuildError, words
from metasched.ir.func import PrimFunc
from metasched.ir.op import LIBM_SYMBOLS
from metasched.lower.packing import split_packing
from metasched.lower.passes.check_bounds import check_bounds
from metasched.lower.pipeline import lower_with_symbols
from metasched.target import Target

# The text already has vectors, unrolled bodies, hoisted values and reused loads. On candidates of a
# matrix product, level 2 gives the same speed as level 1 in twice the compile time.
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as bytes; picklable, loaded by `codegen.load`.

    Attributes:
        object: position-independent object file; the same bytes load in process and link.
        symbol: the C function, see `Signature`.
        signature: the parameters of the function.
        llvm_ir: the LLVM text before optimisation.
        externs: foreign symbols the object needs (`expf`, `GOMP_parallel`, ...).
        parallel: whether the code calls the OpenMP runtime.
        options: the (triple, mcpu, features, opt_level) of the compilation.
        kind: the target's kind; empty for a kernel loaded from files.
    """

    object: bytes
    symbol: str
    signature: Signature
    llvm_ir: str
    externs: tuple[str, ...] = ()
    parallel: bool = False
    options: tuple[str, str, str, int] = ("", "", "", 2)
    kind: str = ""

    def asm(self) -> str:
        """The assembly text; LLVM generates it again from the LLVM text."""
        machine = _machine(*self.options)
        module = _optimised(self.llvm_ir, machine, self.options[3])
        return str(machine.emit_assembly(module))


_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_C = LIBM_SYMBOLS | {"memcpy", "memset", "memmove", "memcmp", "aligned_alloc", "malloc", "free"}
"""Functions that generated code, or LLVM, may call in a kernel."""


def compile_func(
    func: PrimFunc,
    target: Target,
    name: str | None = None,
    opt_level: int | None = None,
    parallel: bool = True,
    checked: bool = False,
) -> Compiled:
    """Compile a function (schedulable or lowered) for a CPU target, with the function that packs
    its constant weights.

    Args:
        name: C name of the kernel; None takes its `global_symbol`, or "main" without one, with
            `_kernel` behind the name of a function of C that the code may call.
        opt_level: LLVM's optimisation level; None chooses 1.
        parallel: False runs parallel loops serially and needs no OpenMP runtime.
        checked: check every load and store at run time.

    Raises LowerError and BuildError for a function that cannot be compiled, before LLVM runs.
    """
    symbol = str(func.attrs.get("global_symbol", "main")) if name is None else name
    if not isinstance(symbol, str) or not _C_NAME.fullmatch(symbol):
        raise BuildError(f"{symbol!r} is not a C function name")
    if symbol in _OF_C:
        symbol = _other_name(symbol, name)
    if opt_level not in (None, 0, 1, 2, 3):
        raise BuildError(f"opt_level is {opt_level!r}; LLVM has 0, 1, 2 and 3")
    module = ModuleEmitter(target, symbol)
    packing = split_packing(func)
    signature = _emit(module, packing.main if packing else func, target, symbol, parallel, checked)
    if packing is not None:
        pack = _emit(module, packing.pack, target, f"{symbol}_pack", parallel, checked)
        weights = tuple(func.params.index(w) for w in func.constants)
        signature = replace(signature, weights=weights, pack=pack)
    signature = replace(signature, record=module.recorded)
    if any(own in module.declarations for own in (symbol, f"{symbol}_repeat", f"{symbol}_pack")):
        other = _other_name(symbol, name)
        return compile_func(func, target, other, opt_level, parallel, checked)
    text = module.text()
    opt_level = _LEVEL if opt_level is None else opt_level
    options = (target.triple, target.mcpu, target.llvm_features, opt_level)
    machine = _machine(*options)
    obj = machine.emit_object(_optimised(text, machine, opt_level))
    externs = undefined_symbols(obj)
    parallel = "GOMP_parallel" in externs
    return Compiled(obj, symbol, signature, text, externs, parallel, options, target.kind)


def _other_name(symbol: str, given: str | None) -> str:
    """The C name of a kernel whose own name is that of a function which its code may call.

    One object cannot define the name and call the other function of that name: LLVM puts in calls
    of `memset` and of mathematical functions by itself. A name that the caller gave is refused.
    """
    if given is None:
        return f"{symbol}_kernel"
    raise BuildError(
        f"{symbol!r} is also a function of C that the kernel may call; build the kernel by another "
        f"`name`, such as {symbol + '_kernel'!r}"
    )


def _emit(
    module: ModuleEmitter, func: PrimFunc, target: Target, name: str, parallel: bool, checked: bool
) -> Signature:
    func = check_bounds(func) if checked else func
    lowered, symbols = lower_with_symbols(func, target, shape_symbols(func))
    return emit_function(module, func, lowered, symbols, name, parallel)


def compile_text(text: str, target: Target, opt_level: int = 2) -> bytes:
    """Compile a module given as LLVM text to the bytes of an object file."""
    machine = _machine(target.triple, target.mcpu, target.llvm_features, opt_level)
    return bytes(machine.emit_object(_optimised(text, machine, opt_level)))


@functools.lru_cache(maxsize=8)
def _machine(triple: str, mcpu: str, features: str, opt_level: int) -> Any:
    """LLVM's target machine for position-independent objects."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        found = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise BuildError(f"LLVM has no target {triple!r}: {words(error)}") from None
    return found.create_target_machine(
        cpu=mcpu, features=features, opt=opt_level, reloc="pic", codemodel="default", jit=False
    )


def _optimised(text: str, machine: Any, opt_level: int) -> Any:
    """Parse LLVM text and run LLVM's optimisation pipeline on the module.

    The text already has vectors and unrolled bodies, so LLVM's vectorizers and unroller are off:
    they only cost time.
    """
    import llvmlite.binding as llvm

    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        text = words(error)
        raise BuildError(f"LLVM refuses the emitted text (an internal error): {text}") from None
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=opt_level)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    options.loop_interleaving = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module
