"""Models of different opsets brought to one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx
import onnx.defs
import onnx.version_converter

from gkestimator.core.errors import GkestimatorError, LimitError, ModelError
from gkestimator.merging.editing.checking import FAILURES, check_editable
from gkestimator.merging.editing.form import EditableModel
from gkestimator.merging.editing.nodes import NodeReader
from gkestimator.merging.editing.opset_gaps import close_gaps
from gkestimator.merging.editing.ordering import order_nodes
from gkestimator.merging.editing.protos import least_ir, to_proto
from gkestimator.merging.editing.tensors import weight_of

LEAST_OPSET = 13  # Split, Squeeze and ReduceSum take sizes and axes as inputs from there on
_ADDED = "opset/"  # between the prefix and what a conversion calls its new values


def align_opsets(models: Sequence[EditableModel]) -> list[EditableModel]:
    """All ``models`` at the highest standard opset among them, at least 13, by ONNX's version converter.

    Other domains that two of them use must have one version. Only the graph is converted; weights stay where they
    are. Raises ModelError naming the model: a conversion that ONNX has not, or whose result is not valid.
    """
    target = max([LEAST_OPSET, *(m.opsets.get("", 1) for m in models)])
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
        newest = next(m.name for m in models if m.opsets.get("") == target)
        raise ModelError(
            f"{newest}: opset {target}; at most {known_to_onnx} was expected, which onnx {onnx.__version__} knows"
        )
    return [m if m.opsets.get("", 1) == target else _converted(m, target) for m in models]


def _converted(model: EditableModel, target: int) -> EditableModel:
    step = f"opset {model.opsets.get('', 1)} to {target}"
    try:
        proto = onnx.version_converter.convert_version(to_proto(model, large="inputs"), target)
        close_gaps(proto, model.opsets.get("", 1))
        found = _rebuilt(model, proto, target)
        check_editable(found)
    except RecursionError as e:
        raise LimitError(f"{model.name}: nested too deeply") from e
    except (*FAILURES, onnx.version_converter.ConvertError, GkestimatorError) as e:
        raise ModelError(f"{model.name}: cannot be converted from {step}: {_reason(e)}") from e
    return found


def _reason(error: Exception) -> str:
    """The complaint without the place in the library's source where it was made."""
    text = " ".join(str(error).split())
    if " Assertion " in text:
        return text.split(" Assertion ", 1)[-1]
    return text


def _rebuilt(model: EditableModel, proto: onnx.ModelProto, target: int) -> EditableModel:
    """``model`` with the nodes of ``proto``; values that the conversion has made get the model's prefix."""
    start = (model.prefixes[0] if model.prefixes else "") + _ADDED
    old = {*model.weights, *(i.name for i in model.inputs), *(w for n in model.nodes for w in n.writes)}

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
        nodes=order_nodes(reader.nodes, [*weights, *(i.name for i in model.inputs)]),
        weights=weights,
        opsets={**model.opsets, "": target},
        ir_version=max(model.ir_version, least_ir(proto.opset_import)),
    )
