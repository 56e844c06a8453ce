"""Primitives and their instructions: one decorated function is the single source of both.

`@primitive` reads the signature of a function `(state, ...)` once. The signature says how arguments
are bound, which are handles (inputs) or constants (attributes), and whether there is a decision.
From this follow the trace entry, its JSON and its Python text.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np

from metasched.arith.indexmap import IndexMap
from metasched.errors import (
    MetaschedError,
    RegistryError,
    ScheduleError,
    TypeMismatchError,
    brief,
    shortened,
)
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr, Var
from metasched.ir.intern import quick
from metasched.ir.visit import substitute
from metasched.registry import Registry
from metasched.schedule.foreign_order import require_same_calls
from metasched.schedule.handles import RV, BlockRV, ExprRV, LoopRV
from metasched.schedule.state import Snapshot, State, expr_rvs

P = ParamSpec("P")
R = TypeVar("R")
_HANDLES = (BlockRV, LoopRV, ExprRV, Expr)
_SLIPS = (AssertionError, AttributeError, TypeError, ValueError)


Respelling = Callable[[dict[str, Any]], dict[str, Any]]
Ways = Callable[[State, Any], Iterator[tuple[Any, ...]]]
"""The arguments with which a primitive is tried on a loop or block (`schedule/ways.py`)."""


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a primitive.

    Attributes:
        block: whether the name of a block is accepted.
        free: whether any data are accepted.
        before: the value for stored steps that lack the argument.
    """

    name: str
    is_input: bool
    variadic: bool
    block: bool
    free: bool
    default: Any
    before: Any
    hint: Any

    def misfit(self, value: Any) -> str:
        """Describe what is wrong with the type of an argument; empty if the type is right."""
        accepts = _accepts(self.hint)
        for item in value if self.variadic else (value,):
            if not accepts(item):
                wanted = " or ".join(_kinds(self.hint))
                return f"{self.name} takes {wanted}, not {_shown(item)}"
        return ""


def _shown(value: Any) -> str:
    """An argument in an error; of a list of handles, which a step returned, how many."""
    kinds = {type(v).__name__ for v in value} if isinstance(value, (list, tuple)) else set()
    if len(kinds) == 1 and kinds <= {"BlockRV", "LoopRV"}:
        return f"a list of {len(value)} {kinds.pop()}; give one of them"
    return f"{type(value).__name__} {brief(value)[:60]}"


@dataclass(frozen=True, slots=True, eq=False)
class InstructionKind:
    """A primitive as an instruction.

    Attributes:
        pure: whether it changes nothing, so that it may be dropped if its results are unused.
        sampling: whether it draws a decision.
        drawn: the parameter of the decision; None if it draws no decision.
        many: whether it returns a list of handles, not a single handle.
        params: the parameters in order, without `decision`.
        variadic: whether a parameter takes all remaining positional arguments.
        takes_names: whether blocks may be given by name.
        respell: a function from keywords of older TVM versions to keywords of this signature.
        of_loop, of_block: the arguments with which the primitive is tried on a loop or block.
    """

    name: str
    fn: Callable[..., Any]
    pure: bool
    sampling: bool
    drawn: Param | None
    many: bool
    params: tuple[Param, ...]
    variadic: bool
    takes_names: bool
    respell: Respelling | None = None
    of_loop: Ways | None = None
    of_block: Ways | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its name: a primitive of a plug-in must be registered where it is read."""
        return primitive_of, (self.name,)

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        """Arguments of a call in the order of `params`, and the decision (None if not given).

        Raises TypeError, with the words of Python's own errors, if they do not fit the signature.
        """
        out: list[Any] = []
        position, left = 0, dict(kwargs)
        if left and self.respell is not None:
            left = self.respell(left)
        for param in self.params:
            if param.variadic:
                out.append(tuple(args[position:]))
                position = len(args)
            elif position < len(args):
                out.append(args[position])
                position += 1
                if param.name in left:
                    raise TypeError(f"{self.name}() got {param.name!r} twice")
            elif param.name in left:
                out.append(left.pop(param.name))
            elif param.default is not inspect.Parameter.empty:
                out.append(param.default)
            else:
                raise TypeError(f"{self.name}() misses the argument {param.name!r}")
        decision = left.pop("decision", None) if self.sampling else None
        if self.sampling and position < len(args):
            decision, position = args[position], position + 1
        if position < len(args):
            raise TypeError(f"{self.name}() takes {position} arguments, {len(args)} given")
        if left:
            raise TypeError(f"{self.name}() has no argument {', '.join(map(repr, left))}")
        return tuple(out), decision

    def plain(self, state: State, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as a trace stores them: NumPy numbers become Python's, tuples lists.

        Raises ScheduleError, which names the argument, for a flag that is no bool, for data that a
        trace cannot hold, and for handles that this schedule does not know.
        """
        state.primitive = self.name
        out: list[Any] = []
        for param, given in zip(self.params, values, strict=True):
            if (given is None or type(given) is str) and param.hint is not bool:
                out.append(given)
                continue
            value = tuple(map(_stored, given)) if param.variadic else _stored(given)
            flag = param.hint is bool or (param.hint is int and isinstance(value, bool))
            wrong = param.misfit(value) if flag else ""
            if wrong := wrong or ("" if param.free else _strange(param.name, value)):
                raise state.error("wrong-argument", wrong)
            for rv in handles_in(value):
                state.value(rv)
            out.append(value)
        return tuple(out)

    def require_types(self, state: State, values: tuple[Any, ...]) -> None:
        """Require that each argument has its parameter's type.

        The check runs after the primitive has accepted the arguments, because errors of the
        primitive say more.

        Raises ScheduleError.
        """
        for param, value in zip(self.params, values, strict=True):
            if wrong := param.misfit(value):
                raise state.error("wrong-argument", wrong)

    def plain_decision(self, state: State, decision: Any) -> Any:
        """The decision as a trace stores it; None, for which the step draws a decision, stays None.

        Raises ScheduleError for a decision of the wrong type.
        """
        if decision is None or self.drawn is None:
            return decision
        value = _stored(decision)
        if wrong := self.drawn.misfit(value) or _strange("decision", value):
            raise state.error("wrong-argument", wrong)
        return value

    def call(
        self, state: State, values: tuple[Any, ...], decision: Any, saved: Snapshot | None
    ) -> Any:
        """Run the primitive on bound arguments.

        If the primitive raises an error, `state` is restored from `saved`, if given.
        """
        state.primitive, state.drawn, state.canonical = self.name, None, None
        state.same_order = True
        args: Sequence[Any] = values
        kwargs: dict[str, Any] = {"decision": decision} if self.sampling else {}
        if self.variadic:
            for param, value in zip(self.params, values, strict=True):
                if param.variadic:
                    args = value
                else:
                    kwargs[param.name] = value
        try:
            result = self.fn(state, *args, **kwargs)
            if saved is not None and state.calls_out:
                require_same_calls(state, saved)
            return result
        except ScheduleError as error:
            error.primitive = error.primitive or self.name
            if saved is not None:
                state.restore(saved)
            raise
        except BaseException as error:
            if saved is not None:
                state.restore(saved)
            # raised by an analysis, such as one of regions behind a pointer
            if type(error) is MetaschedError:
                raise state.error("not-analysable", str(error)) from error
            if isinstance(error, TypeMismatchError):
                raise state.error("wrong-argument", f"an argument does not fit: {error}") from error
            if isinstance(error, _SLIPS):  # checked after the error, so that valid calls are fast
                for param, value in zip(self.params, values, strict=True):
                    if wrong := param.misfit(value):
                        raise state.error("wrong-argument", wrong) from error
            raise


@quick
class Entry:
    """One step of a trace.

    Attributes:
        kind: the primitive.
        values: the arguments in the order of `kind.params`; handles are kept as handles.
        outputs: the handles that the step returned.
        decision: the decision that was drawn; None if the step does not sample.
        domain: the decisions that could have been drawn, as plain data.
    """

    kind: InstructionKind
    values: tuple[Any, ...]
    outputs: tuple[RV, ...]
    decision: Any = None
    domain: Any = None

    @property
    def inputs(self) -> dict[str, Any]:
        """The arguments that may hold handles."""
        pairs = zip(self.kind.params, self.values, strict=True)
        return {p.name: v for p, v in pairs if p.is_input}

    @property
    def attrs(self) -> dict[str, Any]:
        """The arguments that are constants."""
        pairs = zip(self.kind.params, self.values, strict=True)
        return {p.name: v for p, v in pairs if not p.is_input}

    def uses(self) -> Iterator[RV]:
        """The handles among the arguments, however deeply nested."""
        return handles_in(self.values)

    def decided(self, decision: Any, domain: Any) -> Entry:
        """This step with another decision and its domain."""
        return Entry(self.kind, self.values, self.outputs, decision, domain)


def handles_in(value: Any) -> Iterator[RV]:
    """The handles inside an argument: in lists, dictionaries, expressions and index maps too."""
    if isinstance(value, (BlockRV, LoopRV, ExprRV)):
        yield value
    elif isinstance(value, Expr):
        yield from expr_rvs(value)
    elif isinstance(value, IndexMap):
        yield from handles_in(value.outputs)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from handles_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from handles_in(item)


_PLAIN = (int, float, str, bool, type(None))
_STORED = (*_PLAIN, Expr, BlockRV, LoopRV, IndexMap, DType, Buffer)


def _stored(value: Any) -> Any:
    """A value as a trace stores it: NumPy numbers become Python's, tuples lists."""
    if type(value) in _PLAIN or isinstance(value, Expr):
        return value
    if isinstance(value, (list, tuple)):
        return [_stored(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _stored(v) for k, v in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _strange(name: str, value: Any) -> str:
    """Describe the part of an argument that a trace cannot hold; empty if there is none."""
    if isinstance(value, _STORED) or callable(value):
        return ""
    if isinstance(value, (list, tuple)):
        return next(filter(None, (_strange(name, v) for v in value)), "")
    if isinstance(value, dict):
        odd = next((k for k in value if not isinstance(k, str)), None)
        if odd is not None:
            return f"{name} has the key {brief(odd)[:60]}, which is no text"
        return next(filter(None, (_strange(name, v) for v in value.values())), "")
    return f"{name} holds {type(value).__name__} {brief(value)[:60]}, which no trace holds"


def map_handles(value: Any, fn: Callable[[RV], Any]) -> Any:
    """The argument with each handle replaced; expressions are rebuilt over the new handles."""
    if isinstance(value, (BlockRV, LoopRV, ExprRV)):
        return fn(value)
    if isinstance(value, Expr):
        from_to: dict[Var, Expr] = {rv: fn(rv) for rv in expr_rvs(value)}
        return substitute(value, from_to) if from_to else value
    if isinstance(value, IndexMap) and {*handles_in(value)}:
        return IndexMap(value.inputs, map_handles(value.outputs, fn))
    if isinstance(value, (list, tuple)):
        return type(value)(map_handles(v, fn) for v in value)
    if isinstance(value, dict):
        return {k: map_handles(v, fn) for k, v in value.items()}
    return value


PRIMITIVES: Registry[InstructionKind] = Registry("primitive", InstructionKind)


def primitive_of(name: str) -> InstructionKind:
    """The primitive of a name; MetaschedError if none is registered."""
    return PRIMITIVES.get(name)


OWN_NAMES = frozenset(
    "can_decompose_padding copy execute footprint fork_seed func get get_sblock has_block "
    "is_output_block legal mod refused remove_rv script seed show state take_over trace undo "
    "work_on".split()
)
"""The other attributes of a schedule, which no primitive may have as name."""


def primitive(
    *,
    pure: bool = False,
    respell: Respelling | None = None,
    before: Mapping[str, Any] = MappingProxyType({}),
    of_loop: Ways | None = None,
    of_block: Ways | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a function `(state, ...)` as a primitive under its own name.

    Arguments annotated with handle types (or expressions, or containers of these) are inputs, all
    others attributes; a parameter called `decision` makes it a sampling step.

    Args:
        pure: whether it changes nothing, so that it may be dropped if its results are unused.
        respell: a function from keywords of older TVM versions to keywords of the function.
        before: for arguments whose default has changed, the value for stored steps that lack the
            argument. So stored traces keep their meaning.
        of_loop, of_block: the arguments with which `Schedule.legal` and the random machine of the
            tests try the primitive on a loop or block (`schedule/ways.py`); None: do not try.

    Raises RegistryError when the name is taken, by a primitive or another method of schedules.
    """

    def register(fn: Callable[P, R]) -> Callable[P, R]:
        name = fn.__name__
        if name in OWN_NAMES or name.startswith("_"):
            raise RegistryError(f"primitive {name!r} cannot be a method of schedules: rename it")
        hints = typing.get_type_hints(fn)
        params: list[Param] = []
        drawn = None
        for position, param in enumerate(inspect.signature(fn).parameters.values()):
            if position == 0:
                continue
            hint = hints[param.name]
            is_input = _mentions(hint, _HANDLES)
            block = _mentions(hint, (BlockRV,)) and _mentions(hint, (str,))
            variadic = param.kind is inspect.Parameter.VAR_POSITIONAL
            free = _mentions(hint, (Any,))
            default = param.default
            old = before.get(param.name, default)
            made = Param(param.name, is_input, variadic, block, free, default, old, hint)
            if param.name == "decision":
                drawn = made
            else:
                params.append(made)
        many = typing.get_origin(hints.get("return")) is list
        kind = InstructionKind(
            name, fn, pure or drawn is not None, drawn is not None, drawn, many, tuple(params),
            any(p.variadic for p in params), any(p.block for p in params),
            respell, of_loop, of_block,
        )  # fmt: skip
        PRIMITIVES.register(name, kind)
        return fn

    return register


class Recorder(Protocol):
    """An object that runs primitives and records them: a schedule."""

    def _run(self, kind: InstructionKind, args: Any, kwargs: dict[str, Any]) -> Any: ...


def recorded(fn: Callable[Concatenate[State, P], R]) -> Callable[Concatenate[Recorder, P], R]:
    """The method of a schedule that runs a primitive and records it."""
    kind = PRIMITIVES.get(fn.__name__)

    @functools.wraps(fn)
    def method(self: Recorder, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return self._run(kind, args, kwargs)  # type: ignore[no-any-return]
        except MetaschedError as error:
            raise shortened(error) from error.__cause__

    return method


def _mentions(hint: Any, wanted: tuple[type, ...]) -> bool:
    if isinstance(hint, type) and hint in wanted:
        return True
    return any(_mentions(arg, wanted) for arg in typing.get_args(hint))


@functools.cache
def _accepts(hint: Any) -> Callable[[Any], bool]:
    """Whether a value fits an annotation, as a function of the value; it gives True if this cannot
    be decided."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        several = [_accepts(arg) for arg in args]
        return lambda value: any(accepts(value) for accepts in several)
    if origin is typing.Literal:
        return lambda value: value in args
    if origin is tuple and args[-1] is not ...:  # each item has a type of its own
        each = [_accepts(arg) for arg in args]
        return lambda value: (
            isinstance(value, (list, tuple))
            and len(value) == len(each)
            and all(accepts(v) for accepts, v in zip(each, value, strict=True))
        )
    if origin is Callable:
        return callable
    if isinstance(origin, type) and issubclass(origin, Sequence):
        item = _accepts(args[0])
        return lambda value: isinstance(value, (list, tuple)) and all(map(item, value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return lambda value: isinstance(value, Mapping)
    if hint is int or hint is float:
        number = Integral if hint is int else Real
        return lambda value: isinstance(value, number) and not isinstance(value, bool)
    return lambda value: hint is Any or not isinstance(hint, type) or isinstance(value, hint)


def _kinds(hint: Any) -> list[str]:
    """The alternatives of an annotation, by name."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [kind for arg in typing.get_args(hint) for kind in _kinds(arg)]
    if hint is types.NoneType:
        return ["None"]
    return [hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)]


def flat_outputs(result: Any) -> tuple[RV, ...]:
    """The handles a primitive returned, in order."""
    if type(result) is list:
        return tuple(result)
    return () if result is None else tuple(handles_in(result))


def unfit_outputs(outputs: tuple[RV, ...], before: Snapshot) -> str:
    """What is wrong with the results of a primitive, which no trace could name; "" if nothing."""
    if len({*outputs}) == len(outputs) and not any(rv in before.table for rv in outputs):
        return ""
    return (
        "returns a handle twice, or one that was there before; a trace names each result anew: "
        "return state.new_loop(...), state.new_block(...), state.new_value(...) or None"
    )
