"""loop_distribution: copies of scalars that each iteration sets, beside scalars that carry over."""

from __future__ import annotations

from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.kinds import default_modules
from metasched.script import parse
from metasched.space.generate import SpaceGenerator

NEAREST = """
@T.prim_func
def nearest(X: T.Buffer((40, 9), "float32"), C: T.Buffer((16, 9), "float32"),
            A: T.Buffer((40,), "int32")):
    for i in range(40):
        best = T.float32(1e30)
        A[i] = 0
        for c in range(16):
            d = T.float32(0)
            for k in range(9):
                d += (X[i, k] - C[c, k]) * (X[i, k] - C[c, k])
            if d < best:
                best = d
                A[i] = c
"""


def test_a_distance_gets_a_copy_for_each_centre_while_the_minimum_stays_one():
    """The minimum so far goes from centre to centre; only the distances have copies for each."""
    func = parse(NEAREST)
    generator = SpaceGenerator(default_modules(TARGET))
    found = generator.generate(func, TARGET)
    assert not generator.failures
    tiled = [t for t in found if "SSRRS" in str(t)]
    assert tiled
    for space in found:
        sch = next(s for seed in range(9) if (s := draw(func, space, seed)) is not None)
        shapes = {b.name: b.constant_shape() for b in sch.get(sch.get_block("root")).alloc_buffers}
        assert space not in tiled or [1, 16, 40] in map(sorted, shapes.values())
        assert not any(b.startswith("best") and 16 in s for b, s in shapes.items())
        check_numbers(func, sch.mod, compiled=True)
