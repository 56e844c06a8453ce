"""Tells apart the independent uses of one name of a function.

In Python a name may hold one value after another: a sum of floats in one loop, a count in the next.
A *life* of a name is a set of assignments and of the reads that may see them. Two assignments that
no read can see both belong to two lives: two variables, of types and scopes of their own.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class _Value:
    """What a name may hold at a place: the value of one assignment, or values of several paths."""

    sources: list[_Value] = field(default_factory=list)
    life: _Value | None = None  # another value of the same life, see `_root`
    read: bool = False  # whether its sources have been joined to its life


_Held = dict[str, _Value]


class Expressions:
    """The expressions of one function, each walked once.

    Attributes:
        calls: the calls in them.
        inner: the names in lambdas.
    """

    def __init__(self) -> None:
        self._names: dict[ast.AST, list[ast.Name]] = {}
        self.calls: list[ast.Call] = []
        self.inner: set[str] = set()

    def names(self, node: ast.AST) -> list[ast.Name]:
        """The names in an expression that the expression does not bind itself."""
        if node not in self._names:
            self._names[node] = self._walked(node)
        return self._names[node]

    def _walked(self, node: ast.AST) -> list[ast.Name]:
        own: set[str] = set()
        read: list[ast.Name] = []
        stack: list[ast.AST] = [node]
        while stack:
            part = stack.pop()
            if isinstance(part, ast.Name):
                read.append(part)
                if isinstance(part.ctx, ast.Store):
                    own.add(part.id)
                continue
            if isinstance(part, ast.Constant):
                continue
            if isinstance(part, ast.Call):
                self.calls.append(part)
            elif isinstance(part, ast.Lambda):
                self.inner |= {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
            elif isinstance(part, ast.arg):
                own.add(part.arg)
            elif isinstance(part, ast.keyword) and part.arg == "where":
                keys = part.value.keys if isinstance(part.value, ast.Dict) else ()
                own |= {k.id for k in keys if isinstance(k, ast.Name)}
            for value in vars(part).values():
                if isinstance(value, ast.AST):
                    stack.append(value)
                elif type(value) is list:
                    stack += [v for v in value if isinstance(v, ast.AST)]
        return [name for name in read if name.id not in own] if own else read


class Bindings:
    """The names that the statements of one function bind.

    Attributes:
        of: by the `id` of each list of statements, with those of lists inside.
        again: names that are bound several times, or once while a parameter has the name.
        inner: the names in functions inside.
    """

    def __init__(self, body: Sequence[ast.stmt], parameters: Iterable[str]) -> None:
        self.of: dict[int, set[str]] = {}
        self.inner: set[str] = set()
        self._times = Counter(list(parameters))
        self.all = self._visit(body)
        self.again = {name for name, times in self._times.items() if times > 1}

    def _visit(self, nodes: Sequence[ast.stmt]) -> set[str]:
        found: set[str] = set()
        for node in nodes:
            bound = [name.id for name in _targets(node)]
            found |= {*bound}
            if not isinstance(node, ast.AugAssign):
                self._times.update(bound)
            if isinstance(node, ast.FunctionDef):
                self.inner |= {node.name}
                self.inner |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                continue
            for inner in (getattr(node, "body", None), getattr(node, "orelse", None)):
                found |= self._visit(inner) if inner else set()
        self.of[id(nodes)] = found
        return found


def lives(
    body: Sequence[ast.stmt], parameters: Iterable[str], bindings: Bindings,
    expressions: Expressions, runs: Callable[[ast.expr], bool],
) -> dict[ast.Name, str]:  # fmt: skip
    """The keys of the names that belong to a later life than the first, or than the parameter's.

    A key is no identifier, so no name is written so. Names that a lambda or a function inside reads
    have one life, because such reads see the value at the call. `runs` tells whether a loop with
    this head certainly has an iteration.
    """
    if not bindings.again:
        return {}
    flow = _Flow(parameters, bindings, expressions, runs)
    flow.block(body)
    whole = bindings.inner | expressions.inner
    return {node: key for node, key in flow.later() if node.id not in whole}


def leaves(nodes: Sequence[ast.stmt]) -> bool:
    """Whether a loop with this body may end before its last iteration."""
    return any(
        isinstance(node, (ast.Break, ast.Continue, ast.Return))
        or leaves(getattr(node, "body", ()))
        or leaves(getattr(node, "orelse", ()))
        for node in nodes
    )


class _Flow:
    """Follows the values of names through the statements of one function."""

    def __init__(
        self, parameters: Iterable[str], bindings: Bindings, expressions: Expressions,
        runs: Callable[[ast.expr], bool],
    ) -> None:  # fmt: skip
        self.runs, self.bindings, self.expressions = runs, bindings, expressions
        self.held: _Held = {name: _Value() for name in parameters if name in bindings.again}
        self.numbers = {name: {value: 0} for name, value in self.held.items()}  # of the lives
        self.left = False  # whether the statement before was a break, continue or return
        self.exits: list[tuple[list[_Held], list[_Held]]] = []  # of loops: at breaks, at continues
        self.seen: list[tuple[ast.Name, _Value]] = []  # every name in order, with its value
        self.reads: list[_Value] = []

    def later(self) -> Iterator[tuple[ast.Name, str]]:
        for value in self.reads:
            _join_life(value)
        numbers = {
            name: {_root(value): 0 for value in known} for name, known in self.numbers.items()
        }
        for node, value in self.seen:
            known = numbers.setdefault(node.id, {})
            number = known.setdefault(_root(value), len(known))
            if number:
                yield node, f"{node.id} {number + 1}"

    def block(self, nodes: Sequence[ast.stmt]) -> None:
        for node in nodes:
            self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.For):
            self._read(node.iter)
            runs = not leaves(node.body) and self.runs(node.iter)
            self._loop((), node, node.body, runs)
        elif isinstance(node, ast.While):
            self._loop([node.test], node, node.body)
        elif isinstance(node, ast.If):
            self._read(node.test)
            self._branches(node.body, node.orelse)
        elif isinstance(node, ast.With):
            heads = [item.context_expr for item in node.items]
            self._loop(heads, node, node.body, jumps=False)  # T.While and T.If are such, too
        elif isinstance(node, ast.Assign):
            self._read(node.value)
            for target in node.targets:
                self._assign(target)
        elif isinstance(node, ast.AugAssign):
            self._read(node.value)
            self._assign(node.target, again=True)
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self._read(node.value)
            self._assign(node.target)
        elif not isinstance(node, ast.FunctionDef):
            self._read(node)
            self._leave(node)

    def _leave(self, node: ast.stmt) -> None:
        jump = isinstance(node, (ast.Break, ast.Continue))
        if jump and self.exits:
            self.exits[-1][isinstance(node, ast.Continue)].append(dict(self.held))
        self.left = jump or isinstance(node, ast.Return)

    def _branches(self, *bodies: Sequence[ast.stmt]) -> None:
        before = self.held
        ends: list[_Held] = []
        gone: list[_Held] = []
        for body in bodies:
            self.held, self.left = dict(before), False
            self.block(body)
            (gone if self.left else ends).append(self.held)
        self.held, self.left = _joined(ends or gone), not ends

    def _loop(
        self, tests: Sequence[ast.expr], node: ast.stmt, body: Sequence[ast.stmt],
        runs: bool = False, jumps: bool = True,
    ) -> None:  # fmt: skip
        """A body that runs any number of times, at least once if it `runs`. Without `jumps` a break
        in it may leave the loop around it, or the statement itself, if it is a `with T.While`."""
        head, targets = {}, _targets(node)
        for name in ({t.id for t in targets} | self.bindings.of[id(body)]) & self.bindings.again:
            before = self.held.get(name)
            head[name] = _Value([before] if before is not None else [])
        start = {**self.held, **head}
        self.held, self.left = dict(start), False
        exits: tuple[list[_Held], list[_Held]] = ([], [])
        self.exits.append(exits)
        for test in tests:
            self._read(test)
        for target in targets:
            self._assign(target)
        self.block(body)
        self.exits.pop()
        if not jumps and self.exits:
            for mine, outer in zip(exits, self.exits[-1], strict=True):
                outer += mine
        ends = [*exits[1], *([] if self.left else [self.held])]
        for name, value in head.items():
            value.sources += [end[name] for end in ends if name in end]
        after = ends if runs else [start]
        self.held, self.left = _joined([*after, *exits[0]] or [start]), False

    def _assign(self, target: ast.expr | None, again: bool = False) -> None:
        """An assignment; one that reads the value before, as `s += 1`, belongs to its life."""
        if isinstance(target, ast.Name):
            if target.id not in self.bindings.again:
                return
            before = self.held.get(target.id)
            value = _Value([before] if again and before is not None else [])
            if again:
                self.reads.append(value)
            self.held[target.id] = value
            self.seen.append((target, value))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._assign(part)
        elif isinstance(target, ast.Starred):
            self._assign(target.value)
        elif target is not None:
            self._read(target)

    def _read(self, node: ast.AST) -> None:
        for name in self.expressions.names(node):
            value = self.held.get(name.id)
            if value is not None:
                self.reads.append(value)
                self.seen.append((name, value))


def _root(value: _Value) -> _Value:
    """The value that stands for the life of `value`."""
    while value.life is not None:
        if value.life.life is not None:
            value.life = value.life.life
        value = value.life
    return value


def _join_life(value: _Value) -> None:
    """Put a value that is read, and all that it may come from, into one life."""
    stack = [value]
    while stack:
        part = stack.pop()
        if part.read:
            continue
        part.read = True
        for source in part.sources:
            mine, other = _root(part), _root(source)
            if mine is not other:
                mine.life = other
            stack.append(source)


def _joined(ends: Sequence[_Held]) -> _Held:
    """What names hold where several paths meet."""
    found: _Held = {}
    for name in {name: None for end in ends for name in end}:
        values = list({end[name]: None for end in ends if name in end})
        found[name] = values[0] if len(values) == 1 else _Value(values)
    return found


def _targets(node: ast.AST | None) -> list[ast.Name]:
    """The names that a statement binds itself, or that a target consists of."""
    if isinstance(node, ast.Name):
        return [node]
    if isinstance(node, (ast.Tuple, ast.List)):
        parts: Sequence[ast.AST | None] = node.elts
    elif isinstance(node, ast.Assign):
        parts = node.targets
    elif isinstance(node, (ast.For, ast.AugAssign, ast.AnnAssign)):
        parts = [node.target]
    elif isinstance(node, ast.With):
        parts = [item.optional_vars for item in node.items]
    elif isinstance(node, ast.Starred):
        parts = [node.value]
    else:
        return []
    return [name for part in parts for name in _targets(part)]
