"""Read the types that a file declares of its tensors, and find weights that it declares but does not hold."""

from __future__ import annotations

from itertools import chain

import onnx

from gkestimator.onnx_io.reading.tensors import declared_type, tensor_type, value_kind
from gkestimator.operators.registry import DeclaredType, TensorType


class DeclaredTypes(dict[str, DeclaredType]):
    """Hold declared types by name, converted on first use: most models never need them."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        super().__init__()
        self._protos = {v.name: v for group in (graph.value_info, graph.output) for v in group}

    def __missing__(self, name: str) -> DeclaredType:
        proto = self._protos.get(name)
        declared = DeclaredType(None, None)
        if proto is not None:
            kind, tensor = value_kind(proto.type)
            if kind == "tensor":
                declared = declared_type(tensor, f"value {name!r}")
        self[name] = declared
        return declared


def absent_weights(graph: onnx.GraphProto) -> dict[str, TensorType]:
    """Return the tensors that nodes read, nothing defines, and the file declares with numbers for all dimensions.

    They are weights of a file whose weights were taken out together with their initializers.
    """
    defined = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    defined.update(chain.from_iterable(node.output for node in graph.node))
    read = dict.fromkeys(chain.from_iterable(node.input for node in graph.node))
    declared = DeclaredTypes(graph)
    absent = {}
    for name in read:
        if not name or name in defined:
            continue
        said = declared[name]
        if said.dtype is None or said.shape is None:
            continue
        sizes = tuple([size for size in said.shape if isinstance(size, int)])
        if len(sizes) == len(said.shape):
            absent[name] = tensor_type(said.dtype, sizes, f"value {name!r}")
    return absent
