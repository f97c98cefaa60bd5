"""Records of entries, read back from a file that anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gkestimator.core.errors import TableError
from gkestimator.profiling.records import EntryRecord, MemoryUse, read_records, record_line

WHOLE = EntryRecord(
    entry_id="a",
    status="ok",
    repeats=2,
    host_us=(1.5, 2.0),
    latency_us=(10.25, 11.0),
    memory=MemoryUse(reserved_bytes=2**31, allocated_bytes=7, device_bytes=None),
    cpu_nodes=0,
)


def test_a_whole_model_s_record_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(record_line(WHOLE))
    assert list(read_records(path)) == [WHOLE]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("latency_us", ["1", "2"], "latency_us: found '1', expected microseconds from 0"),
        ("latency_us", [1, True], "latency_us: found 'True'"),
        ("latency_us", [1, -2], "latency_us: found '-2'"),
        ("latency_us", [1, float("nan")], "found NaN, expected a finite number"),
        ("latency_us", [1, float("inf")], "found Infinity, expected a finite number"),
        ("latency_us", [1, 10**400], "a number of 401 digits"),
        ("latency_us", [1, None], "latency_us: found 'None'"),
        ("latency_us", [1], "latency_us: found 1 times, expected one for each repeat"),
        ("latency_us", [], "latency_us: found 0 times"),
        ("latency_us", "12", "latency_us: found str, expected a list"),
        ("latency_us", {"0": 1, "1": 2}, "latency_us: found dict, expected a list"),
        ("memory", [1, 2, 3], "memory: expected an object of allocated_bytes, device_bytes, reserved_bytes"),
        ("memory", {"other": 1}, "memory: expected an object"),
        ("memory", {"reserved_bytes": "1"}, "memory.reserved_bytes: found '1', expected a whole number"),
        ("memory", {"reserved_bytes": -1}, "memory.reserved_bytes: found '-1'"),
        ("memory", {"device_bytes": 1.5}, "memory.device_bytes: found '1.5'"),
        ("memory", {"device_bytes": float("nan")}, "found NaN, expected a finite number"),
        ("memory", {"allocated_bytes": 2**60}, "memory.allocated_bytes: found '1152921504606846976'"),
        ("memory", {"allocated_bytes": True}, "memory.allocated_bytes: found 'True'"),
        ("cpu_nodes", -3, "cpu_nodes: found '-3'"),
        ("cpu_nodes", "many", "cpu_nodes: found 'many'"),
        ("host_us", [1, 10**400], "a number of 401 digits"),
    ],
)
def test_a_hostile_value_is_refused_in_one_line(tmp_path: Path, field: str, value: Any, says: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({**json.loads(record_line(WHOLE)), field: value}) + "\n")
    with pytest.raises(TableError) as caught:
        list(read_records(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: line 1 is no record of an entry: ")
    assert says in message
    assert "\n" not in message
    assert len(message) < 400
