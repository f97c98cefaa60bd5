"""Bring models of different opsets to one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.version_converter
from onnx import AttributeProto, ModelProto, NodeProto, helper, numpy_helper

from gkestimator.core.errors import GkestimatorError, LimitError, ModelError
from gkestimator.merging.editing.combining import order_nodes
from gkestimator.merging.editing.form import EditableModel
from gkestimator.merging.editing.nodes import NodeReader
from gkestimator.merging.editing.protos import FAILURES, check_editable, least_ir, to_proto
from gkestimator.merging.editing.tensors import weight_of
from gkestimator.onnx_io.reading.names import graphs_of
from gkestimator.onnx_io.reading.schemas import complaint

LEAST_OPSET = 13  # Split, Squeeze and ReduceSum take sizes and axes as inputs from there on
_ADDED = "opset/"  # between the prefix and what a conversion calls its new values


def align_opsets(models: Sequence[EditableModel]) -> list[EditableModel]:
    """Return all ``models`` at the highest standard opset among them, at least 13, by ONNX's version
    converter.

    Other domains that two of them use must have one version. Only the graph is converted; weights stay where
    they are. Raises ModelError naming the model: a conversion that ONNX has not, or whose result is not
    valid.
    """
    target = max([LEAST_OPSET, *(model.opsets.get("", 1) for model in models)])
    first: dict[str, tuple[int, str]] = {}
    for model in models:
        for domain, version in model.opsets.items():
            known, owner = first.setdefault(domain, (version, model.name))
            if domain and known != version:
                raise ModelError(
                    f"{model.name}: opset {version} of domain {domain}; {known} was expected, as in {owner}"
                )
    known_to_onnx = onnx.defs.onnx_opset_version()
    if target > known_to_onnx:
        newest = next(model.name for model in models if model.opsets.get("") == target)
        raise ModelError(
            f"{newest}: opset {target}; at most {known_to_onnx} was expected, which onnx {onnx.__version__} knows"
        )
    return [model if model.opsets.get("", 1) == target else _converted(model, target) for model in models]


def _converted(model: EditableModel, target: int) -> EditableModel:
    old = model.opsets.get("", 1)
    try:
        proto = to_proto(model, large="inputs")
        # The converter believes attributes: a text for a list ends the process.
        onnx.checker.check_model(proto)
        proto = onnx.version_converter.convert_version(proto, target)
        close_gaps(proto, old)
        converted = _rebuilt(model, proto, target)
        check_editable(converted)
    except RecursionError as e:
        raise LimitError(f"{model.name}: nested too deeply") from e
    except (*FAILURES, onnx.version_converter.ConvertError, GkestimatorError) as e:
        raise ModelError(
            f"{model.name}: cannot be converted from opset {old} to {target}: {complaint(e)}"
        ) from e
    return converted


def _rebuilt(model: EditableModel, proto: onnx.ModelProto, target: int) -> EditableModel:
    """Return ``model`` with the nodes of ``proto``; values that the conversion has made get the model's
    prefix.
    """
    start = _ADDED
    if model.prefixes:
        start = model.prefixes[0] + _ADDED
    old = set(model.defined())

    def name(text: str) -> str:
        if text in old or text.startswith(model.prefixes):
            return text
        return start + text

    weights = dict(model.weights)
    for tensor in proto.graph.initializer:
        if tensor.name not in weights:
            tensor.name = name(tensor.name)
            weights[tensor.name] = weight_of(tensor, tensor.name, None, f"initializer {tensor.name!r}")
    reader = NodeReader(None, name)
    for node in proto.graph.node:
        reader.add(node, weights)
    return replace(
        model,
        nodes=order_nodes(reader.nodes, [*weights, *(value.name for value in model.inputs)]),
        weights=weights,
        opsets={**model.opsets, "": target},
        ir_version=max(model.ir_version, least_ir(proto.opset_import)),
    )


_RESIZE_MODES = 11  # before it, Resize and Upsample had no modes: asymmetric places, cut off or rounded up
_ONE_AXIS = 13  # before it, Hardmax took all axes from the given one on as one


def close_gaps(proto: ModelProto, old: int) -> None:
    """Mend ``proto``, which the converter has made of opset ``old``, in place, also inside subgraphs.

    Resize (and Upsample, which becomes one) before opset 11 takes source places as ``i / scale``; from there
    on that has to be said. Nearest places were rounded down where an axis grows and up where it shrinks, as
    ONNX Runtime has it, so the scales must be known. Raises ModelError naming the node where the new opset
    cannot say the same.
    """
    scales = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in _all(proto.graph.node):
        if node.domain:
            continue
        if node.op_type == "Resize" and old < _RESIZE_MODES:
            rounding = "floor"
            if old == _RESIZE_MODES - 1 and _text(node, "mode", "nearest") == "nearest":
                known: np.ndarray | None = None
                if len(node.input) > 2 and node.input[2] in scales:
                    known = numpy_helper.to_array(scales[node.input[2]])
                rounding = _rounding(node, known)
            node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            node.attribute.append(helper.make_attribute("nearest_mode", rounding))
        # the last axis is one axis in both meanings
        elif node.op_type == "Hardmax" and old < _ONE_AXIS:
            attribute = _attribute(node, "axis")
            if attribute is None:
                axis = 1
            else:
                axis = attribute.i
            if axis != -1:
                raise ModelError(f"node {node.name} (Hardmax): axis {axis}; -1 was expected before opset 13")


def _rounding(node: NodeProto, scales: np.ndarray | None) -> str:
    if scales is None:
        problem = "are not known"
    elif (scales >= 1).all():
        return "floor"
    elif (scales <= 1).all():
        return "ceil"
    else:
        problem = f"{scales.tolist()} grow and shrink"
    raise ModelError(
        f"node {node.name} (Resize): its scales {problem}; constants that all grow or all shrink were expected"
    )


def _attribute(node: NodeProto, name: str) -> AttributeProto | None:
    return next((attribute for attribute in node.attribute if attribute.name == name), None)


def _text(node: NodeProto, name: str, default: str) -> str:
    attribute = _attribute(node, name)
    if attribute is None or attribute.type != AttributeProto.STRING:
        return default
    return str(attribute.s.decode(errors="replace"))


def _all(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from _all(graph.node)
