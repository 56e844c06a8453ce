"""Interning: one object per distinct node, held weakly, found by the node's class and fields.

The file also has `quick`, for immutable nodes that are not interned, and `tree_size`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

C = TypeVar("C")

_TABLE: dict[Any, _Ref] = {}
LARGE = 2000
"""The nodes of an expression as a tree from which its shared parts are treated as shared."""


class _Ref(weakref.ref["Interned"]):
    __slots__ = ("key",)
    key: Any


def _forget(ref: Any, table: dict[Any, Any] = _TABLE) -> None:
    key = ref.key
    if table.get(key) is ref:
        del table[key]


class Interned:
    """An immutable node with fields in `__slots__`, in the order of its constructor's arguments."""

    __slots__ = ("__weakref__",)
    fields: ClassVar[tuple[str, ...]] = ()
    _setters: ClassVar[tuple[Callable[[Any, Any], None], ...]] = ()

    def __init_subclass__(cls) -> None:
        own = tuple(n for n in cls.__dict__.get("__slots__", ()) if not n.startswith("_"))
        if own:
            cls.fields = own
            cls._setters = tuple(cls.__dict__[name].__set__ for name in own)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")


_set = object.__setattr__


def known(key: Any) -> Any:
    """The existing node of this key, which needs no further checks; None if there is none."""
    ref = _TABLE.get(key)
    return None if ref is None else ref()


def make(cls: type[Any], key: Any, dtype: Any, values: tuple[Any, ...]) -> Any:
    """The node of `cls` with these field values, made once for each `key`.

    The key must hold everything in which two nodes may differ (for constants the bit pattern).
    """
    ref = _TABLE.get(key)
    if ref is not None:
        found = ref()
        if found is not None:
            return found
    node = object.__new__(cls)
    _set(node, "dtype", dtype)
    _set(node, "_free", None)
    for setter, value in zip(cls._setters, values, strict=True):
        setter(node, value)
    ref = _Ref(node, _forget)
    ref.key = key
    _TABLE[key] = ref
    return node


def tree_size(expr: Any) -> int:
    """The number of nodes of an expression as a tree, where shared parts count each time; cached
    on the node."""
    try:
        return expr._size  # type: ignore[no-any-return]
    except AttributeError:
        pass
    stack = [expr]
    while stack:
        node = stack[-1]
        missing = [c for c in node.children if not hasattr(c, "_size")]
        if missing:
            stack += missing
            continue
        stack.pop()
        _set(node, "_size", 1 + sum([c._size for c in node.children]))
    return expr._size  # type: ignore[no-any-return]


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def quick(cls: type[C]) -> type[C]:
    """Make a frozen dataclass with slots, equal by identity, whose construction is five times
    faster.

    The constructor that `dataclass` generates for a frozen class calls `object.__setattr__` for
    each field. The constructor made here fills an object of an unfrozen class with the same layout,
    then changes its class to `cls`. Edits copy paths of trees, so they spend most time in
    constructors. A method `_made` of the class, if there is one, runs at the end.
    """
    cls = dataclass(frozen=True, slots=True, eq=False)(cls)
    names: dict[str, Any] = {"_class": cls}
    names["_draft"] = type(cls.__name__, cls.__bases__, {"__slots__": cls.__dict__["__slots__"]})
    heads, lines = [], ["self = _draft()"]
    for one in fields(cls):  # type: ignore[arg-type]
        n = one.name
        if one.default_factory is not MISSING:
            names[f"_make_{n}"] = one.default_factory
            names["_missing"] = MISSING
            heads.append(f"{n}=_missing")
            lines.append(f"self.{n} = _make_{n}() if {n} is _missing else {n}")
            continue
        if one.default is not MISSING:
            names[f"_of_{n}"] = one.default
        heads.append(n if one.default is MISSING else f"{n}=_of_{n}")
        lines.append(f"self.{n} = {n}")
    lines.append("self.__class__ = _class")
    if hasattr(cls, "_made"):
        lines.append("self._made()")
    body = "\n    ".join([*lines, "return self"])
    exec(f"def __new__(cls, {', '.join(heads)}):\n    {body}", names)
    cls.__new__ = names["__new__"]  # type: ignore[method-assign]
    del cls.__init__
    read = [one.name for one in fields(cls)]  # type: ignore[arg-type]
    reduce = lambda self: (cls, tuple([getattr(self, name) for name in read]))  # noqa: E731
    cls.__reduce__ = reduce  # type: ignore[method-assign]
    return cls
