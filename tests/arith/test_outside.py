"""Accesses that certainly leave their buffer are found; legal accesses are never reported."""

from __future__ import annotations

import random

import numpy as np
import pytest

import metasched as ms
from metasched.arith.outside import first_outside, require_inside
from metasched.errors import InterpretError, ParseError, VerifyError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import IntImm, Var
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.stmt import BufferStore, For
from metasched.script import parse

PAIR = 'A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")'
ROW = 'A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32"), P: T.Buffer((64,), "int32")'
HANDLES = "a: T.handle, b: T.handle"
SYMBOLIC = "n = T.int32()\nA = T.match_buffer(a, (n,))\nB = T.match_buffer(b, (n,))\n"


def read(body: str, params: str) -> PrimFunc:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    found = parse(f"@T.prim_func\ndef f({params}):\n{lines}")
    assert isinstance(found, PrimFunc)
    return found


def block(access: str, where: str = "True", extents: str = "64, 64") -> str:
    return f"""
for i, j in T.grid({extents}):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.where({where})
        B[vi, vj] = {access}
"""


# Body, parameters, what the carets underline, what the message says.
WRONG = {
    "a constant": (block("A[vi, 64]"), PAIR, "A[vi, 64]", "index 1 is 64, the indices are 0 to 63"),
    "a shift": (block("A[vi + 1, vj]"), PAIR, "A[vi + 1, vj]", "index 0 is 64, .* at vi = 63"),
    "a store": (block("A[0, 0]", extents="65, 64"), PAIR, "B[vi, vj]", "index 0 is 64"),
    "minus one": (block("A[-1, vj]"), PAIR, "A[-1, vj]", "index 0 is -1"),
    "before the start": (block("A[vi - 1, vj]"), PAIR, "A[vi - 1, vj]", "-1, .* at vi = 0"),
    "a loop under a guard that lets one too many through": (
        block("A[vi, vj]", "i <= 64", "100, 64"), PAIR, "B[vi, vj]", "index 0 is 64",
    ),
    "the other branch": (
        "for i in range(64):\n    if i < 63:\n        B[i] = A[i]\n    else:\n"
        "        B[i] = A[i + 1]",
        ROW, "A[i + 1]", "64, .* at i = 63",
    ),
    "a triangle": (
        "for i in range(64):\n    for j in range(i):\n        B[i] = A[i - j - 2]",
        ROW, "A[i - j - 2]", "index 0 is -1, .* at i = 1, j = 0",
    ),
    "a step": (
        "for i in range(0, 66, 5):\n    B[i] = A[0]", ROW, "B[i]", "index 0 is 65, .* at i = 65",
    ),
    "a let": ("for i in range(64):\n    k = i * 2\n    B[i] = A[k]", ROW, "A[k]", "at k = 64"),
    "a vector": ("B[T.ramp(60, 1, 8)] = A[T.ramp(0, 1, 8)]", ROW, "B[T.ramp(60, 1, 8)]", "is 67"),
    "an index's index": ("for i in range(65):\n    B[P[i]] = A[0]", ROW, "P[i]", "index 0 is 64"),
    "more iterations than are tried": (
        "for i, j, k in T.grid(64, 1 << 20, 1 << 20):\n    B[i + j // 4 + k // (1 << 20)] = A[i]",
        ROW, "B[i + j // 4 + k // (1 << 20)]", "the indices are 0 to 63",
    ),
    "a symbolic extent": (
        SYMBOLIC + "for i in range(n):\n    B[i] = A[i + 1]",
        HANDLES, "A[i + 1]", "is n, the extent is n",
    ),
    "tiles of a symbolic extent": (
        SYMBOLIC + "for i, k in T.grid((n + 31) // 32, 32):\n    if i * 32 + k < n:\n"
        "        B[i * 32 + k - 1] = A[0]",
        HANDLES, "B[i * 32 + k - 1]", "index 0 is -1",
    ),
    "what is declared": (
        "for i in range(64):\n    with T.block('B'):\n        v = T.axis.spatial(64, i)\n"
        "        T.reads(A[v : v + 2])\n        T.writes(B[v])\n        B[v] = A[v]",
        ROW, "A[v : v + 2]", "the region .* of block B leaves A: index 0 reaches 64",
    ),
    "a window": (
        "with T.block('B'):\n    T.reads(A[0:64])\n    T.writes(B[0:64])\n"
        "    M = T.match_buffer(B[32:65], (33,), offset_factor=1)\n    M[0] = A[0]",
        ROW, "B[32:65]", "index 0 reaches 64",
    ),
    "a negative loop": ("for i in range(-4):\n    B[0] = A[0]", ROW, "range(-4)", "-4 iterations"),
    "a negative axis": (
        "with T.block('B'):\n    v = T.axis.spatial(-1, 0)\n    B[v] = A[v]",
        ROW, "T.axis.spatial(-1, 0)", "-1 iterations",
    ),
    "a negative buffer": ("C = T.alloc_buffer((-4,))", ROW, "T.alloc_buffer((-4,))", "shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_script_with_an_access_outside_is_refused_where_it_stands(name: str) -> None:
    body, params, underlined, message = WRONG[name]
    with pytest.raises(ParseError, match=message) as caught:
        read(body, params)
    text = str(caught.value)
    code, carets = text.splitlines()[1].split("| ", 1)[1], text.splitlines()[2].split("| ", 1)[1]
    assert code[carets.index("^") : carets.rindex("^") + 1] == underlined
    assert caught.value.line is not None and caught.value.column is not None


LEGAL = {
    "an index in memory, bound below a predicate": (
        """
for i in range(8):
    with T.block("B"):
        vi = T.axis.spatial(4, N[i])
        T.where(i < 4)
        B[vi] = 1.0
""",
        'N: T.Buffer((4,), "int32"), B: T.Buffer((4,), "float32")',
    ),
    "all of it": (block("A[vi, vj]"), PAIR),
    "a predicate": (block("A[vi, vj]", "i < 64", "100, 64"), PAIR),
    "padding": (block("T.if_then_else(vi >= 1, A[vi - 1, vj], T.float32(0))"), PAIR),
    "a select": (block("T.Select(vi >= 1, A[vi - 1, vj], T.float32(0))"), PAIR),
    "a region that padding widens": (
        "for i in range(64):\n    with T.block('B'):\n        v = T.axis.spatial(64, i)\n"
        "        T.reads(A[v - 1 : v + 2])\n        T.writes(B[v])\n"
        "        B[v] = T.if_then_else(v >= 1, A[v - 1], T.float32(0))", ROW,
    ),
    "a test of both ends": (
        "for i in range(66):\n    if 1 <= i and i < 65:\n        B[i - 1] = A[i - 1]", ROW,
    ),
    "an and": ("for i in range(64):\n    if i < 63 and A[i + 1] > 0:\n        B[i] = A[i]", ROW),
    "an or": ("for i in range(64):\n    if i == 63 or A[i + 1] > 0:\n        B[i] = A[i]", ROW),
    "loaded indices": ("for i in range(64):\n    B[P[i]] = A[P[i] + 64]", ROW),
    "loaded conditions": ("for i in range(65):\n    if P[0] > i:\n        B[i] = A[i]", ROW),
    "loaded extents": ("for i in range(P[0]):\n    B[i + 64] = A[i]", ROW),
    "no iterations": ("for i, j in T.grid(64, 0):\n    B[i + 64] = A[i]", ROW),
    "a loop that is left": (
        "for i in range(100):\n    if A[i] > 0:\n        break\n    B[i] = A[i]", ROW,
    ),
    "after a return": (
        "if A[0] > T.float32(0):\n    T.evaluate(T.ret(0))\nB[0] = A[0]", ROW,
    ),
    "after an assertion": ("assert P[0] < 0, 'no'\nfor i in range(65):\n    B[i] = A[i]", ROW),
    "a while": ("while P[0] < 64:\n    P[0] = P[0] + 1\n    B[P[0]] = A[64 - P[0]]", ROW),
    "a modulus": ("for i in range(640):\n    B[i % 64] = A[(i * 7 + 3) % 64]", ROW),
    "a view with an offset": (
        "for i in range(4):\n    with T.block('B'):\n        v = T.axis.spatial(4, i)\n"
        "        T.reads(A[v * 16 : v * 16 + 16])\n        T.writes(B[v * 16 : v * 16 + 16])\n"
        "        M = T.match_buffer(B[v * 16 : v * 16 + 16], (16,), offset_factor=16)\n"
        "        for k in range(16):\n            M[k] = A[v * 16 + k]", ROW,
    ),
    "a vector over rows": ("B[0, T.ramp(0, 1, 128)] = A[0, T.ramp(0, 1, 128)]", PAIR),
    "symbolic tiles": (
        SYMBOLIC + "for i, k in T.grid((n + 31) // 32, 32):\n    if i * 32 + k < n:\n"
        "        B[i * 32 + k] = A[i * 32 + k]", HANDLES,
    ),
    "another symbol": (
        "n = T.int32()\nm = T.int32()\nA = T.match_buffer(a, (n,))\nB = T.match_buffer(b, (m,))\n"
        "for i in range(n):\n    B[i + 1] = A[i]", HANDLES,
    ),
    "a symbolic loop that ends early": (
        SYMBOLIC + "for i in range(n - 1):\n    B[i] = A[i + 1]", HANDLES,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_accesses_not_certainly_outside_are_accepted(name: str) -> None:
    body, params = LEGAL[name]
    func = read(body, params)
    assert first_outside(func.body) is None


def beyond() -> PrimFunc:
    """for i in range(65): A[i] = 0, never a script."""
    a, i = Buffer.of("A", (64,)), Var("i")
    store = BufferStore(a, BufferLoad(a, [IntImm("int32", 0)]), (i,))
    return PrimFunc((a,), For.serial(i, 65, store))


def test_other_programs_are_refused_by_every_entrance() -> None:
    said = r"A\[i\] is outside A: index 0 is 64(.|\n)*for i in 0:65\n(.|\n)*> .*A\[i\] = A\[0\]"
    for enter in (require_inside, ms.Schedule, ms.build, ms.tune):
        with pytest.raises(VerifyError, match=said) as caught:
            enter(beyond())  # type: ignore[operator]
        assert caught.value.rule == "index-in-bounds"


def test_rules_of_programs_are_enforced_by_every_entrance() -> None:
    body = "for i in range(4):\n    with T.block('b'):\n        v = T.axis.spatial(4, M[i])\n"
    params = 'A: T.Buffer((8,)), M: T.Buffer((4,), "bool")'
    func = read(f"{body}        A[v] = 1.0", params)
    for enter in (ms.Schedule, ms.build, ms.autoschedule):
        with pytest.raises(VerifyError, match="iterator v is int32, its binding bool"):
            enter(func)  # type: ignore[operator]


def random_index(rng: random.Random, variables: list[str]) -> str:
    terms = [f"{rng.choice((1, 1, 2, -1))} * {v}" for v in variables if rng.random() < 0.7]
    text = " + ".join([*terms, str(rng.randint(-2, 4))])
    kind = rng.random()
    if kind < 0.2:
        return f"({text}) // {rng.randint(1, 3)}"
    if kind < 0.3:
        return f"({text}) % {rng.randint(2, 9)}"
    return f"T.max({text}, 0)" if kind < 0.4 else text


def random_body(rng: random.Random) -> str:
    lines, names, indent = [], [], ""
    for name in "ijk"[: rng.randint(1, 3)]:
        extent = rng.choice([*map(str, range(5)), *(f"T.max({n}, 1)" for n in names)])
        lines.append(f"{indent}for {name} in range({extent}):")
        names.append(name)
        indent += "    "
    if rng.random() < 0.5:
        test = f"{random_index(rng, names)} {rng.choice(['<', '>=', '=='])} {rng.randint(0, 5)}"
        lines.append(f"{indent}if {test}:")
        indent += "    "
    store = f"B[{random_index(rng, names)}] = A[{random_index(rng, names)}]"
    return "\n".join([*lines, indent + store])


def test_the_check_and_the_interpreter_agree_on_random_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without conditions on data, the check reports an access if and only if a run fails."""
    monkeypatch.setattr("metasched.script.parser.first_outside", lambda body: None)
    rng, seen = random.Random(0), [0, 0]
    params = 'A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")'
    for _ in range(300):
        body = random_body(rng)
        func = read(body, params)
        arguments = np.zeros(8, "float32"), np.zeros(8, "float32")
        wrong = first_outside(func.body) is not None
        seen[wrong] += 1
        if wrong:
            with pytest.raises(InterpretError, match="outside|bounds"):
                run(func, *arguments)
        else:
            run(func, *arguments)
    assert min(seen) > 50
