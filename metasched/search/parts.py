"""Resolve the parts of a tuning run from names or objects: model, features, space, database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, TypeVar

from metasched.config import Config
from metasched.cost import lightgbm_lack
from metasched.cost.extractor import EXTRACTORS
from metasched.cost.features import CPU_FEATURE_SET, FeatureSet
from metasched.cost.guide import Guide
from metasched.cost.model import (
    COST_MODELS,
    METHODS,
    CostModel,
    PredictsPrograms,
    StartsFromPrior,
    TakesFeatures,
)
from metasched.cost.prior import Prior, every_shipped, joined, shipped
from metasched.database.base import DATABASE_METHODS, DATABASES, OWN, STORE, Database
from metasched.database.record import Record
from metasched.database.store import Store
from metasched.errors import DatabaseError, PluginError, TuneError, brief, warn
from metasched.foreign import ANYTHING, failure, warned
from metasched.kinds import default_space, space_of
from metasched.measure.candidate import Status
from metasched.registry import complete
from metasched.runtime.parallel import SERIAL, has_openmp
from metasched.space.generate import SEARCH_SPACES, Space
from metasched.target import Target
from metasched.watch import called

T = TypeVar("T")
Spaces: TypeAlias = "Space | str | Mapping[str, Space | str] | None"


def feature_set(given: FeatureSet | str, machine: Target) -> FeatureSet:
    """Resolve the argument `features`: a feature set, its name, or "" for the target kind's set.

    Raises RegistryError for an unknown name, TuneError for an object that is no feature set.
    """
    if not given:
        return space_of(machine).features
    found = EXTRACTORS.get(given) if isinstance(given, str) else given
    if not isinstance(found, FeatureSet):
        raise TuneError(f"features is {brief(found)}; it must be a name or a FeatureSet")
    return found


def cost_model_of(
    given: CostModel | None, settings: Config, machine: Target, features: FeatureSet
) -> CostModel:
    """The given model, or the model that the settings name, which starts from the shipped prior.

    Raises RegistryError for an unknown name, PluginError when no model can be made.
    """
    if given is not None:
        model = complete(f"the cost model {type(given).__name__}", lambda: given, *METHODS)
    else:
        factory, what = COST_MODELS.get(settings.model), f"the cost model {settings.model}"
        model = complete(what, lambda: factory(settings.seed), *METHODS)
        if not has_openmp() and (settings.model != "lightgbm" or not lightgbm_lack()):
            warn(SERIAL)  # the model of trees has one warning for both
    if getattr(type(model), "predict", None) is CostModel.predict and not isinstance(
        model, PredictsPrograms
    ):
        lacks = f"{type(model).__name__} has neither predict nor predict_programs"
        raise PluginError(f"{COST_MODELS.title(model)} cannot be used: {lacks}")
    if isinstance(model, TakesFeatures):
        model.take_features(features)
    if settings.prior and given is None and isinstance(model, StartsFromPrior):
        read = _priors(shipped(machine.mcpu, features), "the model starts")
        if (prior := joined(list(read.values()))) is not None:
            model.start_from(prior)
    return model


def guide_of(machine: Target, features: FeatureSet | None = None) -> CostModel | None:
    """The model that ranks the programs of a task without measurements; None if the shipped priors
    are for other features."""
    seen = features or space_of(machine).features
    if seen.name != CPU_FEATURE_SET.name:
        return None
    read = _priors(every_shipped(seen), "programs are ranked")
    own = [read.pop(path) for path in shipped(machine.mcpu, seen) if path in read]
    _, second, last = machine.machine_model().levels
    return Guide(joined(own), list(read.values()), last.bytes / second.bytes)


def _priors(paths: Iterable[Path], what: str) -> dict[Path, Prior]:
    """The priors of files; a file that cannot be used gives a warning that says `what` goes on."""
    read: dict[Path, Prior] = {}
    for path in paths:
        try:
            read[path] = Prior.load(path)
        except DatabaseError as error:
            warn(f"{error}; {what} without it")
    return read


def spaces_of(
    given: Spaces, default: str, tasks: Iterable[str], machine: Target
) -> dict[str, Space]:
    """The space of each task.

    Args:
        given: a space or its name, for all tasks or by the names of tasks; None takes `default`.
        default: the name that the settings give; "" is the default space of the target.

    Raises RegistryError for an unknown name, PluginError when a space cannot be made, TuneError for
    an object that is no space.
    """
    by_task = dict(given) if isinstance(given, Mapping) else dict.fromkeys(tasks, given)
    names = list(tasks)
    for name in by_task.keys() - set(names):
        raise TuneError(f"{name!r} has a space, but the tasks are {', '.join(names)}")
    made: dict[str, Space] = {}

    def named(name: str) -> Space:
        if name not in made:
            factory = SEARCH_SPACES.get(name) if name else None
            made[name] = (
                default_space(machine)
                if factory is None
                else complete(f"the space {name}", lambda: factory(machine), "generate")
            )
        return made[name]

    found: dict[str, Space] = {}
    for name in names:
        space = by_task.get(name)
        found[name] = named(space or default) if space is None or isinstance(space, str) else space
        if not isinstance(found[name], Space):
            raise TuneError(
                f"space is {brief(found[name])}; it must be a SpaceGenerator, ScheduleFn or Union, "
                "or have generate, postprocs and mutators as they do"
            )
    return found


class GuardedDatabase(Database):
    """Calls a user's database; after a failure and a warning, records go to the file of the work
    folder."""

    def __init__(self, inner: Database, name: str, folder: Path) -> None:
        self.inner, self.name, self.folder = inner, name, folder
        self._own: Store | None = None

    def put(self, records: Record | Iterable[Record]) -> None:
        """Store records."""
        new = [records] if isinstance(records, Record) else list(records)
        self._tried(lambda database: database.put(new))

    def all(
        self,
        workload_hash: str | None = None,
        target: Target | None = None,
        status: Status | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """The records that match."""

        def asked(database: Database) -> list[Record]:
            found = database.all(workload_hash, target, status, limit)
            if not isinstance(found, list) or not all(isinstance(one, Record) for one in found):
                raise TypeError(f"it must return a list of records, not {brief(found)}")
            return found

        return self._tried(asked)

    def close(self) -> None:
        """Close the file of the work folder, if it was opened."""
        if self._own is not None:
            self._own.close()

    def _tried(self, ask: Callable[[Database], T]) -> T:
        if self._own is None:
            try:
                with called(f"the database {self.name}"):
                    return ask(self.inner)
            except ANYTHING as error:
                self._own = Store(self.folder / STORE)
                text = f"the database {self.name} raised {failure(error)}"
                warn(f"{text}; records go to {self._own.path} from now on")
        return ask(self._own)


@contextmanager
def opened_database(given: Database | str, folder: Path) -> Iterator[Database]:
    """The database of a search, given as an object or a name; a named one is closed afterwards.

    Raises RegistryError for an unknown name, PluginError when a user's cannot be made,
    DatabaseError when the file of the work folder cannot be used.
    """
    if isinstance(given, str):
        factory, name = DATABASES.get(given), given
        found = (
            factory(folder)
            if given in OWN
            else complete(f"the database {name}", lambda: factory(folder), *DATABASE_METHODS)
        )
    else:
        name = type(given).__name__
        found = complete(f"the database {name}", lambda: given, *DATABASE_METHODS)
    used = found if isinstance(found, Store) else GuardedDatabase(found, name, folder)
    try:
        yield used
    finally:
        if used is not found:
            used.close()
        if isinstance(given, str):
            with warned(f"the database {name} could not be closed"), called(f"the database {name}"):
                found.close()
