"""What the engine itself needs to know of an operator type, by exact key."""

from __future__ import annotations

__all__ = ["CONTROL_FLOW", "PLAIN", "RANDOM", "VIEW", "node_kind"]

PLAIN, VIEW, RANDOM, CONTROL_FLOW = range(4)

_KINDS: dict[tuple[str, str], int] = {
    **{("", op): CONTROL_FLOW for op in ("If", "Loop", "Scan", "SequenceMap")},
    # never folded, even when nothing but constants goes in: two runs differ
    **{
        ("", op): RANDOM
        for op in (
            "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial",
            "Bernoulli",
        )
    },
    # weight-only nodes whose output is the same memory. DequantizeLinear is no view, but runtimes fuse it
    # into its reader: what stays on the GPU is the quantised weight. Identity is missing on purpose:
    # exporters merge equal initializers behind it, which are separate parameters.
    **{
        ("", op): VIEW
        for op in (
            "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "DequantizeLinear",
        )
    },
    ("com.microsoft", "DequantizeLinear"): VIEW,
}  # fmt: skip


def node_kind(domain: str, op_type: str) -> int:
    """``PLAIN``, ``VIEW``, ``RANDOM`` or ``CONTROL_FLOW``."""
    return _KINDS.get((domain, op_type), PLAIN)
