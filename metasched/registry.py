"""The one registry: maps names to objects, refuses duplicates, and suggests the nearest name for an
unknown one.

Everything that users add is in a registry; code, plug-in files and entry points register objects.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import sys
import tempfile
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from metasched.errors import PluginError, RegistryError, brief, clipped, warn
from metasched.foreign import ANYTHING, apart, cause, failure, run_file
from metasched.tvm_names import hint

T = TypeVar("T")
OF_A_PLUGIN = "if a plug-in file declares it, name the file (`plugins=`, --plugin)"
_FIRST = 20  # names that the message about an unknown name lists


class Registry(Generic[T]):
    """Objects of one kind by name, filled by code and by entry points `metasched.<kind>`."""

    def __init__(
        self, kind: str, of: Any = object, *, entry_points: bool = True, package: str = ""
    ) -> None:
        """An empty registry.

        Args:
            kind: what its objects are called.
            of: the type of the objects: `Callable` for functions, classes and factories.
            entry_points: whether installed packages may add objects.
            package: a package of metasched that adds objects; imported before a name counts as
                unknown, so that what needs no such object loads little.
        """
        self.kind, self.of, self._package = kind, of, package
        self._items: dict[str, T] = {}
        self._owners: dict[str, str] = {}
        self._pending = self._open = entry_points
        _REGISTRIES.add(self)

    @property
    def group(self) -> str:
        """The group of entry points that join the registry."""
        return f"metasched.{self.kind.replace(' ', '_')}"

    def register(self, name: str, item: T, *, override: bool = False) -> T:
        """Enter `item` under `name` and return it; a taken name is an error unless `override`.

        Raises RegistryError for a taken name, TypeError for an object of another type.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a {self.kind} is a text, not {clipped(repr(name))}")
        if not isinstance(item, self.of):
            what = f"{self.kind} {name!r} must be of type {self.of.__name__}"
            raise TypeError(f"{what}, not {type(item).__name__}")
        if name in self._items and not override:
            raise RegistryError(f"{self.kind} {name!r} is registered already; pass override=True")
        self._items[name], self._owners[name] = item, _running()
        return item

    def decorator(
        self, name: str, signature: str, made: Callable[[Any], T] | None, override: bool
    ) -> Callable[[Any], T]:
        """Make a decorator that registers a function or class.

        Args:
            name: the name it is entered under.
            signature: what the function takes and returns, for the message of a TypeError.
            made: what is entered for the function; None for the function itself.
            override: replace an object of that name.
        """

        def enter(fn: Any) -> T:
            if not callable(fn):
                what = f"{self.kind} {name!r} must be a function {signature}"
                raise TypeError(f"{what}, not {clipped(repr(fn))}")
            return self.register(name, fn if made is None else made(fn), override=override)

        return enter

    def get(self, name: str) -> T:
        """The object called `name`; an unknown name raises RegistryError with the nearest names."""
        if name not in self._items:
            self._load_entry_points()
        try:
            return self._items[name]
        except KeyError:
            raise RegistryError(f"no {self.kind} is called {self._quoted(name)}") from None

    def _quoted(self, name: str) -> str:
        """An unknown name, with the nearest names, else the first names that there are."""
        names, more = [*self._items], len(self._items) - _FIRST
        listed = ", ".join(names[:_FIRST]) + (f" and {more} more" if more > 0 else "")
        known = f"; {listed and f'there are {listed}; '}{OF_A_PLUGIN}"
        return f"{brief(name)}{hint(str(name), {}, names) or known}"

    def names(self) -> list[str]:
        """All names, in order of registration."""
        self._load_entry_points()
        return list(self._items)

    def values(self) -> list[T]:
        """All objects, in order of registration."""
        self._load_entry_points()
        return list(self._items.values())

    def __contains__(self, name: str) -> bool:
        if name not in self._items:
            self._load_entry_points()
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def _load_entry_points(self) -> None:
        """Load metasched's own objects and plug-ins once; a plug-in that breaks is warned of by
        name and skipped."""
        if self._package:
            importlib.import_module(self._package)
        if not self._pending:
            return
        self._pending = False
        for point in importlib.metadata.entry_points(group=self.group):
            what = f"plug-in {point.name} ({self.group})"
            try:
                with apart(what), taken_back():
                    item = point.load()
                    # A decorator may have entered it, under this name or another.
                    if point.name not in self._items and self.name_of(item) is None:
                        self.register(point.name, item)
            except ANYTHING as error:
                warn(f"{what} is broken: {failure(error)}")

    def from_plugin(self, name: str) -> bool:
        """Whether a plug-in file entered the object called `name`."""
        return name in self._items and self._owners[name].startswith(_PLUGIN)

    def name_of(self, item: Any) -> str | None:
        """The first name of an object, None for one that is not registered."""
        return next((name for name, known in self._items.items() if known is item), None)

    def title(self, made: Any) -> str:
        """An object in words: `the cost model my.short`, by the name of the object or of its class.

        Without a registered name, it is called by the name of its function or class.
        """
        own = getattr(made, "__name__", type(made).__name__)
        return f"the {self.kind} {self.name_of(made) or self.name_of(type(made)) or own}"


class _Plugin(NamedTuple):
    """A plug-in file that was run: the names that it entered, and what the file held."""

    names: tuple[str, ...]
    content: bytes


_REGISTRIES: weakref.WeakSet[Registry[Any]] = weakref.WeakSet()
_PLUGIN = "metasched_plugin_"  # begins the names of the modules that plug-in files are run as
_loaded: dict[tuple[str, int], _Plugin] = {}  # by path and time of the last change


def kinds() -> list[str]:
    """The groups of entry points that are looked up, sorted."""
    return sorted({registry.group for registry in _REGISTRIES if registry._open})


@contextlib.contextmanager
def taken_back(always: bool = False) -> Iterator[None]:
    """If the `with` body fails, remove all entries that it made from all registries.

    What modules entered that the body has imported stays, because Python runs no module twice.

    Args:
        always: take it back in any case, that of plug-in files as well.
    """
    before = [(r, dict(r._items), r._pending) for r in _REGISTRIES]
    files, modules = dict(_loaded), set(sys.modules)
    failed = True
    try:
        yield
        failed = False
    finally:
        if failed or always:
            imported = {m for m in sys.modules.keys() - modules if not m.startswith(_PLUGIN)}
            for registry, items, pending in before:
                for name, item in registry._items.items():
                    if registry._owners[name] in imported:
                        items[name] = item
                registry._items.clear()
                registry._items.update(items)
                registry._pending = pending
            _loaded.clear()
            _loaded.update(files)


def _running() -> str:
    """The module that is being run: the innermost file, if one import runs inside another."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def plugin_files() -> tuple[str, ...]:
    """The plug-in files that this process has loaded, in order."""
    return tuple(file for file, _ in _loaded)


def plugin_sources() -> tuple[tuple[str, bytes], ...]:
    """The path and the content of each plug-in file that this process has loaded, in order."""
    return tuple((file, plugin.content) for (file, _), plugin in _loaded.items())


def load_sources(sources: Iterable[tuple[str, bytes]]) -> None:
    """Load the plug-in files of another process, perhaps of another machine.

    A file that has the same path and content here is run where it is. Otherwise a copy in a
    temporary folder is run, which lives as long as this process.

    Args:
        sources: from `plugin_sources` of the other process.

    Raises PluginError as `load_plugin` does.
    """
    known = {plugin.content for plugin in _loaded.values()}
    for path, content in sources:
        if content in known:
            continue
        file = Path(path)
        try:
            same = file.read_bytes() == content
        except OSError:
            same = False
        load_plugin(file if same else _copied(file.name, content))


def _copied(name: str, content: bytes) -> Path:
    """A file of this name and content in a folder of its own, below that of this process."""
    file = Path(_folder().name) / hashlib.blake2b(content, digest_size=8).hexdigest() / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    return file


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """The folder for copies of plug-in files; it is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="metasched-plugins-")


def load_plugin(path: str | Path) -> tuple[str, ...]:
    """Run a user's Python file, which enters what it brings in registries; the names it entered.

    A file loaded before is not run again. Raises PluginError that says what the file does wrong;
    then nothing of the file stays registered.
    """
    file = Path(path)
    try:
        key = (str(file.resolve()), file.stat().st_mtime_ns)
        content = file.read_bytes()
    except (OSError, ValueError) as error:
        raise PluginError(f"plug-in {clipped(str(file))} cannot be read: {cause(error)}") from None
    if key not in _loaded:
        # a copy of the file has the same module name, so pickled objects find their classes
        digest = hashlib.blake2b(content, digest_size=8).hexdigest()
        before = {(r.kind, name): item for r in _REGISTRIES for name, item in r._items.items()}
        with taken_back():
            run_file(file, f"{_PLUGIN}{file.stem}_{digest}", "plug-in")
        entered = (
            name
            for registry in sorted(_REGISTRIES, key=lambda registry: registry.kind)
            for name, item in registry._items.items()
            if before.get((registry.kind, name), before) is not item
        )
        _loaded[key] = _Plugin(tuple(dict.fromkeys(entered)), content)
    return _loaded[key].names


def complete(what: str, made: Callable[[], T], *methods: str) -> T:
    """Call a user's factory and check that the result has the required methods.

    Args:
        what: names it in messages.
        made: calls the factory.
        methods: what its result must have.

    Raises PluginError when the factory raises, or its result lacks a method.
    """
    try:
        with apart(what):
            found = made()
        lacks = [name for name in methods if not callable(getattr(found, name, None))]
    except ANYTHING as error:
        raise PluginError(f"{what} raised {failure(error)}") from error
    if lacks:
        has = f"{type(found).__name__} has no method {', '.join(lacks)}"
        raise PluginError(f"{what} cannot be used: {has}")
    return found
