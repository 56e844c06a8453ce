"""Bad input gets a clear error, the right exit code, no traceback, and nothing is lost."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

from metasched.database.record import SCHEMA_VERSION, TraceFile
from metasched.database.store import Store
from metasched.errors import DatabaseError, MeasureError
from metasched.registry import taken_back
from metasched.schedule.schedule import Schedule
from metasched.tune import STORE
from metasched.workloads import get

SHAPE = "1,16,16,16"
GMM = ("gmm", "--shape", SHAPE)
RANDOM = (*GMM, "--no-peer", "--strategy", "random")


def refused(ran, *parts: str, code: int = 2) -> None:
    """The command ended with this code and a message that holds these parts."""
    assert ran.code == code, ran.err
    assert ran.err.startswith("metasched ")
    for part in parts:
        assert part in ran.err
    assert "Traceback" not in ran.err and ran.out == ""


SUMS = """
from metasched.script import tir as T


@T.prim_func
def sums(P: T.Buffer((9,), "int32"), V: T.Buffer((40,)), S: T.Buffer((8,))):
    for i in range(8):
        S[i] = T.float32(0)
        for j in range(P[i], P[i + 1]):
            S[i] += V[j]
"""


def test_data_of_a_file(cli, tmp_path):
    program, file = tmp_path / "sums.py", tmp_path / "data.npz"
    program.write_text(SUMS)
    command = ("tune", f"{program}:sums", "--trials", "1", "--data", str(file))
    refused(cli(*command), "data.npz cannot be read", "No such file")
    file.write_bytes(b"no archive")
    refused(cli(*command), "data.npz cannot be read: it is no file of numpy.savez")
    np.savez(file, P=np.array([None] * 9))
    refused(cli(*command), "data.npz cannot be read: it holds Python objects")
    with file.open("wb") as stream:
        np.save(stream, np.arange(3))
    refused(cli(*command), "holds no named arrays; numpy.savez(file, NAME=array) writes such a")
    np.savez(file, Q=np.arange(9), R=1)
    refused(cli(*command), "--data names Q, R; the parameters are: P, S, V")
    np.savez(file, P=np.arange(9))
    refused(cli(*command), "data of P has the type int64, the program takes int32")
    np.savez(file, P=np.arange(9, dtype="int32"))
    ran = cli(*command)
    assert ran.code == 0, ran.err
    [trace] = [TraceFile.load(path) for path in tmp_path.rglob("*.trace.json")]
    assert '"metasched.data"' in trace.workload


# -- what to work on -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["tune", "show", "bench"])
def test_an_unknown_workload_names_the_nearest(cli, command):
    refused(cli(command, "gmmm"), "no workload is called 'gmmm'", "did you mean gmm")


@pytest.mark.parametrize("command", ["tune", "show", "bench"])
@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("1,2", "gmm takes 4 numbers (B N M K)"), ("a,b,c,d", "not integers"),
        ("1,16,0,16", "M cannot be 0"), ("", "not integers"), ("1,-2,3,4", "N cannot be -2"),
    ],
)  # fmt: skip
def test_a_bad_shape(cli, command, shape, said):
    refused(cli(command, "gmm", "--shape=" + shape), "--shape", said)


@pytest.mark.parametrize(
    ("shape", "said", "code"),
    [
        ("99999999999999999999,4,4,4", "--shape 99999999999999999999,4,4,4: ", 2),
        ("1,2147483647,2147483647,2", "the arguments take 1.72e+10 GiB; this machine has", 1),
    ],
)
def test_a_shape_too_large(cli, shape, said, code):
    refused(cli("tune", "gmm", "--shape", shape, "--trials", "1", "--no-peer"), said, code=code)


def test_a_shape_the_operator_cannot_have(cli):
    ran = cli("show", "grp", "--shape", "1,7,7,9,16,3,1,1,1,4")
    refused(ran, "do not divide into 4 groups")


def test_an_error_with_json_is_one_json_value_too(cli):
    ran = cli("tune", "gmmm", "--json")
    assert ran.code == 2 and ran.json()["kind"] == "RegistryError"
    assert "did you mean gmm" in ran.json()["error"]


def test_a_missing_file(cli, tmp_path):
    refused(cli("tune", tmp_path / "none.py"), "does not exist")
    refused(cli("show", "none.py:f"), "the file none.py does not exist")


def test_a_file_without_the_function_says_which_it_has(cli, program):
    refused(cli("show", f"{program}:scail"), "no function 'scail'", "scale, shift")
    refused(cli("show", program), "needs a function's name after a colon", "scale, shift")
    refused(cli("show", f"{program}:scale", "--shape", "1"), "--shape is for workloads")
    refused(
        cli("show", f"{program}:scale", "--constant-weights"),
        "--constant-weights is for workloads; a function of a file marks its own by T.func_attr",
    )
    refused(cli("show", "sfm", "--constant-weights"), "sfm has no weights that could be constant")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", "SyntaxError"), ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import nothing_of_this_name", "ModuleNotFoundError"),
    ],
)  # fmt: skip
def test_a_file_that_raises(cli, tmp_path, text, said):
    (tmp_path / "bad.py").write_text(text)
    refused(cli("show", "bad.py:f"), "bad.py raised", said)


def test_a_function_the_parser_cannot_take_shows_the_line(cli, program):
    text = program.read_text().replace("B[vi] = A[vi] * T.float32(2)", "B[vi] = lambda: 1")
    program.write_text(text)
    refused(cli("show", f"{program}:scale"), "B[vi] = lambda: 1", "^")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--strategy", "evolutionry", "did you mean evolutionary"),
        ("--model", "lightgbn", "did you mean lightgbm"), ("--trials", 0, "too small"),
        ("--seed", -1, "too small"), ("--target", "no-such-machine", "no target is called"),
        ("--target", "haswell", "no target is called 'haswell'; the processor is 'llvm -mcpu=has"),
    ],
)  # fmt: skip
def test_a_bad_option_of_tune(cli, option, value, said):
    refused(cli("tune", *GMM, f"{option}={value}"), said)


FOREIGN = [
    "cuda",
    "nvidia/nvidia-h100",
    "llvm -mtriple=riscv64-linux-gnu",
    "llvm -num-cores=100000",
]


@pytest.mark.parametrize("target", FOREIGN)
@pytest.mark.parametrize("command", ["tune", "bench", "build"])
def test_a_target_that_this_machine_is_not(cli, tuned, command, target):
    rest = {"build": (tuned.trace, "-o", "out")}.get(command, GMM)
    ran = cli(command, *rest, "--target", target)
    refused(ran, "metasched " + command)
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("target", FOREIGN[:2])
def test_machine_code_of_a_kind_without_code_generation(cli, target):
    ran = cli("show", *GMM, "--what", "asm", "--target", target)
    refused(ran, "no code generation for GPUs")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("target", FOREIGN[:3])
def test_a_trace_of_another_machine_is_a_miss(cli, tuned, target):
    words = ("replay", tuned.trace, *GMM, "--target", target)
    ran = cli(*words)
    assert ran.code == 0 and not ran.out and ran.err.startswith("miss: ")
    assert "this target is" in ran.err and ran.err.count("\n") == 1
    assert cli(*words, "--strict").code == 3


def test_the_target_may_come_from_the_environment(cli, tuned, monkeypatch):
    monkeypatch.setenv("METASCHED_TARGET", "cuda")
    refused(cli("tune", *GMM), "no default space for targets of kind")
    refused(cli("build", tuned.trace, "-o", "out"), "this target is 'cuda'")


def test_a_message_quotes_no_long_word(cli):
    for words in (("show", "x" * 5000), ("db", "x", "--limit", "9" * 5000), ("report", "x" * 5000)):
        ran = cli(*words)
        assert ran.code in (1, 2) and len(ran.err) < 700 and ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise GeneratorExit", "GeneratorExit"),
        ("class E(BaseException): pass\nraise E('hm')", "E: hm"),
        ("class E(Exception):\n  def __str__(self): return 1 / 0\nraise E", "raised E"),
        ("x = '\\0' + chr(0)\ndef f(): f()\nf()", "RecursionError"),
    ],
)  # fmt: skip
def test_a_file_that_raises_what_it_should_not(cli, tmp_path, text, said):
    (tmp_path / "bad.py").write_text(text)
    refused(cli("show", "bad.py:f"), "bad.py raised", said)


def test_a_record_of_many_levels(cli, tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    ran = cli("bench", *GMM, "--tvm-record", "deep.json")
    refused(ran, "deep.json: not valid JSON (it has more than 100 levels)")


def test_bad_options_of_bench(cli, tmp_path):
    refused(cli("bench"), "name a workload, or --suite operators")
    refused(cli("bench", "mine.py:f"), "mine.py:f", "`metasched tune FILE.py:FUNCTION`")
    refused(cli("bench", "gmm", "sfm", "--shape", SHAPE), "--shape is for a single workload")
    refused(cli("bench", *GMM, "--against", "numpi"), "no peer is called 'numpi'", "numpy")
    for text, said in (
        ("{", "not valid JSON"), ("{}", "must hold a list"),
        ('[{"op": "gmm"}]', "entry 0: KeyError"),
        ('[{"op": "gmm", "shape": [1], "seconds": 0}]', "must be positive"),
    ):  # fmt: skip
        (tmp_path / "tvm.json").write_text(text)
        refused(cli("bench", *GMM, "--tvm-record", "tvm.json"), "tvm.json", said)
    refused(cli("bench", *GMM, "--tvm-record", "none.json"), "cannot be read")


def test_a_misspelt_setting_in_the_environment(cli, monkeypatch):
    monkeypatch.setenv("METASCHED_TRIALS", "many")
    refused(cli("tune", *GMM), "METASCHED_TRIALS", "'many' is not an integer")


# -- trace files ---------------------------------------------------------------------------------


@pytest.fixture
def edited(tuned, tmp_path):
    """Writes a copy of the trace file with some fields changed."""

    def write(**fields) -> str:
        data = {**json.loads(tuned.trace.read_text()), **fields}
        path = tmp_path / "edited.json"
        path.write_text(json.dumps(data))
        return str(path)

    return write


def missed(cli, trace, *parts: str, program=GMM) -> None:
    """Explained, exit 0; with --strict 3; as data with --json."""
    ran = cli("replay", trace, *program)
    assert ran.code == 0 and ran.out == "" and ran.err.startswith("miss: ")
    for part in parts:
        assert part in ran.err
    assert cli("replay", trace, *program, "--strict").code == 3
    data = cli("replay", trace, *program, "--json").json()
    assert data["hit"] is False and all(part in data["reason"] for part in parts)


def test_a_trace_for_another_workload(cli, tuned):
    program = ("gmm", "--shape", "1,16,16,32")
    missed(cli, tuned.trace, "another workload", "this one has", program=program)


def test_a_trace_for_another_target(cli, edited, tuned):
    target = {**TraceFile.load(tuned.trace).target, "triple": "aarch64-unknown-linux-gnu"}
    missed(cli, edited(target=target), "aarch64")
    refused(cli("build", edited(target=target), "-o", "dist"), "aarch64")


def test_a_trace_of_a_later_schema(cli, edited):
    later = SCHEMA_VERSION + 1
    missed(cli, edited(schema_version=later, tool_version="9.9"), "schema_version", "metasched 9.9")


@pytest.mark.parametrize("command", ["replay", "show", "build"])
def test_a_truncated_trace_file(cli, tuned, tmp_path, command):
    cut = tmp_path / "cut.json"
    rest = {"replay": GMM, "show": (), "build": ("-o", tmp_path / "dist")}[command]
    text = tuned.trace.read_text()
    for keep in (1, len(text) // 3, len(text) // 2, len(text) - 3):
        cut.write_text(text[:keep])
        refused(cli(command, cut, *rest), "cut.json: line", "not valid JSON", "was it truncated?")
    assert not (tmp_path / "dist").exists()


def test_hand_edited_trace_files(cli, edited, tuned, tmp_path):
    refused(cli("replay", edited(samples=[-1.0]), *GMM), "field samples: ", "positive")
    refused(cli("replay", edited(format="other"), *GMM), "field format")
    refused(cli("replay", edited(schema_version="one"), *GMM), "field schema_version")
    refused(cli("replay", edited(trace={"steps": 3}), *GMM), "edited.json")
    refused(cli("replay", edited(trace=None), *GMM), "edited.json")
    refused(
        cli(
            "show",
            edited(trace=[1]),
        ),
        "trace",
    )
    refused(cli("build", edited(workload="not a program"), "-o", "dist"), "")
    (tmp_path / "list.json").write_text("[]")
    refused(cli("replay", "list.json", *GMM), "not a metasched trace file")
    refused(cli("replay", "none.json", *GMM), "none.json: cannot be read")


def test_an_edited_decision_outside_its_domain_is_an_error(cli, edited):
    sch = Schedule(get("gmm").func((1, 16, 16, 16)), seed=0)
    loop = sch.get_loops("Z")[1]
    sch.split(loop, sch.sample_perfect_tile(loop, n=2, decision=[4, 4]))
    text = sch.trace.to_json()
    assert cli("replay", edited(trace=json.loads(text)), *GMM, "--strict").code == 0
    changed = re.sub(r"\[\s*4,\s*4\s*\]", "[4, 5]", text)
    assert changed != text
    refused(cli("replay", edited(trace=json.loads(changed)), *GMM), "edited.json", "4, 5")


# -- plug-ins ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('no good')", "raised RuntimeError: no good"),
        ("def f(:", "raised SyntaxError"), ("import sys; sys.exit(0)", "raised SystemExit: 0"),
        ("print('[]')\nimport nothing_of_this_name", "raised ModuleNotFoundError"),
        (None, "cannot be read: No such file"),
    ],
)  # fmt: skip
def test_a_plugin_that_was_asked_for_and_fails_is_wrong_input(cli, tmp_path, text, said):
    if text is not None:
        (tmp_path / "rules.py").write_text(text)
    ran = cli("tune", *RANDOM, "--trials", 4, "--json", "--plugin", "rules.py")
    assert ran.code == 2 and ran.json()["kind"] == "PluginError"
    assert f"metasched tune: plug-in rules.py {said}" in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV, 'rules.py", line 1 in <module>'),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", 130, "interrupted"),
    ],
)  # fmt: skip
def test_a_plugin_that_crashes_or_is_interrupted(tmp_path, text, code, said):
    (tmp_path / "rules.py").write_text(text)
    command = [sys.executable, "-m", "metasched", "tune", *RANDOM, "--plugin", "rules.py"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == code and said in ran.stderr and "Traceback" not in ran.stderr


def test_plugin_output_stays_out_of_the_json_output(cli, tuned, tmp_path, made_up):
    (tmp_path / "rules.py").write_text(LOUD)
    folder = tuned.copy(tmp_path / "w")
    words = (*RANDOM, "--trials", 5, "--work-dir", folder, "--json", "--plugin", "rules.py")
    ran = cli("tune", *words)
    assert ran.code == 0 and ran.json()["trials"] == 5
    assert "loaded" in ran.err and "called" in ran.err


LOUD = """
import metasched as ms
print("loaded")

@ms.schedule_module("my.loud", override=True)
def loud(sch, block):
    print("called")
    return [sch]
"""


SEARCHES = """
import metasched as ms
from metasched.cost.model import CostModel

@ms.strategy("my.first")
class First:
    def __init__(self, task):
        self.task, self.seed = task, 0

    def propose(self, count):
        self.seed += 100
        seeds = range(self.seed, self.seed + 4 * count)
        made = [one for n in seeds if (one := self.task.factory.random_member(0, n)) is not None]
        scores = self.task.model.predict_programs(made)
        return [one for _, one in sorted(zip(scores, made), key=lambda pair: -pair[0])][:count]

    def learn(self, programs, seconds):
        pass

@ms.cost_model("my.short")
class Short(CostModel):
    def __init__(self, seed):
        pass

    def predict_programs(self, programs):
        print("judged")
        return [-len(one.module.script()) for one in programs]

    def update_programs(self, task, programs, seconds):
        pass
"""


@pytest.fixture
def registered_before():
    """What a plug-in registers is gone afterwards."""
    with taken_back(always=True):
        yield


@pytest.mark.usefixtures("registered_before", "made_up")
def test_a_strategy_and_a_model_of_a_plugin_are_found_by_name(cli, tmp_path):
    (tmp_path / "mine.py").write_text(SEARCHES)
    given = ("--shape", "1,16,16,16", "--trials", 4, "--json", "--no-peer", "--plugin", "mine.py")
    ran = cli("tune", "gmm", *given, "--strategy", "my.first", "--model", "my.short")
    assert ran.code == 0 and ran.json()["trials"] == 4 and "judged" in ran.err
    ran = cli("tune", "gmm", *given, "--strategy", "my.frist", "--model", "my.short")
    assert ran.code == 2 and "did you mean my.first" in ran.err
    ran = cli("tune", "gmm", *given, "--strategy", "my.first", "--model", "my.shrt")
    assert ran.code == 2 and "did you mean my.short" in ran.err


PARTS = """
import metasched as ms
from metasched.database.base import UnionDatabase
from metasched.database.store import Store
from metasched.search.scheduler import RoundRobin
from metasched.space.generate import ScheduleFn

@ms.feature_extractor("my.size", ["characters"])
def size(program, target):
    return [len(program.script())]

@ms.search_space("my.space")
def space(target):
    return ms.default_space(target)

@ms.task_scheduler("my.turns")
class Turns(RoundRobin):
    pass

@ms.database_kind("my.union")
def union(folder):
    return UnionDatabase(Store(folder / "own.db"), Store(folder / "shared.db"))

@ms.observer("my.count")
def count(event):
    print("event", type(event).__name__)
"""


@pytest.mark.usefixtures("registered_before", "made_up")
def test_other_parts_of_a_plugin_are_found_by_name(cli, tmp_path):
    (tmp_path / "mine.py").write_text(PARTS)
    given = ("--shape", "1,16,16,16", "--trials", 3, "--json", "--no-peer", "--plugin", "mine.py",
             "--work-dir", tmp_path / "w", "--strategy", "random")  # fmt: skip
    named = {"features": "my.size", "space": "my.space", "scheduler": "my.turns",
             "database": "my.union", "observer": "my.count"}  # fmt: skip
    words = [word for name, value in named.items() for word in (f"--{name}", value)]
    ran = cli("tune", "gmm", *given, *words)
    assert ran.code == 0 and ran.json()["trials"] == 3
    assert "event TaskStarted" in ran.err and "event TrialDone" in ran.err
    with Store(tmp_path / "w" / "own.db", read_only=True) as store:
        assert len(store) == 3
    for name, value in named.items():
        ran = cli("tune", "gmm", *given, f"--{name}", value + "s")
        assert ran.code == 2 and f"did you mean {value}" in ran.err, name


# -- disks and databases -------------------------------------------------------------------------


def test_a_corrupt_database_is_set_aside_and_tuning_goes_on(cli, tuned, tmp_path, made_up):
    folder = tuned.copy(tmp_path / "w")
    broken = b"this is no database" * 400
    (folder / STORE).write_bytes(broken)
    for tail in ("-wal", "-shm"):
        (folder / (STORE + tail)).unlink(missing_ok=True)
    refused(cli("db", folder), STORE, "`metasched tune` keeps such a file aside", code=1)
    refused(cli("report", folder), "`metasched tune` keeps such a file aside", code=1)
    ran = cli("tune", *RANDOM, "--trials", 1, "--work-dir", folder, "--json")
    assert ran.code == 0 and ran.json()["trials"] == 1
    assert "is corrupt" in ran.err and "it was kept as" in ran.err
    (aside,) = [p for p in folder.glob(STORE + ".corrupt-*") if p.suffix not in ("-wal", "-shm")]
    assert aside.read_bytes() == broken
    assert len(cli("db", folder, "--json").json()) == 1


def test_a_database_of_another_program_is_not_touched(cli, tmp_path):
    (tmp_path / "w").mkdir()
    with sqlite3.connect(tmp_path / "w" / STORE) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    before = (tmp_path / "w" / STORE).read_bytes()
    ran = cli("tune", *GMM, "--work-dir", "w")
    refused(ran, "database of another program; it was not touched", code=1)
    assert (tmp_path / "w" / STORE).read_bytes() == before


def test_a_folder_without_a_run(cli, tmp_path):
    refused(cli("db", tmp_path), "has no database")
    refused(cli("report", tmp_path), "holds no tuning run")
    refused(cli("report", tmp_path / "none"), "there is no folder")


def test_a_workload_that_the_database_has_not(cli, tuned):
    ran = cli("db", tuned.folder, "--workload", "nothing")
    refused(ran, " starts with 'nothing'")


ROWS = """from metasched.script import tir as T


@T.prim_func
def f(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n, 64), "float32")
    B = T.match_buffer(b, (n, 64), "float32")
    for i, j in T.grid(n, 64):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
"""


def test_options_of_show_that_would_change_nothing(cli, tuned):
    message = "--target is for --what space, autoscheduled, passes, llvm and asm"
    refused(cli("show", "gmm", "--target", "native"), message)
    refused(cli("show", tuned.trace, "--what", "asm"), "--what asm needs a program")
    message = "--size is for --what space and autoscheduled; other texts are the same for each size"
    for what in ("script", "passes"):
        refused(cli("show", "gmm", "--what", what, "--size", "n=4"), message)


@pytest.mark.parametrize(
    ("size", "part"),
    [
        ("n", "--size is 'n'; it must be NAME=NUMBER, such as n=1024"),
        ("=4", "it must be NAME=NUMBER"),
        ("n=\u00b2", "it must be NAME=NUMBER"),  # a superscript, which is a digit, but no number
        ("n=4", "sizes name 'n'; the run-time extents are: none"),
    ],
)
def test_sizes_that_a_command_cannot_use(cli, size, part, tmp_path):
    gmm = ("gmm", "--shape", "1,8,8,8", "--size", size)
    refused(cli("tune", *gmm), part)
    refused(cli("show", *gmm, "--what", "space"), part)
    refused(cli("build", *gmm, "-o", tmp_path), part)


def test_tune_names_the_extents_without_a_size(cli, tmp_path):
    (tmp_path / "rows.py").write_text(ROWS)
    refused(cli("tune", "rows.py"), "the extent n is known at run time only", "--size n=1024")


def test_show_and_build_schedule_for_the_sizes(cli, tmp_path):
    (tmp_path / "rows.py").write_text(ROWS)
    scheduled = ("show", "rows.py", "--what", "autoscheduled")
    without = "no sizes to schedule for: name each by sizes={'n': 1024}, or on the command line by"
    assert f"{without} --size n=1024" in cli(*scheduled).err
    ran = cli(*scheduled, "--size", "n=1000")
    assert ran.code == 0 and ran.err == "" and "T.vectorized(" in ran.out
    ran = cli("build", "rows.py", "-o", "dist", "--size", "n=1000")
    assert ran.code == 0 and ran.err == "" and (tmp_path / "dist" / "f.o").is_file()
    text = cli("show", "rows.py", "--what", "space", "--size", "n=1000").out
    assert "1 design space\n" in text


def test_options_of_build_that_a_trace_cannot_take(cli, tuned):
    ran = cli("build", tuned.trace, "--size", "n=4", "-o", "d")
    refused(ran, "--size is for a program; a trace file holds its own sizes")
    refused(cli("build", tuned.trace, "--shape", "1,8,8,8", "-o", "d"), "--shape is for a workload")
    ran = cli("build", tuned.trace, "--constant-weights", "-o", "d")
    refused(ran, "--constant-weights is for a workload; a trace file holds its own program")
    refused(cli("build", "gmmm", "-o", "d"), "no workload is called 'gmmm'")


def test_a_limit_below_zero(cli, tuned):
    refused(cli("db", tuned.folder, "--limit", -1), "--limit -1: must be 0 or more")


def test_places_that_cannot_be_written(cli, tuned, tmp_path):
    (tmp_path / "file").write_text("")
    refused(cli("tune", *GMM, "--work-dir", "file/work"), "file/work cannot be written")
    refused(cli("tune", *GMM, "--work-dir", "file"), "File exists: it is a file, name a folder")
    refused(cli("report", tuned.folder, "-o", "file/page.html"), "cannot be written", code=1)
    refused(cli("build", tuned.trace, "-o", "file/dist"), "file", code=1)


def test_a_full_disk_while_storing_ends_with_what_was_stored(
    cli, tuned, tmp_path, monkeypatch, made_up
):
    folder = tuned.copy(tmp_path / "w")

    def full(self, records):
        raise DatabaseError("database or disk is full")

    monkeypatch.setattr(Store, "put", full)
    ran = cli("tune", *RANDOM, "--trials", 5, "--work-dir", folder)
    assert ran.code == 1 and "database or disk is full" in ran.err
    (said,) = re.findall(r"the best program until then takes .*; its trace is (.*)", ran.err)
    assert cli("replay", said, *GMM).code == 0
    assert len(cli("db", folder, "--json").json()) == 4


def test_a_full_disk_from_the_first_byte_on_names_the_best_program(
    cli, tuned, tmp_path, monkeypatch, made_up
):
    """Neither the database nor a trace file takes anything, here and in the temporary folder."""
    folder = tuned.copy(tmp_path / "w")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    def cannot(self, records):
        raise DatabaseError("database or disk is full")

    monkeypatch.setattr(Store, "put", cannot)
    monkeypatch.setattr("metasched.database.record.atomic_write", full)
    ran = cli("tune", *RANDOM, "--trials", 5, "--work-dir", folder)
    assert ran.code == 1 and "its trace could not be saved, its decisions are (" in ran.err


def test_a_full_disk_while_logging_and_writing_the_trace_loses_no_result(
    cli, tuned, tmp_path, monkeypatch, made_up
):
    folder = tuned.copy(tmp_path / "w")
    (folder / "events.jsonl").unlink()
    (folder / "events.jsonl").symlink_to("/dev/full")  # every write: no space left on device
    before = (folder / tuned.trace.name).read_bytes()

    def full(path, data, **_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("metasched.database.record.atomic_write", full)
    ran = cli("tune", *RANDOM, "--trials", 4, "--work-dir", folder, "--json")
    assert ran.code == 1
    assert ran.json()["best"]["seconds"] > 0 and ran.json()["best"]["trace"] is None
    assert "the log ends here: No space left on device" in ran.err
    assert "the trace could not be saved" in ran.err
    assert (folder / tuned.trace.name).read_bytes() == before


def test_a_machine_that_cannot_measure_is_a_failure_not_wrong_usage(cli, monkeypatch):
    def broken(*_, **__):
        raise MeasureError("the worker does not start")

    monkeypatch.setattr("metasched.commands.tune.tune_tasks", broken)
    refused(cli("tune", *GMM), "the worker does not start", code=1)
