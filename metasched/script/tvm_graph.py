"""Reads the graph of nodes in TVM's JSON, in which a node refers to other nodes by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from metasched.errors import MetaschedError, ParseError, brief, clipped
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr, FloatImm, IntImm, StringImm, Var
from metasched.ir.stmt import FrozenMap, Stmt, frozen, seq

Reader = Callable[["Record"], Any]


@dataclass(frozen=True)
class Foreign:
    """A node that cannot be part of a program; using the node is an error.

    Attributes:
        kind: the type of the node.
        why: why the node cannot be read.
    """

    kind: str
    why: str = "this kind cannot be read"

    def error(self) -> ParseError:
        return ParseError(f"{clipped(self.kind)}: {clipped(self.why)}")


@dataclass(frozen=True)
class Wrapping:
    """A statement of TVM's that holds for the statements after it; `wrap` makes it from them."""

    wrap: Callable[[Stmt], Stmt]


def _items(graph: Graph, places: Any) -> list[Any]:
    return [graph.at(place) for place in places]


def _pairs(graph: Graph, places: Any) -> dict[Any, Any]:
    items = _items(graph, places)
    return dict(zip(items[::2], items[1::2], strict=True))


_VALUES: dict[str, Callable[[Graph, Any], Any]] = {
    "None": lambda g, data: None,
    "bool": lambda g, data: bool(data),
    "int": lambda g, data: int(data),
    "float": lambda g, data: float(data),
    "ffi.String": lambda g, data: str(data),
    "ffi.Array": _items,
    "ffi.Map": _pairs,
    "ir.Op": lambda g, data: str(data),
}


class Graph:
    """The values of the nodes read so far, and the reader of each kind of node."""

    def __init__(self, readers: Mapping[str, Reader]) -> None:
        self.readers = readers
        self.done: list[Any] = []
        self.owners: dict[Var, Buffer] = {}  # keyed by the pointer
        self.roots: dict[Var, Var] = {}  # pointer of a view -> pointer of its source

    def at(self, place: Any) -> Any:
        """The value of the node at a position, which must have been read before."""
        if not isinstance(place, int) or isinstance(place, bool):
            raise ParseError(f"{brief(place)} is not the place of a node")
        if not 0 <= place < len(self.done):
            raise ParseError(f"node {brief(place)} must come before the node that uses it")
        return self.done[place]

    def read(self, node: Any) -> Any:
        """Read one node; an unreadable node raises an error only where it is used."""
        if not isinstance(node, Mapping) or not isinstance(node.get("type"), str):
            return Foreign("a node", "it has no type")
        kind, data = node["type"], node.get("data")
        try:
            if kind in _VALUES:
                return _VALUES[kind](self, data)
            reader = self.readers.get(kind)
            if reader is None:
                return Foreign(kind)
            if not isinstance(data, Mapping):
                return Foreign(kind, "it has no fields")
            return reader(Record(kind, data, self))
        except _DAMAGE as error:
            return Foreign(kind, str(error))


_DAMAGE = (MetaschedError, TypeError, ValueError, OverflowError, AttributeError, LookupError)


class Record:
    """The fields of one node; positions are replaced by the values of their nodes."""

    def __init__(self, kind: str, data: Mapping[str, Any], graph: Graph) -> None:
        self.kind, self._data, self.graph = kind, data, graph

    def raw(self, name: str) -> Any:
        """A field that holds a plain value."""
        if name not in self._data:
            raise ParseError(f"a {self.kind} has no field {brief(name)}")
        return self._data[name]

    def at(self, name: str) -> Any:
        """A field that holds another node; None if the node is empty."""
        found = self.graph.at(self.raw(name))
        if isinstance(found, Foreign):
            raise found.error()
        return found

    def typed(self, name: str, kind: type | tuple[type, ...]) -> Any:
        """A field as `at` reads it, of a given kind."""
        found = self.at(name)
        if not isinstance(found, kind):
            raise ParseError(f"{self.kind}.{name} cannot be a {type(found).__name__}")
        return found

    def expr(self, name: str) -> Any:
        return self.typed(name, Expr)

    def many(self, name: str, kind: type | tuple[type, ...] = Expr) -> tuple[Any, ...]:
        """A field that holds a list of nodes."""
        found = tuple(self.typed(name, list))
        for item in found:
            if isinstance(item, Foreign):
                raise item.error()
            if not isinstance(item, kind):
                raise ParseError(f"{self.kind}.{name} holds a {type(item).__name__}")
        return found

    def body(self, name: str) -> Stmt:
        """A field that holds a statement."""
        found = self.typed(name, (Stmt, Wrapping))
        return found.wrap(seq([])) if isinstance(found, Wrapping) else found

    def dtype(self, name: str = "ty") -> Any:
        return self.typed(name, DType)

    def notes(self, name: str = "annotations") -> FrozenMap:
        """A field that holds a dictionary, its constants as Python values."""
        return frozen({str(k): _plain(v) for k, v in self.typed(name, dict).items()})


def _plain(value: Any) -> Any:
    """A value of an annotation: constants as Python values."""
    if isinstance(value, Foreign):
        raise value.error()
    if isinstance(value, (IntImm, FloatImm, StringImm)):
        truth = isinstance(value, IntImm) and value.dtype.is_bool
        return bool(value.value) if truth else value.value
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return value
