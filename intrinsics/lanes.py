"""Functions that the families share: descriptions and implementations of lanes of dot products."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from metasched.ir.dtype import DType
from metasched.ir.expr import Broadcast, Expr, StringImm
from metasched.ir.func import PrimFunc
from metasched.ir.op import HARDWARE, HardwareOp, call
from metasched.schedule.intrinsics import TensorIntrin
from metasched.script import tir as T

Array = np.ndarray[Any, Any]
Meaning = Callable[..., Array]
Product = Callable[[Expr, Expr, Expr], Expr]
INT16, INT32, INT64 = ((-(1 << n - 1), (1 << n - 1) - 1) for n in (16, 32, 64))


def declare(
    name: str, result: str, operands: str, feature: str, meaning: Meaning, cost: float = 1.0,
    adds: bool = False,
) -> str:  # fmt: skip
    """Register a machine instruction and return its name; spaces separate the types of operands."""
    kinds = tuple(DType(word) for word in operands.split())
    HARDWARE.register(name, HardwareOp(name, DType(result), kinds, feature, meaning, cost, adds))
    return name


def use(name: str, *args: Expr) -> Expr:
    """A call of a declared instruction."""
    kind = HARDWARE.get(name).result
    return call("call_llvm_pure_intrin", StringImm(name), *args, dtype=kind)


def short(kinds: tuple[str, ...]) -> str:
    """The types as in the names of intrinsics: `u8i8i32`, `bf16bf16f32`."""
    return "".join(k.replace("uint", "u").replace("int", "i").replace("float", "f") for k in kinds)


def sums(group: int, low: int = INT64[0], high: int = INT64[1]) -> Meaning:
    """acc + the sum of `group` neighbouring products in each lane, limited to [low, high]."""

    def meaning(acc: Array, a: Array, b: Array) -> Array:
        wide = np.asarray(a, np.int64) * np.asarray(b, np.int64)
        total: Array = np.asarray(acc, np.int64) + wide.reshape(-1, group).sum(axis=1)
        return np.clip(total, low, high)

    return meaning


def repeated(word: Expr, kind: str, lanes: int) -> Expr:
    """Repeat an integer in `lanes` lanes, and read its bits as values of a type."""
    total = word.dtype.bits // DType(kind).bits * lanes
    return call("reinterpret", Broadcast(word, lanes), dtype=DType(kind).with_lanes(total))


@functools.cache
def dot_desc(lanes: int, group: int, kinds: tuple[str, ...]) -> PrimFunc:
    """C[i] += sum of A[k] * B[i, k] over `group` steps k, for `lanes` results i.

    `kinds` are the types of A, B and C, as everywhere in this file.
    """
    a, b, c = kinds

    @T.prim_func
    def dot_desc(
        A: T.Buffer((group,), a, offset_factor=1),
        B: T.Buffer((lanes, group), b, offset_factor=1),
        C: T.Buffer((lanes,), c, offset_factor=1),
    ) -> None:
        with T.block("root"):
            T.reads(C[0:lanes], A[0:group], B[0:lanes, 0:group])
            T.writes(C[0:lanes])
            for i in range(lanes):
                for k in range(group):
                    with T.block("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk], c) * T.cast(B[vi, vk], c)

    return dot_desc


def dot_impl(lanes: int, group: int, kinds: tuple[str, ...], product: Product) -> PrimFunc:
    """C = product(C, A, B), where C and B are whole vectors.

    A is one integer, the bits of its group; `repeated` puts the integer into all lanes.
    """
    a, b, c = kinds
    total = lanes * group
    word = DType(f"int{DType(a).bits * group}")

    @T.prim_func
    def dot_impl(
        A: T.Buffer((group,), a, offset_factor=1),
        B: T.Buffer((lanes, group), b, offset_factor=1),
        C: T.Buffer((lanes,), c, offset_factor=1),
    ) -> None:
        with T.block("root"):
            T.reads(C[0:lanes], A[0:group], B[0:lanes, 0:group])
            T.writes(C[0:lanes])
            C[T.ramp(T.int32(0), 1, lanes)] = product(
                C.vload([0], dtype=f"{c}x{lanes}"),
                call("reinterpret", A.vload([0], f"{a}x{group}"), dtype=word),
                B.vload([0, 0], dtype=f"{b}x{total}"),
            )

    return dot_impl


def dot(name: str, lanes: int, group: int, kinds: tuple[str, ...], product: Product) -> None:
    """Register an intrinsic that computes a dot product in each lane."""
    desc, impl = dot_desc(lanes, group, kinds), dot_impl(lanes, group, kinds, product)
    TensorIntrin.register(name, desc, impl)
