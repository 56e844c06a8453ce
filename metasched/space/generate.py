"""From modules to design spaces: every block is offered to every module, alternatives multiply.

Each module visits all blocks, consumers first (the reverse of post-order) and inner blocks before
outer ones. So a module sees the blocks that earlier modules made. Each design space is a trace
whose sampling steps are open: a replay with new decisions draws one candidate (after MetaSchedule's
PostOrderApply).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from metasched.analysis.block import AUTO_TENSORIZE
from metasched.errors import MetaschedError, PluginError, ScheduleError, brief, warn
from metasched.foreign import ANYTHING, apart, failure
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.stmt import BlockRealize, BlockToken
from metasched.ir.visit import blocks_of
from metasched.registry import Registry
from metasched.schedule.instruction import Entry
from metasched.schedule.plugin import Postproc, Weighted
from metasched.schedule.rng import derive_seed
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.space.module import RULE, Module
from metasched.space.reasons import reasons
from metasched.target import Target
from metasched.watch import is_built_in

MAX_SPACES, MIN_SPACES, NESTS = 32, 8, 256
"""The most design spaces of one program; of more alternatives, evenly spread ones are kept,
first those where a module does the same with all blocks.

A program of many blocks has fewer, down to `MIN_SPACES`: all spaces together hold at most `NESTS`
blocks then, as the time for a space grows with its blocks.
"""


Source: TypeAlias = "PrimFunc | IRModule | Mapping[str, PrimFunc]"
Picked: TypeAlias = tuple[Schedule, tuple[int, ...]]
"""A schedule, and which alternative a module took on each block where it offered several."""


@dataclass(frozen=True, slots=True)
class ModuleFailure:
    """A module that failed on a block; the block is scheduled without the module.

    Attributes:
        module, block: the names of the module and of the block.
        refused: a schedule step was refused (ScheduleError); otherwise the module is broken.
        message: the exception's message.
        lost, kept: how many alternatives were given up because a step was refused, and how many
            were kept.
    """

    module: str
    block: str
    refused: bool
    message: str
    lost: int = 0
    kept: int = 0

    @property
    def text(self) -> str:
        """A sentence about the refused alternatives, for the log of a run."""
        if not self.kept:
            return f"{self.module} leaves block {self.block} alone: {self.message}"
        return (
            f"{self.module} gives up {self.lost} of {self.lost + self.kept} alternatives on block "
            f"{self.block}: {self.message}"
        )


@dataclass(frozen=True)
class SpaceGenerator:
    """Generates the design spaces of a program by modules; holds the postprocs and mutators.

    Attributes:
        modules: tried on every block, in this order.
        postprocs: run on every candidate after its decisions, in this order.
        mutators: the mutators with their weights.
        failures: filled by `generate`: the modules that failed, and where.
        refusals: filled by `generate`: the modules that gave up some or all of their alternatives
            on a block because a step was refused, with the first refusal.
        notes: filled by `generate`: for each block, what no design space gives it (tiles, a
            parallel loop, vectors), with the reason.
    """

    modules: tuple[Module, ...]
    postprocs: tuple[Postproc, ...] = ()
    mutators: Weighted = ()
    failures: list[ModuleFailure] = field(default_factory=list, compare=False, repr=False)
    refusals: list[ModuleFailure] = field(default_factory=list, compare=False, repr=False)
    notes: list[str] = field(default_factory=list, compare=False, repr=False)

    def generate(self, source: Source, target: Target | None = None, seed: int = 0) -> list[Trace]:
        """The design spaces of a program as simplified traces; never empty.

        `target` is ignored: the modules were made for a target.
        """
        self.failures.clear()
        self.refusals.clear()
        written = Schedule(source, seed=seed)
        found = [written]
        for module in self.modules:
            # On a busy machine a built-in module may take seconds, which is no fault of it.
            with apart(f"schedule module {module.name}", patient=is_built_in(module)):
                most = _most(found[-1])  # the last alternative is divided the most
                share = -(-most // len(found))  # more would be thinned out below
                parts = [self._visit(module, sch, share) for sch in found]
                found = [sch for sch, _ in _alike([a for part in parts for a in part], most)]
        self.notes[:] = reasons(written, found)
        return _distinct(found)

    def _visit(self, module: Module, sch: Schedule, most: int) -> list[Picked]:
        """Run a module on every block, the last consumer first, the root last.

        After each block, at most `most` of the alternatives go on.
        """
        found: list[Picked] = [(sch, ())]
        for name in list(sch.mod.functions):
            for token in visit_order(sch.mod[name].body):
                grown: list[Picked] = []
                for before, picks in found:
                    made = self._apply(module, before, name, token)
                    several = len(made) > 1
                    grown += [(a, (*picks, n) if several else picks) for n, a in enumerate(made)]
                found = _alike(grown, most)
        return found

    def _apply(self, module: Module, sch: Schedule, func: str, token: BlockToken) -> list[Schedule]:
        realize = sch.state.index.blocks.get(token)
        if realize is None or _within_instruction(sch, realize):  # None: inlined before
            return [sch]
        if RULE in realize.block.annotations and not getattr(module, "takes_rules", False):
            return [sch]
        several = len(sch.mod.functions) > 1
        attempt = sch.copy()
        attempt.refused = []
        try:
            block = attempt.get_block(realize.block.name, func if several else None)
            found = _checked(module(attempt, block))
            if attempt.refused:
                kept = sum(one.mod is not sch.mod for one in found)
                self._refusal(module, realize, attempt.refused, kept)
            return found
        except ANYTHING as error:
            self._note(module, realize, error)
            return [sch]
        finally:
            attempt.refused.clear()  # the tracebacks of errors hold schedules

    def _refusal(
        self, module: Module, realize: BlockRealize, errors: Sequence[ScheduleError], kept: int
    ) -> None:
        """Note a module that gave up alternatives because steps were refused, once for a block."""
        name, block = module.name, realize.block.name
        known = any((note.module, note.block) == (name, block) for note in self.refusals)
        if not known:
            first = errors[0]
            reason = f"{first.primitive}: {first.message} [{first.reason}]"
            self.refusals.append(ModuleFailure(name, block, True, reason, len(errors), kept))

    def _note(self, module: Module, realize: BlockRealize, error: BaseException) -> None:
        refused = isinstance(error, ScheduleError)
        text = error.message if isinstance(error, ScheduleError) else failure(error)
        note = ModuleFailure(module.name, realize.block.name, refused, text)
        if note not in self.failures:
            self.failures.append(note)
            warn(
                f"schedule module {module.name} failed on block {realize.block.name} and is left "
                f"out there: {note.message}"
            )


@dataclass(frozen=True)
class ScheduleFn:
    """A user's function as a space: it edits the schedule in place (and returns None) or returns
    one schedule or several alternatives.

    Attributes:
        fn: the function of a schedule.
        postprocs, mutators: as for `SpaceGenerator`.
    """

    fn: Callable[[Schedule], Any]
    postprocs: tuple[Postproc, ...] = ()
    mutators: Weighted = ()

    def generate(self, source: Source, target: Target | None = None, seed: int = 0) -> list[Trace]:
        """The design spaces that the function makes; its errors are raised unchanged."""
        sch = Schedule(source, seed=seed)
        made = self.fn(sch)
        if made is None:
            made = [sch]
        return _distinct(_checked([made] if isinstance(made, Schedule) else made))


@dataclass(frozen=True)
class Union:
    """The design spaces of several generators; the first generator gives the postprocs and
    mutators."""

    generators: tuple[Space, ...]

    @property
    def postprocs(self) -> tuple[Postproc, ...]:
        return self.generators[0].postprocs

    @property
    def mutators(self) -> Weighted:
        return self.generators[0].mutators

    @property
    def refusals(self) -> tuple[ModuleFailure, ...]:
        """The refusals of all generators."""
        return tuple(one for g in self._explaining for one in g.refusals)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of all generators."""
        return tuple(dict.fromkeys(note for g in self._explaining for note in g.notes))

    @property
    def _explaining(self) -> tuple[Explains, ...]:
        return tuple(g for g in self.generators if isinstance(g, Explains))

    def generate(self, source: Source, target: Target | None = None, seed: int = 0) -> list[Trace]:
        """All design spaces, in the order of the generators."""
        parts = enumerate(self.generators)
        return [t for i, g in parts for t in g.generate(source, target, derive_seed(seed, i))]


@runtime_checkable
class Space(Protocol):
    """The protocol of search spaces: `SpaceGenerator`, `ScheduleFn`, `Union`, or a user's class."""

    @property
    def postprocs(self) -> tuple[Postproc, ...]:
        """Run on every candidate after its decisions, in this order."""

    @property
    def mutators(self) -> Weighted:
        """Moves from one decision vector to another, with their weights."""

    def generate(self, source: Source, target: Target | None = None, seed: int = 0) -> list[Trace]:
        """The design spaces of a program: traces whose decisions are open, at least one."""


@runtime_checkable
class Explains(Protocol):
    """A space that tells, after `generate`, what it lacks; a run prints it."""

    @property
    def refusals(self) -> Sequence[ModuleFailure]:
        """The modules that gave up alternatives because a schedule step was refused."""

    @property
    def notes(self) -> Sequence[str]:
        """What no design space gives a block, with the reason."""


SEARCH_SPACES: Registry[Callable[[Target], Space]] = Registry("search space", Callable)
"""Factories that take the target, by name."""

Item = TypeVar("Item")
Factory = TypeVar("Factory", bound="Callable[[Target], Space]")


def search_space(name: str, *, override: bool = False) -> Callable[[Factory], Factory]:
    """Register a search space: a class or function `(target) -> Space`.

    Args:
        name: what `ms.tune(space=...)` and `metasched tune --space` call it.
        override: replace a search space of that name.

    Raises RegistryError when the name is taken, TypeError when the object is not callable.
    """
    signature = "(target) -> Space"
    return cast(
        "Callable[[Factory], Factory]", SEARCH_SPACES.decorator(name, signature, None, override)
    )


def design_spaces(space: Space, func: PrimFunc, target: Target, seed: int) -> list[Trace]:
    """The design spaces of a program. An error of metasched's own is raised unchanged.

    Raises PluginError when the space raises anything else, or gives no list of traces.
    """
    what = f"the space {type(space).__name__}"
    try:
        found: Any = space.generate(func, target, seed)
    except MetaschedError:
        raise
    except ANYTHING as error:
        raise PluginError(f"{what} raised {failure(error)}") from error
    if not isinstance(found, list) or not all(isinstance(trace, Trace) for trace in found):
        raise PluginError(f"{what} must generate a list of traces, not {brief(found)}")
    if not found:
        raise PluginError(f"{what} generated no design space; the trace of no step is one")
    return found


def visit_order(body: Any) -> list[BlockToken]:
    """The tokens of all blocks below `body`: last in the program first, inner before outer."""
    tops = [body] if isinstance(body, BlockRealize) else list(blocks_of(body))
    return [token for top in tops for token in _order_below(top)]


def _order_below(realize: BlockRealize) -> list[BlockToken]:
    below = [t for child in reversed(_children(realize)) for t in _order_below(child)]
    return [*below, realize.block.token]


def _within_instruction(sch: Schedule, realize: BlockRealize) -> bool:
    """Whether a block stands inside a block that a tensor instruction will replace."""
    around = (node for node in sch.state.ancestors(realize) if isinstance(node, BlockRealize))
    return any(AUTO_TENSORIZE in node.block.annotations for node in around)


def _children(realize: BlockRealize) -> list[BlockRealize]:
    """The blocks directly below a block, in program order."""
    found: list[BlockRealize] = []
    stack = list(reversed(realize.block.stmts))
    while stack:
        node = stack.pop()
        if isinstance(node, BlockRealize):
            found.append(node)
        else:
            stack.extend(reversed(node.stmts))
    return found


def _checked(made: Any) -> list[Schedule]:
    if not isinstance(made, Sequence) or not all(isinstance(s, Schedule) for s in made):
        raise MetaschedError(f"it must return a list of schedules, not {type(made).__name__}")
    if not made:
        raise MetaschedError("it returned no schedule; return [sch] to leave a block alone")
    return list(made)


def thinned(found: Sequence[Item], most: int = MAX_SPACES) -> list[Item]:
    """At most `most` of the alternatives found, spread evenly."""
    if len(found) <= most:
        return list(found)
    return [found[i * len(found) // most] for i in range(most)]


def _alike(found: Sequence[Picked], most: int) -> list[Picked]:
    """At most `most` of the alternatives found: first where a module does the same with all blocks,
    as with the matrix products of a network, then others, spread evenly."""
    alike = [n for n, (_, picks) in enumerate(found) if len(set(picks)) < 2]
    others = [n for n, (_, picks) in enumerate(found) if len(set(picks)) > 1]
    kept = thinned(alike, most)
    return [found[n] for n in sorted([*kept, *thinned(others, most - len(kept))])]


def _most(sch: Schedule) -> int:
    """The most design spaces of a program."""
    blocks = sum(len(visit_order(func.body)) for func in sch.mod.functions.values())
    return max(MIN_SPACES, min(MAX_SPACES, NESTS // max(1, blocks)))


def _distinct(found: Sequence[Schedule]) -> list[Trace]:
    """The simplified traces of schedules, each once."""
    traces: dict[str, Trace] = {}
    for sch in found:
        trace = sch.trace.simplified()
        traces.setdefault(_shape(trace), trace)
    return list(traces.values())


def _shape(trace: Trace) -> str:
    """The steps of a trace without their decisions, as text."""
    return Trace(tuple(Entry(e.kind, e.values, e.outputs) for e in trace.entries)).to_json()
