"""Layout changes in registers, for every machine: rows are interleaved into groups and widened."""

from __future__ import annotations

from metasched.ir.expr import cast
from metasched.ir.func import PrimFunc
from metasched.ir.op import Shuffle
from metasched.schedule.intrinsics import TensorIntrin
from metasched.script import tir as T


def interleave(
    lanes: int, group: int, kind: str, wide: str | None = None
) -> tuple[PrimFunc, PrimFunc]:
    """D[i, k] = S[k, i]: the elements of a column of `group` rows side by side.

    `wide` is the type of D, by default the type of S.
    """
    to = wide or kind

    @T.prim_func
    def interleave_desc(
        S: T.Buffer((group, lanes), kind, offset_factor=1),
        D: T.Buffer((lanes, group), to, offset_factor=1),
    ) -> None:
        with T.block("root"):
            T.reads(S[0:group, 0:lanes])
            T.writes(D[0:lanes, 0:group])
            for i, k in T.grid(lanes, group):
                with T.block("move"):
                    vi, vk = T.axis.remap("SS", [i, k])
                    D[vi, vk] = cast(to, S[vk, vi])

    order = [k * lanes + i for i in range(lanes) for k in range(group)]

    @T.prim_func
    def interleave_impl(
        S: T.Buffer((group, lanes), kind, offset_factor=1, strides=[T.int32(), 1]),
        D: T.Buffer((lanes, group), to, offset_factor=1),
    ) -> None:
        with T.block("root"):
            T.reads(S[0:group, 0:lanes])
            T.writes(D[0:lanes, 0:group])
            D[0, T.ramp(T.int32(0), 1, lanes * group)] = Shuffle(
                [cast(f"{to}x{lanes}", S.vload([k, 0], f"{kind}x{lanes}")) for k in range(group)],
                order,
            )

    return interleave_desc, interleave_impl


for lanes in (64, 32, 16, 8, 4):
    for group, kinds in ((4, ("int8", "uint8")), (2, ("int16", "bfloat16"))):
        for kind in kinds if lanes <= 16 * group else ():
            TensorIntrin.register(
                f"lanes.interleave_{lanes}x{group}_{kind}", *interleave(lanes, group, kind)
            )
    for kind in ("int8", "uint8") if lanes <= 16 else ():
        TensorIntrin.register(
            f"lanes.interleave_{lanes}x2_{kind}_int16", *interleave(lanes, 2, kind, "int16")
        )
