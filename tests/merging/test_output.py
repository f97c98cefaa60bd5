"""The lines that close a report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gkestimator.merging.checking import OutputCheck
from gkestimator.merging.output import render_report
from gkestimator.merging.pricing import Price
from gkestimator.merging.report import MergeReport, Settings

COST = Price(
    latency_ms=2.0, gpu_ms=1.0, dram_bytes=10, weight_bytes=8, flops=6, kernels=4, calls=3,
    latency_low_ms=1.5, latency_high_ms=2.5, resident_bytes=8,
)  # fmt: skip
REPORT = MergeReport(
    settings=Settings(
        gpu="V100-SXM2-16GB", runtime="onnxruntime", dtype="auto", omega=0.4, tolerance=1e-7, tau_ms=0.001,
        group_distance=0.08, price="latency", always=False,
    ),
    models=(), merged=(), refused=(), regions=(), before=COST, after=COST, confidence=None, l2_bytes=1,
    nothing="so", stored_bytes=8, file_bytes=None, check=None, check_reason="not asked for",
)  # fmt: skip


@pytest.mark.parametrize(("changed", "text"), [(200, "100 %"), (199, "99.5 %"), (1, "0.500 %"), (0, "0 %")])
def test_the_share_of_changed_classes(changed: int, text: str) -> None:
    check = OutputCheck(
        samples=4, seed=0, batch_sizes={}, largest_relative_difference=None, predictions=200,
        changed_predictions=changed, class_changed_pct=100 * changed / 200, outputs=(),
    )  # fmt: skip
    lines = render_report(replace(REPORT, check=check), "table").decode().splitlines()
    assert lines[-2:] == [
        "outputs: largest relative difference – over 4 random inputs of each model",
        f"predicted class: changed in {changed} of 200 ({text})",
    ]


def test_what_is_not_known_is_null() -> None:
    known_in_part = replace(COST, latency_high_ms=None)
    found = json.loads(render_report(replace(REPORT, after=known_in_part), "json"))
    assert (
        found["after"]["latency_high_ms"] is None and found["file_bytes"] is None and found["check"] is None
    )
    table = render_report(replace(REPORT, after=known_in_part), "table").decode()
    assert "2.00 (1.50–2.50)" in table
    assert next(line for line in table.splitlines() if line.startswith("side by side")).split()[3] == "2.00"
