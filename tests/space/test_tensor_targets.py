"""Design spaces for instructions of other processors: AMX and AArch64.

Candidates are drawn from every space with such an instruction. The interpreter runs each; AArch64's
run under emulation too. LLVM assembles AMX's, which run where this machine has tiles.
"""

from __future__ import annotations

import numpy as np
import pytest
from emulation import Emulated, require_emulator
from space.survival import (
    FAMILIES,
    Family,
    convolution,
    finished,
    product,
    survivors,
    tensor_spaces,
)

from metasched import Schedule, build
from metasched.codegen.compile import compile_func
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.kinds import default_postprocs
from metasched.postproc import run_postprocs
from metasched.target import Target

HERE = Target.native()
PROGRAMS = {
    "plain": (product, (1, 16, 16, 64)), "epilogue": (finished, (1, 16, 16, 64)),
    "conv": (convolution, (1, 4, 16, 16)), "odd": (product, (1, 15, 31, 61)),
    "batch": (product, (2, 16, 16, 64)),
}  # fmt: skip
WORDS = {"amx-u8s8": "tdpbusd", "amx-s8s8": "tdpbssd", "amx-bf16": "tdpbf16ps"}
ARM = ["smmla", "ummla", "usmmla", "bfmmla"]


def numbers(func: PrimFunc) -> list[np.ndarray]:
    """Bytes over their whole range, extremes first; small whole numbers of other types."""
    draw, found = np.random.default_rng(0), []
    for buffer in func.buffers:
        kind, shape = buffer.dtype.numpy, buffer.constant_shape()
        if buffer.dtype.bits == 8:
            ends = np.iinfo(kind)
            values = draw.integers(ends.min, ends.max, shape, kind, endpoint=True)
            values.reshape(-1)[:32] = np.tile([ends.min, ends.max], 16)
        else:
            values = draw.integers(-3, 4, shape).astype(kind)
        found.append(values)
    return found


def drawn(family: Family, program: str, most: int = 2) -> tuple[PrimFunc, list[Schedule]]:
    """A program and candidates of the first and the last of its design spaces."""
    make, size = PROGRAMS[program]
    func, target = make(family.kinds, size), Target.of(family.target)
    spaces = tensor_spaces(func, target, family.prefix)
    assert spaces
    found = []
    for seed, space in enumerate([spaces[0], spaces[-1]][:most]):
        sch = Schedule(func, seed=seed)
        space.apply(sch, decisions="fresh")
        run_postprocs(sch, target, default_postprocs(target))
        assert "call_llvm_pure_intrin" in sch.mod.script()
        found.append(sch)
    return func, found


def same(given: list[np.ndarray], want: list[np.ndarray]) -> None:
    for a, b in zip(given, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", WORDS)
def test_candidates_for_amx(name, program):
    family = FAMILIES[name]
    func, found = drawn(family, program, 1)
    want, given = numbers(func), numbers(func)
    run(func, *want)
    run(found[0].mod, *given)
    same(given, want)
    assert WORDS[name] in compile_func(found[0].func, Target.of(family.target)).asm()


@pytest.mark.parametrize("name", WORDS)
def test_candidates_for_amx_run_where_there_are_tiles(name):
    if HERE.arch != "x86_64" or not HERE.has("amx-tile", "amx-int8", "amx-bf16"):
        pytest.skip("code with tiles is not run: this machine lacks AMX")
    for program in PROGRAMS:
        func, found = drawn(FAMILIES[name], program)
        want = numbers(func)
        run(func, *want)
        for sch in found:
            given = numbers(func)
            build(sch.mod)(*given)
            same(given, want)


@pytest.mark.parametrize("name", ARM)
def test_candidates_for_aarch64_run_under_emulation(tmp_path, name):
    require_emulator()
    together, pairs = Emulated(tmp_path), []
    for program in PROGRAMS:
        func, found = drawn(FAMILIES[name], program)
        want = numbers(func)
        run(func, *want)
        for sch in found:
            given = numbers(func)
            together.add(sch.func, *given, target=Target.of(FAMILIES[name].target))
            pairs.append((given, want))
    together.run()
    for given, want in pairs:
        same(given, want)


@pytest.mark.parametrize("name", ["vnni-512", "maddubs", "amx-s8s8", "sdot", "smmla"])
def test_samples_survive(name):
    """At least 80 % in each space; `python -m tests.space.survival` measures more of them."""
    family = FAMILIES[name]
    target = Target.of(family.target)
    func = finished(family.kinds, (1, 63, 64, 130))
    spaces = tensor_spaces(func, target, family.prefix)
    assert spaces
    for space in spaces:
        kept, why = survivors(func, space, target, 10)
        assert kept >= 8, why
