"""Small ONNX files that are planned and run as whole models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

__all__ = ["ENCODER", "MATRIX", "SPLITTER", "model_file"]

ENCODER = """
<ir_version: 8, opset_import: ["" : 17]>
encoder (int64[N, S] ids, int64[N, S] mask, int64[N, S] kinds) => (float[N, S, 4] hidden, float[N, S, 1] gate)
{
  flat = Shape(ids)
  one = Constant<value = int64[1] {1}>()
  two = Constant<value = int64[1] {2}>()
  zero = Constant<value_int = 0>()
  step = Constant<value_int = 1>()
  long = Slice(flat, one, two)
  length = Squeeze(long)
  places = Range(zero, length, step)
  shifted = Cast<to = 7>(kinds)
  tall = Unsqueeze(shifted, one)
  low = Squeeze(tall, one)
  a = Gather(words, ids)
  b = Gather(positions, places)
  c = Gather(types, low)
  ab = Add(a, b)
  abc = Add(ab, c)
  kept = Cast<to = 1>(mask)
  wide = Unsqueeze(kept, two)
  gated = Mul(abc, wide)
  gate = MatMul(gated, column)
  normal = LayerNormalization<axis = -1>(gated, scale, shift)
  hidden = MatMul(normal, square)
}
"""
"""Word, position and type embeddings, a mask, two outputs of which the last operator makes one."""

MATRIX = """
<ir_version: 8, opset_import: ["" : 17]>
matrix (float[N, K] x) => (float[N, M] y) { h = MatMul(x, w)  y = Relu(h) }
"""

SPLITTER = """
<ir_version: 8, opset_import: ["" : 17]>
splitter (float[2, 12] x) => (float[2, 4] y, float[2, 4] last)
{
  third = Constant<value_int = 4>()
  first = Constant<value_int = 0>()
  middle = Constant<value_int = 1>()
  end = Constant<value_int = -1>()
  pieces = SplitToSequence<axis = 1>(x, third)
  a = SequenceAt(pieces, first)
  b = SequenceAt(pieces, middle)
  last = SequenceAt(pieces, end)
  e = Exp(a)
  y = Sub(e, b)
}
"""


def model_file(path: Path, text: str, **weights: np.ndarray | tuple[int, ...]) -> Path:
    """Write the model that ``text`` describes; ``weights``: values, or shapes of float32 weights that lie in a file
    which is not there."""
    model = parser.parse_model(text)
    for name, value in weights.items():
        if isinstance(value, np.ndarray):
            model.graph.initializer.append(numpy_helper.from_array(value, name))
            continue
        tensor = model.graph.initializer.add(name=name, data_type=onnx.TensorProto.FLOAT, dims=value)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, said in (("location", "weights"), ("offset", "0"), ("length", str(4 * int(np.prod(value))))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, said
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path
