"""Quantized operators in ONNX Runtime, for comparison.

Each operator is a graph of one node; a matrix product has a node for each batch. Weights are
constants of the graph, which ONNX Runtime packs when it loads the graph. Results go to memory that
was allocated before. QGemm and the QLinearConv with channels last are operators of ONNX Runtime
itself; a ConvInteger takes channels first. The scales of X and Y are 1, so the scales of the
weights are the input S of the workloads.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from metasched import workloads
from metasched.hardware import usable_cpus
from metasched.report.peer_op import PeerOp, Shape
from metasched.workloads.quantized import ZEROS, folded_bias

Array = np.ndarray[Any, Any]
_OWN = "com.microsoft"


class _Graph:
    """A graph under construction: nodes, inputs with their values, constants and results."""

    def __init__(self) -> None:
        """Nothing stands in the graph yet."""
        self.helper = importlib.import_module("onnx.helper")
        self.numpy_helper = importlib.import_module("onnx.numpy_helper")
        self.nodes: list[Any] = []
        self.inputs: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.results: dict[str, Array] = {}

    def input(self, value: Array) -> str:
        """Enter an input with its value; gives its name."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = np.ascontiguousarray(value)
        return name

    def constant(self, value: Any, dtype: str | None = None) -> str:
        """Enter a constant; gives its name."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(np.asarray(value, dtype))
        return name

    def node(
        self, kind: str, inputs: Sequence[str], result: Array, domain: str = "", **attributes: Any
    ) -> None:
        """Add an operator that writes `result`."""
        name = f"y{len(self.results)}"
        self.results[name] = result
        made = self.helper.make_node(kind, inputs, [name], domain=domain, **attributes)
        self.nodes.append(made)

    def session(self) -> Any:
        """The graph loaded by ONNX Runtime, with a thread for each core."""
        runtime, helper = importlib.import_module("onnxruntime"), self.helper

        def values(arrays: Mapping[str, Array]) -> list[Any]:
            kind = helper.np_dtype_to_tensor_dtype
            return [
                helper.make_tensor_value_info(name, kind(a.dtype), a.shape)
                for name, a in arrays.items()
            ]

        held = [self.numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(
            self.nodes, "graph", values(self.inputs), values(self.results), held
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_OWN, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = len(usable_cpus())
        providers = ["CPUExecutionProvider"]
        return runtime.InferenceSession(model.SerializeToString(), options, providers)

    def ready(self, back: Callable[[list[Array]], Array]) -> PeerOp:
        """The loaded graph, bound to its inputs and to memory for its results."""
        session = self.session()
        binding = session.io_binding()
        ortvalue = importlib.import_module("onnxruntime").OrtValue.ortvalue_from_numpy
        places = {name: ortvalue(array) for name, array in self.results.items()}
        for name, array in self.inputs.items():
            binding.bind_ortvalue_input(name, ortvalue(array))
        for name, place in places.items():
            binding.bind_ortvalue_output(name, place)
        run = partial(session.run_with_iobinding, binding)
        return PeerOp(run, lambda _: back([place.numpy() for place in places.values()]))


def onnx_op(op: str, shape: Shape) -> PeerOp | None:
    """The operator on the workload's inputs; None where ONNX Runtime lacks it."""
    maker = OPS.get(op)
    if maker is None:
        return None
    return maker(_Graph(), shape, workloads.get(op).inputs(shape))


def _integer_mm(graph: _Graph, shape: Shape, arrays: list[Array]) -> PeerOp:
    x, w = arrays
    b, n, m, _ = shape
    names = [graph.input(x), graph.constant(w)]
    graph.node("MatMulInteger", names, np.zeros((b, n, m), np.int32))
    return graph.ready(lambda y: y[0])


def _qgmm(graph: _Graph, shape: Shape, arrays: list[Array]) -> PeerOp:
    for x, w, b, s in zip(*arrays, strict=True):
        kind = str(x.dtype)
        x_zero, y_zero = ZEROS[kind]
        bias = folded_bias(b[None], w[None], -x_zero)[0]
        names = [
            graph.input(x), graph.constant(1.0, "float32"), graph.constant(x_zero, kind),
            graph.constant(w), graph.constant(s), graph.constant(np.zeros_like(s), "int8"),
            graph.constant(bias), graph.constant(1.0, "float32"), graph.constant(y_zero, kind),
        ]  # fmt: skip
        graph.node("QGemm", names, np.zeros((shape[1], shape[2]), kind), _OWN)
    return graph.ready(np.stack)


def _conv_integer(graph: _Graph, shape: Shape, arrays: list[Array]) -> PeerOp:
    x, w = arrays[0].transpose(0, 3, 1, 2), arrays[1].transpose(3, 2, 0, 1)
    n, h, wide, co = workloads.get("c2d").output(shape).shape
    result = np.zeros((n, co, h, wide), np.int32)
    names = [graph.input(x), graph.constant(w)]
    graph.node("ConvInteger", names, result, **_window(shape, 1))
    return graph.ready(lambda y: y[0].transpose(0, 2, 3, 1))


def _qc2d(graph: _Graph, shape: Shape, arrays: list[Array]) -> PeerOp:
    return _qconv(graph, shape, arrays, workloads.get("qc2d").output(shape), 1)


def _qdep(graph: _Graph, shape: Shape, arrays: list[Array]) -> PeerOp:
    x, w, *rest = arrays
    result = workloads.get("qdep").output(shape)
    return _qconv(graph, shape, [x, w[:, :, None], *rest], result, shape[3])


def _qconv(graph: _Graph, shape: Shape, arrays: list[Array], result: Array, groups: int) -> PeerOp:
    """A convolution of weights [kh, kw, CI / groups, CO]."""
    x, w, b, s = arrays
    kind = str(x.dtype)
    x_zero, y_zero = ZEROS[kind]
    names = [
        graph.input(x), graph.constant(1.0, "float32"), graph.constant(x_zero, kind),
        graph.constant(w.transpose(3, 2, 0, 1)), graph.constant(s),
        graph.constant(np.zeros_like(s), "int8"), graph.constant(1.0, "float32"),
        graph.constant(y_zero, kind), graph.constant(folded_bias(b, w, -x_zero)),
    ]  # fmt: skip
    result = result.astype(kind)
    graph.node("QLinearConv", names, result, _OWN, channels_last=1, **_window(shape, groups))
    return graph.ready(lambda y: y[0])


def _window(shape: Shape, groups: int) -> dict[str, Any]:
    *_, k, stride, pad = shape
    return {"kernel_shape": [k, k], "strides": [stride] * 2, "pads": [pad] * 4, "group": groups}


OPS: dict[str, Callable[[_Graph, Shape, list[Array]], PeerOp]] = {
    "gmm_u8s8s32": _integer_mm, "gmm_s8s8s32": _integer_mm,
    "c2d_u8s8s32": _conv_integer, "c2d_s8s8s32": _conv_integer,
    **{f"{op}{end}": maker for op, maker in (("qgmm", _qgmm), ("qc2d", _qc2d), ("qdep", _qdep))
       for end in ("", "_s8")},
}  # fmt: skip
