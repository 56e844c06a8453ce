"""Reads TVM's trace JSON: each instruction becomes one of our steps, decisions included.

A trace of TVM's is `[[[kind, inputs, attributes, outputs], ...], [[position, decision], ...]]`. A
row of `_STEPS` maps a kind to our primitive, and maps inputs and attributes to its arguments.
Nothing is executed. An instruction that cannot be read raises an error with its name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from metasched.arith.indexmap import IndexMap
from metasched.errors import MetaschedError, ParseError, TraceError, brief, clipped
from metasched.ir.expr import FloatImm, IntImm
from metasched.schedule.handles import RV, BlockRV, ExprRV, LoopRV
from metasched.schedule.instruction import PRIMITIVES, Entry
from metasched.script.tvm_json import index_map_of

Arguments = dict[str, Any]
Row = Callable[[list[Any], list[Any]], Arguments]

_HANDLES: dict[str, Callable[[], RV]] = {"b": BlockRV, "l": LoopRV, "v": ExprRV}
_SIDES = ("read", "write")
# The intrinsics that TVM and metasched both have.
_INTRINSICS = {
    "dot_16x4_vnni": "x86.vnni.dot_16x4_u8i8i32",
}


def entries_of_tvm(data: Any) -> tuple[Entry, ...]:
    """The steps of a trace that TVM wrote.

    Args:
        data: the JSON text, or the parsed JSON.

    Raises:
        TraceError: an instruction cannot be read; the message names it.
    """
    if isinstance(data, (str, bytes)):
        try:
            data = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"the trace is not JSON: {error}") from None
    parts: list[Any] = data if isinstance(data, list) and len(data) == 2 else [None, None]
    if not all(isinstance(part, list) for part in parts):
        raise TraceError("a trace of TVM's is a list of instructions and a list of decisions")
    decisions = {}
    for pair in parts[1]:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], int):
            raise TraceError(f"{brief(pair)} is no decision: [position, decision]")
        decisions[pair[0]] = pair[1]
    handles: dict[str, RV] = {}
    return tuple(
        _entry(f"instruction {i}", item, handles, decisions.get(i))
        for i, item in enumerate(parts[0])
    )


def _entry(where: str, item: Any, handles: dict[str, RV], decision: Any) -> Entry:
    whole = isinstance(item, list) and len(item) == 4 and isinstance(item[0], str)
    if not whole or not all(isinstance(part, list) for part in item[1:]):
        raise TraceError(f"{where} is not [kind, inputs, attributes, outputs]")
    where = f"{where} ({item[0][:40]})"
    row = _STEPS.get(item[0])
    if row is None:
        raise TraceError(f"{where}: there is no such step here")
    name, arguments = row
    inputs = [_input(value, handles, where) for value in item[1]]
    try:
        given = arguments(inputs, item[2])
    except (IndexError, TypeError, ValueError, KeyError) as error:
        detail = clipped(f"{type(error).__name__} {error}")
        raise TraceError(f"{where} has other inputs or attributes: {detail}") from None
    except MetaschedError as error:
        raise TraceError(f"{where}: {error}") from None
    kind = PRIMITIVES.get(name)
    values = [given.get(p.name, p.default) for p in kind.params]
    for param, value in zip(kind.params, values, strict=True):
        if not param.variadic and (wrong := param.misfit(value)):
            raise TraceError(f"{where}: {wrong}")
    made = []
    for text in item[3]:
        if not isinstance(text, str) or text[:1] not in _HANDLES or text in handles:
            raise TraceError(f"{where} has a bad or repeated output {brief(text)}")
        handles[text] = _HANDLES[text[0]]()
        made.append(handles[text])
    if not kind.sampling:
        return Entry(kind, tuple(values), tuple(made))
    taken = [int(v) for v in decision] if isinstance(decision, list) else decision
    return Entry(kind, tuple(values), tuple(made), taken, _domain(name, given, taken))


def _domain(name: str, given: Arguments, decision: Any) -> dict[str, Any]:
    """The domain of a decision, as far as the trace holds it; a replay computes the whole
    domain."""
    if name == "sample_categorical":
        return {"kind": "categorical", **given}
    if name == "sample_compute_location":
        return {"kind": "location", "candidates": [] if decision is None else [decision]}
    extent = math.prod(decision) if isinstance(decision, list) else 1
    if name == "sample_perfect_tile":
        limit = max(0, given["max_innermost_factor"])
        return {
            "kind": "perfect_tile", "extent": extent, "n": given["n"], "max_innermost": limit
        }  # fmt: skip
    return {
        "kind": "partitioned_tile", "extent": extent, "n": given["n"],
        "position": given["partition_pos"], "inner_factor": given["innerpart_factor"],
    }  # fmt: skip


def _input(value: Any, handles: Mapping[str, RV], where: str) -> Any:
    """One input: the name of a handle, a text in quotes, a number, or a list or map of these."""
    if isinstance(value, str):
        if value.startswith('"'):
            return value[1:-1]
        if value == "None":
            return None
        if value.startswith("{"):
            return _map(value, where)
        if value not in handles:
            raise TraceError(f"{where} uses {brief(value)}, which no earlier instruction gives")
        return handles[value]
    if isinstance(value, list):
        return [_input(v, handles, where) for v in value]
    return value  # TVM puts no quotes around the texts inside a dictionary


def _map(text: str, where: str) -> IndexMap:
    try:
        return index_map_of(text)
    except ParseError as error:
        raise TraceError(f"{where}: {error}") from None


def _pad_value(text: Any) -> Any:
    """The value of padding: a number, if the map of the new indices is a constant."""
    if text is None:
        return None
    found = index_map_of(text)
    constant = len(found.outputs) == 1 and isinstance(found.outputs[0], (IntImm, FloatImm))
    return found.outputs[0] if constant else found


def _flag(attributes: list[Any], place: int, absent: bool) -> bool:
    """A flag among the attributes, `absent` if an older version of TVM left it out."""
    found = attributes[place] if place < len(attributes) else absent
    if found not in (0, 1):
        raise ValueError(f"{brief(found)} is neither true nor false")
    return bool(found)


def _intrinsic(name: str) -> str:
    return _INTRINSICS.get(name, name)


def _of_block(name: str, *attributes: str, **fixed: Any) -> tuple[str, Row]:
    """A step of one block and plain attributes."""
    return name, lambda i, a: {"block": i[0], **dict(zip(attributes, a, strict=False)), **fixed}


def _of_loop(name: str, *attributes: str) -> tuple[str, Row]:
    return name, lambda i, a: {"loop": i[0], **dict(zip(attributes, a, strict=True))}


def _staged(side: str) -> Row:
    def arguments(i: list[Any], a: list[Any]) -> Arguments:
        consumers = tuple(i[1]) if len(i) > 1 else ()
        index = f"{side}_buffer_index"
        return {"block": i[0], index: a[0], "storage_scope": a[1], "consumer_blocks": consumers}

    return arguments


def _copied(side: str) -> Row:
    return lambda i, a: {
        "loop": i[0], "block": i[1], f"{side}_buffer_index": a[0], "storage_scope": a[1]
    }  # fmt: skip


def _reindexed(side: str) -> Row:
    return lambda i, a: {
        "block": i[0], "index_map": i[1], f"{side}_buffer_index": a[0], "storage_scope": a[1]
    }  # fmt: skip


def _moved(i: list[Any], a: list[Any]) -> Arguments:
    return {"block": i[0], "loop": i[1], "preserve_unit_loops": _flag(a, 0, True), "index": a[1]}


def _transformed(i: list[Any], a: list[Any]) -> Arguments:
    return {
        "block": i[0], "buffer": (_SIDES[a[1]], a[0]), "index_map": i[1],
        "pad_value": _pad_value(a[2]), "assume_injective_transform": _flag(a, 3, False),
    }  # fmt: skip


_STEPS: dict[str, tuple[str, Row]] = {
    "SampleCategorical": (
        "sample_categorical", lambda i, a: {"candidates": list(a[0]), "probs": list(a[1])}
    ),
    "SamplePerfectTile": _of_loop("sample_perfect_tile", "n", "max_innermost_factor"),
    "SamplePartitionedTile": _of_loop(
        "sample_partitioned_tile", "n", "partition_pos", "innerpart_factor"
    ),
    "SampleComputeLocation": _of_block("sample_compute_location"),
    "GetSBlock": ("get_block", lambda i, a: {"name": a[0], "func_name": a[1]}),
    "GetLoops": _of_block("get_loops"),
    "GetChildBlocks": ("get_child_blocks", lambda i, a: {"block_or_loop": i[0]}),
    "GetProducers": _of_block("get_producers"),
    "GetConsumers": _of_block("get_consumers"),
    "GetOutputBlocks": ("get_output_blocks", lambda i, a: {"scope_block": i[0]}),
    "Merge": ("merge", lambda i, a: {"loops": tuple(i)}),
    "Fuse": ("fuse", lambda i, a: {"loops": tuple(i), "preserve_unit_iters": _flag(a, 0, True)}),
    "Split": ("split", lambda i, a: {
        "loop": i[0], "factors": i[1:], "preserve_unit_iters": _flag(a, 0, True),
        "disable_predication": _flag(a, 1, False),
    }),
    "LoopPartition": ("loop_partition", lambda i, a: {
        "loop": i[0], "factors": i[1:], "preserve_unit_iters": _flag(a, 0, True)
    }),
    "Reorder": ("reorder", lambda i, a: {"ordered_loops": tuple(i)}),
    "ReorderBlockIterVar": (
        "reorder_block_iter_var", lambda i, a: {"block": i[0], "new_order": i[1]}
    ),
    "AddUnitLoop": ("add_unit_loop", lambda i, a: {"block_or_loop": i[0]}),
    "Parallel": _of_loop("parallel"),
    "Vectorize": _of_loop("vectorize"),
    "Unroll": _of_loop("unroll"),
    "Bind": _of_loop("bind", "thread_axis"),
    "CacheRead": ("cache_read", _staged("read")),
    "CacheWrite": ("cache_write", _staged("write")),
    "CacheInplace": _of_block("cache_inplace", "read_buffer_index", "storage_scope"),
    "CacheIndex": _of_block("cache_index", "storage_scope", "cse_thresh"),
    "ReIndex": ("reindex", lambda i, a: {"block": i[0], "buffer": (_SIDES[a[1]], a[0])}),
    "ReindexCacheRead": ("reindex_cache_read", _reindexed("read")),
    "ReindexCacheWrite": ("reindex_cache_write", _reindexed("write")),
    "ReadAt": ("read_at", _copied("read")),
    "WriteAt": ("write_at", _copied("write")),
    "ComputeAt": ("compute_at", _moved),
    "ReverseComputeAt": ("reverse_compute_at", _moved),
    "ComputeInline": _of_block("compute_inline"),
    "ReverseComputeInline": _of_block("reverse_compute_inline"),
    "FuseReductionEpilogue": (
        "fuse_reduction_epilogue",
        lambda i, a: {"reduction_block": i[0], "epilogue_block": i[1]},
    ),
    "DecomposeReduction": (
        "decompose_reduction", lambda i, a: {"block": i[0], "loop": i[1], "keep_kinds": True}
    ),
    "RFactor": _of_loop("rfactor", "factor_axis"),
    "StorageAlign": _of_block("storage_align", "buffer_index", "axis", "factor", "offset"),
    "SetScope": _of_block("set_scope", "buffer_index", "storage_scope"),
    "UnsafeSetDType": _of_block("unsafe_set_dtype", "buffer_index", "dtype"),
    "Blockize": ("blockize", lambda i, a: {
        "target": i[0], "preserve_unit_iters": _flag(a, 0, True)
    }),
    "Tensorize": ("tensorize", lambda i, a: {
        "block_or_loop": i[0], "tensor_intrin": _intrinsic(a[0]),
        "preserve_unit_iters": _flag(a, 1, True),
    }),
    "Annotate": ("annotate", lambda i, a: {
        "block_or_loop": i[0], "ann_key": a[0], "ann_val": i[1], "replace": None
    }),
    "Unannotate": ("unannotate", lambda i, a: {"block_or_loop": i[0], "ann_key": a[0]}),
    "TransformLayout": ("transform_layout", _transformed),
    "TransformBlockLayout": (
        "transform_block_layout", lambda i, a: {"block": i[0], "index_map": index_map_of(a[0])}
    ),
    "DecomposePadding": ("decompose_padding", lambda i, a: {"block": i[0], "loop": i[1]}),
    "PadEinsum": ("pad_einsum", lambda i, a: {"block": i[0], "padding": [*i, *a][1]}),
    "RollingBuffer": _of_block("rolling_buffer", "write_buffer_index"),
    "AnnotateBufferAccess": ("annotate_buffer_access", lambda i, a: {
        "block": i[0], "buffer_index": i[1], "buf_type": _SIDES[i[2]], "gen_new_ranges": i[3]
    }),
    "UnsafeHideBufferAccess": ("unsafe_hide_buffer_access", lambda i, a: {
        "block": i[0], "buf_type": i[1], "buf_index_array": i[2]
    }),
    "EnterPostproc": ("enter_postproc", lambda i, a: {}),
}  # fmt: skip
# The name in versions before 0.20.
_STEPS["GetBlock"] = _STEPS["GetSBlock"]
