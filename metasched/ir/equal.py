"""Structural equality and hash: equal up to names, by the canonical text of `ir.canonical`.

Names of variables, buffers, blocks and parameters do not count, and neither does the order of
annotation keys. Everything else counts, including types. A free variable equals only itself (unless
`map_free_vars`). A free buffer equals any buffer of the same description.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.canonical import Leaf, Node, canonical, shape_leaves
from metasched.ir.describe import context, describe
from metasched.ir.expr import Expr, FloatImm, IntImm, Let, StringImm, Var
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.op import Op
from metasched.ir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    DeclBuffer,
    For,
    IterVar,
    LetStmt,
    MatchBufferRegion,
    Stmt,
)


def structural_equal(a: Node, b: Node, map_free_vars: bool = False) -> bool:
    """Whether two pieces of IR are the same up to names.

    Args:
        a, b: the pieces of IR.
        map_free_vars: whether a free variable of `a` may correspond to another free variable of
            `b` (one to one).
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    text_a, free_a, _ = canonical(a)
    text_b, free_b, _ = canonical(b)
    return text_a == text_b and (map_free_vars or free_a == free_b)


def structural_hash(node: Node) -> str:
    """32 hexadecimal digits (blake2b) that agree for structurally equal nodes, in every process.

    Free variables are numbered by their first use, so the digits also agree for nodes that are
    equal under `map_free_vars`.
    """
    text = canonical(node)[0]
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Difference:
    """Where two pieces of IR first differ.

    Attributes:
        path: the path from the root, as Python attributes (`.body.block.body.extent`).
        left, right: the differing parts.
        reason: what differs, in words.
        left_context, right_context: the statements around the parts.
    """

    path: str
    left: Any
    right: Any
    reason: str
    left_context: str
    right_context: str

    def __str__(self) -> str:
        return (
            f"the programs differ at <root>{self.path}: {self.reason}\n"
            f"left:\n{self.left_context}\nright:\n{self.right_context}"
        )


def first_difference(a: Node, b: Node, map_free_vars: bool = False) -> Difference | None:
    """The first difference in program order, None when the two are structurally equal."""
    if structural_equal(a, b, map_free_vars):
        return None
    walk = _Pairs(map_free_vars)
    walk.compare(a, b, "")
    if walk.found is None:
        raise RuntimeError("the canonical texts differ but no part does; please report this")
    return walk.found


def assert_structural_equal(a: Node, b: Node, map_free_vars: bool = False) -> None:
    """Raise AssertionError with the first difference, its path and its surroundings."""
    difference = first_difference(a, b, map_free_vars)
    if difference is not None:
        raise AssertionError(str(difference))


# The fields of each node in the order of the comparison. `=` marks a defining occurrence.
_FIELDS: dict[type[Any], str] = {
    PrimFunc: "=params ret_type attrs body",
    For: "kind thread min extent step annotations =var body",
    BlockRealize: "iter_values predicate block",
    Block: "iter_vars =alloc_buffers match_buffers annotations reads writes init body",
    IterVar: "kind dom =var",
    MatchBufferRegion: "source =buffer",
    LetStmt: "value =var body",
    Let: "value =var body",
    Allocate: "=buffer annotations body",
    DeclBuffer: "source =buffer body",
    BufferLoad: "buffer indices predicate dtype",
}
_BUFFER_FIELDS = ("dtype", "scope", "align", "offset_factor", "shape", "strides", "elem_offset")


class _Pairs:
    """Walks two trees side by side until they differ."""

    def __init__(self, map_free_vars: bool) -> None:
        self.map_free = map_free_vars
        self.forth: dict[Leaf, Leaf] = {}
        self.back: dict[Leaf, Leaf] = {}
        self.stack: list[tuple[Any, Any]] = []
        self.found: Difference | None = None

    def differ(self, a: Any, b: Any, path: str, reason: str) -> bool:
        left, right = [x for x, _ in self.stack], [y for _, y in self.stack]
        self.found = Difference(path, a, b, reason, context(left, a), context(right, b))
        return False

    def compare(self, a: Any, b: Any, path: str, define: bool = False) -> bool:
        if isinstance(a, (Var, Buffer)) and isinstance(b, (Var, Buffer)):
            return self.define(a, b, path) if define else self.use(a, b, path)
        if type(a) is not type(b) and not (
            isinstance(a, (list, tuple)) and isinstance(b, (list, tuple))
        ):
            return self.differ(a, b, path, f"{_kind(a)} against {_kind(b)}")
        if isinstance(a, Mapping):
            return self.mappings(a, b, path)
        if isinstance(a, (list, tuple)):
            if len(a) != len(b):
                return self.differ(a, b, path, f"{len(a)} items against {len(b)}")
            pairs = zip(a, b, strict=True)
            return all(self.compare(x, y, f"{path}[{i}]", define) for i, (x, y) in enumerate(pairs))
        if isinstance(a, Expr) and a.dtype is not b.dtype:
            return self.differ(a, b, path, f"type {a.dtype} against {b.dtype}")
        if isinstance(a, (IntImm, FloatImm, StringImm)):
            return a is b or self.differ(a, b, path, f"{describe(a)} against {describe(b)}")
        fields = list(_fields(a))
        if not fields:
            same = a is b or repr(a) == repr(b)
            return same or self.differ(a, b, path, f"{a!r} against {b!r}")
        return self.parts(a, b, path, fields)

    def parts(self, a: Any, b: Any, path: str, fields: list[str]) -> bool:
        inside = isinstance(a, (Stmt, PrimFunc))
        if inside:
            self.stack.append((a, b))
        for name in fields:
            plain = name.removeprefix("=")
            x, y = getattr(a, plain), getattr(b, plain)
            if not self.compare(x, y, f"{path}.{plain}", define=name != plain):
                return False
        if inside:
            self.stack.pop()
        return True

    def mappings(self, a: Mapping[str, Any], b: Mapping[str, Any], path: str) -> bool:
        for key in sorted({**a, **b}):
            if key not in a or key not in b:
                side = "left" if key in a else "right"
                return self.differ(a, b, path, f"only the {side} side has {key!r}")
        return all(self.compare(a[k], b[k], f"{path}[{k!r}]") for k in sorted(a))

    def define(self, a: Leaf, b: Leaf, path: str) -> bool:
        if type(a) is not type(b):
            return self.differ(a, b, path, f"{_kind(a)} against {_kind(b)}")
        if isinstance(a, Buffer) and isinstance(b, Buffer):
            paired = self.forth.get(a.data, b.data), self.back.get(b.data, a.data)
            if paired != (b.data, a.data):
                return self.differ(a, b, path, "they share memory with different buffers")
            for x, y in zip(shape_leaves(a), shape_leaves(b), strict=False):
                if x not in self.forth and y not in self.back:
                    self.bind(x, y)
            for name in _BUFFER_FIELDS:
                if not self.compare(getattr(a, name), getattr(b, name), f"{path}.{name}"):
                    return False
        elif a.dtype is not b.dtype:
            return self.differ(a, b, path, f"type {a.dtype} against {b.dtype}")
        self.bind(a, b)
        return True

    def bind(self, a: Leaf, b: Leaf) -> None:
        self.forth[a], self.back[b] = b, a

    def use(self, a: Leaf, b: Leaf, path: str) -> bool:
        if a in self.forth or b in self.back:
            if self.forth.get(a) is b:
                return True
            return self.differ(a, b, path, f"{a.name} and {b.name} are defined in other places")
        if isinstance(a, Buffer) or isinstance(b, Buffer) or (self.map_free and a.dtype is b.dtype):
            return self.define(a, b, path)
        self.bind(a, b)
        return a is b or self.differ(a, b, path, f"free variables {a.name} and {b.name}")


def _fields(node: Any) -> Iterator[str]:
    listed = _FIELDS.get(type(node))
    if listed is not None:
        yield from listed.split()
    elif isinstance(node, IRModule):
        yield from ("functions", "attrs")
    elif isinstance(node, Op):
        return
    elif isinstance(node, Expr):
        yield from node.fields
    else:
        skipped = ("name", "token", "data")
        yield from (n for n in getattr(node, "__dataclass_fields__", {}) if n not in skipped)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {describe(value)}"
