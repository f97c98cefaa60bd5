"""What the model families are made of: draws, tensors, and a graph that grows node by node."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Draw = Callable[[str, tuple[int, ...], float], np.ndarray]
FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


def drawn(seed: int) -> Draw:
    """Normal values of the given scale; the same for the same seed and name, whatever is drawn before."""

    def draw(name: str, shape: tuple[int, ...], scale: float) -> np.ndarray:
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        return generator.standard_normal(shape, np.float32) * np.float32(scale)

    return draw


def stored(name: str, array: np.ndarray, dtype: int) -> TensorProto:
    """``array`` as an initializer of a floating type (bfloat16 by rounding to nearest even)."""
    if dtype == BFLOAT16:
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return helper.make_tensor(name, dtype, array.shape, rounded.tobytes(), raw=True)
    return numpy_helper.from_array(np.ascontiguousarray(array, helper.tensor_dtype_to_np_dtype(dtype)), name)


def values(tensor: TensorProto) -> np.ndarray:
    """An initializer's values; floating ones as float32."""
    if tensor.data_type == BFLOAT16:
        bits = np.frombuffer(tensor.raw_data, np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(tuple(tensor.dims))
    found = numpy_helper.to_array(tensor)
    return found.astype(np.float32) if found.dtype == np.float16 else found


class Graph:
    """Nodes and initializers as they are added; ``add`` returns the name of the node's first output."""

    def __init__(self, seed: int, dtype: int, opset: int, weights: Draw | None) -> None:
        self.dtype, self.opset, self.draw = dtype, opset, weights or drawn(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}

    def add(self, op_type: str, *inputs: str, name: str, outputs: int = 1, **attributes: object) -> str:
        names = [f"{name}_output_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, name, **attributes))
        return names[0]

    def weight(self, name: str, shape: Sequence[int], scale: float, mean: float = 0.0) -> str:
        values = self.draw(name, tuple(shape), scale) + np.float32(mean)
        self.initializers[name] = stored(name, values, self.dtype)
        return name

    def number(self, value: float) -> str:
        """A scalar of the model's type."""
        name = f"number_{value:g}"
        self.initializers.setdefault(name, stored(name, np.array(value, np.float32), self.dtype))
        return name

    def whole(self, *values: int) -> str:
        """A list of int64."""
        name = "whole_" + "_".join(map(str, values))
        self.initializers.setdefault(name, numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def model(
        self, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, name, inputs, outputs, list(self.initializers.values()))
        opsets = [helper.make_opsetid("", self.opset)]
        ir_version = max(8, helper.find_min_ir_version_for(opsets))
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, producer_name="families")

    # What several families are made of.

    def mean(self, x: str, name: str, *axes: int) -> str:
        if self.opset < 18:
            return self.add("ReduceMean", x, name=name, axes=list(axes), keepdims=1)
        return self.add("ReduceMean", x, self.whole(*axes), name=name, keepdims=1)

    def normalised(self, x: str, name: str, width: int, decomposed: bool) -> str:
        scale = self.weight(f"{name}.weight", [width], 0.1, 1.0)
        shift = self.weight(f"{name}.bias", [width], 0.1)
        if not decomposed and self.opset >= 17:
            return self.add("LayerNormalization", x, scale, shift, name=name, axis=-1, epsilon=1e-5)
        centred = self.add("Sub", x, self.mean(x, f"{name}/mean", -1), name=f"{name}/centre")
        squared = self.add("Pow", centred, self.number(2.0), name=f"{name}/pow")
        variance = self.add(
            "Add", self.mean(squared, f"{name}/variance", -1), self.number(1e-5), name=f"{name}/eps"
        )
        unit = self.add(
            "Div", centred, self.add("Sqrt", variance, name=f"{name}/sqrt"), name=f"{name}/divide"
        )
        return self.add(
            "Add", self.add("Mul", unit, scale, name=f"{name}/scale"), shift, name=f"{name}/shift"
        )

    def linear(self, x: str, name: str, rows: int, columns: int) -> str:
        """MatMul and Add, as exporters write a linear layer on three dimensions."""
        product = self.add(
            "MatMul",
            x,
            self.weight(f"{name}.weight", [rows, columns], rows**-0.5),
            name=f"{name}/MatMul",
        )
        return self.add("Add", self.weight(f"{name}.bias", [columns], 0.1), product, name=f"{name}/Add")

    def head(self, x: str, name: str, rows: int, columns: int) -> str:
        """Gemm with transB, as exporters write a linear layer on two dimensions."""
        weight = self.weight(f"{name}.weight", [columns, rows], rows**-0.5)
        return self.add("Gemm", x, weight, self.weight(f"{name}.bias", [columns], 0.1), name=name, transB=1)

    def conv(
        self, x: str, name: str, shape: Sequence[int], *, stride: int = 1, group: int = 1, folded: bool = True
    ) -> str:
        """Conv with "same" pads; batch normalisation folded into it, or a node of its own."""
        pad = shape[2] // 2
        geometry = {
            "kernel_shape": [shape[2]] * 2,
            "strides": [stride] * 2,
            "pads": [pad] * 4,
            "dilations": [1, 1],
            "group": group,
        }
        weight = self.weight(f"{name}.weight", shape, (2 / math.prod(shape[1:])) ** 0.5)
        if folded:
            return self.add(
                "Conv", x, weight, self.weight(f"{name}.bias", shape[:1], 0.1), name=name, **geometry
            )
        y = self.add("Conv", x, weight, name=name, **geometry)
        count = shape[:1]
        norm = [
            self.weight(f"{name}.bn.weight", count, 0.1, 1.0),
            self.weight(f"{name}.bn.bias", count, 0.1),
            self.weight(f"{name}.bn.mean", count, 0.1),
            self.weight(f"{name}.bn.var", count, 0.02, 1.0),
        ]
        return self.add("BatchNormalization", y, *norm, name=f"{name}.bn", epsilon=1e-5)


class Heads:
    """Parts [batch, sequence, width] into heads and joins them again."""

    def __init__(
        self, g: Graph, batch: int | str, sequence: int | str, heads: int, size: int, reshape: str
    ) -> None:
        self.g, self.heads, self.size, self.reshape = g, heads, size, reshape
        self.ends = (batch, sequence)
        if reshape == "static" and not all(isinstance(end, int) for end in self.ends):
            raise ValueError("reshape='static' needs batch and sequence as numbers")

    def split(self, x: str, name: str, transposed: bool) -> str:
        y = self._reshape(x, f"{name}/split", self.heads, self.size)
        perm = [0, 2, 3, 1] if transposed else [0, 2, 1, 3]
        return self.g.add("Transpose", y, name=f"{name}/Transpose", perm=perm)

    def join(self, x: str, name: str) -> str:
        y = self.g.add("Transpose", x, name=f"{name}/joined", perm=[0, 2, 1, 3])
        return self._reshape(y, f"{name}/join", self.heads * self.size)

    def _reshape(self, x: str, name: str, *tail: int) -> str:
        g = self.g
        if self.reshape == "shape":
            shape = g.add("Shape", x, name=f"{name}/Shape")
            ends = [g.add("Gather", shape, g.whole(i), name=f"{name}/Gather_{i}", axis=0) for i in (0, 1)]
            wanted = g.add("Concat", *ends, g.whole(*tail), name=f"{name}/Concat", axis=0)
        elif self.reshape == "static":
            wanted = g.whole(*(int(end) for end in self.ends), *tail)
        else:
            wanted = g.whole(0, -1, *tail)
        return g.add("Reshape", x, wanted, name=f"{name}/Reshape")
