"""Hold all rules of lifting, and which operators give the same for the same constants."""

from __future__ import annotations

from collections.abc import Mapping

from gkestimator.merging.lifting.operands import Rule
from gkestimator.merging.lifting.rules_axes import ALONG_AXES
from gkestimator.merging.lifting.rules_layout import LAYOUT
from gkestimator.merging.lifting.rules_pointwise import MICROSOFT, POINTWISE
from gkestimator.operators.records import OperatorKey

_STANDARD = POINTWISE | ALONG_AXES | LAYOUT
RULES: Mapping[OperatorKey, Rule] = {
    **{("", op): rule for op, rule in _STANDARD.items()},
    **{("com.microsoft", op): rule for op, rule in MICROSOFT.items()},
}
# No rules, for they mix axis 0, and no part of the registry's traits: a Dropout that trains is no `random` there.
_MIXING = ("ConstantOfShape", "EyeLike", "NonZero", "Range", "ScatterElements", "ScatterND", "Shape")
#: With equal constants for inputs these have equal results, so that one node is enough for all branches.
DETERMINISTIC = frozenset(RULES).union(("", op) for op in _MIXING) - {("", "Dropout")}
#: Operators after which axis 0 may be a multiple or a part of what it was.
CHANGES_SIZE = frozenset({("", "Reshape"), ("", "Flatten")})
#: Which input is the shape that a rule rewrites: it need not be a constant.
SHAPE_INPUT: Mapping[OperatorKey, int] = {("", "Reshape"): 1, ("", "Expand"): 1}
