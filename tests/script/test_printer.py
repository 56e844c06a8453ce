"""The canonical text of programs."""

from __future__ import annotations

import textwrap

import numpy as np

from metasched.autoschedule import autoschedule
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Add, IntImm, Mul, Sub, Var
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.stmt import BlockRealize, Evaluate, For
from metasched.ir.visit import blocks_of, walk_stmts
from metasched.schedule.schedule import Schedule
from metasched.script import ir as I
from metasched.script import parse, script, script_with_marks
from metasched.script import tir as T


@T.prim_func
def matmul(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32"),
           C: T.Buffer((64, 64), "float32")):  # fmt: skip
    for i, j, k in T.grid(64, 64, 64):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


def text(literal: str) -> str:
    return textwrap.dedent(literal).strip("\n")


def test_matmul():
    assert script(matmul) == text("""
        @T.prim_func
        def matmul(
            A: T.Buffer((64, 64), "float32"),
            B: T.Buffer((64, 64), "float32"),
            C: T.Buffer((64, 64), "float32"),
        ):
            for i, j, k in T.grid(64, 64, 64):
                with T.block("C"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    T.reads(A[vi, vk], B[vk, vj])
                    T.writes(C[vi, vj])
                    with T.init():
                        C[vi, vj] = T.float32(0)
                    C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    """)


# Programs that are canonical already: what is printed is what stands here.
CANONICAL = [
    """
    @T.prim_func(private=True)
    def main(var_A: T.handle, n: T.int32, B: T.Buffer((8,), "int8", scope="shared", align=16)):
        T.func_attr({"tir.noalias": True, "sizes": [1, (2.5, None)]})
        m = T.int32()
        A = T.match_buffer(var_A, (n, m), "float32", strides=(m, 1))
        tmp = T.alloc_buffer((16,), "float32")
        for i in T.parallel(n, annotations={"pragma": 1}):
            for j in range(2, 2 + m):
                with T.block("b"):
                    vi = T.axis.spatial(n, i)
                    vj = T.axis.spatial((0 - m, 0 - m + m * 2), j - 2)
                    T.where(i * 2 < n and not j == 3)
                    T.reads()
                    T.writes(A[vi, 0:m])
                    T.block_attr({"k": T.int32(1)})
                    off = T.int32()
                    V = T.match_buffer(B[0:4], (4,), "int8", elem_offset=off, offset_factor=4)
                    V[0] = T.int8(1)
                    x: T.float32 = A[vi, vj] * T.float32(2)
                    if x > T.float32(3):
                        A[vi, vj] = x
                    elif vi == 0:
                        T.evaluate(0)
                    else:
                        while vj < 3:
                            break
    """,
    """
    @T.prim_func(s_tir=False)
    def main(A: T.Buffer((16,), "int8"), s: T.float64) -> T.int32:
        with T.allocate((16,), "int8", scope="local") as B:
            C = T.decl_buffer((4, 4), "int8", data=B.data)
            with T.attr(A, "k", 3):
                C[0, 0] = A[0] // T.int8(3) % T.int8(2)
            T.attr(None, "pragma", "text")
            A[T.Ramp(T.int32(0), 1, 4)] = T.Broadcast(T.int8(1), 4)
        for tx in T.thread_binding(16, thread="threadIdx.x"):
            for u in T.serial(T.int64(8), annotations={"a": 1}):
                for v in range(0, 8, 2):
                    A.vstore([tx], T.int8(-1), predicate=True)
        assert s > T.float64(1), "no"
        return T.int32(5)
    """,
    """
    @I.ir_module
    class Module:
        I.module_attrs({"a": {"b": "c"}})

        @T.prim_func
        def f():
            T.evaluate(T.call_extern("int32", "g", "text"))

        @T.prim_func
        def g():
            with T.block("root"):
                T.reads()
                T.writes()
                T.block_attr({"k": 1})
                continue
    """,
]


def test_canonical_text_is_printed_unchanged():
    for program in CANONICAL:
        assert script(parse(text(program))) == text(program)


def test_operators_keep_their_order():
    a, b = Var("a"), Var("b")
    one, two = IntImm("int32", 1), IntImm("int32", 2)
    assert script(Sub(a, Sub(a, b))) == "a - (a - b)"
    assert script(Sub(Sub(a, b), a)) == "a - b - a"
    assert script(Mul(Add(a, b), two)) == "(a + b) * 2"
    assert script(Add(one, two)) == "T.int32(1) + 2"
    assert script(Mul(IntImm("int32", -1), a)) == "-1 * a"


def test_clashing_names_are_made_unique():
    buffers = [Buffer.of("A.x", (4,), "int8") for _ in range(2)]
    scalars = [Var(name) for name in ("for", "1", "T", "a_name_long_enough_to_break_the_line")]
    func = PrimFunc((*buffers, *scalars), Evaluate(IntImm("int32", 0)))
    names = [line.split(":")[0].strip() for line in script(func).splitlines()[2:7]]
    assert names == ["A_x", "A_x_1", "for_1", "v1", "T_1"]


def test_parameters_keep_the_names_of_functions_of_python():
    """A caller may pass them by name, and blocks of plain loops are named after buffers."""

    @T.prim_func
    def extremes(x: T.Buffer((8,)), sum: T.Buffer((1,)), max: T.Buffer((1,)), I: T.Buffer((8,))):
        for i in range(8):
            sum[0] = sum[0] + x[i]
            max[0] = T.max(max[0], x[i])
            I[i] = x[i] * 2.0

    again = parse(script(extremes))
    assert [b.name for b in again.buffers] == ["x", "sum", "max", "I"]
    assert script(again) == script(extremes)
    replayed = Schedule(again)
    autoschedule(extremes).trace.apply(replayed)
    assert script(replayed.mod) == script(autoschedule(again).mod)


def test_a_module_names_its_functions():
    module = IRModule.of({"one": matmul, "two": matmul.with_attr("global_symbol", "two")})
    printed = script(module)
    assert 'T.func_attr({"global_symbol": "matmul"})' in printed
    assert printed.count("func_attr") == 1


def test_show_prints_the_script(capsys):
    matmul.show()
    IRModule.of(matmul).show()
    assert capsys.readouterr().out == f"{script(matmul)}\n{script(IRModule.of(matmul))}\n"


def test_fragments_print_too():
    realize = next(r for r in blocks_of(matmul.body) if r.block.name == "C")
    assert script(realize).startswith('with T.block("C"):\n    vi = T.axis.spatial(64, i)')
    assert script(realize.block).splitlines()[1] == "    vi = T.axis.spatial(64)"
    assert script(realize.block.body) == "C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]"
    assert script(matmul.params[0]) == "A"
    assert script(Var("x") + 1) == "x + 1"


def test_values_that_scripts_cannot_express_say_so():
    func = matmul.with_attr("odd", np.float32)
    assert 'T.unprintable("<class' in script(func)


# ---- marks


def test_marks_underline_statements():
    loops = [s for s in walk_stmts(matmul.body) if isinstance(s, For)]
    lines = script_with_marks(matmul, [loops[1]]).splitlines()
    at = lines.index("        for j in range(64):")
    assert lines[at - 1] == "    for i in range(64):"
    assert lines[at + 1] == "      # ^^^^^^^^^^^^^^^^^^^"
    assert lines[at + 2] == "            for k in range(64):"


def test_marks_underline_blocks_and_expressions():
    realize = [r for r in blocks_of(matmul.body) if isinstance(r, BlockRealize)][-1]
    for node in (realize, realize.block):
        lines = script_with_marks(matmul, [node]).splitlines()
        at = lines.index('        with T.block("C"):')
        assert lines[at + 1].strip(" #") == "^" * len('with T.block("C"):')
    product = realize.block.body.value.b
    lines = script_with_marks(matmul, [product]).splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip("# ").startswith("^"))
    start = lines[at].index("^")
    assert lines[at - 1][start:] == "A[vi, vk] * B[vk, vj]"


def test_marks_show_their_surroundings_only():
    realize = next(r for r in blocks_of(matmul.body) if r.block.name == "C")
    excerpt = script_with_marks(matmul, [realize.block.body], context=1).splitlines()
    assert [line.strip() for line in excerpt][:2] == ["...", "C[vi, vj] = T.float32(0)"]
    assert len(excerpt) == 4


def test_a_mark_on_the_implicit_root_writes_it_out():
    lines = script_with_marks(matmul, [matmul.body]).splitlines()
    assert '    with T.block("root"):' in lines
    assert script_with_marks(matmul, []) == script(matmul)


def test_class_modules_read_like_text():
    @I.ir_module
    class Module:
        @T.prim_func
        def f(A: T.Buffer((4,), "int32")):
            A[0] = 1

    assert script(parse(script(Module))) == script(Module)


def test_programs_are_printed_as_their_text():
    """As in TVM: `print(func)`, `func.script()`; the fields stay what `repr` shows."""
    mod = IRModule.of(matmul)
    assert str(matmul) == matmul.script() == script(matmul)
    assert matmul.script("product") == script(matmul, "product")
    assert f"{mod}" == mod.script() == script(mod)
    assert repr(matmul).startswith("PrimFunc(params=")
