"""Allocate arrays aligned for the widest vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64
"""In bytes: a cache line, and the widest vector."""


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An uninitialised array whose first element lies at a multiple of ALIGNMENT bytes."""
    return _aligned(np.empty(_bytes(shape, dtype) + ALIGNMENT, np.uint8), shape, dtype)


def aligned_zeros(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array of zeros whose first element lies at a multiple of ALIGNMENT bytes."""
    return _aligned(np.zeros(_bytes(shape, dtype) + ALIGNMENT, np.uint8), shape, dtype)


def _bytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    return math.prod(shape) * dtype.itemsize


def _aligned(
    raw: np.ndarray[Any, Any], shape: Sequence[int], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    start = -raw.__array_interface__["data"][0] % ALIGNMENT
    found: np.ndarray[Any, Any] = raw[start : start + _bytes(shape, dtype)].view(dtype)
    return found.reshape(shape)
