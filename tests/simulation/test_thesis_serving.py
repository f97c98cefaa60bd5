"""What the ETH thesis measured on its cluster (section 6.3), simulated on its own table A.1."""

from __future__ import annotations

import math

import _thesis as thesis
import numpy as np
import pytest
from scipy.stats import poisson


@pytest.mark.parametrize(("rate", "mostly_full"), [(600.0, False), (1000.0, True)])
def test_batches_form_as_the_rate_lets_them(rate: float, mostly_full: bool) -> None:
    """densenet121 at batch 64, time-out 100 ms: at 600 requests a second a batch gets about 60 and mostly times out, at 1,000 it
    mostly fills."""
    plan = thesis.planned([(0, "densenet121", 64)], {"densenet121": rate}, gpus=1)
    result = thesis.served(plan, seconds=60.0, keep=True).result
    full, timed_out, batches = result.batches_full[0], result.batches_timed_out[0], result.batches[0]
    assert batches == full + timed_out > 500
    # The opener and Poisson(rate x 0.1 s) more: full with 63 of them.
    chance = float(poisson.sf(62, rate * thesis.TIMEOUT_MS / 1e3))
    assert full / batches == pytest.approx(
        chance, abs=4 * math.sqrt(chance * (1 - chance) / batches) + 2 / batches
    )
    assert result.requests is not None
    if mostly_full:
        assert full > 0.95 * batches
    else:
        assert timed_out > 0.55 * batches
        assert result.done[0] / batches == pytest.approx(60, abs=2)
        late = result.requests.router_ms.max()
        assert late == pytest.approx(thesis.TIMEOUT_MS)


@pytest.mark.parametrize("shared", [False, True])
def test_large_batches_keep_the_throughput_and_lose_the_goodput(shared: bool) -> None:
    """Six V100, five vision models at 500 requests a second, SLO 200 ms: efficientnet_b7 as two replicas at batch 8 against
    two at batch 64; the others on their own GPUs, or (with contention) two of them beside it."""
    found = {}
    for batch in (8, 64):
        plan = thesis.six_gpus(batch, shared=shared)
        runs = [
            thesis.served(plan, seed=s, seconds=30.0, interference="contention" if shared else "none")
            for s in range(2)
        ]
        of = [next(m for m in run.report.models if m.model == thesis.STUDIED) for run in runs]
        found[batch] = [np.mean([getattr(m, x) for m in of]) for x in ("throughput_rps", "goodput_rps")]
    (small_all, small_good), (large_all, large_good) = found[8], found[64]
    assert large_all == pytest.approx(small_all, rel=0.03), "nearly the same throughput"
    assert large_good < 0.75 * small_good, "clearly less goodput"
    if not shared:
        assert small_good > 0.99 * thesis.RATE_RPS
