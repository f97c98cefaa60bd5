"""Squishy bin packing, on the worked example of the paper and on what it must hold to."""

from __future__ import annotations

import pytest
from _gpulet_problems import case, problem, row

from gkestimator.placement.papers.nexus import NexusPolicy, residual_nodes, saturated
from gkestimator.placement.policy import verify
from gkestimator.placement.run import place

V100 = "V100-SXM2-16GB"
# Table 2 of Shen et al., SOSP 2019: milliseconds of a batch.
PROFILES = {"A": {4: 50, 8: 75, 16: 100}, "B": {4: 50, 8: 90, 16: 125}, "C": {4: 60, 8: 95, 16: 125}}
ROWS = [row(m, b, late) for m, profile in PROFILES.items() for b, late in profile.items()]
SLOS = {"A": 200.0, "B": 250.0, "C": 250.0}


def test_the_papers_saturated_gpus_run_batch_16() -> None:
    found = problem(ROWS, {m: (1000.0, slo) for m, slo in SLOS.items()}, gpus=100)
    throughputs = {}
    for model in found.models:
        nodes, rest = saturated(model, model.rate_rps, V100)
        assert {n.sessions[0].candidate.batch_size for n in nodes} == {16}
        throughputs[model.name] = nodes[0].goodput_rps
        assert len(nodes) * throughputs[model.name] + rest == pytest.approx(1000.0)
        assert rest < throughputs[model.name]
    assert throughputs == {"A": 160.0, "B": 128.0, "C": 128.0}


def test_the_papers_residual_loads_pack_a_and_b_on_one_gpu_and_c_on_another() -> None:
    found = problem(ROWS, {"A": (64.0, 200.0), "B": (32.0, 250.0), "C": (32.0, 250.0)}, gpus=3)
    nodes = residual_nodes([(m, m.rate_rps) for m in found.models], V100)
    packed = [{s.model.name: s.candidate.batch_size for s in n.sessions} for n in nodes]
    assert packed == [{"A": 8, "B": 4}, {"C": 4}]
    assert [n.cycle_ms for n in nodes] == [125.0, 125.0]
    assert nodes[0].occupancy == pytest.approx(1.0)  # 75 + 50 ms; with C it would be 75 + 60
    plan = place(NexusPolicy(), found)
    assert plan.totals.gpus_used == 2 and plan.totals.goodput_rps == pytest.approx(128.0)


def test_twice_the_latency_must_keep_the_objective() -> None:
    rows = [row("a", 1, 60.0)]
    late = place(NexusPolicy(), problem(rows, {"a": (5.0, 119.0)}))
    assert late.totals.goodput_rps == 0 and "twice its latency" in late.unserved[0].reason
    assert place(NexusPolicy(), problem(rows, {"a": (5.0, 120.0)})).totals.goodput_rps == pytest.approx(5.0)


def test_a_trickle_does_not_wait_for_its_batch_to_fill() -> None:
    plan = place(NexusPolicy(), problem([row("a", 8, 10.0)], {"a": (0.5, 50.0)}))
    (replica,) = plan.gpus[0].replicas
    assert replica.duty_cycle_ms == pytest.approx(40.0)  # 8 requests would take 16 s
    assert replica.goodput_rps == pytest.approx(0.5)


def test_too_few_gpus_keep_the_nodes_that_serve_most() -> None:
    rows = [row("slow", 1, 50.0), row("fast", 1, 5.0)]
    plan = place(NexusPolicy(), problem(rows, {"slow": (60.0, 100.0), "fast": (300.0, 100.0)}, gpus=2))
    assert [r.model for g in plan.gpus for r in g.replicas] == ["fast", "fast"]
    assert {u.model for u in plan.unserved} == {"slow"}


@pytest.mark.parametrize("seed", range(60))
def test_answers_stand_and_serve_all_where_gpus_are_many(seed: int) -> None:
    found = case(seed, gpus=200)
    answer = NexusPolicy().place(found)
    verify(NexusPolicy(), found, answer)
    plan = place(NexusPolicy(), found)
    hopeless = {m.name for m in found.models if all(2 * c.latency_ms > m.slo_ms for c in m.on(V100))}
    assert {u.model for u in plan.unserved} == hopeless
    assert all(p.duty_cycle_ms is not None for p in answer.placed)


def test_merged_nodes_keep_the_shorter_cycle_and_shrink_the_other_batches() -> None:
    # a: 4 requests come in 100 ms, b: 8 in 400. Every 400 ms would be too late for a (130 ms); every 100 ms b has 2.
    rows = [row("a", 1, 10.0), row("a", 4, 20.0), row("b", 1, 10.0), row("b", 2, 15.0), row("b", 8, 40.0)]
    found = problem(rows, {"a": (40.0, 130.0), "b": (20.0, 500.0)}, gpus=2)
    (node,) = residual_nodes([(m, m.rate_rps) for m in found.models], V100)
    assert node.cycle_ms == pytest.approx(100.0)
    assert {s.model.name: s.candidate.batch_size for s in node.sessions} == {"a": 4, "b": 2}
    assert node.occupancy == pytest.approx(0.35)
