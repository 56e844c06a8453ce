"""Intrinsics of invented matrix units, whose description is their implementation, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from metasched import TensorIntrin
from metasched.ir.func import PrimFunc
from metasched.registry import taken_back
from metasched.script.parser import parse


def described(
    tiles: dict[str, int], a: str, b: str, c: str, kinds: tuple[str, str, str] = ("int32",) * 3
) -> PrimFunc:
    """C[c] += A[a] * B[b] over loops with these extents.

    `a`, `b` and `c` are indices over the loops, such as "i, k0 * 4 + k1"; a loop that `c` does not
    mention is a reduction.
    """
    operands = (("A", a, kinds[0]), ("B", b, kinds[1]), ("C", c, kinds[2]))

    def sizes(indices: str) -> list[int]:
        last = {name: n - 1 for name, n in tiles.items()}
        return [1 + eval(one, {}, last) for one in indices.split(",")]

    def renamed(indices: str) -> str:
        for name in tiles:
            indices = indices.replace(name, f"v{name}")
        return indices

    params = [
        f'{name}: T.Buffer(({", ".join(map(str, sizes(at)))},), "{kind}", offset_factor=1)'
        for name, at, kind in operands
    ]
    whole = [f"{name}[{', '.join(f'0:{n}' for n in sizes(at))}]" for name, at, _ in operands]
    letters = "".join("S" if name in c else "R" for name in tiles)
    iters = ", ".join(f"v{name}" for name in tiles)
    grid = ", ".join(tiles)
    head = f"T.grid({', '.join(map(str, tiles.values()))})"
    if len(tiles) == 1:
        head, iters = f"range({next(iter(tiles.values()))})", f"{iters},"
    at = {name: f"{name}[{renamed(indices)}]" for name, indices, _ in operands}
    factors = [
        f"T.cast({at[name]}, '{kinds[2]}')" if kind != kinds[2] else at[name]
        for name, _, kind in operands[:2]
    ]
    return parse(
        f"""
@T.prim_func
def described({", ".join(params)}):
    with T.block("root"):
        T.reads({whole[2]}, {whole[0]}, {whole[1]})
        T.writes({whole[2]})
        for {grid} in {head}:
            with T.block("update"):
                {iters} = T.axis.remap("{letters}", [{grid}])
                {at["C"]} = {at["C"]} + {factors[0]} * {factors[1]}
"""
    )


@contextmanager
def registered(name: str, desc: PrimFunc) -> Iterator[None]:
    """A context in which an invented unit is registered."""
    with taken_back(always=True):
        TensorIntrin.register(name, desc, desc)
        yield


OUTER = {"tiles": {"i": 4, "j": 4}, "a": "i", "b": "j", "c": "i, j"}
PRODUCT = {"tiles": {"i": 4, "j": 4, "k": 2}, "a": "i, k", "b": "k, j", "c": "i, j"}
