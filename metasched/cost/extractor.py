"""Feature extractors of users: what the cost model sees of a candidate, found by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from metasched.cost.features import CPU_FEATURE_SET, FeatureSet
from metasched.ir.func import IRModule, PrimFunc
from metasched.registry import Registry
from metasched.target import Target
from metasched.target.suited import by_global_name
from metasched.watch import called

ExtractorFn: TypeAlias = "Callable[[IRModule | PrimFunc, Target], Sequence[float] | np.ndarray]"

EXTRACTORS: Registry[FeatureSet] = Registry("feature extractor", FeatureSet)
"""Feature sets that users may choose, by name."""
EXTRACTORS.register(CPU_FEATURE_SET.name, CPU_FEATURE_SET)


@dataclass(frozen=True, slots=True)
class _Vector:
    """A function of a program and a target as `FeatureSet.vector`."""

    fn: ExtractorFn
    name: str

    def __call__(self, mod: IRModule | PrimFunc, target: Target, work: float) -> np.ndarray:
        with called(f"feature extractor {self.name}", self.fn, stop=True):
            return np.asarray(self.fn(mod, target), np.float32)


def _no_work(mod: IRModule | PrimFunc, target: Target) -> float:
    """The `work` of a user's extractor: 0, since it has no scale of times."""
    return 0.0


class UserFeatures(FeatureSet):
    """A function `(program, target) -> numbers` as a feature set."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """The global name that the decorator has given it: other processes load the plug-in too."""
        return by_global_name(getattr(self.vector, "fn", None), self, self.name)


def feature_extractor(
    name: str, names: Sequence[str], *, version: int = 1, override: bool = False
) -> Callable[[ExtractorFn], FeatureSet]:
    """Register a function of a scheduled program and a target as a feature extractor.

    Args:
        name: what `ms.tune(features=...)` and `metasched tune --features` call it.
        names: the names of the numbers that the function returns, in their order.
        version: to be raised when a number changes its meaning. A stored model names its version,
            and is not used with another version.
        override: replace an extractor of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable. Raises
    ValueError when names are missing or repeated, or the version is not an integer of 1 or more.
    """
    listed = (names,) if isinstance(names, str) else tuple(names)
    if not listed or len(set(listed)) != len(listed) or not all(isinstance(n, str) for n in listed):
        raise ValueError(f"feature extractor {name!r}: its numbers need names, each another one")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ValueError(f"feature extractor {name!r}: version {version!r} is no integer above 0")

    def made(fn: ExtractorFn) -> FeatureSet:
        return UserFeatures(name, version, listed, _Vector(fn, name), _no_work)

    return EXTRACTORS.decorator(name, "(program, target) -> numbers", made, override)


def extracted(
    features: FeatureSet, mod: IRModule | PrimFunc, target: Target, work: float
) -> np.ndarray:
    """The feature vector of a program; ValueError if its length or its numbers are wrong."""
    vector = features.vector(mod, target, work)
    count = len(features.names)
    if not isinstance(vector, np.ndarray) or vector.shape != (count,):
        found = f"shape {vector.shape}" if isinstance(vector, np.ndarray) else type(vector).__name__
        raise ValueError(f"it gives {found} for {count} names")
    if not np.isfinite(vector).all():
        lost = features.names[int(np.argmin(np.isfinite(vector)))]
        raise ValueError(f"it gives {lost!r} a value that is no finite number")
    return vector
