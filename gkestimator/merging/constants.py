"""Whole numbers that new nodes read: sizes, axes, shapes. One constant for one content in the whole merged model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gkestimator.merging.editing import Weight, make_weight
from gkestimator.merging.naming import OWN_PREFIX

SHAPE_ENDS = 15
"""Standard opset from which Shape takes start and end."""


def whole_numbers(values: Sequence[int], weights: dict[str, Weight]) -> str:
    """The name of a constant list of int64 with these values, which is in ``weights`` then.

    The name tells the values (``merged/int64[2,3]``), so whoever needs the same list finds it.
    """
    name = f"{OWN_PREFIX}int64[{','.join(map(str, values))}]"
    if name not in weights:
        weights[name] = make_weight(name, np.array(values, np.int64))
    return name
