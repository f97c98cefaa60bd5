"""All rules of lifting by (domain, operator type), and which operators give the same for the same constants."""

from __future__ import annotations

from collections.abc import Mapping

from gkestimator.merging.lifting.operands import Rule
from gkestimator.merging.lifting.rules_axes import ALONG_AXES
from gkestimator.merging.lifting.rules_pointwise import POINTWISE

RULES: Mapping[tuple[str, str], Rule] = {**POINTWISE, **ALONG_AXES}
#: With equal constants for inputs these have equal results, so that one node is enough for all branches.
DETERMINISTIC = frozenset(
    {key for key in RULES if key != ("", "Dropout")}
    | {
        ("", op)
        for op in ("ConstantOfShape", "EyeLike", "NonZero", "Range", "ScatterElements", "ScatterND", "Shape")
    }
)
#: Operators after which axis 0 may be a multiple or a part of what it was.
CHANGES_SIZE = frozenset({("", "Reshape"), ("", "Flatten")})
#: Which input is the shape that a rule rewrites: it need not be a constant.
SHAPE_INPUT: Mapping[tuple[str, str], int] = {("", "Reshape"): 1, ("", "Expand"): 1}
