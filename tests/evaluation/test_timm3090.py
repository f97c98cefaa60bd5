"""The section of 88 timm models: its groups, its figures against figures worked out by hand, and its table."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
SHARED = os.environ.get("GKEST_SHARED")


def case(model: str, layout: str, measured: float, estimated: float) -> Any:
    from benchmarks.accuracy.timm_cases import TimmCase

    return TimmCase(
        model=model, family="net", attention="none", group="report", layout=layout, batch=8, measured_ms=measured,
        latency_ms=estimated, low_ms=0.9 * estimated, high_ms=1.1 * estimated, roofline_ms=measured / 2,
        kinds={"conv": 3.0, "relu": 1.0},
    )  # fmt: skip


CASES = (
    ("slower_last", "nchw", 10.0, 10.0), ("slower_last", "nhwc", 12.0, 11.0),
    ("faster_last", "nchw", 10.0, 12.0), ("faster_last", "nhwc", 8.0, 13.0),
    ("equal", "nchw", 10.0, 10.0), ("equal", "nhwc", 10.1, 9.0),
)  # fmt: skip


def test_layouts_are_compared_where_both_were_measured_at_one_batch_size() -> None:
    from benchmarks.accuracy.timm3090 import difference_error, differences, sign_right

    cases = [case(*row) for row in CASES]
    cases.append(case("alone", "nchw", 10.0, 10.0))
    cases.append(replace(case("alone", "nhwc", 20.0, 5.0), batch=4))
    assert differences(cases, "measured_ms") == pytest.approx([20.0, -20.0, 1.0])
    assert sign_right(cases) == (50.0, 2)
    # Estimated differences are 10, 8.33 and -10 %: 10, 28.33 and 11 points off.
    assert difference_error(cases) == pytest.approx(11.0)


def test_a_model_reported_shows_in_the_bars_and_on_the_page(tmp_path: Path) -> None:
    from dataclasses import asdict

    from benchmarks.accuracy.timm3090 import JOB, lines, page
    from benchmarks.accuracy.workspace import Workspace

    space = Workspace(tmp_path / "nowhere", tmp_path / "cache")
    space.__dict__["data_key"] = space.__dict__["recipe_key"] = "test"
    assert page(space) is None
    assert {line.figure for line in lines(space)} == {"not measured"}
    known = replace(case("known", "nchw", 1.0, 9.0), group="development")
    space.keep(JOB, ["x"], [asdict(c) for c in (*(case(*row) for row in CASES), known)])
    figures = {
        line.what.partition(": ")[2]: line.figure for line in lines(space) if "nchw, models" in line.what
    }
    assert figures["mean"] == "6.7 % (n 3, roofline 50.0 %)"
    assert figures["worst"] == "20.0 % (roofline 50.0 %)"
    assert figures["share inside"] == "66.7 %"
    text = "\n".join(page(space) or [])
    assert "| equal | net | none | nchw | 8 | 10.0 | 10.0 |" in text
    assert "| known |" not in text
    assert "conv 75, relu 25" in text


@pytest.mark.skipif(not SHARED, reason="GKEST_SHARED is not set: no public measurements")
def test_graphs_are_drawn_before_tuning_and_rows_are_of_one_version() -> None:
    from benchmarks.accuracy.timm_cases import timm_graphs, timm_rows

    graphs = timm_graphs(Path(SHARED or ""))
    assert [sum(g.group == group for g in graphs) for group in ("report", "development")] == [30, 58]
    rows = timm_rows(Path(SHARED or ""))
    assert rows["resnet101", 224, "nchw"].step_ms == pytest.approx(523.457, abs=1e-3)
    assert rows["resnet101", 224, "nhwc"].step_ms == pytest.approx(447.629, abs=1e-3)
