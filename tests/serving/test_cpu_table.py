"""A plan by a table measured on a CPU, whose memory and utilisation columns are null, is served, emulated too."""

from __future__ import annotations

from pathlib import Path

import pytest

from gkestimator.placement.scheduling import schedule
from gkestimator.serving.planning import PlanningSettings, ServicePlanner

DATA = Path(__file__).parents[1] / "data" / "cpu_table"
CPU = "CPU-2-cores-AMD-EPYC"
SPEC = str(DATA / f"cpu.{CPU}.toml")


@pytest.mark.parametrize("emulate", [True, False])
def test_what_is_not_known_is_not_limited_and_slows_nobody(emulate: bool) -> None:
    rates = {"resnet50": 4.0, "mobilenet_v2": 20.0}
    models = [{"name": name, "rate_rps": rate, "slo_ms": 900.0} for name, rate in rates.items()]
    plan = schedule(
        DATA / "cpu.csv", {"models": models}, {"gpus": [{"type": CPU, "count": 3}]}, gpu_specs=[SPEC]
    ).plan
    settings = PlanningSettings(
        tables=(str(DATA / "cpu.csv"),),
        cluster=None,
        gpu_specs=(SPEC,),
        policy=None,
        policy_options={},
        replan=None,
        emulate=emulate,
        interference="contention",
        coefficients=None,
    )
    served = ServicePlanner(settings, plan).served(plan)
    assert {replica.asked.model for replica in served.replicas} == set(rates)
    for replica in served.replicas:
        assert replica.asked.mreq_bytes is None and replica.features is None
    said = [note for note in served.notes if note.startswith("interference none: sm_util_mean_pct")]
    assert len(said) == emulate
