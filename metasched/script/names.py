"""Which names of a function are assigned again where a scope of their own would lose the value.

In Python a name belongs to the whole function. In a script a name ends with the scope that assigns
it first, and most names are assigned once: they are lets. A name is *carried* by a scope when an
inner scope assigns it again, or when it is read after the inner scope that assigns it has ended.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class _Frame:
    key: int
    bound: set[str]
    closed: set[str] = field(default_factory=set)  # assigned in inner scopes that have ended


class Names:
    """The names that the statements of a function assign.

    Attributes:
        local: names that are assigned, looped over or bound by `with`.
        carried: pairs (scope, name); a scope is the `id` of its list of statements.
        hidden: names of loops and of `with` that hide a name in use, by their node.
    """

    def __init__(self, body: Sequence[ast.stmt], parameters: Iterable[str] = ()) -> None:
        self.local: set[str] = set()
        self.carried: set[tuple[int, str]] = set()
        self.hidden: dict[ast.AST, str] = {}
        self._frames: list[_Frame] = []
        self._body(body, parameters)

    @contextmanager
    def _frame(self, key: int, bound: Iterable[str]) -> Iterator[_Frame]:
        frame = _Frame(key, set(bound))
        self._frames.append(frame)
        yield frame
        self._frames.pop()

    def _body(self, nodes: Sequence[ast.stmt], bound: Iterable[str] = ()) -> None:
        targets = set(bound)
        with self._frame(id(nodes), targets) as frame:
            for node in nodes:
                self._statement(node)
        if self._frames:
            self._frames[-1].closed |= (frame.bound - targets) | frame.closed

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.For):
            self._read(node.iter)
            self._body(node.body, self._targets(node.target))
        elif isinstance(node, (ast.While, ast.If)):
            self._read(node.test)
            self._body(node.body)
            if isinstance(node, ast.If) and node.orelse:
                self._body(node.orelse)
        elif isinstance(node, ast.With):
            targets: list[str] = []
            for item in node.items:
                self._read(item.context_expr)
                if item.optional_vars is not None:
                    targets += self._targets(item.optional_vars)
            self._body(node.body, targets)
        elif isinstance(node, ast.Assign):
            self._read(node.value)
            for target in node.targets:
                self._assign(target)
        elif isinstance(node, ast.AugAssign):
            self._read(node.value)
            if isinstance(node.target, ast.Name):
                self._use(node.target.id)
            self._assign(node.target)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._read(node.value)
            self._assign(node.target)
        elif isinstance(node, ast.FunctionDef):
            self._bind(node.name)
        else:
            self._read(node)

    def _targets(self, node: ast.expr) -> list[str]:
        """The names of a loop or a `with`, which last as long as its body."""
        found = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        for name in found:
            self.local.add(name.id)
            if any(name.id in frame.bound for frame in self._frames):
                self.hidden[name] = name.id
        return [n.id for n in found]

    def _assign(self, target: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._assign(part)
        else:
            self._read(target)

    def _bind(self, name: str) -> None:
        self.local.add(name)
        *outer, own = self._frames
        if name in own.bound:
            return
        for frame in outer:
            if name in frame.bound:
                self.carried.add((frame.key, name))
                return
        own.bound.add(name)

    def _use(self, name: str) -> None:
        if any(name in frame.bound for frame in self._frames):
            return
        for frame in reversed(self._frames):
            if name in frame.closed:
                self.carried.add((frame.key, name))
                frame.bound.add(name)
                return

    def _read(self, node: ast.AST) -> None:
        own: set[str] = set()  # bound by the expression itself
        for part in ast.walk(node):
            if isinstance(part, ast.arg):
                own.add(part.arg)
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                own.add(part.id)
            elif isinstance(part, ast.keyword) and part.arg == "where":
                keys = part.value.keys if isinstance(part.value, ast.Dict) else ()
                own |= {k.id for k in keys if isinstance(k, ast.Name)}
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id not in own:
                self._use(part.id)
