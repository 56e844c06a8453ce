"""separate_phases: copies of every s-th element for windows that move by s elements."""

from __future__ import annotations

import pytest
from oracle import check_numbers
from space.candidates import TARGET, draw

from metasched.kinds import default_modules
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.separate_phases import SeparatePhases

PLAIN = """
@T.prim_func
def decimate(X: T.Buffer((3, {length}), "float32"), h: T.Buffer((48,), "float32"),
             Y: T.Buffer((3, 60), "float32")):
    for c, n in T.grid(3, 60):
        s = T.float32(0)
        for k in range({taps}):
            s += X[c, {index}] * h[k]
        Y[c, n] = s
"""
BLOCK = """
@T.prim_func
def decimate(X: T.Buffer((3, {length}), "float32"), h: T.Buffer((48,), "float32"),
             Y: T.Buffer((3, 60), "float32")):
    for c, n, k in T.grid(3, 60, {taps}):
        with T.block("Y"):
            vc, vn, vk = T.axis.remap("SSR", [c, n, k])
            with T.init():
                Y[vc, vn] = T.float32(0)
            Y[vc, vn] += X[vc, {index}] * h[vk]
"""


@pytest.mark.parametrize(
    ("length", "index"),
    [(284, "4 * n + k"), (285, "4 * n + k + 1"), (284, "4 * n - k + 47"), (225, "3 * n + k")],
)
def test_windows_in_plain_loops_read_phases_and_sums_keep_their_order(length, index):
    func = parse(PLAIN.format(length=length, index=index, taps=48))
    generator = SpaceGenerator(default_modules(TARGET))
    spaces = [t for t in generator.generate(func, TARGET) if "cache_read" in str(t)]
    assert spaces and not generator.failures
    for space in spaces[:2]:
        sch = next(s for seed in range(9) if (s := draw(func, space, seed)) is not None)
        check_numbers(func, sch.mod, seeds=(0,), compiled=True)


@pytest.mark.parametrize(("length", "index"), [(284, "4 * vn + vk"), (285, "vk + vn * 4 + 1")])
def test_lanes_of_a_window_lie_side_by_side_in_a_phase(length, index):
    func = parse(BLOCK.format(length=length, index=index, taps=48))
    written = Schedule(func)
    sch, kept = SeparatePhases()(written, written.get_block("Y"))
    assert kept is written
    (copy,) = sch.get(sch.get_block("root")).alloc_buffers
    assert copy.constant_shape() == (3, 4, -(-length // 4))
    check_numbers(func, sch.mod, compiled=True)


@pytest.mark.parametrize(
    ("length", "index", "taps"),
    [
        (107, "vn + vk", 48),  # the lanes lie side by side
        (268, "4 * vn + vk", 8),  # each element is read twice
        (425, "4 * vn + 4 * vk", 48),  # one phase holds all that is read
        (2774, "vn * vk", 48),
    ],
)
def test_other_reads_have_no_phases(length, index, taps):
    sch = Schedule(parse(BLOCK.format(length=length, index=index, taps=taps)))
    assert SeparatePhases()(sch, sch.get_block("Y")) == [sch]
