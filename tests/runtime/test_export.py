"""Exported kernels: linked by a C program, loaded without a compiler, never half-written."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from measure.programs import failing, matmul, scale
from runtime.test_kernel import args, symbolic

import metasched.runtime.export as export_module
from metasched.errors import BuildError, ExportError
from metasched.runtime.build import build
from metasched.runtime.build import export as export_program
from metasched.runtime.export import find_compiler, header, signature_data, signature_of
from metasched.runtime.exported import load_exported
from metasched.script.parser import parse

PROGRAM = """
#include <stdio.h>
#include "gemm.h"
static float A[256], B[256], C[256];
int main(void) {
    for (int i = 0; i < 256; ++i) { A[i] = (float)(i % 7 - 3); B[i] = (float)(i % 5 - 2); }
    if (main_kernel(A, B, C)) return 1;
    if (main_kernel_repeat(A, B, C, 3)) return 2;
    for (int i = 0; i < 16; ++i)
        for (int j = 0; j < 16; ++j) {
            float sum = 0;
            for (int k = 0; k < 16; ++k) sum += A[i * 16 + k] * B[k * 16 + j];
            if (sum != C[i * 16 + j]) return 3;
        }
    puts("right");
    return 0;
}
"""


@pytest.fixture(scope="module")
def kernel():
    return build(matmul(16, parallel=True), name="main_kernel")


@pytest.mark.parametrize("kind", ["o", "so"])
def test_a_c_program_uses_it(kernel, tmp_path, kind):
    files = kernel.export(tmp_path, "gemm")
    compiler = find_compiler()
    if compiler is None:  # then the object is still usable, from NumPy
        assert "no C compiler" in files.note
        a, b, c = args()
        load_exported(tmp_path)(a, b, c)
        assert np.array_equal(c, a @ b)
        return
    (tmp_path / "main.c").write_text(PROGRAM)
    source = [str(files.object if kind == "o" else files.library)]
    data = json.loads(files.manifest.read_text())
    command = [compiler, "-Wall", "-Werror", "-o", "prog", "main.c", *source, *data["link"]]
    subprocess.run(command, cwd=tmp_path, check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [str(tmp_path / "prog")], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout == "right\n"


def test_loading_with_and_without_the_shared_library(kernel, tmp_path, monkeypatch):
    a, b, c = args()
    files = kernel.export(tmp_path / "with", "gemm")
    loaded = load_exported(tmp_path / "with")
    loaded(a, b, c)
    assert np.array_equal(c, a @ b)
    assert loaded.signature == kernel.signature and loaded.workload_hash == kernel.workload_hash
    assert loaded.target == kernel.target
    with pytest.raises(BuildError, match="loaded from files"):
        loaded.llvm_ir
    assert loaded.time(a, b, c, repeats=2, min_repeat_ms=0).median > 0
    monkeypatch.setattr(export_module, "find_compiler", lambda: None)
    files = kernel.export(tmp_path / "without", "gemm")
    assert files.library is None and "no C compiler was found" in files.note
    c[...] = 0
    load_exported(tmp_path / "without", "gemm")(a, b, c)
    assert np.array_equal(c, a @ b)


def test_an_export_without_library_removes_the_stale_one(kernel, tmp_path, monkeypatch):
    (tmp_path / "gemm.so").write_text("of an earlier export")
    monkeypatch.setattr(export_module, "find_compiler", lambda: None)
    kernel.export(tmp_path, "gemm")
    assert sorted(os.listdir(tmp_path)) == ["gemm.h", "gemm.json", "gemm.o"]


def test_loading_needs_no_llvm(kernel, tmp_path):
    if find_compiler() is None:
        return
    kernel.export(tmp_path, "gemm")
    code = (
        "import sys, numpy as np\n"
        "from metasched.runtime.exported import load_exported\n"
        f"k = load_exported({str(tmp_path)!r})\n"
        "a = np.ones((16, 16), np.float32); c = np.zeros_like(a); k(a, a, c)\n"
        "assert c[0, 0] == 16\n"
        "assert not {'llvmlite', 'lightgbm', 'rich'} & set(sys.modules), sys.modules.keys()\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": root})


def test_header_describes_every_parameter(tmp_path):
    run = build(symbolic(), name="sym")
    text = header(run.signature, "sym")
    assert "const float *A, float *B, float s, int64_t n, int64_t m" in text
    assert "A: float32 [n][(m * 2)], row-major, read" in text
    assert " B: float32 [n][(m * 2)], row-major, written" in text or "read and written" in text
    text = header(build(scale(extra=failing())).signature, "x")
    assert "16: never true" in text


def test_header_is_valid_c_and_cpp(kernel, tmp_path):
    compiler = find_compiler()
    (tmp_path / "x.h").write_text(header(build(symbolic(), name="sym").signature, "x"))
    (tmp_path / "x.c").write_text('#include "x.h"\nint main(void) { return 0; }\n')
    for language in ("c", "c++") if compiler is not None else ():
        if language == "c++" and shutil.which("c++") is None:
            continue
        command = [compiler, "-x", language, "-Wall", "-Werror", "-fsyntax-only", "x.c"]
        subprocess.run(command, cwd=tmp_path, check=True)


def test_signature_round_trip():
    for func in (matmul(4), symbolic(), scale(extra=failing())):
        signature = build(func).signature
        assert signature_of(json.loads(json.dumps(signature_data(signature)))) == signature


@pytest.fixture(scope="module")
def exported(kernel, tmp_path_factory):
    place = tmp_path_factory.mktemp("exported")
    kernel.export(place, "gemm")
    return place


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 9}, "manifest version 9; this metasched reads 1 to 1"),
        ({"format": "x"}, "not the manifest of a metasched kernel"),
        ({"signature": {}}, "damaged manifest: no field 'params'"),
        ({"signature": 3}, "damaged manifest"),
        (
            {"signature": {"params": [{"kind": "scalar", "name": "n", "dtype": "x y " * 2500}]}},
            "damaged manifest: 'x y x y ",
        ),
        (
            {"signature": {"params": [], "symbols": ["n"] * 2000, "messages": [], "symbol": "f"}},
            "damaged manifest: more than 1000 arguments",
        ),
        ({"schema_version": "x y " * 2500}, "manifest version 'x y "),
        ({"target": {"kind": "lvm"}}, "did you mean llvm"),
        ({"target": {"kind": "cuda"}}, "cannot run here: there is no code generation for GPUs"),
        ({"files": {"gemm.so": "00", "gemm.o": "00"}}, "not the file its manifest describes"),
    ],
)
def test_damaged_exports_are_explained(exported, tmp_path, change, message):
    for file in exported.iterdir():
        shutil.copy(file, tmp_path)
    path = tmp_path / "gemm.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ExportError) as caught:
        load_exported(path)
    assert message in str(caught.value) and str(tmp_path) in str(caught.value)


def test_nothing_or_several_to_load(exported, tmp_path):
    with pytest.raises(ExportError, match="holds no exported kernel"):
        load_exported(tmp_path)
    for file in exported.iterdir():
        shutil.copy(file, tmp_path)
    shutil.copy(tmp_path / "gemm.json", tmp_path / "other.json")
    with pytest.raises(ExportError, match="choose one of gemm, other"):
        load_exported(tmp_path)
    with pytest.raises(ExportError, match="cannot be read"):
        load_exported(tmp_path, "missing")
    (tmp_path / "gemm.json").write_text('{"format": "metasched-kernel"')
    with pytest.raises(ExportError, match="not valid JSON"):
        load_exported(tmp_path, "gemm")
    (tmp_path / "other.json").rename(tmp_path / "gemm.json")
    for suffix in ("so", "o"):
        (tmp_path / f"gemm.{suffix}").unlink(missing_ok=True)
    with pytest.raises(ExportError, match="No such file"):
        load_exported(tmp_path, "gemm")


def test_full_disk_leaves_the_earlier_export(kernel, tmp_path, monkeypatch):
    kernel.export(tmp_path, "gemm")
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir()}

    def full(path, raw):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_module, "_put", full)
    with pytest.raises(ExportError, match="nothing was exported: No space left on device"):
        kernel.export(tmp_path, "gemm")
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir()} == before


def test_places_that_cannot_be_written(kernel, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        kernel.export(tmp_path / "file")
    with pytest.raises(ExportError, match="not a plain file name"):
        kernel.export(tmp_path, "../up")


def test_linker_that_fails_is_a_note(kernel, tmp_path, monkeypatch):
    monkeypatch.setenv("METASCHED_CC", "false")
    files = kernel.export(tmp_path, "gemm")
    assert files.library is None and "could not link the shared library: exit code 1" in files.note
    monkeypatch.setenv("METASCHED_CC", "no-such-compiler")
    assert "no C compiler" in kernel.export(tmp_path, "gemm").note


def copying(name: str, *params: str, store: str = "B[i] = A[i]"):
    """A kernel of a given name; `params` are the names of its two arrays and what follows."""
    first, second, *more = params or ("A", "B")
    listed = "".join(f', {p}: T.Buffer((4096,), "float64")' for p in (first, second))
    text = f"""
@T.prim_func
def {name}({(listed + "".join(f", {p}: T.int32" for p in more))[2:]}):
    for i in T.parallel(4096):
        {store.replace("A[", f"{first}[").replace("B[", f"{second}[")}
"""
    return parse(text)


@pytest.mark.parametrize("name, store, meaning", [
    ("memcpy", "B[i] = A[i]", np.copy),  # LLVM makes a call of memcpy from a loop that copies
    ("memset", "B[i] = 0.0", np.zeros_like),
    ("tan", "B[i] = T.tan(A[i])", np.tan),
    ("fmod", "B[i] = T.fmod(A[i], 3.0)", lambda a: np.fmod(a, 3.0)),
    ("floor", "B[i] = T.floor(A[i])", np.floor),
    ("cbrt", 'B[i] = T.call_pure_extern("float64", "cbrt", A[i])', np.cbrt),
    ("tgamma", 'B[i] = T.call_pure_extern("float64", "tgamma", A[i])', np.vectorize(math.gamma)),
    ("GOMP_parallel", "B[i] = A[i]", np.copy),
])  # fmt: skip
def test_a_kernel_may_have_the_name_of_a_function_of_c_that_it_calls(
    tmp_path, name, store, meaning
):
    func = copying(name, store=store)
    given, got = np.linspace(0.5, 7, 4096), np.full(4096, -1.0)
    made = build(func)
    made(given, got)
    assert made.name == f"{name}_kernel" and np.allclose(got, meaning(given), rtol=1e-13)
    files = export_program(func, tmp_path)
    assert f"int32_t {name}_kernel(" in files.header.read_text()
    got[:] = -1
    load_exported(tmp_path)(given, got)
    assert np.allclose(got, meaning(given), rtol=1e-13)
    message = f"'{name}' is also a function of C .* another `name`, such as '{name}_kernel'"
    with pytest.raises(BuildError, match=message):
        build(func, name=name)
    with pytest.raises(BuildError, match=message):
        export_program(func, tmp_path, name=name)


def test_names_in_a_header_are_names_of_c_and_cpp_that_differ(tmp_path):
    func = copying("f", "long", "new", "times", "times_", "int32_t", "größe", "grüße", "i")
    text = header(build(func).signature, "x")
    names = ("times_", "times__", "int32_t_", "gr__e", "gr__e_", "i")
    assert "const double *long_, double *new_, " + ", ".join(f"int32_t {n}" for n in names) in text
    assert " *   long_: float64 [4096]" in text and " *   gr__e_: int32\n" in text
    if (compiler := find_compiler()) is not None:
        (tmp_path / "x.h").write_text(text)
        (tmp_path / "x.c").write_text('#include "x.h"\n')
        for language in ("c", *(["c++"] if shutil.which("c++") else [])):
            command = [compiler, "-x", language, "-Wall", "-Werror", "-fsyntax-only", "x.c"]
            subprocess.run(command, cwd=tmp_path, check=True)


def test_a_header_says_what_is_linked_and_what_is_a_stride(kernel, tmp_path):
    files = kernel.export(tmp_path, "gemm")
    flags = " ".join(json.loads(files.manifest.read_text())["link"])
    assert f" * A program with gemm.o is linked with {flags}.\n" in files.header.read_text()
    text = """
@T.prim_func
def f(x: T.handle, y: T.handle):
    n = T.int32()
    step = T.int32()
    X = T.match_buffer(x, (n, 3), strides=[step, 1])
    Y = T.match_buffer(y, (n,))
    for i in range(n):
        Y[i] = X[i, 0]
"""
    text = header(build(parse(text)).signature, "x")
    assert "n: the extent of that name" in text
    assert "step: the stride of that name, in elements" in text


def test_a_library_is_loaded_by_its_manifest(kernel, tmp_path):
    kernel.export(tmp_path, "gemm")
    for suffix in ("so", "o", "h"):
        with pytest.raises(
            ExportError, match=r"gemm\.(so|o|h): name the manifest beside it, .*json"
        ):
            load_exported(tmp_path / f"gemm.{suffix}")
