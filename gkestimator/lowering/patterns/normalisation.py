"""LayerNorm and RMSNorm written out: (x - mean) / sqrt(mean((x - mean)^2) + eps) * scale + shift, and without
the mean.

torch: F.layer_norm is one kernel, with or without affine, however the square and the division are written,
and through casts. RMSNorm has no match: transformers' LlamaRMSNorm and its kin are python arithmetic (pow,
mean, add, rsqrt, mul, mul), which eager mode launches one by one; the pattern ``rsqrt`` joins Sqrt and
Reciprocal.
onnxruntime (LayerNormFusion, SimplifiedLayerNormFusion, verified on its CPU provider, same passes for CUDA):
LayerNorm needs the last axis, Pow, a Div by the root, scale and shift; RMSNorm needs Pow, a Div (by the root,
or of 1 by the root) and a scale. A Reciprocal is not recognised. LayerNorm without shift becomes RMSNorm of
(x - mean).

Residual addition and LayerNorm in one kernel: Add, LayerNormalization -> SkipLayerNormalization.

onnxruntime only (SkipLayerNormFusion, verified on its CPU provider, same pass for CUDA): both operands of
rank 3 and of one shape, the sum read by nothing else (so pre-norm transformers keep both operators). A bias
added to one operand just before joins in. It also needs the shapes known by ONNX Runtime's own inference,
which a bound graph cannot tell.

GroupNorm as exporters write it: Reshape to (N, groups, rest), InstanceNormalization, Reshape back[, Mul,
Add].

torch: F.group_norm, one call. onnxruntime runs the pieces (its GroupNorm comes from a separate offline tool).

Reciprocal square root: Sqrt, Reciprocal, or 1 / Sqrt. torch.rsqrt is one kernel; onnxruntime has no such
operator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gkestimator.core.graph import Attribute, Operator, Tensor
from gkestimator.lowering.patterns.match import FUSED_DOMAIN, Match, fused
from gkestimator.lowering.patterns.view import (
    GraphView,
    Indices,
    Mismatch,
    is_per_channel,
    reduced_axes,
    require_trailing,
    require_value,
    scalar_value,
)
from gkestimator.operators.builders import elementwise_kernel, input_at, output_at
from gkestimator.operators.registry import Lowered, LoweringOptions, Shape, lowering_rule


@dataclass(slots=True)
class _Core:
    """Hold d / sqrt(mean(d^2) + eps): the operators, d, the result, and what tells the exporters' forms apart."""

    covered: Indices
    centred: Tensor
    result: Tensor
    axis: int
    epsilon: float
    power: bool
    divides: bool


def match_layer_norm(view: GraphView, root: int, options: LoweringOptions) -> Match:
    """Return the LayerNorm around the Sqrt at index ``root``."""
    core = _core(view, root)
    centred, casts = view.past_casts(core.centred)
    subtract = view.source(centred, "Sub")
    x = view.operand(subtract, 0)
    mean_value = view.operand(subtract, 1)
    mean = view.source(mean_value, "ReduceMean")
    x, mean_casts = view.common_source(view.operand(mean, 0), x)
    rank = len(x.shape)
    axis = require_trailing(reduced_axes(view, mean), rank, view.name(mean))
    if axis != core.axis:
        raise view.mismatch(mean, "and the variance are over different axes")
    covered = [*core.covered, *casts, subtract, mean, *mean_casts]
    extent = x.shape[core.axis :]
    tail, scale, shift = _affine(view, core.result, extent)
    covered += tail
    if options.runtime == "onnxruntime":
        if not (core.power and core.divides):
            raise Mismatch("onnxruntime fuses only Pow for the square and a Div by the root")
        if scale is None or shift is None:
            raise Mismatch("onnxruntime fuses LayerNorm only with scale and shift")
        if core.axis != rank - 1:
            raise Mismatch("onnxruntime fuses LayerNorm only over the last axis")
    attributes: dict[str, Attribute] = {"axis": core.axis - rank, "epsilon": core.epsilon}
    return fused(
        view,
        "layer_norm",
        covered,
        op_type="LayerNormalization",
        version=17,
        inputs=(x, scale, shift),
        attributes=attributes,
    )


def match_rms_norm(view: GraphView, root: int, options: LoweringOptions) -> Match:
    """Return the RMSNorm around the Sqrt at index ``root``."""
    core = _core(view, root)
    if options.runtime == "torch":
        raise Mismatch("RMSNorm is python arithmetic in transformers: eager mode launches each operator")
    limited = options.runtime == "onnxruntime"
    if limited and not (core.power and core.divides):
        raise Mismatch("onnxruntime fuses only Pow for the square and a Div by the root")
    x = core.centred
    extent = x.shape[core.axis :]
    tail, scale, _ = _affine(view, core.result, extent, shifted=False)
    if limited and (scale is None or core.axis != len(x.shape) - 1):
        raise Mismatch("onnxruntime fuses RMSNorm only with a scale and over the last axis")
    return fused(
        view,
        "rms_norm",
        [*core.covered, *tail],
        op_type="RMSNormalization",
        version=23,
        inputs=(x, scale),
        attributes={"axis": core.axis - len(x.shape), "epsilon": core.epsilon},
    )


def _core(view: GraphView, root: int) -> _Core:
    add = view.source(view.operand(root, 0), "Add")
    variance, epsilon = view.split_scalar(add)
    mean = view.source(variance, "ReduceMean")
    square = view.source(view.operand(mean, 0), "Pow", "Mul")
    power = view.operators[square].op_type == "Pow"
    base = view.operand(square, 0)
    if power:
        require_value(view.operand(square, 1), 2.0)
    elif not view.reads(square, 1, base):
        raise view.mismatch(square, "multiplies two tensors, expected a square")
    rank = len(base.shape)
    axis = require_trailing(reduced_axes(view, mean), rank, view.name(mean))
    rooted, root_casts = view.through_casts(view.result(root))
    covered = [add, mean, square, root, *root_casts]
    last = view.reader(rooted, "Div", "Reciprocal")
    covered.append(last)
    divides = view.operators[last].op_type == "Div"
    inverts = True
    if divides:
        numerator = view.operand(last, 0)
        inverts = view.reads(last, 1, rooted) and numerator.elements == 1
    if inverts:
        if divides:
            require_value(numerator, 1.0)
        inverse, inverse_casts = view.through_casts(view.result(last))
        last = view.reader(inverse, "Mul")
        covered += [*inverse_casts, last]
        numerator = view.other(last, inverse)
    centred, casts = view.common_source(base, numerator)
    covered += casts
    return _Core(
        covered=covered,
        centred=centred,
        result=view.result(last),
        axis=axis,
        epsilon=scalar_value(epsilon) or 0.0,
        power=power,
        divides=divides,
    )


def _affine(
    view: GraphView, value: Tensor, extent: Shape, *, shifted: bool = True
) -> tuple[Indices, Tensor | None, Tensor | None]:
    """Return an optional scale and shift over ``extent`` that follow: their operators, the scale, the shift."""
    passed, casts = view.through_casts(value)
    scaling = view.optional_reader(passed, "Mul")
    if scaling is None:
        return [], None, None
    scale = view.other(scaling, passed)
    if not _is_parameter(scale, extent):
        return [], None, None
    covered = [*casts, scaling]
    end = view.result(scaling)
    if not shifted:
        return covered, scale, None
    adding = view.optional_reader(end, "Add")
    if adding is not None:
        shift = view.other(adding, end)
        if _is_parameter(shift, extent):
            return [*covered, adding], scale, shift
    return covered, scale, None


def _is_parameter(tensor: Tensor, extent: Shape) -> bool:
    """Return a weight of the normalised extent (leading ones allowed)."""
    return (
        tensor.is_weight and tensor.shape[-len(extent) :] == extent and tensor.elements == math.prod(extent)
    )


def match_skip_layer_norm(view: GraphView, norm: int, options: LoweringOptions) -> Match:
    """Return the SkipLayerNormalization that ends at the LayerNormalization at index ``norm``."""
    op = view.operators[norm]
    add = view.source(view.operand(norm, 0), "Add")
    first = view.operand(add, 0)
    second = view.operand(add, 1)
    alike = len(first.shape) == 3 and first.shape == second.shape
    if not alike or first.is_weight or second.is_weight:
        raise Mismatch(
            f"{view.name(add)} adds {list(first.shape)} and {list(second.shape)}, "
            "expected one shape of rank 3"
        )
    if op.attributes.get("axis", -1) not in (-1, 2):
        raise Mismatch(f"{op.name} normalises from axis {op.attributes.get('axis')}, expected the last")
    if any(v is not None for v in op.outputs[1:]):
        raise Mismatch(f"{op.name} gives mean or deviation too")
    # The bias (input 2) may be left out.
    gamma, beta = (*op.inputs[1:3], None, None)[:2]
    attributes = {"epsilon": op.attributes.get("epsilon", 1e-5)}
    for summand, rest in view.either_order(add):
        added = view.added_bias(summand)
        if added is None:
            continue
        biased, source, bias = added
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


def match_group_norm(view: GraphView, norm: int, options: LoweringOptions) -> Match:
    """Return the GroupNorm around the InstanceNormalization at index ``norm``."""
    grouped = view.operand(norm, 0)
    before = view.source(grouped, "Reshape")
    x = view.operand(before, 0)
    shape = x.shape
    rank = len(shape)
    grouping = rank >= 3 and len(grouped.shape) == 3
    if not grouping or grouped.shape[0] != shape[0]:
        raise view.mismatch(before, f"makes {list(grouped.shape)} of {list(shape)}, expected groups")
    channels = shape[1]
    groups = grouped.shape[1]
    if groups < 1 or channels % groups:
        raise Mismatch(f"{view.name(norm)}: {channels} channels do not divide into {groups} groups")
    after = view.next(norm, "Reshape")
    restored = view.result(after)
    if restored.shape != shape:
        raise view.mismatch(after, f"does not restore the shape {list(shape)}")
    covered = [before, norm, after]
    # The instance normalisation's own scale and shift (one per group) serve where no affine follows.
    scale = view.operand(norm, 1)
    shift = view.operand(norm, 2)
    scaling = view.optional_reader(restored, "Mul")
    if scaling is not None:
        factor = view.other(scaling, restored)
        scaled = view.result(scaling)
        adding = None
        if is_per_channel(factor, channels, rank):
            adding = view.optional_reader(scaled, "Add")
        if adding is not None:
            added = view.other(adding, scaled)
            if is_per_channel(added, channels, rank):
                scale = factor
                shift = added
                covered += [scaling, adding]
    epsilon = view.operators[norm].attributes.get("epsilon", 1e-5)
    return fused(
        view,
        "group_norm",
        covered,
        op_type="GroupNormalization",
        version=21,
        inputs=(x, scale, shift),
        attributes={"num_groups": groups, "epsilon": epsilon},
    )


def match_rsqrt(view: GraphView, root: int, options: LoweringOptions) -> Match:
    """Return the reciprocal root that starts at the Sqrt at index ``root``."""
    rooted = view.result(root)
    last = view.reader(rooted, "Reciprocal", "Div")
    if view.operators[last].op_type == "Div":
        numerator = view.operand(last, 0)
        if not view.reads(last, 1, rooted) or numerator.value is None:
            raise view.mismatch(last, "does not divide 1 by the root")
        require_value(numerator, 1.0)
    return fused(
        view, "rsqrt", (root, last), op_type="Rsqrt", domain=FUSED_DOMAIN, inputs=(view.operand(root, 0),)
    )


@lowering_rule("Rsqrt", domain=FUSED_DOMAIN, kind="elementwise", autocast="fp32")
def lower_rsqrt(op: Operator, options: LoweringOptions) -> Lowered:
    """Return two FLOPs per element: a root and a division."""
    kernel = elementwise_kernel("rsqrt", (input_at(op, 0),), (output_at(op),), flops_per_element=2)
    return Lowered(kernels=(kernel,), host_calls=1)
