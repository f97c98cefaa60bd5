"""x * sigmoid(x) (SiLU, Swish) and x * sigmoid(1.702 x) (QuickGELU).

torch: F.silu is one kernel. QuickGELU is python arithmetic (CLIP's QuickGELUActivation): no match.
onnxruntime (QuickGeluFusion, verified on its CPU provider, same pass for CUDA): both become QuickGelu, any
alpha. A gate on another tensor (squeeze and excitation) is two operators in both.

HardSwish x * clip(x + 3, 0, 6) / 6, and x * HardSigmoid(x), which is the same.

torch: F.hardswish, one kernel. onnxruntime fuses neither (verified on its CPU provider).

Mish: x * tanh(softplus(x)).

torch: F.mish, one kernel. onnxruntime fuses nothing here (verified on its CPU provider).

value * a * b + c: torch.addcmul.

torch: one kernel, in the widest of its operands' types (autocast converts the others first). Its exporters write the
factor ``value`` even where it is 1, which no author multiplies by: that is what tells the call from python arithmetic
(``x * scale + shift``). ResMLP's affine layers and ConvNeXt V2's response normalisation call it.

Relu followed by Clip from zero: onnxruntime keeps the Clip alone (FuseReluClip: provider-independent,
verified).
"""

from __future__ import annotations

from dataclasses import replace

from gkestimator.core.graph import Operator, Tensor
from gkestimator.lowering.patterns.match import FUSED_DOMAIN, Match, fused
from gkestimator.lowering.patterns.view import GraphView, Indices, Mismatch, require_value, scalar_value
from gkestimator.operators.builders import (
    cast_kernel,
    distinct,
    elementwise_kernel,
    optional_input,
    output_at,
    tensor_inputs,
)
from gkestimator.operators.registry import Lowered, LoweringOptions, launched, lowering_rule


def match_sigmoid_gate(view: GraphView, sigmoid: int, options: LoweringOptions) -> Match:
    """Return the SiLU or QuickGELU around the Sigmoid at index ``sigmoid``."""
    argument = view.operand(sigmoid, 0)
    gated = view.next(sigmoid, "Mul")
    x = view.partner(gated, sigmoid)
    if x.name == argument.name:
        if options.runtime == "onnxruntime":
            return _quick_gelu(view, [sigmoid, gated], x, 1.0)
        return fused(
            view,
            "silu",
            [sigmoid, gated],
            op_type="Swish",
            version=24,
            inputs=(x,),
            attributes={"alpha": 1.0},
        )
    scaled = view.made_by(argument, "Mul")
    if scaled is None:
        raise Mismatch(f"the sigmoid of {argument.name} gates another tensor, {x.name}")
    base, constant = view.split_scalar(scaled)
    if base.name != x.name:
        raise Mismatch(f"the sigmoid of {base.name} gates another tensor, {x.name}")
    if options.runtime != "onnxruntime":
        raise Mismatch("x * sigmoid(alpha x) is python arithmetic: eager mode launches each operator")
    alpha = scalar_value(constant)
    if alpha is None:
        raise Mismatch(f"{constant.name} has no known value, expected a constant alpha")
    return _quick_gelu(view, [scaled, sigmoid, gated], x, alpha)


def _quick_gelu(view: GraphView, covered: Indices, x: Tensor, alpha: float) -> Match:
    return fused(
        view,
        "quick_gelu",
        covered,
        op_type="QuickGelu",
        domain="com.microsoft",
        inputs=(x,),
        attributes={"alpha": alpha},
    )


def match_hard_sigmoid_swish(view: GraphView, gate: int, options: LoweringOptions) -> Match:
    """Return x * HardSigmoid(x) with slope 1/6 around the HardSigmoid at index ``gate``."""
    op = view.operators[gate]
    alpha = op.attributes.get("alpha", 0.2)
    beta = op.attributes.get("beta", 0.5)
    sixth = isinstance(alpha, float) and abs(alpha - 1 / 6) <= 1e-4
    if not sixth or beta != 0.5:
        raise Mismatch(f"{op.name} has slope {alpha} and offset {beta}, expected 1/6 and 0.5")
    product = view.next(gate, "Mul")
    x = view.operand(gate, 0)
    if view.partner(product, gate).name != x.name:
        raise Mismatch(f"{op.name} gates another tensor than {x.name}")
    return fused(view, "hard_swish", [gate, product], op_type="HardSwish", version=14, inputs=(x,))


def match_clip_swish(view: GraphView, clip: int, options: LoweringOptions) -> Match:
    """Return x * clip(x + 3, 0, 6) / 6 (or times 1/6, before or after the product) around the Clip at index
    ``clip``.
    """
    _bounds(view, clip)
    shift = view.source(view.operand(clip, 0), "Add")
    x, three = view.split_scalar(shift)
    require_value(three, 3.0)
    first = view.next(clip, "Mul", "Div")
    second = view.next(first, "Mul", "Div")
    seen_x = False
    for index, value in ((first, view.result(clip)), (second, view.result(first))):
        rest = view.other(index, value)
        op = view.operators[index]
        if rest.name == x.name and op.op_type == "Mul":
            seen_x = True
        elif op.op_type == "Div" and view.reads(index, 0, value):
            require_value(rest, 6.0)
        else:
            require_value(rest, 1 / 6)
    if not seen_x:
        raise view.mismatch(second, f"does not multiply by {x.name}")
    return fused(
        view, "hard_swish", [shift, clip, first, second], op_type="HardSwish", version=14, inputs=(x,)
    )


def _bounds(view: GraphView, clip: int) -> None:
    op = view.operators[clip]
    bounds: list[object] = []
    for position, name in ((1, "min"), (2, "max")):
        bound = optional_input(op, position)
        if bound is None:
            bounds.append(op.attributes.get(name))
        else:
            bounds.append(scalar_value(bound))
    if bounds != [0.0, 6.0]:
        raise Mismatch(f"{op.name} clips to {bounds[0]}..{bounds[1]}, expected 0..6")


def match_mish(view: GraphView, softplus: int, options: LoweringOptions) -> Match:
    """Return the Mish that starts at the Softplus at index ``softplus``."""
    x = view.operand(softplus, 0)
    tanh = view.next(softplus, "Tanh")
    product = view.next(tanh, "Mul")
    if view.partner(product, tanh).name != x.name:
        raise view.mismatch(product, f"does not multiply by {x.name}")
    return fused(view, "mish", [softplus, tanh, product], op_type="Mish", version=18, inputs=(x,))


def match_relu_clip(view: GraphView, relu: int, options: LoweringOptions) -> Match:
    """Return the Clip that swallows the Relu at index ``relu``."""
    clip = view.next(relu, "Clip")
    op = view.operators[clip]
    if "min" in op.attributes:
        lower = op.attributes["min"]
    else:
        if len(op.inputs) > 1 and op.inputs[1] is not None:
            lower = scalar_value(view.operand(clip, 1))
        else:
            lower = None
    if not isinstance(lower, (int, float)):
        raise Mismatch(f"{op.name} has no constant lower bound")
    return fused(
        view,
        "relu_clip",
        (relu, clip),
        op_type="Clip",
        version=op.version,
        inputs=(view.operand(relu, 0), *op.inputs[1:]),
        attributes=op.attributes,
    )


def match_addcmul(view: GraphView, add: int, options: LoweringOptions) -> Match:
    """Return the torch.addcmul that ends at the Add at index ``add``."""
    for scaled, base in view.either_order(add):
        scaling = view.made_by(scaled, "Mul")
        if scaling is None or scaled.shape != view.result(add).shape:
            continue
        product, factor = view.split_scalar(scaling)
        if scalar_value(factor) != 1.0:
            continue
        multiplying = view.source(product, "Mul")
        left, right = view.either_order(multiplying)[0]
        return fused(
            view,
            "addcmul",
            (multiplying, scaling, add),
            op_type="Addcmul",
            domain=FUSED_DOMAIN,
            inputs=(base, left, right),
        )
    raise view.mismatch(add, "adds no product that is multiplied by 1")


@lowering_rule("Addcmul", domain=FUSED_DOMAIN, kind="elementwise")
def lower_addcmul(op: Operator, options: LoweringOptions) -> Lowered:
    """Return three operations an element, after the conversions that autocast makes of narrower operands."""
    result = output_at(op)
    casts = []
    operands = []
    for operand in distinct(tensor_inputs(op)):
        if operand.dtype is not result.dtype:
            casts.append(cast_kernel(operand, result.dtype))
            operand = replace(operand, dtype=result.dtype)
        operands.append(operand)
    kernel = elementwise_kernel("addcmul", operands, (result,), flops_per_element=3)
    return launched(*casts, kernel, calls=1 + len(casts))
