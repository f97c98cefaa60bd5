"""The picture of a requirement table: what it says, that it stands alone, and that ``--plot`` writes it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gkestimator.cli import run
from gkestimator.estimation.api import EstimateResult, estimate_rows
from gkestimator.onnx_io.demo import write_resnet50
from gkestimator.reporting.requirements_picture import draw_requirements, requirements_figure
from gkestimator.tables import Requirement

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_resnet50(tmp_path_factory.mktemp("picture"))


@pytest.fixture(scope="module")
def result(model: Path) -> EstimateResult:
    return estimate_rows([model], gpus=("T4", "A100"), batch_sizes=(1, 8), kernels=True)


def words_of(rows: list[Requirement] | tuple[Requirement, ...], **more: object) -> str:
    """All texts of the picture, of every panel."""
    figure = requirements_figure(rows, **more)  # type: ignore[arg-type]
    figure.draw_without_rendering()
    texts = figure.findobj(lambda artist: hasattr(artist, "get_text"))
    return "\n".join(text.get_text() for text in texts)


def one_batch(result: EstimateResult) -> list[Requirement]:
    return [row for row in result.rows if row.batch_size == 8]


def test_a_sweep_has_a_line_and_a_band_for_every_gpu(result: EstimateResult) -> None:
    figure = requirements_figure(result.rows)
    latency, throughput = figure.subfigs[0].axes
    # Two GPUs of different dtype under `auto` stand in one panel all the same.
    assert [line.get_label() for line in latency.lines] == ["T4, fp32", "A100-SXM4-80GB, tf32"]
    assert [len(axes.collections) for axes in (latency, throughput)] == [2, 2]
    row = next(row for row in result.rows if row.gpu == "T4" and row.batch_size == 8)
    assert latency.lines[0].get_ydata()[1] == row.latency_ms
    assert throughput.lines[0].get_ydata()[1] == pytest.approx(row.throughput_rps)
    said = words_of(result.rows)
    assert "Estimated, not measured" in said
    assert "90 % interval" in said


def test_bars_say_where_the_time_goes(result: EstimateResult) -> None:
    rows = one_batch(result)
    figure = requirements_figure(rows, kernels=result.kernel_rows)
    (axes,) = figure.subfigs[0].axes
    ends = {round(bar.get_y() + bar.get_height() / 2): bar.get_x() + bar.get_width() for bar in axes.patches}
    assert list(ends.values()) == pytest.approx([row.latency_ms for row in rows])
    said = words_of(rows, kernels=result.kernel_rows)
    for words in ("GPU: compute", "GPU: memory traffic", "GPU waits for the host", "latency, ms"):
        assert words in said
    # Without kernels the GPU's work is not divided.
    assert "GPU works" in words_of(rows)


def test_unknown_is_not_drawn_as_known(result: EstimateResult) -> None:
    rows = one_batch(result)
    open_end = replace(rows[0], latency_high_ms=None)
    assert " to " in words_of(rows[:1])
    assert " to " not in words_of([open_end])
    assert f"at least {rows[0].latency_low_ms:.1f}" in words_of([open_end])
    untimed = [replace(row, latency_ms=None) for row in rows]
    assert "No latency is known" in words_of(untimed)
    assert "No latency is known" in words_of([replace(row, kernels=0) for row in rows])
    too_large = [replace(row, mreq_pct=120.0) for row in result.rows]
    assert "does not fit" in words_of(too_large)
    assert "does not fit" in words_of(too_large[:1])
    measured = [replace(row, source="measured") for row in rows]
    assert "Estimated" not in words_of(measured)


def test_many_models_and_gpus_are_cut_and_it_says_so(result: EstimateResult) -> None:
    models = [replace(row, model=f"$m{i}") for i in range(12) for row in one_batch(result)]
    assert "4 further tables" in words_of(models)
    gpus = [replace(row, gpu=f"GPU-{i}") for i in range(60) for row in result.rows]
    assert "At most" in words_of(gpus)


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_the_same_rows_give_the_same_bytes(result: EstimateResult, form: str) -> None:
    once, again = (draw_requirements(one_batch(result), form, kernels=result.kernel_rows) for _ in range(2))
    assert once == again


def test_the_command_writes_it_beside_the_table(
    model: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    picture = tmp_path / "out.svg"
    words = ["estimate", str(model), "--gpu", "L4", "--batch-size", "8", "--plot", str(picture)]
    assert run([*words, "--format", "csv"]) == 0
    out, err = capsysbinary.readouterr()
    assert picture.read_bytes().startswith(b"<?xml")
    assert len(out.splitlines()) == 2  # no kernels in the table, though the picture needs them
    assert str(picture).encode() in err


def test_what_cannot_be_drawn_is_refused_before_the_estimate(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["estimate", str(model), "--gpu", "L4", "--plot", str(tmp_path / "out.gif")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert re.search(r"--plot .*expected \.png, \.svg, \.pdf", said.err)


def test_a_picture_that_cannot_be_written_does_not_cost_the_table(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "missing" / "out.png"
    words = ["estimate", str(model), "--gpu", "L4", "--format", "csv", "--plot", str(picture)]
    assert run(words) == 1
    said = capsys.readouterr()
    assert "resnet50" in said.out
    assert "--plot" in said.err
