"""Guarded memory: every stray write in a red zone is found and named."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.ir.dtype import DType
from metasched.ir.interp_memory import strided
from metasched.measure.data import Array
from metasched.measure.process import Worker
from metasched.runtime.guarded_memory import (
    APART,
    AT_END,
    AT_START,
    RED_ZONE,
    GuardedMemory,
    poison,
)


def arrays(*shapes, dtype="float32"):
    return [
        Array(f"X{n}", dtype, s, (1,) if len(s) == 1 else (s[1], 1), True, False, 0, 1, 0.0)
        for n, s in enumerate(shapes)
    ]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=5), st.data())
def test_stray_writes_are_found(sizes, data):
    memory = GuardedMemory(arrays(*[(n,) for n in sizes]))
    assert memory.breach() == ""
    for number in range(len(sizes)):
        memory.views[number][...] = 3
    assert memory.breach() == ""
    number = data.draw(st.integers(0, len(sizes) - 1))
    after = data.draw(st.booleans())
    distance = data.draw(st.integers(1, RED_ZONE // 4))
    element = sizes[number] + distance - 1 if after else -distance
    ctypes.c_float.from_address(memory.handles[number] + 4 * element).value = 1.0
    where = "past the end" if after else "before the start"
    assert memory.breach() == f"wrote up to {distance} elements {where} of X{number}"
    memory.reset_zones()
    assert memory.breach() == ""


def test_arrays_do_not_overlap_and_are_aligned():
    memory = GuardedMemory(arrays((100, 7), (5, 5), (1, 1)))
    assert all(a % 64 == 0 for a in memory.handles)
    spans = sorted((a, a + v.nbytes) for a, v in zip(memory.handles, memory.views, strict=True))
    assert all(x[1] + 2 * RED_ZONE < y[0] for x, y in itertools.pairwise(spans))
    assert memory.views[0].shape == (100, 7) and memory.views[0].flags.c_contiguous


def test_poison_is_nan_or_odd():
    memory = GuardedMemory(arrays((8,)))
    memory.poison(0)
    assert np.isnan(memory.views[0]).all()
    whole = GuardedMemory(arrays((8,), dtype="int32"))
    whole.poison(0)
    assert (whole.views[0] == 0x5B5B5B5B).all()
    assert poison("bfloat16") == 0xFF


def touch(offset: int) -> None:
    memory = GuardedMemory(arrays((16,)))
    ctypes.c_float.from_address(memory.handles[0] + offset).value = 1.0


@pytest.mark.parametrize("offset", [-RED_ZONE - 8, 64 + RED_ZONE + 4096])
def test_beyond_the_red_zone_nothing_can_be_touched(offset, monkeypatch):
    import pathlib

    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).resolve().parents[1]))
    worker = Worker()
    reply = worker.run("runtime.test_guarded_memory:touch", offset, limit=20)
    worker.close()
    assert reply.signal == "SIGSEGV"


def look(place: str, number: int, offset: int) -> float:
    """Read beside an array of an odd size."""
    memory = GuardedMemory(arrays((1001,), (3, 7)), place)
    return float(ctypes.c_float.from_address(memory.handles[number] + offset).value)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("place", [AT_START, AT_END])
def test_an_access_one_element_past_a_guarded_array_crashes(place, number, monkeypatch):
    import pathlib

    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).resolve().parents[1]))
    size = 4 * (1001, 21)[number]
    worker = Worker()
    inside = worker.run("runtime.test_guarded_memory:look", place, number, size - 4, limit=20)
    outside = size if place == AT_END else -4
    beside = worker.run("runtime.test_guarded_memory:look", place, number, outside, limit=20)
    other = worker.run(
        "runtime.test_guarded_memory:look", place, number, size - 4 - outside, limit=20
    )
    worker.close()
    assert (inside.kind, other.kind, beside.signal) == ("value", "value", "SIGSEGV")


def test_arrays_that_move_have_their_red_zones_with_them():
    memory = GuardedMemory(arrays((5,)))
    for place in (AT_END, AT_START, APART):
        memory.place(place)
        memory.views[0][...] = 3
        assert memory.breach() == ""
        element, said = (5, "past the end") if place == AT_START else (-1, "before the start")
        ctypes.c_float.from_address(memory.handles[0] + 4 * element).value = 1.0
        assert memory.breach() == f"wrote up to 1 elements {said} of X0"


@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_strided_arrays(dtype):
    array = Array("X", dtype, (3, 4), (10, 1), True, False, 0, 1, 0.0)
    memory, size = GuardedMemory([array]), array.nbytes // 24
    assert array.nbytes == 24 * size and memory.views[0].strides == (10 * size, size)
    assert memory.views[0].dtype == DType(dtype).numpy
    memory.views[0][...] = 1
    assert (memory.views[0].astype("float32") == 1).all()
    assert memory.breach() == ""


def test_views_of_each_type_in_the_interpreter():
    for dtype in ("bool", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        kind = DType(dtype).numpy
        flat = np.arange(12).astype("float32").astype(kind)
        found = strided(flat, (2, 3), (6, 2), 1, "X")
        assert found.dtype == kind and np.shares_memory(found, flat)
        assert (found.astype("float32") == flat[[[1, 3, 5], [7, 9, 11]]].astype("float32")).all()
