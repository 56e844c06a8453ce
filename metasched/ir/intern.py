"""Interning: one object per distinct node, held weakly, found by the node's class and fields."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

_TABLE: dict[Any, _Ref] = {}


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


def make(cls: type[Any], key: Any, dtype: Any, values: tuple[Any, ...]) -> Any:
    """The node of `cls` with these field values, made once for each `key`.

    The key must hold everything that tells two nodes apart (for constants the bit pattern).
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
