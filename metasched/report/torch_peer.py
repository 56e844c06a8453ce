"""An operator in PyTorch with its inputs; None if PyTorch or the operator is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from metasched import workloads
from metasched.report.peer_op import Call, PeerOp, Shape
from metasched.report.polybench.torch_ops import POLYBENCH
from metasched.report.torch_low import LOW
from metasched.report.torch_ops import OPS
from metasched.report.torch_stencils import STENCILS


def torch_call(op: str, shape: Shape, *, compiled: bool) -> Call | None:
    """A call that runs the operator once; None without PyTorch or the operator."""
    made = torch_op(op, shape, integers=False)
    if made is None:
        return None
    torch, chosen = made
    if compiled:
        chosen = replace(chosen, call=torch.compile(chosen.call))

    def run() -> Any:
        with torch.no_grad():
            return chosen.run()

    return run


def torch_op(op: str, shape: Shape, *, integers: bool) -> tuple[Any, PeerOp] | None:
    """PyTorch and the operator on the workload's inputs; None if either is missing."""
    maker = (OPS | LOW | STENCILS | POLYBENCH).get(op)
    if maker is None:
        return None
    try:
        import torch
    except ImportError:
        return None
    arrays = workloads.get(op).inputs(shape, integers=integers)
    return torch, maker(torch, shape, [_tensor(torch, a) for a in arrays])


def _tensor(torch: Any, array: np.ndarray[Any, Any]) -> Any:
    """The array as a tensor; PyTorch does not read NumPy's bfloat16."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
