"""Our law: SMs, DRAM bandwidth and L2 bandwidth are shared in proportion to what is asked of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from gkestimator.documents.interference import ContentionWeights, read_interference
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.interference.base import FEATURES, TERMS, Interference, known, padded
from gkestimator.interference.laws import CONTENTION
from gkestimator.tables import Requirement

_PROPORTIONAL = ("contention is proportional sharing: a fit was no better on models left out",)


class Contention(Interference):
    """Slow by proportional sharing: a batch that asks a part d of a resource beside others that ask d' of it
    takes max(1, d + d') as long, for the resource where that is most.

    Derivation: a resource that is asked for more than it has serves all in proportion (the law of
    :mod:`gkestimator.placement.contention`, with the neighbours that run now in the place of the part of the
    time that they run on average). The resources: SMs (``sm_util_mean_pct``, at most the share; batches that
    are confined to shares of the SMs take none from each other), DRAM bandwidth (``dram_util_mean_pct``) and
    L2 bandwidth (``l2_util_mean_pct``). Where one of the latter two is null for a batch, it does not slow
    that batch and is not asked of others: a measured table without counters gives SM overlap alone.

    What a neighbour takes of the L2's capacity is not counted a second time: the DRAM column of our estimates
    is compulsory traffic, every kernel's operands read and written once, without what stays in the L2 from
    kernel to kernel (:func:`gkestimator.kernel_models.launch.bandwidth_pct`), so it is already what is
    asked for when the neighbours have filled the L2.

    With ``weights`` (fitted to measured pairs): 1 + sum over the resources of overlap d d' + excess max(0, d
    + d' - 1). The first term is what batches lose that meet by chance: a resource that both drive, each a
    part of its time, is shared while both do."""

    name = "contention"
    code = CONTENTION
    needs = ("sm_util_mean_pct",)
    optional = ("dram_util_mean_pct", "l2_util_mean_pct")

    def __init__(self, weights: ContentionWeights | None = None) -> None:
        self._weights = weights

    @classmethod
    def made(cls, coefficients: Path | None, gpus: Sequence[GpuSpec]) -> Self:
        """Return the law; its file is one that ``gkest train --interference`` wrote; where the law without
        weights was as good there, it stays so."""
        if coefficients is None:
            return cls()
        file = read_interference(coefficients)
        law = cls(file.contention)
        law.notes = _PROPORTIONAL
        if file.contention is not None:
            law.notes = file.fit.elsewhere(spec.name for spec in gpus)
        return law

    def features(self, row: Requirement) -> tuple[float, ...]:
        """Return SM, DRAM and L2 demand (parts of 1), SM demand if not confined (else 0), 1 if confined, 1
        where DRAM is known, 1 where L2 is."""
        compute = min(known(self, row, "sm_util_mean_pct"), row.sm_share_pct, 100.0) / 100
        dram = row.dram_util_mean_pct
        l2 = row.l2_util_mean_pct
        confined = row.sm_share_pct < 100
        return padded(
            FEATURES,
            compute,
            0.0 if dram is None else dram / 100,
            0.0 if l2 is None else l2 / 100,
            0.0 if confined else compute,
            float(confined),
            float(dram is not None),
            float(l2 is not None),
        )

    def terms(self, gpu: GpuSpec) -> tuple[float, ...]:
        """Return 1 with weights, then the six; zeros without."""
        if self._weights is None:
            return (0.0,) * TERMS
        w = self._weights
        return padded(
            TERMS, 1.0, w.sm_overlap, w.sm_excess, w.dram_overlap, w.dram_excess, w.l2_overlap, w.l2_excess
        )
