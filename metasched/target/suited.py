"""ForTargets: a user's function under a name, for chosen kinds of targets."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from metasched.target.description import Target


@dataclass(frozen=True, slots=True)
class ForTargets:
    """What a decorator such as `ms.postproc` makes of a function.

    Attributes:
        name: what the registry and warnings call it.
        targets: the target kinds it is for; all where none is named.
        fn: the function.
    """

    name: str
    targets: tuple[str, ...]
    fn: Callable[..., Any]

    def suits(self, target: Target) -> bool:
        """Whether the function is meant for this target."""
        return not self.targets or target.kind in self.targets

    def __reduce__(self) -> tuple[Any, ...]:
        """The global name that the decorator has given it: other processes load the plug-in too.

        Raises PicklingError when there is no such name in a file that other processes load.
        """
        return by_global_name(self.fn, self, self.name)


def by_global_name(fn: Any, made: Any, name: str) -> tuple[Any, ...]:
    """Pickle `made`, the object that replaced `fn`, by its global name.

    Raises PicklingError when `fn` stands in no file that other processes load.
    """
    place = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    try:
        known = place[0] != "__main__" and global_of(*place) is made
    except (AttributeError, KeyError, TypeError):
        known = False
    if not known:
        advice = "put it at the top level of a plug-in file"
        raise pickle.PicklingError(f"{name} has no name in another process: {advice}")
    return global_of, place


def global_of(module: Any, name: Any) -> Any:
    """Load a module and find an object in it by its qualified name."""
    __import__(module)
    return reduce(getattr, name.split("."), sys.modules[module])


def kinds_of(targets: Sequence[str] | str) -> tuple[str, ...]:
    """The target kinds that a decorator was given, as a tuple; a single kind may be a text."""
    return (targets,) if isinstance(targets, str) else tuple(targets)
