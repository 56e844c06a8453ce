"""Schedule: transforms a module step by step and records the steps as a trace."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, overload

from metasched import config
from metasched.analysis.begun import begin_reductions
from metasched.analysis.block import is_output
from metasched.analysis.closing import close_blocks
from metasched.arith.outside import require_well_formed
from metasched.errors import PluginError, ScheduleError, TraceError, brief
from metasched.ir.expr import Expr
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.stmt import Block, For
from metasched.ir.visit import fresh_copy, map_body
from metasched.schedule.constraint import solve
from metasched.schedule.handles import RV, BlockRV, ExprRV, LoopRV
from metasched.schedule.instruction import (
    PRIMITIVES,
    Entry,
    InstructionKind,
    flat_outputs,
    recorded,
    unfit_outputs,
)
from metasched.schedule.legal import footprint, legal
from metasched.schedule.primitives import Methods
from metasched.schedule.primitives.decompose_padding import can_decompose_padding
from metasched.schedule.primitives.query import get_block
from metasched.schedule.repeated import numbered_blocks
from metasched.schedule.state import Snapshot, State
from metasched.schedule.trace import Trace
from metasched.tvm_names import SCHEDULE, SCHEDULE_WORDS, answered, hint

_RETRIES = 4  # replayed solutions of a constraint before it counts as unsatisfiable


def _apart(module: IRModule) -> IRModule:
    """`module` with a copy of each function that occurs twice, because handles are identities."""
    bodies = set()
    for name, func in module.items():
        if func.body in bodies:
            module = module.with_func(name, map_body(func, fresh_copy))
        bodies.add(func.body)
    return module


class Schedule(Methods):
    """A program being transformed.

    Args:
        mod: a PrimFunc (kept under the name "main") or an IRModule.
        seed: seed of the random stream of sampling steps; None takes one from the system.
        check: verify the module after every step (default: the setting `check`).
        debug_mask: TVM's name for `check`: "none", "all" or bits; any value but "none" and 0 turns
            `check` on.

    Attributes:
        trace: the steps so far, a value that can be kept, edited and replayed.
        state: module, index and handle table, for those who write primitives.
        refused: the refusals for which a schedule module gave up an alternative, shared by copies.

    Raises:
        VerifyError: `mod` is no well-formed module, or an access is certainly outside its buffer.
    """

    @answered(SCHEDULE_WORDS)
    def __init__(
        self,
        mod: PrimFunc | IRModule | Mapping[str, PrimFunc],
        *,
        seed: int | None = None,
        check: bool | None = None,
        debug_mask: str | int = "none",
    ) -> None:
        module = _apart(IRModule.of(mod))
        for name, func in module.items():
            require_well_formed(func)
            module = module.with_func(name, numbered_blocks(begin_reductions(close_blocks(func))))
        if seed is not None and not isinstance(seed, Integral):
            raise ScheduleError(
                "Schedule", "bad-seed", f"seed is {brief(seed)}, not an integer",
                hint="give an integer, or None for a new seed",
            )  # fmt: skip
        self.seed = secrets.randbits(62) if seed is None else int(seed)
        if debug_mask not in ("none", "all") and not isinstance(debug_mask, int):
            raise ScheduleError(
                "Schedule", "bad-mask",
                f'debug_mask is {brief(debug_mask)}, not "none", "all" or bits',
                hint="give the name or the number of the checks",
            )  # fmt: skip
        if check is None:
            check = debug_mask not in ("none", 0) or bool(config.load().check)
        self.state = State(module, self.seed, check=check)
        self.trace = Trace()
        self.refused: list[ScheduleError] = []
        self._history: list[Snapshot] = []

    # -- the program ---------------------------------------------------------------------------

    if not TYPE_CHECKING:  # type checkers must still refuse unknown names

        def __getattr__(self, name: str) -> Any:
            """A primitive of a plug-in, as a method."""
            if not name.startswith("_") and name in PRIMITIVES:
                return functools.partial(recorded(PRIMITIVES.get(name).fn), self)
            known = () if name.startswith("_") else dir(self)
            raise AttributeError(f"a schedule has no {name!r}{hint(name, SCHEDULE, known)}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *PRIMITIVES.names()})

    @property
    def mod(self) -> IRModule:
        """The module as it stands."""
        return self.state.mod

    @property
    def func(self) -> PrimFunc:
        """The function worked on."""
        return self.state.mod[self.state.working_func()]

    def script(self) -> str:
        """The module as script text."""
        return self.mod.script()

    def show(self) -> None:
        """Print the module and the trace."""
        print(f"{self.mod}\n{self.trace.as_python()}")  # noqa: T201  showing is what the user asked for

    def work_on(self, func_name: str) -> None:
        """Look up block names in `func_name` from now on.

        The call is not recorded, because recorded steps refer to blocks by handles.
        """
        if func_name not in self.mod.functions:
            known = ", ".join(self.mod.functions)
            self.state.primitive = "work_on"
            raise self.state.error(
                "no-function", f"no function {brief(func_name)}; there are {known}"
            )
        self.state.func_name = func_name

    @overload
    def get(self, rv: BlockRV) -> Block: ...
    @overload
    def get(self, rv: LoopRV) -> For: ...
    @overload
    def get(self, rv: ExprRV | Expr | int) -> int: ...
    def get(self, rv: Any) -> Any:
        """What a handle stands for: the Block, the For, or the integer of a sampled value."""
        self.state.primitive = "get"
        if isinstance(rv, BlockRV):
            return self.state.block(rv).block
        if isinstance(rv, LoopRV):
            return self.state.loop(rv)
        if isinstance(rv, str):
            text = f"get takes a handle, not the name {brief(rv)}"
            raise self.state.error("not-a-handle", text, hint=f"write sch.get_block({rv!r})")
        number = self.state.integer(rv)
        if number is None:
            raise self.state.error("not-a-number", "the expression does not reduce to a number")
        return number

    def remove_rv(self, rv: RV) -> None:
        """Forget a handle; using it afterwards is an error."""
        self.state.writable_table().pop(rv, None)

    def can_decompose_padding(self, block: BlockRV, loop: LoopRV) -> bool:
        """Whether `decompose_padding(block, loop)` would be accepted (not recorded)."""
        return can_decompose_padding(self.state, block, loop)

    # -- questions -----------------------------------------------------------------------------

    def legal(self, block_or_loop: BlockRV | LoopRV | str) -> dict[str, str | None]:
        """For each primitive, None if it applies to the block or loop, or else why it does not.

        Each primitive is tried with plain arguments on a copy. A block may be given by name.
        """
        state = self.state.copy_for_trial()
        if isinstance(block_or_loop, str):
            return legal(state, get_block(state, block_or_loop))
        return legal(state, block_or_loop)

    def footprint(self, loop: LoopRV) -> dict[str, int | None]:
        """Bytes of each buffer touched below `loop` while it runs once; None: no constant bound."""
        return footprint(self.state, loop)

    def has_block(self, name: str, func_name: str | None = None) -> bool:
        """Whether the function worked on (or `func_name`) has a block of that name."""
        func = func_name or self.state.working_func()
        found = self.state.index.by_name.get(name, [])
        return any(self.state.func_of(r)[0] == func for r in found)

    def is_output_block(self, block: BlockRV | str) -> bool:
        """Whether the block writes a buffer that the block around it does not allocate."""
        state = self.state.copy_for_trial()
        state.primitive = "is_output_block"
        realize = state.block(get_block(state, block) if isinstance(block, str) else block)
        around = state.scope_block(realize)
        return around is not None and is_output(around, realize.block)

    # -- copies --------------------------------------------------------------------------------

    def copy(self) -> Schedule:
        """An independent schedule in which the same handles resolve; the seed is forked."""
        other = Schedule.__new__(Schedule)
        other.state = self.state.copy()
        other.seed = other.state.rng.state
        other.trace = self.trace
        other.refused = self.refused
        other._history = list(self._history)
        return other

    def fork_seed(self) -> int:
        """A seed for an independent random stream."""
        return self.state.rng.fork()

    def undo(self) -> None:
        """Take the last step back: module, trace and handles are as before it."""
        if not self._history:
            raise ScheduleError(
                "undo", "nothing-to-undo", "the schedule has no step to undo",
                hint="each accepted step can be undone once",
            )  # fmt: skip
        rng = self.state.rng.state
        self.state.restore(self._history.pop())
        self.state.rng.state = rng
        self.trace = Trace(self.trace.entries[:-1])

    # -- running steps -------------------------------------------------------------------------

    def _run(self, kind: InstructionKind, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a primitive as called by the user, and record it."""
        values, decision = kind.bind(args, kwargs)
        before = (self.trace, len(self._history), self.state.snapshot())
        try:
            values = kind.plain(self.state, self._blocks_by_name(kind, values))
            decision = kind.plain_decision(self.state, decision)
            self.state.mode = "live"
            if kind.name == "require":
                return self._require(kind, values)
            result = self._step(kind, values, decision, None)
            kind.require_types(self.state, values)
            return result
        except BaseException:
            self.trace = before[0]
            del self._history[before[1] :]
            self.state.restore(before[2])
            raise

    def execute(self, entry: Entry, mode: str) -> None:
        """Run one entry of a trace; `mode` says how its decision is treated (`sample.decide`)."""
        self.state.mode = mode
        decision = None if mode == "fresh" else entry.decision
        if entry.kind.name == "require" and mode == "fresh":
            self._require(entry.kind, entry.values)
            return
        self._step(entry.kind, entry.values, decision, entry)

    def take_over(self, steps: Sequence[Entry], made: Snapshot) -> None:
        """Append steps without sampling, and their result from another schedule.

        Args:
            steps: steps that draw nothing.
            made: the result of these steps on the same module with the same arguments.

        Earlier steps can no longer be undone.
        """
        self._history.clear()
        self.state.take_place(made)
        outputs = {rv: made.table[rv] for entry in steps for rv in entry.outputs}
        self.state.writable_table().update(outputs)
        self.trace = Trace((*self.trace.entries, *steps))

    def _step(
        self, kind: InstructionKind, values: tuple[Any, ...], decision: Any, entry: Entry | None
    ) -> Any:
        state = self.state
        saved = None if state.skip_legality_checks else state.snapshot()
        result = kind.call(state, values, decision, saved)
        outputs = flat_outputs(result)
        drawn = state.drawn or (None, None)
        if entry is None:
            if saved is not None and (wrong := unfit_outputs(outputs, saved)):
                state.restore(saved)
                raise PluginError(f"the primitive {kind.name} {wrong}")
            if state.canonical:
                names = [param.name for param in kind.params]
                pairs = zip(names, values, strict=True)
                values = tuple(state.canonical.get(n, v) for n, v in pairs)
            entry = Entry(kind, values, outputs, *drawn)
        else:
            if len(outputs) != len(entry.outputs):
                if saved is not None:
                    state.restore(saved)
                raise TraceError(
                    f"{kind.name} gives {len(outputs)} results here, the trace has "
                    f"{len(entry.outputs)}: it was recorded on another program"
                )
            if outputs:
                table = state.writable_table()
                for name, made in zip(entry.outputs, outputs, strict=True):
                    table[name] = table.pop(made)
            if kind.sampling:
                entry = Entry(kind, entry.values, entry.outputs, *drawn)
        self.trace = self.trace.append(entry)
        if saved is not None:
            self._history.append(saved)
        return result

    def _blocks_by_name(self, kind: InstructionKind, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with block names replaced by handles; the look-ups are recorded as
        steps."""
        if not kind.takes_names:
            return values
        pairs = zip(kind.params, values, strict=True)
        return tuple(self._looked_up(v) if param.block else v for param, v in pairs)

    def _looked_up(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._run(PRIMITIVES.get("get_block"), (value,), {})
        if isinstance(value, (list, tuple)):
            return type(value)(self._looked_up(v) for v in value)
        return value

    # -- constraints ---------------------------------------------------------------------------

    def _require(self, kind: InstructionKind, values: tuple[Any, ...]) -> None:
        """Run `require`; while it fails, draw the latest mentioned sampling step again."""
        mode = self.state.mode
        try:
            self._step(kind, values, None, None)
            return
        except ScheduleError as error:
            if error.reason != "constraint":
                raise
        for _ in range(_RETRIES):
            decisions = solve(self.trace.entries, values[0], self.state.table, self.state.rng)
            if decisions is None:
                break
            before = (self.trace, list(self._history), self.state.snapshot())
            try:
                self._redo(decisions)
                self.state.mode = mode
                self._step(kind, values, None, None)
                return
            except ScheduleError:  # a step after the new decisions is refused
                rng = self.state.rng.state
                self.trace, self._history = before[0], before[1]
                self.state.restore(before[2])
                self.state.rng.state = rng
        self.state.mode = mode
        self._step(kind, values, None, None)  # is refused again

    def _redo(self, decisions: Mapping[int, Any]) -> None:
        """Replace the decisions at the given positions, and run all steps from the first of them
        again."""
        entries, first = self.trace.entries, min(decisions)
        back = first - len(entries)  # the first steps may be taken over, without a history
        rng = self.state.rng.state
        self.state.restore(self._history[back])
        self.state.rng.state = rng
        del self._history[back:]
        self.trace = Trace(entries[:first])
        self.state.mode = "keep"
        for position in range(first, len(entries)):
            entry = entries[position]
            decision = decisions.get(position, entry.decision)
            self._step(entry.kind, entry.values, decision, entry)
