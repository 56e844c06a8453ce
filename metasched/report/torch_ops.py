"""The operator suite in PyTorch, for comparison.

Data and weights are converted before into the layout that is fastest for PyTorch (channels last).
Only the operator itself is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metasched.report.peer_op import PeerOp, Shape

Maker = Callable[[Any, Shape, list[Any]], PeerOp]


def _gmm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    return PeerOp(lambda: torch.matmul(t[0], t[1]))


def first(torch: Any, x: Any) -> Any:
    """View [N, ..., C] as [N, C, ...] with the channels still last in memory."""
    return last(torch, x.permute(0, x.dim() - 1, *range(1, x.dim() - 1)))


def last(torch: Any, x: Any) -> Any:
    """Lay out [N, C, ...] with the channels last in memory, if PyTorch has such a format."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return x.contiguous() if form is None else x.contiguous(memory_format=form)


def back(y: Any) -> Any:
    """Turn [N, C, ...] into [N, ..., C]."""
    return y.permute(0, *range(2, y.dim()), 1)


def _conv(torch: Any, x: Any, w: Any, dims: int, **options: Any) -> PeerOp:
    """A convolution from channels-last data and weights [kernel..., CI, CO]."""
    data = first(torch, x)
    kernel = last(torch, w.permute(dims + 1, dims, *range(dims)))
    conv = getattr(torch.nn.functional, f"conv{dims}d")
    return PeerOp(lambda: conv(data, kernel, **options), back)


def _plain_conv(dims: int, with_dilation: bool = False, with_groups: bool = False) -> Maker:
    def make(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
        tail = shape[dims + 3 :]
        options: dict[str, Any] = {"stride": tail[1], "padding": tail[2]}
        if with_dilation:
            options["dilation"] = tail[3]
        if with_groups:
            options["groups"] = tail[4]
        return _conv(torch, t[0], t[1], dims, **options)

    return make


def _dep(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    """A convolution in as many groups as channels; weights [k, k, C]."""
    return _conv(
        torch, t[0], t[1].unsqueeze(2), 2, stride=shape[5], padding=shape[6], groups=shape[3]
    )


def _t2d(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    data, kernel = first(torch, t[0]), last(torch, t[1].permute(2, 3, 0, 1))
    transposed, stride, pad = torch.nn.functional.conv_transpose2d, shape[6], shape[7]
    return PeerOp(lambda: transposed(data, kernel, stride=stride, padding=pad), back)


def _cap(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    """CAP as a convolution: rows of the capsules are a batch, (channel, column) the channels."""
    n, h, w, ci, co, k, stride, pad = shape
    size = t[0].shape[-1]
    x = t[0].permute(0, 4, 3, 5, 1, 2).reshape(n * size, ci * size, h, w)
    v = t[1].permute(3, 5, 2, 4, 0, 1).reshape(co * size, ci * size, k, k)
    data, kernel, conv = last(torch, x), last(torch, v), torch.nn.functional.conv2d

    def back(y: Any) -> Any:
        parted = y.reshape(n, size, co, size, *y.shape[2:])
        return parted.permute(0, 4, 5, 2, 1, 3)

    return PeerOp(lambda: conv(data, kernel, stride=stride, padding=pad), back)


def _cbr(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    """Bias inside the convolution, scale and shift in one pass, the ReLU in place."""
    data, kernel = first(torch, t[0]), last(torch, t[1].permute(3, 2, 0, 1))
    bias, scale, shift = t[2], t[3].reshape(1, -1, 1, 1), t[4].reshape(1, -1, 1, 1)
    conv, stride, pad = torch.nn.functional.conv2d, shape[6], shape[7]

    def call() -> Any:
        y = conv(data, kernel, bias, stride=stride, padding=pad)
        return torch.addcmul(shift, y, scale).relu_()

    return PeerOp(call, back)


def _sfm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    return PeerOp(lambda: torch.softmax(t[0], dim=-1))


def _nrm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    return PeerOp(lambda: torch.linalg.vector_norm(t[0], dim=(1, 2)))


def _argmax(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    return PeerOp(lambda: torch.argmax(t[0], dim=1))


def _mean_variance(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    return PeerOp(lambda: torch.var_mean(t[0], dim=1, correction=0), lambda y: y[0])


def _attention(torch: Any, shape: Shape, t: list[Any], causal: bool = False) -> PeerOp:
    """PyTorch has a fused kernel for a batch of four dimensions."""
    attention = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (each.unsqueeze(0) for each in t)
    return PeerOp(lambda: attention(q, k, v, is_causal=causal), lambda y: y[0])


def _causal(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    return _attention(torch, shape, t, causal=True)


def _lse(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    return PeerOp(lambda: torch.logsumexp(t[0], dim=1))


def _lnm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    norm, size = torch.nn.functional.layer_norm, (shape[2],)
    return PeerOp(lambda: torch.matmul(norm(t[0], size, eps=1e-5), t[1]))


def _rms(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    norm, size = torch.nn.functional.rms_norm, (shape[1],)
    return PeerOp(lambda: norm(t[0], size, eps=1e-5))


def _tbg(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    return PeerOp(lambda: torch.matmul(t[0].permute(0, 2, 1, 3), t[1].permute(0, 2, 3, 1)))


OPS: dict[str, Maker] = {
    "gmm": _gmm, "c1d": _plain_conv(1), "c2d": _plain_conv(2), "c3d": _plain_conv(3),
    "dil": _plain_conv(2, with_dilation=True),
    "grp": _plain_conv(2, with_dilation=True, with_groups=True), "dep": _dep, "t2d": _t2d,
    "cap": _cap, "cbr": _cbr, "sfm": _sfm, "nrm": _nrm, "tbg": _tbg,
    "argmax": _argmax, "mean_variance": _mean_variance,
    "attention": _attention, "causal": _causal, "lse": _lse, "lnm": _lnm, "rms": _rms,
}  # fmt: skip
