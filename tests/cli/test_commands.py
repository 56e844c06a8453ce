"""Every command with right input: what it prints, what it leaves behind, how it exits."""

from __future__ import annotations

import importlib.util
import json
import math
import sqlite3
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from metasched.cli import main
from metasched.commands.names import MODULES
from metasched.cost.prior import Prior
from metasched.report import compare
from metasched.tune import STORE

SHAPE = "1,16,16,16"
NAMES = ("tune", "replay", "build", "bench", "show", "db", "report", "targets", "doctor")


# -- the frame -----------------------------------------------------------------------------------


def test_every_command_is_there_with_help_and_exit_codes(cli):
    whole = cli("--help")
    assert whole.code == 0
    for name in NAMES:
        assert f"\n    {name} " in whole.out
        one = cli(name, "--help")
        assert one.code == 0 and "usage: metasched " + name in one.out
        assert "130 interrupted" in one.out
    assert tuple(MODULES) == NAMES


@pytest.mark.parametrize(
    "words, absent",
    [
        ("--help", ("numpy", "metasched.ir", "metasched.tune", "metasched.report")),
        ("doctor --help", ("pydantic", "lightgbm", "rich", "metasched.tune", "metasched.search")),
        ("tune --help", ("lightgbm", "llvmlite.binding")),
    ],
)
def test_a_command_imports_what_it_needs_alone(words, absent):
    program = "try: main(sys.argv[1:])\nfinally: print(*sys.modules)"
    whole = f"import sys; from metasched.cli import main\n{program}"
    command = [sys.executable, "-c", whole, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "usage: metasched" in done.stdout
    loaded = done.stdout.splitlines()[-1].split()
    assert "metasched.cli" in loaded
    assert not {name for name in absent if name in loaded}


def test_no_command_or_an_unknown_option_is_wrong_usage(cli):
    assert cli().code == 2
    assert cli("tune").code == 2
    assert cli("polish", "gmm").code == 2
    assert cli("tune", "gmm", "--trails", "3").code == 2
    assert cli("db", "--target", "cuda").err.count("\n") == 1


def test_the_version(cli):
    said = cli("--version").out
    assert said.startswith("metasched ")
    call = [sys.executable, "-m", "metasched", "--version"]
    assert subprocess.run(call, capture_output=True, text=True, check=True).stdout == said


def test_as_a_program_of_its_own():
    command = [sys.executable, "-m", "metasched.cli", "show", "gmm", "--shape", SHAPE, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "T.block" in json.loads(done.stdout)["script"]
    assert done.stderr == ""
    wrong = subprocess.run([*command[:4], "gmmm"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "did you mean gmm" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_a_reader_who_goes_away_is_no_disaster():
    command = f"{sys.executable} -m metasched.cli show c3d --what script | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


# -- tune ----------------------------------------------------------------------------------------


def test_tune_prints_one_json_value_with_what_was_promised(tuned):
    data = tuned.data
    assert data["workload"] == "gmm" and data["shape"] == [1, 16, 16, 16]
    assert data["trials"] == 4 and data["failed"] == 0 and data["seed"] == 3
    assert set(data["phases"]) == {"search", "build", "run", "check", "model"}
    best = data["best"]
    assert best["seconds"] > 0 and best["gflops"] > 0 and best["peak_fraction"] > 0
    assert best["gflops"] == pytest.approx(2 * 16**3 / best["seconds"] / 1e9)
    for name in ("wall_seconds", "default_seconds", "unscheduled_seconds", "peak_gflops"):
        assert data[name] > 0
    assert data["speedup_over_default"] == pytest.approx(data["default_seconds"] / best["seconds"])
    assert data["threads"] >= 1 and data["target"].startswith("cpu/")
    assert data["ended"] == "budget" and data["numpy_seconds"] > 0


def test_tune_leaves_a_trace_file_a_database_and_a_log(tuned):
    names = {p.name for p in tuned.folder.iterdir()}
    assert {"metasched.db", "events.jsonl", tuned.trace.name} <= names
    events = [json.loads(t) for t in (tuned.folder / "events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events].count("TrialDone") == 4
    assert events[-1]["event"] == "PeerTimed" and events[-1]["peer"] == "numpy"


def test_progress_goes_to_standard_error_in_plain_lines(tuned):
    assert "gmm: 4 trials, " in tuned.err and "round 1" in tuned.err
    assert "final comparison 3/3: the fastest program is checked" in tuned.err
    assert tuned.err.endswith("gmm: NumPy is timed in turns with the fastest program\n")
    assert "\x1b" not in tuned.err


def test_ctrl_c_while_numpy_is_timed_keeps_the_result(cli, tuned, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("metasched.commands.tune.side_by_side", interrupted)
    folder = tuned.copy(tmp_path / "again")
    ran = cli("tune", "gmm", "--shape", SHAPE, "--trials", 4, "--work-dir", folder, "--json")
    assert ran.code == 130 and ran.err.endswith("NumPy was not timed: interrupted\n")
    assert ran.json()["best"]["trace"] and ran.json()["numpy_seconds"] is None


def test_a_second_run_measures_nothing_and_reports_all_figures(cli, tuned, tmp_path):
    folder = tuned.copy(tmp_path / "again")
    ran = cli(
        "tune", "gmm", "--shape", SHAPE, "--trials", 4, "--work-dir", folder, "--seed", 3,
        "--no-peer",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "4 known already" in ran.err
    for part in (
        "best ", "GFLOP/s", "of the measured FMA peak", "x default schedule",
        "x unscheduled, serial", "search ", "trials    4, 0 failed; all trials are used",
        "trace     ",
    ):  # fmt: skip
        assert part in ran.out
    events = (folder / "events.jsonl").read_text()
    assert events.count("TrialDone") == 4


def test_constant_weights_from_tuning_to_the_exported_files(cli, made_up, tmp_path):
    argument = ("gmm", "--shape", "1,16,64,16", "--constant-weights")
    ran = cli("tune", *argument, "--trials", 4, "--no-peer", "--json")
    assert ran.code == 0, ran.err
    trace = ran.json()["best"]["trace"]
    replayed = cli("replay", trace, *argument)
    assert replayed.code == 0 and '"layout_free_buffers": [1]' in replayed.out
    assert (
        cli("replay", trace, *argument[:3], "--strict").code == 3
    )  # without them: another program
    assert cli("build", trace, "-o", tmp_path / "out").code == 0
    assert (
        "int32_t gmm_pack(const float *Y, float *Y_packed);"
        in (tmp_path / "out" / "gmm.h").read_text()
    )


MODULE = """
from metasched.script import ir as I, tir as T

@I.ir_module
class Pair:
    @T.prim_func
    def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi] * T.float32(2)

    @T.prim_func
    def other(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
        for i in range(16):
            with T.block("B"):
                vi = T.axis.spatial(16, i)
                B[vi] = A[vi] + T.float32(2)
"""


def test_a_file_may_import_what_stands_beside_it(cli, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "beside_mine.py").write_text("N = 16\n")
    text = MODULE.replace("16", "N")
    (tmp_path / "deep" / "mine.py").write_text(f"from beside_mine import N\n{text}")
    before = list(sys.path)
    assert "T.Buffer((16,)" in cli("show", "deep/mine.py:Pair.other").out
    assert sys.path == before
    sys.modules.pop("beside_mine")


def test_the_functions_of_a_module_of_a_file(cli, made_up, tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    one = cli("tune", "mine.py:Pair.main", "--trials", 2, "--json", "--no-peer").json()
    assert one["workload"] == "Pair.main" and Path(one["best"]["trace"]).exists()
    both = cli("tune", "mine.py:Pair", "--trials", 2, "--json", "--no-peer").json()
    assert [each["workload"] for each in both] == ["Pair.main", "Pair.other"]
    assert cli("replay", one["best"]["trace"], "mine.py:Pair.main").code == 0
    text = cli("show", "mine.py:Pair").out
    assert "def main" in text and "def other" in text
    assert "def other" in cli("show", "mine.py:Pair.other").out
    wrong = cli("replay", one["best"]["trace"], "mine.py:Pair")
    assert wrong.code == 2 and "prim_funcs in it: Pair.main, Pair.other" in wrong.err
    (tmp_path / "two.py").write_text(MODULE + MODULE.replace("Pair", "Other"))
    unnamed = cli("show", "two.py")
    assert unnamed.code == 2
    assert "two.py needs a function's name after a colon; prim_funcs in it: " in unnamed.err


# -- using what was tuned --------------------------------------------------------------------------


def test_replay_prints_the_scheduled_program(cli, tuned):
    ran = cli("replay", tuned.trace, "gmm", "--shape", SHAPE)
    assert ran.code == 0 and "@T.prim_func" in ran.out
    data = cli("replay", tuned.trace, "gmm", "--shape", SHAPE, "--json").json()
    assert data["hit"] is True
    assert data["script"].strip() == ran.out.strip()
    assert data["trace"]


def test_build_writes_four_files_or_says_why_not(cli, tuned, tmp_path):
    ran = cli("build", tuned.trace, "-o", tmp_path / "dist", "--name", "mine", "--json")
    assert ran.code == 0
    data = ran.json()
    found = {Path(f).name for f in data["files"]}
    assert {"mine.o", "mine.h", "mine.json"} <= found
    assert "mine.so" in found or data["note"]
    assert all(Path(f).stat().st_size for f in data["files"])
    plain = cli("build", tuned.trace, "-o", tmp_path / "dist2")
    assert str(tmp_path / "dist2" / "gmm.o") in plain.out.splitlines()


def test_build_of_a_program_needs_no_trace(cli, program, tmp_path):
    ran = cli("build", "gmm", "--shape", "1,16,16,16", "-o", tmp_path / "dist")
    assert ran.code == 0 and str(tmp_path / "dist" / "gmm.o") in ran.out.splitlines()
    data = cli("build", f"{program}:scale", "-o", tmp_path / "dist2", "--json").json()
    assert {"scale.o", "scale.h", "scale.json"} <= {Path(f).name for f in data["files"]}
    source = program.parent / "pair.py"
    source.write_text(MODULE)
    both = cli("build", f"{source}:Pair", "-o", tmp_path / "dist3", "--json").json()
    assert {"main.o", "other.o"} <= {Path(f).name for f in both["files"]}
    ran = cli("build", f"{source}:Pair", "-o", tmp_path / "dist3", "--name", "one")
    assert ran.code == 2 and "--name names one kernel; " in ran.err and "has 2" in ran.err


def test_build_of_a_program_with_the_name_of_a_function_of_c(cli, program, tmp_path):
    source = program.parent / "named.py"
    source.write_text(
        "from metasched.script import tir as T\n\n\n@T.prim_func\n"
        'def tan(A: T.Buffer((64,), "float64"), B: T.Buffer((64,), "float64")):\n'
        "    for i in range(64):\n        B[i] = T.tan(A[i])\n"
    )
    ran = cli("build", f"{source}:tan", "-o", tmp_path / "dist")
    assert ran.code == 0 and str(tmp_path / "dist" / "tan_kernel.o") in ran.out.splitlines()
    ran = cli("build", f"{source}:tan", "-o", tmp_path / "dist", "--name", "tan")
    assert ran.code == 1 and "'tan' is also a function of C" in ran.err


def test_show_prints_the_steps_of_the_autoscheduler(cli, program, tmp_path):
    text = cli("show", f"{program}:scale", "--what", "autoscheduled").out
    assert "sch.vectorize(" in text and "T.vectorized(" in text
    source = program.parent / "pair.py"
    source.write_text(MODULE)
    both = cli("show", f"{source}:Pair", "--what", "autoscheduled", "--json").json()
    assert [one["name"] for one in both] == ["Pair.main", "Pair.other"]
    assert all("sch." in one["python"] for one in both)


def test_show(cli, tuned, program):
    assert "T.block" in cli("show", "gmm", "--shape", SHAPE).out
    assert "def scale" in cli("show", f"{program}:scale").out
    passes = cli("show", f"{program}:scale", "--what", "passes").out
    assert passes.count("def scale") == 1 + passes.count("# after ") > 3
    assert "define" in cli("show", f"{program}:scale", "--what", "llvm").out
    assert set(cli("show", f"{program}:shift", "--what", "asm", "--json").json()) == {"name", "asm"}
    text = cli("show", tuned.trace).out
    assert "# gmm on cpu/" in text and "checked: " in text and "sch." in text
    data = cli("show", tuned.trace, "--json").json()
    assert data["format"] == "metasched-trace" and "sch." in data["python"]


TARGET = '{"kind": "cpu", "mcpu": "haswell", "num_cores": 2}'


def test_show_prints_the_design_spaces(cli):
    """The text has the steps of each space, and counts the choices of each decision."""
    shape = ("gmm", "--shape", "1,64,64,64", "--what", "space", "--target", TARGET)
    data = cli("show", *shape, "--json").json()
    assert data["modules"] == [{"module": "register_tiling", "block": "Z", "alternatives": 2}]
    first, second = data["spaces"]
    steps = [(each["step"], each["choices"]) for each in first["decisions"]]
    assert ("sample_perfect_tile", 4) in steps and len(steps) == 4
    text = cli("show", *shape).out
    combined = math.prod(choices for _, choices in steps)
    assert "# gmm: 2 design spaces\n# register_tiling offers 2 programs for block Z\n" in text
    assert f"# space 1 of 2: {first['steps']} steps, 4 decisions, {combined:,} combinations" in text
    assert text.count("  # one of ") == 8 and text.count("def apply_trace(sch):") == 2
    assert second["python"] not in text  # its decisions bear comments


def test_a_trace_is_read_by_a_process_that_has_made_no_schedule():
    path = str(sorted((Path(__file__).parents[2] / "traces").glob("*.json"))[0])
    read = f"import json, metasched as m; d = json.load(open({path!r})); "
    read += "print(m.Trace.from_json(json.dumps(d['trace'])).as_python())"
    show = f"import sys; from metasched.cli import main; sys.exit(main(['show', {path!r}]))"
    shells = [[sys.executable, "-c", code] for code in (read, show)]
    for ran in [subprocess.Popen(s, stdout=subprocess.PIPE, text=True) for s in shells]:
        assert "sch.get_block(" in ran.communicate()[0] and ran.returncode == 0


def test_db(cli, tuned):
    ran = cli("db", tuned.folder)
    assert ran.code == 0 and len(ran.out.splitlines()) == 4
    assert all(line.startswith("gmm") for line in ran.out.splitlines())
    records = cli("db", tuned.folder, "--json").json()
    assert len(records) == 4
    times = [statistics.median(r["samples"]) for r in records]
    assert times == sorted(times)
    assert sorted(r["index"] for r in records) == [0, 1, 2, 3]
    assert len(cli("db", tuned.folder, "--limit", 1, "--json").json()) == 1
    assert cli("db", tuned.folder, "--workload", "sfm", "--json").json() == []


def test_db_learns_from_its_records(cli, made_up, tmp_path):
    folder = tmp_path / "w"
    random = ("--strategy", "random", "--trials", 12, "--work-dir", folder, "--no-peer")
    cli("tune", "gmm", "--shape", SHAPE, *random)
    told = cli("db", folder, "--quality")
    assert told.code == 2 and "fewer than two operators of which 8 programs" in told.err
    cli("tune", "tbg", "--shape", "1,16,2,8", *random)
    found = cli("db", folder, "--quality", "--write-prior", tmp_path / "prior.txt", "--json").json()
    assert (found["records"], found["tasks"], found["lost"]) == (24, 2, 0)
    assert [row["held_out"] for row in found["quality"]] == ["tasks", "operators"]
    assert Prior.load(tmp_path / "prior.txt").about["records"] == 24
    assert "held out        pairs  best of 1  best of 5" in cli("db", folder, "--quality").out


def test_doctor(cli):
    ran = cli("doctor", "--json")
    findings = ran.json()
    assert ran.code == int(any(f["fatal"] and not f["ok"] for f in findings))
    assert {"OpenMP runtime", "C compiler", "CPU", "compile and run"} <= {
        f["name"] for f in findings
    }
    assert all(f["ok"] or f["cost"] for f in findings)
    assert "compile and run" in cli("doctor").out


def test_report_names_a_damaged_record_and_goes_on(cli, tuned, tmp_path):
    folder = tuned.copy(tmp_path / "work")
    with sqlite3.connect(folder / STORE) as connection:
        connection.execute("UPDATE records SET body = '{' WHERE id = 1")
    connection.close()
    ran = cli("report", folder)
    assert ran.code == 0 and (folder / "report.html").exists()
    assert "record 1 is damaged and left out" in ran.err


def test_report_writes_one_page(cli, tuned, tmp_path):
    ran = cli("report", tuned.folder, "-o", tmp_path / "page.html", "--json")
    assert ran.code == 0
    data = ran.json()
    assert Path(data["report"]).read_text().startswith("<!DOCTYPE html>")
    (one,) = data["workloads"]
    assert one["workload"] == "gmm" and set(one["seconds"]) >= {"best", "numpy"}
    folder = tuned.copy(tmp_path / "copy")
    assert cli("report", folder).out.strip() == str(folder / "report.html")


# -- bench ---------------------------------------------------------------------------------------


@pytest.fixture
def bench_folder(tuned, tmp_path, made_up):
    """A copy of the tuned folder: with as many trials, bench has nothing to measure."""
    return tuned.copy(tmp_path / "bench")


def test_bench_gives_the_peers_times_over_ours(cli, bench_folder, tmp_path):
    record = tmp_path / "tvm.json"
    record.write_text(json.dumps([{"op": "GMM", "shape": [1, 16, 16, 16], "seconds": 1e-3}]))
    ran = cli(
        "bench", "gmm", "--shape", SHAPE, "--trials", 4, "--work-dir", bench_folder,
        "--against", "numpy,tvm", "--tvm-record", record, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    rows = ran.json()
    assert [r["peer"] for r in rows] == ["metasched", "numpy", "tvm"]
    ours = rows[0]["seconds"]
    for row in rows:
        assert {"op", "shape", "dtype", "peer", "seconds", "gflops", "ratio"} <= set(row)
        assert row["op"] == "gmm" and row["shape"] == [1, 16, 16, 16] and row["dtype"] == "float32"
        assert 0.2 < row["ratio"] / (row["seconds"] / ours) < 5  # one of medians, one of pairs
        assert row["peak_fraction"] == pytest.approx(row["gflops"] / row["peak_gflops"])
    assert rows[2]["seconds"] == 1e-3
    text = compare.comparison_text(rows)
    assert "geometric mean of their times over ours: numpy" in text
    assert "peak of multiply-adds, in turns with them" in text


def test_bench_says_when_the_peak_took_no_part(cli, bench_folder, monkeypatch):
    failed = compare.LibraryTime(note="it failed")
    sides = {"metasched": compare.LibraryTime(1e-3, 1.0), "peak": failed}
    monkeypatch.setattr("metasched.commands.bench.side_by_side", lambda *a: dict(sides))
    ran = cli("bench", "gmm", "--shape", SHAPE, "--trials", 4, "--work-dir", bench_folder, "--json")
    assert ran.code == 0 and "peak measured before the run, not in turns: it failed" in ran.err
    assert ran.json()[0]["peak_gflops"] > 0


def test_bench_says_which_peers_are_not_there_and_goes_on(cli, bench_folder, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "torch" else there(name, *a)
    )
    ran = cli(
        "bench", "gmm", "--shape", SHAPE, "--trials", 4, "--work-dir", bench_folder,
        "--against", "torch,torch-compiled,tvm",
    )  # fmt: skip
    assert ran.code == 0
    assert "torch is left out: PyTorch is not installed" in ran.err
    assert "tvm is left out: its times are read from a file" in ran.err
    assert [line.split()[2] for line in ran.out.splitlines()[1:2]] == ["metasched"]


def test_main_takes_its_arguments_from_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["metasched", "show", "sfm", "--shape", "2,2"])
    assert main() == 0
    assert "def sfm" in capsys.readouterr().out


def test_outputs_that_are_closed_or_narrow_are_no_disaster(tmp_path):
    """Standard output closed, standard error closed, an encoding without the character."""
    (tmp_path / "é.py").write_text("x = 1")
    right = f"{sys.executable} -m metasched targets"
    wrong = f"{sys.executable} -m metasched show é.py:f"
    for command, code in (
        (f"{right} >&-", 0), (f"{right} 2>&-", 0), (f"{wrong} >&- 2>&-", 2), (f"{wrong} <&-", 2),
        (f"PYTHONIOENCODING=ascii {wrong}", 2), (f"env -i {wrong}", 2),
    ):  # fmt: skip
        ran = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert ran.returncode == code and "Traceback" not in ran.stderr, (command, ran.stderr)


def test_without_docstrings_and_asserts_the_commands_work(tmp_path):
    command = [sys.executable, "-OO", "-m", "metasched", "--help"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0 and "130 interrupted" in run.stdout, run.stderr
