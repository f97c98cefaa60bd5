"""Residual addition and LayerNorm in one kernel: Add, LayerNormalization -> SkipLayerNormalization.

onnxruntime only (SkipLayerNormFusion, verified on its CPU provider, same pass for CUDA): both operands of
rank 3 and of one shape, the sum read by nothing else (so pre-norm transformers keep both operators). A bias
added to one operand just before joins in. It also needs the shapes known by ONNX Runtime's own inference,
which a bound graph cannot tell.
"""

from __future__ import annotations

from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch
from gkestimator.operators.registry import LoweringOptions


def match_skip_layer_norm(view: GraphView, norm: int, options: LoweringOptions) -> Match:
    """The SkipLayerNormalization that ends at the LayerNormalization at index ``norm``."""
    op = view.operators[norm]
    add = view.source(view.operand(norm, 0), "Add")
    first = view.operand(add, 0)
    second = view.operand(add, 1)
    if len(first.shape) != 3 or first.shape != second.shape or first.is_weight or second.is_weight:
        raise Mismatch(
            f"{view.operators[add].name} adds {list(first.shape)} and {list(second.shape)}, "
            "expected one shape of rank 3"
        )
    if op.attributes.get("axis", -1) not in (-1, 2):
        raise Mismatch(f"{op.name} normalises from axis {op.attributes.get('axis')}, expected the last")
    if any(v is not None for v in op.outputs[1:]):
        raise Mismatch(f"{op.name} gives mean or deviation too")
    parameters = tuple(op.inputs[1:3])
    gamma = parameters[0] if parameters else None
    beta = parameters[1] if len(parameters) > 1 else None
    attributes = {"epsilon": op.attributes.get("epsilon", 1e-5)}
    for one, rest in ((first, second), (second, first)):
        biased = view.made_by(one, "Add")
        if biased is None:
            continue
        left = view.operand(biased, 0)
        right = view.operand(biased, 1)
        for source, bias in ((left, right), (right, left)):
            if bias.is_weight and bias.shape == one.shape[-1:] and source.shape == one.shape:
                try:
                    return fused(
                        view,
                        "skip_layer_norm",
                        (biased, add, norm),
                        op_type="SkipLayerNormalization",
                        domain="com.microsoft",
                        inputs=(source, rest, gamma, beta, bias),
                        attributes=attributes,
                    )
                except Mismatch:  # the biased sum is read elsewhere: it stays an operator of its own
                    continue
    return fused(
        view,
        "skip_layer_norm",
        (add, norm),
        op_type="SkipLayerNormalization",
        domain="com.microsoft",
        inputs=(first, second, gamma, beta),
        attributes=attributes,
    )
