"""What the target says is absent stays unused, even where the processor's name implies it."""

from __future__ import annotations

from measure.programs import elementwise

from metasched.codegen.compile import compile_func
from metasched.target import Target


def test_features_that_a_virtual_machine_hides_are_not_used() -> None:
    full = {"kind": "cpu", "mcpu": "haswell", "triple": "x86_64-unknown-linux-gnu"}
    masked = {**full, "features": ["sse", "sse2"]}
    func = elementwise(lambda x: x * 3)
    assert "vmulss" in compile_func(func, Target.of(full)).asm()
    text = compile_func(func, Target.of(masked)).asm()
    assert "mulss" in text and "vmulss" not in text
