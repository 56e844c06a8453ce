"""Reads calls of statement words, in a script and in Python functions that a script calls.

A Python function that a decorated script calls may use statement words, too. Their statements are
inserted before the statement that calls the function. Words that open a scope are allowed in
scripts and macros only.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.stmt import BufferStore, ForKind, Stmt
from metasched.script.builder import SPEAKER, StatementWord
from metasched.script.plain import describe
from metasched.script.reader import Bound, Scoped
from metasched.script.scalars import ScalarReader
from metasched.script.statements import STATEMENTS, word
from metasched.script.stores import StoreReader

# Words whose arguments are evaluated where the statement runs, like any expression in a statement.
_EVALUATED = frozenset({*(k.value for k in ForKind), "grid", "LetStmt", "evaluate", "Assert", "If",
                        "While", "buffer_store"})  # fmt: skip


class CallReader(ScalarReader):
    """The calls of statement words in a function being read."""

    def word(self, node: ast.Call, fn: Any) -> Any:
        """Call a statement word."""
        if not isinstance(fn, StatementWord):
            self.fail(node, f"a statement word of T is needed here, not {describe(fn)}")
        return self._perform(node, fn, *self.arguments(node))

    def _perform(
        self, node: ast.Call, fn: StatementWord, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        handler = STATEMENTS[fn.name]
        name = self.reads_scalar([*args, *kwargs.values()])
        if name is not None and fn.name not in _EVALUATED:
            self.fail(node, f"{name} is assigned again; T.{fn.name} would read the new value",
                      f"keep its present value: n = T.let({name})")  # fmt: skip
        try:
            _signature(handler).bind(self, node, *args, **kwargs)
        except TypeError as error:
            self.fail(node, f"T.{fn.name}: {error}")
        return self.guard(node, handler, self, node, *args, **kwargs)

    @contextmanager
    def speaking(self, node: ast.Call) -> Iterator[None]:
        """While active, called words add their statements before the statement being read."""

        def say(fn: StatementWord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            found = self._perform(node, fn, list(args), kwargs)
            if isinstance(found, Bound):
                return found.value
            if not isinstance(found, (Stmt, Scoped)):
                self.fail(node, f"T.{fn.name} opens a scope, which a Python function cannot do",
                          "put these statements under @T.macro")  # fmt: skip
            self.call_stmts.append(found)
            return found.value if isinstance(found, Scoped) else found

        token = SPEAKER.set(say)
        try:
            yield
        finally:
            SPEAKER.reset(token)


@word("buffer_store")
def buffer_store(
    p: StoreReader, node: ast.Call, buffer: Any, value: Any, indices: Any, predicate: Any = None
) -> Stmt:
    """`buffer[indices] = value`."""
    if not isinstance(buffer, Buffer):
        p.fail(node, f"only buffers are stored to, not {describe(buffer)}")
    items = indices if isinstance(indices, (tuple, list)) else (indices,)
    place = p.guard(node, BufferLoad, buffer, [p.index(node, i) for i in items])
    mask = None if predicate is None else p.condition(node, predicate)
    return BufferStore(buffer, p.stored(node, value, place.dtype), place.indices, mask)


@functools.lru_cache(maxsize=256)
def _signature(handler: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(handler)
