"""Record, a row of the store for one measurement, and TraceFile, a JSON file to ship.

Both hold the schema version, tool version, workload hash and script, target, seed, trace, samples,
status and check. Reading them executes nothing: scripts and traces stay text until metasched's own
parser reads them. Unknown fields survive a rewrite.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    field_validator,
)

from metasched.errors import (
    DatabaseError,
    MetaschedError,
    TargetError,
    TraceError,
    TraceMiss,
    brief,
    clipped,
)
from metasched.files import atomic_write, path_of, read_json
from metasched.measure.candidate import Status
from metasched.target import Target

_WRAPPED = "Value error, "  # pydantic's prefix of the message of a validator
SCHEMA_VERSION = 1  # of records and trace files; a reader accepts every version up to its own


PositiveSeconds: TypeAlias = Annotated[FiniteFloat, Field(gt=0)]


def tool_version() -> str:
    """The version of metasched that is running."""
    try:
        return importlib.metadata.version("metasched")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "0+checkout"


class Measured(BaseModel):
    """The fields that Record and TraceFile share.

    Attributes:
        workload_hash: structural hash of the unscheduled function.
        workload: the script of the function.
        target: the machine as `Target.to_json` gives it.
        seed: the seed of the run that found the candidate.
        trace: the trace as JSON data, in the format of `schedule.trace`.
        samples: seconds of one call, one value a sample.
        status: a value of `Status`.
        check: how the result was compared, in words.
        machine: name of the machine that measured the candidate, empty if unknown.
    """

    model_config = ConfigDict(extra="allow", validate_assignment=True)
    ERROR: ClassVar[type[MetaschedError]] = DatabaseError
    OTHER_SCHEMA: ClassVar[type[MetaschedError]] = DatabaseError
    NOUN: ClassVar[str] = "record"

    schema_version: int = SCHEMA_VERSION
    tool_version: str = Field(default_factory=tool_version)
    workload_hash: str = Field(min_length=1)
    workload: str
    workload_name: str = ""
    target: dict[str, Any]
    seed: int = 0
    trace: Any = None
    samples: list[float] = Field(default_factory=list)
    status: Status = Status.OK
    message: str = ""
    check: str = ""
    machine: str = ""
    created: FiniteFloat = Field(default_factory=time.time)

    @field_validator("samples")
    @classmethod
    def _positive(cls, values: list[float]) -> list[float]:
        if not all(math.isfinite(v) and v > 0 for v in values):
            raise ValueError("every sample is a positive number of seconds")
        return values

    @field_validator("target")
    @classmethod
    def _target(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            Target.of(value)
        except TargetError as error:
            raise ValueError(str(error)) from None
        return value

    @property
    def target_value(self) -> Target:
        """The target as a Target."""
        return Target.of(self.target)

    @property
    def ok(self) -> bool:
        """Whether the candidate was measured and its results were right."""
        return self.status is Status.OK and bool(self.samples)

    @property
    def seconds(self) -> float:
        """Median of the samples; infinite for a failure."""
        return statistics.median(self.samples) if self.ok else math.inf

    def to_json(self) -> str:
        """The JSON text, fields in a stable order."""
        return json.dumps(self.model_dump(mode="json"), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str = "text") -> Self:
        """Read JSON text; errors name it by `source`.

        Raises the class's error (DatabaseError or TraceError) with source, position and field.
        """
        try:
            data = read_json(text)
        except json.JSONDecodeError as error:
            open_text = error.msg.startswith("Unterminated string")
            cut = open_text or error.pos >= len(error.doc.rstrip()) - 1
            hint = "; the file ends too early: was it truncated?" if cut else ""
            place = f"{source}: line {error.lineno}, column {error.colno}"
            raise cls.ERROR(f"{place}: not valid JSON ({error.msg}){hint}") from None
        except ValueError as error:
            raise cls.ERROR(f"{source}: not valid JSON ({error})") from None
        return cls.from_data(data, source=source)

    @classmethod
    def from_data(cls, data: Any, *, source: str = "data") -> Self:
        """Validate plain data. Raises the same errors as `from_json`."""
        if not isinstance(data, Mapping) or "schema_version" not in data:
            raise cls.ERROR(f"{source}: not a metasched {cls.NOUN} (no field schema_version)")
        version = data["schema_version"]
        if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
            writer = data.get("tool_version", "unknown")
            kind = cls.OTHER_SCHEMA if isinstance(version, int) else cls.ERROR
            raise kind(
                f"{source}: field schema_version: {brief(version)} is not readable here; this "
                f"metasched ({tool_version()}) reads versions 1 to {SCHEMA_VERSION}, and the "
                f"{cls.NOUN} was written by metasched {clipped(str(writer))}: use that version or "
                "a later one"
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            problems = [
                f"field {clipped(_path(e['loc']))}: {clipped(e['msg'].removeprefix(_WRAPPED))}"
                for e in error.errors()[:3]
            ]
            raise cls.ERROR(f"{source}: {'; '.join(problems)}") from None


class Record(Measured):
    """One measured candidate, which may have failed, as the store keeps it.

    Attributes:
        candidate_key: structural hash of the scheduled program.
        index: the number of the candidate in the run; 0 is the default schedule.
        space: the number of its design space, -1 if unknown.
        build_seconds: how long its build took.
        predicted: the model's score before the measurement.
    """

    candidate_key: str = ""
    index: int = Field(default=0, ge=0)
    space: int = -1
    build_seconds: FiniteFloat = 0.0
    predicted: FiniteFloat | None = None


class TraceFile(Measured):
    """A tuned trace as a file to ship: `save`, `load`, then replay with `metasched.replay`.

    Attributes:
        format: always `metasched-trace`.
        default_seconds, unscheduled_seconds: the two baselines measured in the same run, or None.
    """

    ERROR: ClassVar[type[MetaschedError]] = TraceError
    OTHER_SCHEMA: ClassVar[type[MetaschedError]] = TraceMiss
    NOUN: ClassVar[str] = "trace file"

    format: str = "metasched-trace"
    default_seconds: PositiveSeconds | None = None
    unscheduled_seconds: PositiveSeconds | None = None

    @field_validator("format")
    @classmethod
    def _format(cls, value: str) -> str:
        if value != "metasched-trace":
            raise ValueError(f"is {brief(value)}, a trace file says 'metasched-trace'")
        return value

    @classmethod
    def from_record(cls, record: Record, **fields: Any) -> TraceFile:
        """The trace file of a stored record; `fields` are added or replaced."""
        shared = {name: getattr(record, name) for name in Measured.model_fields}
        return cls(**{**shared, **fields})

    @classmethod
    def load(cls, path: str | Path) -> TraceFile:
        """Read a trace file. Raises TraceError with the file, the position and the field."""
        place = path_of(path, "a trace file", cls.ERROR)
        try:
            raw = place.read_bytes()
        except OSError as error:
            folder = isinstance(error, IsADirectoryError)
            within = "; name a trace file in it, *.trace.json" if folder else ""
            raise TraceError(
                f"{clipped(str(path))}: cannot be read: {error.strerror}{within}"
            ) from None
        return cls.from_json(raw, source=str(path))

    def save(self, path: str | Path) -> Path:
        """Write the file whole or not at all; its folder is created.

        Raises DatabaseError when the disk is full or the folder is not writable; then an older file
        stays as it was.
        """
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(target, self.to_json())
        except OSError as error:
            raise DatabaseError(
                f"{target}: the trace could not be saved: {error.strerror}; "
                "an older file of that name is unchanged"
            ) from None
        return target


def _path(location: tuple[int | str, ...]) -> str:
    """samples, 3 -> samples[3]."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "(whole)"
