"""Operators of low precision in PyTorch, for comparison: bfloat16, float16 and quantized operators.

The weights of quantized operators are packed before, as in a model from `torch.ao.quantization`.
So are those of bfloat16 and float16 where oneDNN computes these types, as in a model that
`torch.compile` froze; batched products have no weights and are not packed.
The scales of X and Y are 1, so the scales of the weights are the input S of the workloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from metasched.report.peer_op import PeerOp, Shape
from metasched.report.torch_ops import OPS, Maker, back, first, last
from metasched.workloads.quantized import ZEROS


def _packs(torch: Any, kind: str) -> bool:
    """Whether oneDNN computes bfloat16 ("bf16") or float16 ("fp16") on this machine."""
    return bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{kind}_supported")())


def _half_mm(kind: str) -> Maker:
    """A product of 16-bit floats by weights that oneDNN has packed; batches by one plain call."""

    def make(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
        if len(t[0]) > 1 or not _packs(torch, kind):
            return OPS["gmm"](torch, shape, t)
        ops, x = torch.ops.mkldnn, t[0][0]
        packed = ops._reorder_linear_weight(t[1][0].T.contiguous(), len(x))
        product = partial(ops._linear_pointwise, x, packed, None, "none", [], "")
        return PeerOp(product, lambda y: y[None])

    return make


def _half_conv(kind: str) -> Maker:
    """A convolution of 16-bit floats by weights that oneDNN has packed."""

    def make(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
        if not _packs(torch, kind):
            return OPS["c2d"](torch, shape, t)
        ops, x, w = torch.ops.mkldnn, first(torch, t[0]), last(torch, t[1].permute(3, 2, 0, 1))
        window = [[shape[-1]] * 2, [shape[-2]] * 2, [1, 1], 1]
        packed = ops._reorder_convolution_weight(w, *window, [*x.shape])
        conv = partial(ops._convolution_pointwise, x, packed, None, *window, "none", [], "")
        return PeerOp(conv, back)

    return make


def _int_mm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    """int8 times int8, of each batch."""
    pairs = list(zip(t[0], t[1], strict=True))
    return PeerOp(lambda: [torch._int_mm(x, w) for x, w in pairs], torch.stack)


def _mixed_mm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    """uint8 times int8 in oneDNN, which gives the sums as float32."""
    calls = []
    for x, w in zip(t[0], t[1], strict=True):
        ones = torch.ones(w.shape[1])
        zeros = torch.zeros(w.shape[1], dtype=torch.int64)
        packed = torch.ops.onednn.qlinear_prepack(w.T.contiguous(), [*x.shape])
        calls.append(
            partial(
                torch.ops.onednn.qlinear_pointwise, x, 1.0, 0, packed, ones, zeros, None, 1.0, 0,
                torch.float32, "none", [], "",
            )
        )  # fmt: skip
    return PeerOp(lambda: [call() for call in calls], lambda y: torch.stack(y).int())


def _quantized(torch: Any, x: Any, w: Any, s: Any) -> tuple[Any, Any]:
    """X and the weights, output channels first, as quantized tensors."""
    data = torch._make_per_tensor_quantized_tensor(x, 1.0, ZEROS["uint8"][0])
    zeros = torch.zeros(len(s), dtype=torch.int64)
    return data, torch._make_per_channel_quantized_tensor(w, s.double(), zeros, 0)


def _bias(b: Any, w: Any, s: Any, axes: Sequence[int]) -> Any:
    """The bias as float32, without the part of the zero point, which PyTorch adds itself."""
    return (b + ZEROS["uint8"][0] * w.int().sum(axes)).float() * s


def _qgmm(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    calls = []
    for x, w, b, s in zip(*t, strict=True):
        data, kernel = _quantized(torch, x, w.T.contiguous(), s)
        packed = torch.ops.quantized.linear_prepack(kernel, _bias(b, w, s, [0]))
        linear = torch.ops.quantized.linear
        calls.append(partial(linear, data, packed, 1.0, ZEROS["uint8"][1]))
    return PeerOp(
        lambda: [call() for call in calls],
        lambda y: torch.stack([each.int_repr() for each in y]),
    )


def _qconv(torch: Any, shape: Shape, t: list[Any], groups: int) -> PeerOp:
    """A convolution of weights [kh, kw, CI / groups, CO]."""
    x, w, b, s = t
    *_, stride, pad = shape
    data, kernel = _quantized(torch, first(torch, x), last(torch, w.permute(3, 2, 0, 1)), s)
    packed = torch.ops.quantized.conv2d_prepack(
        kernel, _bias(b, w, s, [0, 1, 2]), [stride] * 2, [pad] * 2, [1, 1], groups
    )
    conv = partial(torch.ops.quantized.conv2d, data, packed, 1.0, ZEROS["uint8"][1])
    return PeerOp(conv, lambda y: back(y.int_repr()))


def _qc2d(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    return _qconv(torch, shape, t, 1)


def _qdep(torch: Any, shape: Shape, t: list[Any]) -> PeerOp:
    return _qconv(torch, shape, [t[0], t[1].unsqueeze(2), *t[2:]], shape[3])


HALVES = (("bf16", "bf16"), ("f16", "fp16"))
"""The types of 16-bit floats, as workloads name them and as oneDNN does."""
LOW: dict[str, Maker] = {
    **{f"gmm_{kind}{end}": _half_mm(name) for kind, name in HALVES for end in ("", "io")},
    **{f"c2d_{kind}{end}": _half_conv(name) for kind, name in HALVES for end in ("", "io")},
    "gmm_s8s8s32": _int_mm, "gmm_u8s8s32": _mixed_mm, "qgmm": _qgmm, "qc2d": _qc2d, "qdep": _qdep,
}  # fmt: skip
