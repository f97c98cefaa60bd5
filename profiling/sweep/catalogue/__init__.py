"""The built-in catalogue: shapes worth measuring, by group of operators.

A group is a file (or a part of one) with three generators: ``real`` (layers of known architectures), ``corners`` (the
edges of the range) and ``sampled(sampler, count)`` (low-discrepancy points between them). A new group is a line in
:data:`GROUPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gkestimator.core.records import frozen
from gkestimator.profiling.sweep.catalogue import (
    attention,
    convolution,
    elementwise,
    indexing,
    matmul,
    movement,
    normalisation,
    pooling,
)
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem
from gkestimator.profiling.sweep.catalogue.sampling import ShapeSampler

__all__ = ["GROUPS", "CatalogueGroup", "CatalogueItem", "catalogue"]


@frozen
class CatalogueGroup:
    """``share``: this group's part of the sampled shapes."""

    name: str
    share: float
    real: Callable[[], Iterator[CatalogueItem]]
    corners: Callable[[], Iterator[CatalogueItem]]
    sampled: Callable[[ShapeSampler, int], Iterator[CatalogueItem]]


def _group(
    name: str,
    share: float,
    real: Callable[[], Iterator[CatalogueItem]],
    corners: Callable[[], Iterator[CatalogueItem]],
    sampled: Callable[[ShapeSampler, int], Iterator[CatalogueItem]],
) -> CatalogueGroup:
    return CatalogueGroup(name=name, share=share, real=real, corners=corners, sampled=sampled)


_n = normalisation
_p = pooling
_i = indexing
_m = matmul
GROUPS = (
    _group("convolution", 0.32, convolution.real, convolution.corners, convolution.sampled),
    _group("linear", 0.18, _m.real, _m.corners, _m.sampled),
    _group("batched product", 0.10, _m.batched_real, _m.batched_corners, _m.batched_sampled),
    _group("attention", 0.05, attention.real, attention.corners, attention.sampled),
    _group("elementwise", 0.12, elementwise.real, elementwise.corners, elementwise.sampled),
    _group("normalisation", 0.04, _n.real, _n.corners, _n.sampled),
    _group("batch normalisation", 0.02, _n.batch_norm_real, _n.batch_norm_corners, _n.batch_norm_sampled),
    _group("softmax", 0.03, _n.softmax_real, _n.softmax_corners, _n.softmax_sampled),
    _group("pooling", 0.03, _p.real, _p.corners, _p.sampled),
    _group("reduction", 0.03, _p.reduction_real, _p.reduction_corners, _p.reduction_sampled),
    _group("movement", 0.04, movement.real, movement.corners, movement.sampled),
    _group("indexing", 0.02, _i.real, _i.corners, _i.sampled),
    _group("resampling", 0.015, _i.resample_real, _i.resample_corners, _i.resample_sampled),
    _group("recurrent", 0.005, _i.recurrent_real, _i.recurrent_corners, _i.recurrent_sampled),
)


def catalogue(sampled: int, seed: int) -> Iterator[CatalogueItem]:
    """Every real shape and corner, then about ``sampled`` shapes between them; each fragment once, all in float32.

    The same seed gives the same items, and the first of a larger ``sampled`` are not those of a smaller one.
    """
    seen: set[str] = set()
    for group in GROUPS:
        # Own streams: a shape added to one group leaves the others' samples as they are.
        sampler = ShapeSampler(np.random.default_rng([seed, *group.name.encode()]))
        for found in (
            *group.real(),
            *group.corners(),
            *group.sampled(sampler, round(sampled * group.share)),
        ):
            text = found.fragment.text()
            if text not in seen:
                seen.add(text)
                yield found
