"""The working store: one SQLite file of records, safe with several tuners and with kill -9.

The file has a write-ahead log and synchronous=FULL, and every write is its own BEGIN IMMEDIATE
transaction: a deferred transaction would fail when another tuner has written. A corrupt file is set
aside under a new name, with its -wal and -shm files, and never overwritten.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from metasched.database.record import SCHEMA_VERSION, Record, tool_version
from metasched.errors import DatabaseError, brief, clipped, warn, words
from metasched.files import read_json
from metasched.measure.candidate import Status
from metasched.registry import OF_A_PLUGIN
from metasched.target import KINDS, Target

_APPLICATION = 0x4D534348  # "MSCH": SQLite's application id of metasched's files
_LOST = ("malformed", "not a database", "file is encrypted")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS workloads (hash TEXT PRIMARY KEY, script TEXT NOT NULL, name TEXT);
CREATE TABLE IF NOT EXISTS targets (key TEXT PRIMARY KEY, json TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS records (
    id INTEGER PRIMARY KEY,
    workload TEXT NOT NULL REFERENCES workloads(hash),
    target TEXT NOT NULL REFERENCES targets(key),
    candidate TEXT NOT NULL,
    status TEXT NOT NULL,
    median REAL,
    body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_median ON records (workload, target, median);
"""
_SELECT = """SELECT records.id, records.candidate, records.status, records.median, records.body,
    workloads.hash, workloads.script, workloads.name, targets.key, targets.json
    FROM records JOIN workloads ON workloads.hash = records.workload
    JOIN targets ON targets.key = records.target"""
_ELSEWHERE = ("workload_hash", "workload", "workload_name", "target")
CHECKSUM = "checksum"  # the key of a record's checksum in its body: of the body, and of its row
SHARED = "shared"  # the key of the checksums of the rows of its workload and of its target


def _checksum(*values: Any) -> str:
    return hashlib.blake2b(json.dumps(values).encode(), digest_size=8).hexdigest()


def _kept_sum(body: Any, place: int) -> str | None:
    """The checksum in a record's body of the row of its workload (0) or of its target (1)."""
    try:
        return str(read_json(body)[SHARED][place])
    except (TypeError, ValueError, LookupError):
        return None  # of an early version, or damaged, which is said when the record is read


class Store:
    """Records in one SQLite file.

    Attributes:
        path: the file.
        set_aside: the new name of a corrupt file that was found under this path, or None.
        unsaved: records that a full disk kept out; the next successful `put` writes them, too.

    Every method that reads leaves out damaged records; a warning names each once.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False, timeout: float = 30.0) -> None:
        """Open or create the file.

        Args:
            path: file name; `:memory:` keeps everything in memory.
            read_only: refuse to write and to create the file.
            timeout: seconds to wait for another tuner's transaction.

        Raises:
            DatabaseError: the path cannot be written, or the file belongs to another program or to
                a later metasched. A corrupt file is no error: it is renamed with a warning.
        """
        self.path = Path(path)
        self.set_aside: Path | None = None
        self.unsaved: list[Record] = []
        self._memory = str(path) == ":memory:"
        self._read_only = read_only
        self._timeout = timeout
        self._known: dict[tuple[str, str], list[str]] = {}
        self._named: set[str] = set()
        self._connection = self._open()

    # -- writing ---------------------------------------------------------------------------------

    def put(self, records: Record | Iterable[Record]) -> None:
        """Store records, all or none.

        Raises DatabaseError (disk full, no permission, file damaged). Then the records stay in
        `unsaved`, and everything stored before is intact.
        """
        new = [records] if isinstance(records, Record) else list(records)
        pending = [*self.unsaved, *new]
        if not pending:
            return
        try:
            with self._transaction() as cursor:
                for record in pending:
                    self._insert(cursor, record)
        except sqlite3.Error as error:
            self.unsaved = pending
            self._known.clear()
            raise DatabaseError(
                f"{self.path}: {len(pending)} record(s) could not be saved ({words(error)}); "
                "what was saved before is intact"
            ) from None
        self.unsaved = []

    def _insert(self, cursor: sqlite3.Cursor, record: Record) -> None:
        target = record.target_value
        pair = (record.workload_hash, target.key)
        if (shared := self._known.get(pair)) is None:
            cursor.execute(
                "INSERT OR IGNORE INTO workloads VALUES (?, ?, ?)",
                (record.workload_hash, record.workload, record.workload_name),
            )
            cursor.execute(
                "INSERT OR IGNORE INTO targets VALUES (?, ?)",
                (target.key, json.dumps(target.to_json())),
            )
            rows = "SELECT script, name, json FROM workloads, targets WHERE hash = ? AND key = ?"
            script, name, machine = cursor.execute(rows, pair).fetchone()
            shared = self._known[pair] = [_checksum(script, name), _checksum(machine)]
        body = record.model_dump(mode="json", exclude=set(_ELSEWHERE))
        median = record.seconds if record.ok else None
        row = (*pair, record.candidate_key, record.status.value, median)
        body[SHARED] = shared
        body[CHECKSUM] = _checksum(*row, body)
        cursor.execute(
            "INSERT INTO records (workload, target, candidate, status, median, body) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (*row, json.dumps(body)),
        )

    # -- reading ---------------------------------------------------------------------------------

    def best(self, workload_hash: str, target: Target) -> Record | None:
        """The fastest correct record of this workload on exactly this target, or None."""
        rows = self._records(
            "WHERE records.workload = ? AND records.target = ? AND median IS NOT NULL "
            "ORDER BY median, id LIMIT 1",
            (workload_hash, target.key),
        )
        return rows[0] if rows else None

    def all(
        self,
        workload_hash: str | None = None,
        target: Target | None = None,
        status: Status | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """The records that match, in the order they were stored."""
        wanted = {
            "records.workload": workload_hash,
            "records.target": target.key if target is not None else None,
            "records.status": status.value if status is not None else None,
        }
        given = {column: value for column, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(f'{c} = ?' for c in given)} " if given else ""
        tail = f"ORDER BY id LIMIT {-1 if limit is None else int(limit)}"
        return self._records(where + tail, tuple(given.values()))

    def keys(self, workload_hash: str, target: Target) -> set[str]:
        """The keys of the candidates that were measured, including candidates that failed."""
        rows = self._query(
            "SELECT DISTINCT candidate FROM records WHERE workload = ? AND target = ?",
            (workload_hash, target.key),
        )
        return {row[0] for row in rows}

    def workloads(self) -> dict[str, str]:
        """Script by hash of every workload with a record."""
        whole: dict[str, str] = {}
        some = "(SELECT body FROM records WHERE workload = hash LIMIT 1)"
        for key, text, name, body in self._query(f"SELECT *, {some} FROM workloads", ()):
            if not isinstance(text, str):
                self._leave_out(f"workload {clipped(str(key))}", "its script is no text")
            elif _kept_sum(body, 0) not in (None, _checksum(text, name)):
                self._leave_out(f"workload {clipped(key)}", "its checksum is of another script")
            else:
                whole[key] = text
        return whole

    def targets(self, workload_hash: str) -> list[Target]:
        """The targets for which this workload has a correct record."""
        rows = self._query(
            "SELECT targets.json, min(body) FROM targets JOIN records ON key = target "
            "WHERE workload = ? AND median IS NOT NULL GROUP BY key",
            (workload_hash,),
        )
        found = []
        for text, body in rows:
            try:
                if _kept_sum(body, 1) not in (None, _checksum(text)):
                    raise ValueError("its checksum is of another target")
                stored = read_json(text)
                if not self._is_of_unknown_kind(stored):
                    found.append(Target.of(stored))
            except (TypeError, ValueError) as error:
                self._leave_out(f"a target of workload {clipped(workload_hash)}", error)
        return found

    def __len__(self) -> int:
        return int(self._query("SELECT count(*) FROM records", ())[0][0])

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the file --------------------------------------------------------------------------------

    def _records(self, tail: str, values: Sequence[Any]) -> list[Record]:
        found = []
        for number, candidate, status, median, body, *shared in self._query(
            f"{_SELECT} {tail}", values
        ):
            key, script, name, machine, target = shared
            try:
                data = read_json(body)
                if not isinstance(data, dict):
                    raise ValueError("it is no JSON object")
                row = (key, machine, candidate, status, median)
                if (checksum := data.pop(CHECKSUM, None)) is None:
                    unknown = data.keys() - Record.model_fields.keys()
                    if unknown:  # records of the first versions have neither
                        raise ValueError(f"no checksum, and an unknown key {min(unknown)!r}")
                elif checksum != _checksum(*row, data):
                    raise ValueError("its checksum is of other data")
                now = [_checksum(script, name), _checksum(target)]
                if data.pop(SHARED, now) != now:
                    raise ValueError("its workload or its target is not what it was stored with")
                data.update(workload_hash=key, workload=script, workload_name=name or "")
                data["target"] = read_json(target)
                if self._is_of_unknown_kind(data["target"]):
                    continue
                found.append(Record.from_data(data, source=f"record {number}"))
            except (TypeError, ValueError, DatabaseError) as error:
                self._leave_out(f"record {number}", error)
        return found

    def _is_of_unknown_kind(self, target: Any) -> bool:
        """Whether no target kind has the name in a stored target; a warning names it once."""
        kind = target.get("kind") if isinstance(target, dict) else None
        if not isinstance(kind, str) or kind in KINDS:
            return False
        self._warn_once(f"records for targets of kind {brief(kind)} are left out; {OF_A_PLUGIN}")
        return True

    def _leave_out(self, what: str, why: Exception | str) -> None:
        """Warn of a damaged record, once."""
        self._warn_once(f"{what} is damaged and left out: {clipped(str(why))}")

    def _warn_once(self, text: str) -> None:
        if text not in self._named:
            self._named.add(text)
            warn(f"{self.path}: {text}")

    def _query(self, sql: str, values: Sequence[Any]) -> list[Any]:
        try:
            return self._connection.execute(sql, tuple(values)).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise DatabaseError(f"{self.path}: cannot be read: {clipped(str(error))}") from None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        cursor = self._connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            yield cursor
            cursor.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise

    def _open(self) -> sqlite3.Connection:
        if self._memory:
            return self._prepare(sqlite3.connect(":memory:", isolation_level=None))
        try:
            if self._read_only:
                return self._connect()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock():
                try:
                    return self._connect()
                except sqlite3.DatabaseError as error:
                    if not any(word in str(error) for word in _LOST):
                        raise
                    reason = " ".join(str(error).split())
                    self.set_aside = self._move_aside()
                    connection = self._connect()
            warn(
                f"{self.path} is corrupt ({reason}); it was kept as {self.set_aside} and a new "
                "database was started"
            )
            return connection
        except (sqlite3.Error, OSError) as error:
            lost = self._read_only and any(word in str(error) for word in _LOST)
            hint = "; `metasched tune` keeps such a file aside and starts a new one" if lost else ""
            if "disk I/O" in str(error):
                hint = "; its disk may be full or fail: free some of it, or use another folder"
            raise DatabaseError(
                f"{self.path}: cannot be opened: {clipped(str(error))}{hint}"
            ) from None

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the file's creation, check and setting aside against other processes."""
        with open(f"{self.path}.lock", "w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _connect(self) -> sqlite3.Connection:
        mode = "mode=ro" if self._read_only else "mode=rwc"
        if self._read_only and not os.access(self.path.parent, os.W_OK):
            mode = "mode=ro&immutable=1"  # a log's companion files cannot be made there
        uri = f"{self.path.absolute().as_uri()}?{mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=self._timeout, isolation_level=None)
        try:
            return self._prepare(connection)
        except UnicodeDecodeError:  # SQLite's message quotes bytes of the file that are no text
            connection.close()
            raise sqlite3.DatabaseError("database disk image is malformed") from None
        except BaseException:
            connection.close()
            raise

    def _prepare(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Check that the file is metasched's and whole; create the tables."""

        def pragma(name: str) -> Any:
            return connection.execute(f"PRAGMA {name}").fetchone()[0]

        # Bytes that are no text are damage of one record, found when the record is read.
        connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        owner, version = pragma("application_id"), pragma("user_version")
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and owner != _APPLICATION:
            raise DatabaseError(f"{self.path} is a database of another program; it was not touched")
        if version > SCHEMA_VERSION:
            raise DatabaseError(
                f"{self.path} has schema version {version}; this metasched ({tool_version()}) "
                f"knows versions up to {SCHEMA_VERSION}; use a later metasched"
            )
        problem = pragma("quick_check(1)")
        if problem != "ok":
            raise sqlite3.DatabaseError(f"database disk image is malformed: {problem}")
        if not self._read_only:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        if not self._read_only and (not tables or version < SCHEMA_VERSION):
            connection.execute("BEGIN IMMEDIATE")
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={_APPLICATION}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            connection.execute("COMMIT")
        return connection

    def _move_aside(self) -> Path:
        """Rename the corrupt file and its companions to the first free name."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        number = 0
        while True:
            suffix = f"-{number}" if number else ""
            base = self.path.with_name(f"{self.path.name}.corrupt-{stamp}{suffix}")
            if not base.exists():
                break
            number += 1
        for tail in ("-wal", "-shm", ""):
            source = Path(f"{self.path}{tail}")
            if source.exists():
                os.rename(source, f"{base}{tail}")
        return base
