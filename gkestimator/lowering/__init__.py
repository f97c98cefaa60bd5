"""Lowering: which kernels a runtime launches for an operator graph.

One file a family of operators; every rule is registered under its exact ``(domain, op_type)``. Importing this
package
registers them all.
"""

from __future__ import annotations

from gkestimator.lowering.assembly import covered_operators, lower, lower_each
from gkestimator.operators.plugins import load_plugin
from gkestimator.operators.registry import (
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
