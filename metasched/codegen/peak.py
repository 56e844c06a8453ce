"""Measure peak rates of this machine, of multiply-adds and of declared instructions."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from metasched.codegen.compile import compile_text
from metasched.codegen.load import link
from metasched.codegen.tiles import ROWS, WORDS, guarded, tile_step
from metasched.codegen.types import constant, instruction_type, register_type, splat, type_suffix
from metasched.errors import BuildError
from metasched.hardware import usable_cpus
from metasched.ir.dtype import DType
from metasched.ir.op import HardwareOp, hardware_op, lacking
from metasched.lower.passes.tiles import is_tile_product
from metasched.target import Target, cpu_of
from metasched.target.rates import COST, remembered

# The number of independent chains hides the latency of an instruction on all pipes. The remaining
# registers hold the constant operands.
_CHAINS, _OPERANDS = 24, 4
_TILE_CHAINS = 4  # of eight tile registers; two hold the constant operands
_CALLS = 6 << 20
_RUNS = 30


def measured_peak(target: Target, what: str = "float32", threads: int | None = None) -> float:
    """Measure the peak rate of generated loops, in 10**9 operations a second.

    The result is the best of several short runs, of this call and earlier calls on this machine: a
    run on a busy machine may show half the rate. A call takes about 0.2 s.

    Args:
        target: this machine, or an older machine whose code runs here.
        what: `float32` or `float64` for multiply-adds; or the name of a declared instruction,
            whose products count as two operations each.
        threads: how many threads run at the same time; None for the target's cores.

    Raises BuildError for a type without multiply-add, for an instruction that is not declared, that
    the target lacks or that cannot be chained. Raises TargetError for a target that is not this
    machine.
    """
    run = multiply_adds(target, what, threads)
    now = 1.0 / min(run() for _ in range(_RUNS))
    return remembered(f"{target.key} {what} {threads or target.num_cores}", now, max)


def measured_cost(target: Target, name: str) -> float:
    """Measure the cost of a declared instruction on one core, in vector multiply-adds of float32.

    The cost is rounded to quarters and kept for the cost model. Raises the same errors as
    `measured_peak`.
    """
    one, other = _loop_of(target, name), _loop_of(target, "float32")
    best = [min(runs) for runs in zip(*((one(), other()) for _ in range(_RUNS // 2)), strict=True)]
    cost = max(0.25, round(4 * best[0] / best[1]) / 4)
    return remembered(f"{target.key} {COST}{name}", cost, min)


def multiply_adds(
    target: Target, what: str = "float32", threads: int | None = None
) -> Callable[[], float]:
    """Make a function that briefly runs the loops of `measured_peak`; it gives the seconds for
    10**9 operations."""
    run, count = _loop_of(target, what), threads or target.num_cores
    billions = 1e-9 * _link(target, what).operations * _CALLS * count
    return lambda: together([run] * count) / billions


@dataclass(frozen=True, slots=True)
class _Link:
    """A step of a chain: an instruction whose result is an operand of the next one.

    Attributes:
        kind, start: the LLVM type of a chain's value, and its first value.
        declaration: the LLVM declarations of what the lines call.
        lines: LLVM text that computes %y{s} from %x{s}, with `{s}` for the number of a chain.
        operands: the types of the other operands %o0, %o1, ...
        operations: arithmetic operations of one step.
        chains: the largest number of chains; None if the vector registers set it.
        load: LLVM text that loads `{name}` of type `{kind}` from `{at}` before the loop.
    """

    kind: str
    start: str
    declaration: str
    lines: tuple[str, ...]
    operands: tuple[str, ...]
    operations: int
    chains: int | None = None
    load: tuple[str, ...] = ("{name} = load volatile {kind}, ptr {at}",)

    @property
    def on_tiles(self) -> bool:
        """Whether the instruction needs the system's permission to use tiles."""
        return self.chains is not None

    def loaded(self, name: str, kind: str, at: str) -> list[str]:
        """The lines of `load`."""
        return [line.format(name=name, kind=kind, at=at) for line in self.load]


def _link(target: Target, what: str) -> _Link:
    """The step of a chain of multiply-adds or of a declared instruction."""
    target.require_here(timed=True)
    op = hardware_op(what) if "." in what else None
    if op is not None:
        missing = lacking(op.feature, target.features)
        if missing:
            raise BuildError(f"{what} needs {missing}, which the target lacks")
        return _of_instruction(op)
    if what not in ("float32", "float64"):
        raise BuildError(f"{what} has no peak: it is no float32, float64 or declared instruction")
    dtype = DType(what)
    lanes = max(1, cpu_of(target).vector_bits // dtype.bits)
    kind = register_type(dtype, lanes)
    start = splat(constant(1.0, dtype), register_type(dtype), lanes)
    if "fma" in target.features:
        name = f"@llvm.fma.{type_suffix(dtype, lanes)}"
        line = f"%y{{s}} = call {kind} {name}({kind} %x{{s}}, {kind} %o0, {kind} %o1)"
        declared = f"declare {kind} {name}({kind}, {kind}, {kind})"
        return _Link(kind, start, declared, (line,), (kind, kind), 2 * lanes)
    lines = (f"%m{{s}} = fmul {kind} %x{{s}}, %o0", f"%y{{s}} = fadd {kind} %m{{s}}, %o1")
    return _Link(kind, start, "", lines, (kind, kind), 2 * lanes)


def _of_instruction(op: HardwareOp) -> _Link:
    """The step whose result is the first operand with its type, or else with its size."""
    if is_tile_product(op.name):
        declared, lines, load = tile_step(op.name)
        operations = 2 * op.result.lanes * op.operands[-1].lanes // ROWS
        return _Link(
            WORDS, "zeroinitializer", declared, lines, (WORDS, WORDS), operations,
            _TILE_CHAINS, load,
        )  # fmt: skip
    result = op.result
    size = result.bits * result.lanes
    same = [n for n, kind in enumerate(op.operands) if kind is result]
    same += [n for n, kind in enumerate(op.operands) if kind.bits * kind.lanes == size]
    if not same:
        raise BuildError(f"{op.name} cannot be chained: no operand is as large as its result")
    kind, types = instruction_type(result), [instruction_type(t) for t in op.operands]
    given = [f"{t} %o{n}" for n, t in enumerate(types)]
    given[same[0]] = f"{types[same[0]]} %b{{s}}"
    lines = (
        f"%b{{s}} = bitcast {kind} %x{{s}} to {types[same[0]]}",
        f"%y{{s}} = call {kind} @{op.name}({', '.join(given)})",
    )
    declared = f"declare {kind} @{op.name}({', '.join(types)})"
    return _Link(kind, "zeroinitializer", declared, lines, tuple(types), 2 * op.operands[-1].lanes)


def _loop_of(target: Target, what: str) -> Callable[[], float]:
    """Make a function that runs _CALLS steps of the chains in this thread; it gives the seconds of
    CPU time."""
    link_ = _link(target, what)
    cpu = cpu_of(target)
    chains = link_.chains or max(1, min(_CHAINS, cpu.vector_registers - _OPERANDS))
    library = link(compile_text(_text(link_, chains, cpu.vector_bits), target), ("peak",))
    run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(library["peak"])
    steps = _CALLS // chains
    if run(steps // 8):
        raise BuildError(f"{what} has no peak here: the system refuses AMX's tiles (arch_prctl)")

    def seconds() -> float:
        assert library  # keeps the machine code loaded
        start = time.thread_time()  # this clock does not count time without a core
        run(steps)
        return time.thread_time() - start

    return seconds


def together(runs: Sequence[Callable[[], object]]) -> float:
    """Run functions in threads at the same time; the seconds from the first start to the last end.

    Each thread is bound to its own core: the scheduler may put two short threads on one core.
    """
    count = len(runs)
    barrier = threading.Barrier(count)
    spans: list[tuple[float, float]] = []
    ended = [threading.Event() for _ in range(count)]
    cores = sorted(usable_cpus())

    def work(number: int) -> None:
        os.sched_setaffinity(0, {cores[number % len(cores)]})  # of this thread alone
        try:
            barrier.wait()
            begin = time.perf_counter()
            runs[number]()
            spans.append((begin, time.perf_counter()))
        except threading.BrokenBarrierError:
            pass
        finally:
            ended[number].set()

    workers = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    except BaseException:  # Ctrl-C: release threads that wait for a thread not started, and keep
        barrier.abort()  # the machine code loaded until the running threads end
        for worker, end in zip(workers, ended, strict=True):
            if worker.ident is not None:  # no join: after an interrupt, join of Python 3.11 may
                end.wait()  # return while the thread still runs
        raise
    return max(end for _, end in spans) - min(begin for begin, _ in spans)


def _text(link_: _Link, chains: int, bits: int) -> str:
    """The text of `i32 peak(i64 n)`: n steps of independent chains, whose results are stored so
    that LLVM removes none. The function returns 0; 1 if the system refuses the use of tiles."""
    kind, start = link_.kind, link_.start
    every = dict.fromkeys((kind, *link_.operands))
    place = {t: f"@value{n}" for n, t in enumerate(every)}
    attribute = f'nounwind "prefer-vector-width"="512" "min-legal-vector-width"="{bits}"'
    head = "internal i32 @peak.tiles" if link_.on_tiles else "i32 @peak"
    lines = [f"{at} = private global {t} {start if t == kind else 'zeroinitializer'}, align 64"
             for t, at in place.items()]  # fmt: skip
    lines += [
        link_.declaration,
        f"define {head}(i64 %n) noinline {attribute} {{",
        "entry:",
        *link_.loaded("%first", kind, place[kind]),
        *(
            line
            for n, t in enumerate(link_.operands)
            for line in link_.loaded(f"%o{n}", t, place[t])
        ),
        "br label %loop",
        "loop:",
        "%i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(f"%x{s} = phi {kind} [ %first, %entry ], [ %y{s}, %loop ]" for s in range(chains)),
        *(line.format(s=s) for s in range(chains) for line in link_.lines),
        "%next = add i64 %i, 1",
        "%more = icmp slt i64 %next, %n",
        "br i1 %more, label %loop, label %done",
        "done:",
        *(f"store volatile {kind} %y{s}, ptr {place[kind]}" for s in range(chains)),
        "ret i32 0",
        "}",
    ]
    if link_.on_tiles:
        lines += guarded("peak", ["i64 %n"], attribute, 1).values()
    return "\n".join(lines)
