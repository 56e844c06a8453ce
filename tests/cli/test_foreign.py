"""A trace from elsewhere may name any C function: none runs that is not allowed by name."""

from __future__ import annotations

import json
import os

import pytest

import metasched as ms
from metasched.database.record import TraceFile
from metasched.database.replay import replay
from metasched.errors import TraceError
from metasched.runtime.build import build
from metasched.runtime.foreign import foreign_calls
from metasched.script.parser import parse

BODY = """
@T.prim_func
def f(A: T.Buffer((8,), "int32")):
    for i in range(8):
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            T.reads()
            T.writes(A[vi])
            A[vi] = {}
"""
HOSTILE = 'T.call_extern("int32", "system", "touch pwned")'
CALLER = 'T.call_pure_extern("int32", "abs", vi)'


def program(value):
    return parse(BODY.format(value))


def a_trace(path, func, steps=()):
    """A trace file as a stranger could have written it."""
    data = {
        "schema_version": 1, "workload_hash": ms.structural_hash(func), "workload": func.script(),
        "workload_name": "f", "target": ms.Target.native().to_json(), "samples": [1e-6],
        "trace": {"schema": 1, "steps": list(steps)},
    }  # fmt: skip
    return TraceFile.from_data(data).save(path)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("vi", []),
        ('T.Cast("int32", T.exp(T.Cast("float32", vi)))', []),
        ('T.Cast("int32", T.call_pure_extern("float32", "expf", T.float32(1)))', []),
        ('T.Cast("int32", T.call_llvm_pure_intrin("float32", "llvm.fabs.f32", T.uint32(1), '
         'T.float32(1)))', []),
        (CALLER, ["abs"]),
        (HOSTILE, ["system"]),
        (f"{CALLER} + {HOSTILE} + {CALLER}", ["abs", "system"]),
        ('T.call_packed("evil", vi)', ["evil"]),
        ('T.call_llvm_intrin("int32", "exit", T.uint32(1), vi)', ["exit"]),
    ],
)  # fmt: skip
def test_the_foreign_functions_of_a_program(value, names):
    assert sorted(foreign_calls(program(value))) == names


def test_a_call_in_the_layout_of_a_buffer_is_found():
    text = """
@T.prim_func
def f(A: T.Buffer((8,), "int32")):
    for i in range(8):
        with T.block("b"):
            vi = T.axis.spatial(8, i)
            T.reads()
            T.writes(A[vi])
            B = T.alloc_buffer((8, T.call_extern("int32", "getpid")), "int32")
            B[vi, 0] = vi
            A[vi] = B[vi, 0]
"""
    assert list(foreign_calls(parse(text))) == ["getpid"]


def test_build_of_a_trace_refuses_foreign_code(cli, tmp_path):
    a_trace(tmp_path / "t.json", program(HOSTILE))
    done = cli("build", "t.json", "-o", "out")
    assert done.code == 2 and not os.path.exists("out") and not os.path.exists("pwned")
    assert "its program calls foreign code: system" in done.err
    assert HOSTILE in done.err and "pass --allow-extern system" in done.err
    told = cli("build", "t.json", "-o", "out", "--json")
    assert told.code == 2 and told.json()["kind"] == "TraceError"
    other = cli("build", "t.json", "-o", "out", "--allow-extern", "abs")
    assert other.code == 2 and "system" in other.err


def test_a_foreign_function_that_is_allowed_is_built(cli, tmp_path):
    a_trace(tmp_path / "t.json", program('T.call_extern("int32", "getpid")'))
    assert cli("build", "t.json", "-o", "out").code == 2
    assert cli("build", "t.json", "-o", "out", "--allow-extern", "getpid").code == 0
    assert "getpid" in json.loads((tmp_path / "out" / "f.json").read_text())["externs"]


def test_replay_of_a_trace_refuses_foreign_code(cli, tmp_path):
    a_trace(tmp_path / "t.json", program(CALLER))
    source = "from metasched.script import tir as T\n" + BODY.format(CALLER)
    (tmp_path / "p.py").write_text(source)
    done = cli("replay", "t.json", "p.py:f")
    assert done.code == 2 and "foreign code: abs" in done.err and done.out == ""
    assert cli("replay", "t.json", "p.py:f", "--allow-extern", "abs").code == 0


def test_in_python_the_names_are_a_list_or_one(tmp_path):
    func = program(CALLER)
    path = a_trace(tmp_path / "t.json", func)
    with pytest.raises(TraceError, match=r"allow_extern=\('abs',\) in Python"):
        replay(path, func)
    for allowed in ("abs", ["abs", "labs"]):
        assert replay(path, func, allow_extern=allowed).mod
    with pytest.raises(TraceError, match="foreign code: abs"):
        replay(path, func, allow_extern="a")


def test_a_function_of_ones_own_is_built_as_it_stands():
    import numpy as np

    out = np.zeros(8, np.int32)
    build(program('T.call_pure_extern("int32", "abs", 3 - vi)'))(out)
    assert np.array_equal(out, abs(3 - np.arange(8)))


def test_an_intrinsic_that_calls_out_is_found_after_the_replay(tmp_path):
    header = "@T.prim_func\ndef f(A: T.Buffer((8,), 'int32')):\n    with T.block('root'):\n"
    regions = "        T.reads()\n        T.writes(A[0:8])\n"
    loop = "        for i in range(8):\n            with T.block('b'):\n"
    axis = "                vi = T.axis.spatial(8, i)\n                A[vi] = vi\n"
    outside = "        T.evaluate(T.call_extern('int32', 'fill', A.access_ptr('w')))\n"
    desc, impl = parse(header + regions + loop + axis), parse(header + regions + outside)
    ms.TensorIntrin.register("test.foreign.fill", desc, impl)
    func = program("vi")
    sch = ms.Schedule(func)
    sch.tensorize(sch.get_loops(sch.get_block("b"))[0], "test.foreign.fill")
    steps = json.loads(sch.trace.to_json())["steps"]
    path = a_trace(tmp_path / "t.json", func, steps)
    with pytest.raises(TraceError, match="foreign code: fill"):
        replay(path, func)
    assert "fill" in foreign_calls(replay(path, func, allow_extern="fill").mod)
