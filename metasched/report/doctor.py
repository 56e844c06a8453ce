"""Diagnose this machine: what is there, what is missing, and what each gap costs."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass

from metasched import config
from metasched.codegen.openmp import REMEDY
from metasched.cost import lightgbm_lack
from metasched.hardware import usable_cpus
from metasched.report.selftest import selftest
from metasched.runtime.export import find_compiler
from metasched.runtime.parallel import has_openmp, library_file, max_threads
from metasched.target import Target

_VECTORS = {"x86_64": (("avx2", "fma"), "AVX2 and FMA"), "aarch64": (("neon",), "NEON")}
"""The features that each architecture's search space is made for, and their names in texts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: the thing that was checked.
        ok: whether the check succeeded.
        found: what the check found.
        cost: the consequence of a failure, and the remedy; empty when ok.
        fatal: whether metasched cannot work after a failure.
    """

    name: str
    ok: bool
    found: str
    cost: str = ""
    fatal: bool = False


def diagnose() -> list[Finding]:
    """Run all checks."""
    return [
        _python(),
        *_packages(),
        _lightgbm(),
        _cpu(),
        _openmp(),
        _compiler(),
        _kernel(),
        _cores(),
        _settings(),
    ]


def _python() -> Finding:
    found = sys.version.split()[0]
    ok = sys.version_info >= (3, 11)
    return Finding("Python", ok, found, "" if ok else "3.11 or later is needed", not ok)


def _packages() -> list[Finding]:
    rows = [
        ("numpy", "nothing works without it", True),
        ("llvmlite", "nothing can be compiled", True),
        ("pydantic", "no records can be read or written", True),
        ("rich", "no command line", False),
    ]
    out = []
    for name, cost, fatal in rows:
        there = importlib.util.find_spec(name) is not None
        found = "installed" if there else "missing"
        out.append(
            Finding(name, there, found, "" if there else f"{cost}: pip install {name}", fatal)
        )
    return out


def _lightgbm() -> Finding:
    """Check that LightGBM can be loaded; an installed LightGBM may still lack libgomp."""
    lack = "pip install lightgbm"
    if importlib.util.find_spec("lightgbm") is not None:
        lack = lightgbm_lack()
    cost = f"search learns by a line instead of trees, tuning needs more trials: {lack}"
    found = "missing" if lack.startswith("pip") else "cannot be loaded" if lack else "installed"
    return Finding("lightgbm", not lack, found, cost if lack else "")


def _cpu() -> Finding:
    target = Target.native()
    name = f"{target.arch}, {target.num_cores} cores, {target.vector_bits}-bit vectors"
    needed = _VECTORS.get(target.arch)
    if needed is None:
        cost = f"code is written for {' and '.join(_VECTORS)} alone"
        return Finding("CPU", False, name, cost)
    features, words = needed
    cost = f"kernels use narrow vectors or none: the search space is made for {words}"
    ok = target.has(*features)
    return Finding("CPU", ok, name, "" if ok else cost)


def _openmp() -> Finding:
    ok = has_openmp()
    found = f"{library_file()}, {max_threads()} threads" if ok else "libgomp not found"
    cost = f"parallel loops run serially and LightGBM cannot load: {REMEDY}"
    return Finding("OpenMP runtime", ok, found, "" if ok else cost)


def _compiler() -> Finding:
    found = find_compiler()
    cost = "exports hold an object but no shared library: install gcc or clang, or set METASCHED_CC"
    return Finding("C compiler", found is not None, found or "none", "" if found else cost)


def _kernel() -> Finding:
    """Compile, load and run a small program, from the parser to the loader."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a lack of OpenMP is a separate finding
            selftest()
    except Exception as error:  # any failure is a finding
        return Finding(
            "compile and run", False, f"{type(error).__name__}: {error}", "see above", True
        )
    return Finding("compile and run", True, "a small kernel computes the right result")


def _cores() -> Finding:
    usable = len(usable_cpus())
    load = os.getloadavg()[0]
    ok = load < 0.5 * usable
    cost = "timings will be disturbed by other programs: tune on a quiet machine"
    return Finding("free cores", ok, f"load {load:.1f} on {usable} usable", "" if ok else cost)


def _settings() -> Finding:
    unknown = config.unknown_variables()
    folder = tempfile.gettempdir()
    if unknown:
        return Finding("settings", False, ", ".join(unknown), "no setting has these names")
    return Finding("settings", os.access(folder, os.W_OK), f"temporary files in {folder}")
