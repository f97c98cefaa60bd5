"""What the laws say is what the simulator does: replicas that never rest take their latency times the factor."""

from __future__ import annotations

import numpy as np
import pytest
from _pairs import V100, pairs, requirement

from gkestimator.documents.interference import ContentionWeights, FittedWeights
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.interference.base import Interference
from gkestimator.interference.contention import Contention
from gkestimator.interference.fitted import FittedLaw
from gkestimator.interference.gpulet import Gpulet
from gkestimator.interference.gpulet_law import GpuletCoefficients
from gkestimator.interference.laws import slowdown
from gkestimator.interference.registry import MODELS, make_interference
from gkestimator.simulation.arrivals.streams import TimesInMemory
from gkestimator.simulation.engine.simulator import simulate
from gkestimator.simulation.options import Options
from gkestimator.simulation.system import SimGpu, SimModel, SimReplica, SimSource, SimStage, System

SPEC = gpu_catalogue().spec(V100)
CASES: dict[str, Interference] = {
    **{name: make_interference(name, gpus=[SPEC]) for name in MODELS if name != "fitted"},
    "fitted": FittedLaw(
        FittedWeights(
            form="saturating",
            logarithm=True,
            constant=0.1,
            sm=0.3,
            dram=0.5,
            l2=0.2,
            sm_more=0.1,
            dram_more=0.0,
            l2_more=0.4,
        )
    ),
    # Coefficients of a user's file may be below 0.
    "gpulet, coefficients": Gpulet(
        GpuletCoefficients(constant=1.9, l2_own=0.1, l2_other=-0.4, dram_own=0.0, dram_other=-0.1)
    ),
    "contention, weights": Contention(
        ContentionWeights(
            sm_overlap=0.3, sm_excess=0.8, dram_overlap=0.5, dram_excess=1.2, l2_overlap=0.2, l2_excess=0.6
        )
    ),
}
ALONE = {r.model: requirement(r) for r in pairs(Contention(), models=4, shares=(100.0,))}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_replicas_that_never_rest(case: str, count: int) -> None:
    law = CASES[case]
    rows = list(ALONE.values())[:count]
    system = System(
        sources=tuple(
            SimSource(name=r.model, application=False, rate_rps=1.0, slo_ms=1e6, stages=(SimStage(model=i),))
            for i, r in enumerate(rows)
        ),
        models=tuple(SimModel(name=r.model, slo_ms=1e6) for r in rows),
        gpus=(SimGpu(id="g", type=SPEC.name, price_per_hour=None, terms=law.terms(SPEC)),),
        replicas=tuple(
            SimReplica(
                id=r.model, model=i, gpu=0, batch_size=1, max_wait_ms=0.0, weight=1.0, batches=(1,),
                latencies_ms=(r.latency_ms or 0.0,), features=(law.features(r),),
            )
            for i, r in enumerate(rows)
        ),
    )  # fmt: skip
    # All come at once, and the quickest has enough to do for a while.
    requests = 60
    given = TimesInMemory([np.zeros(requests) for _ in rows])
    kind = law.name
    found = simulate(system, given, Options(duration_ms=1.0, interference=kind, keep_requests=True)).requests
    assert found is not None
    together_ms = requests * min(r.latency_ms or 0.0 for r in rows)  # at least as long all of them run
    ends_ms = found.arrived_ms + found.router_ms + found.queue_ms + found.gpu_ms
    features = [np.array(law.features(r)) for r in rows]
    for i, row in enumerate(rows):
        others = sum((f for j, f in enumerate(features) if j != i), np.zeros(len(features[0])))
        factor = slowdown(law.code, features[i], others, count - 1, np.array(law.terms(SPEC)))
        assert (factor > 1) == (count > 1 and case != "none") or case == "gpulet"
        took = found.gpu_ms[(found.model == i) & (ends_ms <= together_ms)]
        assert took.size >= 2
        assert took == pytest.approx((row.latency_ms or 0.0) * factor, rel=1e-9)
