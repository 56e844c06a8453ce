"""The IR that each construct of the dialect builds, in every accepted spelling."""

from __future__ import annotations

import linecache
from collections import namedtuple

import numpy as np
import pytest

from metasched.ir.buffer import Buffer
from metasched.ir.equal import assert_structural_equal
from metasched.ir.expr import (
    EQ,
    Add,
    FloatImm,
    FloorDiv,
    IntImm,
    Min,
    Var,
    as_int,
)
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Block,
    Break,
    BufferStore,
    Continue,
    DeclBuffer,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    LetStmt,
    Return,
    SeqStmt,
    While,
)
from metasched.ir.verify import verify
from metasched.ir.visit import blocks_of, walk_stmts
from metasched.script import ir as I
from metasched.script import parse
from metasched.script import tir as T
from metasched.script.builder import ceildiv

SIZE, SCOPE = 16, "shared"
Point = namedtuple("Point", "x y")
ORIGIN = Point(3, 4)


class Config:
    width = 8
    table = {"a": (1, 2)}


def flat(body: str, params: str = 'A: T.Buffer((16,), "float32"), i: T.int32', **env) -> PrimFunc:
    """A lowered function with these lines as body."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    func = parse(f"@T.prim_func(s_tir=False)\ndef f({params}):\n{lines}\n", env)
    assert isinstance(func, PrimFunc)
    return func


def block_in(body: str, params: str = 'A: T.Buffer((16, 16), "float32")') -> Block:
    """The block named b of a schedulable function."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    func = parse(f"@T.prim_func\ndef f({params}):\n{lines}\n")
    return next(r.block for r in blocks_of(func.body) if r.block.name == "b")


# ---- captured values


def test_captured_data_is_read():
    n, shape, dtype, half = 4, (2, 3), "float16", np.int64(5)
    small = np.dtype("int8")
    fresh = Buffer.of("G", (4,), "int32")

    @T.prim_func
    def func(A: T.Buffer((n, SIZE * 2), dtype), B: T.Buffer(shape, np.float32)):
        C = T.alloc_buffer((ORIGIN.x, Config.width, Config.table["a"][1]), scope=SCOPE)
        D = T.alloc_buffer((half, *shape), small)
        for i in range(n):
            with T.block(f"copy_{n}"):
                vi = T.axis.spatial(n, i)
                C[0, 0, 0] = fresh[vi]

    a, b = func.params
    assert a.constant_shape() == (4, 32) and a.dtype == "float16"
    assert b.constant_shape() == (2, 3) and b.dtype == "float32"
    c, d = func.root.alloc_buffers
    assert c.constant_shape() == (3, 8, 2) and c.scope == "shared"
    assert d.constant_shape() == (5, 2, 3) and d.dtype == "int8"
    assert next(s for s in walk_stmts(func.body) if isinstance(s, Block) and s.name == "copy_4")


def test_captured_names_in_nested_definitions():
    def make(n: int):
        @I.ir_module
        class Module:
            @T.prim_func
            def f(A: T.Buffer((n,), "int32")):
                A[0] = n

        return Module

    assert make(3)["f"].params[0].constant_shape() == (3,)
    assert make(5)["f"].params[0].constant_shape() == (5,)


def test_two_definitions_of_one_name():
    @T.prim_func
    def func(A: T.Buffer((1,), "int32")):
        A[0] = 1

    first = func

    @T.prim_func
    def func(A: T.Buffer((1,), "int32")):
        A[0] = 2

    assert as_int(first.root.body.value) == 1 and as_int(func.root.body.value) == 2


def test_functions_from_executed_text_are_found_through_linecache():
    text = (
        "from metasched.script import tir as T\n"
        "@T.prim_func\ndef f(A: T.Buffer((1,), 'int32')):\n    A[0] = 7\n"
    )
    linecache.cache["<made up>"] = (len(text), None, text.splitlines(True), "<made up>")
    names: dict[str, object] = {}
    exec(compile(text, "<made up>", "exec"), names)
    assert as_int(names["f"].root.body.value) == 7


def test_reading_executes_no_user_code():
    ran = []

    class Trap(int):
        def __add__(self, other):
            ran.append("add")
            return 0

        def __int__(self):
            ran.append("int")
            return 0

    trap = Trap(3)

    @T.prim_func
    def func(A: T.Buffer((8,), "int32")):
        A[trap + 1] = trap

    assert not ran
    assert as_int(func.root.body.indices[0]) == 4 and as_int(func.root.body.value) == 3


# ---- functions and modules


def test_buffer_spellings_are_one():
    texts = [
        'A: T.Buffer((4, 4), "float32")', 'A: T.Buffer[(4, 4), "float32"]', "A: T.Buffer((4, 4))",
        'A: "T.Buffer((4, 4))"', "A: T.Buffer([4, 4], T.float32)",
    ]  # fmt: skip
    programs = [parse(f"@T.prim_func\ndef f({t}):\n    A[0, 0] = 1.0") for t in texts]
    programs.append(parse(
        "@T.prim_func\ndef f(a: T.handle):\n    A = T.match_buffer(a, (4, 4))\n    A[0, 0] = 1.0"
    ))  # fmt: skip
    for program in programs[1:]:
        assert_structural_equal(programs[0], program)


def test_unstated_offsets_of_parameters_are_variables():
    given = parse("@T.prim_func\ndef f(A: T.Buffer(4, offset_factor=8)):\n    A[0] = 1")
    matched = parse(
        "@T.prim_func\ndef f(a: T.handle):\n    A = T.match_buffer(a, 4, offset_factor=8)\n"
        "    A[0] = 1"
    )
    assert isinstance(given.params[0].elem_offset, Var)
    assert_structural_equal(given, matched)
    allocated = flat("B = T.allocate(4, offset_factor=8)\nB[0] = 1")
    assert allocated.body.buffer.elem_offset is None


def test_parameters():
    params = "a: T.handle, n: T.int32, m: T.int64, f: float, p: T.handle, A: T.Buffer(3)"
    func = flat("pass", params)
    types = [p.dtype for p in func.params]
    assert types == ["handle", "int32", "int64", "float32", "handle", "float32"]
    assert func.params[5].constant_shape() == (3,)


def test_symbolic_shapes():
    func = parse(
        """
        @T.prim_func
        def f(a: T.handle, b: T.handle):
            n, m = T.int32(), T.var("int64")
            A = T.match_buffer(a, (n, 4), "float32", strides=[4, 1])
            B = T.match_buffer(b, (m,), offset_factor=8)
            A[n - 1, 0] = B[0]
        """
    )
    a, b = func.params
    assert isinstance(a.shape[0], Var) and a.shape[0].name == "n" and len(a.strides) == 2
    assert b.shape[0].dtype == "int64" and isinstance(b.elem_offset, Var)


def test_attributes_and_names():
    func = parse('@T.prim_func\ndef g():\n    T.func_attr({"tir.noalias": True})')
    assert dict(func.attrs) == {"global_symbol": "g", "tir.noalias": True}
    assert not parse("@T.prim_func(private=True)\ndef g():\n    pass").attrs
    assert parse("@T.prim_func(s_tir=True, private=False)\ndef g():\n    pass").is_schedulable
    assert not parse("@T.prim_func(s_tir=False)\ndef g():\n    pass").is_schedulable
    named = parse('@T.prim_func\ndef g():\n    T.func_attr({"global_symbol": "h"})')
    assert named.attrs["global_symbol"] == "h"


def test_root_block_is_implicit_unless_written():
    implicit = parse("@T.prim_func\ndef f():\n    T.evaluate(1)")
    written = parse(
        '@T.prim_func\ndef f():\n    with T.block("root"):\n        T.reads()\n'
        "        T.evaluate(1)"
    )
    assert_structural_equal(implicit, written)
    assert implicit.root.name == "root"


def test_modules():
    module = parse(
        """
        from metasched.script import ir as J
        from metasched.script import tir as U

        @J.ir_module
        class Any:
            "what it is"
            J.module_attrs({"k": 1})
            @U.prim_func
            def f(A: U.Buffer((4,), "int32")):
                "what it does"
                A[0] = 1
            @U.prim_func(private=True)
            def g():
                pass
        """
    )
    assert isinstance(module, IRModule) and list(module) == ["f", "g"]
    assert dict(module.attrs) == {"k": 1}

    @I.ir_module
    class Same:
        I.module_attrs({"k": 1})

        @T.prim_func
        def f(A: T.Buffer((4,), "int32")):
            A[0] = 1

        @T.prim_func(private=True)
        def g():
            pass

    assert_structural_equal(module, Same)


# ---- loops and other statements


def test_loop_kinds():
    kinds = {"serial": ForKind.SERIAL, "parallel": ForKind.PARALLEL,
             "vectorized": ForKind.VECTORIZED, "unroll": ForKind.UNROLLED}  # fmt: skip
    for word, kind in kinds.items():
        loop = flat(f'for k in T.{word}(2, 6, annotations={{"a": 1}}):\n    A[k] = 0').body
        assert (loop.kind, as_int(loop.min), as_int(loop.extent)) == (kind, 2, 4)
        assert dict(loop.annotations) == {"a": 1}
    loop = flat('for k in T.thread_binding(0, 4, thread="threadIdx.x"):\n    A[k] = 0').body
    assert loop.kind is ForKind.THREAD_BINDING and loop.thread == "threadIdx.x"
    assert flat('for k in T.thread_binding(4, "vthread"):\n    A[k] = 0').body.thread == "vthread"


def test_ranges():
    def loop(bounds):
        found = flat(f"for k in {bounds}:\n    A[0] = 0", "A: T.Buffer(4), n: T.int32").body
        return found, found.var.dtype

    found, dtype = loop("range(2, 10, 3)")
    assert [as_int(e) for e in found.exprs] == [2, 3, 3] and dtype == "int32"
    assert loop("range(T.int64(8))")[1] == "int64"
    assert loop("range(0)")[0].extent is IntImm("int32", 0)
    for empty in ("range(5, 3)", "range(5, 3, 2)", "range(2, -9, 4)"):
        found, _ = loop(empty)
        assert (as_int(found.extent), found.kind) == (0, ForKind.SERIAL)
    n = loop("range(n)")[0].extent
    assert isinstance(n, Var)
    assert isinstance(loop("range(1, n + 1)")[0].extent, Var)
    found, _ = loop("T.serial(0, n * 4, step=4)")
    assert isinstance(found.extent, Var) and as_int(found.step) == 4
    found, _ = loop("T.serial(n, step=4)")
    assert isinstance(found.extent, FloorDiv)
    grid = flat("for p, q in T.grid(2, 3):\n    A[p] = q").body
    assert as_int(grid.extent) == 2 and as_int(grid.body.extent) == 3


def test_control_flow():
    func = flat(
        "while i < 3:\n    if i == 1:\n        break\n    elif i == 2:\n        continue\n"
        "    else:\n        return\nassert i > 0, 'positive'\nT.Assert(i > 1, 'more')\npass"
    )
    loop, *asserts = func.body.items
    assert isinstance(loop, While) and isinstance(loop.body, IfThenElse)
    assert isinstance(loop.body.then, Break) and isinstance(loop.body.orelse.then, Continue)
    assert isinstance(loop.body.orelse.orelse, Return)
    assert [a.message for a in asserts if isinstance(a, AssertStmt)] == ["positive", "more"]
    frames = flat(
        "with T.While(i < 3):\n    with T.If(i == 1):\n        with T.Then():\n            break\n"
        "        with T.Else():\n            continue"
    )
    assert isinstance(frames.body.body.orelse, Continue)
    returned = parse("@T.prim_func(s_tir=False)\ndef f() -> T.int64:\n    return 1")
    assert returned.ret_type == "int64" and returned.body.value is IntImm("int64", 1)


def test_lets():
    for text in ("x = A[i]\nA[0] = x", "x: T.float32 = A[i]\nA[0] = x", "x = T.let(A[i])\nA[0] = x",
                 "x = T.bind(A[i])\nA[0] = x", "with T.LetStmt(A[i]) as x:\n    A[0] = x",
                 "x: T.let = A[i]\nA[0] = x", "x = T.float32()\nwith T.let(A[i], var=x):\n"
                 "    A[0] = x"):  # fmt: skip
        let = flat(text).body
        assert isinstance(let, LetStmt) and let.var.name == "x" and let.body.value is let.var, text
    numbers = flat("x: T.int64 = 5\nT.evaluate(x)").body
    assert numbers.value is IntImm("int64", 5)
    meta = flat("x = T.meta_var(i + 1)\nA[x] = 0").body
    assert isinstance(meta, BufferStore)
    again = flat("x = i\nx += 1\nA[x] = 0").body
    assert isinstance(again.body, LetStmt)
    assert again.body.value is Add(again.var, IntImm("int32", 1))
    pair = flat("x, y = i, i * 2\nA[x] = T.float32(y)").body
    assert isinstance(pair, LetStmt) and isinstance(pair.body, LetStmt)


def test_a_let_reaches_to_the_end_of_its_block_only():
    func = flat("if i > 0:\n    x = i\n    A[x] = 0\nA[1] = 1")
    assert isinstance(func.body, SeqStmt) and isinstance(func.body.items[0].then, LetStmt)


def test_memory_statements():
    func = flat(
        'B = T.allocate((4,), "int8", "local", annotations={"k": 1})\n'
        'C = T.decl_buffer((2, 2), "int8", data=B.data)\n'
        'D = T.decl_buffer((4,), "int8")\nE = T.alloc_buffer((4,), "int8")\n'
        "C[0, 0] = D[0] + E[0]"
    )
    alloc = func.body
    assert isinstance(alloc, Allocate) and alloc.buffer.scope == "local"
    assert isinstance(alloc.body, DeclBuffer) and alloc.body.source is alloc.buffer
    assert alloc.body.buffer.data is alloc.buffer.data
    assert isinstance(alloc.body.body, Allocate) and isinstance(alloc.body.body.body, Allocate)
    scoped = flat('with T.allocate((4,), "int8") as B, T.attr(B, "k", 1):\n    B[0] = 1\nA[0] = 1')
    assert isinstance(scoped.body.items[0].body, AttrStmt)


def test_threads_and_attributes():
    func = flat(
        'tx = T.env_thread("threadIdx.x")\nT.launch_thread(tx, 8)\n'
        'with T.launch_thread("blockIdx.x", 4) as bx:\n    T.attr(A, "key", "text")\n    A[bx] = tx'
    )
    outer = func.body
    assert isinstance(outer, For) and outer.thread == "threadIdx.x" and as_int(outer.extent) == 8
    assert outer.body.thread == "blockIdx.x" and isinstance(outer.body.body, AttrStmt)
    assert outer.body.body.node is func.params[0]


# ---- blocks


def test_axes():
    block = block_in(
        """
for i, j, k in T.grid(16, 8, 4):
    with T.sblock("b"):
        vi, vj = T.axis.remap("SR", [i, j])
        a = T.axis.S(16, k)
        b = T.axis.reduce((2, 6), k)
        c = T.axis.scan(4, k)
        d = T.axis.opaque(4, k)
        e = T.axis.R(T.int64(4), 0)
        T.where(k < 3)
        T.block_attr({"x": 1})
        T.sblock_attr({"y": [2]})
        A[vi, vj] = 1.0
"""
    )
    want = [IterKind.SPATIAL, IterKind.REDUCE, IterKind.SPATIAL, IterKind.REDUCE, IterKind.SCAN,
            IterKind.OPAQUE, IterKind.REDUCE]  # fmt: skip
    assert [v.kind for v in block.iter_vars] == want
    assert [as_int(v.dom.extent) for v in block.iter_vars] == [16, 8, 16, 4, 4, 4, 4]
    assert as_int(block.iter_vars[3].dom.min) == 2
    assert block.iter_vars[6].var.dtype == "int64"
    assert dict(block.annotations) == {"x": 1, "y": [2]}


def test_axes_follow_int64_loops():
    block = block_in(
        'for i in range(T.int64(4)):\n    with T.block("b"):\n'
        "        vi = T.axis.spatial(4, i)\n        A[vi, 0] = 0.0"
    )
    assert block.iter_vars[0].dom.extent is IntImm("int64", 4)


def test_regions_written_and_inferred():
    written = block_in(
        'with T.block("b"):\n    T.reads([A[0:4, 1], A])\n    T.writes(A[:, 2:])\n'
        "    A[0, 2] = A[0, 1]"
    )
    boxes = [[(as_int(r.min), as_int(r.extent)) for r in b.region] for b in written.reads]
    assert boxes == [[(0, 4), (1, 1)], [(0, 16), (0, 16)]]
    box = [(as_int(r.min), as_int(r.extent)) for r in written.writes[0].region]
    assert box == [(0, 16), (2, 14)]
    inferred = block_in('with T.block("b"):\n    T.reads()\n    A[0, 2] = A[0, 1]')
    assert inferred.reads == () and as_int(inferred.writes[0].region[1].min) == 2


def test_the_root_is_never_inferred():
    text = '@T.prim_func\ndef f(A: T.Buffer(4)):\n    with T.block("root"):\n        A[0] = 1'
    func = parse(text)
    assert func.root.reads == () and func.root.writes == ()


def test_buffers_of_blocks():
    block = block_in(
        'with T.block("b"):\n    C = T.alloc_buffer((4,), scope="local")\n'
        "    for q in range(4):\n        D = T.sblock_alloc_buffer((4,))\n"
        "        D[q] = 0.0\n"
        '    V = T.match_buffer(A[0:4, 0:4], (4, 4), "float32", offset_factor=1)\n'
        "    W = T.match_buffer(A[0:2, 0:4])\n    V[0, 0] = C[0]\n"
    )
    assert [b.name for b in block.alloc_buffers] == ["C", "D"]
    first, second = block.match_buffers
    assert isinstance(first.buffer.elem_offset, Var)
    assert second.buffer.constant_shape() == (2, 4) and second.buffer.elem_offset is None


def test_init_and_anonymous_blocks():
    func = parse(
        "@T.prim_func\ndef f(A: T.Buffer(4)):\n    for k in range(4):\n        with T.block():\n"
        '            vk = T.axis.remap("R", [k])\n            with T.init():\n'
        "                A[0] = 0.0\n            A[0] += 1.0"
    )
    block = list(blocks_of(func.body))[1].block
    assert block.name == "" and block.init is not None and block.iter_vars[0].is_reduce


# ---- the T namespace outside of scripts


def test_words_build_expressions_in_plain_python():
    x, y = Var("x"), Var("y")
    assert T.EQ(x, y) is EQ(x, y) and T.min(x, 1) is Min(x, IntImm("int32", 1))
    assert T.float32(0) is FloatImm("float32", 0.0) and T.exp(T.float32(1)).op.name == "exp"
    assert T.if_then_else(T.EQ(x, 0), x, y).args[1] is x
    assert T.EQ(1, 1) is True and T.max(1, 2) == 2
    assert ceildiv(x, 4) is FloorDiv(Add(x, IntImm("int32", 3)), IntImm("int32", 4))
    assert isinstance(T.Buffer((4,)), Buffer) and isinstance(T.int32(), Var)
    assert "grid" in dir(T) and "exp" in dir(T) and "prim_func" in dir(T)


@pytest.mark.parametrize("indent", ["", "    "])
def test_texts_may_be_indented(indent):
    lines = ["@T.prim_func", "def f(A: T.Buffer(4)):", "    A[0] = 1.0"]
    assert parse("\n".join(indent + line for line in lines)).attrs["global_symbol"] == "f"


def test_new_variables_in_a_tuple_are_no_lets():
    func = parse(
        """
        @T.prim_func
        def f(a: T.handle):
            N, M = T.int32(), T.int64()
            A = T.match_buffer(a, (N, M), "float32")
            A[N - 1, M - 1] = 0.0
        """
    )
    (a,) = func.params
    assert [(v.name, v.dtype) for v in a.shape] == [("N", "int32"), ("M", "int64")]
    verify(func)
    converted = flat("x = T.int32(i)\nA[x] = 0").body
    assert isinstance(converted, LetStmt) and converted.value.name == "i"


def test_tuples_are_read_before_they_are_bound():
    swapped = flat("x, y = i, i + 1\nx, y = y, x\nA[x] = T.float32(y)").body
    x, y = swapped.var, swapped.body.var
    second = swapped.body.body
    assert second.value is y and second.body.value is x


def test_a_tuple_binds_axes_of_different_kinds():
    func = parse(
        """
        @T.prim_func
        def f(A: T.Buffer((4, 8), "int32"), B: T.Buffer((4, 9), "int32")):
            for i, j in T.grid(4, 8):
                with T.block("b"):
                    vi, vj = T.axis.spatial(4, i), T.axis.opaque(8, j)
                    B[vi, vj + 1] = B[vi, vj] + A[vi, vj]
        """
    )
    (realize,) = [r for r in blocks_of(func.body) if r.block.name == "b"]
    kinds = [(v.var.name, v.kind) for v in realize.block.iter_vars]
    assert kinds == [("vi", IterKind.SPATIAL), ("vj", IterKind.OPAQUE)]
    verify(func)


def test_a_tuple_binds_axes_beside_other_values():
    func = parse(
        """
        @T.prim_func
        def f(A: T.Buffer((4, 8), "int32")):
            for i, j in T.grid(4, 8):
                with T.block("b"):
                    vi, vj, n = T.axis.spatial(4, i), T.axis.spatial(8, j), 3
                    A[vi, vj] = n + vj
        """
    )
    (realize,) = [r for r in blocks_of(func.body) if r.block.name == "b"]
    assert [v.var.name for v in realize.block.iter_vars] == ["vi", "vj"]
