"""PrimFunc to object bytes: lower, emit LLVM text, optimise, generate code. Runs in any process."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.codegen.signature import Signature


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as bytes; picklable, loaded by `codegen.load`.

    Attributes:
        object: position-independent object file; the same bytes load in process and link.
        symbol: the C function, see `Signature`.
        signature: its parameters.
        llvm_ir: the text as emitted, before optimisation.
        externs: foreign symbols the object needs (`expf`, `GOMP_parallel`, ...).
        parallel: the code calls the OpenMP runtime.
        options: (triple, mcpu, features, opt_level) it was compiled with.
    """

    object: bytes
    symbol: str
    signature: Signature
    llvm_ir: str
    externs: tuple[str, ...] = ()
    parallel: bool = False
    options: tuple[str, str, str, int] = ("", "", "", 2)
