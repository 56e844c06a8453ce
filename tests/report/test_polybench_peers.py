"""PolyBench in SciPy, Numba and PyTorch against the NumPy references, at small shapes."""

from __future__ import annotations

import numpy as np
import pytest
from test_polybench import SMALL as SHAPES

from metasched import workloads
from metasched.report import peers
from metasched.report.polybench.torch_ops import POLYBENCH

# (peer, kernel) -> positions of the arrays to compare, where the library leaves others as they
# were or with other contents.
COMPARED = {
    ("scipy", "poly.lu"): (), ("scipy", "poly.ludcmp"): (1, 2), ("torch", "poly.ludcmp"): (1, 2),
    ("numba", "poly.gramschmidt"): (0, 2),
}  # fmt: skip
BY_QR = ("scipy", "torch")


def arrays_of(op):
    work = workloads.get(op)
    inputs = work.inputs(SHAPES[op], integers=False)
    return [each.copy() for each in inputs], work.expected(inputs, SHAPES[op])


def assert_equal(peer, op, arrays, expected):
    for n in COMPARED.get((peer, op), range(len(arrays))):
        np.testing.assert_allclose(arrays[n], expected[n], rtol=1e-5, atol=1e-6)


def test_numba_has_every_kernel():
    assert set(SHAPES) == set(workloads.POLYBENCH)


@pytest.mark.skipif(bool(peers.what_is_missing("numba")), reason="Numba is an optional peer")
@pytest.mark.parametrize("op", SHAPES)
def test_numba_computes_what_numpy_does(op):
    arrays, expected = arrays_of(op)
    peers.numba_op(op, SHAPES[op], arrays, compiled=False).run()
    assert_equal("numba", op, arrays, expected)


@pytest.mark.skipif(bool(peers.what_is_missing("numba")), reason="Numba is an optional peer")
def test_numba_lacks_the_operators_of_the_suite():
    assert peers.numba_op("gmm", (1, 4, 4, 4), []) is None
    assert peers.scipy_op("gmm", (1, 4, 4, 4), []) is None


@pytest.mark.skipif(bool(peers.what_is_missing("scipy")), reason="SciPy is an optional peer")
@pytest.mark.parametrize("op", SHAPES)
def test_scipy_computes_what_numpy_does(op):
    arrays, expected = arrays_of(op)
    before = [each.copy() for each in arrays]
    made = peers.scipy_op(op, SHAPES[op], arrays)
    if made is None:
        pytest.skip("SciPy lacks the operation")
    made.run()
    if op == "poly.lu":
        (factors,) = arrays  # of the transpose
        product = (np.tril(factors.T, -1) + np.eye(6)) @ np.triu(factors.T)
        np.testing.assert_allclose(product.T, before[0])
    if op == "poly.gramschmidt":
        assert_qr(before[0], arrays, expected)
    else:
        assert_equal("scipy", op, arrays, expected)


@pytest.mark.skipif(bool(peers.what_is_missing("torch")), reason="PyTorch is an optional peer")
@pytest.mark.parametrize("op", POLYBENCH)
def test_pytorch_computes_what_numpy_does(op):
    import torch

    arrays, expected = arrays_of(op)
    before = arrays[0].copy()
    made = POLYBENCH[op](torch, SHAPES[op], [torch.from_numpy(each) for each in arrays])
    result = made.back(made.run())
    if op == "poly.cholesky":
        arrays[0] = result[0].numpy() + np.triu(before, 1)
    if op == "poly.lu":
        arrays[0] = result[0].numpy()
    if op == "poly.gramschmidt":
        assert_qr(before, arrays, expected)
    else:
        assert_equal("torch", op, arrays, expected)


def assert_qr(matrix, arrays, expected):
    """Q and R as in the reference, but for the signs of the columns of Q."""
    signs = np.sign(np.diag(arrays[1])) * np.sign(np.diag(expected[1]))
    np.testing.assert_allclose(arrays[2] * signs, expected[2])
    np.testing.assert_allclose(signs[:, None] * arrays[1], np.triu(expected[1]), atol=1e-12)
    np.testing.assert_allclose(arrays[2] @ np.triu(arrays[1]), matrix)
