"""Keeps variables that are assigned again in buffers of one element."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from metasched.errors import ParseError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion
from metasched.ir.dtype import DType
from metasched.ir.expr import Add, Expr, IntImm, Mul, Var, as_expr, as_int
from metasched.ir.stmt import Allocate, Block, BufferStore, LetStmt, Stmt, evolve
from metasched.ir.visit import reads_memory, walk, walk_exprs
from metasched.script.buffers import BUFFER_METHODS
from metasched.script.builder import MetaVar
from metasched.script.lives import Bindings, Expressions, lives
from metasched.script.names import Names
from metasched.script.plain import describe
from metasched.script.reader import BlockDraft, Loops, Scoped
from metasched.script.sections import Section
from metasched.script.stores import StoreReader

_ZERO = IntImm("int32", 0)
_METHODS = {*BUFFER_METHODS, "astype", "vstore"}
_LOOPS = {"serial", "parallel", "vectorized", "unroll"}


@dataclass(eq=False)
class Scalar:
    """A variable that is assigned again."""

    buffer: Buffer

    @property
    def value(self) -> BufferLoad:
        return BufferLoad(self.buffer, [_ZERO])


@dataclass
class Frame:
    """A scope being read: the block that allocates its variables, and how its iterations run."""

    key: int
    names: dict[str, Any]
    block: BlockDraft | None  # the block whose whole body this is
    side_by_side: bool  # the body of a parallel, vectorized or thread loop
    scalars: list[Scalar] = field(default_factory=list)


class ScalarReader(StoreReader):
    """Reads variables of a function, as lets or as memory."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.names = Names(())
        self.frames: list[Frame] = []
        self.parameters: dict[str, Var] = {}
        self.around_it = 0  # scopes of names around the function or macro being read
        self.scalars: dict[Buffer, Scalar] = {}
        self.assigned: set[Scalar] = set()  # names that have a value on every path to here
        self.left = False  # whether the statement before was a break, continue or return
        self.whole = False  # whether all lives of a name are one variable, see `lives`
        self.apart = False  # whether a name has several variables

    @contextmanager
    def function_of(
        self, body: Sequence[ast.stmt], parameters: dict[str, Var], hygienic: bool = True
    ) -> Iterator[None]:
        """A context for reading the statements of one function or macro."""
        saved = self.names, self.frames, self.parameters, self.around_it
        around = self.scopes.maps[0]
        bindings, expressions = Bindings(body, around), Expressions()
        keys: dict[ast.Name, str] = {}
        if hygienic and not self.whole:
            runs = partial(self._runs, assigned=bindings.all)
            keys = lives(body, around, bindings, expressions, runs)
            if keys and not self._names_are_own(expressions.calls, bindings.all):
                keys = {}
        self.apart |= bool(keys)
        self.names, self.frames = Names(body, around, keys, expressions), []
        self.parameters, self.around_it = parameters, len(self.scopes.maps) - 1
        yield
        self.names, self.frames, self.parameters, self.around_it = saved

    def _names_are_own(self, calls: Sequence[ast.Call], assigned: set[str]) -> bool:
        """Whether no call of a body can expand a macro that reads the names of the body."""
        for call in calls:
            root = fn = call.func
            if isinstance(fn, ast.Attribute) and fn.attr in _METHODS:
                continue
            while isinstance(root, ast.Attribute):
                root = root.value
            if not isinstance(root, ast.Name) or root.id in assigned or root.id in self.scopes:
                return False
            if not getattr(self._before(fn, assigned), "hygienic", True):
                return False
        return True

    def _runs(self, head: ast.expr, assigned: set[str]) -> bool:
        """Whether a loop certainly has an iteration, as far as its head alone tells."""
        if not isinstance(head, ast.Call) or head.keywords:
            return isinstance(head, ast.Tuple) and bool(head.elts)
        fn = self._before(head.func, assigned)
        word = "serial" if fn is range else getattr(fn, "name", "")
        bounds = [as_int(self._before(arg, assigned)) for arg in head.args]
        if word == "grid":
            return all(bound is not None and bound > 0 for bound in bounds)
        if word not in _LOOPS or len(bounds) not in (1, 2):
            return False
        low, high = (0, *bounds)[-2:]
        return low is not None and high is not None and low < high

    def _before(self, node: ast.expr, assigned: set[str]) -> Any:
        """The value of an expression without calls over names that the body leaves alone, or
        None."""
        for part in ast.walk(node):
            if isinstance(part, ast.Call) or (isinstance(part, ast.Name) and part.id in assigned):
                return None
        try:
            return self.value(node)
        except ParseError:
            return None

    @contextmanager
    def frame(
        self, nodes: Sequence[ast.stmt], block: BlockDraft | None, side_by_side: bool
    ) -> Iterator[Frame]:
        """Open a scope. The scope's block, or else `around`, allocates the variables it carries."""
        frame = Frame(id(nodes), self.scopes.maps[0], block, side_by_side)  # type: ignore[arg-type]
        self.frames.append(frame)
        yield frame
        self.frames.pop()

    def around(self, frame: Frame, body: Stmt) -> Stmt:
        """Put the allocations of the scope's variables around its statements."""
        for scalar in reversed(frame.scalars):
            if frame.block is None:
                body = Allocate(scalar.buffer, body)
            else:
                frame.block.allocs.append(scalar.buffer)
        return body

    def carried_parameters(self, frame: Frame) -> list[BufferStore]:
        """The first values of parameters that are assigned in inner scopes."""
        found = [n for n in self.parameters if (frame.key, n) in self.names.carried]
        return [self._new(frame, n, n, self.parameters[n]) for n in found]

    def scalar_store(
        self, node: ast.AST, target: ast.expr, value: Any, dtype: DType | None = None
    ) -> BufferStore | None:
        """`target = value` for a variable that is assigned again; None for a let."""
        name, key = self._target_name(target), self._key(target)
        known = self.scopes.get(key)
        if isinstance(known, Scalar):
            self._same_order(node, name, known)
            want = known.buffer.dtype
            found = self.typed(node, value, want)
            if found.dtype is not want:
                self.fail(node, f"{name} holds {want}, the value assigned here is {found.dtype}",
                          f'write T.cast(value, "{want}"), or begin with {name} = '
                          f"T.{found.dtype}(...)")  # fmt: skip
            self.assigned.add(known)
            return BufferStore(known.buffer, found, (_ZERO,))
        frame = next((f for f in self.frames if (f.key, key) in self.names.carried), None)
        if frame is None:
            if known is not None and not self._is_own(key):
                self.fail(node, f"{name!r} is a variable around the macro, which the macro cannot "
                          "assign", "pass a buffer and store into it")  # fmt: skip
            return None
        if known is not None:
            what = "a variable bound once" if isinstance(known, Var) else describe(known)
            self.fail(node, f"{name!r} is {what} (a loop, an iterator, a let or a buffer) and is "
                      "assigned again in an inner scope", "assign to another name")  # fmt: skip
        return self._new(frame, name, key, self.typed(node, value, dtype), node)

    def _is_own(self, key: str) -> bool:
        """Whether the name is bound by the function or macro being read."""
        maps = self.scopes.maps
        return any(key in names for names in maps[: len(maps) - self.around_it])

    def bound_once(self, node: ast.AST, target: ast.expr) -> None:
        """Refuse to rebind a name of an outer scope."""
        name, key = self._target_name(target), self._key(target)
        if self.scopes.get(key) is None or key in self.scopes.maps[0]:
            return
        if any((frame.key, key) in self.names.carried for frame in self.frames):
            self.fail(node, f"{name!r} has a value in an outer scope, and only numbers are assigned"
                      " again", "assign to another name")  # fmt: skip

    def _new(
        self, frame: Frame, name: str, key: str, value: Expr, node: ast.AST | None = None
    ) -> BufferStore:
        if value.dtype.is_handle or value.dtype.lanes > 1:
            self.fail(node or ast.Pass(), f"{name} is {value.dtype} and is assigned again in "
                      "another scope", "keep it in T.alloc_buffer")  # fmt: skip
        scalar = Scalar(Buffer.of(name, (1,), value.dtype, "local"))
        frame.scalars.append(scalar)
        frame.names[key] = self.scalars[scalar.buffer] = scalar
        if node is not None:
            self._same_order(node, name, scalar)
        self.assigned.add(scalar)
        return BufferStore(scalar.buffer, value, (_ZERO,))

    def _same_order(self, node: ast.AST, name: str, scalar: Scalar) -> None:
        """Refuse a variable that carries a value between iterations that do not run in order."""
        for frame in reversed(self.frames):
            if scalar in frame.scalars:
                return
            if frame.side_by_side:
                self.fail(node, f"{name} belongs to a scope outside of this loop, whose iterations "
                          "run side by side", f"give {name} its first value inside the loop, or "
                          "use a serial loop")  # fmt: skip

    def name(self, node: ast.Name) -> Any:
        key = self._key(node)
        found = self.scopes.get(key)
        self._not_hidden(node)
        if found is None and key in self.names.local and key not in self.scopes:
            if (last := self.scopes.get(f"{key} last")) is not None:
                return last
            if key in self.names.ended:
                self.fail(node, f"{node.id!r} has no value here: its loop or `with` has ended",
                          f"keep it inside, under another name: last = {node.id}")  # fmt: skip
            self.fail(node, f"{node.id!r} has no value here: it is assigned later, or in a scope "
                      "that has ended", "give it a value before, in this scope")  # fmt: skip
        found = super().name(node) if found is None else found
        return self.read_scalar(node, node.id, found) if isinstance(found, Scalar) else found

    def keep_last(self, target: ast.expr, variables: Sequence[Var], loops: Loops) -> None:
        """Keep the last values of the variables of a loop that begins at constants and has an
        iteration; Python has them after the loop. Names with other values are left out."""
        names = target.elts if isinstance(target, ast.Tuple) else [target]
        step = 1 if loops.step is None else as_int(loops.step)
        if len(names) != len(variables):
            return
        for name, var, (low, size) in zip(names, variables, loops.ranges, strict=True):
            begin, count, key = as_int(low), as_int(size), self._key(name)
            if begin is not None and count is not None and step and key in self.names.once:
                self.scopes[f"{key} last"] = as_expr(begin + (count - 1) * step, var.dtype)

    def capture(self, node: ast.AST, value: Any, name: str) -> Any:
        return value if isinstance(value, Scalar) else super().capture(node, value, name)

    def _key(self, target: ast.expr) -> str:
        return self.names.key(target) if isinstance(target, ast.Name) else ""

    def _target_name(self, target: ast.expr) -> str:
        self._not_hidden(target)
        return super()._target_name(target)

    def _not_hidden(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name) and node in self.names.hidden:
            self.fail(node, f"in Python {node.id!r} is one variable of the "
                      "function, which a loop or a `with` overwrites; here it is two",
                      "give one of them another name")  # fmt: skip

    def read_scalar(self, node: ast.AST, name: str, scalar: Scalar) -> Expr:
        """The value of a variable that is assigned again."""
        if scalar not in self.assigned and not self.left:
            self.fail(node, f"{name!r} may be read before it is assigned",
                      "give it a value before the branch or the loop")  # fmt: skip
        return scalar.value

    @contextmanager
    def branch(self, certain: bool = False) -> Iterator[None]:
        """A context for statements that may not run: names they assign have no value after them."""
        before = set(self.assigned)
        yield
        if not certain or self.left:
            self.assigned = before
        self.left = False

    def kept(self, node: ast.AST, found: Any) -> tuple[list[Scoped], Any]:
        """The bound value, and lets for its parts that read memory.

        Python reads memory at the assignment, so the value must not change with later stores.
        """
        if isinstance(found, MetaVar):
            name = self.reads_scalar(found.value)
            if name is not None:
                self.fail(node, f"{name} is assigned again; T.meta_var would read the new value",
                          f"keep its present value: n = {name}")  # fmt: skip
            return [], found
        if type(found) in (tuple, list):
            parts = [self.kept(node, part) for part in found]
            lets = [let for inner, _ in parts for let in inner]
            return lets, type(found)(part for _, part in parts) if lets else found
        if isinstance(found, (Expr, Section)):
            found = self.lanes(node, found)
            if reads_memory(found):
                let = self.let(node, "kept", found, None, None)
                return [let], let.value
        return [], found

    def settled(self, loops: Loops) -> tuple[Loops, list[Scoped]]:
        """The loops, and lets for bounds that read variables, because Python reads bounds once.

        The same holds for memory that a loop with a run-time step reads, see `counted`.
        """
        lets: list[Scoped] = []
        counts = loops.step is not None and as_int(loops.step) is None

        def fixed(value: Expr) -> Expr:
            if self.reads_scalar(value) is None and not (counts and reads_memory(value)):
                return value
            let = self.let(ast.Pass(), "bound", value, None, None)
            lets.append(let)
            found: Expr = let.value
            return found

        ranges = [(fixed(low), fixed(size)) for low, size in loops.ranges]
        step = None if loops.step is None else fixed(loops.step)
        return replace(loops, ranges=ranges, step=step), lets

    def reads_scalar(self, value: Any) -> str | None:
        """The name of a variable that is assigned again and that `value` reads."""
        if isinstance(value, (tuple, list)):
            return next(filter(None, map(self.reads_scalar, value)), None)
        if isinstance(value, Section):
            return self.reads_scalar([e for r in value.ranges for e in (r.min, r.extent)])
        if not isinstance(value, Expr):
            return None
        for e in walk_exprs(value):
            if isinstance(e, BufferLoad) and e.buffer in self.scalars:
                return e.buffer.name
        return None

    def with_crossings(self, block: Block) -> Block:
        """The block with outer variables, which are buffers, added to its declared regions."""
        own = set(block.alloc_buffers)
        read: dict[Buffer, None] = {}
        written: dict[Buffer, None] = {}
        for part in walk(block):
            if isinstance(part, Allocate):
                own.add(part.buffer)
            elif isinstance(part, Block):
                own |= set(part.alloc_buffers)
            elif isinstance(part, BufferStore) and part.buffer in self.scalars:
                written[part.buffer] = None
            elif isinstance(part, BufferLoad) and part.buffer in self.scalars:
                read[part.buffer] = None
        reads = _more(block.reads, read, own)
        return evolve(block, reads=reads, writes=_more(block.writes, written, own))


def counted(var: Var, low: Expr, step: Expr, inner: Stmt) -> tuple[Var, Expr, None, Stmt]:
    """Variable, start, step and body of a loop by `step`, which may be negative when it runs, as a
    loop from zero by one."""
    counter = Var(var.name, var.dtype)
    value = Add(low, Mul(counter, step))
    return counter, as_expr(0, var.dtype), None, LetStmt(var, value, inner)


def own_break(nodes: Sequence[ast.stmt]) -> ast.Break | None:
    """The first `break` of a body that leaves the loop around it, not an inner loop."""
    for node in nodes:
        if isinstance(node, ast.Break):
            return node
        if not isinstance(node, (ast.For, ast.While)):
            found = own_break([*getattr(node, "body", ()), *getattr(node, "orelse", ())])
            if found is not None:
                return found
    return None


def _more(
    regions: tuple[BufferRegion, ...], found: dict[Buffer, None], own: set[Buffer]
) -> tuple[BufferRegion, ...]:
    known = own | {r.buffer for r in regions}
    return (*regions, *(b.whole() for b in found if b not in known))
