"""Kernels that take packed weights: pack, call, refuse, export, and a C program that does it."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
from schedule.programs import matmul

from metasched.codegen.compile import compile_func
from metasched.errors import KernelError, LowerError
from metasched.lower.packing import PREPROC
from metasched.runtime.build import build
from metasched.runtime.export import find_compiler, header, signature_data, signature_of
from metasched.runtime.exported import load_exported
from metasched.schedule.schedule import Schedule
from metasched.script.parser import parse
from metasched.target import Target
from metasched.workloads import get

SHAPE = (1, 3, 8, 5)
X, Y = get("gmm").inputs(SHAPE)


def packed_gmm(name=None):
    """A product whose second operand lies in panels of four columns."""
    sch = Schedule(get("gmm").func(SHAPE, constant_weights=True))
    copy = sch.reindex_cache_read("Z", 1, "global", lambda b, n, m, k: (m // 4, k, m % 4))
    sch.annotate(copy, PREPROC, True)
    return build(sch, name=name)


@pytest.fixture(scope="module")
def kernel():
    return packed_gmm("product")


def result(kernel, weight):
    z = np.zeros((1, 3, 8), np.float32)
    kernel(X, weight, z)
    return z


def test_the_kernel_takes_what_pack_returns(kernel):
    packed = kernel.pack(Y)
    assert packed.shape == (2, 5, 4) and packed.dtype == np.float32
    assert packed.__array_interface__["data"][0] % 64 == 0
    assert np.array_equal(packed, Y[0].reshape(5, 2, 4).transpose(1, 0, 2))
    assert np.array_equal(result(kernel, packed), X @ Y)
    assert kernel.time(X, packed, np.zeros((1, 3, 8), np.float32), repeats=1).min > 0


def test_a_weight_that_is_not_packed_is_refused(kernel):
    with pytest.raises(KernelError) as caught:
        result(kernel, Y)
    assert str(caught.value) == (
        "product: argument 2 (Y): has shape (1, 5, 8), expected a NumPy array of float32 "
        "(2, 5, 4); Y is a constant weight, which the kernel takes packed: call its pack(Y) once "
        "and pass its result"
    )


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((Y.astype(np.float64),), "product.pack: argument 1 (Y): has dtype float64, expected"),
        ((Y[:, :4],), "product.pack: argument 1 (Y): has shape (1, 4, 8), expected"),
        ((Y.T,), "product.pack: argument 1 (Y): has shape (8, 5, 1), expected"),
        ((), "product.pack takes 1 arguments (Y), 0 given"),
        ((Y, Y), "product.pack takes 1 arguments (Y), 2 given"),
    ],
)
def test_pack_refuses_what_is_no_such_weight(kernel, weights, message):
    with pytest.raises(KernelError) as caught:
        kernel.pack(*weights)
    assert message in str(caught.value)


def test_pack_without_constant_weights_explains_how_to_mark_them():
    with pytest.raises(KernelError, match="gmm has no constant weights to pack; mark them"):
        build(get("gmm").func(SHAPE)).pack(Y)


def test_a_weight_that_no_schedule_packed_is_copied():
    plain = build(get("gmm").func(SHAPE, constant_weights=True))
    packed = plain.pack(Y)
    assert packed is not Y and np.array_equal(packed, Y)
    assert np.array_equal(result(plain, packed), X @ Y)


def test_symbolic_extents_come_from_the_weight():
    func = parse(
        """
@T.prim_func
def scale(w: T.handle, b: T.handle):
    T.func_attr({"layout_free_buffers": [0]})
    n = T.int32()
    W = T.match_buffer(w, (n * 2, 3), "float16")
    B = T.match_buffer(b, (n * 2, 3), "float16")
    for i, j in T.grid(n * 2, 3):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = W[vi, vj]
"""
    )
    kernel, w = build(func), np.arange(12, dtype=np.float16).reshape(4, 3)
    packed, b = kernel.pack(w), np.zeros((4, 3), np.float16)
    kernel(packed, b)
    assert np.array_equal(b, w)


def test_a_mark_that_cannot_be_is_refused_before_code_is_made():
    func = get("gmm").func(SHAPE).with_attr("layout_free_buffers", [3])
    with pytest.raises(LowerError, match="there is no parameter 3, the function has 3"):
        compile_func(func, Target.native())


def test_the_signature_survives_as_data(kernel):
    again = signature_of(json.loads(json.dumps(signature_data(kernel.signature))))
    assert again == kernel.signature and again.pack is not None
    data = signature_data(build(get("gmm").func(SHAPE)).signature)
    del data["weights"], data["pack"]  # as the first manifests were
    assert signature_of(data).pack is None


PROGRAM = """
#include <stdio.h>
#include "conv.h"
static float X[15], Y[40], packed[40], Z[24];
int main(void) {
    for (int i = 0; i < 15; ++i) X[i] = (float)(i % 7 - 3);
    for (int i = 0; i < 40; ++i) Y[i] = (float)(i % 5 - 2);
    if (product_pack(Y, packed)) return 1;
    if (product(X, packed, Z)) return 2;
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 8; ++j) {
            float sum = 0;
            for (int k = 0; k < 5; ++k) sum += X[i * 5 + k] * Y[k * 8 + j];
            if (sum != Z[i * 8 + j]) return 3;
        }
    puts("right");
    return 0;
}
"""


@pytest.mark.parametrize("kind", ["o", "so"])
def test_a_c_program_packs_and_calls(kernel, tmp_path, kind):
    files = kernel.export(tmp_path, "conv")
    data = json.loads(files.manifest.read_text())
    assert data["packed"] == [
        {"argument": "Y", "position": 1, "shape": [1, 5, 8], "packed_shape": [2, 5, 4]}
    ]
    text = files.header.read_text()
    assert "Y: float32 [2][5][4], row-major, read, packed by product_pack" in text
    assert "int32_t product_pack(const float *Y, float *Y_packed);" in text
    loaded = load_exported(tmp_path)
    assert loaded.signature == kernel.signature
    assert np.array_equal(result(loaded, loaded.pack(Y)), X @ Y)
    compiler = find_compiler()
    if compiler is None:  # then the object is still usable, from NumPy
        assert "no C compiler" in files.note
        return
    (tmp_path / "main.c").write_text(PROGRAM)
    source = str(files.object if kind == "o" else files.library)
    command = [compiler, "-Wall", "-Werror", "-o", "prog", "main.c", source, *data["link"]]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "prog"], capture_output=True, text=True, check=True)
    assert done.stdout == "right\n"


def test_a_header_without_constant_weights_has_no_pack():
    assert "pack" not in header(build(get("gmm").func(SHAPE)).signature, "gmm")


def test_layouts_of_equal_shape_are_told_apart():
    def packed(index_map):
        sch = Schedule(matmul.with_attr("layout_free_buffers", [1]))
        sch.annotate(sch.reindex_cache_read("C", 1, "global", index_map), PREPROC, True)
        return build(sch)

    a, b = np.arange(96.0, dtype="float32").reshape(8, 12), np.ones((12, 6), "float32")
    b[:, 0], c = np.arange(12), np.zeros((8, 6), "float32")
    one = packed(lambda i, j, k: (k % 2 * 6 + k // 2, j))
    two = packed(lambda i, j, k: (k % 3 * 4 + k // 3, j))
    for kernel, other in ((one, two), (two, one)):
        assert kernel.pack(b).shape == other.pack(b).shape
        kernel(a, kernel.pack(b).copy(), c)
        assert np.array_equal(c, a @ b)
        with pytest.raises(KernelError, match=r"\(B\): was packed by another kernel; B is a const"):
            kernel(a, other.pack(b), c)


def test_stored_packed_weights_are_recognised_by_their_shape(kernel, tmp_path):
    np.save(tmp_path / "y.npy", kernel.pack(Y))
    assert np.array_equal(result(kernel, np.load(tmp_path / "y.npy")), X @ Y)
