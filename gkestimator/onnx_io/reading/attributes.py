"""Convert node attributes to plain Python values; references to a function's attributes resolved."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx

from gkestimator.core.errors import ModelError
from gkestimator.onnx_io.reading import limits
from gkestimator.onnx_io.reading.program import Constant
from gkestimator.onnx_io.reading.tensors import constant, sparse_constant

_A = onnx.AttributeProto
_EMPTY: Mapping[str, onnx.AttributeProto] = {}
# No operator on a GPU reads these; the type of an Optional is known by its use.
_UNREAD = (_A.TENSORS, _A.GRAPHS, _A.SPARSE_TENSORS, _A.TYPE_PROTO, _A.TYPE_PROTOS)
_CHARACTERS_OF_AN_ITEM = 64


class Converted(NamedTuple):
    """Hold a node's plain values, subgraphs and tensors, each by attribute name."""

    plain: dict[str, Any]
    graphs: dict[str, onnx.GraphProto]
    tensors: dict[str, Constant]


def _text(raw: bytes, items: limits.BoundedCount) -> str:
    items.add(len(raw) // _CHARACTERS_OF_AN_ITEM)
    return raw.decode("utf-8", "replace")


def convert_attributes(
    protos: Iterable[onnx.AttributeProto],
    what: str,
    items: limits.BoundedCount,
    given: Mapping[str, onnx.AttributeProto] = _EMPTY,
) -> Converted:
    """Return plain values, subgraphs and tensors of a node, each by attribute name; ``items`` counts all of a model.

    ``given`` are the attributes of the function call around the node: a reference to one that is absent there
    leaves the attribute out, so that its default holds. Tensors appear among the plain values too where their
    value is known.
    """
    converted = Converted({}, {}, {})
    plain = converted.plain
    for proto in protos:
        items.add(1)
        name = proto.name
        if type(name) is not str:  # protobuf hands out what is not UTF-8 as bytes
            raise ModelError(f"{what} has an attribute whose name is not UTF-8 text")
        if proto.ref_attr_name:
            referred = given.get(proto.ref_attr_name)
            if referred is None:
                continue
            proto = referred
        kind = proto.type or _guess(proto)
        if kind == _A.INT:
            plain[name] = proto.i
        elif kind == _A.FLOAT:
            plain[name] = proto.f
        elif kind == _A.STRING:
            plain[name] = _text(proto.s, items)
        elif kind == _A.INTS:
            items.add(len(proto.ints))
            plain[name] = tuple(proto.ints)
        elif kind == _A.FLOATS:
            items.add(len(proto.floats))
            plain[name] = tuple(proto.floats)
        elif kind == _A.STRINGS:
            items.add(len(proto.strings))
            plain[name] = tuple([_text(string, items) for string in proto.strings])
        else:
            _convert_message(proto, kind, name, what, converted)
    return converted


def _convert_message(
    proto: onnx.AttributeProto, kind: int, name: str, what: str, converted: Converted
) -> None:
    """Add a tensor or a subgraph under ``name``; a referred attribute has another name of its own."""
    if kind == _A.TENSOR:
        tensor = constant(proto.t, f"{what}, attribute {name}")
        converted.tensors[name] = tensor
        converted.plain[name] = tensor.value
    elif kind == _A.GRAPH:
        converted.graphs[name] = proto.g
    elif kind == _A.SPARSE_TENSOR:
        converted.tensors[name] = sparse_constant(proto.sparse_tensor, f"{what}, attribute {name}")
        converted.plain[name] = None
    elif kind not in _UNREAD:
        raise ModelError(f"{what} has attribute {name} of the unknown type {kind}")


def _guess(proto: onnx.AttributeProto) -> int:
    """Return the type of an attribute in files older than the ``type`` field (IR version 1)."""
    for field, kind in (("i", _A.INT), ("f", _A.FLOAT), ("s", _A.STRING), ("t", _A.TENSOR), ("g", _A.GRAPH)):
        if proto.HasField(field):
            return int(kind)
    if len(proto.floats):
        return int(_A.FLOATS)
    if len(proto.strings):
        return int(_A.STRINGS)
    return int(_A.INTS)  # perhaps an empty list


def attribute_key(value: Any) -> Hashable:
    """Return a hashable stand-in for an attribute value; equal only for equal values of one type."""
    kind = type(value)
    if kind is int or kind is str or kind is tuple:
        return value  # type: ignore[no-any-return]
    if kind is float:
        return (float, value)  # 1.0 and 1 are equal keys otherwise
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return (value.shape, tuple(map(str, value.ravel())))
        return (value.dtype.str, value.shape, value.tobytes())
    return None
