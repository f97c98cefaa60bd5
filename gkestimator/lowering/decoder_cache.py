"""Keys and values that a decoder keeps: eager torch frees them only when the forward pass returns.

Implementations of causal language models (transformers' ``use_cache``, on by default) collect the keys and values of
every layer for the next token. An exported graph without them as outputs does not say so, but the process that is
measured holds them: each is a view, so the storage that the projection wrote lives until the end. Encoders keep none:
from the first attention on whose mask is causal, an attention's keys and values are taken as kept.
"""

from __future__ import annotations

from collections.abc import Iterator

from gkestimator.core.graph import Operator, OperatorGraph, Tensor, Value
from gkestimator.lowering.patterns.attention import is_causal
from gkestimator.lowering.patterns.view import GraphView, is_scalar

_MOVES = frozenset(
    {
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Identity",
        "Transpose",
        "Expand",
        "Slice",
        "Split",
        "SplitToSequence",
        "SequenceAt",
        "Cast",
        "CastLike",
    }
)
_BETWEEN = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Max", "Reshape", "Cast", "CastLike", "Identity"})
_AFTER = frozenset({"Cast", "CastLike", "Identity", "Dropout", "Reshape", "Where", "Mul"})
_DEPTH = 12


def cached_values(graph: OperatorGraph) -> list[Value]:
    """Return the keys and values that a decoder keeps, each as the tensor that its layer computed, in order."""
    attentions = [
        at
        for at, op in enumerate(graph.operators)
        if not op.domain and op.op_type in ("Softmax", "Attention")
    ]
    if not attentions:
        return []
    view = GraphView.of(graph)
    kept: list[Value] = []
    causal = False
    for at in attentions:
        operands = _operands(view, at)
        if operands is None:
            continue
        keys, values, masks, declared = operands
        if not causal:
            # Once one attention is causal the model is a decoder, and all that follow are kept.
            causal = declared or any(is_causal(view, mask) for mask in masks)
        if causal:
            kept += [_computed(view, keys), _computed(view, values)]
    return kept


def _operands(view: GraphView, at: int) -> tuple[Tensor, Tensor, list[Tensor], bool] | None:
    """Return keys, values and masks of the attention at operator ``at``, and whether it says itself that it is
    causal.
    """
    op = view.operators[at]
    if op.op_type == "Attention":
        tensors = [value for value in op.inputs[:4] if isinstance(value, Tensor)]
        if len(tensors) < 3:
            return None
        return tensors[1], tensors[2], tensors[3:], op.attributes.get("is_causal", 0) == 1
    masks: list[Tensor] = []
    scores = op.inputs[0]
    if isinstance(scores, Tensor):
        first = _product(view, scores, scores.elements, masks, _DEPTH)
    else:
        first = None
    second = _weighted(view, op.outputs[0])
    if first is None or second is None:
        return None
    keys = view.operators[first].inputs[1]
    values = view.operators[second].inputs[1]
    if not isinstance(keys, Tensor) or not isinstance(values, Tensor):
        return None
    if keys.is_weight or values.is_weight:
        return None
    return keys, values, masks, False


def _product(view: GraphView, value: Tensor, elements: int, masks: list[Tensor], depth: int) -> int | None:
    """Return the product of queries and keys that ``value`` is made of; what joins it on the way goes to ``masks``."""
    at = view.producer.get(value.name)
    if at is None or depth == 0 or value.elements != elements:
        return None
    op = view.operators[at]
    if op.op_type == "MatMul" and not op.domain:
        return at
    if op.op_type not in _BETWEEN or op.domain:
        return None
    tensors = [v for v in op.inputs if isinstance(v, Tensor)]
    for tensor in tensors:
        product = _product(view, tensor, elements, masks, depth - 1)
        if product is not None:
            masks += [other for other in tensors if other is not tensor and other.elements > 1]
            return product
    return None


def _weighted(view: GraphView, value: Value | None) -> int | None:
    """Return the product of the probabilities ``value`` with the values."""
    for _ in range(_DEPTH):
        if value is None:
            return None
        after: int | None = None
        for reader in view.consumers.get(value.name, ()):
            op = view.operators[reader]
            first = op.inputs[0]
            if op.op_type == "MatMul" and first is not None and first.name == value.name:
                return reader
            if op.op_type in _AFTER and not op.domain:
                after = reader
        if after is None:
            return None
        value = view.operators[after].outputs[0]
    return None


def _computed(view: GraphView, value: Value) -> Value:
    """Return ``value`` before views, copies and scaling: what the layer hands to its cache."""
    while True:
        at = view.producer.get(value.name)
        if at is None:
            return value
        op = view.operators[at]
        source = next(_sources(op), None)
        if op.domain or source is None:
            return value
        value = source


def _sources(op: Operator) -> Iterator[Value]:
    if op.op_type in _MOVES:
        yield from (v for v in op.inputs[:1] if v is not None)
    elif op.op_type == "Gather":
        index = op.inputs[1]
        if isinstance(index, Tensor) and index.elements == 1 and op.inputs[0] is not None:
            yield op.inputs[0]
    elif op.op_type in ("Mul", "Div"):
        tensors = [v for v in op.inputs if isinstance(v, Tensor)]
        others = [v for v in tensors if not is_scalar(v)]
        if len(others) == 1 and len(tensors) == 2:
            yield others[0]
