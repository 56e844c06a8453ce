"""A reduction that declares its accumulator in `T.reads` has the design spaces of one that does
not."""

from __future__ import annotations

import pytest
from schedule.declared_accumulators import with_accumulators, without_accumulators
from space.candidates import TARGET, draw, spaces, tiny

from metasched.ir.equal import assert_structural_equal
from metasched.kinds import default_modules
from metasched.kinds.cpu import reference_modules
from metasched.space.generate import SpaceGenerator

MODULES = {"default": default_modules, "reference": reference_modules}


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("name", ["gmm", "dep", "sfm"])
def test_the_spaces_and_candidates_are_the_same(name: str, kind: str) -> None:
    plain, declared = tiny(name), with_accumulators(tiny(name))
    generator = SpaceGenerator(MODULES[kind](TARGET))
    found = generator.generate(declared, TARGET)
    assert not generator.failures
    for ours, theirs in zip(spaces(name, kind), found, strict=True):
        a, b = (draw(func, s, 0) for func, s in ((plain, ours), (declared, theirs)))
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            bodies = (without_accumulators(x.mod["main"]) for x in (a, b))
            assert_structural_equal(*bodies)
