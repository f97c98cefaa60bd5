"""What ONNX's version converter leaves as it was although the operator's meaning changed: said anew, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from onnx import AttributeProto, ModelProto, NodeProto, helper, numpy_helper

from gkestimator.core.errors import ModelError
from gkestimator.onnx_io.reading.names import graphs_of

_RESIZE_MODES = 11  # before it, Resize and Upsample had no modes: asymmetric places, cut off or rounded up
_ONE_AXIS = 13  # before it, Hardmax took all axes from the given one on as one


def close_gaps(proto: ModelProto, old: int) -> None:
    """Mend ``proto``, which the converter has made of opset ``old``, in place, also inside subgraphs.

    Resize (and Upsample, which becomes one) before opset 11 takes source places as ``i / scale``; from there on that
    has to be said. Nearest places were rounded down where an axis grows and up where it shrinks, as ONNX Runtime
    has it, so the scales must be known. Raises ModelError naming the node where the new opset cannot say the same.
    """
    scales = {t.name: t for t in proto.graph.initializer}
    for node in _all(proto.graph.node):
        if node.op_type == "Resize" and not node.domain and old < _RESIZE_MODES:
            rounding = "floor"
            if old == _RESIZE_MODES - 1 and _text(node, "mode", "nearest") == "nearest":
                if len(node.input) > 2:
                    known = scales.get(node.input[2])
                else:
                    known = None
                rounding = _rounding(node, None if known is None else numpy_helper.to_array(known))
            node.attribute.append(helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            node.attribute.append(helper.make_attribute("nearest_mode", rounding))
        elif node.op_type == "Hardmax" and not node.domain and old < _ONE_AXIS:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            if axis != -1:
                raise ModelError(f"node {node.name} (Hardmax): axis {axis}; -1 was expected before opset 13")


def _rounding(node: NodeProto, scales: np.ndarray | None) -> str:
    if scales is not None and (scales >= 1).all():
        return "floor"
    if scales is not None and (scales <= 1).all():
        return "ceil"
    found = "are not known" if scales is None else f"{scales.tolist()} grow and shrink"
    raise ModelError(
        f"node {node.name} (Resize): its scales {found}; constants that all grow or all shrink were expected"
    )


def _text(node: NodeProto, name: str, default: str) -> str:
    found = [a.s for a in node.attribute if a.name == name and a.type == AttributeProto.STRING]
    if found:
        return found[0].decode(errors="replace")
    return default


def _all(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from _all(graph.node)
