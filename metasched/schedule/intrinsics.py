"""Tensor intrinsics: what a hardware operation computes (`desc`) and how it is called (`impl`).

Both are functions of the same buffers whose bodies are one block each. `tensorize` finds `desc` in
a program and replaces it by `impl`. The built-in intrinsics are in the folder intrinsics/, which is
loaded at the first look-up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

from metasched.analysis.closing import close_blocks
from metasched.errors import RegistryError, VerifyError
from metasched.ir.buffer import Buffer, BufferRegion
from metasched.ir.describe import show_region
from metasched.ir.expr import as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import HardwareOp, called_instruction, lacking, load_intrinsics
from metasched.ir.stmt import Block
from metasched.ir.verify import verify
from metasched.ir.visit import walk
from metasched.registry import Registry

_INTRINSICS: Registry[TensorIntrin] = Registry("tensor_intrin")


@dataclass(frozen=True, slots=True, eq=False)
class TensorIntrin:
    """A tensor intrinsic; `TensorIntrin.register` makes and registers it.

    Attributes:
        name: the name, with dots, family first: `x86.vnni.dot_16x4_u8i8i32`.
        desc: the computation as loops over blocks.
        impl: the same computation by hardware instructions.
        needs: the CPU features that a target must have; each entry is written like
            `HardwareOp.feature`.
    """

    name: str
    desc: PrimFunc = field(repr=False)
    impl: PrimFunc = field(repr=False)
    needs: tuple[str, ...] = ()

    @staticmethod
    def register(
        name: str,
        desc: PrimFunc,
        impl: PrimFunc,
        override: bool = False,
        needs: Sequence[str] = (),
    ) -> TensorIntrin:
        """Register an intrinsic under `name`.

        Args:
            name: the name, with dots, family first.
            desc: the computation as loops over blocks.
            impl: the same computation by hardware instructions.
            override: whether to replace a registered intrinsic of this name.
            needs: further CPU features, beside the features of the instructions that `impl` calls.

        Raises:
            RegistryError: the name is taken, and `override` is False.
            VerifyError: the two functions do not fit each other.
        """
        load_intrinsics()
        _check(TensorIntrin(name, desc, impl))
        wanted = dict.fromkeys((*needs, *(op.feature for op in called(impl))))
        made = TensorIntrin(name, close_blocks(desc), close_blocks(impl), tuple(wanted))
        return _INTRINSICS.register(name, made, override=override)

    def lacks(self, features: Collection[str]) -> str:
        """The features that the intrinsic needs and `features` lack, as text; empty if none."""
        missing = (lacking(feature, features) for feature in self.needs)
        return " and ".join(text for text in missing if text)

    @overload
    @staticmethod
    def get(name: str, allow_missing: Literal[False] = False) -> TensorIntrin: ...
    @overload
    @staticmethod
    def get(name: str, allow_missing: bool) -> TensorIntrin | None: ...
    @staticmethod
    def get(name: str, allow_missing: bool = False) -> TensorIntrin | None:
        """The intrinsic called `name`; RegistryError (or None with `allow_missing`) if there is
        none."""
        load_intrinsics()
        try:
            return _INTRINSICS.get(name)
        except RegistryError:
            if allow_missing:
                return None
            raise

    @staticmethod
    def names() -> list[str]:
        """The names of all known intrinsics."""
        load_intrinsics()
        return _INTRINSICS.names()


def called(impl: PrimFunc) -> Iterator[HardwareOp]:
    """The declared machine instructions that an implementation calls, one for each call."""
    return (op for op in map(called_instruction, walk(impl.body)) if op is not None)


def _check(intrin: TensorIntrin) -> None:
    """Both functions are well formed, take the same buffers, and touch all of each buffer."""
    name, desc, impl = intrin.name, intrin.desc, intrin.impl
    for func in (desc, impl):
        if not isinstance(func, PrimFunc):
            raise VerifyError(f"{name}: desc and impl are PrimFuncs, not {type(func).__name__}")
        verify(func)
        if not func.is_schedulable or any(not isinstance(p, Buffer) for p in func.params):
            raise VerifyError(f"{name}: an intrinsic is one block over buffers", rule="intrinsic")
    if len(desc.params) != len(impl.params):
        raise VerifyError(
            f"{name}: the description has {len(desc.params)} parameters, the implementation "
            f"{len(impl.params)}",
            rule="intrinsic",
        )
    for a, b in zip(desc.buffers, impl.buffers, strict=True):
        same = a.dtype is b.dtype and a.constant_shape() == b.constant_shape() is not None
        if not same or a.scope != b.scope:
            raise VerifyError(
                f"{name}: {a!r} in {a.scope} of the description is {b!r} in {b.scope} of the "
                "implementation (both must be the same, of constant shape)",
                rule="intrinsic",
            )
    for what in ("reads", "writes"):
        mine = {desc.buffers.index(r.buffer) for r in _whole(name, desc.root, what)}
        theirs = {impl.buffers.index(r.buffer) for r in _whole(name, impl.root, what)}
        if not theirs <= mine:
            extra = impl.buffers[min(theirs - mine)].name
            raise VerifyError(
                f"{name}: the implementation {what} {extra}, the description does not",
                rule="intrinsic",
            )


def _whole(name: str, root: Block, what: str) -> list[BufferRegion]:
    """The declared regions of a root block, each all of its buffer."""
    regions: list[BufferRegion] = list(getattr(root, what))
    for region in regions:
        shape = region.buffer.constant_shape()
        starts = [as_int(r.min) for r in region.region]
        sizes = tuple(as_int(r.extent) for r in region.region)
        if any(starts) or sizes != shape:
            raise VerifyError(
                f"{name}: {what} {show_region(region)}, which is not all of the buffer",
                rule="intrinsic",
            )
    return regions
