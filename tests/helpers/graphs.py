"""ONNX graphs of others."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper


def linear_graph(path, *, width=4, weight=1):
    """A graph of four observations that pushes to the side the pole leans to: argmax of (0, weight (x3 + x4))."""
    weights = np.zeros((width, 2), np.float32)
    weights[-2:, 1] = weight
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("ArgMax", ["y"], ["a"], axis=1, keepdims=0)],
        "leaning",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("a", TensorProto.INT64, ["batch"])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path)
    return str(path)
