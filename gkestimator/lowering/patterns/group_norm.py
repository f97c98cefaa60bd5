"""GroupNorm as exporters write it: Reshape to (N, groups, rest), InstanceNormalization, Reshape back[, Mul,
Add].

torch: F.group_norm, one call. onnxruntime runs the pieces (its GroupNorm comes from a separate offline tool).
"""

from __future__ import annotations

from gkestimator.core.graph import Tensor
from gkestimator.lowering.patterns.match import Match, fused
from gkestimator.lowering.patterns.view import GraphView, Mismatch
from gkestimator.operators.registry import LoweringOptions


def match_group_norm(view: GraphView, norm: int, options: LoweringOptions) -> Match:
    """The GroupNorm around the InstanceNormalization at index ``norm``."""
    before = view.source(view.operand(norm, 0), "Reshape")
    x = view.operand(before, 0)
    grouped = view.operand(norm, 0)
    if len(x.shape) < 3 or len(grouped.shape) != 3 or grouped.shape[0] != x.shape[0]:
        raise Mismatch(
            f"{view.operators[before].name} makes {list(grouped.shape)} of {list(x.shape)}, expected groups"
        )
    channels = x.shape[1]
    groups = grouped.shape[1]
    if groups < 1 or channels % groups:
        raise Mismatch(f"{view.operators[norm].name}: {channels} channels do not divide into {groups} groups")
    after = view.reader(view.result(norm), "Reshape")
    if view.result(after).shape != x.shape:
        raise Mismatch(f"{view.operators[after].name} does not restore the shape {list(x.shape)}")
    covered = [before, norm, after]
    # The instance normalisation's own scale and shift (one per group) serve where no affine follows.
    scale = view.operand(norm, 1)
    shift = view.operand(norm, 2)
    scaling = view.optional_reader(view.result(after), "Mul")
    if scaling is not None and _per_channel(view.other(scaling, view.result(after)), channels, len(x.shape)):
        adding = view.optional_reader(view.result(scaling), "Add")
        if adding is not None:
            added = view.other(adding, view.result(scaling))
            if _per_channel(added, channels, len(x.shape)):
                scale = view.other(scaling, view.result(after))
                shift = added
                covered += [scaling, adding]
    return fused(
        view,
        "group_norm",
        covered,
        op_type="GroupNormalization",
        version=21,
        inputs=(x, scale, shift),
        attributes={"num_groups": groups, "epsilon": view.operators[norm].attributes.get("epsilon", 1e-5)},
    )


def _per_channel(tensor: Tensor, channels: int, rank: int) -> bool:
    """A weight of shape (C, 1, ...) that broadcasts along the channels of a tensor of ``rank``."""
    return (
        tensor.is_weight
        and tensor.elements == channels
        and len(tensor.shape) >= rank - 1
        and tensor.shape[1 - rank] == channels
    )
