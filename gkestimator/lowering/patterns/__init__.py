"""Fusion patterns: groups of operators that the runtime launches as one call, one file a family of groups.

``torch`` is eager mode: the group is what the model's author called (F.gelu, F.layer_norm, F.silu, F.linear,
F.scaled_dot_product_attention); what authors write as python arithmetic stays as it is. ``onnxruntime`` is
what its graph optimiser does at the default level for the CUDA provider, its limits included; each pattern's
file says what was verified by running the optimiser and what is known from its sources alone.

Deliberately no pattern, since neither runtime fuses it: rotary embedding, squeeze-and-excitation gates,
activations after a convolution (onnxruntime's CUDA provider since 1.20), reshape-transpose-reshape shuffles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from gkestimator.core.graph import OperatorGraph
from gkestimator.core.records import frozen
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.lowering.patterns.activations import (
    match_addcmul,
    match_clip_swish,
    match_hard_sigmoid_swish,
    match_mish,
    match_relu_clip,
    match_sigmoid_gate,
)
from gkestimator.lowering.patterns.attention import match_attention, match_bias_softmax
from gkestimator.lowering.patterns.convolution import match_conv_folding
from gkestimator.lowering.patterns.gelu import match_gelu, match_tanh_gelu
from gkestimator.lowering.patterns.match import Match
from gkestimator.lowering.patterns.normalisation import (
    match_group_norm,
    match_layer_norm,
    match_rms_norm,
    match_rsqrt,
    match_skip_layer_norm,
)
from gkestimator.lowering.patterns.products import match_linear, match_scaled_matmul
from gkestimator.lowering.patterns.qdq import match_quantised
from gkestimator.lowering.patterns.tensorrt.attention import match_fused_attention
from gkestimator.lowering.patterns.tensorrt.convolutions import match_convolution
from gkestimator.lowering.patterns.tensorrt.copies import match_concat, match_shuffle
from gkestimator.lowering.patterns.tensorrt.products import match_merged, match_product
from gkestimator.lowering.patterns.tensorrt.regions import ELEMENTWISE, match_pointwise
from gkestimator.lowering.patterns.tensorrt.rows import match_norm, match_rows
from gkestimator.lowering.patterns.view import GraphView, Mismatch, NotFused
from gkestimator.operators.reduction import REDUCTIONS
from gkestimator.operators.registry import LoweringOptions

__all__ = ["PATTERNS", "Groups", "Match", "Pattern", "Refusal", "explain", "find_groups", "find_matches"]


@frozen
class Pattern:
    """Hold a pattern: ``find(view, index, options)`` is tried at every operator of the ``anchors``' types; it
    raises Mismatch to refuse. Which patterns a runtime applies stands in its record
    (:mod:`gkestimator.hardware.runtimes`).
    """

    name: str
    anchors: tuple[str, ...]
    find: Callable[[GraphView, int, LoweringOptions], Match]
    composed: bool = True  # also where attention is asked for operator by operator
    dtype: str | None = None  # the option under which alone it applies
    last_first: bool = False  # tried from the end of the graph backwards


class Refusal(NamedTuple):
    """Hold why a pattern does not apply at an operator that it could have."""

    pattern: str
    operator: str
    reason: str


_NORMS = ("Sqrt", "LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization")
_REDUCTIONS = tuple(name for name in REDUCTIONS if name.startswith("Reduce"))

# In order of priority: an operator belongs to the first group that takes it.
PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="quantised",
        anchors=("Conv", "MatMul", "Gemm", "Add", "Mul"),
        find=match_quantised,
        dtype="int8",
    ),
    Pattern(name="attention", anchors=("Softmax",), find=match_attention, composed=False),
    Pattern(name="gelu", anchors=("Erf",), find=match_gelu),
    Pattern(name="tanh_gelu", anchors=("Tanh",), find=match_tanh_gelu),
    Pattern(name="sigmoid_gate", anchors=("Sigmoid",), find=match_sigmoid_gate),
    Pattern(name="hard_sigmoid_swish", anchors=("HardSigmoid",), find=match_hard_sigmoid_swish),
    Pattern(name="clip_swish", anchors=("Clip",), find=match_clip_swish),
    Pattern(name="mish", anchors=("Softplus",), find=match_mish),
    Pattern(name="addcmul", anchors=("Add",), find=match_addcmul),
    Pattern(name="layer_norm", anchors=("Sqrt",), find=match_layer_norm),
    Pattern(name="rms_norm", anchors=("Sqrt",), find=match_rms_norm),
    Pattern(name="rsqrt", anchors=("Sqrt",), find=match_rsqrt),
    Pattern(name="group_norm", anchors=("InstanceNormalization",), find=match_group_norm),
    Pattern(name="skip_layer_norm", anchors=("LayerNormalization",), find=match_skip_layer_norm),
    Pattern(name="conv_folding", anchors=("Conv",), find=match_conv_folding),
    Pattern(name="relu_clip", anchors=("Relu",), find=match_relu_clip),
    Pattern(name="bias_softmax", anchors=("Softmax",), find=match_bias_softmax),
    Pattern(name="linear", anchors=("MatMul",), find=match_linear),
    Pattern(name="scaled_matmul", anchors=("MatMul",), find=match_scaled_matmul),
    # TensorRT's. What is last takes a sum of two, and a chain is taken from its end.
    Pattern(name="fused_attention", anchors=("Softmax",), find=match_fused_attention),
    Pattern(name="norm", anchors=_NORMS, find=match_norm),
    Pattern(name="convolution", anchors=("Conv", "ConvTranspose"), find=match_convolution, last_first=True),
    Pattern(name="merged_products", anchors=("MatMul", "Gemm"), find=match_merged),
    Pattern(name="product", anchors=("MatMul", "Gemm"), find=match_product, last_first=True),
    Pattern(name="softmax_rows", anchors=("Softmax", "LogSoftmax"), find=match_rows),
    Pattern(name="reduced_rows", anchors=_REDUCTIONS, find=match_rows),
    Pattern(name="concat", anchors=("Concat",), find=match_concat),
    Pattern(name="shuffle", anchors=("Transpose",), find=match_shuffle, last_first=True),
    Pattern(name="pointwise", anchors=tuple(sorted(ELEMENTWISE)), find=match_pointwise, last_first=True),
)


@frozen
class Groups:
    """Hold the groups of a graph by position, none of which overlap, and what stays apart and why, by how often."""

    matches: list[Match]
    unfused: Mapping[tuple[str, str], int]


def find_groups(graph: OperatorGraph, options: LoweringOptions) -> Groups:
    """Return what the runtime of ``options`` launches as one call, and what users may miss among that."""
    unfused: Counter[tuple[str, str]] = Counter()
    return Groups(matches=_search(graph, options, None, unfused), unfused=unfused)


def find_matches(graph: OperatorGraph, options: LoweringOptions) -> list[Match]:
    """Return the groups of ``graph`` that the runtime of ``options`` launches as one call, by position; none
    overlap.
    """
    return find_groups(graph, options).matches


def explain(graph: OperatorGraph, options: LoweringOptions) -> list[Refusal]:
    """Return, for every operator that a pattern starts from and did not take: the pattern, the operator and
    the reason.
    """
    refusals: list[Refusal] = []
    _search(graph, options, refusals, Counter())
    return refusals


def _search(
    graph: OperatorGraph,
    options: LoweringOptions,
    refusals: list[Refusal] | None,
    unfused: Counter[tuple[str, str]],
) -> list[Match]:
    taken = bytearray(len(graph.operators))
    view = replace(GraphView.of(graph), taken=taken)
    matches: list[Match] = []
    applied = runtime_traits(options.runtime).patterns_at(options.graph_level)
    for pattern in PATTERNS:
        if pattern.name not in applied:
            continue
        if options.attention == "eager" and not pattern.composed:
            continue
        if pattern.dtype is not None and options.dtype != pattern.dtype:
            continue
        for index in _anchored(view, pattern):
            if taken[index]:
                continue
            try:
                match = pattern.find(view, index, options)
                _require_free(view, match, taken)
            except Mismatch as mismatch:
                if refusals is not None:
                    refusals.append(Refusal(pattern.name, view.name(index), str(mismatch)))
                if isinstance(mismatch, NotFused):
                    unfused[mismatch.what, mismatch.reason] += 1
                continue
            for member in match.covered:
                taken[member] = 1
            matches.append(match)
    matches.sort(key=lambda match: match.position)
    return matches


def _anchored(view: GraphView, pattern: Pattern) -> Iterable[int]:
    """Return the operators that ``pattern`` starts from, in the order in which it is tried."""
    places = chain.from_iterable(view.by_key.get(("", anchor), ()) for anchor in pattern.anchors)
    if pattern.last_first:
        return sorted(places, reverse=True)
    return places


def _require_free(view: GraphView, match: Match, taken: bytearray) -> None:
    for member in match.covered:
        if taken[member]:
            raise view.mismatch(member, "belongs to another group already")
