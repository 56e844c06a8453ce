"""doctor: each lack is named with what it costs and how to mend it."""

from __future__ import annotations

import importlib.util

import pytest

from metasched.errors import MetaschedError
from metasched.report import doctor, selftest
from metasched.target import Target


def finding(name: str):
    (one,) = [f for f in doctor.diagnose() if f.name == name]
    return one


def test_a_whole_installation_has_nothing_fatal():
    assert not [f for f in doctor.diagnose() if f.fatal and not f.ok]


@pytest.mark.parametrize(("package", "fatal"), [("lightgbm", False), ("llvmlite", True)])
def test_a_missing_package(monkeypatch, package, fatal):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == package else there(n))
    one = finding(package)
    assert not one.ok and one.fatal is fatal and f"pip install {package}" in one.cost


def test_no_openmp_no_compiler_weak_processor(monkeypatch):
    monkeypatch.setattr(doctor, "has_openmp", lambda: False)
    monkeypatch.setattr(doctor, "find_compiler", lambda: None)
    weak = Target.of({"kind": "cpu", "mcpu": "x86-64", "num_cores": 1, "features": ["sse2"]})
    monkeypatch.setattr(doctor.Target, "native", staticmethod(lambda: weak))
    assert "libgomp1" in finding("OpenMP runtime").cost
    assert "no shared library" in finding("C compiler").cost
    assert "AVX2 and FMA" in finding("CPU").cost


@pytest.mark.parametrize(
    ("mcpu", "ok"), [("neoverse-n1", True), ("haswell", True), ("x86-64-v2", False)]
)
def test_processors_with_the_vectors_of_the_space(monkeypatch, mcpu, ok):
    target = Target.of(f"llvm -mcpu={mcpu} -num-cores=2")
    monkeypatch.setattr(doctor, "selftest", lambda: None)  # it would run code of the target
    monkeypatch.setattr(doctor.Target, "native", staticmethod(lambda: target))
    assert finding("CPU").ok is ok


def test_a_processor_without_code_generation(monkeypatch):
    other = Target.of("llvm -mtriple=riscv64-linux-gnu -num-cores=2")
    monkeypatch.setattr(doctor, "selftest", lambda: None)
    monkeypatch.setattr(doctor.Target, "native", staticmethod(lambda: other))
    assert "x86_64 and aarch64 alone" in finding("CPU").cost


def test_a_busy_machine_and_a_misspelt_setting(monkeypatch):
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (99.0, 1.0, 1.0))
    monkeypatch.setenv("METASCHED_TRAILS", "3")
    assert "quiet machine" in finding("free cores").cost
    assert finding("settings").found == "METASCHED_TRAILS"


def test_a_compiler_that_computes_rubbish_is_fatal(monkeypatch):
    monkeypatch.setattr(selftest, "build", lambda sch: lambda a, b: None)
    with pytest.raises(MetaschedError, match="its result is wrong"):
        selftest.selftest()
    one = finding("compile and run")
    assert one.fatal and not one.ok and "its result is wrong" in one.found
