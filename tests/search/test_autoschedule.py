"""autoschedule: right, the same in every process, measured first by tune, honest where it fails."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from search.tasks import TARGET, matmul, replay_runner

import metasched as ms
from metasched.cost.model import RandomModel
from metasched.database.store import Store
from metasched.errors import MetaschedError, ScheduleError, TuneError
from metasched.kinds import default_space, default_trace
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T
from metasched.search import autoscheduler
from metasched.search.autoscheduler import GAIN, first_guess
from metasched.search.parts import guide_of
from metasched.search.population import CandidateFactory
from metasched.space.generate import ScheduleFn
from metasched.space.module import ScheduleModule
from metasched.tune import STORE, tune


def rejects_all(sch, target):
    """A postproc under which no sample of a space is left."""
    raise ScheduleError("rejects-all", "it rejects all", "")


def default_of(func, target=TARGET):
    sch = ms.Schedule(func)
    default_trace(func, target).apply(sch)
    return sch


@pytest.mark.parametrize(("name", "shape"), [
    ("gmm", (1, 33, 29, 31)), ("sfm", (9, 35)),
    ("gmm_u8s8s32", (1, 16, 16, 16)),
])  # fmt: skip
def test_the_kernel_computes_what_the_program_says(name, shape):
    work = ms.workloads.get(name)
    func = work.func(shape)
    sch = ms.autoschedule(func)
    again = ms.Schedule(func)
    sch.trace.simplified().apply(again)
    assert ms.structural_equal(again.mod, sch.mod)
    inputs = work.inputs(shape)
    made = ms.build(sch)(*inputs)
    np.testing.assert_allclose(made, work.reference(shape, *inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("cpu", "name", "size", "step"), [
    ("haswell", "gmm_bf16", 128, "sch.widen_dtype("),
    ("sapphirerapids", "gmm_u8s8s32", 512, "amx.matmul_16x16x64_u8i8i32"),
])  # fmt: skip
def test_products_of_narrow_types_are_fast_without_a_measurement(cpu, name, size, step):
    """Converted once where the machine has no instruction, otherwise by its fastest."""
    func = ms.workloads.get(name).func((1, size, size, size))
    assert step in str(ms.autoschedule(func, f"llvm -mcpu={cpu} -num-cores=2").trace)


def test_running_sums_of_long_rows_are_scanned_in_lanes():
    """Rows side by side in the steps of one loop are 8 KB apart: they fall into one set of L1."""

    @T.prim_func
    def sums(X: T.Buffer((512, 2048)), Y: T.Buffer((512, 2048))):
        for i, j in T.grid(512, 2048):
            with T.block("sums"):
                vi, vj = T.axis.spatial(512, i), T.axis.scan(2048, j)
                Y[vi, vj] = T.if_then_else(vj == 0, X[vi, vj], Y[vi, vj - 1] + X[vi, vj])

    sch = ms.autoschedule(sums, "llvm -mcpu=znver4 -num-cores=2")
    assert "pragma_scan_lanes" in sch.mod.script()
    X = np.random.default_rng(0).standard_normal((512, 2048), np.float32)
    made = ms.build(ms.autoschedule(sums))(X)
    np.testing.assert_allclose(made, np.cumsum(X, 1), rtol=1e-4, atol=1e-4)


def test_processes_with_other_hash_seeds_and_other_work_give_the_same_schedule():
    code = (
        "import os, metasched as ms\n"
        "if os.environ['METASCHED_SEED'] == '2':\n"
        "    ms.autoschedule(ms.workloads.get('nrm').func((1, 24, 40)))\n"
        f"sch = ms.autoschedule(ms.workloads.get('sfm').func((40, 72)), {TARGET.to_json()!r})\n"
        "print(sch.trace.simplified().to_json(), ms.structural_hash(sch.mod))"
    )
    shells = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
            env={"PYTHONHASHSEED": seed, "METASCHED_SEED": seed},
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    first, second = (shell.communicate()[0] for shell in shells)
    assert first == second and "sample_categorical" in first


def test_tune_measures_the_autoscheduled_program_right_after_candidate_0(tmp_path):
    func = matmul(48)
    options = {"target": TARGET, "trials": 3, "runner": replay_runner, "work_dir": tmp_path}
    tune(func, **options, seed=5, prior=True)
    tune(func, **options, seed=5, prior=True)
    with Store(tmp_path / STORE) as store:
        records = sorted(store.all(ms.structural_hash(func), TARGET), key=lambda r: r.index)
    expected = [default_of(func), ms.autoschedule(func, TARGET)]
    assert [r.candidate_key for r in records[:2]] == [ms.structural_hash(s.mod) for s in expected]
    assert len(records) == 3 and records[1].predicted is not None


@pytest.mark.parametrize("options", [{"prior": False}, {"prior": True, "model": RandomModel()}])
def test_tune_without_a_prior_does_not_autoschedule(options, tmp_path, monkeypatch):
    monkeypatch.setattr("metasched.search.run.first_guess", None)
    found = tune(
        matmul(16), target=TARGET, trials=2, runner=replay_runner, work_dir=tmp_path, **options
    )
    assert found.trials == 2


def test_a_space_without_a_legal_sample_gives_the_default_schedule_and_a_warning():
    space = ms.SpaceGenerator(default_space(TARGET).modules, (rejects_all,))
    text = "autoschedule gives the default schedule: no sample of the design spaces is legal"
    with pytest.warns(UserWarning, match=text):
        sch = ms.autoschedule(matmul(16), TARGET, space=space)
    assert ms.structural_equal(sch.mod, default_of(matmul(16)).mod)


def test_run_time_extents_need_sizes(recwarn):
    rows = parse("""
@T.prim_func
def rows(x: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n, 64), "float32")
    Y = T.match_buffer(y, (n,), "float32")
    for i, j in T.grid(n, 64):
        with T.block("sum"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                Y[vi] = T.float32(0)
            Y[vi] += X[vi, vj]
""")
    with pytest.warns(UserWarning, match="no sizes to schedule for: name each by sizes={'n': 1024"):
        plain = ms.autoschedule(rows, TARGET)
    assert ms.structural_equal(plain.mod, default_of(rows).mod)
    with pytest.raises(MetaschedError, match="sizes name 'm'; the run-time extents are: n"):
        ms.autoschedule(rows, TARGET, sizes={"m": 3})
    recwarn.clear()
    sized = ms.autoschedule(rows, TARGET, sizes={"n": 1000})
    assert not recwarn.list
    for n in (0, 1, 7):
        x, y = np.ones((n, 64), np.float32), np.zeros(n, np.float32)
        ms.build(sized)(x, y)
        assert (y == 64).all()


def test_a_space_that_holds_only_the_program_as_written_is_no_lack(recwarn):
    sch = ms.autoschedule(matmul(16), TARGET, space=ms.SpaceGenerator(()))
    assert ms.structural_equal(sch.mod, default_of(matmul(16)).mod)
    assert not recwarn.list


def test_an_init_that_postprocs_move_with_proof_only(recwarn):
    """The replays of drafts prove no step, so they move the init of a block that reads its other
    results; the proof decides whether the program that is given may do so."""
    func = parse("""
@T.prim_func
def top2(X: T.Buffer((30, 50), "float32"), Y: T.Buffer((30, 2), "float32")):
    for i, k in T.grid(30, 50):
        with T.block("Y"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                Y[vi, 0] = T.min_value("float32")
                Y[vi, 1] = T.min_value("float32")
            Y[vi, 1] = T.max(Y[vi, 1], T.min(Y[vi, 0], X[vi, vk]))
            Y[vi, 0] = T.max(Y[vi, 0], X[vi, vk])
""")
    sch = ms.autoschedule(func, TARGET)
    x, y = np.random.default_rng(0).standard_normal((30, 50), np.float32), np.zeros((30, 2), "f4")
    build(sch, target="native")(x, y)
    np.testing.assert_array_equal(y, np.sort(x, 1)[:, :-3:-1])
    assert not recwarn.list


def test_eighteen_samples_and_six_generations_are_replayed():
    factory = CandidateFactory(matmul(32), TARGET, default_space(TARGET))
    default = factory.finished(default_trace(factory.func, TARGET))
    asked, plain = [], factory.replay_many
    factory.replay_many = lambda requests: asked.append(len(requests)) or plain(requests)
    first_guess(factory, prior_model(), default)
    samples, *generations = asked
    assert samples == 18 and len(generations) == 6 and max(generations) <= 4
    assert factory.survival.tried <= 18 + 24 + 8 * len(factory.spaces)


def test_sixteen_of_many_design_spaces_are_sampled():
    def five_ways(sch, block):
        ways = [sch.copy() for _ in range(5)] if sch.get(block).name != "root" else [sch]
        for n, way in enumerate(ways):
            way.annotate(block, f"way_{n}", n)
        return ways

    modules = (*default_space(TARGET).modules, ScheduleModule("five_ways", ("cpu",), five_ways))
    factory = CandidateFactory(matmul(32), TARGET, ms.SpaceGenerator(modules))
    assert len(factory.spaces) > 16
    default = factory.finished(default_trace(factory.func, TARGET))
    sampled, plain = [], factory.sample
    factory.sample = lambda space, seed: sampled.append(space) or plain(space, seed)
    first_guess(factory, prior_model(), default)
    assert len(set(sampled)) == 16 and sampled[0] == 0 and sampled[-1] > len(factory.spaces) * 3 / 4


def test_a_sample_is_the_random_member_that_is_proved(monkeypatch):
    """A `require` that fails draws again, also behind steps that were taken over."""
    factory = CandidateFactory(matmul(64), TARGET, default_space(TARGET))
    redrawn, redo = [], Schedule._redo

    def counted(sch, decisions):
        redrawn.append(len(sch._history) < len(sch.trace))
        redo(sch, decisions)

    monkeypatch.setattr(Schedule, "_redo", counted)
    for space in range(len(factory.spaces)):
        for seed in range(4):
            sampled, proved = factory.sample(space, seed), factory.random_member(space, seed)
            assert (sampled is None) == (proved is None)
            if proved is not None:
                assert sampled.key == proved.key
                assert sampled.trace.decisions() == proved.trace.decisions()
                assert factory.admits(sampled)
    assert any(redrawn)


def test_the_default_schedule_is_ranked_beside_the_programs_of_the_spaces():
    func = matmul(16)
    factory = CandidateFactory(func, TARGET, default_space(TARGET))
    default = factory.finished(default_trace(func, TARGET))

    class LikesTheDefault:
        ready = True

        def predict(self, vectors):
            return np.array([float((v == default.vector).all()) for v in vectors])

    guess = first_guess(factory, LikesTheDefault(), default)
    assert guess.candidate is default and not guess.lack


@pytest.mark.parametrize("lead", [GAIN - 0.1, GAIN + 0.1])
def test_the_program_as_written_is_to_be_outscored_but_not_chosen(lead):
    factory = CandidateFactory(matmul(16), TARGET, default_space(TARGET))
    default = factory.finished(default_trace(factory.func, TARGET))
    written = factory.finished(ms.Trace())

    class LikesTheProgramAsWritten:
        ready = True

        def predict(self, vectors):
            scores = ((default.vector, -9.0), (written.vector, 0.0))
            return np.array([next((s for k, s in scores if (v == k).all()), lead) for v in vectors])

    guess = first_guess(factory, LikesTheProgramAsWritten(), default)
    assert (guess.candidate is default) == (lead < GAIN) and guess.candidate is not written
    assert guess.candidate.score == (-9.0 if lead < GAIN else lead)


@pytest.mark.parametrize(("lead", "chosen"), [(GAIN - 0.1, False), (GAIN + 0.1, True)])
def test_a_small_lead_over_the_default_schedule_is_no_gain(lead, chosen):
    factory = CandidateFactory(matmul(16), TARGET, default_space(TARGET))
    default = factory.finished(default_trace(factory.func, TARGET))
    written = factory.finished(ms.Trace())

    class ScoresTheSpaces:
        ready = True

        def predict(self, vectors):
            known = [default.vector, written.vector]
            return np.array([0.0 if any((v == k).all() for k in known) else lead for v in vectors])

    guess = first_guess(factory, ScoresTheSpaces(), default)
    assert (guess.candidate.space >= 0) == chosen and not guess.lack


def test_illegal_programs_are_passed_over(monkeypatch):
    """Ranked programs are replayed without proofs; the proofs decide which one is given."""
    func = matmul(32)
    factory = CandidateFactory(func, TARGET, default_space(TARGET))
    default = factory.finished(default_trace(func, TARGET))
    model = prior_model()
    best = first_guess(factory, model, default).candidate
    admits, asked = factory.admits, []

    def refuses(candidate):
        asked.append(candidate)
        return len(asked) > 1 and admits(candidate)

    monkeypatch.setattr(factory, "admits", refuses)
    second = first_guess(factory, model, default).candidate
    assert asked[0].key == best.key and second is asked[1] and second.key != best.key


def test_a_space_of_illegal_programs_is_left_after_two_proofs_and_the_search_after_eight(
    monkeypatch,
):
    factory = CandidateFactory(matmul(32), TARGET, default_space(TARGET))
    default = factory.finished(default_trace(factory.func, TARGET))
    asked = Counter()
    monkeypatch.setattr(factory, "admits", lambda candidate: asked.update([candidate.space]))
    guess = first_guess(factory, prior_model(), default)
    assert guess.candidate.space == -1 and not guess.lack
    assert max(asked.values()) == autoscheduler.DOUBTED
    assert asked.total() <= autoscheduler.PROVED


def prior_model():
    model = guide_of(TARGET)
    assert model is not None
    return model


def test_a_space_of_ones_own_is_used():
    def by_rows(sch):
        sch.parallel(sch.get_loops(sch.get_block("Z"))[1])

    func = matmul(16)
    sch = ms.autoschedule(func, TARGET, space=ScheduleFn(by_rows))
    assert "parallel" in sch.script()


def test_a_module_of_several_functions_is_refused():
    func = matmul(16)
    with pytest.raises(TuneError, match=r"the module has 2 functions \(a, b\); pass one of them"):
        ms.autoschedule(ms.IRModule({"a": func, "b": func}))
