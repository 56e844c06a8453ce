"""tune() against a recorded machine: determinism, resumption, interruption, failures, budgets."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from metasched.database.record import TraceFile
from metasched.database.replay import replay
from metasched.database.store import Store
from metasched.errors import (
    DefaultScheduleError,
    MeasureError,
    MetaschedError,
    PluginError,
    TargetError,
    TraceError,
    TuneError,
)
from metasched.ir.equal import structural_equal, structural_hash
from metasched.ir.func import IRModule
from metasched.kinds import default_space
from metasched.measure.candidate import Candidate, Outcome, Status
from metasched.measure.replay import ReplayRunner
from metasched.mutate.neighbours import neighbours
from metasched.report.tables import tune_text
from metasched.schedule.schedule import Schedule
from metasched.search.annealing import AnnealingOptions, SimulatedAnnealing
from metasched.search.evolution import EvolutionarySearch, EvolutionOptions
from metasched.search.final import FinalComparison
from metasched.search.guard import GuardedStrategy
from metasched.search.observe import (
    FinalStep,
    RoundDone,
    SpaceNews,
    TaskFinished,
    TaskStarted,
    TrialDone,
    silent,
)
from metasched.search.phases import Phases
from metasched.search.population import CandidateFactory, Population
from metasched.search.run import TaskRun
from metasched.search.strategy import STRATEGIES
from metasched.space.combinators import attempt, choose
from metasched.space.generate import ScheduleFn, SpaceGenerator, Union
from metasched.space.module import ScheduleModule
from metasched.target import Target
from metasched.tune import STORE, tune, tune_tasks
from tests.search.tasks import TARGET, made_up_seconds, matmul, replay_runner

FUNC = matmul()
WALKS = AnnealingOptions(chains=8, steps=4)
STRATEGIES.register("annealing-small", lambda t: SimulatedAnnealing(t, WALKS), override=True)
SMALL = EvolutionOptions(drafts=256, replays=24, first=24, generations=2)
STRATEGIES.register("small", lambda task: EvolutionarySearch(task, SMALL), override=True)
MEDIUM = EvolutionOptions(drafts=512, replays=48, first=32, generations=2)
STRATEGIES.register("medium", lambda task: EvolutionarySearch(task, MEDIUM), override=True)


def run(folder: Path, **options):
    settings = {
        "target": TARGET, "trials": 40, "seed": 7, "runner": replay_runner, "strategy": "small",
    }  # fmt: skip
    return tune(FUNC, work_dir=folder, **{**settings, **options})


def measured(folder: Path) -> list[str]:
    with Store(folder / STORE) as store:
        records = [r for w in store.workloads() for r in store.all(w, TARGET)]
    return [r.candidate_key for r in sorted(records, key=lambda r: r.index)]


def test_the_same_seed_and_results_give_the_same_candidates_in_order(tmp_path):
    run(tmp_path / "a", trials=24)
    run(tmp_path / "b", trials=24)
    run(tmp_path / "c", seed=8, trials=8)
    first, again, other = (measured(tmp_path / n) for n in "abc")
    assert len(first) == 24
    assert first == again
    assert first[:8] != other


def test_search_beats_random_sampling_and_the_default(tmp_path):
    clever = run(tmp_path / "a", trials=96, strategy="medium")
    random = run(tmp_path / "b", trials=96, strategy="random")
    assert clever.best is not None and random.best is not None
    assert clever.best.seconds <= random.best.seconds
    assert clever.best.seconds <= clever.default_seconds


def test_annealing_finds_good_programs_too(tmp_path):
    walked = run(tmp_path / "a", trials=64, strategy="annealing-small")
    random = run(tmp_path / "b", trials=64, strategy="random")
    run(tmp_path / "c", trials=32, strategy="annealing-small")
    assert walked.best.seconds <= random.best.seconds
    again = measured(tmp_path / "c")
    assert len(again) == 32 and again == measured(tmp_path / "a")[:32]


def test_at_most_one_neighbour_of_the_winner_is_clearly_faster(tmp_path):
    result = run(tmp_path, trials=120, seed=3, strategy="medium")
    best = result.best.trace.before_postproc()
    machine = CandidateFactory(FUNC, TARGET, default_space(TARGET), 3)
    near = [machine.replay(t, 0) for t in neighbours(best)] if best.sampling() else []
    better = [
        one
        for one in near
        if one is not None
        and made_up_seconds(Candidate(0, one.module, one.key)) < 0.95 * result.best.seconds
    ]
    assert len(better) <= 1


def test_candidate_zero_is_the_default_schedule(tmp_path):
    result = run(tmp_path, trials=1)
    assert result.trials == 1
    assert result.best.seconds == result.default_seconds
    assert result.speedup_over_default == 1.0


def test_no_candidate_is_measured_twice_and_a_second_run_goes_on(tmp_path):
    first = run(tmp_path, trials=12)
    second = run(tmp_path, trials=24)
    keys = measured(tmp_path)
    assert len(keys) == len(set(keys)) == 24
    assert second.trials == 24
    assert second.best.seconds <= first.best.seconds
    third = run(tmp_path, trials=24)
    assert third.trials == 24 and measured(tmp_path) == keys
    assert third.best.seconds == second.best.seconds


def test_an_interrupt_ends_cleanly_with_the_best_so_far(tmp_path):
    class Interrupted(ReplayRunner):
        def measure(self, candidates, on_outcome=None):
            if len(self.measured) >= 16:
                super().measure(candidates[:3], on_outcome)
                raise KeyboardInterrupt
            return super().measure(candidates, on_outcome)

    result = run(tmp_path, runner=lambda f, t: Interrupted(cost=made_up_seconds))
    assert result.ended == "interrupted"
    assert result.trials == 19 == len(measured(tmp_path))
    assert result.best is not None and result.best.path.exists()
    assert run(tmp_path).trials == 40


def test_failures_are_counted_with_their_reason_and_never_win(tmp_path):
    def cost(candidate: Candidate) -> Outcome | float:
        if candidate.index % 3 == 1:
            return Outcome(Status.WRONG_RESULT, message="element 3 differs")
        return made_up_seconds(candidate)

    result = run(tmp_path, runner=lambda f, t: ReplayRunner(cost=cost))
    assert result.failed == sum(n % 3 == 1 for n in range(40))
    assert result.failures["wrong_result"] == (result.failed, "element 3 differs")
    with Store(tmp_path / STORE) as store:
        (workload,) = store.workloads()
        best = store.best(workload, TARGET)
    assert best.ok


def test_when_everything_fails_there_is_no_best(tmp_path):
    crash = ReplayRunner(cost=lambda c: Outcome(Status.RUN_CRASH))
    result = run(tmp_path, trials=8, runner=lambda f, t: crash)
    assert result.best is None and result.gflops is None and result.failed == 8


def test_the_time_limit_ends_a_run(tmp_path):
    result = run(tmp_path, trials=1000, time_limit=0.0)
    assert result.ended == "time" and result.trials == 0


def test_nothing_is_stored_that_was_compared_with_wrong_results(tmp_path):
    made = []

    class Deceived(ReplayRunner):
        reference_confirmed = False

        def measure(self, candidates, on_outcome=None):
            outcomes = super().measure(candidates, on_outcome)
            if made[0] is self:
                assert not measured(tmp_path)
                raise DefaultScheduleError("the default schedule gives other results")
            self.reference_confirmed = True
            return outcomes

    def runner(func, target):
        made.append(Deceived(cost=made_up_seconds))
        return made[-1]

    with pytest.warns(UserWarning, match="other results; tuning starts again"):
        result = run(tmp_path, runner=runner, trials=8)
    assert len(made[0].measured) == len(made[1].measured) == result.trials == 8


def test_a_run_that_ends_before_the_proof_stores_and_ships_nothing(tmp_path):
    class Unconfirmed(ReplayRunner):
        reference_confirmed = False

    with pytest.warns(UserWarning, match="8 trials are not stored: .*not confirmed"):
        result = run(tmp_path, runner=lambda f, t: Unconfirmed(cost=made_up_seconds), trials=8)
    assert result.trials == 8 and result.best is None and not measured(tmp_path)


def test_unconfirmed_outcomes_are_stored_after_confirmation(tmp_path):
    class Slowly(ReplayRunner):
        reference_confirmed = False

        def measure(self, candidates, on_outcome=None):
            before = len(self.measured)
            outcomes = super().measure(candidates, on_outcome)
            assert len(measured(tmp_path)) == (before and before + len(candidates))
            self.reference_confirmed = True
            return outcomes

    result = run(tmp_path, runner=lambda f, t: Slowly(cost=made_up_seconds), trials=24)
    assert len(measured(tmp_path)) == result.trials == 24


def test_a_small_space_is_exhausted(tmp_path):
    result = tune(
        matmul(2), target=TARGET, trials=5000, seed=0, runner=replay_runner, work_dir=tmp_path,
        strategy="small",
    )  # fmt: skip
    assert result.ended == "exhausted" and 0 < result.trials < 5000


def test_the_observer_hears_everything_and_the_log_keeps_it(tmp_path):
    heard = []
    run(tmp_path, trials=24, observer=heard.append)
    kinds = [type(e) for e in heard]
    assert kinds[0] is TaskStarted and kinds[-1] is TaskFinished
    assert kinds.count(TrialDone) == 24 and kinds.count(RoundDone) == 2
    lines = [json.loads(t) for t in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == [k.__name__ for k in kinds]
    best = [e.best for e in heard if isinstance(e, TrialDone)]
    assert best == sorted(best, reverse=True)


def test_the_trace_file_replays_to_the_winner(tmp_path):
    result = run(tmp_path, trials=16)
    sch = replay(result.best.path, FUNC, target=TARGET)
    assert sch.trace.to_json() == result.best.trace.to_json()
    stored = TraceFile.load(result.best.path)
    assert stored.seconds < math.inf and stored.default_seconds == result.default_seconds


def test_a_trace_for_another_workload_is_an_explained_miss(tmp_path):
    result = run(tmp_path, trials=4)
    with pytest.raises(TraceError, match=r"another workload.*it has `.*64.*` where this one has"):
        replay(result.best.path, matmul(32), target=TARGET)


def test_a_trace_for_another_machine_is_an_explained_miss(tmp_path):
    result = run(tmp_path, trials=4)
    weak = {"kind": "cpu", "mcpu": "x86-64", "num_cores": 2, "features": ["sse2"]}
    with pytest.raises(TraceError, match="avx2"):
        replay(result.best.path, FUNC, target=weak)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("nvidia/nvidia-h100", "no default space for targets of kind"),
        ("llvm -mtriple=riscv64-linux-gnu", "made for riscv64"),
        ({**Target.native().to_json(), "num_cores": 8000}, "the target has 8000 cores"),
    ],
)
def test_tune_refuses_a_target_that_cannot_run_on_this_machine(tmp_path, target, why):
    with pytest.raises(TargetError, match=why):
        tune(FUNC, target=target, trials=1, work_dir=tmp_path / "w")
    assert not (tmp_path / "w").exists()


def parallel_rows(sch):
    rows = sch.get_loops("Z")[1]
    outer, _ = sch.split(rows, sch.sample_perfect_tile(rows, n=2))
    sch.parallel(outer)


@pytest.mark.parametrize("kind", ["function", "union"])
def test_a_function_or_a_union_is_a_space(tmp_path, kind):
    space = ScheduleFn(parallel_rows, mutators=default_space(TARGET).mutators)
    if kind == "union":
        space = Union((space, ScheduleFn(lambda sch: sch)))
    result = run(tmp_path, space=space, trials=6, strategy="random")
    assert result.best is not None and result.trials >= 3
    with pytest.raises(TuneError, match="space is 3; it must be a SpaceGenerator, ScheduleFn or"):
        run(tmp_path, space=3)


def test_a_run_reports_alternatives_lost_to_refused_steps(tmp_path):
    def unrolls(sch, block):
        sch.annotate(block, "meta_schedule.unroll_explicit", 16)
        return [sch]

    def refuses(sch, block):
        for loop in sch.get_loops(block)[-1:]:
            sch.vectorize(loop)
        return [sch]

    ways = [
        attempt(ScheduleModule(fn.__name__, ("cpu",), fn)) if fn is refuses
        else ScheduleModule(fn.__name__, ("cpu",), fn)
        for fn in (unrolls, refuses)
    ]  # fmt: skip
    heard = []
    space = SpaceGenerator((choose(*ways),))
    result = run(tmp_path, space=space, trials=4, strategy="random", observer=heard.append)
    news = [e.text for e in heard if isinstance(e, SpaceNews)]
    assert list(result.refusals) == news
    (said,) = [text for text in news if "block Z" in text]
    assert " gives up 1 of 2 alternatives on block Z: vectorize: " in said
    assert said in tune_text(result)


def test_a_space_without_decisions_ends_at_once(tmp_path, monkeypatch):
    asked = []
    propose = GuardedStrategy.propose
    monkeypatch.setattr(
        GuardedStrategy, "propose", lambda self, n: asked.append(n) or propose(self, n)
    )
    result = run(tmp_path, space=SpaceGenerator(()), trials=40)
    assert result.ended == "exhausted" and result.trials <= 2
    assert len(asked) <= 2


def test_a_truncated_trace_file_is_named(tmp_path):
    result = run(tmp_path, trials=4)
    text = result.best.path.read_text()
    result.best.path.write_text(text[: len(text) // 2])
    with pytest.raises(TraceError, match=r"not valid JSON.*truncated"):
        replay(result.best.path, FUNC, target=TARGET)


def test_several_tasks_share_a_budget_by_expected_gain(tmp_path):
    results = tune_tasks(
        {"small": matmul(16), "large": matmul(64)}, target=TARGET, trials=64, total_trials=64,
        weights={"small": 1e-3}, seed=0, runner=replay_runner, work_dir=tmp_path, strategy="small",
    )  # fmt: skip
    assert sum(r.trials for r in results.values()) == 64
    assert results["large"].trials > results["small"].trials


def test_a_module_of_two_functions_needs_a_choice(tmp_path):
    both = IRModule.of({"a": matmul(16), "b": matmul(32)})
    with pytest.raises(TuneError, match=r"2 functions \(a, b\)"):
        tune(both, target=TARGET, runner=replay_runner, work_dir=tmp_path)


@pytest.mark.parametrize(
    ("tasks", "options", "said"),
    [
        ({}, {}, "at least one, not {}"),
        ([matmul(16)], {}, "tasks are functions by name"),
        ({"a": "gmm"}, {}, "a program is a PrimFunc or an IRModule, not str"),
        ({"a/b": matmul(16)}, {}, "a task called 'a/b' has no place"),
        ({"a": matmul(16)}, {"weights": {"b": 2.0}}, "'b' has a weight, but the tasks are a"),
        ({"a": matmul(16)}, {"weights": 3}, "weights are numbers by the name of the task, not 3"),
        ({"a": matmul(16)}, {"space": 3}, "space is 3; it must be a SpaceGenerator"),
        ({"a": matmul(16)}, {"space": "cpu"}, "no search space is called 'cpu'"),
        ({"a": matmul(16)}, {"space": {"b": "cpu"}}, "'b' has a space, but the tasks are a"),
        ({"a": matmul(16)}, {"scheduler": "gradiant"}, "did you mean gradient"),
        (
            {"a": matmul(16)},
            {"features": "cpus"},
            "is called 'cpus'; did you mean cpu",
        ),
        ({"a": matmul(16)}, {"features": 3}, "features is 3; it must be a name or a FeatureSet"),
        ({"a": matmul(16)}, {"observer": "w"}, "no observer is called 'w'"),
        ({"a": matmul(16)}, {"observer": [3]}, "observer is 3; it must be a function of an event"),
        ({"a": matmul(16)}, {"database": "sqlit"}, "did you mean sqlite"),
        ({"a": matmul(16)}, {"time_limit": -1.0}, "time_limit is -1.0; it must be 0"),
        ({"a": matmul(16)}, {"time_limit": math.nan}, "time_limit is nan"),
        ({"a": matmul(16)}, {"strategy": "smal"}, "did you mean small"),
    ],
)
def test_tune_tasks_refuses_invalid_tasks_before_writing_files(tmp_path, tasks, options, said):
    with pytest.raises(MetaschedError, match=re.escape(said)):
        tune_tasks(tasks, target=TARGET, work_dir=tmp_path / "w", **options)
    assert not (tmp_path / "w").exists()


def test_tuning_needs_no_build_before_it():
    """The row of CPUs in the table of devices is there as soon as `tune` is."""
    program = (
        "from metasched.tune import tune\nfrom metasched.runtime.devices import DEVICES\n"
        "assert 'cpu' in DEVICES"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_one_plugin_is_a_path_like_several(tmp_path):
    for given in (tmp_path / "none.py", str(tmp_path / "none.py"), [tmp_path / "none.py"]):
        with pytest.raises(PluginError, match=r"none\.py"):
            tune_tasks({"a": matmul(16)}, target=TARGET, plugins=given, strategy="smal")


def test_a_stored_model_is_loaded_or_reported_as_damaged(tmp_path):
    run(tmp_path, trials=24)
    assert (tmp_path / "model.npz").exists()
    (tmp_path / "model.npz").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=r"model\.npz cannot be read.*starts anew") as found:
        assert run(tmp_path, trials=32).trials == 32
    assert {w.filename for w in found} == {__file__}


def test_a_task_that_gains_nothing_ends_early(tmp_path, monkeypatch):
    monkeypatch.setenv("METASCHED_STOP_GAIN", "0.001")
    flat = ReplayRunner(cost=lambda c: 1e-3)
    result = run(tmp_path, trials=500, runner=lambda f, t: flat)
    assert result.ended == "no gain expected" and result.trials < 200


def test_a_resumed_run_knows_how_fast_the_default_was(tmp_path):
    first = run(tmp_path, trials=6)
    assert run(tmp_path, trials=6).default_seconds == first.default_seconds
    assert run(tmp_path, trials=8).default_seconds == first.default_seconds


def test_an_interrupt_in_the_first_round_keeps_what_it_measured(tmp_path):
    class Interrupted(ReplayRunner):
        def measure(self, candidates, on_outcome=None):
            super().measure(candidates[:3], on_outcome)
            raise KeyboardInterrupt

    result = run(tmp_path, runner=lambda f, t: Interrupted(cost=made_up_seconds))
    assert result.ended == "interrupted" and result.trials == 3
    assert result.best is not None and result.best.path.exists()
    assert result.default_seconds >= result.best.seconds


def test_ctrl_c_in_the_final_keeps_the_best_programs_of_the_search(tmp_path):
    """The final of the first of two tasks is interrupted; the second has none."""

    class Interrupted(ReplayRunner):
        options = SimpleNamespace(sample_ms=5.0)
        finals = 0

        def unscheduled(self):
            Interrupted.finals += 1
            return Outcome(Status.OK, (7.0,))

        def interleave(self, candidates, rounds, fresh):
            raise KeyboardInterrupt

        def verify(self, candidate):
            raise AssertionError("nothing is checked after an interrupt")

    results = tune_tasks(
        {"one": matmul(8), "two": matmul(16)}, target=TARGET, trials=6, seed=0,
        runner=lambda f, t: Interrupted(cost=made_up_seconds), work_dir=tmp_path,
        strategy="random", prior=False,
    )  # fmt: skip
    assert Interrupted.finals == 1 and results["one"].unscheduled_seconds == 7.0
    assert [r.ended for r in results.values()] == ["interrupted", "budget"]
    assert all(r.trials == 6 and r.best.path.exists() for r in results.values())


@pytest.mark.parametrize(("written", "wins"), [(2e-4, True), (2e-3, False)])
def test_the_program_as_written_wins_where_all_schedules_are_slower(tmp_path, written, wins):
    def seconds(candidate):
        return written if structural_equal(candidate.module, Schedule(FUNC).mod) else 1e-3

    class Slow(ReplayRunner):
        options = SimpleNamespace(sample_ms=5.0)

        def unscheduled(self):
            return Outcome(Status.OK, (written,))

        def interleave(self, candidates, rounds, fresh):
            return [(seconds(candidate),) * 3 for candidate in candidates]

        def verify(self, candidate):
            return Outcome(Status.OK, (1.0,))

    result = run(tmp_path, trials=6, runner=lambda f, t: Slow(cost=seconds))
    assert (len(result.best.trace) == 0) == wins and result.trials == 6 + wins
    assert result.best.seconds == (written if wins else 1e-3)
    assert len(replay(result.best.path, FUNC, target=TARGET).trace) == len(result.best.trace)


def test_the_final_times_close_programs_again_and_ships_a_right_one(monkeypatch):
    a, b, c, d, far, default = (
        SimpleNamespace(key=name, to_measure=partial(str, name))
        for name in ("a", "b", "c", "d", "far", "default")
    )
    ranking = [(a, 1.0), (b, 1.01), (c, 1.1), (d, 1.3), (far, 2.0), (default, 9.0)]
    run = SimpleNamespace(
        name="f", default=default, population=SimpleNamespace(measured=ranking),
        best_seconds=1.0, progress=SimpleNamespace(trials=64), observer=silent,
    )  # fmt: skip
    timed = {"a": 1.2, "b": 1.0, "c": 1.1, "d": 1.3, "default": 8.0}

    class Final:
        wrong: ClassVar = {"b"}
        options = SimpleNamespace(sample_ms=5.0)

        def interleave(self, candidates, rounds, fresh):
            assert candidates == ["a", "b", "c", "d", "default"] and rounds == 8 and not fresh
            return [(timed[c],) for c in candidates]

        def verify(self, candidate):
            return Outcome(Status.WRONG_RESULT if candidate in self.wrong else Status.OK)

    with pytest.warns(UserWarning, match="f: a fast candidate was refused at last: wrong_result"):
        assert FinalComparison(run, Final()).winner(9.0) == ((c, 1.1), 8.0)
    monkeypatch.setattr(Final, "wrong", {"b", "c", "a", "d", "default"})
    with pytest.warns(UserWarning, match="refused"):
        assert FinalComparison(run, Final()).winner(9.0) == ((far, 2.0), 8.0)
    with pytest.warns(
        UserWarning, match="f: the winner was not timed again beside the default: no time"
    ):
        monkeypatch.setattr(Final, "wrong", set())
        monkeypatch.setattr(Final, "interleave", broken)
        assert FinalComparison(run, Final()).winner(9.0) == ((a, 1.0), 9.0)


def test_the_final_corrects_a_best_time_that_was_far_too_low():
    names = ["stray", "p1", "p2", "p3", "p4"]
    programs = [SimpleNamespace(key=name, to_measure=partial(str, name)) for name in names]
    measured = list(zip(programs, [0.3, 1.0, 1.1, 1.2, 3.0], strict=True))
    run = SimpleNamespace(
        name="f", default=programs[4], population=SimpleNamespace(measured=measured),
        best_seconds=0.3, progress=SimpleNamespace(trials=64), observer=silent,
    )  # fmt: skip
    times = {"stray": 1.4, "p1": 1.1, "p2": 1.0, "p3": 1.2, "p4": 3.0}
    final = SimpleNamespace(
        options=SimpleNamespace(sample_ms=5.0), verify=lambda _: Outcome(Status.OK),
        interleave=lambda candidates, rounds, fresh: [(times[name],) for name in candidates],
    )  # fmt: skip
    assert FinalComparison(run, final).winner(3.0) == ((programs[2], 1.0), 3.0)


def test_preliminaries_time_twice_as_many_programs_as_the_final():
    """By its first reading the fastest is last but one of ten; the slowest two do not go on."""
    names = [f"p{n}" for n in range(10)]
    programs = [SimpleNamespace(key=name, to_measure=partial(str, name)) for name in names]
    run = SimpleNamespace(
        name="f", default=SimpleNamespace(key="default", to_measure=partial(str, "default")),
        population=SimpleNamespace(measured=[(p, 1 + n / 100) for n, p in enumerate(programs)]),
        best_seconds=1.0, progress=SimpleNamespace(trials=64), observer=silent,
    )  # fmt: skip
    asked = []

    def interleave(candidates, rounds, fresh):
        asked.append((candidates, rounds))
        assert not fresh
        slow = {"p0": 1.3, "p3": 1.4, "p8": 0.9, "default": 5.0}
        return [(slow.get(name, 1.2),) for name in candidates]

    right = Outcome(Status.OK)
    final = SimpleNamespace(
        options=SimpleNamespace(sample_ms=5.0), interleave=interleave, verify=lambda _: right
    )
    assert FinalComparison(run, final).winner(5.0) == ((programs[8], 0.9), 5.0)
    assert asked == [
        (names, 3),
        (["p8", "p1", "p2", "p4", "p5", "p6", "p7", "p9", "default"], 8),
    ]


def final_of_a_long_run(times, heard):
    """A final after 200 trials; `times` are those of ten programs and the default in the process of
    the search, then what differs in each further one. Returns the winner and who was timed, and
    appends the steps of the final to `heard`."""
    programs = {n: SimpleNamespace(key=n, to_measure=partial(str, n)) for n in times[0]}
    default = programs["default"]
    some = [(p, 1.0) for p in programs.values() if p is not default]
    run = SimpleNamespace(
        name="f", default=default, population=SimpleNamespace(measured=some), best_seconds=1.0,
        progress=SimpleNamespace(trials=200), observer=heard.append,
    )  # fmt: skip
    asked = []

    def interleave(candidates, rounds, fresh):
        asked.append(candidates)
        number = sum(len(a) < 10 for a in asked)
        assert rounds == 8 and fresh == (number > 0)
        if not isinstance(times[number], dict):
            raise MeasureError(times[number])
        return [({**times[0], **times[number]}[name],) for name in candidates]

    right = Outcome(Status.OK)
    final = SimpleNamespace(
        options=SimpleNamespace(sample_ms=5.0), interleave=interleave, verify=lambda _: right
    )
    (winner, seconds), default_seconds = FinalComparison(run, final).winner(5.0)
    assert default_seconds == 5.0
    return winner.key, round(seconds, 6), asked


TEN = {f"p{n}": 1 + n / 100 for n in range(10)} | {"default": 5.0}


def test_a_long_run_times_the_leaders_in_further_processes():
    """The first is fastest by luck in the search's process; the last two take no part later."""
    slow = {"p0": 1.2, "p1": 1.3}
    heard = []
    times = [TEN, {**slow, "p2": 0.9}, slow, {"p1": 0.1}]
    name, seconds, asked = final_of_a_long_run(times, heard)
    assert (name, seconds) == ("p2", 1.02)
    first = [f"p{n}" for n in range(8)]
    assert asked == [[*first, "p8", "p9", "default"], first, first, first]
    turns = "programs are timed in turns"
    assert heard == [
        FinalStep("f", 1, 6, f"11 {turns}"),
        *(FinalStep("f", n + 1, 6, f"8 {turns} in new process {n} of 3") for n in (1, 2, 3)),
        FinalStep("f", 5, 6, "the fastest program is checked on normally distributed data"),
    ]


def test_a_failed_further_process_is_warned_of_and_the_others_count():
    why = "f: the winner was not timed again in a further process: no memory"
    with pytest.warns(UserWarning, match=why):
        name, seconds, _ = final_of_a_long_run([TEN, "no memory", {"p0": 1.2}, {"p0": 1.2}], [])
    assert (name, seconds) == ("p1", 1.01)


def broken(*_, **__):
    raise MeasureError("no time")


class ReadsAgain(ReplayRunner):
    """The made-up machine, but a program of the second round is read as ten times as fast, and all
    that are read again after the fourth are read as twice as fast."""

    def __init__(self) -> None:
        super().__init__(cost=self.first)
        self.lucky = ""
        self.again: list[list[str]] = []

    def first(self, candidate: Candidate) -> float:
        if candidate.index == 20:
            self.lucky = candidate.key
        return made_up_seconds(candidate) / (10 if candidate.key == self.lucky else 1)

    def read_again(self, candidates) -> dict[str, float]:
        self.again.append([candidate.key for candidate in candidates])
        unit = 1.0 if len(self.again) < 4 else 0.5
        return {candidate.key: unit * made_up_seconds(candidate) for candidate in candidates}


def test_a_time_read_too_low_is_corrected_by_later_readings(tmp_path):
    runner = ReadsAgain()
    best = run(tmp_path / "again", trials=64, runner=lambda *_: runner).best
    lucky = [keys for keys in runner.again if runner.lucky in keys]
    assert lucky[0] == [runner.lucky]  # nothing else was near it then
    assert all(len(set(keys)) == len(keys) <= 6 for keys in runner.again)
    assert best.seconds == pytest.approx(made_up_seconds(Candidate(0, best.mod, best_key(best))))

    class Once(ReadsAgain):
        read_again = None

    once = Once()
    best = run(tmp_path / "once", trials=32, runner=lambda *_: once).best
    assert best_key(best) == once.lucky


def best_key(best) -> str:
    return structural_hash(best.mod)


def test_programs_timed_often_calibrate_later_readings():
    """All seem twice as fast this time; of a program of an earlier run nothing is asked."""
    made = [SimpleNamespace(key=key, to_measure=lambda key=key: key) for key in "abcx"]
    population = Population()
    population.add(made, [1.0, 1.02, 0.96, 0.97])
    readings = {"a": [1.0, 1.0, 1.1], "b": [1.02, 1.02], "c": [0.96]}
    seen = {"a": 0.5, "b": 0.51, "c": 0.55}
    runner = SimpleNamespace(read_again=lambda asked: {key: seen[key] for key in asked})
    run = SimpleNamespace(
        runner=runner, population=population, best_seconds=0.96, phases=Phases(), name="run",
        _readings=readings,
    )  # fmt: skip
    TaskRun._read_again(run)
    assert readings["c"] == [0.96, pytest.approx(1.1)] and len(readings["a"]) == 4
    assert [one.key for one, _ in population.measured] == ["x", "a", "b", "c"]
    assert {one.key: s for one, s in population.measured}["c"] == pytest.approx(1.03)


def test_a_failed_later_reading_is_warned_of(tmp_path):
    class Breaks(ReadsAgain):
        def read_again(self, candidates):
            raise MeasureError("comparing programs failed: gone")

    with pytest.warns(UserWarning, match="fastest were not timed again: comparing .* gone"):
        assert run(tmp_path, runner=lambda *_: Breaks()).best is not None


def test_no_gain_is_expected_after_the_best_time_was_corrected_upwards():
    bests = SimpleNamespace(_bests=[2.0, 1.0, 1.0, 1.0, 1.0, 1.25])
    assert TaskRun.expected_gain(bests) == 0.0
    assert TaskRun.expected_gain(SimpleNamespace(_bests=[2.0, 1.0, 1.0, 1.0, 1.0])) == 0.5
