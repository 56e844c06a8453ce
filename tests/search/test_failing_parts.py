"""Runners, builders and other parts of users that fail in the process of the search."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import Future

import numpy as np
import pytest
from search.tasks import TARGET, made_up_seconds, matmul

import metasched as ms
from metasched import watch
from metasched.cost.model import CostModel
from metasched.database.base import Database
from metasched.errors import MeasureError, PluginError
from metasched.measure.builder_slot import BuilderSlot
from metasched.measure.candidate import Outcome, Status
from metasched.registry import taken_back
from metasched.search.baselines import RandomSearch
from metasched.search.phases import Phases, timed
from metasched.search.scheduler import RoundRobin

FUNC = matmul(32)


@pytest.fixture(autouse=True)
def registered_before(monkeypatch):
    """What a test registers is gone afterwards; no replay workers, which take long to start."""
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")
    with taken_back(always=True):
        yield


class Table:
    """A runner that looks times up; subclasses fail."""

    tells = True

    def __init__(self, func, target):
        self.rounds = 0

    def measure(self, candidates, on_outcome=None):
        self.rounds += 1
        found = [Outcome(Status.OK, (made_up_seconds(one),), check="exact") for one in candidates]
        if self.tells:
            for one, outcome in zip(candidates, found, strict=True):
                on_outcome(one, outcome)
        return self.answer(found)

    def answer(self, found):
        return found

    def close(self):
        """Nothing runs."""


def tuned(folder, **options):
    """A short run, with the sentences of its warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        result = run(folder, **options)
    return result, [str(w.message) for w in told]


def run(folder, **options):
    settings = {
        "target": TARGET, "trials": 12, "seed": 7, "runner": Table, "prior": False,
        "strategy": "random", "model": "random",
    }  # fmt: skip
    return ms.tune(FUNC, work_dir=folder, **{**settings, **options})


def ended(*_):
    os._exit(7)


@pytest.mark.parametrize(("answer", "said"), [
    (lambda found: 1 / 0, "raised ZeroDivisionError"), (ended, r"raised SystemExit: os\._exit\(7"),
    (lambda found: 3, "must return 12 outcomes, one for each candidate, not int"),
    (lambda found: found[1:], "must return 12 outcomes, one for each candidate, not 11 values"),
    (lambda found: [3] * 12, "must return 12 outcomes"),
])  # fmt: skip
def test_a_runner_that_fails_is_named(tmp_path, answer, said):
    ms.runner("test.r")(type("Fails", (Table,), {"answer": lambda self, found: answer(found)}))
    with pytest.raises(MeasureError, match=f"^the runner test.r {said}"):
        tuned(tmp_path, runner="test.r")


@pytest.mark.parametrize(("made", "said"), [
    (lambda func, target: 1 / 0, "raised ZeroDivisionError"),
    (lambda func, target: 3, "cannot be used: int has no method measure, close"),
])  # fmt: skip
def test_a_runner_that_cannot_be_made_is_named(tmp_path, made, said):
    ms.runner("test.r")(made)
    with pytest.raises(PluginError, match=f"the runner test.r {said}"):
        tuned(tmp_path, runner="test.r")


def test_a_runner_that_fails_late_leaves_the_trace_of_the_best_program(tmp_path, monkeypatch):
    class Tires(Table):
        def answer(self, found):
            return found if self.rounds < 3 else 1 / 0

    monkeypatch.setenv("METASCHED_ROUND_SIZE", "4")
    with (
        pytest.raises(MeasureError, match="the runner Tires raised ZeroDivisionError"),
        pytest.warns(UserWarning, match=r"the best program until then takes .*; its trace is"),
    ):
        run(tmp_path, runner=Tires)  # fmt: skip
    (path,) = tmp_path.glob("*.trace.json")
    assert ms.replay(path, FUNC, target=TARGET).mod is not None
    assert tuned(tmp_path)[0].trials == 12  # the twelve of the failed run were stored


def test_outcomes_count_once_whether_or_not_a_runner_tells_them_at_once(tmp_path):
    quiet = type("Quiet", (Table,), {"tells": False})
    result, told = tuned(tmp_path, runner=quiet)
    assert told == [] and result.trials == 12 == len(result.history)


def test_a_runner_that_cannot_be_closed_ends_with_a_warning(tmp_path):
    result, told = tuned(tmp_path, runner=type("Open", (Table,), {"close": lambda self: 1 / 0}))
    (sentence,) = told
    assert "the runner Open could not be closed" in sentence and "ZeroDivisionError" in sentence
    assert result.trials == 12


@pytest.mark.parametrize(("submit", "said"), [
    (lambda self, func, target: 3, "submit must return a future, not int"),
    (lambda self, func, target: ended(), r"SystemExit: os._exit(7)"),
    (lambda self, func, target: _done(3), "its future must give a Built, not int"),
])  # fmt: skip
def test_a_builder_that_fails_is_named(submit, said):
    slot = BuilderSlot("builder", ms.builder("test.b")(type("B", (), {"submit": submit}))())
    slot.submit("build", FUNC, TARGET, limit=1.0)
    with pytest.warns(UserWarning, match="the builder test.b raised"):
        reply = slot.receive()
    assert reply.kind == "error" and said in reply.message and "test.b" in reply.message


@pytest.mark.parametrize(("part", "title"), [
    ("builder", "the builder test.b"), ("model", "the cost model Slow"),
    ("extractor", "feature extractor test.f"),
])  # fmt: skip
def test_a_part_that_judges_or_builds_and_does_not_answer_is_named(monkeypatch, part, title):
    """Each part waits until a warning names it, for at most 2 s. A build that never ends is given
    up after the limit; a feature extractor is stopped."""
    told = []

    def waits(*_):
        for _ in range(200):
            if told:
                break
            watch.time.sleep(0.01)
        return Future() if part == "builder" else [1.0]

    monkeypatch.setattr(watch, "NAMED", 0.02)
    monkeypatch.setattr(watch, "_LOOK", 0.01)
    monkeypatch.setattr(watch, "warn", told.append)
    if part == "builder":
        made = type("B", (), {"submit": lambda self, *given: waits(*given)})
        slot = BuilderSlot("builder", ms.builder("test.b")(made)())
        slot.submit("build", FUNC, TARGET, limit=1.0)
        reply = slot.expire()
        assert reply.kind == "timeout" and "no reply within" in reply.message and not slot.busy
    elif part == "model":
        model = timed(type("Slow", (CostModel,), {"predict": waits})(), Phases())
        assert model.predict(np.zeros((1, 2))).tolist() == [1.0]
    else:
        extract = ms.feature_extractor("test.f", ["one"])(waits)
        assert extract.vector(FUNC, TARGET, 0.0).tolist() == [1.0]
    then = "it is stopped after 20 s" if part == "extractor" else "Ctrl-C ends it"
    assert told == [f"{title} still runs after 0 s; {then}"]


def _done(value):
    future = Future()
    future.set_result(value)
    return future


class Leaves:
    """A part of a search whose methods end the process."""

    def __init__(self, *_):
        """Nothing to prepare."""

    propose = learn = next = ended = ended


class LeavingDatabase(Database):
    def __init__(self, *_):
        """Nothing to prepare."""

    put = all = ended


@pytest.mark.parametrize(("enter", "option", "part", "then"), [
    (ms.strategy, "strategy", Leaves, "programs are drawn at random"),
    (ms.task_scheduler, "scheduler", Leaves, "the gradient rule goes on"),
    (ms.database_kind, "database", LeavingDatabase, "records go to"),
])  # fmt: skip
def test_a_part_that_ends_the_process_is_named_and_replaced(
    tmp_path, monkeypatch, enter, option, part, then
):
    enter("test.leaves")(part)
    monkeypatch.setenv(f"METASCHED_{option.upper()}", "test.leaves")
    chosen = {} if option == "scheduler" else {option: "test.leaves"}
    result, (sentence, *others) = tuned(tmp_path, **chosen)
    assert "test.leaves raised SystemExit: os._exit(7)" in sentence and then in sentence
    assert result.trials == 12 and others == []


def test_parts_that_do_not_answer_are_named(tmp_path, monkeypatch):
    """Each part waits until a warning names it, for at most 2 s."""
    told = []

    def waits(title):
        for _ in range(200):
            if any(title in text for text in told):
                return
            watch.time.sleep(0.01)

    @ms.strategy("test.slow")
    class SlowStrategy(RandomSearch):
        def propose(self, count):
            waits("the strategy test.slow")
            return super().propose(count)

    @ms.task_scheduler("test.slow")
    class SlowScheduler(RoundRobin):
        def next(self):
            waits("the task scheduler test.slow")
            return super().next()

    class SlowDatabase(Database):
        def put(self, records):
            """Keeps nothing."""

        def all(self, *_, **__):
            waits("the database SlowDatabase")
            return []

    def slow_observer(event):
        waits("slow_observer")

    monkeypatch.setattr(watch, "NAMED", 0.02)
    monkeypatch.setattr(watch, "_LOOK", 0.01)
    monkeypatch.setattr(watch, "warn", told.append)
    monkeypatch.setenv("METASCHED_SCHEDULER", "test.slow")
    run(
        tmp_path, trials=2, strategy="test.slow", database=SlowDatabase(),
        observer=slow_observer,
    )  # fmt: skip
    named = [text.partition(" still runs after 0 s; ")[0] for text in told if "still runs" in text]
    for title in ("strategy test.slow", "task scheduler test.slow", "SlowDatabase"):
        assert any(title in text for text in named), title
    assert any("slow_observer" in text for text in named)


def test_a_model_may_judge_programs_and_learn_nothing(tmp_path):
    class Short(CostModel):
        asked = 0

        def predict_programs(self, programs):
            Short.asked += 1
            return [-len(one.module.script()) for one in programs]

    result, told = tuned(tmp_path, model=Short(), strategy="annealing", trials=4)
    assert told == [] and result.trials == 4 and Short.asked > 0


def test_a_model_may_learn_from_programs_and_judge_vectors(tmp_path):
    class Learns(CostModel):
        taught = 0

        def update_programs(self, task, programs, seconds):
            Learns.taught += len([one.module for one in programs])

        def predict(self, vectors):
            return np.zeros(len(vectors))

    result, told = tuned(tmp_path, model=Learns(), strategy="annealing", trials=4)
    assert told == [] and result.trials == 4 == Learns.taught


def test_a_model_without_any_score_is_named_at_once(tmp_path):
    @ms.cost_model("test.mute")
    class Mute(CostModel):
        def __init__(self, seed):
            """Nothing to prepare."""

    said = "test.mute cannot be used: Mute has neither predict nor predict_programs"
    with pytest.raises(PluginError, match=said):
        tuned(tmp_path, model="test.mute")
