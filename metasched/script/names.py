"""Finds the names of a function that need memory because an inner scope assigns them again.

In Python a name belongs to the whole function. In a script a name ends with the scope that first
assigns it. Most names are assigned once and become lets. A scope *carries* a name if an inner scope
assigns the name again, or if the name is read after the end of the inner scope that assigns it. A
name that is rebound for another use stands here as several names, one for each of its `lives`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from metasched.script.lives import Expressions


@dataclass
class _Frame:
    key: int
    bound: set[str]
    loops: bool = False  # the body of a loop
    closed: set[str] = field(default_factory=set)  # assigned in inner scopes that have ended
    sure: set[str] = field(default_factory=set)  # names of `closed` that every path to here assigns
    used: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)  # overwritten by an ended loop or `with`


class Names:
    """The names that the statements of a function assign.

    Attributes:
        local: names that are assigned, looped over or bound by `with`.
        ended: those that are looped over or bound by `with`.
        once: names with one assignment, loop or `with` alone.
        carried: pairs (scope, name); a scope is the `id` of its list of statements.
        keys: of names in a later life, see `lives`; a key stands for the name in all other tables.
        hidden: the uses, as syntax nodes, of names whose value in Python is another, because an
            enclosing loop or `with` has overwritten the name.
    """

    def __init__(
        self, body: Sequence[ast.stmt], parameters: Iterable[str] = (),
        keys: Mapping[ast.Name, str] | None = None, expressions: Expressions | None = None,
    ) -> None:  # fmt: skip
        self.keys, self._expressions = keys or {}, expressions or Expressions()
        self.local: set[str] = set()
        self.ended: set[str] = set()
        self._times = Counter[str]()
        self.carried: set[tuple[int, str]] = set()
        self.hidden: dict[ast.AST, str] = {}
        self._frames: list[_Frame] = []
        self._body(body, parameters)
        self.once = {name for name, times in self._times.items() if times == 1}

    def key(self, name: ast.Name) -> str:
        return self.keys.get(name, name.id)

    @contextmanager
    def _frame(self, key: int, bound: Iterable[str], loops: bool) -> Iterator[_Frame]:
        frame = _Frame(key, set(bound), loops)
        self._frames.append(frame)
        yield frame
        self._frames.pop()

    def _body(
        self, nodes: Sequence[ast.stmt], bound: Iterable[str] = (), loops: bool = False
    ) -> set[str]:
        """Walk a scope and return the names that it assigns on every path."""
        targets = set(bound)
        with self._frame(id(nodes), targets, loops) as frame:
            for node in nodes:
                self._statement(node)
        if self._frames:
            self._frames[-1].closed |= (frame.bound - targets) | frame.closed
            self._frames[-1].lost |= frame.lost & self._frames[-1].closed
        return (frame.bound - targets) | frame.sure

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.For):
            self._read(node.iter)
            self._around(self._targets(node.target), node.body, loops=True)
        elif isinstance(node, ast.While):
            self._read(node.test)
            self._body(node.body, loops=True)
        elif isinstance(node, ast.If):
            self._read(node.test)
            sure = self._body(node.body)
            self._frames[-1].sure |= sure & self._body(node.orelse)
        elif isinstance(node, ast.With):
            targets: list[ast.Name] = []
            for item in node.items:
                self._read(item.context_expr)
                if item.optional_vars is not None:
                    targets += self._targets(item.optional_vars)
            self._around(targets, node.body, loops=False)
        elif isinstance(node, ast.Assign):
            self._read(node.value)
            for target in node.targets:
                self._assign(target)
        elif isinstance(node, ast.AugAssign):
            self._read(node.value)
            if isinstance(node.target, ast.Name):
                self._use(self.key(node.target), node.target)
            self._assign(node.target)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._read(node.value)
            self._assign(node.target)
        elif isinstance(node, ast.FunctionDef):
            self._bind(node.name)
        else:
            self._read(node)

    def _targets(self, node: ast.expr) -> list[ast.Name]:
        return [n for n in ast.walk(node) if isinstance(n, ast.Name)]

    def _around(self, targets: Sequence[ast.Name], body: Sequence[ast.stmt], loops: bool) -> None:
        """Walk a loop or a `with`, whose names end with its body; in Python they live on."""
        sure = self._body(body, [self.key(t) for t in targets], loops)
        self._frames[-1].sure |= set() if loops else sure
        for target in targets:
            name = self.key(target)
            self.local.add(name)
            self.ended.add(name)
            self._times[name] += 1
            for depth, frame in enumerate(self._frames):
                if name in frame.bound or name in frame.closed:
                    frame.lost.add(name)
                    if any(f.loops and name in f.used for f in self._frames[depth + 1 :]):
                        self.hidden[target] = name  # the next iteration would read this value
                    break

    def _assign(self, target: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._bind(self.key(target))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._assign(part)
        elif isinstance(target, ast.Starred):
            self._assign(target.value)
        else:
            self._read(target)

    def _bind(self, name: str) -> None:
        self.local.add(name)
        self._times[name] += 1
        *outer, own = self._frames
        own.lost.discard(name)
        if name in own.bound:
            return
        for frame in outer:
            if name in frame.bound:
                self.carried.add((frame.key, name))
                return
        own.bound.add(name)

    def _use(self, name: str, node: ast.AST) -> None:
        for frame in self._frames:
            frame.used.add(name)
        known = [frame for frame in self._frames if name in frame.bound]
        if known:
            if name in known[-1].lost:
                self.hidden[node] = name
            return
        found = [frame for frame in self._frames if name in frame.closed]
        if any(name in frame.lost for frame in found):
            self.hidden[node] = name
        elif found:  # the innermost scope with a certain value, or else the outermost scope
            frame = next((f for f in reversed(found) if name in f.sure), found[0])
            self.carried.add((frame.key, name))
            frame.bound.add(name)

    def _read(self, node: ast.AST) -> None:
        for name in self._expressions.names(node):
            self._use(self.key(name), name)
