"""Small models in memory."""

from __future__ import annotations

import onnx
import onnx.parser


def net(operators: str = "h = MatMul (x, w)\ny = Relu (h)", name: str = "net") -> onnx.ModelProto:
    """A model of 64 numbers a sample, in memory."""
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    model = onnx.parser.parse_model(
        f"{head}\nnet (float[N, 64] x, float[64, 64] w) => (float[N, 64] y) {{\n{operators}\n}}"
    )
    model.graph.name = name
    return model
