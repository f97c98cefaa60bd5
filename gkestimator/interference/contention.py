"""Our law: what neighbours ask of SMs, DRAM bandwidth and L2 bandwidth slows a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from gkestimator.documents.interference import ContentionWeights, read_interference
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.interference.base import FEATURES, TERMS, Interference, known, padded
from gkestimator.interference.laws import CONTENTION
from gkestimator.tables import Requirement

# What fits call its two forms.
DERIVED_LAW = "contention, derived"
FITTED_LAW = "contention, fitted"
_UNFITTED = "contention is not fitted to measured pairs"
_NO_BETTER = (f"{_UNFITTED}: a fit was no better on models left out",)


class Contention(Interference):
    """Slow by what is asked of shared resources: a batch that asks a part d of a resource beside others that ask
    d' of it takes f(d, d') as long, for the resource where that is most.

    SMs (``sm_util_mean_pct``, at most the share) are shared in space: f = max(1, d + d'). Batches that are
    confined to shares of the SMs (MPS) take none from each other.

    Memory, DRAM bandwidth (``dram_util_mean_pct``) and L2 bandwidth (``l2_util_mean_pct``), is shared in time,
    whatever the shares of the SMs: f = 1 + d d'. Derivation: a batch computes a part 1 - d of its time and keeps the
    memory busy a part d, kernel after kernel; so does its neighbour, without regard to it. By the arrival theorem of
    closed queueing networks (Reiser, Lavenberg: Mean-Value Analysis of Closed Multichain Queuing Networks, Journal of
    the ACM 27(2), 1980) a batch that comes to the memory finds its neighbour there with the probability with which
    that would be there without it, d', and its work there takes 1 + d' times as long: (1 - d) + d (1 + d'). For two
    that is exact, and no less than proportional sharing, max(1, d + d'): 1 + d d' = d + d' + (1 - d) (1 - d'). Of
    several neighbours the demands are summed, which is a little too few (by at most a tenth for three batches). A
    batch whose every kernel asks the same part of the memory, and hides all waiting, would feel proportional sharing
    alone; kernels are between both, and this law is the pessimistic end.

    Where DRAM or L2 demand is null for a batch, it does not slow that batch and is not asked of others: a measured
    table without counters gives SM overlap alone.

    What a neighbour takes of the L2's capacity is in the DRAM demand: that column of our estimates is compulsory
    traffic, every kernel's operands read and written once, without what stays in the L2 from kernel to kernel
    (:func:`gkestimator.kernel_models.launch.bandwidth_pct`), so it is what is asked for when the neighbours have
    filled the L2.

    The placement policies count the same (:mod:`gkestimator.placement.contention`), with the part of the time that
    neighbours run in the mean. Nothing of it is fitted, which the notes say.

    With ``weights`` (fitted to measured pairs): 1 + sum over the resources of overlap d d' + excess max(0, d
    + d' - 1). The first term is what batches lose that meet by chance."""

    name = "contention"
    code = CONTENTION
    needs = ("sm_util_mean_pct",)
    optional = ("dram_util_mean_pct", "l2_util_mean_pct")

    def __init__(self, weights: ContentionWeights | None = None) -> None:
        self._weights = weights
        if weights is None:
            self.notes = (_UNFITTED,)

    @classmethod
    def made(cls, coefficients: Path | None, gpus: Sequence[GpuSpec]) -> Self:
        """Return the law; its file is one that ``gkest train --interference`` wrote; where the law without
        weights was as good there, it stays so."""
        if coefficients is None:
            return cls()
        file = read_interference(coefficients)
        law = cls(file.contention)
        law.notes = (*_NO_BETTER, *file.fit.against_constant(DERIVED_LAW))
        if file.contention is not None:
            elsewhere = file.fit.elsewhere(spec.name for spec in gpus)
            law.notes = (*elsewhere, *file.fit.against_constant(FITTED_LAW))
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


def unanswerable(name: str, rows: Iterable[Requirement]) -> str | None:
    """Return in words that the default law, if ``name`` is it, has no column of ``rows`` to answer by (those measured
    on a CPU), so that there is no interference; None where it has one, or for another law."""
    if name != Contention.name:
        return None
    (column,) = Contention.needs
    known = [getattr(row, column) is not None for row in rows]
    if not known or any(known):
        return None
    return f"interference none: {column}, which {name} needs, is null in every row"
