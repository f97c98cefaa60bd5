"""The benchmark that serves for real: what client and server saw is joined, and never wrongly."""

from __future__ import annotations

import pytest
from _serving_load import Sent  # benchmarks/ is on the path
from _serving_runs import joined
from serving_truth import step_figures


def test_requests_are_joined_by_their_order_in_each_model() -> None:
    sent = [
        Sent("a", 0.0, 0.001, 20.0, "ok"),
        Sent("b", 0.0, 0.002, 30.0, "ok"),
        Sent("a", 0.1, 0.101, 5.0, "refused"),
        Sent("b", 0.1, 0.102, 9.0, "ok"),
    ]
    row = {
        "status": "ok",
        "batch": "2",
        "queue_ms": "4.0",
        "gpu_ms": "10.0",
        "replica": "x-0",
        "plan_version": "1",
    }
    rows = [
        {
            **row,
            "model": "a",
            "arrived_ms": "100.0",
            "batch": "",
            "queue_ms": "",
            "gpu_ms": "",
            "status": "refused",
        },
        {**row, "model": "a", "arrived_ms": "5.0"},
        {**row, "model": "b", "arrived_ms": "6.0"},
    ]
    log, share = joined(sent, rows)
    assert [r.arrived_ms for r in log] == pytest.approx([0.0, 1.0, 100.0, 101.0])
    assert (log[0].queue_ms, log[0].gpu_ms, log[0].batch, log[0].replica) == (4.0, 10.0, 2, "x-0")
    assert log[2].status == "refused" and log[2].queue_ms is None
    # The server has one row of b, the client two requests: whose it is nobody knows.
    assert log[1].queue_ms is None and log[3].queue_ms is None and share == 0.5
    # Parts that are more than the whole are another request's.
    log, _ = joined([Sent("a", 0.0, 0.0, 8.0, "ok")], rows[1:2])
    assert log[0].gpu_ms is None


def test_the_share_on_time_after_a_step() -> None:
    sent = []
    for n in range(400):
        due = n / 10
        late = 10 <= due < 16.3
        sent.append(Sent("a", due, due, 300.0 if late else 10.0, "ok"))
    figures = step_figures(sent, {"a": 100.0}, 10.0, 40.0)
    assert figures["on_time_before_pct"] == 100.0 and figures["on_time_after_pct"] == pytest.approx(
        100 * 237 / 300
    )
    assert figures["back_s"] == 6.5
