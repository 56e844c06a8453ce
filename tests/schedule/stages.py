"""Programs of two stages: P fills B from A, C reads B."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.ir.func import PrimFunc
from metasched.script import parse

Shape = Sequence[int]


def two_stages(
    name: str, a: Shape, b: Shape, c: Shape, made: tuple[Shape, str], used: tuple[Shape, str]
) -> PrimFunc:
    """A function of `A` and `C` with a buffer `B` of these shapes between them.

    Args:
        made, used: the extents of the stages P and C, and the store of each over its spatial
            iterators v0, v1, ...
    """
    lines = [
        "@T.prim_func",
        f"def {name}(A: T.Buffer({(*a,)}, 'float32'), C: T.Buffer({(*c,)}, 'float32')):",
        f"    B = T.alloc_buffer({(*b,)}, 'float32')",
    ]
    for block, (extents, store) in (("P", made), ("C", used)):
        loops = [f"i{k}" for k in range(len(extents))]
        lines.append(f"    for {', '.join(loops)} in T.grid({', '.join(map(str, extents))}):")
        lines.append(f"        with T.block('{block}'):")
        for k, extent in enumerate(extents):
            lines.append(f"            v{k} = T.axis.spatial({extent}, i{k})")
        lines.append(f"            {store}")
    return parse("\n".join(lines))


def under_one_loop(name: str, index: str) -> PrimFunc:
    """A function whose one loop copies A to B and then B at `index`, over vi, to C."""
    return parse(
        f"""@T.prim_func
def {name}(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi]
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[{index}]
"""
    )
