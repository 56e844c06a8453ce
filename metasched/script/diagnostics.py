"""Finds the source of a function, and makes errors that point into it."""

from __future__ import annotations

import ast
import functools
import linecache
from dataclasses import dataclass
from types import FunctionType

from metasched.errors import QUOTED, ParseError, TypeMismatchError
from metasched.script.hints import advice


class RefusedOperand(TypeMismatchError):
    """An operand or operator without meaning where it stands; `hint` says what to write."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}; {hint}")
        self.message, self.hint = message, hint


@dataclass(frozen=True)
class Source:
    """The text of a file, or a given text; before parsing, `offset` lines were put in front."""

    name: str
    lines: tuple[str, ...]
    offset: int = 0

    def error(self, node: ast.AST, message: str, hint: str = "") -> ParseError:
        """An error at `node`: place, what is wrong, the line with carets, what to write instead.

        Without a `hint` the message may have one (`hints.ADVICE`).
        """
        number = getattr(node, "lineno", 1) - self.offset
        start = getattr(node, "col_offset", 0)
        end = getattr(node, "end_col_offset", None)
        text = self.lines[number - 1].rstrip("\n") if number <= len(self.lines) else ""
        if getattr(node, "end_lineno", None) != getattr(node, "lineno", None):
            end = None
        hint = hint or advice(message)
        return self._report(number, _chars(text, start), _chars(text, end), message, hint)

    def syntax_error(self, error: SyntaxError) -> ParseError:
        """Python's syntax error as a ParseError."""
        number = min(max((error.lineno or 1) - self.offset, 1), max(len(self.lines), 1))
        column = max((error.offset or 1) - 1, 0)
        return self._report(number, column, column + 1, f"not Python: {error.msg}", "")

    def _report(self, line: int, start: int, end: int, message: str, hint: str) -> ParseError:
        text = self.lines[line - 1].rstrip("\n") if line <= len(self.lines) else ""
        body, place = text.rstrip(), f"{self.name}:{line}:{start + 1}"
        left = max(0, min(start - QUOTED // 2, len(body) - QUOTED))
        shown = body[left : left + QUOTED]  # cut a long line to the text around the place
        carets = "^" * max(min(end, left + len(shown)) - start, 1)
        margin = f"{line:5d} | "
        report = f"{place}: {message}\n{margin}{shown}\n"
        report += " " * (len(margin) - 2) + "| " + " " * (start - left) + carets
        if hint:
            report += f"\nhint: {hint}"
        return ParseError(report, line=line, column=start + 1)


def _chars(text: str, offset: int | None) -> int:
    """Convert a column from UTF-8 bytes to characters; None means the end of the line."""
    if offset is None:
        return len(text)
    return len(text.encode()[:offset].decode(errors="ignore"))


@functools.lru_cache(maxsize=16)
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


def source_of(func: FunctionType) -> tuple[Source, ast.FunctionDef]:
    """The file of a function and its definition in it.

    The whole file is parsed, and the definition is found by its line number. `inspect.getsource`
    would confuse classes of equal names, and dedenting would break strings that begin at column 0.
    """
    name = func.__code__.co_filename
    linecache.checkcache(name)
    lines = tuple(linecache.getlines(name, func.__globals__))
    if not lines:
        raise ParseError(
            f"{name}: the source of {func.__qualname__} cannot be read; "
            "give its text to metasched.script.parse instead"
        )
    source = Source(name, lines)
    try:
        tree = _tree("".join(lines))
    except SyntaxError as error:
        raise source.syntax_error(error) from None
    first = func.__code__.co_firstlineno
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == func.__name__:
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if start == first:
                return source, node
    raise ParseError(
        f"{name}:{first}: no definition of {func.__name__} starts here; the file has changed "
        "since it was loaded",
        line=first,
        column=1,
    )


def parse_text(text: str, name: str) -> tuple[Source, ast.Module]:
    """The syntax tree of a text, which may be indented as a whole."""
    lines = tuple(text.splitlines(keepends=True))
    source = Source(name, lines)
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if first[:1] in (" ", "\t"):
        source, text = Source(name, lines, offset=1), "if True:\n" + text
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise source.syntax_error(error) from None
    except (RecursionError, MemoryError, ValueError) as error:
        raise ParseError(f"{name}: the text cannot be read: {error}") from None
    if source.offset:
        wrapper = tree.body[0]
        assert isinstance(wrapper, ast.If)
        tree = ast.Module(wrapper.body, [])
    return source, tree
