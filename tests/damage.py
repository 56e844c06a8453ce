"""Damaged JSON: one fault at a random place of plain data, as editors, disks and strangers make."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

# What may stand where something else stood; texts are put in by `damaged_text`, for some are no
# data that Python could hold.
_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 3.5, -0.0, 1e308, 2**31, 2**63, -(2**63), 2**64, 10**30, "",
    "0", "yes", "$", "$b0", "$l1", "$v2", "$$", "root", "main", "\0", "é" * 300, [], {}, [[]],
    [1, 2], [-1, 0], [None], {"kind": "get_block"}, {"map": {}}, {"expr": ["Add", 1]},
    {"expr": ["Add", "$b0", 1]}, {"expr": ["const", "int32", "x"]}, {"float": "nan"},
    {"index_map": {"inputs": ["i"], "outputs": ["$0"]}}, {"index_map": 3}, ["Mul", "$v2", 2],
)  # fmt: skip
_TEXTS = ("9" * 5000, "NaN", "-Infinity", "1e999", "[" * 3000 + "]" * 3000, '"\\ud800"', "{")
_MARK = "the text comes here"


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside `data`."""
    inside: Any = ()
    if isinstance(data, dict):
        inside = data.items()
    elif isinstance(data, list):
        inside = enumerate(data)
    return [p for key, value in inside for p in ((*path, key), *places(value, (*path, key)))]


def _texts(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    inside = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return [text for value in inside for text in _texts(value)]


def damaged_text(data: Any, rng: random.Random) -> str:
    """The JSON text of `data` with one to three faults."""
    data, raw = copy.deepcopy(data), None
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.choice(places(data))
        holder = data
        for key in at[:-1]:
            holder = holder[key]
        key = at[-1]
        what = rng.randrange(12)
        if what > 9 and type(holder[key]) is not bool and isinstance(holder[key], int):
            holder[key] = rng.choice((-2, -1, 0, 1, 2, 3, 5, 64, 1000, 2**31 - 1, 2**40, 2**63 - 1))
        elif what > 9 and isinstance(holder[key], str) and holder[key].startswith("$"):
            there = [v for v in _texts(data) if v.startswith("$")]
            holder[key] = rng.choice(there)
        elif what < 4:
            holder[key] = copy.deepcopy(rng.choice(_ODD))
        elif what == 4:
            holder[key], raw = _MARK, rng.choice(_TEXTS)
        elif what == 5:
            del holder[key]
        elif what == 6:  # what stands elsewhere in the same data: a handle of another kind
            there = data
            for step in rng.choice(places(data)):
                there = there[step]
            holder[key] = copy.deepcopy(there)
        elif what == 7 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[rng.randrange(len(holder))]))
        elif what == 8 and isinstance(holder, dict):
            holder[rng.choice((f"{key}x", "", "kind", "decision"))] = holder.pop(key)
        elif isinstance(holder[key], int):
            holder[key] = holder[key] + rng.choice((-1, 1, 100, -(10**6)))
        else:
            holder[key] = [holder[key]]
        if not places(data):
            break
    text = json.dumps(data)
    if raw is not None:
        text = text.replace(json.dumps(_MARK), raw)
    if rng.randrange(40) == 0:
        text = text[: rng.randrange(len(text))]
    return text
