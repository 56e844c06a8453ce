"""Strategies, cost models, postprocs and mutators of users: found by name, named where broken."""

from __future__ import annotations

import pickle
import sys
import warnings

import numpy as np
import pytest
from search.tasks import TARGET, matmul, replay_runner, small_rounds

import metasched as ms
from metasched.cost.model import COST_MODELS, CostModel
from metasched.errors import PluginError, RegistryError
from metasched.ir.equal import structural_hash
from metasched.ir.scopes import SCOPES, is_scope
from metasched.kinds import SPACES, default_mutators, default_postprocs
from metasched.mutate.base import MUTATORS
from metasched.postproc.base import POSTPROCS
from metasched.registry import Registry, load_plugin, taken_back
from metasched.runtime.devices import DEVICES
from metasched.search import baselines
from metasched.search.pool import ReplayPool
from metasched.search.strategy import STRATEGIES
from metasched.space.module import SCHEDULE_MODULES
from metasched.target import KINDS, TARGETS

FUNC = matmul(32)
DECORATORS = (
    ms.postproc, ms.mutator, ms.strategy, ms.cost_model, ms.schedule_module, ms.runner, ms.builder,
)  # fmt: skip


@pytest.fixture(autouse=True)
def registered_before(monkeypatch):
    """What a test registers is gone afterwards; no replay workers, which take long to start."""
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")
    with taken_back(always=True):
        small_rounds()
        yield


def tuned(folder, **options):
    """A short run, with the sentences of its warnings."""
    settings = {
        "target": TARGET, "trials": 12, "seed": 7, "runner": replay_runner, "prior": False,
        "strategy": "annealing", "model": "random",
    }  # fmt: skip
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        result = ms.tune(FUNC, work_dir=folder, **{**settings, **options})
    return result, [str(w.message) for w in told]


@pytest.mark.parametrize("decorator", DECORATORS)
def test_only_functions_and_classes_are_registered(decorator):
    with pytest.raises(TypeError, match=r"'test\.number' must be a function \(.*\) -> .*, not 3"):
        decorator("test.number")(3)


@pytest.mark.parametrize("decorator", DECORATORS)
def test_a_taken_name_is_refused(decorator):
    decorator("test.twice")(lambda *_: None)
    with pytest.raises(RegistryError, match=r"'test\.twice' is registered already; pass override"):
        decorator("test.twice")(lambda *_: None)
    decorator("test.twice", override=True)(lambda *_: None)


@pytest.mark.parametrize("name", [None, "", 3])
@pytest.mark.parametrize("decorator", DECORATORS)
def test_a_name_is_a_text(decorator, name):
    with pytest.raises(TypeError, match="the name of a .* is a text"):
        decorator(name)(lambda *_: None)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), "much", True])
def test_a_weight_is_a_number(weight):
    with pytest.raises(ValueError, match=r"mutator 'test\.w' has the weight"):
        ms.mutator("test.w", weight=weight)


@pytest.mark.parametrize(
    "registry", [POSTPROCS, MUTATORS, STRATEGIES, COST_MODELS, SPACES, DEVICES, KINDS, TARGETS]
)
def test_an_object_of_another_type_is_refused(registry):
    with pytest.raises(TypeError, match=rf"{registry.kind} 'test.x' must be of type \w+, not int"):
        registry.register("test.x", 3)


EVERYTHING = """
import dataclasses
import metasched as ms
from metasched.ir.scopes import register_scope
from metasched.kinds import SPACES
from metasched.runtime.devices import DEVICES, DeviceOf

register_scope("test.memory")
@ms.target_kind("test-kind")
@dataclasses.dataclass(frozen=True, slots=True)
class Kind(ms.Target):
    kind: str = "test-kind"

ms.register_target("test/one", {"kind": "test-kind"})
SPACES.register("test-kind", SPACES.get("cpu"))
DEVICES.register("test-kind", DeviceOf(build=print))
SPACES.register("cpu", SPACES.get("cpu"), override=True)

@ms.schedule_module("test.module")
def module(sch, block):
    return [sch]

@ms.postproc("test.postproc")
def postproc(sch, target):
    pass

@ms.mutator("test.mutator")
def mutator(trace, rng, target):
    return None

@ms.strategy("test.strategy")
def strategy(task):
    return None

@ms.cost_model("test.model")
def model(seed):
    return None
"""
ENTERED = {
    SCHEDULE_MODULES: "test.module", POSTPROCS: "test.postproc", MUTATORS: "test.mutator",
    STRATEGIES: "test.strategy", COST_MODELS: "test.model", KINDS: "test-kind",
    TARGETS: "test/one", SPACES: "test-kind", DEVICES: "test-kind", SCOPES: "test.memory",
}  # fmt: skip


def test_a_plug_in_file_enters_what_it_brings(tmp_path):
    path = tmp_path / "everything.py"
    path.write_text(EVERYTHING)
    assert set(load_plugin(path)) == set(ENTERED.values())
    assert all(name in registry for registry, name in ENTERED.items())
    assert ms.Target.of("test/one").kind == "test-kind" and is_scope("test.memory")
    assert POSTPROCS.get("test.postproc") is default_postprocs(TARGET)[-1]
    assert (MUTATORS.get("test.mutator"), 0.1) == default_mutators(TARGET)[-1]


def test_a_failing_plug_in_file_leaves_no_registered_entries(tmp_path):
    path = tmp_path / "everything.py"
    path.write_text(EVERYTHING + "\nraise ValueError('late')")
    before = default_postprocs(TARGET), default_mutators(TARGET)
    for _ in range(2):  # the second time too: no name is taken
        with pytest.raises(PluginError, match="raised ValueError: late"):
            load_plugin(path)
    assert not [name for registry, name in ENTERED.items() if name in registry]
    assert (default_postprocs(TARGET), default_mutators(TARGET)) == before
    assert not is_scope("test.memory")


def test_a_plug_in_file_that_another_one_loaded_goes_with_it(tmp_path):
    inner, outer = tmp_path / "inner.py", tmp_path / "outer.py"
    inner.write_text(EVERYTHING)
    load = f"from metasched.registry import load_plugin\nload_plugin({str(inner)!r})\n"
    outer.write_text(load + "1 / 0")
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        load_plugin(outer)
    assert "test.postproc" not in POSTPROCS
    assert "test.postproc" in load_plugin(inner)


def test_an_imported_module_stays_entered_if_its_importer_fails(tmp_path, monkeypatch):
    """Python runs no module twice, so an entry that was taken back would be gone for good."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "test_rules_apart.py").write_text(
        "import metasched as ms\n\n@ms.postproc('test.apart')\ndef apart(sch, target):\n    pass\n"
    )
    path = tmp_path / "importer.py"
    path.write_text("import test_rules_apart\n" + EVERYTHING + "\n1 / 0")
    try:
        with pytest.raises(PluginError, match="ZeroDivisionError"):
            load_plugin(path)
        assert "test.apart" in POSTPROCS and "test.postproc" not in POSTPROCS
    finally:
        sys.modules.pop("test_rules_apart", None)


class Point:
    def __init__(self, name, load):
        self.name, self.load = name, load


def test_an_entry_point_that_breaks_or_is_undecorated_leaves_nothing(monkeypatch):
    def half():
        ms.postproc("test.half")(lambda sch, target: None)
        raise ImportError("the rest is missing")

    def named():
        return ms.postproc("test.own_name")(lambda sch, target: None)

    points = [
        Point("half", half), Point("bare", lambda: lambda sch, target: None), Point("good", named)
    ]  # fmt: skip
    monkeypatch.setattr(POSTPROCS, "_pending", True)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: points)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        names = POSTPROCS.names()
    first, second = (str(w.message) for w in told)
    assert "plug-in half (metasched.postproc) is broken: ImportError: the rest" in first
    assert "plug-in bare" in second and "must be of type UserPostproc, not function" in second
    assert "test.half" not in names and "bare" not in names
    assert "test.own_name" in names and "good" not in names  # once, not under two names


def test_kinds_of_one_group_are_written_alike():
    assert Registry("two words").group == "metasched.two_words"


# -- postprocs and mutators ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "said"), [(False, "it must return None, not bool"), (1 / 3, "float")]
)
def test_a_postproc_that_returns_something_is_named(tmp_path, monkeypatch, found, said):
    monkeypatch.setattr(baselines, "MAX_FAILURES", 3)  # no candidate survives such a postproc
    ms.postproc("test.returns")(lambda sch, target: found)
    result, told = tuned(tmp_path, trials=2, strategy="random")
    (sentence,) = [t for t in told if "postproc test.returns raised TypeError" in t]
    assert said in sentence and result.best is not None


def test_a_postproc_for_another_kind_is_left_out():
    mine = ms.postproc("test.gpu", targets="cuda")(lambda sch, target: None)
    assert mine not in default_postprocs(TARGET) and mine.suits(ms.Target.of("nvidia/nvidia-h100"))


@pytest.mark.parametrize("found", [3, "raise"])
def test_a_mutator_that_fails_is_named_and_the_others_go_on(tmp_path, found):
    def move(trace, rng, target):
        if found == "raise":
            raise KeyError("no such thing")
        return found

    ms.mutator("test.move", weight=10.0)(move)
    result, told = tuned(tmp_path)
    assert len([t for t in told if "mutator test.move raised" in t]) == 1
    assert result.trials == 12


def test_a_postproc_of_a_plug_in_file_runs_in_every_process(tmp_path, monkeypatch):
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "2")
    path = tmp_path / "limit.py"
    path.write_text(EVERYTHING)
    result, told = tuned(tmp_path / "work", plugins=path)
    assert told == [] and result.trials == 12


def test_a_postproc_without_a_global_name_is_run_here_alone():
    mine = ms.postproc("test.local")(lambda sch, target: None)
    with pytest.raises(pickle.PicklingError, match="test.local has no name in another process"):
        pickle.dumps(mine)
    pool = ReplayPool(2)
    try:
        with pytest.warns(UserWarning, match=r"test\.local has no name .* top level of a plug-in"):
            assert pool.prepare(FUNC, [], (mine,), TARGET) is None
    finally:
        pool.close()


# -- cost models -----------------------------------------------------------------------------------


class Judge(CostModel):
    """Asks for everything that a program has."""

    def __init__(self, seed=0):
        self.seen, self.taught = [], []

    def predict_programs(self, programs):
        for one in programs:
            self.seen.append((structural_hash(one.module) == one.key, len(one.trace) > 0))
            assert one.target is TARGET and one.vector.ndim == 1
        return [-len(one.module.script()) for one in programs]

    def update_programs(self, task, programs, seconds):
        self.taught += zip(programs, seconds, strict=True)


@pytest.mark.parametrize("strategy", ["annealing", "evolutionary"])
def test_a_model_is_given_programs_when_it_asks_for_them(tmp_path, strategy):
    model = Judge()
    result, told = tuned(tmp_path, model=model, strategy=strategy)
    assert told == [] and result.trials == 12
    assert model.seen and set(model.seen) == {(True, True)}
    assert len(model.taught) == 12


@pytest.mark.parametrize("ready", [None, False])
def test_scores_of_a_model_count_once_it_has_learnt_unless_it_says_no(tmp_path, monkeypatch, ready):
    monkeypatch.setenv("METASCHED_ROUND_SIZE", "4")
    model = Judge()
    if ready is not None:
        model.ready = ready
    seen = []
    tuned(tmp_path, model=model, strategy="evolutionary", observer=seen.append)
    scores = [event.predicted for event in seen if type(event).__name__ == "TrialDone"]
    assert len(scores) == 12 and scores[:2] == [None, None]
    assert all((score is None) == (ready is False) for score in scores[4:])


def test_a_model_with_members_is_asked_for_their_disagreement(tmp_path, monkeypatch):
    monkeypatch.setenv("METASCHED_ROUND_SIZE", "4")

    class Members(CostModel):
        asked = 0

        def __init__(self, seed=0):
            pass

        def predict(self, vectors):
            return np.zeros(len(vectors))

        def predict_with_spread(self, vectors):
            Members.asked += 1
            return np.zeros(len(vectors)), np.ones(len(vectors))

    result, told = tuned(tmp_path, model=Members(), strategy="evolutionary")
    assert told == [] and result.trials == 12 and Members.asked > 0


class Broken(Judge):
    """A judge of which one answer is wrong."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def predict_programs(self, programs):
        if isinstance(self.answer, Exception | SystemExit):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ValueError("no idea"), "ValueError: no idea"), (SystemExit(3), "SystemExit: 3"),
        (np.zeros(3), r"scores of shape (3,) for"), (None, "scores of shape () for"),
        ("fast", "could not convert string"), ([[1.0], [2.0]], "scores of shape (2, 1) for"),
    ],
)  # fmt: skip
def test_a_model_that_judges_wrongly_is_named_once(tmp_path, answer, said):
    result, told = tuned(tmp_path, model=Broken(answer))
    (sentence,) = told
    assert "the cost model Broken raised" in sentence and said in sentence
    assert result.trials == 12 and result.best.path is not None


def test_a_score_that_is_no_number_is_a_failure_of_the_model(tmp_path):
    model = Judge()
    model.predict_programs = lambda programs: np.full(len(programs), np.nan)
    _, told = tuned(tmp_path, model=model)
    assert ["gives a score that is no finite number" in t for t in told] == [True]


def test_a_model_that_learns_wrongly_is_named_once(tmp_path):
    model = Judge()
    model.update_programs = lambda task, programs, seconds: 1 / 0
    result, told = tuned(tmp_path, model=model)
    assert ["ZeroDivisionError" in t for t in told] == [True] and result.trials == 12


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (lambda seed: 1 / 0, "the cost model test.model raised ZeroDivisionError"),
        (lambda seed: 3, "test.model cannot be used: int has no method update, knows, predict"),
        (lambda: None, "test.model raised TypeError"),
    ],
)
def test_a_model_that_cannot_be_made_is_named_at_once(tmp_path, factory, said):
    ms.cost_model("test.model")(factory)
    with pytest.raises(PluginError, match=said):
        tuned(tmp_path, model="test.model")
    assert not (tmp_path / "metasched.db").exists()


def test_a_model_that_is_given_and_lacks_methods_is_named_at_once(tmp_path):
    with pytest.raises(PluginError, match="the cost model dict cannot be used: dict has no method"):
        tuned(tmp_path, model={"a": 1})


# -- strategies ------------------------------------------------------------------------------------


class ByHand:
    """Proposes schedules that no design space holds."""

    def __init__(self, task):
        self.task, self.widths = task, [2, 4, 8, 16]

    def propose(self, count):
        found = []
        while self.widths and len(found) < count:
            sch = ms.Schedule(FUNC)
            row = sch.get_loops(sch.get_block("Z"))[1]
            sch.parallel(sch.split(row, [None, self.widths.pop()])[0])
            found.append(self.task.factory.finished(sch.trace))
        return found

    def learn(self, candidates, seconds):
        """Nothing."""


def test_a_strategy_proposes_schedules_made_by_hand(tmp_path):
    ms.strategy("test.hand")(ByHand)
    result, told = tuned(tmp_path, strategy="test.hand")
    assert told == [] and result.trials == 5 and result.ended == "exhausted"
    assert result.best.seconds < 1e-2
    replayed = ms.replay(result.best.path, FUNC, target=TARGET)
    assert ms.structural_equal(replayed.mod, result.best.mod)
    again, told = tuned(tmp_path, strategy="random", trials=8)  # the store replays them
    assert told == [] and again.trials == 8 and again.best.seconds <= result.best.seconds


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (lambda task: 1 / 0, "the strategy test.s raised ZeroDivisionError"),
        (lambda task: 3, "the strategy test.s cannot be used: int has no method propose, learn"),
        (lambda: None, "the strategy test.s raised TypeError"),
    ],
)
def test_a_strategy_that_cannot_be_made_is_named_at_once(tmp_path, factory, said):
    ms.strategy("test.s")(factory)
    with pytest.raises(PluginError, match=said):
        tuned(tmp_path, strategy="test.s")


class Wrong(ByHand):
    """A strategy one of whose methods is wrong."""

    answers: object = None

    def propose(self, count):
        if isinstance(self.answers, BaseException):
            raise self.answers
        return self.answers


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (ValueError("no idea"), "ValueError: no idea"), (SystemExit(3), "SystemExit: 3"),
        (None, "a list of candidates, not NoneType"), ([3], "a list of candidates, not list"),
    ],
)  # fmt: skip
def test_a_strategy_that_proposes_wrongly_is_named_once(tmp_path, answer, said):
    ms.strategy("test.s")(type("Answers", (Wrong,), {"answers": answer}))
    result, told = tuned(tmp_path, strategy="test.s")
    (sentence,) = told
    assert "the strategy test.s raised" in sentence and said in sentence
    assert "programs are drawn at random" in sentence and result.trials == 12


@pytest.mark.parametrize("enters", [True, False])
def test_a_strategy_that_learns_wrongly_is_named_and_loses_nothing(tmp_path, enters):
    @ms.strategy("test.s")
    class Forgets(ByHand):
        def learn(self, candidates, seconds):
            if enters:
                self.task.population.add(candidates, seconds)
            measured.append(self.task.population)
            raise IndexError("out of range")

    measured = []
    result, told = tuned(tmp_path, strategy="test.s")
    assert ["IndexError" in t for t in told] == [True] and result.trials == 12
    keys = [one.key for one, _ in measured[0].measured]
    assert len(keys) == len(set(keys)) == 12


def test_a_program_that_is_proposed_twice_is_measured_once(tmp_path):
    @ms.strategy("test.s")
    class Same(ByHand):
        def propose(self, count):
            self.widths = [4]
            (one,) = super().propose(1)
            self.widths = [4]
            return [one, *super().propose(1), one] * count

    result, told = tuned(tmp_path, strategy="test.s")
    assert told == [] and result.trials == 2 and result.ended == "exhausted"
