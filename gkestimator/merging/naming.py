"""Name the models of a merge, the prefixes of their inputs and outputs in the merged file; and new names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gkestimator.core.escaping import printable
from gkestimator.core.naming import distinct_names
from gkestimator.merging.editing import Names, Weights, make_weight

OWN_PREFIX = "merged/"
"""New nodes, values and weights begin with this; no model may be called so."""


def model_names(paths: Sequence[Path]) -> Names:
    """Return a name for each of ``paths`` (:func:`gkestimator.core.naming.distinct_names`) that may be a
    prefix.
    """
    return distinct_prefixes(distinct_names(paths))


def distinct_prefixes(names: Sequence[str]) -> Names:
    """Return ``names`` fit to be prefixes of ONNX names, in the same order.

    What cannot be printed or is no UTF-8 is escaped. No name begins with another and a slash, and none with
    ``merged/``, so that two models never share a name whatever they call their own values: the later is numbered.
    """
    prefixes: list[str] = []
    for name in names:
        prefixes.append(_free(printable(name).strip("/") or "model", prefixes))
    return tuple(prefixes)


def _free(name: str, taken: Sequence[str]) -> str:
    candidate = name
    number = 1
    # the number goes behind the first part, so that a path stays readable
    while any(_clash(candidate, other) for other in (*taken, OWN_PREFIX.rstrip("/"))):
        number += 1
        head, slash, rest = name.partition("/")
        candidate = f"{head}#{number}{slash}{rest}"
    return candidate


def _clash(a: str, b: str) -> bool:
    return f"{a}/".startswith(f"{b}/") or f"{b}/".startswith(f"{a}/")


def unused_name(stem: str, taken: set[str]) -> str:
    """Return ``stem``, numbered where ``taken`` has it; ``taken`` has the answer then."""
    name = stem
    count = 1
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    taken.add(name)
    return name


SHAPE_ENDS = 15
"""Standard opset from which Shape takes start and end."""


def whole_numbers(values: Sequence[int], weights: Weights) -> str:
    """Return the name of a constant list of int64 with these values, which is in ``weights`` then.

    The name tells the values (``merged/int64[2,3]``), so whoever needs the same list finds it.
    """
    name = f"{OWN_PREFIX}int64[{','.join(map(str, values))}]"
    if name not in weights:
        weights[name] = make_weight(name, np.array(values, np.int64))
    return name
