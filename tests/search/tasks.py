"""Small tuning tasks with a made-up machine: time is a function of the decisions."""

from __future__ import annotations

from metasched.ir.equal import structural_hash
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import walk_stmts
from metasched.measure.candidate import Candidate
from metasched.measure.replay import ReplayRunner
from metasched.search.annealing import AnnealingOptions, SimulatedAnnealing
from metasched.search.evolution import EvolutionarySearch, EvolutionOptions
from metasched.search.strategy import STRATEGIES
from metasched.target import Target
from metasched.workloads import get

TARGET = Target.of(
    {"kind": "cpu", "mcpu": "x86-64-v3", "num_cores": 2, "features": ["avx", "avx2", "fma"]}
)


def matmul(n: int = 64) -> PrimFunc:
    """A small matrix multiplication."""
    return get("gmm").func((1, n, n, n))


def made_up_seconds(candidate: Candidate) -> float:
    """Faster with a vector loop of 8, a parallel loop, and few loops; a little noise by key."""
    seconds = 1e-3
    loops = [s for s in walk_stmts(candidate.module["main"].body) if isinstance(s, For)]
    widths = [int(s.extent) for s in loops if s.kind is ForKind.VECTORIZED]  # type: ignore[call-overload]
    seconds *= 1.0 if 8 in widths else 2.0
    seconds *= 1.0 if any(s.kind is ForKind.PARALLEL for s in loops) else 1.5
    innermost = [int(s.extent) for s in loops if s.kind is ForKind.UNROLLED]  # type: ignore[call-overload]
    registers = 1
    for extent in innermost:
        registers *= extent
    seconds *= 1.0 + abs(registers - 64) / 64
    return seconds * (1 + int(candidate.key[:4], 16) / 65536 / 100)


def replay_runner(func: PrimFunc, target: Target) -> ReplayRunner:
    """The made-up machine as a runner."""
    assert structural_hash(func) and target
    return ReplayRunner(cost=made_up_seconds)


def small_rounds() -> None:
    """Let the built-in strategies replay few programs, until the test ends and takes it back.

    For tests about something else than what a search finds: a round has all its sources and steps.
    """
    options = EvolutionOptions(drafts=128, replays=24, first=24, generations=2)
    walks = AnnealingOptions(chains=6, steps=4)
    STRATEGIES.register(
        "evolutionary", lambda task: EvolutionarySearch(task, options), override=True
    )
    STRATEGIES.register("annealing", lambda task: SimulatedAnnealing(task, walks), override=True)
