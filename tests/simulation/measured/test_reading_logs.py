"""Logs of servers: ours come back as they were written, others' are read by their headings or refused in one line."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from gkestimator.core.errors import TableError
from gkestimator.simulation.measured.reading import read_serving_log
from gkestimator.tables.request_log import STATUSES, LoggedRequest, log_heading, log_line


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(text)
    return path


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    served = LoggedRequest(
        source="a, the first",
        model="a",
        replica="a-0",
        gpu="T4-0",
        batch=4,
        arrived_ms=1000.5,
        router_ms=0.25,
        network_ms=0.5,
        queue_ms=2.0,
        gpu_ms=8.125,
        total_ms=11.0,
        on_time=True,
        request="17",
        plan_version=2,
    )
    refused = LoggedRequest(model="b", arrived_ms=1000.0, total_ms=0.1, on_time=False, status="refused")
    log = read_serving_log(written(tmp_path, log_heading() + log_line(served) + log_line(refused)))
    assert log.models == ("a", "b") and log.replicas == ("a-0",) and log.notes == ()
    # In the order of arrival, from the first.
    assert log.model.tolist() == [1, 0] and log.arrived_ms.tolist() == [0.0, 0.5]
    assert [STATUSES[s] for s in log.status] == ["refused", "ok"]
    assert log.on_time.tolist() == [0, 1] and log.batch.tolist() == [0, 4] and log.replica.tolist() == [-1, 0]
    assert log.total_ms.tolist() == [0.1, 11.0] and log.gpu_ms[1] == 8.125 and math.isnan(log.queue_ms[0])
    assert log.answered.tolist() == [False, True] == log.in_parts.tolist()


def test_other_servers_headings_and_units(tmp_path: Path) -> None:
    text = "timestamp,model_name,latency_s,code,host\n"
    text += "2026-11-23T10:00:00.250Z,a,0.02,200,x\n2026-11-23T10:00:00Z,a,0.5,504,x\n"
    log = read_serving_log(written(tmp_path, text))
    assert log.arrived_ms == pytest.approx([0.0, 250.0]) and log.total_ms == pytest.approx([500.0, 20.0])
    assert [STATUSES[s] for s in log.status] == ["timeout", "ok"]
    assert not log.in_parts.any() and "host" in log.notes[0]
    again = read_serving_log(written(tmp_path, "arrival_us,model,duration_ms\n5000,a,3\n4000,a,\n"))
    assert again.arrived_ms.tolist() == [0.0, 1.0]
    assert np.isnan(again.total_ms[0]) and again.answered.tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty file"),
        ("arrived_ms,model,total_ms\n", "no request"),
        ("arrived_ms,total_ms\n1,2\n", "found columns arrived_ms, total_ms, expected one that is model"),
        ("arrived_ms,model\n1,a\n", "expected one that is total_ms"),
        ("arrived_ms,model,latency\n1,a,2\n", "'latency' says no unit"),
        ("arrived_ms,model,latency_ms,duration_ms\n1,a,2,3\n", "either of which may be total_ms"),
        ("arrived_ms,model,total_ms\n1,a,2\n1,a,-2\n", "row 2, column total_ms: found '-2', expected a time"),
        ("arrived_ms,model,total_ms\n1,,2\n", "column model: found '', expected a name"),
        ("timestamp,model,total_ms\nyesterday,a,2\n", "expected a date"),
        ("arrived_ms,model,total_ms\nnan,a,2\n", "column arrived_ms"),
        ("arrived_ms,model,total_ms,batch\n1,a,2,1.5\n", "expected a whole number of at least 1"),
        ("arrived_ms,model,total_ms,status\n1,a,2,gone\n", "expected one of ok, refused"),
        ("arrived_ms,model,total_ms\n1,a\n", "found 2 cells, expected 3"),
        ("arrived_ms,arrived_ms,model,total_ms\n1,1,a,2\n", "stands twice"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TableError) as error:
        read_serving_log(written(tmp_path, text))
    message = str(error.value)
    assert words in message and "log.csv" in message and "\n" not in message
