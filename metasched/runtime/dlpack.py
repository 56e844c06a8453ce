"""Tensors of other libraries as NumPy arrays over the same memory, by the DLPack protocol.

NumPy's own reader knows no bfloat16, so this module reads the tensor's description itself. A
capsule that no consumer takes over frees its memory when it is deleted: keep the capsule to keep
the memory.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from metasched.errors import TypeMismatchError
from metasched.ir.dtype import DType

_HOSTS = {1: "the CPU", 3: "pinned memory"}  # DLDeviceType whose memory the CPU addresses
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}  # DLDataTypeCode
_NAMED = {6: "bool", 10: "float8_e4m3fn", 12: "float8_e5m2"}  # codes that are types of their own
_READ_ONLY = 1  # a flag of the newer description


class _Tensor(ctypes.Structure):
    """DLTensor, with its device and data type spread out."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned; the older DLManagedTensor begins with the tensor itself."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.restype, _is_capsule.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


class Unreadable(Exception):
    """A tensor cannot be read as an array; the text says why."""


def is_tensor(value: Any) -> bool:
    """Whether an object offers its memory by DLPack; NumPy's arrays need no reader."""
    return hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)


def array_of(value: Any) -> tuple[np.ndarray[Any, Any], Any]:
    """A tensor's memory as an array, and the object that owns the memory: keep it while the array
    is used.

    Raises Unreadable for memory of another device, of a data type that no program has, and for a
    tensor whose values are not what its memory holds.
    """
    negated = getattr(value, "is_neg", None)
    if callable(negated) and negated():  # PyTorch does not refuse: DLPack cannot say it
        raise Unreadable("has the values of its memory with the other sign; pass its resolve_neg()")
    try:
        capsule = _capsule(value)
    except Exception as error:  # the tensor's library says why it does not give its memory away
        raise Unreadable(f"cannot be read by DLPack: {error}") from None
    tensor, writable = _described(capsule)
    if tensor.device not in _HOSTS:
        raise Unreadable(f"lies in the memory of device {tensor.device}; move it to the CPU")
    dtype = _dtype(tensor)
    shape = tuple(tensor.shape[: tensor.ndim])
    steps = tensor.strides[: tensor.ndim] if tensor.strides else _compact(shape)
    strides = tuple(step * dtype.itemsize for step in steps)
    if 0 in shape:
        return np.empty(shape, dtype), capsule
    reach = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    low = sum(r for r in reach if r < 0)
    size = sum(r for r in reach if r > 0) - low + dtype.itemsize
    memory = (ctypes.c_char * size).from_address(tensor.data + tensor.byte_offset + low)
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, memory, -low, strides)
    array.flags.writeable = writable
    return array, capsule


def _capsule(value: Any) -> Any:
    """The tensor's capsule in the newer protocol, which marks read-only memory; else in the older
    protocol."""
    try:
        return value.__dlpack__(max_version=(1, 0))
    except TypeError:  # a library older than the versioned protocol
        return value.__dlpack__()


def _described(capsule: Any) -> tuple[_Tensor, bool]:
    """The tensor that a capsule describes, and whether it may be written."""
    if _is_capsule(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise Unreadable(f"has version {managed.major} of DLPack; only version 1 can be read")
        return managed.tensor, not managed.flags & _READ_ONLY
    if _is_capsule(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer_of(capsule, b"dltensor")), True
    raise Unreadable(f"gives no DLPack capsule but {type(capsule).__name__}")


def _dtype(tensor: _Tensor) -> np.dtype[Any]:
    name = _NAMED.get(tensor.code) or f"{_KINDS.get(tensor.code, 'type')}{tensor.bits}"
    try:
        if tensor.lanes == 1 and tensor.bits >= 8:
            return DType(name).numpy
    except TypeMismatchError:
        name = f"{name} (code {tensor.code})"
    raise Unreadable(f"has elements of {name} in {tensor.lanes} lanes, which no program has")


def _compact(shape: tuple[int, ...]) -> list[int]:
    """The strides of a row-major tensor, which a description may omit."""
    steps, step = [], 1
    for extent in reversed(shape):
        steps.append(step)
        step *= extent
    return steps[::-1]
