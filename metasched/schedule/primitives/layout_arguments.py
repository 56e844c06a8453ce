"""Reads the arguments of layout primitives: a buffer, an index map, a number."""

from __future__ import annotations

from typing import Any, TypeAlias

from metasched.arith.indexmap import IndexMap, MapLike
from metasched.arith.regions import inputs
from metasched.errors import MetaschedError, brief
from metasched.ir.buffer import Buffer
from metasched.ir.expr import (
    Var,
)
from metasched.ir.stmt import (
    BlockRealize,
    Stmt,
)
from metasched.ir.visit import free_vars
from metasched.schedule.checks import (
    by_name,
)
from metasched.schedule.instruction import handles_in
from metasched.schedule.state import State

BufferChoice: TypeAlias = "tuple[str | int, ...] | str | Buffer"


def buffer_by_index(given: dict[str, Any]) -> dict[str, Any]:
    """`buffer_index=` with `buffer_index_type=` ("read" or "write") for `buffer=`."""
    names = ("buffer_index", "buffer_index_type")
    if "buffer" in given or "buffer_index" not in given:
        return given
    if "buffer_index_type" not in given:
        at = given["buffer_index"]
        raise TypeError(
            f"a buffer_index counts the buffers that a block reads, or the buffers it writes: "
            f'write buffer=("read", {brief(at)}) or buffer=("write", {brief(at)})'
        )
    rest = {key: value for key, value in given.items() if key not in names}
    return {**rest, "buffer": (given["buffer_index_type"], given["buffer_index"])}


def choose_buffer(
    state: State, realize: BlockRealize, which: BufferChoice
) -> tuple[str, int, Buffer]:
    """Find a buffer given as ("read", i), ("write", i), name or Buffer.

    Returns (side, position, buffer).
    """
    block = realize.block
    sides = {"read": block.reads, "write": block.writes}
    if isinstance(which, (tuple, list)):
        given = list(which)
        if len(given) == 2 and given[0] in sides:
            position = given[1]
            regions = sides[given[0]]
            if type(position) is int and 0 <= position < len(regions):
                return given[0], position, regions[position].buffer
    else:
        for side, regions in sides.items():
            for position, region in enumerate(regions):
                if side == "read" and region not in inputs(block):
                    continue  # an accumulator is read and written: its name means the write
                if region.buffer is which or region.buffer.name == which:
                    return side, position, region.buffer
    names = [", ".join(r.buffer.name for r in regions) or "nothing" for regions in sides.values()]
    raise state.error(
        "no-such-buffer",
        f"{block.name} has no buffer {brief(which)}; it reads {names[0]} and writes {names[1]}",
        realize,
        hint='give ("read", i), ("write", i), a name or the buffer',
    )


def as_index_map(state: State, source: MapLike, ndim: int, node: Stmt) -> IndexMap:
    """The user's map as an `IndexMap` of `ndim` indices; raises if it takes another number."""
    if not isinstance(source, IndexMap) and not callable(source):
        raise state.error(
            "bad-index-map", f"{brief(source)} is neither a function nor an index map", node
        )
    try:
        mapping = IndexMap.of(source, ndim)
    except MetaschedError as error:
        raise state.error("bad-index-map", str(error), node) from None
    if {*handles_in(mapping)}:
        mapping = IndexMap(mapping.inputs, tuple(map(state.expr, mapping.outputs)))
    if not all(e.dtype.is_int for e in mapping.outputs):
        raise state.error("bad-index-map", "the index map gives values that are not integers", node)
    known = state.func_of(node)[1].symbols
    found = [by_name(e, known, mapping.inputs) for e in mapping.outputs]
    foreign = [v for _, unknown in found for v in unknown]
    if foreign:
        raise state.error(
            "bad-index-map",
            f"the index map mentions {foreign[0].name}, which is no variable of the function",
            node,
            hint="use the indices, scalar parameters, and extents of the function's buffers",
        )
    return IndexMap(mapping.inputs, tuple([e for e, _ in found]), mapping.inverse_map)


def foreign_vars(mapping: IndexMap) -> list[Var]:
    """The variables in a map that are not its inputs."""
    used = frozenset().union(*(free_vars(e) for e in mapping.outputs))
    return sorted(used - set(mapping.inputs), key=lambda v: v.name)


def plain_int(state: State, value: Any, what: str) -> int:
    """An integer argument (or a sampled one); anything else is refused."""
    number = state.integer(value) if not isinstance(value, bool) else None
    if number is None:
        raise state.error("not-an-integer", f"{what} is {brief(value)}, not an integer")
    return number
