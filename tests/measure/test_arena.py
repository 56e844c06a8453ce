"""Guarded memory: every stray write in a red zone is found and named."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metasched.measure.arena import APART, AT_END, AT_START, RED_ZONE, Arena, poison
from metasched.measure.data import Array
from metasched.measure.process import Worker


def arrays(*shapes, dtype="float32"):
    return [
        Array(f"X{n}", dtype, s, (1,) if len(s) == 1 else (s[1], 1), True, False, 0, 1, 0.0)
        for n, s in enumerate(shapes)
    ]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=5), st.data())
def test_stray_writes_are_found(sizes, data):
    arena = Arena(arrays(*[(n,) for n in sizes]))
    assert arena.breach() == ""
    for number in range(len(sizes)):
        arena.views[number][...] = 3
    assert arena.breach() == ""
    number = data.draw(st.integers(0, len(sizes) - 1))
    after = data.draw(st.booleans())
    distance = data.draw(st.integers(1, RED_ZONE // 4))
    element = sizes[number] + distance - 1 if after else -distance
    ctypes.c_float.from_address(arena.addresses[number] + 4 * element).value = 1.0
    where = "past the end" if after else "before the start"
    assert arena.breach() == f"wrote up to {distance} elements {where} of X{number}"
    arena.reset_zones()
    assert arena.breach() == ""


def test_arrays_do_not_overlap_and_are_aligned():
    arena = Arena(arrays((100, 7), (5, 5), (1, 1)))
    assert all(a % 64 == 0 for a in arena.addresses)
    spans = sorted((a, a + v.nbytes) for a, v in zip(arena.addresses, arena.views, strict=True))
    assert all(x[1] + 2 * RED_ZONE < y[0] for x, y in itertools.pairwise(spans))
    assert arena.views[0].shape == (100, 7) and arena.views[0].flags.c_contiguous


def test_poison_is_nan_or_odd():
    arena = Arena(arrays((8,)))
    arena.poison(0)
    assert np.isnan(arena.views[0]).all()
    whole = Arena(arrays((8,), dtype="int32"))
    whole.poison(0)
    assert (whole.views[0] == 0x5B5B5B5B).all()
    assert poison("bfloat16") == 0xFF


def touch(offset: int) -> None:
    arena = Arena(arrays((16,)))
    ctypes.c_float.from_address(arena.addresses[0] + offset).value = 1.0


@pytest.mark.parametrize("offset", [-RED_ZONE - 8, 64 + RED_ZONE + 4096])
def test_beyond_the_red_zone_nothing_can_be_touched(offset, monkeypatch):
    import pathlib

    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).resolve().parents[1]))
    worker = Worker()
    reply = worker.run("measure.test_arena:touch", offset, limit=20)
    worker.close()
    assert reply.signal == "SIGSEGV"


def look(place: str, number: int, offset: int) -> float:
    """Read beside an array of an odd size."""
    arena = Arena(arrays((1001,), (3, 7)), place)
    return float(ctypes.c_float.from_address(arena.addresses[number] + offset).value)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("place", [AT_START, AT_END])
def test_at_an_end_of_its_room_not_even_the_next_element_can_be_read(place, number, monkeypatch):
    import pathlib

    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).resolve().parents[1]))
    size = 4 * (1001, 21)[number]
    worker = Worker()
    inside = worker.run("measure.test_arena:look", place, number, size - 4, limit=20)
    outside = size if place == AT_END else -4
    beside = worker.run("measure.test_arena:look", place, number, outside, limit=20)
    other = worker.run("measure.test_arena:look", place, number, size - 4 - outside, limit=20)
    worker.close()
    assert (inside.kind, other.kind, beside.signal) == ("value", "value", "SIGSEGV")


def test_arrays_that_move_have_their_red_zones_with_them():
    arena = Arena(arrays((5,)))
    for place in (AT_END, AT_START, APART):
        arena.place(place)
        arena.views[0][...] = 3
        assert arena.breach() == ""
        element, said = (5, "past the end") if place == AT_START else (-1, "before the start")
        ctypes.c_float.from_address(arena.addresses[0] + 4 * element).value = 1.0
        assert arena.breach() == f"wrote up to 1 elements {said} of X0"


def test_strided_arrays():
    array = Array("X", "float32", (3, 4), (10, 1), True, False, 0, 1, 0.0)
    arena = Arena([array])
    assert array.nbytes == 24 * 4 and arena.views[0].strides == (40, 4)
    arena.views[0][...] = 1
    assert arena.breach() == ""
