"""Clients that send their next request when the answer to the last one came: by hand, and against closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from _runs import finished, replica, run, system

from gkestimator.core.errors import UsageError
from gkestimator.simulation.arrivals.closed import ClosedArrivals, closed_loop
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import Result
from gkestimator.simulation.system import SimSource, SimStage, System


def served(asked: System, clients: int, duration_ms: float = 1000.0, **options: object) -> Result:
    arrivals = ClosedArrivals((clients,) * len(asked.sources))
    return run(closed_loop(asked), arrivals, duration_ms, **options)


@pytest.mark.parametrize("batching", ["early", "late"])
def test_one_client_is_served_one_request_a_latency(batching: str) -> None:
    asked = system([replica(batch_size=1, request_ms=(1.0, 1.0), response_ms=(1.5, 1.5))])
    result = served(asked, 1, batching=batching)
    # 10 ms of service and 2.5 of network: 80 in a second, the first at 0, the last at 987.5.
    assert result.done.tolist() == result.arrived.tolist() == result.source_arrived.tolist() == [80]
    assert finished(result) == (12.5 * np.arange(1, 81)).tolist()
    assert result.arrived_by_window.sum() == 80


def test_clients_fill_batches_and_none_is_sent_after_the_end() -> None:
    result = served(system([replica()]), 4, duration_ms=100.0)
    # A full batch of four takes 16: seven of them, the last begun at 96.
    assert result.batches.tolist() == result.batches_full.tolist() == [7]
    assert result.end_ms == 7 * 16.0


def test_late_batches_of_clients_that_come_back_together() -> None:
    # At 10 the first client is back, after the three others were made a batch (14 ms) of; and so on, one and three.
    result = served(system([replica()]), 4, duration_ms=40.0, batching="late")
    assert finished(result) == [10.0, 24.0, 24.0, 24.0, 34.0, 48.0, 48.0, 48.0, 58.0]


@pytest.mark.parametrize("clients", [1, 3, 20])
@pytest.mark.parametrize("routing", ["round-robin", "least-load"])
def test_the_interactive_response_time_law(clients: int, routing: str) -> None:
    """As many clients as requests under way: N = X R, with the throughput X and the mean response time R."""
    asked = system([replica(request_ms=(3.0, 3.0)), replica(latencies_ms=(7.0, 21.0))])
    result = served(asked, clients, 50_000.0, service="exponential", batching="late", routing=routing)
    response_ms = result.source_sums_ms[0] / result.source_done[0]
    throughput = result.source_done[0] / result.end_ms
    assert throughput * response_ms == pytest.approx(clients, rel=0.01)


@pytest.mark.slow
def test_machines_and_one_repairman() -> None:
    """N clients, each away for Z (the network), one server of exponential services S: the machine repairman, whose
    server is idle with the chance 1 / sum of N! / (N - k)! (S / Z)^k. That Z is constant changes nothing."""
    clients, service, away = 5, 10.0, 30.0
    asked = system([replica(batch_size=1, batches=(1,), latencies_ms=(service,), request_ms=(away,))])
    result = served(asked, clients, 2_000_000.0, service="exponential")
    weight, total = 1.0, 1.0
    for k in range(clients):
        weight *= (clients - k) * service / away
        total += weight
    assert result.busy_ms[0] / result.until_ms == pytest.approx(1 - 1 / total, rel=0.01)


def test_an_application_is_asked_again_when_all_of_it_is_done() -> None:
    plain = system([replica(0, batch_size=1), replica(1, batch_size=1)], models=2)
    stages = (SimStage(model=0), SimStage(model=1, after=(0,), fan_out=2.0))
    app = SimSource(name="app", application=True, rate_rps=1.0, slo_ms=100.0, stages=stages)
    result = served(replace(plain, sources=(app,)), 1)
    # 10 ms, then two of 10 ms on one replica: 30 ms each time.
    assert result.source_done.tolist() == [34] and result.source_arrived.tolist() == [34]
    assert result.done.tolist() == [34, 68]


def test_warm_up_is_not_counted() -> None:
    result = served(system([replica(batch_size=1)]), 1, warmup_ms=500.0)
    assert result.source_arrived.tolist() == result.arrived.tolist() == result.done.tolist() == [50]


def test_answers_that_never_end_are_given_up_by_the_number_of_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = system([replica(batch_size=1)])
    monkeypatch.setenv("GKEST_LIMITS", "requests=50")
    assert served(asked, 1, duration_ms=500.0).done.tolist() == [50]
    with pytest.raises(UsageError, match=r"arrivals: found 51 requests .* \(GKEST_LIMITS=requests=NUMBER"):
        served(asked, 1, duration_ms=1000.0)


def test_requests_that_pile_up_and_speeds_that_change_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = system([replica(batch_size=1)])
    crowd = ClosedArrivals((10_000,))
    monkeypatch.setenv("GKEST_LIMITS", "under_way_bytes=1e5")
    with pytest.raises(
        UsageError, match=r"requests under way: found .* \(GKEST_LIMITS=under_way_bytes=NUMBER"
    ):
        run(closed_loop(asked), crowd, 1000.0)
    monkeypatch.setenv("GKEST_LIMITS", "speeds=100")
    beside = system([replica(batch_size=1), replica(batch_size=1)])
    with pytest.raises(UsageError, match=r"interference: found 10[1-9] changes of a batch's speed"):
        run(closed_loop(beside), ClosedArrivals((8,)), 10_000.0, interference="contention")


def refused(asked: System, **options: object) -> str:
    with pytest.raises(UsageError) as caught:
        Simulator(closed_loop(asked), Options(duration_ms=10.0, **options))  # type: ignore[arg-type]
    return str(caught.value)


def test_loops_without_time_are_refused() -> None:
    assert "latencies_ms is (0.0, 1.0), expected 1e-06 ms or more" in refused(
        system([replica(latencies_ms=(0.0, 1.0))])
    )
    assert "drop late: expected none where clients wait" in refused(system([replica()]), drop="late")
    plain = system([replica()])
    never = replace(plain.sources[0], stages=(SimStage(model=0, fan_out=0.5),))
    assert "asked at least once" in refused(replace(plain, sources=(never,)))


def test_the_words_of_closed_arrivals() -> None:
    made = make_arrivals("closed:16", [1.0, 2.0], ["a", "b"])
    assert isinstance(made, ClosedArrivals) and made.clients == (16, 16) and made.sources == 2
    for kind in ("closed:", "closed:0", "closed:1.5", "closed:-1"):
        with pytest.raises(UsageError, match="clients, expected 1 to 1,000,000"):
            make_arrivals(kind, [1.0], ["a"])
    with pytest.raises(UsageError, match="closed:4: rates have no use"):
        make_arrivals("closed:4", [1.0], ["a"], rate_scale=2.0)
