"""The places that refuse: every call that makes a refusal, and which of them a test has reached.

The calls are found in the source. `oracle.check_refused` and the like, which match reason and
message, note where the error they caught was made; `tests/schedule/test_places.py` compares the two
at the end of a whole run.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import metasched
from metasched.analysis.failure import Failure
from metasched.errors import ScheduleError
from metasched.schedule.state import State

SOURCE = Path(metasched.__file__).parent
FOLDERS = ("analysis", "schedule")


class Place(NamedTuple):
    """A call that makes a refusal; `reason` is None where it is computed, `kind` what is called,
    `hint` whether the call gives one."""

    file: str
    first: int
    last: int
    kind: str
    reason: str | None
    hint: bool

    def __str__(self) -> str:
        return f"{self.file}:{self.first} {self.reason or '(a computed reason)'}"


def places() -> Iterator[Place]:
    """Every place in the folders that refuse."""
    for folder in FOLDERS:
        for path in sorted((SOURCE / folder).rglob("*.py")):
            name = str(path.relative_to(SOURCE))
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call):
                    kind = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                    kind = node.func.id if isinstance(node.func, ast.Name) else kind
                    at = {"error": 0, "Failure": 0, "ScheduleError": 1}.get(kind)
                    if at is not None and ast.unparse(node.args[at]) != "reason":  # (State.error)
                        reason = node.args[at]
                        text = reason.value if isinstance(reason, ast.Constant) else None
                        hint = any(k.arg == "hint" for k in node.keywords)
                        yield Place(name, node.lineno, node.end_lineno or 0, kind, text, hint)


REACHED: set[tuple[str, int]] = set()
"""File and line of the refusals that tests have matched; of analysis the slugs, at line 0."""

whole_run = False
"""Whether all tests of refusals run in this process (see conftest.py)."""

_made = ScheduleError.__init__


def _placed(self: ScheduleError, *args: Any, **kwargs: Any) -> None:
    _made(self, *args, **kwargs)
    frame = sys._getframe(1)
    if frame.f_code is State.error.__code__:
        frame = frame.f_back
    self.place = (frame.f_code.co_filename, frame.f_lineno)


ScheduleError.__init__ = _placed


def note(refused: ScheduleError | Failure) -> None:
    """A test matched reason and message of this refusal."""
    if isinstance(refused, Failure):
        REACHED.add((refused.slug, 0))
        return
    file, line = refused.place
    REACHED.add((str(Path(file).relative_to(SOURCE)), line))
    REACHED.add((refused.reason, 0))


def unreached() -> list[Place]:
    """The places that no test has matched so far."""
    return [place for place in places() if not _is_reached(place)]


def _is_reached(place: Place) -> bool:
    if place.kind == "Failure":
        return place.reason is None or (place.reason, 0) in REACHED
    return any((place.file, n) in REACHED for n in range(place.first, place.last + 1))
