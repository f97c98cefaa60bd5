"""Draw six models under every runtime on four GPUs, and refresh the figures of docs/explanation/runtimes.md.

    python benchmarks/runtimes_picture.py [FOLDER]

Takes half a minute and needs matplotlib alone. Half precision, as models are deployed; the models are built by ``_runtimes_models.py``. Writes
``docs/pictures/runtimes.png`` and the table between the page's two marks; ``FOLDER`` (default: ``docs``) holds both.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _runtimes_models import write_models

import gkestimator
from gkestimator.hardware.runtimes import RUNTIMES
from gkestimator.reporting.requirements_picture import HUES
from gkestimator.reporting.style import INK, drawing, new_figure, saved

GPUS = {"T4": "T4", "A100": "A100-SXM4-40GB", "L40S": "L40S", "H100": "H100-SXM"}
BATCHES = (1, 32)
LABELS = {
    "torch": "PyTorch, eager",
    "onnxruntime": "ONNX Runtime, CUDA",
    "onnxruntime_tensorrt": "ONNX Runtime, TensorRT",
    "tensorrt": "TensorRT",
}
MARKS = ("<!-- figures of benchmarks/runtimes_picture.py -->", "<!-- end of the figures -->")
_WORTH_DRAWING = 1.05
_WIDTH, _HEIGHT = 11.0, 5.2  # inches


def main(folder: Path) -> int:
    """Write picture and table into ``folder``; return 0."""
    rows = answers()
    (folder / "pictures" / "runtimes.png").write_bytes(picture(rows))
    page = folder / "explanation" / "runtimes.md"
    before, rest = page.read_text(encoding="utf-8").split(MARKS[0])
    _, after = rest.split(MARKS[1])
    table = "\n".join(speedups(rows))
    page.write_text(f"{before}{MARKS[0]}\n\n{table}\n\n{MARKS[1]}{after}", encoding="utf-8")
    print(table)
    return 0


def answers() -> dict[tuple[str, str, str, int, bool], Any]:
    """Return the row of each model, runtime, GPU, batch size, without and with a CUDA graph."""
    found = {}
    by_name = {name: short for short, name in GPUS.items()}
    with tempfile.TemporaryDirectory() as folder:
        paths = write_models(Path(folder))
        for runtime in RUNTIMES:
            for graph in (False, True):
                for name, path in paths.items():
                    table = gkestimator.estimate(
                        path,
                        gpus=list(GPUS.values()),
                        batch_sizes=BATCHES,
                        dims={"sequence": 128} if name.startswith("MiniLM") else {},
                        runtime=runtime,
                        dtype="fp16",
                        cuda_graph=graph,
                    )
                    for row in table.itertuples():
                        found[name, runtime, by_name[row.gpu], int(row.batch_size), graph] = row
    return found


def picture(rows: Mapping[tuple[str, str, str, int, bool], Any]) -> bytes:
    """Return the picture (PNG): a panel for each model and batch size, latency on a logarithmic axis."""
    names = list(dict.fromkeys(key[0] for key in rows))
    with drawing():
        figure = new_figure(_WIDTH, _HEIGHT)
        panels = figure.subplots(len(BATCHES), len(names))
        for line, batch in zip(panels, BATCHES, strict=True):
            for axes, name in zip(line, names, strict=True):
                _draw(axes, name, batch, rows)
                axes.set_title(f"{name}\nbatch {batch}")
            line[0].set_ylabel("latency, ms")
        handles, words = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, words, loc="outside lower center", ncols=len(words))
        return saved(figure, "png")


def _draw(axes: Any, name: str, batch: int, rows: Mapping[tuple[str, str, str, int, bool], Any]) -> None:
    from matplotlib.ticker import LogLocator

    for at, (runtime, label) in enumerate(LABELS.items()):
        colour = HUES[at]
        shift = (at - (len(LABELS) - 1) / 2) * 0.18
        for place, gpu in enumerate(GPUS):
            row = rows[name, runtime, gpu, batch, False]
            x = place + shift
            axes.plot(
                [x, x], [row.latency_low_ms, row.latency_high_ms], color=colour, linewidth=1.6, alpha=0.45
            )
            axes.plot(
                x, row.latency_ms, "o", color=colour, markersize=4.2, label=label if place == 0 else None
            )
            captured = rows[name, runtime, gpu, batch, True]
            if row.latency_ms > _WORTH_DRAWING * captured.latency_ms:
                axes.plot(x, captured.latency_ms, "o", color=colour, markersize=4.2, markerfacecolor="white")
    axes.plot([], [], "o", color=INK, markersize=4.2, markerfacecolor="white", label="with --cuda-graph")
    axes.set_yscale("log")
    axes.set_xticks(range(len(GPUS)), list(GPUS))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(visible=False, axis="x")


def speedups(rows: Mapping[tuple[str, str, str, int, bool], Any]) -> list[str]:
    """Return a Markdown table: how many times faster TensorRT is than ONNX Runtime's CUDA provider, by model and GPU."""
    names = list(dict.fromkeys(key[0] for key in rows))
    lines = [f"| | {' | '.join(GPUS)} |", f"|---|{'---|' * len(GPUS)}"]
    for name in names:
        cells = []
        for gpu in GPUS:
            pair = []
            for batch in BATCHES:
                slow, fast = (
                    rows[name, runtime, gpu, batch, False] for runtime in ("onnxruntime", "tensorrt")
                )
                pair.append(f"{slow.latency_ms / fast.latency_ms:.1f}")
            cells.append(" / ".join(pair))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs"))
