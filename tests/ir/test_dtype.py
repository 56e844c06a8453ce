"""Data types: text, NumPy types, ranges, promotion."""

import pickle

import numpy as np
import pytest

from metasched.errors import TypeMismatchError
from metasched.ir.dtype import DType, promote, wrap


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("float", "float32"),
        ("int8x16", "int8x16"),
        ("int8x1", "int8"),
        ("bool1", "bool"),
        ("handle64", "handle"),
        ("bfloat16x8", "bfloat16x8"),
        (np.float64, "float64"),
        (np.dtype("uint8"), "uint8"),
        (bool, "bool"),
        (int, "int32"),
        (float, "float32"),
    ],
)
def test_one_object_for_each_type(given, text):
    assert DType(given) is DType(text)
    assert DType(given) == text


def test_parts():
    t = DType("int8x16")
    assert (t.kind, t.bits, t.lanes, t.bytes) == ("int", 8, 16, 16)
    assert t.scalar is DType("int8") and t.with_lanes(4) is DType("int8x4")
    assert pickle.loads(pickle.dumps(t)) is t


@pytest.mark.parametrize("text", ["int7", "float8", "x", "int32x0", "int32x", "float32 "])
def test_dtype_refuses_unknown_type_names(text):
    with pytest.raises(TypeMismatchError, match="is not a data type"):
        DType(text)


def test_complex_numbers_are_two_floats():
    with pytest.raises(TypeMismatchError, match="real and the imaginary parts in two arrays"):
        DType("complex64")


def test_types_without_numpy_type_or_range():
    with pytest.raises(TypeMismatchError, match="handle has no NumPy type"):
        DType("handle").numpy
    with pytest.raises(TypeMismatchError, match="float32 has no integer range"):
        DType("float32").range


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [
        ("int32", "int64", "int64"),
        ("int32", "uint32", "int64"),
        ("int8", "uint8", "int16"),
        ("int8", "uint16", "int32"),
        ("int32", "uint8", "int32"),
        ("uint64", "uint8", "uint64"),
        ("int64", "float16", "float16"),
        ("float16", "bfloat16", "float32"),
        ("float16", "float64", "float64"),
        ("bool", "int8", "int8"),
        ("float32x4", "float32", "float32x4"),
    ],
)
def test_promotion_is_symmetric(a, b, common):
    assert promote(DType(a), DType(b)) is DType(common)
    assert promote(DType(b), DType(a)) is DType(common)


def test_no_common_type():
    with pytest.raises(TypeMismatchError, match="different numbers of lanes"):
        promote(DType("int32x4"), DType("int32x2"))
    with pytest.raises(TypeMismatchError, match="no common type"):
        promote(DType("handle"), DType("int32"))
    with pytest.raises(TypeMismatchError, match="no common integer type: convert one of them"):
        promote(DType("uint64"), DType("int8"))


def test_wrapping_is_twos_complement():
    assert [wrap(DType("int8"), v) for v in (127, 128, -129, 300)] == [127, -128, 127, 44]
    assert wrap(DType("uint8"), -1) == 255


SMALL = ["int8", "uint8", "int16", "uint16", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("narrow", SMALL)
@pytest.mark.parametrize("wide", [*SMALL, "int32", "uint32", "float32", "float64"])
def test_a_type_holds_what_comes_back_unchanged(wide, narrow):
    """Compare `holds` with casting every number of at most 16 bits to the type and back."""
    bits, kind = DType(narrow).bits, DType(narrow).numpy
    with np.errstate(all="ignore"):
        every = np.arange(1 << bits, dtype=f"uint{bits}").view(kind).astype(np.float64)
        every = every[np.isfinite(every)]
        there = every.astype(DType(wide).numpy).astype(np.float64)
    whole = DType(wide).is_float or not DType(narrow).is_float
    assert DType(wide).holds(DType(narrow)) == (whole and bool(np.all(there == every)))
