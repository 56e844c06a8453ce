"""The one registry: a name stands for an object, duplicates are refused, near misses are named."""

from __future__ import annotations

import difflib
import importlib.metadata
import warnings
from collections.abc import Iterator
from typing import Generic, TypeVar

from metasched.errors import RegistryError
from metasched.foreign import ANYTHING, apart, failure

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects of one kind by name, filled by code and by entry points `metasched.<kind>`."""

    def __init__(self, kind: str, *, entry_points: bool = True) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}
        self._pending = entry_points

    def register(self, name: str, item: T, *, override: bool = False) -> T:
        """Enter `item` under `name` and return it; a taken name is an error unless `override`."""
        if name in self._items and not override:
            raise RegistryError(f"{self.kind} {name!r} is registered already; pass override=True")
        self._items[name] = item
        return item

    def get(self, name: str) -> T:
        """The object called `name`; an unknown name raises RegistryError with the nearest names."""
        if name not in self._items:
            self._load_entry_points()
        try:
            return self._items[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._items, n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else ""
            raise RegistryError(f"no {self.kind} is called {name!r}{hint}") from None

    def names(self) -> list[str]:
        """All names, in order of registration."""
        self._load_entry_points()
        return list(self._items)

    def __contains__(self, name: str) -> bool:
        if name not in self._items:
            self._load_entry_points()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _load_entry_points(self) -> None:
        """Load plug-ins once; one that breaks is warned of by name and skipped."""
        if not self._pending:
            return
        self._pending = False
        group = f"metasched.{self.kind.replace(' ', '_')}"
        for point in importlib.metadata.entry_points(group=group):
            what = f"plug-in {point.name} ({group})"
            try:
                with apart(what):
                    item = point.load()
            except ANYTHING as error:
                warnings.warn(f"{what} is broken: {failure(error)}", stacklevel=3)
                continue
            self._items.setdefault(point.name, item)
