"""Our law: SMs, DRAM bandwidth and L2 bandwidth are shared in proportion to what is asked of them."""

from __future__ import annotations

from typing import ClassVar

from gkestimator.gpus import GpuSpec
from gkestimator.simulation.interference.base import Interference, known, padded
from gkestimator.simulation.interference.laws import CONTENTION
from gkestimator.simulation.system import FEATURES, TERMS
from gkestimator.tables import Requirement

__all__ = ["Contention"]


class Contention(Interference):
    """A batch that asks a part d of a resource beside others that ask d' of it takes max(1, d + d') as long, for the
    resource where that is most.

    Derivation: a resource that is asked for more than it has serves all in proportion (the law of
    :mod:`gkestimator.placement.contention`, with the neighbours that run now in the place of the part of the time
    that they run on average). The resources: SMs (``sm_util_mean_pct``, at most the share; batches that are
    confined to shares of the SMs take none from each other), DRAM bandwidth (``dram_util_mean_pct``) and L2
    bandwidth (``l2_util_mean_pct``). Where one of the latter two is null for a batch, it does not slow that batch and
    is not asked of others: a measured table without counters gives SM overlap alone.

    What a neighbour takes of the L2's capacity is not counted a second time: the DRAM column of our estimates is
    compulsory traffic, every kernel's operands read and written once, without what stays in the L2 from kernel to
    kernel (:func:`gkestimator.utilisation.bandwidth_pct`), so it is already what is asked for when the neighbours
    have filled the L2.
    """

    name: ClassVar[str] = "contention"
    code: ClassVar[int] = CONTENTION
    needs: ClassVar[tuple[str, ...]] = ("sm_util_mean_pct",)

    def features(self, row: Requirement) -> tuple[float, ...]:
        """SM, DRAM and L2 demand (parts of 1), SM demand if not confined (else 0), 1 if confined, 1 where DRAM is
        known, 1 where L2 is."""
        compute = min(known(self, row, "sm_util_mean_pct"), row.sm_share_pct, 100.0) / 100
        dram, l2 = row.dram_util_mean_pct, row.l2_util_mean_pct
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
        """TERMS zeros: nothing is fitted."""
        return (0.0,) * TERMS
