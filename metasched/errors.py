"""Every exception metasched raises. All derive from MetaschedError: one except suffices."""

from __future__ import annotations

import functools
import re
import reprlib
import sys
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
QUOTED = 200
"""Characters of foreign text that a message quotes at most."""


class MetaschedError(Exception):
    """Base of every error raised on purpose by metasched; `readable` whatever it quotes."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(readable(a) if isinstance(a, str) else a for a in args))


class FunctionMissing(MetaschedError, KeyError):
    """A module has no function of a name."""

    __str__ = Exception.__str__  # a KeyError shows its text in quotes


class ParseError(MetaschedError):
    """A script cannot be read; the message shows the offending line with a caret."""

    def __init__(self, message: str, *, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class VerifyError(MetaschedError):
    """A module breaks a rule of the IR (`ir.verify`); `rule` is its slug, `node` the breaker."""

    def __init__(self, message: str, *, rule: str = "", node: Any = None) -> None:
        super().__init__(message)
        self.rule = rule
        self.node = node


class InterpretError(MetaschedError):
    """The interpreter met an operation without meaning: an access outside a buffer, a failed
    assertion, a division by zero, foreign code, or wrong arguments."""


class TypeMismatchError(MetaschedError, TypeError):
    """An expression combines data types that have no common type."""


class RegistryError(MetaschedError, LookupError):
    """A name is unknown to, or taken in, a registry."""


class PluginError(MetaschedError):
    """A file of a user's (a plug-in, a program) is missing, does not parse or fails."""


class ConfigError(MetaschedError, ValueError):
    """A setting has a value that it cannot take."""


class TargetError(MetaschedError, ValueError):
    """A target description is malformed or unknown."""


class LowerError(MetaschedError):
    """A module cannot be lowered to loops."""


class BuildError(MetaschedError):
    """Code generation, compilation or loading failed."""


class KernelError(MetaschedError, ValueError):
    """A kernel was called with arguments it does not accept; names the argument."""


class ExportError(MetaschedError):
    """A kernel cannot be written out."""


class TraceError(MetaschedError):
    """A trace is malformed, of another schema, or does not fit the workload it is replayed on."""


class TraceMiss(TraceError):
    """A sound trace for something else: another workload, another machine, another schema."""


class DatabaseError(MetaschedError):
    """A record or a database file cannot be read or written."""


class MeasureError(MetaschedError):
    """The measurement machinery itself (not a candidate) failed."""


class DefaultScheduleError(MeasureError):
    """The default schedule, with whose results candidates are compared, computes wrong results."""


class TuneError(MetaschedError):
    """Tuning cannot start or continue."""


class ScheduleError(MetaschedError, RuntimeError):
    """A schedule step was refused; schedule, trace and random state are as before.

    A search raises thousands of these errors, so the text (`str`, `args`) is rendered only when
    read.

    Attributes:
        primitive: name of the primitive that refused.
        reason: a short slug, the same for every refusal of one kind.
        block_or_loop: the IR node (or handle) that failed the condition, or None.
    """

    def __init__(
        self,
        primitive: str,
        reason: str,
        message: str | Callable[[], str],
        *,
        block_or_loop: Any = None,
        hint: str = "",
        excerpt: Callable[[], str] | None = None,
    ) -> None:
        super().__init__()
        self.primitive = primitive
        self.reason = reason
        self.block_or_loop = block_or_loop
        self.hint = hint
        self._message = message
        self._excerpt = excerpt

    @property
    def args(self) -> tuple[str]:  # type: ignore[override]
        """The whole report, as other exceptions hold their text."""
        return (self.render(),)

    def __reduce__(self) -> tuple[Any, ...]:
        excerpt = None if self._excerpt is None else self._excerpt()
        given = (self.primitive, self.reason, self.message, self.block_or_loop, self.hint, excerpt)
        return _schedule_error, given

    @property
    def message(self) -> str:
        """The failed condition in words, without the script."""
        return readable(self._message if isinstance(self._message, str) else self._message())

    def render(self) -> str:
        """The whole report: condition, script with the node underlined, hint."""
        parts = [f"{self.primitive}: {self.message} [{self.reason}]"]
        if self._excerpt is not None:
            parts.append(self._excerpt())
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.render()


def warn(text: str) -> None:
    """Warn about the line of the user's program that called metasched.

    That line is the nearest one outside of the package and of `contextlib`.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _WITHIN:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


_WITHIN = ("metasched", "contextlib")


def shown_at_caller(fn: Callable[P, R]) -> Callable[P, R]:
    """A public function whose errors show the user's lines only (decorator); see `shortened`."""

    @functools.wraps(fn)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return fn(*args, **kwargs)
        except MetaschedError as error:
            raise shortened(error) from error.__cause__

    return called


def shortened(error: MetaschedError) -> MetaschedError:
    """The error with the frames of users' files alone in its traceback and in those of its causes.

    The caller raises it `from error.__cause__`, which hides what else was raised on the way: the
    message repeats it. Python's development mode (`python -X dev`) keeps all frames.
    """
    if sys.flags.dev_mode:
        return error
    seen: BaseException | None = error
    while seen is not None:
        seen.__traceback__ = _users_frames(seen.__traceback__)
        seen = seen.__cause__
    return error


def _users_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of this package."""
    kept: list[TracebackType] = []
    while traceback is not None:
        name = traceback.tb_frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _WITHIN:
            kept.append(traceback)
        traceback = traceback.tb_next
    found = None
    for each in reversed(kept):
        found = TracebackType(found, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return found


def clipped(text: str) -> str:
    """Text of a file or a user as a message quotes it: at most QUOTED characters."""
    return text if len(text) <= QUOTED else f"{text[: QUOTED - 3]}..."


def words(error: BaseException) -> str:
    """The message of another library's error, in one line of at most QUOTED characters."""
    return clipped(" ".join(str(error).split()))


def readable(message: str) -> str:
    """Clip each word of a message to QUOTED characters, since a message may quote user input."""
    return re.sub(rf"\S{{{QUOTED + 1},}}", lambda word: clipped(word[0]), message)


def brief(value: object) -> str:
    """The `repr` of foreign data as a message quotes it: short however large or deep it is."""
    if isinstance(value, str):
        return clipped(repr(value[: 2 * QUOTED]))
    try:
        return clipped(_SHORT.repr(value))
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return f"{type(value).__name__} of too many digits"


_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 20
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = QUOTED


def _schedule_error(
    primitive: str, reason: str, message: str, node: Any, hint: str, excerpt: str | None
) -> ScheduleError:
    """The error that was pickled, its texts rendered."""
    shown = None if excerpt is None else lambda: excerpt
    return ScheduleError(primitive, reason, message, block_or_loop=node, hint=hint, excerpt=shown)
