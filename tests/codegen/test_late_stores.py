"""Stores are written behind loads from other buffers, and every load sees the stores before it."""

from __future__ import annotations

import re

from codegen.kernels import agree, build, integers
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.codegen.known_memory import LATE

HEAD = """
@T.prim_func
def main(A: T.Buffer((40,), "float32"), B: T.Buffer((40,), "float32"),
         C: T.Buffer((40,), "float32"), N: T.Buffer((4,), "int32")):
    for i in T.serial(2):
        with T.block("b"):
            vi = T.axis.opaque(2, i)
            T.reads(A[0:40], B[0:40], C[0:40], N[0:4])
            T.writes(A[0:40], B[0:40], C[0:40])
"""


def _order(text: str) -> str:
    """The loads and stores of vectors in the code, one letter each."""
    lines = build(text).llvm_ir.splitlines()
    kinds = {"load": "L", "store": "S"}
    found = (re.search(r"\b(load|store) <4 x float>", line) for line in lines)
    return "".join(kinds[m[1]] for m in found if m)


def _program(*statements: str) -> str:
    return HEAD + "".join(f"            {s}\n" for s in statements)


def _lanes(store: str) -> str:
    return f"for j in T.vectorized(4): {store}"


def test_loads_from_other_buffers_come_first():
    text = _program(_lanes("A[j] = A[j] * C[j]"), _lanes("B[j] = B[j] + A[j]"))
    assert _order(text) == "LLLSS"  # A, C, B; then A and B
    agree(text, *(integers((40,), seed=n) for n in range(3)), integers((4,), "int32"))


def test_a_load_that_may_see_a_store_comes_behind_the_store():
    text = _program(_lanes("A[j] = C[j]"), _lanes("B[j] = A[j + 2]"))
    assert _order(text) == "LSLS"


def test_values_of_few_stores_stay_in_registers():
    stores = [_lanes(f"A[j + {4 * n}] = C[j + {4 * n}]") for n in range(8)]
    order = _order(_program(*stores))
    assert order.startswith("L" * (LATE + 1) + "S")
    held = [order[: n + 1].count("L") - order[: n + 1].count("S") for n in range(len(order))]
    assert max(held) == LATE + 1 and held[-1] == 0


def _statements():
    buffer, at = st.sampled_from("ABC"), st.integers(0, 6)
    scalar = st.builds("{}[{}] = {}[{}] + {}[{}]".format, buffer, at, buffer, at, buffer, at)
    moved = st.builds("{}[vi + {}] = {}[vi * 2 + {}]".format, buffer, at, buffer, at)
    lanes = st.builds(
        "for j in T.vectorized(4): {}[j + {}] = {}[j + {}] - {}[{}]".format,
        buffer, at, buffer, at, buffer, at,
    )  # fmt: skip
    far = st.builds(
        "for j in T.vectorized(4): {}[j * 3 + {}] = {}[j * 5 + {}]".format, buffer, at, buffer, at
    )
    chosen = st.builds("{}[N[{}]] = {}[N[{}]]".format, buffer, st.integers(0, 3), buffer,
                       st.integers(0, 3))  # fmt: skip
    test = st.builds("if N[vi] > {}: {}[{}] = {}[{}]".format, at, buffer, at, buffer, at)
    serial = st.builds(
        "for k in T.serial(3): {}[k + {}] = {}[k + {}]".format, buffer, at, buffer, at
    )
    return st.lists(
        st.one_of(scalar, moved, lanes, far, chosen, test, serial), min_size=2, max_size=9
    )


@settings(max_examples=60, deadline=None)
@given(statements=_statements())
def test_results_are_the_same(statements):
    numbers = abs(integers((4,), "int32", seed=3)) * 2
    agree(_program(*statements), *(integers((40,), seed=n) for n in range(3)), numbers)
