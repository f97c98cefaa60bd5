"""Lowering: which kernels a runtime launches for an operator graph.

One file a family of operators; every rule is registered under its exact ``(domain, op_type)``. Importing this
package
registers them all.
"""

from __future__ import annotations

from importlib import import_module

from gkestimator.lowering.assembly import covered_operators, lower, lower_each
from gkestimator.lowering.plugins import load_plugin
from gkestimator.lowering.registry import (
    LOWERINGS,
    Lowered,
    LoweringOptions,
    LoweringRule,
    lowering_rule,
)

__all__ = [
    "LOWERINGS",
    "Lowered",
    "LoweringOptions",
    "LoweringRule",
    "covered_operators",
    "load_plugin",
    "lower",
    "lower_each",
    "lowering_rule",
]

for _module in (
    "attention",
    "control",
    "convolution",
    "elementwise",
    "generators",
    "host",
    "indexing",
    "legacy",
    "matmul",
    "microsoft",
    "microsoft_attention",
    "microsoft_decoding",
    "microsoft_experts",
    "microsoft_host",
    "microsoft_ordered",
    "microsoft_packing",
    "microsoft_quantised",
    "movement",
    "normalisation",
    "optimisers",
    "pooling",
    "quantise",
    "recurrent",
    "reduction",
    "resample",
    "signal",
):
    import_module(f"{__name__}.{_module}")
