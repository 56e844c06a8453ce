"""Programs in TVM's JSON: programs of a database, and each kind of node written by hand."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest
from damage import damaged_text

import metasched as ms
from metasched.errors import MetaschedError, ParseError
from metasched.ir.verify import verify
from metasched.script import parse, script
from metasched.script.tvm_json import index_map_of, program_of

DATA = Path(__file__).parent.parent / "data" / "tvm"
WORKLOADS = [
    base64.b64decode(json.loads(line)[1])[8:]
    for line in (DATA / "workloads.json").read_text(encoding="utf-8").splitlines()
]
PRODUCT = """
@I.ir_module
class Module:
    @T.prim_func
    def main(A: T.Buffer((16, 16)), B: T.Buffer((16, 16)), C: T.Buffer((16, 16))):
        T.func_attr({"tir.noalias": True})
        for i, j, k in T.grid(16, 16, 16):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


@pytest.mark.parametrize("text", WORKLOADS, ids=["mini", "product", "softmax", "conv"])
def test_workloads_of_a_database(text: bytes) -> None:
    module = program_of(text)
    verify(module)
    ms.assert_structural_equal(parse(script(module)), module)


def test_a_product_is_the_same_as_from_its_script() -> None:
    ms.assert_structural_equal(program_of(WORKLOADS[1]), parse(PRODUCT))


class Graph:
    """A graph of nodes written by hand: each call enters a node and gives its place."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = [{"type": "None"}]
        self.int32, self.float32 = self("ir.PrimType", dtype="int32"), self.type("float32")
        self.global_ = self.data("ffi.String", "global")

    def __call__(self, kind: str, /, **fields: Any) -> int:
        return self.data(kind, {"span": 0, **fields})

    def data(self, kind: str, value: Any) -> int:
        self.nodes.append({"type": kind, "data": value})
        return len(self.nodes) - 1

    def type(self, name: str) -> int:
        return self("ir.PrimType", dtype=name)

    def text(self, value: str) -> int:
        return self.data("ffi.String", value)

    def array(self, *places: int) -> int:
        return self.data("ffi.Array", list(places))

    def notes(self, *places: int) -> int:
        return self.data("ffi.Map", list(places))

    def number(self, value: int) -> int:
        return self("ir.IntImm", ty=self.int32, value=value)

    def real(self, value: float) -> int:
        return self("ir.FloatImm", ty=self.float32, value=value)

    def var(self, name: str, ty: int | None = None) -> int:
        return self("ir.Var", ty=self.int32 if ty is None else ty, name=self.text(name))

    def buffer(self, name: str, size: int) -> int:
        memory = self(
            "tirx.BufferType", dtype=self.float32, storage_scope=self.global_,
            shape=self.array(self.number(size)), strides=self.array(),
            elem_offset=self.number(0), data_alignment=64, offset_factor=0, layout=0,
        )  # fmt: skip
        return self("ir.Var", ty=memory, name=self.text(name))

    def binary(self, name: str, a: int, b: int) -> int:
        return self(f"tirx.{name}", ty=self.int32, a=a, b=b)

    def call(self, op: str, *args: int, ty: int | None = None) -> int:
        return self("ir.Call", ty=self.float32 if ty is None else ty, op=self.data("ir.Op", op),
                    args=self.array(*args), attrs=0, ty_args=self.array())  # fmt: skip

    def load(self, buffer: int, index: int) -> int:
        return self("tirx.BufferLoad", ty=self.float32, buffer=buffer, indices=self.array(index),
                    predicate=0)  # fmt: skip

    def store(self, buffer: int, value: int, index: int) -> int:
        return self("tirx.BufferStore", buffer=buffer, value=value, indices=self.array(index),
                    predicate=0)  # fmt: skip

    def loop(self, var: int, extent: int, body: int, kind: int = 0, **more: Any) -> int:
        fields = {"min": self.number(0), "thread_binding": 0, "step": 0,
                  "annotations": self.notes(), **more}  # fmt: skip
        return self("tirx.For", loop_var=var, extent=extent, kind=kind, body=body, **fields)

    def function(self, body: int, *params: int) -> str:
        root = self("tirx.PrimFunc", ty=0, attrs=0, params=self.array(*params), body=body,
                    ret_type=self("ir.TupleType", fields=self.array()))  # fmt: skip
        return self.dump(root)

    def dump(self, root: int) -> str:
        return json.dumps({"root_index": root, "nodes": self.nodes})


def check(text: str, body: str, params: str = 'A: T.Buffer((8,), "float32"), n: T.int32') -> None:
    """Check that the graph reads as the lowered function of these lines."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    want = parse(f"@T.prim_func(s_tir=False, private=True)\ndef f({params}):\n{lines}\n")
    ms.assert_structural_equal(program_of(text), want)


def test_loops_of_each_kind() -> None:
    g = Graph()
    a, n = g.buffer("A", 8), g.var("n")
    body = g.store(a, g.real(1.0), g.number(0))
    tag = g("tirx.IterVar", dom=0, var=g.var("t"), iter_type=1, thread_tag=g.text("threadIdx.x"))
    note = g.notes(g.text("k"), g.array(g.data("int", 1), g.data("bool", True), g.real(0.5)))
    loops = [g.loop(g.var("i"), g.number(8), body, kind) for kind in range(4)]
    loops.append(g.loop(g.var("i"), g.number(8), body, 4, thread_binding=tag, annotations=note))
    loops.append(g.loop(g.var("i"), g.number(14), body, step=g.number(4)))
    loops.append(g.loop(g.var("i"), g.number(7), body, step=g.number(1)))
    text = g.function(g("tirx.SeqStmt", seq=g.array(*loops)), a, n)
    words = ("serial(8", "parallel(8", "vectorized(8", "unroll(8",
             'thread_binding(8, thread="threadIdx.x", annotations={"k": [1, True, 0.5]}',
             "serial(0, 16, step=4", "serial(7")  # fmt: skip
    check(text, "\n".join(f"for i in T.{word}):\n    A[0] = 1.0" for word in words))


def test_statements_scopes_and_jumps() -> None:
    g = Graph()
    a, n, x = g.buffer("A", 8), g.var("n"), g.var("x", g.float32)
    c, d = g.buffer("C", 4), g.buffer("D", 4)
    pointer = g.call("tirx.buffer_data", c, ty=g("ir.PointerType", element_type=g.float32))
    message = g.array(g("tirx.StringImm", value=g.text("no")))
    less = g.binary("LT", n, g.number(3))
    jump = g("tirx.Evaluate", value=g.call("tirx.break_loop"))
    items = [
        g("tirx.AssertStmt", condition=less, error_kind=0, message_parts=message),
        g("tirx.AllocBuffer", buffer=c, annotations=g.notes()),
        g("tirx.DeclBuffer", buffer=d, data=pointer),
        g("tirx.Bind", var=x, value=g.load(a, n)),
        g("tirx.While", condition=less, body=jump),
        g("tirx.IfThenElse", condition=g("tirx.Not", ty=0, a=less), else_case=0,
          then_case=g.store(d, x, g.number(0))),
        g("tirx.IfThenElse", condition=less, then_case=g.store(d, x, n),
          else_case=g("tirx.Evaluate", value=g.number(0))),
        g("tirx.AttrStmt", node=a, attr_key=g.text("key"), value=g.number(1),
          body=g.store(a, x, n)),
    ]  # fmt: skip
    check(
        g.function(g("tirx.SeqStmt", seq=g.array(*items)), a, n),
        """
assert n < 3, "no"
C = T.allocate((4,), "float32")
D = T.decl_buffer((4,), "float32", data=C.data)
x: T.let = A[n]
while n < 3:
    break
if not n < 3:
    D[0] = x
if n < 3:
    D[n] = x
else:
    T.evaluate(0)
with T.attr(A, "key", 1):
    A[n] = x
""",
    )


def test_expressions() -> None:
    g = Graph()
    a, n = g.buffer("A", 8), g.var("n")
    two = g.number(2)
    values = [g.binary(op, n, two) for op in ("Add", "Sub", "Mul", "FloorDiv", "FloorMod", "Min",
                                              "Max", "Mod", "Div")]  # fmt: skip
    tests = [g.binary(op, n, two) for op in ("EQ", "NE", "LT", "LE", "GT", "GE")]
    both = g("tirx.Or", a=g("tirx.And", a=tests[0], b=tests[1]), b=tests[2])
    vector = g("tirx.Ramp", base=n, stride=g.number(1), lanes=g.number(4))
    real = g.load(a, n)
    values += [
        *tests,
        g("tirx.Select", condition=both, true_value=n, false_value=two),
        g("tirx.Cast", ty=g.type("int8"), value=n),
        g("tirx.Shuffle", vectors=g.array(vector), indices=g.array(two, g.number(0))),
        g("tirx.Broadcast", value=n, lanes=two),
        g.call("tirx.exp", real),
        g.call("tirx.if_then_else", tests[2], real, real),
        g.call("tirx.shift_left", n, two, ty=g.int32),
        g.call("tirx.tvm_access_ptr", g.call("tirx.type_annotation"),
               g.call("tirx.buffer_data", a, ty=g("ir.PointerType")), n, two, g.number(1),
               ty=g("ir.PointerType")),
        g("tirx.Let", var=(x := g.var("x")), value=n, body=g.binary("Add", x, x)),
    ]  # fmt: skip
    body = g("tirx.SeqStmt", seq=g.array(*(g("tirx.Evaluate", value=v) for v in values)))
    check(g.function(body, a, n), "\n".join(f"T.evaluate({e})" for e in (
        "n + 2", "n - 2", "n * 2", "n // 2", "n % 2", "T.min(n, 2)", "T.max(n, 2)",
        "T.truncmod(n, 2)", "T.truncdiv(n, 2)", "n == 2", "n != 2", "n < 2", "n <= 2", "n > 2",
        "n >= 2", "T.Select(n == 2 and n != 2 or n < 2, n, 2)", 'T.Cast("int8", n)',
        "T.Shuffle([T.Ramp(n, 1, 4)], [2, 0])", "T.Broadcast(n, 2)", "T.exp(A[n])",
        "T.if_then_else(n < 2, A[n], A[n])", "T.shift_left(n, 2)",
        "T.access_ptr(A.data, n, 2, 1)", "T.Let(x + x, where={x: n})",
    )))  # fmt: skip


def test_blocks() -> None:
    g = Graph()
    a, n = g.buffer("A", 8), g.var("n")
    i, v = g.var("i"), g.var("v")
    whole = g("ir.Range", min=g.number(0), extent=g.number(8))
    point = g("ir.Range", min=v, extent=g.number(1))
    region = g("tirx.BufferRegion", buffer=a, region=g.array(point))
    view = g.buffer("V", 1)
    block = g(
        "tirx.SBlock", name_hint=g.text("b"), reads=g.array(), writes=g.array(region),
        iter_vars=g.array(g("tirx.IterVar", dom=whole, var=v, iter_type=2, thread_tag=0)),
        alloc_buffers=g.array(g.buffer("C", 4)), annotations=g.notes(g.text("k"), g.text("v")),
        match_buffers=g.array(g("tirx.MatchBufferRegion", buffer=view, source=region)),
        init=g.store(a, g.real(0.0), v), body=g.store(view, g.real(1.0), g.number(0)),
    )  # fmt: skip
    realized = g("tirx.SBlockRealize", iter_values=g.array(i), block=block,
                 predicate=g.binary("LT", i, n))  # fmt: skip
    check(
        g.function(g.loop(i, g.number(8), realized), a, n),
        """
for i in range(8):
    with T.block("b"):
        v = T.axis.reduce(8, i)
        T.where(i < n)
        T.reads()
        T.writes(A[v])
        T.block_attr({"k": "v"})
        C = T.alloc_buffer((4,))
        V = T.match_buffer(A[v], (1,))
        with T.init():
            A[v] = 0.0
        V[0] = 1.0
""",
    )


def test_index_maps() -> None:
    g = Graph()
    i, j = g.var("i"), g.var("j")
    outputs = g.array(j, g.binary("FloorDiv", i, g.number(4)))
    root = g("tirx.IndexMap", initial_indices=g.array(i, j), final_indices=outputs,
             inverse_index_map=0)  # fmt: skip
    found = index_map_of(g.dump(root))
    assert [v.name for v in found.inputs] == ["i", "j"] and found.outputs[0] is found.inputs[1]
    with pytest.raises(ParseError, match="a Var is no index map"):
        index_map_of(g.dump(i))
    with pytest.raises(ParseError, match="a Var is no program"):
        program_of(g.dump(i))


def nothing(g: Graph) -> int:
    return g("tirx.Evaluate", value=g.number(0))


BAD = {
    "tirx.Reduce: this kind cannot be read": lambda g: g(
        "tirx.Evaluate", value=g("tirx.Reduce", combiner=0)),
    "is not registered": lambda g: g("tirx.Evaluate", value=g.call("tirx.no_such_op")),
    "a loop of kind 9 cannot be read": lambda g: g.loop(
        g.var("i"), g.number(1), nothing(g), kind=9),
    "an iterator of kind 7 cannot be read": lambda g: g("tirx.Evaluate", value=g(
        "tirx.IterVar", dom=g("ir.Range", min=g.number(0), extent=g.number(1)), var=g.var("v"),
        iter_type=7, thread_tag=0)),
    "without a fixed number of lanes": lambda g: g("tirx.Evaluate", value=g(
        "tirx.Broadcast", value=g.number(1), lanes=g.var("n"))),
    "node 900 must come before": lambda g: g("tirx.Evaluate", value=900),
    "'x' is not the place of a node": lambda g: g("tirx.Evaluate", value="x"),
    "a tirx.Evaluate has no field 'value'": lambda g: g("tirx.Evaluate"),
    "it has no fields": lambda g: g.data("tirx.Evaluate", 3),
    "tirx.Evaluate.value cannot be a str": lambda g: g(
        "tirx.Evaluate", value=g.text("x")),
    "operands are int32 and float32": lambda g: g("tirx.Evaluate", value=g(
        "tirx.Add", a=g.number(1), b=g.real(1.0))),
    "'int33' is not a data type": lambda g: g("tirx.Evaluate", value=g(
        "ir.IntImm", ty=g.type("int33"), value=1)),
    "foo on a buffer cannot be read": lambda g: g(
        "tirx.Evaluate", value=g.call("tirx.foo", g.buffer("A", 4))),
    "no earlier buffer has the memory of A": lambda g: g("tirx.DeclBuffer", buffer=g.buffer("A", 4),
                                                   data=g.var("p", g("ir.PointerType"))),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_program_of_names_nodes_it_cannot_read(message: str) -> None:
    g = Graph()
    if message == "is not registered":
        message = "no_such_op"
        body = BAD["is not registered"](g)
    else:
        body = BAD[message](g)
    with pytest.raises(ParseError) as caught:
        program_of(g.function(body))
    assert message in str(caught.value)


TEXTS = {
    "{": "not JSON",
    "[]": "there is no list of nodes",
    '{"nodes": [], "root_index": 0}': "node 0 must come before",
    '{"nodes": [3], "root_index": 0}': "a node: it has no type",
    '{"nodes": [], "b64ndarrays": []}': "JSON of a TVM before 0.20",
}


@pytest.mark.parametrize("text", TEXTS)
def test_program_of_refuses_text_without_a_program(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        program_of(text)
    assert TEXTS[text] in str(caught.value)


def test_damage_anywhere_is_an_error_of_ours() -> None:
    """Each field of a program is replaced by values of other types, and read or refused."""
    whole = json.loads(WORKLOADS[1])
    for node in whole["nodes"]:
        data = node.get("data")
        for key in list(data) if isinstance(data, dict) else ():
            old = data[key]
            for value in (None, -1, "x", 10**400, [], 1.5):
                data[key] = value
                try:
                    verify(program_of(json.dumps(whole)))
                except MetaschedError:
                    continue
            data[key] = old
    ms.assert_structural_equal(program_of(json.dumps(whole)), parse(PRODUCT))


@pytest.mark.parametrize("part", range(4))
def test_damaged_programs_are_explained(part: int) -> None:
    """A short run of the fuzz of the reader: of all errors only ours pass."""
    data = json.loads(WORKLOADS[part])
    for seed in range(40):
        try:
            module = program_of(damaged_text(data, random.Random(seed)))
            verify(module)
            parse(script(module))
        except MetaschedError as error:
            assert str(error)


def test_a_store_with_too_many_indices_is_explained() -> None:
    text = WORKLOADS[1].decode()
    data = json.loads(text)
    store = next(n for n in data["nodes"] if n["type"] == "tirx.BufferStore")
    indices = data["nodes"][store["data"]["indices"]]
    indices["data"] = [*indices["data"], indices["data"][0]]
    with pytest.raises(MetaschedError, match="has 2 dimensions, 3 indices given"):
        verify(program_of(json.dumps(data)))
