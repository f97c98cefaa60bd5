"""Say what reading and binding themselves need to know of an operator type, from its traits."""

from __future__ import annotations

from gkestimator.operators.records import declare_traits, traits_of

PLAIN, VIEW, RANDOM, CONTROL_FLOW = range(4)

# Control flow has no shape rule that could say so: it is expanded (control.py).
declare_traits("If", "Loop", "Scan", "SequenceMap", control_flow=True)


def node_kind(domain: str, op_type: str) -> int:
    """Return ``PLAIN``, ``VIEW``, ``RANDOM`` or ``CONTROL_FLOW``."""
    traits = traits_of((domain, op_type))
    if traits.control_flow:
        return CONTROL_FLOW
    if traits.random:
        return RANDOM
    if traits.weight_view:
        return VIEW
    return PLAIN
