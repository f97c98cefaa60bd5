"""Measure how wide intervals are where users met the widest: convolutional networks at small batches on GPUs not trained on.

Nothing is measured on these GPUs, so this section says nothing about errors: only whether an interval is narrow enough to be
of use, the host being given (a slow host hides what the GPU does not know). Whether it holds is shown on chips left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.errors import GkestimatorError
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.rows import requirement_row

from .lines import Line, line
from .sections import Section
from .tables import markdown, number
from .workspace import Workspace

GPUS = ("H100-SXM", "L4", "RTX-4090")
BATCHES = (1, 2, 4, 8)
DTYPES = ("fp32", "fp16")
HOST_US = 5.0
"""A host fast enough (C++ or a captured graph) that kernels, not calls, set most times."""
WIDEST = 3.0
_CONVOLUTIONS = (
    "resnet50",
    "resnet101",
    "densenet121",
    "efficientnet_b0",
    "mobilenetv2_100",
    "inception_v4",
    "regnety_032",
)


def run_widths(space: Workspace) -> None:
    """Estimate every network on every GPU by the shipped bundle and keep the intervals."""
    key = ["widths", space.product_key, space.recipe_key, Path(__file__).read_text(encoding="utf-8")]
    if space.current("widths", key):
        return
    paths = [space.shared / f"models/timm/{name}.onnx" for name in _CONVOLUTIONS]
    rows: list[dict[str, object]] = []
    for dtype in DTYPES:
        rows += _rows(paths, dtype)
    space.keep("widths", key, rows)


def _rows(paths: list[Path], dtype: str) -> Iterator[dict[str, object]]:
    request = EstimateRequest(
        models=paths, gpus=list(GPUS), batch_sizes=list(BATCHES), dtype=dtype, host_overhead_us=HOST_US
    )
    engine = Engine(request)
    engine.estimator = load_bundle()
    for _, outcome in engine.run():
        if isinstance(outcome, GkestimatorError):
            raise outcome
        for answer in outcome:
            row = requirement_row(engine, answer)
            assert row.latency_ms and row.latency_low_ms is not None and row.latency_high_ms is not None
            width = (row.latency_high_ms - row.latency_low_ms) / row.latency_ms
            yield {
                "gpu": row.gpu,
                "dtype": dtype,
                "model": row.model,
                "batch": row.batch_size,
                "width": width,
            }


def _lines(space: Workspace) -> Iterator[Line]:
    rows = space.listed("widths")
    for gpu in GPUS:
        widest = None
        if rows is not None:
            widest = max(float(str(row["width"])) for row in rows if row["gpu"] == gpu)
        what = f"interval / estimate, CNNs at batch 1 to 8, host given: {gpu}, widest"
        yield line(what, WIDEST, widest, unit=" x")


def _page(space: Workspace) -> list[str] | None:
    rows = space.listed("widths")
    if rows is None:
        return None
    text = [
        f"Width of the 90 % interval, (high - low) / estimate, of {len(_CONVOLUTIONS)} convolutional networks at batch "
        f"{', '.join(map(str, BATCHES))} with a host of {HOST_US:g} us a call. No convolution was ever measured on these",
        "GPUs. How often such intervals hold is measured on chips left out ([accuracy](../accuracy.md)).",
        "",
    ]
    cells = []
    for gpu in GPUS:
        for dtype in DTYPES:
            widths = [float(str(r["width"])) for r in rows if r["gpu"] == gpu and r["dtype"] == dtype]
            figures = (float(np.median(widths)), max(widths))
            cells.append([gpu, dtype, str(len(widths)), *(number(value, 2) for value in figures)])
    return [*text, *markdown(("GPU", "dtype", "n", "median", "widest"), cells, text=2)]


SECTION = Section(
    title="Widths of intervals on GPUs that were not measured",
    jobs={"widths": run_widths},
    lines=_lines,
    page=_page,
)
