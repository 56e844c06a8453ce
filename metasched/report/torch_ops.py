"""The operator suite in PyTorch, for comparison; None where PyTorch or the operator is missing.

Data and weights are brought into the layout that PyTorch likes best (channels last) beforehand, as
a user who cares would; only the operator itself is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metasched import workloads

Shape = tuple[int, ...]
Call = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class TorchOp:
    """An operator ready to run.

    Attributes:
        call: runs it once on PyTorch's own layout.
        back: its result in the layout of our workload.
    """

    call: Call
    back: Callable[[Any], Any] = lambda y: y


Maker = Callable[[Any, Shape, list[Any]], TorchOp]


def torch_call(op: str, shape: Shape, *, compiled: bool) -> Call | None:
    """A call that runs the operator once; None without PyTorch or the operator."""
    made = torch_op(op, shape, integers=False)
    if made is None:
        return None
    torch, chosen = made
    call = torch.compile(chosen.call) if compiled else chosen.call

    def run() -> Any:
        with torch.no_grad():
            return call()

    return run


def torch_op(op: str, shape: Shape, *, integers: bool) -> tuple[Any, TorchOp] | None:
    """PyTorch and the operator on the workload's inputs; None where either is missing."""
    maker = OPS.get(op)
    if maker is None:
        return None
    try:
        import torch
    except ImportError:
        return None
    arrays = workloads.get(op).inputs(shape, integers=integers)
    return torch, maker(torch, shape, [torch.from_numpy(a) for a in arrays])


def _gmm(torch: Any, shape: Shape, t: list[Any]) -> TorchOp:
    return TorchOp(lambda: torch.matmul(t[0], t[1]))


def _first(torch: Any, x: Any) -> Any:
    """View [N, ..., C] as [N, C, ...] with the channels still last in memory."""
    return _last(torch, x.permute(0, x.dim() - 1, *range(1, x.dim() - 1)))


def _last(torch: Any, x: Any) -> Any:
    """Lay out [N, C, ...] with the channels last in memory, if PyTorch has such a format."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return x.contiguous() if form is None else x.contiguous(memory_format=form)


def _back(y: Any) -> Any:
    """Turn [N, C, ...] into [N, ..., C]."""
    return y.permute(0, *range(2, y.dim()), 1)


def _conv(torch: Any, x: Any, w: Any, dims: int, **options: Any) -> TorchOp:
    """A convolution from channels-last data and weights [kernel..., CI, CO]."""
    data = _first(torch, x)
    kernel = _last(torch, w.permute(dims + 1, dims, *range(dims)))
    conv = getattr(torch.nn.functional, f"conv{dims}d")
    return TorchOp(lambda: conv(data, kernel, **options), _back)


def _plain_conv(dims: int, with_dilation: bool = False, with_groups: bool = False) -> Maker:
    def make(torch: Any, shape: Shape, t: list[Any]) -> TorchOp:
        tail = shape[dims + 3 :]
        options: dict[str, Any] = {"stride": tail[1], "padding": tail[2]}
        if with_dilation:
            options["dilation"] = tail[3]
        if with_groups:
            options["groups"] = tail[4]
        return _conv(torch, t[0], t[1], dims, **options)

    return make


def _dep(torch: Any, shape: Shape, t: list[Any]) -> TorchOp:
    """A convolution in as many groups as channels; weights [k, k, C]."""
    return _conv(
        torch, t[0], t[1].unsqueeze(2), 2, stride=shape[5], padding=shape[6], groups=shape[3]
    )


def _t2d(torch: Any, shape: Shape, t: list[Any]) -> TorchOp:
    data, kernel = _first(torch, t[0]), _last(torch, t[1].permute(2, 3, 0, 1))
    transposed, stride, pad = torch.nn.functional.conv_transpose2d, shape[6], shape[7]
    return TorchOp(lambda: transposed(data, kernel, stride=stride, padding=pad), _back)


def _cap(torch: Any, shape: Shape, t: list[Any]) -> TorchOp:
    """The rows of the capsules are a batch, (channel, column) the channels of a convolution."""
    n, h, w, ci, co, k, stride, pad = shape
    size = t[0].shape[-1]
    x = t[0].permute(0, 4, 3, 5, 1, 2).reshape(n * size, ci * size, h, w)
    v = t[1].permute(3, 5, 2, 4, 0, 1).reshape(co * size, ci * size, k, k)
    data, kernel, conv = _last(torch, x), _last(torch, v), torch.nn.functional.conv2d

    def back(y: Any) -> Any:
        parted = y.reshape(n, size, co, size, *y.shape[2:])
        return parted.permute(0, 4, 5, 2, 1, 3)

    return TorchOp(lambda: conv(data, kernel, stride=stride, padding=pad), back)


def _cbr(torch: Any, shape: Shape, t: list[Any]) -> TorchOp:
    """Bias inside the convolution, scale and shift in one pass, the ReLU in place."""
    data, kernel = _first(torch, t[0]), _last(torch, t[1].permute(3, 2, 0, 1))
    bias, scale, shift = t[2], t[3].reshape(1, -1, 1, 1), t[4].reshape(1, -1, 1, 1)
    conv, stride, pad = torch.nn.functional.conv2d, shape[6], shape[7]

    def call() -> Any:
        y = conv(data, kernel, bias, stride=stride, padding=pad)
        return torch.addcmul(shift, y, scale).relu_()

    return TorchOp(call, _back)


def _sfm(torch: Any, shape: Shape, t: list[Any]) -> TorchOp:
    return TorchOp(lambda: torch.softmax(t[0], dim=-1))


def _nrm(torch: Any, shape: Shape, t: list[Any]) -> TorchOp:
    return TorchOp(lambda: torch.linalg.vector_norm(t[0], dim=(1, 2)))


def _tbg(torch: Any, shape: Shape, t: list[Any]) -> TorchOp:
    return TorchOp(lambda: torch.matmul(t[0].permute(0, 2, 1, 3), t[1].permute(0, 2, 3, 1)))


OPS: dict[str, Maker] = {
    "gmm": _gmm, "c1d": _plain_conv(1), "c2d": _plain_conv(2), "c3d": _plain_conv(3),
    "dil": _plain_conv(2, with_dilation=True),
    "grp": _plain_conv(2, with_dilation=True, with_groups=True), "dep": _dep, "t2d": _t2d,
    "cap": _cap, "cbr": _cbr, "sfm": _sfm, "nrm": _nrm, "tbg": _tbg,
}  # fmt: skip
