"""The accuracy command: which plans an experiment trains, what the bars say of known cases, and the page itself."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gkestimator.evaluation.cases import KernelCases
from gkestimator.training.plan import PLAN

ROOT = Path(__file__).parents[2]
GPUS = ("P100-PCIE-16GB", "T4", "V100-PCIE-32GB", "A100-PCIE-40GB")


def kernels(error: float, source: str = "neusight/train", count: int = 40) -> KernelCases:
    """Linear kernels on four GPUs, each predicted ``error`` above its time, intervals 20 % to either side."""
    gpu = np.repeat(GPUS, count)
    time = np.tile(np.geomspace(50, 5_000, count), len(GPUS))
    estimate = time * (1 + error)
    return KernelCases(
        gpu=gpu,
        source=np.full(len(gpu), source),
        family=np.full(len(gpu), "linear"),
        precision=np.full(len(gpu), "fp32"),
        measured_us=time,
        gap_us=np.zeros(len(gpu)),
        hold_us=np.zeros(len(gpu)),
        low_us=estimate / 1.2,
        high_us=estimate * 1.2,
        trained=np.ones(len(gpu), dtype=bool),
        in_range=np.ones(len(gpu), dtype=bool),
        estimates={"estimator": estimate, "roofline": time / 2, "analytical": time * 1.5},
    )


def whole(table: str, model: str, error: float, **changes: Any) -> dict[str, object]:
    from benchmarks.accuracy.whole import DEVELOPMENT, WholeCase

    case = WholeCase(
        table=table, group="development" if model in DEVELOPMENT[table] else "report", model=model,
        gpu="V100-SXM2-16GB", batch=4, measured_ms=10.0, latency_ms=10 * (1 + error), low_ms=9.0, high_ms=12.0,
        roofline_ms=5.0, analytical_ms=8.0, host_bound=False, coverage_pct=90.0, reserved_bytes=110, fresh_bytes=95,
        sm_util_pct=50.0, occupancy_mean_pct=40.0, occupancy_max_pct=90.0, measured_bytes=100.0,
        measured_sm_util_pct=55.0, measured_occupancy_mean_pct=40.0, measured_occupancy_max_pct=94.0,
    )  # fmt: skip
    return asdict(replace(case, **changes))


@pytest.fixture
def space(tmp_path: Path) -> Any:
    """A workspace with results whose figures are known; no measurement is read."""
    from benchmarks.accuracy.workspace import Workspace

    made = Workspace(tmp_path / "nowhere", tmp_path / "cache")
    made.__dict__["data_key"] = made.__dict__["recipe_key"] = "test"
    made.keep("shapes", ["x"], kernels(0.05))
    made.keep("larger", ["x"], kernels(0.30, "neusight/larger"))
    made.keep("gpu-T4", ["x"], kernels(0.25).where(gpu="T4"))
    made.keep("gpu-A100-PCIE-40GB", ["x"], kernels(0.15).where(gpu="A100-PCIE-40GB"))
    made.keep("member-xgboost", ["x"], kernels(0.07))
    rows = [
        whole("ethz", m, e) for m, e in (("alexnet", 0.02), ("bert", 0.06), ("xlnet", -0.40), ("gpt2", 0.9))
    ]
    made.keep("whole", ["x"], [*rows, whole("timm", "vgg19", 0.1), whole("timm", "resnet50", 0.5)])
    return made


def test_bars_against_figures_worked_out_by_hand(space: Any) -> None:
    from benchmarks.accuracy.figures import lines

    found = {line.what: line for line in lines(space)}
    shapes = found["shapes held out, GPUs seen: linear"]
    assert (shapes.figure, shapes.met) == ("5.0 %", True)
    larger = found["larger shapes, GPUs seen: linear without P4"]
    assert (larger.figure, larger.met) == ("30.0 %", False)
    left = found["one GPU left out: linear, mean of 2 GPUs"]
    assert (left.figure, left.met) == ("20.0 %", True)
    assert found["shapes held out, GPUs seen: bmm"].met is None
    head = "V100 fp32 whole models, report group"
    assert found[f"{head}: latency with copies, median"].figure == "6.0 %"
    assert found[f"{head}: latency with copies, mean"].figure == "16.0 %"
    assert (found[f"{head}: rows within 25 %"].figure, found[f"{head}: rows within 25 %"].met) == (
        "67 %",
        False,
    )
    assert found[f"{head}: reserved memory, one process, mean"].figure == "10.0 %"
    assert found[f"{head}: reserved memory, batch 4 alone, mean"].figure == "5.0 %"
    assert found[f"{head}: maximum occupancy, mean absolute error"].figure == "4.0 points"
    assert found["RTX 3090 AMP whole models, report group: worst"].figure == "10.0 %"
    seen = [found[f"90 % intervals, GPU seen: linear: {of}"] for of in ("share inside", "median width")]
    assert [line.figure for line in seen] == ["100.0 %", "37 % = 7.3 x"]
    assert [line.met for line in seen] == [
        False,
        False,
    ]  # 100 % inside is too wide an interval, not a better one
    left = found["90 % intervals, GPU left out: linear: share inside"]
    assert (left.figure, left.met) == ("50.0 %", False)


@pytest.mark.slow
def test_the_page_has_every_part_and_says_what_is_missing(space: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.accuracy.report import write_report

    space.__dict__["_measured"] = ([], [], {})
    space.__dict__["rows"] = _no_rows()
    page = write_report(space, tmp_path / "out").read_text(encoding="utf-8")
    folder = tmp_path / "out" / "accuracy"
    expected = {
        "accuracy": ("earlier state of the recipe:** h100-gemm, ", "## Published peers", "[Whole models](accuracy/whole-models.md)"),
        "bars": ("are met. Not met:", "[bars-1.csv](bars-1.csv)"),
        "kernels-shapes": ("| linear | neusight/train | 160 | 5.0 |", "| xgboost |"),
        "kernels-gpus": ("| linear | 2 | 20.0 |",),
        "whole-models": ("| **all report** | report | 3 |",),
        "usher": ("Not run.", "lies 2.00 points below", "best were xgboost 1."),
    }  # fmt: skip
    pages = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    pages["accuracy"] = page
    for name, several in expected.items():
        for words in several:
            assert words in pages[name]
    rows = (folder / "bars-1.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0] == "what,bar,figure,met" and '"shapes held out, GPUs seen: linear",8 %,5.0 %,yes' in rows
    # What a buyer reads: what, where, how many cases, how far off, beside the roofline, how often inside.
    row = "| whole models, FP32, PyTorch: 3 models | V100 (kernels trained on) | 3 | 6.0 % | 16.0 % | 50.0 % | 100 % |"
    assert row in page
    assert len(page.split()) < 1500
    pictures = sorted(folder.glob("*.png"))
    assert len(pictures) == 5
    assert all(0 < p.stat().st_size < 100_000 for p in pictures)
    assert all(any(f"({p.name})" in text for text in pages.values()) for p in pictures)


def test_a_table_that_nobody_reads_through_is_a_file(tmp_path: Path) -> None:
    from benchmarks.accuracy.report import MOST_ROWS, long_tables_apart

    short = "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * MOST_ROWS
    text = f"# T\n\n{short}\nBetween.\n\n{short}| **all** | 2,000 |\n\nEnd.\n"
    left = f"# T\n\n{short}\nBetween.\n\nAll {MOST_ROWS + 1} rows (a, b): [t-1.csv](t-1.csv)\n\nEnd.\n"
    assert long_tables_apart(text, tmp_path / "t.md") == left
    assert (tmp_path / "t-1.csv").read_text().splitlines()[-2:] == ["1,2", 'all,"2,000"']


def _no_rows() -> Any:
    from gkestimator.training.rows import TrainingRows, kernel_table

    empty = kernel_table(family="linear", variant="linear", precision="fp32", columns={"flops": np.empty(0)})
    return TrainingRows.make(empty, gpu=np.empty(0, dtype=object), measured_us=np.empty(0), source="none")


def test_a_result_of_another_recipe_is_known_as_stale(space: Any) -> None:
    assert space.stale(["shapes", "usher-tau"]) == ["usher-tau"]
    space.__dict__["recipe_key"] = "changed"
    assert space.stale(["shapes"]) == ["shapes"]
    assert not space.current("shapes", ["y"])
    assert space.current("shapes", ["x"])  # what it depends on itself is unchanged, so it stands
    assert space.stale(["shapes"]) == []


def test_source_files_follow_imports() -> None:
    from benchmarks.accuracy.workspace import sources_of

    names = {
        p.relative_to(ROOT / "gkestimator").as_posix() for p in sources_of("gkestimator.training.recipe")
    }
    assert {"training/recipe.py", "kernel_models/regressors/stack.py", "kernel_models/roofline.py"} <= names
    assert not any(n.startswith(("lowering/", "onnx_io/", "estimation/")) for n in names)


def test_every_family_trained_on_has_a_plan_for_gpus_seen() -> None:
    # A plan of one source alone (TensorRT's engines) has too few rows of a GPU for that.
    pairs = {pair for plan in PLAN if not plan.sources for pair in plan.trains}
    for pair in pairs:
        assert any(plan.scope == "seen" and pair in plan.trains for plan in PLAN), pair


def test_the_largest_sum_within_a_window_of_starts() -> None:
    from benchmarks.accuracy.usher import largest_within

    start, value = np.array([0.0, 5.0, 10.0, 30.0]), np.array([10.0, 40.0, 20.0, 55.0])
    assert largest_within(start, value, 0.0) == 55
    assert largest_within(start, value, 5.0) == 60
    assert largest_within(start, value, 10.0) == 70
    assert largest_within(start[::-1].copy(), value[::-1].copy(), 25.0) == 115
    assert largest_within(start, value, 100.0) == 125
