"""The picture of a language model: a line for every GPU, hollow points for what does not fit, the same bytes each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from gkestimator.cli import run
from gkestimator.llm.estimating import estimate_llm
from gkestimator.llm.request import LlmRequest

pytest.importorskip("matplotlib")
CONFIG = Path(__file__).parents[1] / "data" / "decoders" / "llama-3.1-8b.json"


def test_lines_points_and_bands() -> None:
    from gkestimator.reporting.llm_picture import draw_llm, llm_figure

    rows = estimate_llm(LlmRequest(model=CONFIG, gpus=("L4", "H100"), batch_sizes=(1, 64)))
    figure = llm_figure(rows)
    answering, beginning = figure.axes
    assert [line.get_label() for line in answering.lines] == ["L4", "H100-SXM"]
    assert list(answering.lines[1].get_xdata()) == [row.tpot_ms for row in rows if row.gpu == "H100-SXM"]
    assert [text.get_text() for text in answering.texts] == ["1", "64", "1", "64"]
    # The L4 has no room for 64 requests: that point alone is hollow.
    points = [
        scatter.get_facecolors() for scatter in answering.collections if len(scatter.get_offsets()) == 2
    ]
    assert [[bool((face[:3] == 1).all()) for face in faces] for faces in points] == [
        [False, True],
        [False, False],
    ]
    assert len(beginning.lines) == 2
    assert draw_llm(rows, "svg") == draw_llm(rows, "svg")


def test_the_command_writes_it_beside_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "a.png"
    assert run(["llm", str(CONFIG), "--gpu", "H100", "--batch", "1,8", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "TPOT ms (90 %)" in capsys.readouterr().out
    assert run(["llm", str(CONFIG), "--gpu", "H100", "--plot", str(tmp_path / "a.gif")]) == 2
    assert ".png" in capsys.readouterr().err
