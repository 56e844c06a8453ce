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


@pytest.mark.parametrize(
    "value",
    [
        "0.1 if A[i] > 0 else 0.2", "U[i] * (0.1 if A[i] > 0 else 0.2)",
        "U[i] * (0.1 if A[i] > 0 else 0.2 if A[i] < -1 else 0.3) + 0.7",
        "U[i] + T.if_then_else(A[i] > 0, 0.1, -0.2)", "U[i] * T.sqrt(2.0)", "T.exp(0.1)",
        "1.0 if U[i] > (0.1 if A[i] > 0 else 0.2) else 0.0",
        "(0.1 if A[i] > 0 else 0.2) * 3", "U[i] - -(0.1 if A[i] > 0 else 0.2)", "T.sqrt(2.0) * 3",
        "(0.1 if A[i] > 0 else 0.2) + (0.3 if A[i] < 0 else 0.4)", "(1 if A[i] > 0 else 2) / 5",
        "T.sqrt(2.0 if A[i] > 0 else 3.0) - 0.5",
        "T.max(0.1 if A[i] > 0 else 0.2, U[i])", "max(U[i], -(0.1 if A[i] > 0 else 0.2) * 2)",
        "T.float64(0.1 if A[i] > 0 else 0.2)", "T.cast(-(0.1 if A[i] > 0 else 0.2), \"float64\")",
        "T.Select(A[i] > 0, 0.1 if U[i] > 0.5 else 0.2, U[i])", "T.max(T.sqrt(2.0), U[i])",
        " + ".join(f"(0.{k} if A[i] > {k} - 3 else 0.7)" for k in range(1, 7)),
    ],
)  # fmt: skip
def test_what_numbers_alone_make_up_takes_the_other_type(value: str) -> None:
    u = np.array([0.1, 2, -0.0, 0.2])
    a = np.array([1, -1, 0, -5], "int8")
    agree(elementwise(f"O[i] = {value}", "float64", "float64"), a, u, np.zeros(4))


@pytest.mark.parametrize(
    "value", ["2 if A[i] > 0 else 1 if A[i] < -1 else 0", "T.if_then_else(A[i] > 0, 7, 0)"]
)
def test_a_choice_of_numbers_is_stored_in_bytes(value: str) -> None:
    a, u = np.array([1, -1, 0, -5], "int8"), np.zeros(4, "uint8")
    text = f"O[i] = {value}\n        O[i] += 3 if A[i] != 0 else 4"
    agree(elementwise(text, "uint8", "uint8"), a, u, u.copy())


@pytest.mark.parametrize(
    ("value", "out"),
    [
        ("(2000000000 if A[i] > 0 else 1) + 2000000000", "int64"),
        ("((200 if A[i] > 0 else 100) + 100) // 2", "uint8"),
        ("-(-128 if A[i] > 0 else 1) - 1", "int8"), ("7 - 3 * (2 if A[i] > 0 else 1) % 4", "uint8"),
    ],
)  # fmt: skip
def test_operators_on_choices_of_numbers_compute_as_python_does(value: str, out: str) -> None:
    a = np.array([1, -1, 0, -5], "int8")
    agree(elementwise(f"O[i] = {value}", out, out), a, np.zeros(4, out), np.zeros(4, out))


@pytest.mark.parametrize(
    "value",
    [
        "T.if_then_else(A[i] > 0, 1, 0) + T.if_then_else(A[i] < 1, 2, 0)",
        "T.if_then_else(A[i] > 0, 1, 3) * T.Select(A[i] < -1, 0.5, 2)",
        "T.if_then_else(A[i] > 0, 1 if A[i] > 3 else 2, 0)", "T.sqrt(0.25 if A[i] > 0 else 4.0)",
    ],
)  # fmt: skip
def test_numbers_alone_in_a_variable(value: str) -> None:
    a = np.array([1, -1, 0, -5], "int8")
    text = elementwise(f"c = {value}\n        O[i] = c", "float64", "float64")
    agree(text, a, np.zeros(4), np.zeros(4))


def test_a_choice_of_numbers_that_do_not_fit_is_no_byte() -> None:
    with pytest.raises(ParseError, match="a value of type int32 is stored where uint8 is kept"):
        parse(elementwise("O[i] = 300 if A[i] > 0 else 0", "uint8", "uint8"))
    func = parse(elementwise("O[i] = A[i] * (300 if A[i] > 0 else 2)", "uint8", "int32"))
    assert "T.if_then_else(A[i] > T.int8(0), 300, 2)" in func.script()
