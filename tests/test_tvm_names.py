"""Names that users of TVM type: each is taken, or answered by what to write instead."""

from __future__ import annotations

import importlib
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from measure.programs import elementwise

import metasched as ms
from metasched import tvm_names, workloads
from metasched.errors import LowerError
from metasched.ir.stmt import Block
from metasched.ir.visit import walk
from metasched.schedule import analysis

GMM = workloads.get("gmm").func((1, 8, 8, 8))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("topi", "write the operator with ms.te"),
        ("tir", "from metasched.script import tir as T"),
        ("relay_integration", "ms.tune_tasks(functions, weights=calls)"),
        ("tune_tir", "ms.tune(func, trials=64"),
        ("TuneConfig", "settings are arguments of ms.tune"),
        ("time_evaluator", "kernel.time(*arguments)"),
        ("nd", "NumPy arrays and tensors with DLPack"),
        ("compile", "ms.build(func, target)"),
        ("JSONDatabase", "`metasched db` lists it"),
        ("PyScheduleRule", "@ms.schedule_module"),
        ("RPCRunner", "ms.LocalRunner(func, target)"),
        ("XGBModel", "lightgbm, line, random"),
        ("Shedule", "did you mean Schedule"),
        ("tune_task", "did you mean tune_tasks"),
    ],
)
def test_names_of_the_package(name, words):
    with pytest.raises(AttributeError, match=re.escape(words)) as caught:
        getattr(ms, name)
    assert f"module 'metasched' has no attribute {name!r}; " in str(caught.value)


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("database", "JSONDatabase", "; ms.tune keeps a database in its work_dir; "),
        ("database", "stor", "; did you mean store?"),
        ("schedule", "BlockRV", "; it is metasched.BlockRV"),
        ("cost", "_bases", ""),
    ],
)
def test_names_of_modules_below_the_package(module, name, words):
    importlib.import_module(f"metasched.{module}")
    message = f"module 'metasched.{module}' has no attribute {name!r}{words}"
    with pytest.raises(AttributeError, match=re.escape(message) + ("" if words else "$")):
        getattr(getattr(ms, module), name)


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        ("runner", "LocalRunner", "(func, target) -> ms.LocalRunner(func, target)"),
        ("builder", "LocalBuilder", "ms.LocalRunner(func, target), which builds too"),
        ("cost_model", "XGBModel", "lightgbm, line, random"),
        ("task_scheduler", "GradientBased", "@ms.task_scheduler(name)"),
        ("postproc", "RewriteLayout", "@ms.postproc(name)"),
        ("mutator", "MutateTileSize", "@ms.mutator(name)"),
    ],
)
def test_names_in_modules_of_tvm_that_are_functions_here(module, name, words):
    message = f"metasched has no {module}.{name}; "
    with pytest.raises(AttributeError, match=re.escape(message) + ".*" + re.escape(words)):
        getattr(getattr(ms, module), name)(timeout_sec=10)


def test_every_function_with_the_name_of_a_module_of_tvm_answers():
    assert set(tvm_names.BELOW) == ms._MODULES_OF_TVM


def test_names_that_nobody_knows_get_no_advice():
    with pytest.raises(AttributeError, match="has no attribute 'qqqq'$"):
        ms.qqqq
    assert not hasattr(ms, "__wrapped__") and not hasattr(ms.Schedule(GMM), "__wrapped__")


def test_every_hint_is_for_a_name_that_is_not_there():
    kernel, sch = ms.build(GMM), ms.Schedule(GMM)
    assert not [n for n in tvm_names.KERNEL if hasattr(kernel, n)]
    assert not [n for n in tvm_names.SCHEDULE if hasattr(sch, n)]
    modules = {p.stem for p in Path(ms.__file__).parent.iterdir()}
    assert not [n for n in tvm_names.PACKAGE if hasattr(ms, n) and n not in modules]


def test_questions_about_a_schedule_have_the_names_of_tvm():
    row = next(
        line
        for line in Path(ms.__file__).with_name("COMING_FROM_TVM.md").read_text().splitlines()
        if "tvm.tir.schedule.analysis" in line
    )
    names = re.findall(r"`(\w+_\w+)`", row)
    assert "suggest_index_map" in names
    assert set(names) <= set(analysis.__all__)
    assert all(callable(getattr(analysis, name)) for name in names)


def test_every_name_in_the_hints_exists():
    for table in (tvm_names.PACKAGE, tvm_names.KERNEL, tvm_names.SCHEDULE, tvm_names.TRACE):
        for words in table.values():
            for name in re.findall(r"\bms\.(\w+)", words):
                assert hasattr(ms, name), words


def test_names_of_a_kernel():
    kernel = ms.build(GMM)
    with pytest.raises(AttributeError, match=r"no 'time_evaluator'; time\(\*arguments\) gives"):
        kernel.time_evaluator
    with pytest.raises(AttributeError, match="a kernel has no 'exprt'; did you mean export"):
        kernel.exprt
    both = ms.build(ms.IRModule.of({"f": GMM, "g": GMM}))
    with pytest.raises(AttributeError, match="'time_evaluator'; time"):
        both.time_evaluator


def test_names_of_a_schedule():
    sch = ms.Schedule(GMM)
    for name, words in (
        ("set_axis_separator", "there are no axis separators"), ("tile", "split both loops"),
        ("get_blok", "did you mean get_block"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=f"a schedule has no '{name}'; .*{words}"):
            getattr(sch, name)


def test_names_of_a_trace():
    trace = ms.Schedule(GMM).trace
    for name, words in (
        ("as_json", r"to_json\(\) gives a text"), ("get_decision", "sampling"),
        ("applies", "did you mean apply"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=f"a trace has no '{name}'; .*{words}"):
            getattr(trace, name)
    assert not hasattr(trace, "__wrapped__")
    assert not [n for n in tvm_names.TRACE if n in dir(trace)]


def test_older_keywords_of_blockize_and_transform_layout():
    def blocks(sch):
        return [n.name for n in walk(sch.mod["main"].body) if isinstance(n, Block)]

    made = []
    for keyword in ("target", "loop"):
        sch = ms.Schedule(GMM)
        loop = sch.get_loops(sch.get_block("Z"))[2]
        sch.blockize(**{keyword: loop})
        made.append(sch)
    ms.assert_structural_equal(made[0].mod, made[1].mod)
    assert "Z_o" in blocks(made[0]) and made[0].trace.as_python() == made[1].trace.as_python()
    by_block = ms.Schedule(elementwise(lambda x: x))
    by_block.blockize(blocks=[by_block.get_block("B")], preserve_unit_iters=True)
    assert len(blocks(by_block)) == 3
    with pytest.raises(TypeError, match="has no argument 'loop'"):
        sch.blockize(target=loop, loop=loop)


def test_a_buffer_by_its_index():
    def swapped(b, i, j):
        return b, j, i

    made = []
    for keywords in (
        {"buffer": ("read", 1)}, {"buffer_index": 1, "buffer_index_type": "read"}, {"buffer": "Y"},
    ):  # fmt: skip
        sch = ms.Schedule(GMM)
        sch.transform_layout(sch.get_block("Z"), index_map=swapped, **keywords)
        made.append(sch)
    for other in made[1:]:
        ms.assert_structural_equal(made[0].mod, other.mod)
    x, y = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    z = ms.build(made[1])(x, np.ascontiguousarray(y.swapaxes(1, 2)))
    np.testing.assert_allclose(z, x @ y, rtol=1e-5)
    sch = ms.Schedule(GMM)
    sch.reindex(sch.get_block("Z"), buffer_index=0, buffer_index_type="write")
    with pytest.raises(TypeError, match=r'write buffer=\("read", 1\) or buffer=\("write", 1\)'):
        sch.transform_layout(sch.get_block("Z"), buffer_index=1, index_map=swapped)


def test_lower_gives_plain_loops(capfd):
    sch = ms.Schedule(GMM)
    lowered = ms.lower(sch, "native")
    assert not [n for n in walk(lowered.body) if isinstance(n, Block)]
    ms.assert_structural_equal(lowered, ms.lower(GMM))
    assert capfd.readouterr().err == ""
    ms.lower(GMM, show=True)
    assert "# after flatten\n" in capfd.readouterr().err
    with pytest.raises(LowerError, match="lower takes one function, the module has 2"):
        ms.lower(ms.IRModule.of({"f": GMM, "g": GMM}))


def test_the_parts_of_a_search_are_public(tmp_path):
    space = ms.default_space("llvm -mcpu=haswell -num-cores=2")
    assert isinstance(space, ms.SpaceGenerator) and space.modules and space.mutators
    assert ms.default_space().postprocs
    assert {ms.LocalRunner.__name__, ms.ReplayRunner.__name__, ms.ExecutorRunner.__name__} == {
        "LocalRunner", "ReplayRunner", "ExecutorRunner"
    }  # fmt: skip
    assert "best" in ms.TuneResult.__dataclass_fields__


def test_lower_names_the_function_whatever_was_imported_first():
    import metasched.lower.passes.flatten  # noqa: F401

    assert callable(ms.lower)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ms.tune(GMM, max_trials_global=8), r"tune takes no max_trials_global=; write tri"),
        (lambda: ms.tune_tasks({}, cost_model="xgb"), r'cost_model=; write model="lightgbm"'),
        (lambda: ms.tune(GMM, trails=8), r"tune takes no trails=; did you mean trials\?"),
        (lambda: ms.Schedule(GMM, error_render_level="fast"), "Schedule takes no error_render_le"),
        (lambda: ms.Trace().simplified(remove_postproc=True), "write without_postproc=True"),
    ],
)
def test_keywords_of_tvm_are_answered(call, words):
    with pytest.raises(TypeError, match=words):
        call()


def test_names_of_a_module():
    module = ms.IRModule.of(GMM)
    with pytest.raises(AttributeError, match="no 'get_global_var'; a function is named by a text"):
        module.get_global_var("main")
    assert not [n for n in tvm_names.MODULE if n in dir(module)]
    assert pickle.loads(pickle.dumps(module)).script() == module.script()


def test_a_trace_of_tvm_is_applied_by_the_name_of_tvm():
    sch = ms.Schedule(GMM)
    data = [[["GetBlock", [], ["Z", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1", "l2"]]], []]
    data[0][1][3] = ["l1", "l2", "l3", "l4"]
    ms.Trace.apply_json_to_schedule(data, sch)
    assert [e.kind.name for e in sch.trace] == ["get_block", "get_loops"]
