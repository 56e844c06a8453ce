"""Sums of short integers take few bits where no step can overflow, with the same results."""

from __future__ import annotations

import pytest
from codegen.kernels import NATIVE, agree, integers
from hypothesis import given, settings
from hypothesis import strategies as st

from metasched.ir.expr import Cast
from metasched.ir.stmt import BufferStore
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

PIXELS = """
@T.prim_func
def main(A: T.Buffer((66,), "{source}"), C: T.Buffer((64,), "int32"),
         B: T.Buffer((64,), "{into}")):
    for i in T.{kind}(64):
        with T.block("b"):
            vi = T.axis.spatial(64, i)
            B[vi] = T.cast({value}, "{into}")
"""
X, Y, Z = (f"T.int32(A[vi + {n}])" for n in range(3))


def _program(value: str, into: str = "uint8", source: str = "uint8", kind: str = "vectorized"):
    return PIXELS.format(value=value, into=into, source=source, kind=kind)


def _type(text: str) -> str:
    """The type of the value that the cast converts in the lowered program."""
    stores = [s for s in walk_stmts(lower(parse(text), NATIVE).body) if isinstance(s, BufferStore)]
    value = stores[0].value
    return str(value.value.dtype if isinstance(value, Cast) else value.dtype)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        (_program(f"({X} + 2 * {Y} + {Z} + 2) // 4"), "int16"),
        (_program(f"({X} * 66 + {Y} * 129 + {Z} * 25 + 128) >> 8"), "uint16"),
        (_program(f"(({X} * 112 - {Y} * 94 - {Z} * 18 + 128) >> 8) + 128"), "int16"),
        (_program(f"T.min(T.max({X} - {Y}, 0), 255)"), "int16"),
        (_program(f"T.if_then_else(vi < 60, {X}, 0) + {Y} % 7"), "int16"),
        (_program(f"T.Select({X} > {Y}, {X} - {Y}, {Y} - {X})"), "int16"),
        (_program(f"({X} << 7) & 1023"), "int16"),
        (_program(f"T.int32({X} > {Y}) * 255"), "int16"),
        (_program("T.int64(A[vi]) * T.int64(A[vi]) * 99 // 9"), "int32"),
        (_program(f"{X} * {Y} + {Z}"), "uint16"),
        (_program(f"{X} * {Y} * 2"), "int32"),  # up to 130,050
        (_program(f"{X} * {Y} - {Z}"), "int32"),  # from -255 up to 65,025
        (_program(f"({X} << 9) >> 9"), "int32"),
        (_program(f"{X} + C[vi]"), "int32"),
        (_program(f"{X} // {Y}"), "int32"),
        (_program(f"({X} + {Y}) // 2", kind="serial"), "int32"),
        (_program(f"({X} + {Y}) // 2", into="int32"), "int32"),
        (_program(f"({X} + {Y}) // 2", source="int16"), "int32"),
        (_program(f"({X} + {Y}) // 2", source="int8"), "int16"),
    ],
)
def test_what_is_narrowed(text, dtype):
    assert _type(text) == dtype


def _sums():
    numbers = [f"T.int32({n})" for n in (1, 2, 3, 100, 255)]
    leaf = st.sampled_from([X, Y, Z, *numbers, "T.int32(vi > 40)"])
    operators = st.sampled_from(
        [
            "{} + {}",
            "{} - {}",
            "{} * {}",
            "T.min({}, {})",
            "T.max({}, {})",
            "T.Select({} > 9, {}, 4)",
            "T.if_then_else(vi % 3 == 0, {}, {})",
        ]
    )
    last = st.sampled_from(["{} // 3", "{} // 16", "{} % 5", "{} >> 3", "{} << 2", "{} & 127"])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(lambda o, a, b: f"({o.format(a, b)})", operators, inner, inner),
            st.builds(lambda o, a: f"({o.format(a)})", last, inner),
        ),
        max_leaves=7,
    )


@settings(max_examples=60, deadline=None)
@given(
    value=_sums(), into=st.sampled_from(["uint8", "int8", "uint16", "int16"]),
    source=st.sampled_from(["uint8", "int8", "int16"]),
)  # fmt: skip
def test_results_are_the_same(value, into, source):
    pixels = integers((66,), source, seed=1) * 63  # wraps: from 0 to 255, or -128 to 127
    agree(
        _program(f"{X} - {value}", into, source), pixels.astype(source), integers((64,), "int32"),
        integers((64,), into),
    )  # fmt: skip
