"""Python's operators on expressions, where the user's code runs: `==` then builds a comparison.

Expressions are equal only if they are one object, and the compiler compares them by `==` in
dictionaries and tuples. A function of the user, which a script or `te.compute` calls, means the
comparison of the program instead. `users_code` marks the time in which such a function runs.

A dictionary of the user, `{0: a, 1: b}.get(i, c)`, would silently miss for every `i`. So `hash` is
refused there, except for constants, whose hash is the number's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Number
from typing import Any

from metasched.ir.intern import Interned

MEANING: dict[str, Callable[..., Any]] = {}
"""The function for each operator that needs operations of higher files, by its symbol."""


class _Thread(threading.local):
    users = False


class _Hashing:
    """How many threads run the user's code. A `__hash__` in Python would make the search 15 %
    slower, so classes have it only at such times."""

    threads = 0
    lock = threading.Lock()


_THREAD = _Thread()
_LOOKS_UP = "metasched.script.captured"  # it hashes for the user, as in TABLE.get(i) of a script


def in_users_code() -> bool:
    """Whether a function of the user runs in this thread."""
    return _THREAD.users


@contextmanager
def users_code(runs: bool = True, *, hashes: bool = True) -> Iterator[None]:
    """The user's code runs inside; with `runs` false, code of this package inside such code.

    Without `hashes`, the code is known to look up no expression.
    """
    before, _THREAD.users = _THREAD.users, runs
    refuses = runs and hashes and not before
    if refuses:
        _enter(1)
    try:
        yield
    finally:
        _THREAD.users = before
        if refuses:
            _enter(-1)


def _enter(step: int) -> None:
    with _Hashing.lock:
        _Hashing.threads += step
        if _Hashing.threads == max(step, 0):  # the first enters or the last leaves
            for kind in (Operators, Numeric):
                setattr(kind, "__hash__", _users_hash if step > 0 else object.__hash__)  # noqa: B010


def _users_hash(node: Any) -> int:
    """The hash of an expression where the user's code may run in some thread."""
    if _THREAD.users:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller == _LOOKS_UP or not caller.startswith("metasched."):
            if isinstance(node, Numeric):
                return hash(node.value)
            raise TypeError(
                "the value of an expression is unknown while the program is being built, so it is "
                "no key of a dict, a set or a cached function; choose with T.if_then_else, or read "
                "the table from a buffer"
            )
    return object.__hash__(node)


class Operators(Interned):
    """The operators of every expression that are not arithmetic: comparisons and bits."""

    __slots__ = ()
    __hash__ = object.__hash__

    # fmt: off
    def __lshift__(self, other: Any) -> Any: return MEANING["<<"](self, other)  # noqa: E704
    def __rlshift__(self, other: Any) -> Any: return MEANING["<<"](other, self)  # noqa: E704
    def __rshift__(self, other: Any) -> Any: return MEANING[">>"](self, other)  # noqa: E704
    def __rrshift__(self, other: Any) -> Any: return MEANING[">>"](other, self)  # noqa: E704
    def __and__(self, other: Any) -> Any: return MEANING["&"](self, other)  # noqa: E704
    def __rand__(self, other: Any) -> Any: return MEANING["&"](other, self)  # noqa: E704
    def __or__(self, other: Any) -> Any: return MEANING["|"](self, other)  # noqa: E704
    def __ror__(self, other: Any) -> Any: return MEANING["|"](other, self)  # noqa: E704
    def __xor__(self, other: Any) -> Any: return MEANING["^"](self, other)  # noqa: E704
    def __rxor__(self, other: Any) -> Any: return MEANING["^"](other, self)  # noqa: E704
    def __pow__(self, other: Any) -> Any: return MEANING["**"](self, other)  # noqa: E704
    def __rpow__(self, other: Any) -> Any: return MEANING["**"](other, self)  # noqa: E704
    def __truediv__(self, other: Any) -> Any: return MEANING["/"](self, other)  # noqa: E704
    def __rtruediv__(self, other: Any) -> Any: return MEANING["/"](other, self)  # noqa: E704
    def __invert__(self) -> Any: return MEANING["~"](self)  # noqa: E704
    def __abs__(self) -> Any: return MEANING["abs"](self)  # noqa: E704
    def __pos__(self) -> Any: return self  # noqa: E704
    # fmt: on

    def __eq__(self, other: object) -> Any:
        if _THREAD.users and isinstance(other, (Operators, Number)):
            return MEANING["=="](self, other)
        return True if self is other else NotImplemented

    def __ne__(self, other: object) -> Any:
        if _THREAD.users and isinstance(other, (Operators, Number)):
            return MEANING["!="](self, other)
        return NotImplemented if self is not other else False


class Numeric:
    """Mixin of constants: equal to the Python number of their value, and to no other node.

    Two nodes are equal only if they are one object. So the nodes of 1, True and 1.0, of 0.0 and
    -0.0, and of one value in two types are different keys of a dictionary. The hash is by identity,
    because a cache must not confuse the number 4 with a node 4.
    """

    __slots__ = ()
    value: Any

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> Any:
        if _THREAD.users and isinstance(other, Operators):
            return MEANING["=="](self, other)
        return self is other or (isinstance(other, Number) and bool(self.value == other))

    def __ne__(self, other: object) -> Any:
        if _THREAD.users and isinstance(other, Operators):
            return MEANING["!="](self, other)
        return not (self == other)

    __hash__ = object.__hash__
