"""CostModel: ranks candidates before the measurement and learns from measured candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, cast, runtime_checkable

import numpy as np

from metasched.cost.features import FeatureSet
from metasched.cost.prior import Prior
from metasched.ir.func import IRModule
from metasched.registry import Registry
from metasched.schedule.trace import Trace
from metasched.target import Target

Vectors = Sequence[np.ndarray] | np.ndarray


class CostModel(Protocol):
    """What a search asks of a model; a plug-in is any class with these methods.

    A subclass may leave out the methods that it does not need.
    """

    def update(self, task: str, vectors: Vectors, seconds: Sequence[float]) -> None:
        """Learn from one round of a task.

        Args:
            task: key of the workload; only candidates of one task are compared with each other.
            vectors: feature vectors of the measured candidates.
            seconds: their times; infinity for a candidate that failed.
        """

    def knows(self, task: str) -> bool:
        """Whether the model has learnt from candidates of this task."""
        return False

    def predict(self, vectors: Vectors) -> np.ndarray:
        """A score for each candidate, higher is faster; only the order has a meaning."""

    def news(self) -> str:
        """A message for the user about the model, given once; mostly empty."""
        return ""

    def save(self, path: Path) -> None:
        """Write the learnt state to a file."""

    def load(self, path: Path) -> None:
        """Load a file that `save` wrote; DatabaseError if the file does not fit."""


METHODS = ("update", "knows", "predict", "news", "save", "load")
"""The methods of a cost model."""

COST_MODELS: Registry[Callable[[int], CostModel]] = Registry("cost model", Callable)
"""Factories that take a seed, by name."""

Factory = TypeVar("Factory", bound="Callable[[int], CostModel]")


def cost_model(name: str, *, override: bool = False) -> Callable[[Factory], Factory]:
    """Register a cost model: a class or function `(seed) -> CostModel`.

    Args:
        name: what `ms.tune(model=...)` and `metasched tune --model` call it.
        override: replace a model of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable.
    """
    signature = "(seed) -> CostModel"
    return cast(
        "Callable[[Factory], Factory]", COST_MODELS.decorator(name, signature, None, override)
    )


class Program(Protocol):
    """A candidate as a model sees it; module, trace and vector are made when first read."""

    @property
    def module(self) -> IRModule:
        """The scheduled program."""

    @property
    def trace(self) -> Trace:
        """The steps of the program with their decisions, without the steps of postprocs."""

    @property
    def target(self) -> Target:
        """The target that the program is compiled for."""

    @property
    def vector(self) -> np.ndarray:
        """The feature vector of the program."""


@runtime_checkable
class PredictsPrograms(Protocol):
    """A model that scores programs instead of vectors.

    Each `module` that the model reads costs a replay.
    """

    def predict_programs(self, programs: Sequence[Program]) -> np.ndarray:
        """`CostModel.predict` with programs."""


@runtime_checkable
class LearnsFromPrograms(Protocol):
    """A model that learns from programs instead of vectors."""

    def update_programs(
        self, task: str, programs: Sequence[Program], seconds: Sequence[float]
    ) -> None:
        """`CostModel.update` with programs."""


def predicted(model: CostModel, programs: Sequence[Program]) -> np.ndarray:
    """Ask a model to score programs, with vectors or programs as the model wants."""
    if not programs:
        return np.zeros(0)
    if isinstance(model, PredictsPrograms):
        return np.asarray(model.predict_programs(programs))
    return np.asarray(model.predict(np.stack([one.vector for one in programs])))


def teach(
    model: CostModel, task: str, programs: Sequence[Program], seconds: Sequence[float]
) -> None:
    """Let a model learn from measured programs; see `CostModel.update`."""
    if isinstance(model, LearnsFromPrograms):
        model.update_programs(task, programs, seconds)
    else:
        model.update(task, [one.vector for one in programs], seconds)


@runtime_checkable
class TakesFeatures(Protocol):
    """A model that stores vectors and must know what their numbers mean."""

    def take_features(self, features: FeatureSet) -> None:
        """Called first: the feature set to which all vectors belong."""


@runtime_checkable
class SaysReady(Protocol):
    """A model that says when its scores mean something; other models count as ready once they were
    given measured programs."""

    @property
    def ready(self) -> bool:
        """Whether scores are better than random already."""


@runtime_checkable
class EstimatesSpread(Protocol):
    """A model of several members, whose disagreement draws the search to little-known programs."""

    def predict_with_spread(self, vectors: Vectors) -> tuple[np.ndarray, np.ndarray]:
        """A score for each candidate, and the standard deviation over the members."""


@runtime_checkable
class StartsFromPrior(SaysReady, Protocol):
    """A model that can begin from a prior, which was trained on other tasks."""

    def start_from(self, prior: Prior) -> None:
        """Score by a prior until data of this run contradict it."""


class RandomModel:
    """Ranks at random: the baseline that every model has to beat."""

    ready = False

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def update(self, task: str, vectors: Vectors, seconds: Sequence[float]) -> None:
        """Learn nothing."""

    def knows(self, task: str) -> bool:
        """Never."""
        return False

    def predict(self, vectors: Vectors) -> np.ndarray:
        """Independent uniform scores."""
        return self._rng.random(len(vectors))

    def news(self) -> str:
        """Nothing."""
        return ""

    def save(self, path: Path) -> None:
        """There is nothing to write."""

    def load(self, path: Path) -> None:
        """There is nothing to read."""
