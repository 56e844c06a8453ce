"""Random statements over all types mean what they mean in Python, or are refused."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from as_python import agree
from script.typed_expressions import play

from metasched.errors import ParseError
from metasched.script import parse

PARAMS = 'A: T.Buffer((4,), "int8"), U: T.Buffer((4,), "{u}"), O: T.Buffer((4,), "{out}")'


def elementwise(statement: str, u: str, out: str) -> str:
    params = PARAMS.format(u=u, out=out)
    return f"@T.prim_func\ndef f({params}):\n    for i in range(4):\n        {statement}\n"


def test_random_statements_mean_what_they_mean_in_python() -> None:
    counts = collections.Counter(play(seed, compiled=seed % 16 == 0) for seed in range(100))
    assert counts["equal"] > 50 and counts["refused"] > 10


@pytest.mark.parametrize(
    ("value", "u", "out"),
    [
        ("U[i] - A[i]", "uint8", "int16"), ("T.min(A[i], U[i])", "uint16", "int32"),
        ("A[i] * U[i]", "uint32", "int64"), ("A[i] < U[i]", "uint32", "bool"),
        ("A[i] >> (U[i] & 3)", "uint32", "int64"),
    ],
)  # fmt: skip
def test_signed_and_unsigned_numbers_keep_their_values(value: str, u: str, out: str) -> None:
    arrays = np.array([-128, -1, 3, 127], "int8"), np.array([3, 255, 0, 7], u), np.zeros(4, out)
    agree(elementwise(f"O[i] = {value}", u, out), *arrays)


def test_a_signed_number_and_uint64_are_refused() -> None:
    with pytest.raises(ParseError, match="int8 and uint64 have no common integer type: convert"):
        parse(elementwise("O[i] = A[i] + U[i]", "uint64", "uint64"))


@pytest.mark.parametrize("number", ["0.1", "1e300", "3"])
def test_a_name_of_a_number_has_no_type_of_its_own(number: str) -> None:
    u = np.array([0.1, 2, -0.0, 7])
    text = elementwise(f"y = {number}\n        O[i] = U[i] * y", "float64", "float64")
    agree(text, np.zeros(4, "int8"), u, np.zeros(4))
