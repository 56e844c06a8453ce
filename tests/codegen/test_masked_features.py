"""What the target says is absent stays unused, even where the processor's name implies it."""

from __future__ import annotations

import pytest
from measure.programs import elementwise

from metasched.codegen.compile import Compiled, compile_func
from metasched.hardware import CPU_FEATURES
from metasched.target import Target


def test_features_that_a_virtual_machine_hides_are_not_used() -> None:
    full = {"kind": "cpu", "mcpu": "haswell", "triple": "x86_64-unknown-linux-gnu"}
    masked = {**full, "features": ["sse", "sse2"]}
    func = elementwise(lambda x: x * 3)
    assert "vmulss" in compile_func(func, Target.of(full)).asm()
    text = compile_func(func, Target.of(masked)).asm()
    assert "mulss" in text and "vmulss" not in text


def assembly(text: str, target: Target, features: str) -> str:
    """What LLVM makes of its text for the processor of a target and some of its features."""
    options = (target.triple, target.mcpu, features, 2)
    return Compiled(b"", "f", None, text, options=options).asm()  # type: ignore[arg-type]


BYTES = ", ".join([f"i32 {n}" for n in (3, 4, 5, 16, 16, 16, 16, 16)] + ["i32 poison"] * 8)
SHIFTED = f"""define <16 x i8> @f(<16 x i8> %a) {{
  %r = shufflevector <16 x i8> %a, <16 x i8> zeroinitializer, <16 x i32> <{BYTES}>
  ret <16 x i8> %r
}}"""


@pytest.mark.parametrize("name", [n for n in CPU_FEATURES["x86_64"] if n.startswith("znver")])
def test_code_for_a_processor_of_amd_runs_on_others_with_its_features(name) -> None:
    """SSE4A is AMD's alone, and no target says whether a machine has it."""
    target = Target.of(f"llvm -mcpu={name} -mtriple=x86_64-linux-gnu -num-cores=1")
    assert "extrq" in assembly(SHIFTED, target, "")
    assert "extrq" not in assembly(SHIFTED, target, target.llvm_features)


ACQUIRE = """define i32 @f(ptr %p) {
  %v = load atomic i32, ptr %p acquire, align 4
  ret i32 %v
}"""


@pytest.mark.parametrize("name", ["apple-m1", "neoverse-n1", "neoverse-v2"])
def test_code_for_aarch64_uses_named_features_alone(name) -> None:
    """Machines with equal features differ in RCPC, which LLVM's names of processors imply."""
    target = Target.of(f"llvm -mcpu={name} -mtriple=aarch64-linux-gnu -num-cores=1")
    assert "ldapr" in assembly(ACQUIRE, target, "")
    assert "ldapr" not in assembly(ACQUIRE, target, target.llvm_features)
