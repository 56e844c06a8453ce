"""AArch64: kernels under emulation against NumPy and the interpreter, and the code they become."""

from __future__ import annotations

import json
import random
import re
import subprocess

import numpy as np
import pytest
from codegen.kernels import program
from codegen.test_vectormath import BOUNDS, UNARY, reference, samples, ulps
from emulation import CROSS, EMULATOR, LIBRARIES, Emulated, require_emulator
from runtime.test_export import PROGRAM
from strategies import random_args, random_func

from metasched import Schedule, export, workloads
from metasched.codegen.compile import compile_func
from metasched.ir.dtype import FLOAT32
from metasched.ir.expr import Var
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.interp_ops import OP_RULES
from metasched.kinds import default_modules, default_postprocs, default_trace
from metasched.postproc import run_postprocs
from metasched.space.generate import SpaceGenerator
from metasched.target import Target

# The thirteen operators, and products of the types that have instructions of their own.
OPERATORS = [
    ("gmm", (1, 24, 32, 24)), ("c1d", (1, 16, 8, 16, 3, 2, 1)),
    ("c2d", (1, 8, 8, 8, 16, 3, 1, 1)), ("c3d", (1, 4, 6, 6, 4, 8, 3, 1, 1)),
    ("grp", (1, 8, 8, 8, 16, 3, 1, 1, 1, 4)), ("dil", (1, 8, 8, 4, 8, 3, 1, 2, 2)),
    ("dep", (1, 12, 12, 8, 3, 1, 1)), ("t2d", (1, 4, 4, 8, 8, 4, 2, 1)),
    ("cap", (1, 4, 4, 4, 4, 3, 1, 1)), ("nrm", (2, 12, 16)), ("sfm", (8, 24)),
    ("cbr", (1, 8, 8, 4, 16, 3, 2, 1)), ("tbg", (1, 16, 2, 8)),
    ("gmm_bf16", (1, 16, 32, 16)), ("gmm_f16", (1, 16, 32, 16)),
    ("c2d_s8s8s32", (1, 6, 6, 8, 16, 3, 1, 1)),
]  # fmt: skip
V1 = Target.of("llvm -mcpu=neoverse-v1 -num-cores=2")
N1 = Target.of("llvm -mcpu=neoverse-n1 -num-cores=2")
A72 = Target.of("llvm -mcpu=cortex-a72 -num-cores=2")


def scheduled(func: PrimFunc, target: Target, seed: int) -> PrimFunc:
    """A candidate of the target's space: from the last design space, decisions drawn."""
    space = SpaceGenerator(default_modules(target)).generate(func, target)
    sch = Schedule(func, seed=seed)
    space[seed % len(space)].apply(sch, decisions="fresh")
    run_postprocs(sch, target, default_postprocs(target))
    return sch.func


@pytest.mark.parametrize(
    ("target", "operators"), [(V1, OPERATORS), (A72, OPERATORS[-3:])],
    ids=["neoverse-v1", "cortex-a72"],
)  # fmt: skip
def test_operators_agree_with_their_references(tmp_path, target, operators):
    """By the default schedule, and by a candidate of the target's space."""
    require_emulator()
    emulated, checks = Emulated(tmp_path), []
    for seed, (name, shape) in enumerate(operators):
        workload = workloads.get(name)
        func = workload.func(shape)
        inputs = workload.inputs(shape, seed=1, integers=True)
        expected = workload.reference(shape, *inputs)
        default = Schedule(func)
        default_trace(func, target).apply(default)
        for way in (default.func, scheduled(func, target, seed)):
            output = workload.output(shape)
            emulated.add(way, *[a.copy() for a in inputs], output, target=target)
            checks.append((name, output, expected))
    emulated.run("max" if target is V1 else "cortex-a72")
    for name, output, expected in checks:
        if name in ("nrm", "sfm"):
            np.testing.assert_allclose(output, expected, rtol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(output, expected, err_msg=name)


def test_random_programs_agree_with_the_interpreter(tmp_path):
    """Of all types, with symbolic shapes, conversions, conditions and strided views."""
    require_emulator()
    emulated, checks = Emulated(tmp_path), []
    for seed in range(40):
        func = random_func(random.Random(seed))
        wanted = random_args(func, random.Random(seed))
        if any(isinstance(p, Var) for p in func.params):
            continue  # scalars: the harness has arrays and extents
        given = [array.copy() for array in wanted]
        run(func, *wanted)
        emulated.add(func, *given)
        checks.append((func, given, wanted))
    assert len(checks) > 20
    emulated.run()
    for func, given, wanted in checks:
        for a, b in zip(given, wanted, strict=True):
            limit = 1e-2 if a.dtype.itemsize == 2 else 1e-5
            np.testing.assert_allclose(
                a.astype("float64"), b.astype("float64"), limit, limit, err_msg=func.script()
            )


def test_mathematical_functions_keep_their_error_bounds(tmp_path):
    """By the polynomials of x86, in vectors of 128 bits; other functions by the C library."""
    require_emulator()
    emulated, outputs = Emulated(tmp_path), []

    def add(name: str, x: np.ndarray, bound: float | None) -> None:
        outputs.append((name, x, np.zeros_like(x), bound))
        text = UNARY.format(n=len(x), dtype=str(x.dtype), kind="vectorized", name=name)
        emulated.add(program(text), *outputs[-1][1:3])

    for name, (_, single, bound, double, bound64) in BOUNDS.items():
        add(name, samples(*single).astype("float32"), bound)
        add(name, samples(*double)[::8], bound64)
    for name in ("asin", "atanh", "sinh", "floor", "round", "nearbyint"):
        add(name, np.linspace(-0.95, 0.95, 21).astype("float32"), None)
    emulated.run()
    for name, x, y, bound in outputs:
        if bound is None:
            np.testing.assert_allclose(y, OP_RULES[name](FLOAT32, x), rtol=1e-6, err_msg=name)
        else:
            assert ulps(y, reference(name, x)).max() <= bound, (name, x.dtype)


def test_exported_files_are_linked_by_a_c_program(tmp_path):
    """The object and the shared library, with the header and the flags of the manifest."""
    require_emulator()
    files = export(workloads.get("gmm").func((1, 16, 16, 16)), tmp_path, V1, name="main_kernel")
    data = json.loads(files.manifest.read_text())
    assert data["target"]["triple"] == "aarch64-unknown-linux-gnu" and not files.note
    assert "dotprod" in data["target"]["features"]
    assert "aarch64-unknown-linux-gnu with the features" in files.header.read_text()
    (tmp_path / "main.c").write_text(PROGRAM.replace("gemm.h", "main_kernel.h"))
    for source in (files.object, files.library):
        command = [CROSS, "-Wall", "-Werror", "-o", "prog", "main.c", str(source), *data["link"]]
        subprocess.run(command, cwd=tmp_path, check=True)
        paths = ["-L", str(LIBRARIES), "-E", f"LD_LIBRARY_PATH={tmp_path}", "-cpu", "max"]
        done = subprocess.run(
            [EMULATOR, *paths, "./prog"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout == "right\n"


def test_code_uses_the_vectors_of_the_target():
    """Fused multiply-adds by lane, and conversions to bfloat16 in one instruction."""
    func = scheduled(workloads.get("gmm").func((1, 64, 64, 64)), N1, 1)
    asm = compile_func(func, N1).asm()
    assert re.search(r"fmla\tv\d+\.4s, v\d+\.4s, v\d+\.s\[\d\]", asm)
    text = UNARY.format(n=64, dtype="bfloat16", kind="vectorized", name="sqrt")
    assert "bfcvtn" in compile_func(program(text), V1).asm()
    assert "bfcvtn" not in compile_func(program(text), N1).asm()
