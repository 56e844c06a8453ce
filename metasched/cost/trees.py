"""Trees: scores rows by a LightGBM text model with NumPy alone.

All trees lie in one table of nodes, and all rows walk down all trees together, one level a step. A
leaf is its own child, so rows that have reached a leaf stay there.
"""

from __future__ import annotations

import numpy as np

from metasched.errors import DatabaseError, words

_CATEGORICAL, _DEFAULT_LEFT = 1, 2  # bits of a node's decision type
_ZERO, _NAN = 1, 2  # in the higher bits: whether zero, or NaN, counts as missing
_TINY = 1e-35  # LightGBM's zero
_CHUNK = 512  # rows that walk together


class Trees:
    """The sum of a model's trees.

    Raises DatabaseError for a text that is no LightGBM model, or has categorical splits.
    """

    def __init__(self, text: str) -> None:
        head, *blocks = text.partition("end of trees")[0].split("\nTree=")
        try:
            columns = int(_fields(head)["max_feature_idx"]) + 1
            tables = [_table(_fields(block), columns) for block in blocks]
            if not tables:
                raise ValueError("no trees")
            self._depth = max(_depth(left, right) for _, _, _, left, right, _ in tables)
        except (KeyError, ValueError, IndexError) as error:
            raise DatabaseError(f"a model's text cannot be read: {words(error)}") from None
        starts = np.cumsum([0, *(len(t[0]) for t in tables)])
        self._roots = starts[:-1]
        self._feature, self._threshold, self._kind, left, right, self._value = (
            np.concatenate(parts) for parts in zip(*tables, strict=True)
        )
        shift = np.repeat(self._roots, np.diff(starts))
        self._children = np.stack([right + shift, left + shift])
        self._plain = not (self._kind >> 2).any()

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """The score of each row."""
        chunks = (rows[at : at + _CHUNK] for at in range(0, len(rows), _CHUNK))
        parts = [self._walk(np.asarray(chunk, np.float64)) for chunk in chunks]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _walk(self, rows: np.ndarray) -> np.ndarray:
        """Move a batch of rows down all trees, to their leaves."""
        place = np.broadcast_to(self._roots, (len(rows), len(self._roots)))
        which = np.arange(len(rows))[:, None]
        for _ in range(self._depth):
            values = rows[which, self._feature[place]]
            goes_left = np.where(np.isnan(values), 0.0, values) <= self._threshold[place]
            if not self._plain:
                goes_left = self._by_default(values, place, goes_left)
            place = self._children[goes_left.astype(np.intp), place]
        scores: np.ndarray = self._value[place].sum(axis=1)
        return scores

    def _by_default(
        self, values: np.ndarray, place: np.ndarray, goes_left: np.ndarray
    ) -> np.ndarray:
        """Send missing values where their node says."""
        kind, none = self._kind[place], np.isnan(values)
        missing = kind >> 2
        lacks = np.where(missing == _ZERO, none | (np.abs(values) <= _TINY), none & (missing > 0))
        found: np.ndarray = np.where(lacks, (kind & _DEFAULT_LEFT) > 0, goes_left)
        return found


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in block.splitlines())
    return {name: value for name, _, value in pairs}


_Table = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _table(fields: dict[str, str], columns: int) -> _Table:
    """A tree's nodes, then its leaves: feature, threshold, decision type, left and right child,
    value."""
    leaves = int(fields["num_leaves"])
    inner = leaves - 1

    def column(name: str, dtype: type, count: int = inner) -> np.ndarray:
        numbers: np.ndarray = np.array(fields[name].split() if count else [], dtype)
        if len(numbers) != count:
            raise ValueError(f"{len(numbers)} numbers for {name}, expected {count}")
        return numbers

    kind = column("decision_type", np.int64)
    if (kind & _CATEGORICAL).any() or int(fields.get("is_linear", "0")):
        raise ValueError("categorical splits and linear leaves are not read")
    feature = column("split_feature", np.int64)
    if ((feature < 0) | (feature >= columns)).any():
        raise ValueError(f"a split_feature is not below {columns}")
    own = np.arange(inner, inner + leaves)
    children = []
    for side in ("left_child", "right_child"):
        child = column(side, np.int64)
        if ((child < -leaves) | (child >= inner)).any():
            raise ValueError(f"a {side} is not in the tree")
        children.append(np.concatenate([np.where(child < 0, inner + ~child, child), own]))
    zeros = np.zeros(leaves, np.int64)
    return (
        np.concatenate([feature, zeros]),
        np.concatenate([column("threshold", np.float64), np.full(leaves, np.inf)]),
        np.concatenate([kind, zeros]),
        *children,
        np.concatenate([np.zeros(inner), column("leaf_value", np.float64, leaves)]),
    )  # type: ignore[return-value]


def _depth(left: np.ndarray, right: np.ndarray) -> int:
    """Steps from the root to the deepest leaf; ValueError for a tree that has a cycle."""
    level, depth = np.array([0]), 0
    while True:
        level = level[left[level] != level]  # a leaf is its own child
        if not len(level):
            return depth
        if max(depth, len(level)) > len(left):
            raise ValueError("a tree that never ends")
        level = np.concatenate([left[level], right[level]])
        depth += 1
