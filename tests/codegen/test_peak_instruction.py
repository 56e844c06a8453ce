"""The rate of declared instructions: what is measured, kept, and refused."""

from __future__ import annotations

import pytest

from metasched.codegen import peak
from metasched.codegen.compile import Compiled
from metasched.errors import BuildError
from metasched.ir.op import HardwareOp, hardware_op, lacking
from metasched.measure.instruction_costs import measure_costs
from metasched.target import Target
from metasched.target.cpu import read_costs_again
from metasched.target.rates import measured_costs, remembered

HERE = Target.native()
OLD = Target.of("llvm -mcpu=x86-64-v3 -num-cores=1")
KNOWN = [
    name for name in (
        "llvm.x86.avx2.pmadd.wd", "llvm.x86.avx512bf16.dpbf16ps.256", "llvm.x86.tdpbusd.internal",
    )
    if not lacking(hardware_op(name).feature, HERE.features)
]  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Few calls, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(peak, "_CALLS", 1 << 14)
    monkeypatch.setattr(peak, "_RUNS", 2)
    read_costs_again()
    yield
    read_costs_again()


@pytest.mark.parametrize("name", KNOWN)
def test_an_instruction_has_a_peak_and_a_cost(name):
    assert peak.measured_peak(HERE, name, 1) > 0
    cost = peak.measured_cost(HERE, name)
    assert cost >= 0.25 and (4 * cost).is_integer()
    assert measured_costs(HERE.key) == {name: cost}
    read_costs_again()
    assert HERE.machine_model().costs == {name: cost}
    assert not OLD.machine_model().costs


def test_the_least_cost_is_kept():
    assert remembered("t cost x", 2.0, min) == 2.0 and remembered("t cost x", 3.0, min) == 2.0
    assert measured_costs("t") == {"x": 2.0}


def test_what_has_no_peak_is_refused():
    with pytest.raises(BuildError, match="int8 has no peak: it is no float32, float64 or"):
        peak.multiply_adds(HERE, "int8")
    with pytest.raises(BuildError, match=r"llvm.nothing has no peak"):
        peak.measured_cost(HERE, "llvm.nothing")
    with pytest.raises(BuildError, match="needs avx512vnni, which the target lacks"):
        peak.measured_peak(OLD, "llvm.x86.avx512.vpdpbusd.512", 1)


def test_an_instruction_that_cannot_be_chained_is_refused(monkeypatch):
    op = HardwareOp("llvm.test.narrow", "int8x16", ("int16x16",), "", lambda a: a)
    monkeypatch.setattr(peak, "hardware_op", lambda name: op)
    with pytest.raises(BuildError, match="cannot be chained: no operand is as large as its result"):
        peak.measured_cost(HERE, "llvm.test.narrow")


def test_costs_of_other_machines_are_not_measured():
    measure_costs([], Target.of("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1 -num-cores=1"))
    assert measured_costs(HERE.key) == {}


def test_a_loop_of_tile_products_keeps_its_tiles_in_registers():
    """Four chains; between two rounds nothing is loaded, stored or configured."""
    machine = Target.of("llvm -mcpu=sapphirerapids -mtriple=x86_64-linux-gnu -num-cores=1")
    link = peak._of_instruction(hardware_op("llvm.x86.tdpbusd.internal"))
    assert link.operations == 2 * 16 * 16 * 64
    text = peak._text(link, link.chains, 512)
    options = (machine.triple, machine.mcpu, machine.llvm_features, 2)
    asm = Compiled(b"", "peak", None, text, options=options).asm()
    loop = asm[asm.index("tdpbusd") : asm.rindex("tdpbusd")]
    assert loop.count("tdpbusd") == 3 and "tile" not in loop and "tmm" in loop
