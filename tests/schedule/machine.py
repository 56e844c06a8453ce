"""The random machine: random programs, random primitives, random arguments.

Every accepted sequence must compute the same, every refusal must be a ScheduleError that leaves the
schedule untouched, every trace must replay. A case is a recipe: the number of a program and steps,
each an operation with integers that choose its arguments (modulo what there is). So any shorter or
smaller recipe is a recipe as well, and a failing one shrinks by dropping steps and integers.

    python -m tests.schedule.machine --steps 50000        a long run, failures shrunk and printed
"""

from __future__ import annotations

import argparse
import collections
import math
import random
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import oracle
import teams
from oracle import check_numbers, check_trace, picture
from schedule.declared_accumulators import with_accumulators
from schedule.machine_blocks import BLOCK_OPS
from schedule.machine_layout import LAYOUT_OPS
from schedule.machine_situations import SITUATIONS, relayout
from schedule.machine_ways import tried
from schedule.program_families import FAMILIES, family, special
from schedule.programs import PROGRAMS
from strategies import random_func

from metasched.analysis.scope import Scope
from metasched.errors import ScheduleError
from metasched.ir.expr import as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import BlockRealize
from metasched.ir.verify import verify
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.instruction import PRIMITIVES
from metasched.schedule.schedule import Schedule
from metasched.script.printer import script

Step = tuple[str, tuple[int, ...]]
NUMBERS = 6  # integers of one step
FIXED = 0.3  # share of programs from the list in schedule.programs


@dataclass
class Tally:
    """Counts of accepted and refused steps, by operation of the machine and by primitive."""

    accepted: collections.Counter[str] = field(default_factory=collections.Counter)
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    refusals: collections.Counter[str] = field(default_factory=collections.Counter)
    reasons: collections.Counter[str] = field(default_factory=collections.Counter)
    families: collections.Counter[str] = field(default_factory=collections.Counter)
    cases: int = 0


class Broken(Exception):
    """Raised if a case breaks a promise; `kind` groups similar failures."""

    def __init__(self, kind: str, detail: str, sch: Schedule | None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.sch = sch


class Player:
    """Plays the steps of a recipe on a schedule."""

    def __init__(self, sch: Schedule) -> None:
        self.sch = sch
        self.numbers: list[int] = []
        self.steps: list[Callable[[], object]] = []

    def number(self, below: int) -> int:
        value = self.numbers.pop(0) if self.numbers else 0
        return value % below if below > 0 else 0

    def pick(self, items: Sequence[Any]) -> Any:
        if not items:  # no block yet: the program is plain loops
            raise _Nothing
        return items[self.number(len(items))]

    # -- what there is -----------------------------------------------------------------------------

    def realizes(self) -> list[BlockRealize]:
        index = self.sch.state.index
        return [r for r in index.blocks.values() if index.parent[r] is not None]

    def block(self) -> BlockRV:
        return self.handle(self.pick(self.realizes()))

    def handle(self, realize: BlockRealize) -> BlockRV:
        return self.sch.get_block(realize.block.name)

    def loops(self, block: BlockRV) -> list[LoopRV]:
        loops = self.sch.get_loops(block)
        if not loops:
            raise _Nothing
        return loops

    def loop(self) -> LoopRV:
        return self.pick(self.loops(self.block()))

    def nothing(self) -> None:
        raise _Nothing

    def text(self, realize: BlockRealize) -> str:
        return script(realize)

    def scope(self) -> str:
        return self.pick(["global", "local", "shared"])

    # -- one operation each ------------------------------------------------------------------------

    def split(self) -> None:
        loop = self.loop()
        factor = 1 + self.number(4)
        shapes = [[None, factor], [factor, None], [None, factor, 2], [factor, 3, factor]]
        self.sch.split(loop, self.pick(shapes), preserve_unit_iters=bool(1 - self.number(4) // 3))

    def split_sampled(self) -> None:
        loop = self.loop()
        n = 1 + self.number(4)
        how = self.number(5)
        extent = as_int(self.sch.get(loop).extent)
        if how == 4 and extent is not None:
            sizes = [extent + self.number(3), extent + 1]
            tile = self.sch.sample_padded_tile(loop, n, 1 + self.number(8), sizes, [0.5, 0.5])
        elif how == 0:
            tile = self.sch.sample_partitioned_tile(loop, n, self.number(n + 1), 1 + self.number(3))
        else:
            tile = self.sch.sample_perfect_tile(loop, n=n, max_innermost_factor=1 + self.number(8))
        if how == 1:
            self.sch.require(tile[-1] <= 1 + self.number(4))
        self.sch.split(loop, tile if how != 2 else [None, *tile[1:]])

    def fuse(self) -> None:
        loops = self.loops(self.block())
        first = self.number(len(loops))
        self.sch.fuse(*loops[first : first + 1 + self.number(3)],
                      preserve_unit_iters=bool(1 - self.number(4) // 3))  # fmt: skip

    def reorder(self) -> None:
        loops = self.loops(self.block())
        order = list(loops)
        random.Random(self.number(1 << 16)).shuffle(order)
        self.sch.reorder(*order[: 1 + self.number(len(order))])

    def tile(self) -> None:
        """Split each loop of a block in two, and reorder the outer loops outwards."""
        block = self.block()
        outer, inner = [], []
        for loop in self.loops(block):
            a, b = self.sch.split(loop, [None, 1 + self.number(4)])
            outer.append(a)
            inner.append(b)
        self.sch.reorder(*outer, *inner)

    def loop_kind(self, kind: str) -> None:
        loop = self.loop()
        if kind == "bind":
            self.sch.bind(loop, self.pick(["threadIdx.x", "blockIdx.x", "threadIdx.y", "vthread"]))
        else:
            getattr(self.sch, kind)(loop)

    def annotate(self) -> None:
        block = self.block()
        target = self.pick([block, *self.sch.get_loops(block)])
        if self.number(3) == 0:
            noted = "note" in self.sch.get(target).annotations
            if not noted and self.number(2):
                self.sch.annotate(target, "note", 1)
            self.sch.unannotate(target, "note")
            return
        value = self.sch.sample_categorical([1, 2, 4], [0.5, 0.25, 0.25])
        notes = [1, "text", [1, 2.5], {"a": 1}, value, [value, {"b": value * 2}]]
        self.sch.annotate(target, "note", self.pick(notes), replace=bool(self.number(2)))

    def move(self, name: str) -> None:
        """compute_at or reverse_compute_at, mostly to a loop of a consumer or producer."""
        realizes, scope_of = self.realizes(), self.sch.state.scope
        find = Scope.consumers if name == "compute_at" else Scope.producers
        pairs = [(r, other.realize) for r in realizes for other in find(scope_of(r), r.block.token)]
        if not pairs or self.number(16) == 15:
            pairs = [(self.pick(realizes), self.pick(realizes))]
        realize, where = self.pick(pairs)
        block = self.handle(realize)
        loops = self.loops(self.handle(where))
        own = {loop.var for loop in self.sch.state.loops_above(realize)}
        loop = self.pick([rv for rv in loops if self.sch.get(rv).var not in own] or loops)
        preserve, index = bool(self.number(2)), self.pick([-1, -1, -2, 0, 1])
        getattr(self.sch, name)(block, loop, preserve, index)

    def compute_location(self) -> None:
        block = self.block()
        self.sch.compute_at(block, self.sch.sample_compute_location(block), True)

    def inline(self, name: str) -> None:
        getattr(self.sch, name)(self.block())

    def cache(self, name: str) -> None:
        realize = self.pick(self.realizes())
        regions = realize.block.reads if name == "cache_read" else realize.block.writes
        which = self.number(max(1, len(regions)))
        block = self.handle(realize)
        given: list[Any] = []
        if regions and self.number(3) == 0:
            users = self.sch.state.scope(realize).readers(regions[which].buffer)
            if users:
                given = [self.handle(self.pick(users).realize)]
        getattr(self.sch, name)(block, which, self.scope(), given)

    def decompose(self) -> None:
        block = self.block()
        self.sch.decompose_reduction(block, self.pick(self.loops(block)), self.number(2) == 0)

    def rfactor(self) -> None:
        self.sch.rfactor(self.loop(), self.number(4) - 1)

    def set_scope(self) -> None:
        self.sch.set_scope(self.block(), 0, self.scope())

    def add_unit_loop(self) -> None:
        block = self.block()
        self.sch.add_unit_loop(self.pick([block, *self.sch.get_loops(block)]))

    def queries(self) -> None:
        block = self.block()
        self.sch.get_producers(block)
        self.sch.get_consumers(block)
        self.sch.get_child_blocks(block)
        self.sch.get_output_blocks(block)

    def enter_postproc(self) -> None:
        self.sch.enter_postproc()

    def undo(self) -> None:
        if self.sch.trace.entries:
            self.sch.undo()


class _Nothing(Exception):
    """Raised if the program has nothing to which an operation applies."""


OPS: dict[str, tuple[int, Callable[[Player], None]]] = {
    "split": (10, Player.split),
    "split_sampled": (5, Player.split_sampled),
    "fuse": (7, Player.fuse),
    "reorder": (8, Player.reorder),
    "tile": (8, Player.tile),
    "parallel": (3, lambda p: p.loop_kind("parallel")),
    "vectorize": (3, lambda p: p.loop_kind("vectorize")),
    "unroll": (2, lambda p: p.loop_kind("unroll")),
    "bind": (1, lambda p: p.loop_kind("bind")),
    "annotate": (3, Player.annotate),
    "compute_at": (14, lambda p: p.move("compute_at")),
    "reverse_compute_at": (14, lambda p: p.move("reverse_compute_at")),
    "sample_compute_location": (3, Player.compute_location),
    "compute_inline": (6, lambda p: p.inline("compute_inline")),
    "reverse_compute_inline": (6, lambda p: p.inline("reverse_compute_inline")),
    "cache_read": (7, lambda p: p.cache("cache_read")),
    "cache_write": (7, lambda p: p.cache("cache_write")),
    "decompose_reduction": (6, Player.decompose),
    "rfactor": (6, Player.rfactor),
    "set_scope": (2, Player.set_scope),
    "add_unit_loop": (2, Player.add_unit_loop),
    "queries": (1, Player.queries),
    "enter_postproc": (1, Player.enter_postproc),
    "undo": (1, Player.undo),
}


ALL = {**OPS, **BLOCK_OPS, **LAYOUT_OPS, **SITUATIONS}


def operations() -> dict[str, tuple[int, Callable[[Player], None]]]:
    """All operations, and one more for each primitive without an operation, as those of plug-ins.

    Such a primitive is tried with the arguments of its `of_loop` and `of_block`.
    """
    named = {word for name in ALL for word in name.split()}
    kinds = [kind for kind in PRIMITIVES.values() if kind.name not in named]
    return ALL | {kind.name: (6, tried(kind)) for kind in kinds if kind.of_loop or kind.of_block}


def aimed(number: int, unused: Collection[str]) -> int:
    """The first program from `number` on whose family is made for one of the primitives `unused`;
    `number` where no family is."""
    made_for = [f for f, ops in FAMILIES.items() if not {*" ".join(ops).split()}.isdisjoint(unused)]
    while made_for and family(number) not in made_for:
        number += 1
    return number


def require_all_used(tally: Tally) -> None:
    """Require that every primitive was accepted at least once."""
    unused = sorted({*PRIMITIVES.names()} - {*tally.kinds})
    assert not unused, (
        f"the random machine never got {', '.join(unused)} accepted: say by of_loop= or of_block= "
        "of @primitive how it is tried, or write an operation in tests/schedule/machine.py"
    )


def program(number: int) -> PrimFunc:
    """Program number n: one of the fixed ones, of a family, or a random one; in every fifth the
    reductions declare their accumulators."""
    func = _program(number)
    return with_accumulators(func, last=number % 2 == 0) if number % 5 == 0 else func


def kind_of_program(number: int) -> str:
    """The name of the family of program `number`, "ordinary" outside of the families."""
    found = family(number)
    return "ordinary" if found is None else found.__name__


def _program(number: int) -> PrimFunc:
    if family(number) is not None:
        return special(number)
    rng = random.Random(number)
    if rng.random() < FIXED:
        return rng.choice(PROGRAMS)
    return random_func(rng)


def recipe(
    number: int,
    longest: int = 12,
    ops: Mapping[str, tuple[int, Callable[[Player], None]]] = OPS,
) -> list[Step]:
    """The steps of case n."""
    rng = random.Random(number * 7919 + 1)
    names, weights = list(ops), [w for w, _ in ops.values()]
    chosen = rng.choices(names, weights, k=rng.randint(1, longest))
    made_for = [name for name in FAMILIES.get(family(number), ()) if name in ops]  # type: ignore[arg-type]
    if made_for and rng.random() < 0.8:
        chosen.insert(rng.randint(0, len(chosen)) // 2, rng.choice(made_for))
    return [(name, tuple(rng.randrange(1 << 16) for _ in range(NUMBERS))) for name in chosen]


def play(number: int, steps: Sequence[Step], tally: Tally, *, every: bool = False) -> Schedule:
    """Play a recipe; raises Broken where a promise does not hold.

    `every` checks the numbers after each accepted step, otherwise at the end only.
    """
    func = program(number)
    sch = Schedule(func, seed=number, check=False)
    player, ops = Player(sch), operations()
    for name, numbers in steps:
        player.numbers = list(numbers)
        length = len(sch.trace)
        before = picture(sch)
        try:
            ops[name][1](player)
            tally.accepted[name] += 1
            tally.families[kind_of_program(number)] += 1
            tally.kinds.update(e.kind.name for e in sch.trace.entries[length:])
        except _Nothing:
            pass
        except ScheduleError as error:
            tally.refused[name] += 1
            tally.refusals[error.primitive] += 1
            tally.reasons[f"{error.primitive}: {error.reason}"] += 1
            _ = error.message
            if error.primitive not in name and name in dir(sch) and len(sch.trace) == length:
                raise Broken("refusal", f"{name} refused by {error.primitive}", sch) from error
            if picture(sch) != before and len(sch.trace) == length:
                raise Broken("touched", f"{name} was refused but left traces", sch) from error
        except Exception as error:
            raise Broken(f"crash {type(error).__name__}", f"{name}: {error}", sch) from error
        if every:
            _check(func, sch, compiled=False)
    _check(func, sch, compiled=number % 8 == 0 or teams.RUNS > 1)
    return sch


def _check(func: PrimFunc, sch: Schedule, *, compiled: bool) -> None:
    try:
        verify(sch.mod, closed=True)
    except Exception as error:
        raise Broken("verify", str(error), sch) from error
    try:
        run_it = compiled and not _threads(sch)
        check_numbers(func, sch.mod, compiled=run_it, convert=relayout(sch))
    except Exception as error:
        raise Broken(f"numbers {type(error).__name__}", str(error)[:600], sch) from error
    try:
        check_trace(func, sch, python=compiled)
    except Exception as error:
        raise Broken("replay", f"{type(error).__name__} {error}"[:600], sch) from error


def _threads(sch: Schedule) -> bool:
    """Whether a loop is bound to a thread or memory is shared by threads (no CPU has these)."""
    loops = sch.state.index.loops.values()
    return any(loop.thread is not None for loop in loops) or '"shared"' in script(sch.mod)


def failure_of(number: int, steps: Sequence[Step]) -> Broken | None:
    """The promise that a recipe breaks; None if it breaks none."""
    try:
        play(number, steps, Tally())
    except Broken as error:
        return error
    return None


def shrink(number: int, steps: Sequence[Step], kind: str, limit: float = 20.0) -> list[Step]:
    """A smaller recipe with the same failure: steps are dropped, integers made smaller."""
    best = list(steps)
    end = time.monotonic() + limit

    def fails(candidate: list[Step]) -> bool:
        if time.monotonic() > end:
            return False
        found = failure_of(number, candidate)
        return found is not None and found.kind == kind

    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for size in (4, 2, 1):
            at = len(best) - size
            while at >= 0:
                candidate = best[:at] + best[at + size :]
                if fails(candidate):
                    best, changed = candidate, True
                at -= size
        for at, (name, numbers) in enumerate(best):
            for k in range(len(numbers)):
                for small in (0, 1, 2, 3):
                    if best[at][1][k] <= small:
                        break
                    smaller = (*best[at][1][:k], small, *best[at][1][k + 1 :])
                    candidate = [*best[:at], (name, smaller), *best[at + 1 :]]
                    if fails(candidate):
                        best, changed = candidate, True
                        break
    return best


def report(number: int, steps: Sequence[Step]) -> str:
    """A failing case for a person: program, trace, result, what is wrong."""
    error = failure_of(number, steps)
    assert error is not None
    text = f"case {number} {list(steps)!r}\n{error.kind}\n{script(program(number))}\n"
    if error.sch is not None:
        text += f"{error.sch.trace.simplified().as_python()}\n{script(error.sch.mod)}\n"
    return f"{text}{error}\n"


def summary(number: int, tally: Tally, failed: int) -> str:
    """What a run has done before case `number`, in one line."""
    return (
        f"{tally.cases} cases to {number}, {tally.accepted.total()} steps accepted, "
        f"{tally.refused.total()} refused, {failed} failures"
    )


def main() -> int:
    """Run until the steps were accepted, cases failed or the time is over; print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50_000, help="accepted steps to reach")
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--failures", type=int, default=5, help="failures after which to stop")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time after which to stop")
    parser.add_argument("--every", type=float, default=60, help="seconds between lines of progress")
    parser.add_argument("--all", action="store_true", help="with the operations of other files")
    parser.add_argument("--hard", action="store_true", help="on infinities, NaN, whole integers")
    teams.add_options(parser)
    options = parser.parse_args()
    teams.use(options)
    oracle.HARD = options.hard
    tally, failed, began = Tally(), 0, time.monotonic()
    number, told = options.start, began
    while tally.accepted.total() < options.steps and failed < options.failures:
        now = time.monotonic()
        if now - began > options.seconds:
            break
        if now - told > options.every:
            print(f"{now - began:.0f} s: {summary(number, tally, failed)}", flush=True)
            told = now
        steps = recipe(number, ops=operations() if options.all else OPS)
        tally.cases += 1
        try:
            play(number, steps, tally)
        except Broken as error:
            failed += 1
            small = shrink(number, steps, error.kind)
            print(f"{'=' * 80}\n{report(number, small)}", flush=True)
        number += 1
    print(f"{summary(number, tally, failed)}, {time.monotonic() - began:.0f} s")
    print("reasons:", dict(tally.reasons.most_common()))
    print(f"{'family':32}{'accepted':>9}")
    for name, count in sorted(tally.families.items()):
        print(f"{name:32}{count:9}")
    print(f"{'operation':32}{'accepted':>9}{'refused':>9}")
    for name in sorted(OPS if not options.all else operations()):
        print(f"{name:32}{tally.accepted[name]:9}{tally.refused[name]:9}")
    print(f"{'primitive':32}{'accepted':>9}{'refused':>9}")
    for name in sorted(PRIMITIVES.names()):
        print(f"{name:32}{tally.kinds[name]:9}{tally.refusals[name]:9}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
