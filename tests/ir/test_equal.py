"""Structural equality and hash: what counts and what does not; the first difference."""

# ruff: noqa: E731

import os
import pickle
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from strategies import funcs, function, random_func, stage

from metasched.ir.buffer import Buffer, BufferRegion
from metasched.ir.equal import (
    assert_structural_equal,
    first_difference,
    structural_equal,
    structural_hash,
)
from metasched.ir.expr import FloatImm, IntImm, Let, Var, as_expr
from metasched.ir.func import IRModule
from metasched.ir.op import Ramp
from metasched.ir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    LetStmt,
    evolve,
    frozen,
    seq,
)
from metasched.ir.visit import fresh_copy, transform


def matmul(n=16, names="ijk", prefix="", dtype="float32", block="C"):
    a, b, c = (Buffer.of(prefix + x, (n, n), dtype) for x in "ABC")
    axes = [(names[0], n, "S"), (names[1], n, "S"), (names[2], n, "R")]
    value = lambda i, j, k: c[i, j] + a[i, k] * b[k, j]
    return function([a, b, c], [stage(block, axes, c, lambda i, j, k: (i, j), value, 0)], [])


def edit(func, kind, /, **changes):
    """`func` with the first statement of a class changed."""
    done = []

    def on(node):
        if isinstance(node, kind) and not done and getattr(node, "name", "") != "root":
            done.append(1)
            return evolve(node, **changes)
        return None

    return func.with_body(transform(func.body, on))


def same(a, b):
    equal = structural_equal(a, b)
    assert equal == structural_equal(b, a)
    assert equal == (first_difference(a, b) is None) == (first_difference(b, a) is None)
    if equal:
        assert structural_hash(a) == structural_hash(b)
    else:
        assert structural_hash(a) != structural_hash(b)
    return equal


def test_names_do_not_count():
    assert same(matmul(), matmul(names="xyz", prefix="Z", block="other"))


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.with_attr("global_symbol", "other"),
        lambda f: f.with_attr("note", True),
        lambda f: edit(f, For, kind=ForKind.PARALLEL),
        lambda f: edit(f, For, extent=as_expr(8)),
        lambda f: edit(f, For, min=as_expr(1)),
        lambda f: edit(f, For, annotations=frozen({"a": 1})),
        lambda f: edit(f, For, thread="threadIdx.x", kind=ForKind.THREAD_BINDING),
        lambda f: edit(f, For, step=as_expr(2)),
        lambda f: edit(f, BufferStore, value=as_expr(1.0)),
    ],
)
def test_structural_equality_sees_each_change(change):
    f = matmul()
    assert not same(f, change(f))
    assert same(change(matmul(names="xyz")), change(f))


def test_shape_type_and_layout_count():
    f = matmul()
    assert not same(f, matmul(17))
    assert not same(f, matmul(dtype="float64"))

    def with_buffer(**kw):
        a = Buffer.of("A", (4,), **kw)
        return function([a], [Evaluate(as_expr(0))], [])

    plain = with_buffer()
    n = Var("n")
    for other in (
        with_buffer(scope="shared"), with_buffer(align=128), with_buffer(offset_factor=8),
        with_buffer(strides=[1]), with_buffer(elem_offset=4), with_buffer(strides=[n]),
    ):  # fmt: skip
        assert not same(plain, other)
    assert same(with_buffer(strides=[n]), with_buffer(strides=[Var("m")]))
    assert same(plain, with_buffer(elem_offset=0))


def test_annotation_values_count_with_their_types():
    values = [1, True, 1.0, "1", IntImm("int32", 1), IntImm("int64", 1), None, [1], {"k": 1},
              0.0, -0.0, [1, 2], [2, 1],
              FloatImm("float32", 0.0), FloatImm("float32", -0.0)]  # fmt: skip
    funcs_ = [matmul().with_attr("x", v) for v in values]
    for p, f in enumerate(funcs_):
        for q, g in enumerate(funcs_):
            assert same(f, g) == (p == q), (values[p], values[q])


def test_order_of_annotation_keys_does_not_count():
    f = matmul()
    assert same(edit(f, For, annotations=frozen({"a": 1, "b": 2})),
                edit(f, For, annotations=frozen({"b": 2, "a": 1})))  # fmt: skip


def test_free_variables():
    i, j = Var("i"), Var("j")
    assert not structural_equal(i + 1, j + 1)
    assert structural_equal(i + 1, j + 1, map_free_vars=True)
    assert not structural_equal(i + j, i + i, map_free_vars=True)
    assert not structural_equal(i + i, i + j, map_free_vars=True)
    assert not structural_equal(i + 1, Var("k", "int64") + 1, map_free_vars=True)
    assert first_difference(i + 1, j + 1).reason == "free variables i and j"


def test_bound_variables_map_one_to_one():
    def nest(swap):
        a, i, j = Buffer.of("A", (8, 8)), Var("i"), Var("j")
        where = (j, i) if swap else (i, j)
        return For.serial(i, 8, For.serial(j, 8, BufferStore(a, as_expr(0.0), where)))

    assert same(nest(False), nest(False))
    assert not same(nest(False), nest(True))
    assert "defined in other places" in str(first_difference(nest(False), nest(True)))


def test_free_buffers_map_at_first_use():
    def store(first, second):
        return seq([BufferStore(b, as_expr(0.0), (as_expr(0),)) for b in (first, second)])

    a, b, c = (Buffer.of(x, (4,)) for x in "abc")
    assert same(store(a, b), store(b, c))
    assert not same(store(a, a), store(a, b))
    assert not same(store(a, b), store(a, Buffer.of("d", (5,))))


def test_lets_and_declarations():
    i, j, k = Var("i"), Var("j"), Var("k")
    assert same(Let(i, as_expr(1), i + i), Let(j, as_expr(1), j + j))
    assert not same(Let(i, k, i + k), Let(j, k, j + j))
    assert same(LetStmt(i, as_expr(1), Evaluate(i)), LetStmt(j, as_expr(1), Evaluate(j)))

    def view(source_first):
        a, b = Buffer.of("a", (8,)), Buffer.of("b", (4, 2))
        use = BufferStore(b, as_expr(0.0), (as_expr(0), as_expr(0)))
        other = BufferStore(a, as_expr(0.0), (as_expr(0),))
        return Allocate(a, DeclBuffer(b, a, use if source_first else other))

    assert same(view(True), view(True))
    assert not same(view(True), view(False))


def test_shared_memory_counts():
    a = Buffer.of("a", (8,))
    alias = evolve(a, shape=(as_expr(2), as_expr(4)))
    other = Buffer.of("b", (2, 4))
    use = Evaluate(as_expr(0))
    f, g = function([a, alias], [use], []), function([a, other], [use], [])
    assert not same(f, g)
    assert "share memory" in str(first_difference(f, g))
    assert "share memory" in str(first_difference(g, f))


def test_attributes_and_vectors():
    i, a = Var("i"), Buffer.of("A", (8,))
    body = BufferStore(a, as_expr(0.0), (as_expr(0),))
    assert not same(AttrStmt(a, "k", as_expr(1), body), AttrStmt(None, "k", as_expr(1), body))
    assert not same(AttrStmt(a, "k", as_expr(1), body), AttrStmt(a, "l", as_expr(1), body))
    assert not same(Ramp(i, as_expr(1), 4), Ramp(i, as_expr(1), 8))
    assert same(BufferRegion.point(a, [i]), BufferRegion.point(a, [i]))


def test_modules_compare_functions_by_name():
    f, g = matmul(), matmul(8)
    assert same(IRModule.of({"a": f, "b": g}), IRModule.of({"b": g, "a": f}))
    assert not same(IRModule.of({"a": f}), IRModule.of({"b": f}))
    assert not same(IRModule.of({"a": f}), IRModule.of({"a": f, "b": g}))


def test_the_assertion_shows_path_and_context():
    f = matmul()
    with pytest.raises(AssertionError) as caught:
        assert_structural_equal(f, edit(f, For, kind=ForKind.PARALLEL))
    text = str(caught.value)
    assert ".kind" in text and "for k in 0:16 [parallel]" in text and "left:" in text
    assert_structural_equal(f, matmul(names="xyz"))


def test_opaque_annotations_are_refused():
    with pytest.raises(TypeError, match="no canonical text"):
        structural_hash(matmul().with_attr("x", object()))


@given(funcs())
@settings(max_examples=40, deadline=None)
def test_copies_are_equal(func):
    clone = func.with_body(fresh_copy(func.body))
    assert same(func, clone)
    assert same(func, pickle.loads(pickle.dumps(func)))


def test_different_random_programs_differ():
    seen = {}
    for seed in range(150):
        func = random_func(random.Random(seed))
        seen.setdefault(structural_hash(func), []).append(func)
    for group in seen.values():
        for other in group[1:]:
            assert structural_equal(group[0], other)
    assert len(seen) > 120


def test_the_hash_is_the_same_in_every_process():
    code = "from ir.test_equal import *; print(structural_hash(matmul()))"
    here = os.path.dirname(os.path.dirname(__file__))
    root = os.path.dirname(here)
    env = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join([root, here])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == structural_hash(matmul()), done.stderr
