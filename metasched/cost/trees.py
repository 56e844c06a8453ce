"""Trees: scores rows by a LightGBM text model with NumPy alone.

All trees lie in one table of nodes, and all rows walk down all trees together, one level a step. A
leaf is its own child, so rows that have reached a leaf stay there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

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
            trees = [_fields(block) for block in blocks]
            if not trees:
                raise ValueError("no trees")
            self._read(trees, columns)
        except (KeyError, ValueError, IndexError) as error:
            raise DatabaseError(f"a model's text cannot be read: {words(error)}") from None
        self._plain = not (self._kind >> 2).any()

    def _read(self, trees: Sequence[dict[str, str]], columns: int) -> None:
        """Put the trees into the table: the nodes of a tree, then its leaves."""
        leaves = np.array([int(tree["num_leaves"]) for tree in trees])
        if any(int(tree.get("is_linear", "0")) for tree in trees):
            raise ValueError("linear leaves are not read")
        inner = leaves - 1
        starts = np.cumsum(leaves + inner) - leaves - inner
        nodes, ends = _places(starts, inner), _places(starts + inner, leaves)
        size = len(nodes) + len(ends)

        def filled(name: str, where: np.ndarray, counts: np.ndarray, rest: float) -> np.ndarray:
            table = np.full(size, rest, np.float64)
            table[where] = _column([tree[name] for tree in trees], name, counts)
            return table

        self._roots, own = starts, np.arange(size)
        self._feature = filled("split_feature", nodes, inner, 0).astype(np.int64)
        self._threshold = filled("threshold", nodes, inner, np.inf)
        self._kind = filled("decision_type", nodes, inner, 0).astype(np.int64)
        self._value = filled("leaf_value", ends, leaves, 0)
        if (self._kind & _CATEGORICAL).any():
            raise ValueError("categorical splits are not read")
        if ((self._feature < 0) | (self._feature >= columns)).any():
            raise ValueError(f"a split_feature is not below {columns}")
        self._children = np.stack([own, own])
        first, below, count = (np.repeat(x, inner) for x in (starts, inner, leaves))
        for row, side in enumerate(("right_child", "left_child")):
            child = _column([tree[side] for tree in trees], side, inner).astype(np.int64)
            if ((child < -count) | (child >= below)).any():
                raise ValueError(f"a {side} is not in the tree")
            self._children[row, nodes] = first + np.where(child < 0, below + ~child, child)
        self._depth = _depth(self._children, starts)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """The score of each row."""
        chunks = (rows[at : at + _CHUNK] for at in range(0, len(rows), _CHUNK))
        parts = [self._walk(np.asarray(chunk, np.float64)) for chunk in chunks]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _walk(self, rows: np.ndarray) -> np.ndarray:
        """Move a batch of rows down all trees, to their leaves."""
        place = np.broadcast_to(self._roots, (len(rows), len(self._roots)))
        starts = np.arange(len(rows))[:, None] * rows.shape[1]
        known = np.where(np.isnan(rows), 0.0, rows)
        for _ in range(self._depth):
            at = starts + self._feature.take(place)
            goes_left = known.take(at) <= self._threshold.take(place)
            if not self._plain:
                goes_left = self._by_default(rows.take(at), place, goes_left)
            place = self._children.take(place + goes_left * self._children.shape[1])
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


def _places(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """`counts` consecutive numbers from each of `starts`."""
    before = np.cumsum(counts) - counts
    places: np.ndarray = np.arange(counts.sum()) + np.repeat(starts - before, counts)
    return places


def _column(texts: Sequence[str], name: str, counts: np.ndarray) -> np.ndarray:
    """The numbers of all trees in one array; `counts` are the numbers of each tree."""
    for text, count in zip(texts, counts, strict=True):
        if count and text.count(" ") + 1 != count:
            raise ValueError(f"{text.count(' ') + 1} numbers for {name}, expected {count}")
    words = " ".join(text for text, count in zip(texts, counts, strict=True) if count).split()
    return np.array(list(map(float, words)))


def _depth(children: np.ndarray, roots: np.ndarray) -> int:
    """Steps from the roots to the deepest leaf; ValueError for a tree that has a cycle."""
    level, depth = roots, 0
    while True:
        level = level[children[0, level] != level]  # a leaf is its own child
        if not len(level):
            return depth
        if max(depth, len(level)) > children.shape[1]:
            raise ValueError("a tree that never ends")
        level = children[:, level].ravel()
        depth += 1


@lru_cache(maxsize=32)
def trees_of(text: str) -> Trees:
    """The trees of a text; a process reads a model once."""
    return Trees(text)
