"""Operators of low precision in PyTorch, for comparison: bfloat16, float16 and quantized operators.

The weights of quantized operators are packed before, as in a model from `torch.ao.quantization`.
The scales of X and Y are 1, so the scales of the weights are the input S of the workloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from metasched.report.peer_op import PeerOp, Shape
from metasched.report.torch_ops import OPS, Maker, back, first, last
from metasched.workloads.quantized import ZEROS


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


LOW: dict[str, Maker] = {
    **{f"{op}_{kind}": OPS[op] for op in ("gmm", "c2d") for kind in ("bf16", "f16")},
    **{f"{op}_{kind}io": OPS[op] for op in ("gmm", "c2d") for kind in ("bf16", "f16")},
    "gmm_s8s8s32": _int_mm, "gmm_u8s8s32": _mixed_mm, "qgmm": _qgmm, "qc2d": _qc2d, "qdep": _qdep,
}  # fmt: skip
