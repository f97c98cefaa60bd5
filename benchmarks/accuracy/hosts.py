"""Measure how fast hosts issue framework calls, by public rows whose time is the host's.

These are the shortest single operators, and whole models whose time does not move with their size. The figures stand
in ``datasets/runtimes/*.toml`` (``host_overheads``) with their sources; this prints them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gkestimator.estimation.api import estimate_rows
from gkestimator.estimation.intervals import host_range_us
from gkestimator.hardware.runtimes.profiles import load_runtime

from .lines import Line
from .sections import Section
from .tables import markdown
from .workspace import Workspace

_TASKS = ("linear", "bmm", "elem", "softmax", "ln")
"""NeuSight's convolutions are left out: their floor climbs within the file (docs/appendix/data-defects.md)."""
_SHORTEST = 0.02
_GRAPHS = Path(".accuracy") / "ort_graphs"
"""Where ``python benchmarks/export_ort_models.py`` puts the graphs of the tables."""


class _Flat(NamedTuple):
    """Name a published whole model whose time is the host's: nothing changes it from one size to the next."""

    host: str
    runtime: str
    graph: str
    gpu: str
    dtype: str
    length: int
    measured_ms: float
    source: str


_MODELS = (
    _Flat("bert-v100", "torch", "bert_base.exported.fp32", "V100-PCIE-16GB", "fp32", 8, 7.92,
          "onnxruntime README: TorchScript 1.5.1, batch 1, 8 tokens; 9.4 ms at 256"),
    _Flat("bert-v100", "onnxruntime", "bert_base.optimised.fp16", "V100-PCIE-16GB", "fp16", 8, 1.30,
          "onnxruntime README: ONNX Runtime 1.4, batch 1, 8 tokens; 1.33 ms at 64"),
    _Flat("triton-a100", "torch", "bert_large.nvidia.fp16", "A100-SXM4-80GB", "fp16", 384, 10.3,
          "Triton, TorchScript, batch 1: compute; TensorRT takes 3.4 ms"),
    _Flat("triton-a100", "onnxruntime", "bert_large.nvidia.fp16", "A100-SXM4-80GB", "fp16", 384, 6.5,
          "Triton, ONNX Runtime CUDA, batch 1: compute; TensorRT takes 3.4 ms"),
)  # fmt: skip


def run_hosts(space: Workspace) -> None:
    """Keep microseconds per framework call of every host that a public table tells."""
    key = ["hosts", space.data_key, space.product_key, Path(__file__).read_text(encoding="utf-8")]
    if space.current("hosts", key):
        return
    space.keep("hosts", key, [*_of_operators(space), *_of_models(space)])


def _of_operators(space: Workspace) -> Iterator[dict[str, object]]:
    """Yield each of NeuSight's hosts: the mean over operators of the shortest time between two events around a call."""
    import pandas as pd

    floors: dict[str, list[float]] = {}
    for task in _TASKS:
        table = pd.read_parquet(space.shared / "data" / "neusight" / f"train_{task}.parquet")
        for device, rows in table.groupby("Device"):
            floors.setdefault(str(device), []).append(1e3 * float(rows["Latency"].quantile(_SHORTEST)))
    for device, times in sorted(floors.items()):
        text = "NeuSight, torch 2.1: shortest 2 % of five operators, " + ", ".join(f"{t:.0f}" for t in times)
        yield {"host": device, "runtime": "torch", "us": float(np.mean(times)), "source": text}


def _of_models(space: Workspace) -> Iterator[dict[str, object]]:
    """Yield each published model's time over its framework calls; nothing where its graph has not been exported."""
    for model in _MODELS:
        calls = _calls(_GRAPHS / f"{model.graph}.onnx", model)
        if calls is not None:
            us = 1e3 * model.measured_ms / calls
            text = f"{model.source}; {calls} calls"
            yield {"host": model.host, "runtime": model.runtime, "us": us, "source": text}


def _calls(path: Path, model: _Flat) -> int | None:
    """Return the framework calls of a graph: its time on a host so slow that nothing else counts."""
    if not path.is_file():
        return None
    slow_us = 1e5
    result = estimate_rows(
        [path],
        gpus=(model.gpu,),
        batch_sizes=(1,),
        runtime=model.runtime,
        dtype=model.dtype,
        host_overhead_us=slow_us,
        dims={"S": model.length},
    )
    for row in result.rows:
        assert row.latency_ms is not None
        return round(1e3 * row.latency_ms / slow_us)
    return None


def _lines(space: Workspace) -> Iterator[Line]:
    for runtime in ("torch", "onnxruntime"):
        rows = [row for row in space.listed("hosts") or [] if row["runtime"] == runtime]
        low, high = host_range_us(None, load_runtime(runtime).host_range_us)
        inside = [low <= float(str(row["us"])) <= high for row in rows]
        figure = "not measured"
        met = None
        if inside:
            figure = f"{sum(inside)} of {len(inside)}"
            met = all(inside)
        yield Line(
            what=f"{runtime}: measured hosts within the range without a host",
            bar=f"{low:.1f} to {high:.1f} us a call",
            figure=figure,
            met=met,
        )


def _page(space: Workspace) -> list[str] | None:
    rows = space.listed("hosts")
    if not rows:
        return None
    cells = []
    for row in rows:
        cells.append(
            (str(row["host"]), str(row["runtime"]), f"{float(str(row['us'])):.1f}", str(row["source"]))
        )
    return [
        "Rows that a GPU does not bind tell how long the host takes for a framework call. Single operators include two event",
        "records and a kernel of about 2 us. Whole models count calls as the lowering does (`gkest estimate --kernels`).",
        "",
        *markdown(("host", "runtime", "us a call", "from"), cells, text=2),
    ]


SECTION = Section(title="Hosts", jobs={"hosts": run_hosts}, lines=_lines, page=_page)
