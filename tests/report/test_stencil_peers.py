"""The stencils in Numba and PyTorch against the NumPy references, at small shapes."""

from __future__ import annotations

import numpy as np
import pytest

from metasched import workloads
from metasched.report import peers
from metasched.report.torch_peer import torch_op
from metasched.report.torch_stencils import STENCILS

SHAPE = (7, 19)


def _expected(op):
    work = workloads.get(op)
    inputs = work.inputs(SHAPE, integers=False)
    return inputs, work.reference(SHAPE, *inputs)


@pytest.mark.skipif(bool(peers.what_is_missing("numba")), reason="Numba is an optional peer")
@pytest.mark.parametrize("op", workloads.STENCILS)
def test_numba_computes_what_numpy_does(op):
    inputs, expected = _expected(op)
    made = peers.numba_op(op, SHAPE, inputs, compiled=False)
    np.testing.assert_allclose(made.run(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(bool(peers.what_is_missing("torch")), reason="PyTorch is an optional peer")
@pytest.mark.parametrize("op", STENCILS)
def test_pytorch_computes_what_numpy_does(op):
    _, expected = _expected(op)
    _, made = torch_op(op, SHAPE, integers=False)
    np.testing.assert_allclose(made.run().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_pytorch_lacks_sums_of_16_bits():
    assert set(STENCILS) == set(workloads.STENCILS) - {"blur_u16"}
