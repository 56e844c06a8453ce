"""Lines of script under construction: indentation, marks to underline, and unique names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from metasched.ir.buffer import Buffer
from metasched.ir.expr import Var
from metasched.script.words import RESERVED

INDENT = "    "
OPEN, CLOSE = "\x01", "\x02"  # around marked text; strings are escaped, so they cannot occur in it


class Doc:
    """Indented lines of text; text between OPEN and CLOSE is underlined when rendered."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        self.lines.append(INDENT * self._depth + text if text else "")

    @contextmanager
    def indented(self) -> Iterator[None]:
        self._depth += 1
        yield
        self._depth -= 1

    def render(self, context: int | None = None) -> str:
        """The text; with `context` only that many lines around each marked line."""
        out: list[str] = []
        marked: list[int] = []
        for raw in self.lines:
            text, underline = split_marks(raw)
            out.append(text)
            if underline:
                marked.append(len(out) - 1)
                out.append(underline)
        if context is None or not marked:
            return "\n".join(out)
        return "\n".join(_around(out, marked, context))


def split_marks(raw: str) -> tuple[str, str]:
    """A line without its marks, and the line of carets below it (empty without marks)."""
    if OPEN not in raw:
        return raw, ""
    text: list[str] = []
    carets: list[str] = []
    depth = 0
    for char in raw:
        if char == OPEN:
            depth += 1
        elif char == CLOSE:
            depth -= 1
        else:
            text.append(char)
            carets.append("^" if depth else " ")
    under = "".join(carets).rstrip()
    start = len(under) - len(under.lstrip())
    lead = "# ".rjust(start)
    return "".join(text), lead + under[len(lead) :] if start >= 2 else lead + under


def _around(lines: list[str], marked: list[int], context: int) -> Iterator[str]:
    """The lines at most `context` lines from a marked line; gaps become an ellipsis."""
    wanted = {i for m in marked for i in range(m - context, m + context + 2)}
    skipping = False
    for i, text in enumerate(lines):
        if i in wanted:
            skipping = False
            yield text
        elif not skipping:
            skipping = True
            yield " " * (len(text) - len(text.lstrip())) + "..."


class Names:
    """Unique, readable names of variables and buffers; a closed scope frees its names."""

    def __init__(self) -> None:
        self._of: dict[Var | Buffer, str] = {}
        self._taken: set[str] = set(RESERVED)
        self._scopes: list[list[Var | Buffer]] = [[]]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Open a scope, whose names are freed at its end."""
        self._scopes.append([])
        yield
        for item in self._scopes.pop():
            self._taken.discard(self._of.pop(item))

    def define(self, item: Var | Buffer, scope: int = -1) -> str:
        """Give `item` a unique name similar to `item.name`; also name a buffer's data pointer."""
        name = self.fresh(item.name)
        self._enter(item, name, scope)
        if isinstance(item, Buffer) and item.data not in self._of:
            self._enter(item.data, f"{name}.data", scope)
        return name

    def _enter(self, item: Var | Buffer, name: str, scope: int) -> None:
        self._of[item] = name
        self._scopes[scope].append(item)

    def fresh(self, hint: str) -> str:
        """A legal name that is not in use; it stays taken until the scope ends."""
        base = re.sub(r"\W", "_", hint, flags=re.ASCII) or "v"
        if base[0].isdigit():
            base = f"v{base}"
        name, n = base, 0
        while name in self._taken:
            n += 1
            name = f"{base}_{n}"
        self._taken.add(name)
        return name

    def get(self, item: Var | Buffer) -> str:
        """The name of `item`; an item that is defined nowhere gets a name on first use."""
        found = self._of.get(item)
        return self.define(item, scope=0) if found is None else found

    def __contains__(self, item: Var | Buffer) -> bool:
        return item in self._of
