"""The `rewrite` of docstrings that show nests: loops and blocks before and after the step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from schedule.test_docstrings import LINES, STEPS, STORES

from metasched.ir.expr import as_int
from metasched.ir.stmt import BlockRealize, For, Stmt
from metasched.schedule.instruction import PRIMITIVES
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.schedule import Schedule
from metasched.script import parse

Item = tuple[str, int | None] | str
"""A loop with its extent (None: not said), or a block's name."""

WORD = re.compile(
    r"for ([a-z_0-9, ]+?)(?: in (?:T\.\w+|range)\(([^)]*)\)| in (\d+))?:|\b([A-Z]\w*)(?=\()|\b(S)\b"
)


def shown(text: str) -> list[Item]:
    """The loops and blocks that a docstring mentions."""
    out: list[Item] = []
    for names, ends, extent, block, plain in WORD.findall(text):
        if not names:
            out.append(block or plain)
            continue
        numbers = [int(n) for n in re.findall(r"\d+", ends.split('"')[0] + extent)]
        every = names.split(", ")
        if len(every) == 1 and len(numbers) == 2:
            numbers = [numbers[1] - numbers[0]]
        out += zip(every, numbers or [None] * len(every), strict=True)
    return out


def made(stmt: Stmt) -> Iterator[Item]:
    """The loops and blocks of a program."""
    if isinstance(stmt, For):
        yield stmt.var.name, as_int(stmt.extent)
    if isinstance(stmt, BlockRealize) and stmt.block.name != "root":
        yield stmt.block.name
    for inner in stmt.block.stmts if isinstance(stmt, BlockRealize) else stmt.stmts:
        yield from made(inner)


def alike(have: list[Item], want: list[Item]) -> bool:
    """Whether a program has the shown loops and blocks; the loops of a copy may be left out."""
    told = {item[0] for item in want}
    have = [item for item in have if not item[0].startswith("ax") or item[0] in told]
    return len(have) == len(want) and all(
        a == b or (b[1] is None and a[0] == b[0]) for a, b in zip(have, want, strict=True)
    )


def nest(loops: str, name: str, store: str, kinds: str = "") -> str:
    """A block over loops (`i:4 k:8`) whose iterators are `v` and the loop's name."""
    pairs = [part.split(":") for part in loops.split()]
    names = [n for n, _ in pairs]
    lines = [
        f"for {', '.join(names)} in T.grid({', '.join(e for _, e in pairs)}):",
        f'    with T.block("{name}"):',
        f"        {', '.join('v' + n for n in names)} = "
        f'T.axis.remap("{kinds or "S" * len(names)}", [{", ".join(names)}])',
    ]
    if "R" in kinds:
        lines += ["        with T.init():", f"            {store.split(' = ')[0]} = 0"]
    return "".join(f"    {line}\n" for line in [*lines, f"        {store}"])


def program(*parts: str, inner: str = "", **shapes: str) -> str:
    params = ", ".join(f'{n}: T.Buffer(({s},), "int32")' for n, s in shapes.items() if n != inner)
    alloc = f'    {inner} = T.alloc_buffer(({shapes[inner]},), "int32")\n' if inner else ""
    return f"@T.prim_func\ndef f({params}):\n{alloc}{''.join(parts)}"


PRODUCER = nest("i:8", "B", "B[vi] = A[vi] + 1")
CONSUMER = nest("i:8", "C", "C[vi] = B[vi] * 2")
WIDE = nest("i:8 j:4", "C", "C[vi, vj] = B[vi]")
SUM = nest("i:4 k:8", "C", "C[vi] = C[vi] + A[vi, vk]", "SR")
COPY = program(nest("i:8 j:4", "C", "C[vi, vj] = A[vi, vj]"), A="8, 4", C="8, 4")
TOGETHER = program(PRODUCER, CONSUMER.split("\n", 1)[1], inner="B", A="8", B="8", C="8")
STAGES = program(PRODUCER, CONSUMER, inner="B", A="8", B="8", C="8")
BLOCKED = program(nest("io:4 i:4", "C", "C[vio * 4 + vi] = A[vio * 4 + vi]"), A="16", C="16")
ROWS = """
@T.prim_func
def f(A: T.Buffer((34,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((34,), "int32")
    for i in range(8):
        for x in range(6):
            with T.block("B"):
                v = T.axis.spatial(34, i * 4 + x)
                B[v] = A[v]
        with T.block("C"):
            v = T.axis.spatial(8, i)
            C[v] = B[v * 4] + B[v * 4 + 5]
"""
TRIANGLE = """
@T.prim_func
def f(A: T.Buffer((4,), "int32")):
    X = T.alloc_buffer((4, 4), "int32")
    for i in range(4):
        for j in range(i + 1):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                X[vi, vj] = A[vj]
"""
HALF = """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), C: T.Buffer((8, 8), "float32")):
    X = T.alloc_buffer((8, 8), "float32")
    for i, j in T.grid(8, 8):
        with T.block("X"):
            vi, vj = T.axis.remap("SS", [i, j])
            X[vi, vj] = A[vj]
    for i in range(8):
        for j in range(i + 1):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = X[vi, vj]
"""
EXPONENTIALS = """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), M: T.Buffer((1,), "float32"), C: T.Buffer((1,), "float32")):
    for k in range(8):
        with T.block("M"):
            v = T.axis.reduce(8, k)
            with T.init():
                M[0] = T.min_value("float32")
            M[0] = T.max(M[0], A[v])
    for k in range(8):
        with T.block("C"):
            v = T.axis.reduce(8, k)
            with T.init():
                C[0] = T.float32(0)
            C[0] = C[0] + T.exp(A[v] - M[0])
"""
PART = """
@T.prim_func
def f(A: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    with T.block("root"):
        T.reads(A[0:4])
        T.writes(C[0:4])
        for i in range(4):
            with T.block("C"):
                vi = T.axis.spatial(4, i)
                C[vi] = A[vi]
"""


def blockized(sch: Schedule) -> object:
    """The program from which the docstring of tensorize starts."""
    return sch.blockize(sch.get_loops("C")[1])


def tensorized(sch: Schedule) -> object:
    implementation = re.sub("for i.*", "T.evaluate(0)\n", PART, flags=re.DOTALL)
    TensorIntrin.register("test.part", parse(PART), parse(implementation), override=True)
    return sch.tensorize("C_o", "test.part")


CASES: dict[str, tuple[str, Callable[[Schedule], object]]] = {
    "add_unit_loop": (
        program(nest("i:8", "S", "A[vi] = 1"), A="8").replace("    for i in T.grid(8):\n", "")
        .replace("        with", "    with").replace("remap(\"S\", [i])", "spatial(8, 0)"),
        lambda s: s.add_unit_loop("S"),
    ),
    "blockize": (
        program(nest("i:8 j:16", "B", "B[v] = A[v]"), A="128", B="128").replace(
            'vi, vj = T.axis.remap("SS", [i, j])', "v = T.axis.spatial(128, i * 16 + j)"
        ),
        lambda s: s.blockize(s.get_loops("B")[1]),
    ),
    "unblockize": (
        program(
            "    for i in range(8):\n"
            '        with T.block("B"):\n'
            "            vi = T.axis.spatial(8, i)\n"
            "            for j in range(4):\n"
            '                with T.block("C"):\n'
            "                    vj = T.axis.spatial(4, j)\n"
            "                    C[vi, vj] = A[vi]\n",
            A="8", C="8, 4",
        ),
        lambda s: s.unblockize("B"),
    ),
    "compute_at": (
        program(PRODUCER, WIDE, inner="B", A="8", B="8", C="8, 4"),
        lambda s: s.compute_at("B", s.get_loops("C")[0]),
    ),
    "decompose_reduction": (
        program(SUM, A="4, 8", C="4"),
        lambda s: s.decompose_reduction("C", s.get_loops("C")[1]),
    ),
    "decompose_outputs": (
        program(nest("i:8", "S", "B[vi] = A[vi]\n            C[vi] = A[vi]"), A="8", B="8", C="8"),
        lambda s: s.decompose_outputs("S"),
    ),
    "decompose_scan": (
        program(
            "    for j, k in T.grid(4, 8):\n"
            '        with T.block("B"):\n'
            "            v = T.axis.scan(32, j * 8 + k)\n"
            "            B[v + 1] = B[v] + A[v]\n",
            A="32", B="33",
        ),
        lambda s: s.decompose_scan(s.get_loops("B")[0]),
    ),
    "enclose": (
        program("    for i in range(8):\n        B[i] = A[i]\n", A="8", B="8"),
        lambda s: s.enclose("root"),
    ),
    "expand_buffer": (
        program(
            "    for i in range(8):\n"
            '        with T.block("B"):\n'
            "            T_[0] = A[i]\n"
            '        with T.block("C"):\n'
            "            C[i] = T_[0] * 2\n",
            inner="T_", A="8", C="8", T_="1",
        ),
        lambda s: s.expand_buffer("B", 0, s.get_loops("B")[0]),
    ),
    "chain_sum": (
        program(
            nest("i:4 k:8", "C", "C[vi] = C[vi] + (A[vi, vk] * B[vk] + D[vi, vk] * E[vk])", "SR"),
            A="4, 8", B="8", D="4, 8", E="8", C="4",
        ),
        lambda s: s.chain_sum("C"),
    ),
    "expand_reduction": (
        program(
            nest("i:4 k:8", "C", "C[vi] = C[vi] + A[vi, vk] * (B[vk] - Z[vi])", "SR"),
            A="4, 8", B="8", Z="4", C="4",
        ),
        lambda s: s.expand_reduction("C"),
    ),
    "expand_running_value": (
        program(
            "    for i in range(8):\n"
            '        with T.block("S"):\n'
            "            T_[0] = T_[0] + A[i]\n"
            '        with T.block("B"):\n'
            "            B[i] = T_[0] * 2\n",
            inner="T_", A="8", B="8", T_="1",
        ),
        lambda s: s.expand_running_value("S", 0, s.get_loops("S")[0]),
    ),
    "keep_in_result": (
        program(
            "    for i in range(8):\n"
            '        with T.block("T"):\n'
            "            T_[0] = A[i]\n"
            '        with T.block("U"):\n'
            "            T_[0] = T_[0] * A[0]\n"
            '        with T.block("B"):\n'
            "            B[i] = T_[0]\n",
            inner="T_", A="8", B="8", T_="1",
        ),
        lambda s: s.keep_in_result("B", "T_"),
    ),
    "fission": (TOGETHER, lambda s: s.fission(s.get_loops("B")[0])),
    "loop_partition": (
        program(nest("i:8", "B", "B[vi] = A[vi]"), A="8", B="8"),
        lambda s: s.loop_partition(s.get_loops("B")[0], [2, None]),
    ),
    "cache_update": (
        program(nest("k:8 i:4", "B", "X[vi] = X[vi] + A[vi, vk]"), A="4, 8", X="4"),
        lambda s: s.cache_update(s.get_loops("B")[0], "local"),
    ),
    "cut_loop": (
        program(
            "    for i, j in T.grid(4, 4):\n"
            "        for k in range(i + j):\n"
            '            with T.block("B"):\n'
            "                v = T.axis.opaque(16, k)\n"
            "                B[v] = B[v] + i\n",
            B="16",
        ),
        lambda s: s.cut_loop(s.get_loops("B")[2], s.get_loops("B")[1]),
    ),
    "join_loops": (
        program(
            "    for i in range(8):\n"
            "        for j in range(i):\n"
            '            with T.block("B"):\n'
            "                X[j] = X[j] * 2\n"
            "        for j in range(i, 8):\n"
            '            with T.block("B_1"):\n'
            "                X[j] = X[j] * 2\n",
            X="8",
        ),
        lambda s: s.join_loops(s.get_loops("B")[1], s.get_loops("B_1")[1]),
    ),
    "right_looking": (
        program(
            "    for j in range(8):\n"
            "        for k in range(j):\n"
            '            with T.block("U"):\n'
            "                X[j] = X[j] - A[j, k] * X[k]\n"
            '        with T.block("D"):\n'
            "            X[j] = X[j] * 2\n",
            A="8, 8", X="8",
        ),
        lambda s: s.right_looking(s.get_loops("U")[0]),
    ),
    "merge": (STAGES, lambda s: s.merge(*s.get_loops("B"), *s.get_loops("C"))),
    "narrow_loop": (
        program(nest("i:8 j:8", "S", "B[vi, vj] = A[vi, vj]"), A="8, 8", B="8, 8").replace(
            "            B[", "            T.where(i <= j and j < i + 3)\n            B["
        ),
        lambda s: s.narrow_loop(s.get_loops("S")[1]),
    ),
    "overcompute_box": (TRIANGLE, lambda s: s.overcompute_box("B")),
    "partition_at": (
        program(nest("k:8 i:8", "S", "A[vk, vi] = A[vi, vk]"), A="8, 8"),
        lambda s: s.partition_at(*s.get_loops("S"), 0),
    ),
    "privatize_reduction": (
        program(nest("i:4 k:8", "C", "C[vi] = C[vi] + A[vi, vk]", "SR"), A="4, 8", C="4").replace(
            "            with T.init():\n                C[vi] = 0\n", ""
        ),
        lambda s: s.privatize_reduction("C"),
    ),
    "privatize_update": (
        program(
            nest("i:4 k:8", "C", "C[N[vi, vk]] = C[N[vi, vk]] + A[vi, vk]"),
            A="4, 8", N="4, 8", C="6",
        ),
        lambda s: s.privatize_update(s.get_loops("C")[0]),
    ),
    "cache_values": (
        program(
            nest("i:4 j:8", "C", "C[vi] = C[vi] + T.exp(A[vj]) * B[vi, vj]", "SR"),
            A="8", B="4, 8", C="4",
        ).replace("int32", "float32"),
        lambda s: s.cache_values("C", "local"),
    ),
    "skip_unused": (HALF, lambda s: s.skip_unused(s.get_loops("X")[1])),
    "read_at": (COPY, lambda s: s.read_at(s.get_loops("C")[0], "C", 0, "local")),
    "reverse_compute_at": (STAGES, lambda s: s.reverse_compute_at("C", s.get_loops("B")[0])),
    "rfactor": (program(SUM, A="4, 8", C="4"), lambda s: s.rfactor(s.get_loops("C")[1], 0)),
    "rolling_buffer": (ROWS, lambda s: s.rolling_buffer("B", 0)),
    "rolling_update": (
        EXPONENTIALS,
        lambda s: s.rolling_update([s.get_loops("M")[0], s.get_loops("C")[0]], 4),
    ),
    "separate_window": (
        program(nest("i:6 k:3 l:5", "C", "C[vi] = C[vi] + A[vi + vk, vl]", "SRR"), A="8, 5", C="6"),
        lambda s: s.separate_window(s.get_loops("C")[1]),
    ),
    "skip_zeros": (
        program(
            nest("i:8 k:4", "C", "C[vi] = C[vi] + T.if_then_else(vk <= vi, A[vk], 0)", "SR"),
            A="4",
            C="8",
        ),
        lambda s: s.skip_zeros("C"),
    ),
    "step_over_zeros": (
        program(
            nest(
                "i:8 k:4",
                "C",
                "C[vi] = C[vi] + T.if_then_else((vi - vk) % 2 == 0, A[vk], 0)",
                "SR",
            ),
            A="4",
            C="8",
        ),
        lambda s: s.step_over_zeros(s.get_loops("C")[1]),
    ),
    "tensorize": (BLOCKED, tensorized),
    "transform_block_layout": (
        program(nest("i:4 j:8", "B", "B[vi, vj] = A[vi, vj]"), A="4, 8", B="4, 8"),
        lambda s: s.transform_block_layout("B", lambda i, j: i * 8 + j),
    ),
    "write_at": (COPY, lambda s: s.write_at(s.get_loops("C")[0], "C", 0, "local")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rewrite_of_a_nest(name: str) -> None:
    text = " ".join((PRIMITIVES.get(name).fn.__doc__ or "").split()).split("rewrite ")[1]
    before, after = text.split(" -> ")
    source, step = CASES[name]
    sch = Schedule(parse(source), seed=0)
    if name == "tensorize":
        blockized(sch)
        before, after = "for io: " + before, "for io: " + after
    have = list(made(sch.func.body))
    assert alike(have, shown(before)), (have, shown(before))
    step(sch)
    have = list(made(sch.func.body))
    assert alike(have, shown(after)), (have, shown(after))


def test_every_rewrite_is_executed() -> None:
    executed = {*STEPS, *STORES, *LINES, *CASES}
    kinds = {name for name in PRIMITIVES if "rewrite  " in (PRIMITIVES.get(name).fn.__doc__ or "")}
    missing = ", ".join(sorted(kinds - executed))
    assert not missing, f"no row here or in test_docstrings.py executes the rewrite of {missing}"
    assert kinds == executed
