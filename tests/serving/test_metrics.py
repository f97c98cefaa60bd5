"""Figures of a service in Prometheus' text format."""

from __future__ import annotations

import pytest

from gkestimator.serving.metrics import MeteredAnswer, ServiceMeters

prometheus_client = pytest.importorskip("prometheus_client")


def _values(meters: ServiceMeters) -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    values = {}
    for family in text_string_to_metric_families(meters.render().decode()):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            values[f"{sample.name.removeprefix('gkest_serve_')} {labels}".strip()] = sample.value
    return values


def test_every_figure_of_a_model() -> None:
    now = 100.0
    meters = ServiceMeters(lambda: now)
    meters.plan_version = 3
    meters.replans = {"done": 2}
    meters.outstanding = {"a": 5}
    meters.replicas = {"a": 2}
    meter = meters.of("a")
    for number in range(100):
        now = 100.0 + number / 10
        meter.arrive()
        meter.answer(
            MeteredAnswer(total_ms=float(number), status="ok", on_time=number < 80, batch=4, queue_ms=2.0)
        )
    for _ in range(25):
        meter.arrive()
        meter.answer(MeteredAnswer(total_ms=1.0, status="refused", on_time=False, batch=None, queue_ms=None))
    values = _values(meters)
    assert values["plan_version"] == 3
    assert values["replans_total done"] == 2
    assert values["requests_total a,ok"] == 100
    assert values["requests_total a,refused"] == 25
    assert values["on_time_total a"] == 80
    assert values["on_time_ratio a"] == 0.64
    assert values["rate_rps a"] == pytest.approx(125 / 9.9)
    assert values["batch_size a"] == 4
    assert values["queue_ms a"] == 2
    assert values["latency_p50_ms a"] == 49.5
    assert values["latency_p99_ms a"] == pytest.approx(98.01)
    assert (values["outstanding a"], values["replicas a"]) == (5, 2)


def test_gauges_forget_and_counters_do_not() -> None:
    now = 0.0
    meters = ServiceMeters(lambda: now)
    meter = meters.of("a")
    meter.arrive()
    meter.answer(MeteredAnswer(total_ms=5.0, status="ok", on_time=True, batch=1, queue_ms=0.0))
    now = 1000.0
    values = _values(meters)
    assert values["requests_total a,ok"] == 1
    assert values["rate_rps a"] == 0
    assert "latency_p50_ms a" not in values


def test_memory_is_bounded() -> None:
    meters = ServiceMeters()
    meter = meters.of("a")
    for _ in range(20_000):
        meter.arrive()
        meter.answer(MeteredAnswer(total_ms=5.0, status="ok", on_time=True, batch=1, queue_ms=0.0))
    assert meter.by_status["ok"] == 20_000
    assert len(meter._answers) == 4096
