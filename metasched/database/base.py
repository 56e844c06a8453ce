"""Database: the protocol of databases, unions of databases, and databases of users by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar, cast

from metasched.database.record import Record
from metasched.database.store import Store
from metasched.errors import DatabaseError
from metasched.measure.candidate import Status
from metasched.registry import Registry
from metasched.target import Target


class Database(Protocol):
    """Keeps records. A subclass defines `put` and `all`; the other methods call `all`."""

    def put(self, records: Record | Iterable[Record]) -> None:
        """Store records, all or none; raises DatabaseError where storing fails."""
        ...

    def all(
        self,
        workload_hash: str | None = None,
        target: Target | None = None,
        status: Status | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """The records that match, in the order in which they were stored."""
        ...

    def best(self, workload_hash: str, target: Target) -> Record | None:
        """The fastest right record of this workload on exactly this target, or None."""
        right = (one for one in self.all(workload_hash, target) if one.ok)
        return min(right, key=lambda one: one.seconds, default=None)

    def workloads(self) -> dict[str, str]:
        """Script by hash of every workload with a record."""
        return {one.workload_hash: one.workload for one in self.all()}

    def targets(self, workload_hash: str) -> list[Target]:
        """The targets for which this workload has a right record."""
        right = (one.target_value for one in self.all(workload_hash) if one.ok)
        return list(dict.fromkeys(right))

    def close(self) -> None:
        """Let go of files and connections; closing twice is allowed."""


DATABASE_METHODS = ("put", "all", "best", "workloads", "targets", "close")

STORE = "metasched.db"
"""Name of the SQLite file in a work folder."""

DATABASES: Registry[Callable[[Path], Database]] = Registry("database", Callable)
"""Factories that take the work folder, by name."""

Factory = TypeVar("Factory", bound="Callable[[Path], Database]")


def database_kind(name: str, *, override: bool = False) -> Callable[[Factory], Factory]:
    """Register a database: a class or function `(folder) -> Database`.

    Args:
        name: what `ms.tune(database=...)` and `metasched tune --database` call it.
        override: replace a database of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable.
    """
    signature = "(folder) -> Database"
    return cast(
        "Callable[[Factory], Factory]", DATABASES.decorator(name, signature, None, override)
    )


@database_kind("sqlite")
def _sqlite(folder: Path) -> Database:
    return Store(folder / STORE)


@database_kind("memory")
def _memory(folder: Path) -> Database:
    return Store(":memory:")


OWN = ("sqlite", "memory")
"""The databases that are built in."""


class UnionDatabase(Database):
    """Several databases as one: the best record is the fastest record of all databases.

    New records go into the first database. A program in several databases counts once, with the
    record of the first database that has it.
    """

    def __init__(self, *databases: Database) -> None:
        """Raises DatabaseError if no database is given."""
        if not databases:
            raise DatabaseError("a union of databases needs at least one")
        self.databases = databases

    def put(self, records: Record | Iterable[Record]) -> None:
        """Store records in the first database."""
        self.databases[0].put(records)

    def all(
        self,
        workload_hash: str | None = None,
        target: Target | None = None,
        status: Status | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """The matching records of all databases, in the order of the databases."""
        found = [one.all(workload_hash, target, status) for one in self.databases]
        own = {_program(record) for record in found[0]}
        kept = dict[tuple[str, ...], Record]()
        for records in found[1:]:
            for record in records:
                if _program(record) not in own:
                    kept.setdefault(_program(record), record)
        return [*found[0], *kept.values()][:limit]

    def close(self) -> None:
        """Close all databases."""
        for one in self.databases:
            one.close()


class OrderedUnionDatabase(UnionDatabase):
    """Several databases as one: the first database with a right record gives the best record.

    New records go into the first database.
    """

    def best(self, workload_hash: str, target: Target) -> Record | None:
        """The fastest right record of the first database that has one, or None."""
        found = (one.best(workload_hash, target) for one in self.databases)
        return next((record for record in found if record is not None), None)


def _program(record: Record) -> tuple[str, ...]:
    """The key of a record's program and machine: equal keys mean times of one program."""
    return record.workload_hash, record.target_value.key, record.candidate_key, record.machine
