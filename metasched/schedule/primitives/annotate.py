"""annotate, unannotate: annotations of blocks and loops, for later steps and for lowering."""

from __future__ import annotations

from functools import partial
from typing import Any

from metasched.errors import brief
from metasched.ir.expr import Expr
from metasched.ir.stmt import Block, For, FrozenMap, Stmt, evolve, fact
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import primitive
from metasched.schedule.state import State


@primitive()
def annotate(
    state: State,
    block_or_loop: BlockRV | LoopRV | str,
    ann_key: str,
    ann_val: str | int | float | bool | Expr | list[Any] | dict[str, Any] | None,
    replace: bool | None = False,
) -> None:
    """Annotate a block or loop with `ann_val` under `ann_key`; sampled values become numbers.

    An annotation that exists is overwritten if `replace` is True, and kept, as in TVM, if None.

    requires  a key that the node does not have, or has with an equal value; any key if `replace`
              is True or None
    """
    node, notes = _labelled(state, block_or_loop)
    value = _plain(state, ann_val)
    if ann_key in notes and (replace is None or _same(notes[ann_key], value)):
        return
    if ann_key in notes and not replace:
        raise state.error(
            "annotation-exists",
            f"the annotation {brief(ann_key)} is {brief(notes[ann_key])} already",
            node,
            hint="pass replace=True to overwrite it, replace=None to keep the old value",
        )
    notes = FrozenMap({**notes, ann_key: value})
    state.relabel(node, partial(_noted, notes))


@primitive()
def unannotate(state: State, block_or_loop: BlockRV | LoopRV | str, ann_key: str) -> None:
    """Remove the annotation `ann_key`.

    requires  the annotation exists
    """
    node, notes = _labelled(state, block_or_loop)
    if ann_key not in notes:
        raise state.error("no-annotation", f"there is no annotation {brief(ann_key)}", node)
    notes = FrozenMap({k: v for k, v in notes.items() if k != ann_key})
    state.relabel(node, partial(_noted, notes))


def _labelled(state: State, rv: BlockRV | LoopRV | str) -> tuple[Block | For, FrozenMap]:
    assert isinstance(rv, (BlockRV, LoopRV))
    node = state.labelled(rv)
    return node, node.annotations


def _same(a: Any, b: Any) -> bool:
    """Whether two annotation values are equal in value and type: 1, 1.0 and True all differ."""
    return type(a) is type(b) and bool(a == b)


def _noted(notes: FrozenMap, node: Stmt) -> Block | For:
    """The node with other annotations.

    Equal arguments give the same block object if the annotations are plain data, so that replays
    share its analysis results.
    """
    assert isinstance(node, (Block, For))
    if isinstance(node, For) or not all(isinstance(v, (str, int)) for v in notes.values()):
        return evolve(node, annotations=notes)
    return _annotated(node, *((name, type(value), value) for name, value in notes.items()))


@fact
def _annotated(node: Block, *notes: tuple[str, type, Any]) -> Block:
    return evolve(node, annotations=FrozenMap({name: value for name, _, value in notes}))


def _plain(state: State, value: Any) -> Any:
    """The value with sampled integers in it replaced by their numbers."""
    if isinstance(value, Expr):
        number = state.integer(value)
        return state.expr(value) if number is None else number
    if isinstance(value, (list, tuple)):
        return [_plain(state, v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(state, v) for k, v in value.items()}
    return value
