"""The built-in catalogue: shapes worth measuring, by group of operators.

A group is a file (or a part of one) with three generators: ``real`` (layers of known architectures), ``corners`` (the
edges of the range) and ``sampled(sampler, count)`` (low-discrepancy points between them). Their shapes stand in
``shapes.toml``. A new group is a line in :data:`GROUPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from gkestimator.core.fragments import Fragment
from gkestimator.profiling.sweep.catalogue import (
    attention,
    convolution,
    elementwise,
    indexing,
    matmul,
    movement,
    normalisation,
    pooling,
    resampling,
)
from gkestimator.profiling.sweep.catalogue.making import CatalogueItem
from gkestimator.profiling.sweep.catalogue.shapes import ShapeSampler

__all__ = ["GROUPS", "CatalogueGroup", "CatalogueItem", "catalogue"]


class CatalogueGroup(NamedTuple):
    """Name one group of operators; ``share`` is its part of the sampled shapes."""

    name: str
    share: float
    real: Callable[[], Iterator[CatalogueItem]]
    corners: Callable[[], Iterator[Fragment]]
    sampled: Callable[[ShapeSampler, int], Iterator[Fragment]]

    def items(self, sampler: ShapeSampler, count: int) -> Iterator[CatalogueItem]:
        """Yield real shapes, corners, then ``count`` sampled ones."""
        yield from self.real()
        for fragment in self.corners():
            yield CatalogueItem(fragment, "corner")
        for fragment in self.sampled(sampler, count):
            yield CatalogueItem(fragment, "sampled")


_n = normalisation
_p = pooling
_r = resampling
_m = matmul
GROUPS = (
    CatalogueGroup("convolution", 0.32, convolution.real, convolution.corners, convolution.sampled),
    CatalogueGroup("linear", 0.18, _m.real, _m.corners, _m.sampled),
    CatalogueGroup("batched product", 0.10, _m.batched_real, _m.batched_corners, _m.batched_sampled),
    CatalogueGroup("attention", 0.05, attention.real, attention.corners, attention.sampled),
    CatalogueGroup("elementwise", 0.12, elementwise.real, elementwise.corners, elementwise.sampled),
    CatalogueGroup("normalisation", 0.04, _n.real, _n.corners, _n.sampled),
    CatalogueGroup(
        "batch normalisation", 0.02, _n.batch_norm_real, _n.batch_norm_corners, _n.batch_norm_sampled
    ),
    CatalogueGroup("softmax", 0.03, _n.softmax_real, _n.softmax_corners, _n.softmax_sampled),
    CatalogueGroup("pooling", 0.03, _p.real, _p.corners, _p.sampled),
    CatalogueGroup("reduction", 0.03, _p.reduction_real, _p.reduction_corners, _p.reduction_sampled),
    CatalogueGroup("movement", 0.04, movement.real, movement.corners, movement.sampled),
    CatalogueGroup("indexing", 0.02, indexing.real, indexing.corners, indexing.sampled),
    CatalogueGroup("resampling", 0.015, _r.real, _r.corners, _r.sampled),
    CatalogueGroup("recurrent", 0.005, _r.recurrent_real, _r.recurrent_corners, _r.recurrent_sampled),
)


def catalogue(sampled: int, seed: int) -> Iterator[CatalogueItem]:
    """Yield every real shape and corner, then about ``sampled`` shapes between them; each fragment once, in float32.

    The same seed gives the same items, and the first of a larger ``sampled`` are not those of a smaller one.
    """
    seen: set[str] = set()
    for group in GROUPS:
        # Own streams: a shape added to one group leaves the others' samples as they are.
        sampler = ShapeSampler(np.random.default_rng([seed, *group.name.encode()]))
        for entry in group.items(sampler, round(sampled * group.share)):
            # Architectures share layers; a shape counts once, for the first that has it.
            text = entry.fragment.text()
            if text not in seen:
                seen.add(text)
                yield entry
