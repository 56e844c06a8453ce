"""The operator suite in PyTorch, for comparison; None where PyTorch or the operator is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metasched import workloads

Maker = Callable[[Any, tuple[int, ...], list[Any]], Callable[[], Any]]


def torch_call(op: str, shape: tuple[int, ...], *, compiled: bool) -> Callable[[], Any] | None:
    """A call that runs the operator once on PyTorch's own layout (channels last)."""
    try:
        import torch
    except ImportError:
        return None
    maker = _OPS.get(op)
    if maker is None:
        return None
    work = workloads.get(op)
    tensors = [torch.from_numpy(a) for a in work.inputs(shape, integers=False)]
    call = maker(torch, shape, tensors)
    if compiled:
        call = torch.compile(call)

    def run() -> Any:
        with torch.no_grad():
            return call()

    return run


def _gmm(torch: Any, shape: tuple[int, ...], t: list[Any]) -> Callable[[], Any]:
    return lambda: torch.matmul(t[0], t[1])


def _conv(torch: Any, x: Any, w: Any, dims: int, **options: Any) -> Callable[[], Any]:
    """A convolution from channels-last data and weights with the channels last."""
    move = (0, dims + 1, *range(1, dims + 1))
    formats = {1: None, 2: torch.channels_last, 3: torch.channels_last_3d}
    data = x.permute(*move)
    kernel = w.permute(dims + 1, dims, *range(dims))
    if formats[dims] is not None:
        data = data.contiguous(memory_format=formats[dims])
        kernel = kernel.contiguous(memory_format=formats[dims])
    conv = getattr(torch.nn.functional, f"conv{dims}d")
    return lambda: conv(data, kernel, **options)


def _plain_conv(dims: int, with_dilation: bool = False, with_groups: bool = False) -> Maker:
    def make(torch: Any, shape: tuple[int, ...], t: list[Any]) -> Callable[[], Any]:
        tail = shape[dims + 3 :]
        stride, pad = tail[1], tail[2]
        options: dict[str, Any] = {"stride": stride, "padding": pad}
        if with_dilation:
            options["dilation"] = tail[3]
        if with_groups:
            options["groups"] = tail[4]
        return _conv(torch, t[0], t[1], dims, **options)

    return make


def _sfm(torch: Any, shape: tuple[int, ...], t: list[Any]) -> Callable[[], Any]:
    return lambda: torch.softmax(t[0], dim=-1)


def _nrm(torch: Any, shape: tuple[int, ...], t: list[Any]) -> Callable[[], Any]:
    return lambda: torch.linalg.vector_norm(t[0], dim=(1, 2))


def _tbg(torch: Any, shape: tuple[int, ...], t: list[Any]) -> Callable[[], Any]:
    return lambda: torch.matmul(t[0].permute(0, 2, 1, 3), t[1].permute(0, 2, 3, 1))


_OPS: dict[str, Maker] = {
    "gmm": _gmm,
    "c1d": _plain_conv(1),
    "c2d": _plain_conv(2),
    "c3d": _plain_conv(3),
    "dil": _plain_conv(2, with_dilation=True),
    "grp": _plain_conv(2, with_dilation=True, with_groups=True),
    "sfm": _sfm,
    "nrm": _nrm,
    "tbg": _tbg,
}
