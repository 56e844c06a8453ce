"""Feature extractors, task schedulers, databases, observers and spaces of users, by name."""

from __future__ import annotations

import json
import pickle
import warnings

import numpy as np
import pytest
from search.tasks import TARGET, matmul, replay_runner, small_rounds

import metasched as ms
from metasched.cost.extractor import EXTRACTORS, extracted
from metasched.database.base import DATABASES, Database, OrderedUnionDatabase, UnionDatabase
from metasched.database.equality import EQUALITIES, ModuleEquality, anchor_block
from metasched.database.store import Store
from metasched.errors import DatabaseError, MetaschedError, PluginError, TraceError, TraceMiss
from metasched.registry import load_plugin, taken_back
from metasched.search.observe import OBSERVERS, EventLog, TrialDone
from metasched.search.pool import ReplayPool
from metasched.search.population import CandidateFactory
from metasched.search.scheduler import TASK_SCHEDULERS, RoundRobin
from metasched.search.strategy import STRATEGIES
from metasched.space.generate import SEARCH_SPACES, ScheduleFn, Union
from metasched.tune import EVENTS, STORE

FUNC, OTHER = matmul(32), matmul(16)
LEARNING = {"model": "line", "strategy": "annealing", "trials": 12}


@pytest.fixture(autouse=True)
def registered_before():
    """What a test registers is gone afterwards."""
    with taken_back(always=True):
        small_rounds()
        yield


def run(folder, tasks=None, **options):
    """A short run of one task or several, with the sentences of its warnings."""
    settings = {
        "target": TARGET, "trials": 6, "seed": 7, "runner": replay_runner, "prior": False,
        "strategy": "random", "model": "random", "work_dir": folder,
    }  # fmt: skip
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        if tasks is None:
            found = ms.tune(FUNC, **{**settings, **options})
        else:
            found = ms.tune_tasks(tasks, **{**settings, **options})
    return found, [str(w.message) for w in told]


@pytest.mark.parametrize("decorator", [
    ms.task_scheduler, ms.database_kind, ms.observer, ms.search_space,
    lambda name, **how: ms.feature_extractor(name, ["n"], **how),
])  # fmt: skip
def test_the_decorators_refuse_what_the_others_refuse(decorator):
    with pytest.raises(TypeError, match=r"'test\.number' must be a function \(.*\) -> .*, not 3"):
        decorator("test.number")(3)
    with pytest.raises(TypeError, match="the name of a .* is a text"):
        decorator("")(lambda *_: None)
    decorator("test.twice")(lambda *_: None)
    with pytest.raises(MetaschedError, match=r"'test\.twice' is registered already"):
        decorator("test.twice")(lambda *_: None)
    decorator("test.twice", override=True)(lambda *_: None)


@pytest.mark.parametrize(
    "registry", [STRATEGIES, TASK_SCHEDULERS, DATABASES, EXTRACTORS, EQUALITIES]
)
def test_no_object_stands_under_two_names(registry):
    items = [registry.get(name) for name in registry.names()]
    assert len({id(item) for item in items}) == len(items)


# -- feature extractors ----------------------------------------------------------------------------


def lines(program, target):
    return [float(len(program.script().splitlines())), float(target.num_cores)]


def test_a_model_is_given_the_numbers_of_a_feature_extractor(tmp_path):
    features = ms.feature_extractor("test.lines", ["lines", "cores"], version=3)(lines)
    result, told = run(tmp_path, features="test.lines", **LEARNING)
    assert told == [] and result.trials == 12
    with np.load(tmp_path / "model.npz") as stored:
        assert (str(stored["features"]), int(stored["version"])) == ("test.lines", 3)
        assert stored["rows"].shape == (12, 2)
    again, told = run(tmp_path, features=features, **LEARNING)
    assert told == [] and again.trials == 12
    _, told = run(tmp_path, **LEARNING)  # what was learnt is of other numbers
    (sentence,) = told
    assert "holds features 'test.lines' of version 3, not 'cpu'" in sentence


@pytest.mark.parametrize(("answer", "said"), [
    (lambda *_: 1 / 0, "ZeroDivisionError"), (lambda *_: [1.0], "shape (1,) for 2 names"),
    (lambda *_: [1.0, float("nan")], "'cores' a value that is no finite number"),
    (lambda *_: "much", "ValueError"),
])  # fmt: skip
def test_a_feature_extractor_that_fails_is_named_once(tmp_path, answer, said):
    ms.feature_extractor("test.lines", ["lines", "cores"])(answer)
    result, told = run(tmp_path, features="test.lines", **LEARNING)
    (sentence,) = told
    assert sentence.startswith("feature extractor test.lines raised") and said in sentence
    assert "the model is given zeros instead" in sentence and result.trials == 12


@pytest.mark.parametrize(("names", "version", "said"), [
    ([], 1, "need names"), (["a", "a"], 1, "need names"), ([3], 1, "need names"),
    (["a"], 0, "version 0"), (["a"], True, "version True"), (["a"], "2", "version '2'"),
])  # fmt: skip
def test_a_feature_extractor_has_names_and_a_version(names, version, said):
    with pytest.raises(ValueError, match=said):
        ms.feature_extractor("test.f", names, version=version)


EXTRACTOR = """
import metasched as ms

@ms.feature_extractor("test.size", ["characters"])
def size(program, target):
    return [len(program.script())]
"""


def test_a_feature_extractor_of_a_plug_in_file_runs_in_every_process(tmp_path):
    path = tmp_path / "extractor.py"
    path.write_text(EXTRACTOR)
    load_plugin(path)
    features, pool = EXTRACTORS.get("test.size"), ReplayPool(2, [str(path)])
    assert pickle.loads(pickle.dumps(features)) is features
    try:
        space = ms.default_space(TARGET)
        there = CandidateFactory(OTHER, TARGET, space, 0, pool, features)
        here = CandidateFactory(OTHER, TARGET, space, 0, None, features)
        one = here.random_member(0, 3)
        assert one.vector.tolist() == [len(one.module.script())]
        assert there.replay(one.trace, 0).vector.tolist() == one.vector.tolist()
    finally:
        pool.close()


def test_a_feature_extractor_without_a_global_name_is_run_here_alone():
    features = ms.feature_extractor("test.here", ["n"])(lambda program, target: [1.0])
    pool = ReplayPool(2)
    try:
        with pytest.warns(UserWarning, match="the feature extractor cannot be sent to other"):
            shop = CandidateFactory(OTHER, TARGET, ms.default_space(TARGET), 0, pool, features)
        assert shop.random_member(0, 3).vector.tolist() == [1.0]
    finally:
        pool.close()


def test_features_of_the_built_in_extractor_pass_the_checks():
    features = EXTRACTORS.get("cpu")
    vector = extracted(features, FUNC, TARGET, features.work(FUNC, TARGET))
    assert vector.shape == (len(features.names),)


# -- task schedulers -------------------------------------------------------------------------------


def test_tasks_take_turns_as_a_task_scheduler_says(tmp_path):
    order = []

    @ms.task_scheduler("test.last")
    class Last(RoundRobin):
        def next(self):
            live = [n for n, task in enumerate(self.runs) if not task.done]
            return live[-1] if live else None

        def ended(self, task):
            order.append(self.runs[task].name)

    tasks = {"a": FUNC, "b": OTHER}
    results, told = run(tmp_path, tasks, scheduler="test.last")
    assert told == [] and order == ["b", "a"]
    assert [result.trials for result in results.values()] == [6, 6]


def test_round_robin_gives_every_task_a_round_before_the_next():
    class Task:
        done = False

    class Plan:
        runs = (Task(), Task(), Task())

    plan = RoundRobin(Plan)
    seen = []
    for _ in range(4):
        seen.append(plan.next())
        plan.ended(seen[-1])
    Plan.runs[1].done = True
    assert seen == [0, 1, 2, 0] and plan.next() == 2
    for task in Plan.runs:
        task.done = True
    assert plan.next() is None


@pytest.mark.parametrize(("answer", "said"), [
    (lambda: 1 / 0, "ZeroDivisionError"), (lambda: "a", "a position from 0 to 1, not 'a'"),
    (lambda: 2, "a position from 0 to 1, not 2"), (lambda: True, "not True"),
])  # fmt: skip
def test_the_gradient_rule_replaces_a_failing_task_scheduler(tmp_path, answer, said):
    class Broken:
        def __init__(self, tasks):
            self.next = answer

        def ended(self, task):
            """Nothing."""

    ms.task_scheduler("test.broken")(Broken)
    results, told = run(tmp_path, {"a": FUNC, "b": OTHER}, scheduler="test.broken")
    (sentence,) = told
    assert "the task scheduler test.broken raised" in sentence and said in sentence
    assert "the gradient rule goes on" in sentence
    assert [result.trials for result in results.values()] == [6, 6]


def test_a_task_scheduler_that_picks_a_finished_task_is_reported(tmp_path):
    @ms.task_scheduler("test.first")
    class First(RoundRobin):
        def next(self):
            return 0

        def ended(self, task):
            raise IndexError("never heard of it") if self.runs[task].done else None

    results, told = run(tmp_path, {"a": FUNC, "b": OTHER}, scheduler="test.first")
    assert len(told) == 1 and "IndexError" in told[0]
    assert [result.trials for result in results.values()] == [6, 6]


def test_a_task_scheduler_that_cannot_be_made_is_named_at_once(tmp_path):
    ms.task_scheduler("test.s")(lambda tasks: 3)
    with pytest.raises(PluginError, match=r"scheduler test\.s cannot be used: int has no method"):
        run(tmp_path, {"a": FUNC}, scheduler="test.s")


# -- databases -------------------------------------------------------------------------------------


class Listed(Database):
    """Keeps records in a list."""

    def __init__(self, folder=None, records=()):
        self.records, self.closed = list(records), False

    def put(self, records):
        self.records += records

    def all(self, workload_hash=None, target=None, status=None, limit=None):
        return [
            one for one in self.records
            if workload_hash in (None, one.workload_hash) and target in (None, one.target_value)
            and status in (None, one.status)
        ][:limit]  # fmt: skip

    def close(self):
        self.closed = True


def test_a_database_of_a_user_keeps_the_records_and_resumes(tmp_path):
    database = Listed()
    first, told = run(tmp_path, database=database)
    assert told == [] and len(database.records) == first.trials == 6 and not database.closed
    assert not (tmp_path / STORE).exists()
    again, told = run(tmp_path, database=database, trials=8)
    assert told == [] and again.trials == 8 and len(database.records) == 8
    assert database.best(first_hash := ms.structural_hash(FUNC), TARGET).seconds == min(
        one.seconds for one in database.records
    )
    assert database.targets(first_hash) == [TARGET] and list(database.workloads()) == [first_hash]


def test_a_database_is_found_by_name_and_closed(tmp_path):
    made = []
    ms.database_kind("test.list")(lambda folder: made.append(Listed()) or made[-1])
    result, told = run(tmp_path, database="test.list")
    assert told == [] and len(made[0].records) == result.trials and made[0].closed
    run(tmp_path, database="memory")
    assert not (tmp_path / STORE).exists()


class BrokenPut(Listed):
    def put(self, records):
        raise OSError("the disk is full")


class BrokenAll(Listed):
    def all(self, *given):
        return ["a record"]


class BrokenClose(Listed):
    def close(self):
        raise OSError("closed already")


@pytest.mark.parametrize(
    ("kind", "said"),
    [(BrokenPut, "OSError: the disk is full"), (BrokenAll, "a list of records, not ['a record']")],
)
def test_a_database_that_fails_is_named_and_nothing_is_lost(tmp_path, kind, said):
    result, told = run(tmp_path, database=kind())
    (sentence,) = told
    assert sentence.startswith(f"the database {kind.__name__} raised") and said in sentence
    with Store(tmp_path / STORE, read_only=True) as store:
        assert len(store) == result.trials == 6


def test_a_database_that_cannot_be_made_or_closed_is_named(tmp_path):
    ms.database_kind("test.number")(lambda folder: 3)
    with pytest.raises(PluginError, match=r"the database test\.number cannot be used: int has no"):
        run(tmp_path, database="test.number")
    ms.database_kind("test.raises")(lambda folder: 1 / 0)
    with pytest.raises(PluginError, match=r"the database test\.raises raised ZeroDivisionError"):
        run(tmp_path, database="test.raises")
    ms.database_kind("test.close")(BrokenClose)
    result, told = run(tmp_path, database="test.close")
    assert result.trials == 6 and told == [
        "the database test.close could not be closed: OSError: closed already"
    ]


def test_unions_of_databases_answer_with_the_best_or_the_first(tmp_path):
    run(tmp_path / "few", trials=2)
    run(tmp_path / "more", trials=8, seed=3)
    with Store(tmp_path / "few" / STORE) as few, Store(tmp_path / "more" / STORE) as more:
        workload = ms.structural_hash(FUNC)
        bests = [one.best(workload, TARGET) for one in (few, more)]
        fastest = min(bests, key=lambda one: one.seconds)
        union, ordered = UnionDatabase(few, more), OrderedUnionDatabase(few, more)
        assert union.best(workload, TARGET) == fastest
        assert ordered.best(workload, TARGET) == bests[0]
        assert OrderedUnionDatabase(Listed(), more).best(workload, TARGET) == bests[1]
        assert OrderedUnionDatabase(Listed()).best(workload, TARGET) is None
        keys = [one.candidate_key for one in union.all(workload)]
        assert len(keys) == len(set(keys)) == len({r.candidate_key for r in few.all() + more.all()})
        assert len(union.all(limit=3)) == 3 and union.targets(workload) == [TARGET]
        own = Listed()
        UnionDatabase(own, more).put(few.all())
        assert len(own.records) == 2 and len(more) == 8
        result, _ = run(tmp_path / "third", database=UnionDatabase(own, more), trials=12)
        assert result.trials == 12 and len(more) == 8
    with pytest.raises(DatabaseError, match="needs at least one"):
        UnionDatabase()


# -- module equality -------------------------------------------------------------------------------


def test_a_database_is_asked_for_the_program_of_a_function(tmp_path):
    database = Listed()
    result, _ = run(tmp_path, database=database)
    best = database.best(ms.structural_hash(FUNC), TARGET)
    assert ms.structural_hash(ms.replay(database, FUNC, target=TARGET).mod) == best.candidate_key
    with pytest.raises(TraceMiss, match="the database: no record of workload"):
        ms.replay(database, OTHER, target=TARGET)
    with pytest.raises(MetaschedError, match="no module equality is called 'exact'"):
        ms.replay(database, FUNC, target=TARGET, equality="exact")


SCALED = """
@T.prim_func
def scaled(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (64, 64), "float32")
    B = T.match_buffer(b, (64, 64), "float32")
    for i, j in T.grid(64, 64):
        with T.block("scale"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32({value})
"""


def test_functions_that_differ_in_constants_share_a_trace(tmp_path):
    one, two = (ms.parse(SCALED.format(value=value)) for value in ("2.5", "0.125"))
    done = ms.tune(one, target=TARGET, trials=3, work_dir=tmp_path, runner=replay_runner,
                   model="random", strategy="random")  # fmt: skip
    with pytest.raises(TraceMiss, match="another workload"):
        ms.replay(done.best.path, two, target=TARGET)
    found = ms.replay(done.best.path, two, target=TARGET, equality="ignore-constants")
    data = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    result = np.zeros_like(data)
    ms.build(found)(data, result)
    assert np.array_equal(result, data * np.float32(0.125))
    with Store(tmp_path / STORE) as store:
        again = ms.replay(store, two, target=TARGET, equality="ignore-constants")
        assert ms.structural_equal(again.mod, found.mod)


PRODUCT = """
@T.prim_func
def product(a: T.handle, b: T.handle, d: T.handle):
    A = T.match_buffer(a, (32, 32), "float32")
    B = T.match_buffer(b, (32, 32), "float32")
    D = T.match_buffer(d, (32, 32), "float32")
    C = T.alloc_buffer((32, 32), "float32")
    for i, j, k in T.grid(32, 32, 32):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(32, 32):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = {last}
"""


def test_functions_with_one_anchor_block_share_a_trace():
    plain, relu = (
        ms.parse(PRODUCT.format(last=last))
        for last in ("C[vi, vj]", "T.max(C[vi, vj], T.float32(0))")
    )
    assert anchor_block(relu).name == "C"
    sch = ms.Schedule(plain)
    sch.parallel(sch.get_loops("C")[0])
    key = EQUALITIES.get("anchor-block").key
    assert key(plain) == key(relu) != key(FUNC)
    database = Listed(records=[record_of(plain, sch)])
    with pytest.raises(TraceMiss):
        ms.replay(database, relu, target=TARGET)
    found = ms.replay(database, relu, target=TARGET, equality="anchor-block")
    assert "T.parallel(32)" in found.mod.script()


def record_of(func, sch):
    from metasched.database.record import Record

    return Record(
        workload_hash=ms.structural_hash(func), workload=func.script(), target=TARGET.to_json(),
        trace=json.loads(sch.trace.to_json()), samples=[1e-6], candidate_key="0" * 32,
    )  # fmt: skip


def test_a_module_equality_of_a_user_that_fails_is_named():
    EQUALITIES.register("test.same", ModuleEquality(lambda func: 1 / 0, ms.Trace.apply))
    database = Listed(records=[record_of(FUNC, ms.Schedule(FUNC))])
    with pytest.raises(TraceError, match="the module equality raised ZeroDivisionError"):
        ms.replay(database, OTHER, target=TARGET, equality="test.same")
    broken = ModuleEquality(ms.structural_hash, lambda sch, trace: 1 / 0)
    EQUALITIES.register("test.apply", broken)
    with pytest.raises(TraceError, match="the module equality raised ZeroDivisionError"):
        ms.replay(database, FUNC, target=TARGET, equality="test.apply")


# -- observers -------------------------------------------------------------------------------------


def test_observers_are_told_candidates_traces_and_outcomes(tmp_path):
    trials = []
    ms.observer("test.watch")(lambda event: trials.append(event) if "trace" in dir(event) else None)
    counted = []
    result, told = run(tmp_path, observer=["test.watch", counted.append])
    assert told == [] and len(trials) == result.trials and len(counted) > len(trials)
    for trial in trials:
        assert isinstance(trial, TrialDone) and trial.outcome.median == trial.seconds
        sch = ms.Schedule(FUNC)
        trial.trace.apply(sch)
        assert ms.structural_hash(sch.mod) == trial.candidate.key
    logged = [json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()]
    kept = next(entry for entry in logged if entry["event"] == "TrialDone")
    assert not {"candidate", "trace", "outcome"} & kept.keys() and "seconds" in kept


def test_an_event_log_writes_infinity_as_null(tmp_path):
    log = EventLog(tmp_path / "e.jsonl")
    log(TrialDone("a", 0, "run_crash", float("inf"), "", float("inf"), 1, 1))
    log.close()
    (entry,) = map(json.loads, (tmp_path / "e.jsonl").read_text().splitlines())
    assert entry["seconds"] is None and entry["best"] is None


def test_a_named_observer_that_fails_is_told_no_more(tmp_path):
    ms.observer("test.fails")(lambda event: 1 / 0)
    result, told = run(tmp_path, observer="test.fails")
    assert result.trials == 6 and len(told) == 1 and "it is not called any more" in told[0]
    assert OBSERVERS.get("test.fails") is not None


# -- spaces ----------------------------------------------------------------------------------------


def rows(sch):
    row = sch.get_loops(sch.get_block("Z"))[1]
    sch.parallel(sch.split(row, sch.sample_perfect_tile(row, n=2))[0])


def columns(sch):
    column = sch.get_loops(sch.get_block("Z"))[2]
    sch.parallel(sch.split(column, sch.sample_perfect_tile(column, n=2))[0])


def test_each_task_may_have_a_space_of_its_own(tmp_path):
    started = []
    ms.search_space("test.rows")(lambda target: ScheduleFn(rows))
    space = {"a": "test.rows", "b": Union((ScheduleFn(rows), Union((ScheduleFn(columns),))))}
    tasks = {"a": FUNC, "b": OTHER, "c": OTHER}
    _, told = run(tmp_path, tasks, space=space, trials=2, observer=started.append)
    spaces = {event.task: event.spaces for event in started if hasattr(event, "spaces")}
    assert told == [] and spaces == {
        "a": 1,
        "b": 2,
        "c": len(ms.default_space(TARGET).generate(OTHER)),
    }


class Own:
    """A space that is no class of metasched's."""

    postprocs, mutators = (), ()

    def __init__(self, made):
        self.made = made

    def generate(self, source, target=None, seed=0):
        return self.made(source)


def test_any_object_with_the_methods_of_a_space_is_one(tmp_path):
    result, told = run(tmp_path, space=Own(ScheduleFn(rows).generate))
    assert told == [] and result.best is not None


@pytest.mark.parametrize(("made", "said"), [
    (lambda source: 1 / 0, "the space Own raised ZeroDivisionError"),
    (lambda source: None, "the space Own must generate a list of traces, not None"),
    (lambda source: [3], "must generate a list of traces, not [3]"),
    (lambda source: [], "the space Own generated no design space"),
])  # fmt: skip
def test_a_space_that_fails_is_named_at_once(tmp_path, made, said):
    with pytest.raises(PluginError) as raised:
        run(tmp_path, space=Own(made))
    assert said in str(raised.value)


def test_a_named_space_that_cannot_be_made_is_named_at_once(tmp_path):
    ms.search_space("test.none")(lambda target: None)
    with pytest.raises(PluginError, match=r"the space test\.none cannot be used: NoneType has no"):
        run(tmp_path, space="test.none")
    assert "test.none" in SEARCH_SPACES and not (tmp_path / STORE).exists()


# -- schedules made by hand ------------------------------------------------------------------------


def test_a_strategy_may_propose_schedules(tmp_path):
    @ms.strategy("test.hand")
    class ByHand:
        def __init__(self, task):
            self.widths = [2, 4, 8]

        def propose(self, count):
            found = []
            while self.widths and len(found) < count:
                sch = ms.Schedule(FUNC)
                row = sch.get_loops(sch.get_block("Z"))[1]
                sch.parallel(sch.split(row, [None, self.widths.pop()])[0])
                found.append(sch)
            return found

        def learn(self, programs, seconds):
            """Nothing."""

    result, told = run(tmp_path, strategy="test.hand")
    assert told == [] and result.trials == 4 and result.ended == "exhausted"
    assert ms.structural_equal(
        ms.replay(result.best.path, FUNC, target=TARGET).mod, result.best.mod
    )


def test_a_schedule_of_another_program_is_a_failure_of_the_strategy(tmp_path):
    @ms.strategy("test.hand")
    class Other:
        def __init__(self, task):
            """Nothing."""

        def propose(self, count):
            sch = ms.Schedule(ms.workloads.get("sfm").func((8, 8)))
            sch.parallel(sch.get_loops(sch.get_child_blocks(sch.get_block("root"))[0])[0])
            return [sch]

        def learn(self, programs, seconds):
            """Nothing."""

    result, told = run(tmp_path, strategy="test.hand")
    assert result.trials == 6 and "the strategy test.hand raised" in told[0]
