"""Hold timm's measured vision models (RTX 3090, AMP) beside their estimates (``timm/infer_amp_rtx3090``)."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

from gkestimator.bundles.bundle import Bundle
from gkestimator.core.errors import GkestimatorError
from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.rows import requirement_row

from .groups import REPORTED_TIMM3090, drawn

TORCH = "2.4"
"""The version whose rows are compared: the newest, the one that most models were measured with."""
LAYOUTS = ("nchw", "nhwc")
GPU = "RTX-3090"
REPORT, DEVELOPMENT = "report", "development"
_LAYOUT_OPTION = "layout"
"""Name of the estimate option that says which layout a model runs in."""

FAST_NORM = (
    "caformer", "coatne", "convit", "convnext", "davit", "focalnet", "hiera", "maxxvit", "poolformer", "pvt_v2", "resnet50_gn"
)  # fmt: skip
"""How names begin of models whose normalisations are classes of timm's own: from torch 1.13 on its table was measured
with timm's fast norm, which keeps those in half precision where torch.autocast runs them in fp32 (resnet50_gn, NCHW:
738 ms with torch 1.12, 394 with 1.13). Others call torch's, but for :data:`FAST_IMAGE_NORM`. Read from the source of timm 1.0.8, like the column
``attention``; an input, as the framework is."""

FAST_IMAGE_NORM = ("edgenext", "tiny_vit")
"""Likewise of models in which only the normalisations of images are timm's own."""


@dataclass(frozen=True, slots=True)
class TimmRow:
    """Hold one measurement: ``step_ms`` for a step of ``batch`` square images of ``img_size`` pixels."""

    model: str
    img_size: int
    batch: int
    step_ms: float
    layout: str


@dataclass(frozen=True, slots=True)
class TimmGraph:
    """Hold what the graph's list says of one graph; ``attention``: how timm ran it."""

    path: Path
    family: str
    img_size: int
    attention: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimmCase:
    """Hold one measurement beside its estimate, ms; ``kinds``: estimated GPU time by kind of kernel."""

    model: str
    family: str
    attention: str
    group: str
    layout: str
    batch: int
    measured_ms: float
    latency_ms: float
    low_ms: float
    high_ms: float
    roofline_ms: float
    kinds: dict[str, float] = field(default_factory=dict)


def timm_rows(shared: Path, torch: str = TORCH) -> dict[tuple[str, int, str], TimmRow]:
    """Return the rows of one version of torch, by (model, image size, layout)."""
    # Imported here because only the extra "parquet" brings it.
    import pyarrow.parquet

    path = shared / "data/timm/infer_amp_rtx3090.parquet"
    names = [column.name for column in fields(TimmRow)]
    table = pyarrow.parquet.read_table(path, columns=names, filters=[("torch", "==", torch)])
    rows = [TimmRow(**row) for row in table.to_pylist()]
    return {(row.model, row.img_size, row.layout): row for row in rows}


def timm_graphs(shared: Path) -> list[TimmGraph]:
    """Return the graphs of ``models/timm3090`` in the order of their list."""
    folder = shared / "models/timm3090"
    with open(folder / "graphs.csv", newline="", encoding="utf-8") as file:
        listed = list(csv.DictReader(file))
    reported = drawn([row["model"] for row in listed], REPORTED_TIMM3090)
    graphs = []
    for row in listed:
        group = REPORT if row["model"] in reported else DEVELOPMENT
        path = folder / f"{row['model']}.onnx"
        graphs.append(TimmGraph(path, row["family"], int(row["img_size"]), row["attention"], group))
    return graphs


def layouts() -> tuple[str, ...]:
    """Return the layouts that can be estimated: both where the estimator has an option for it."""
    options = {option.name for option in fields(EstimateRequest)}
    return LAYOUTS if _LAYOUT_OPTION in options else LAYOUTS[:1]


def norms_of(model: str) -> str:
    """Return the value of ``--amp-norms`` that timm's table was measured with."""
    if model.startswith(FAST_NORM):
        return "half"
    return "images" if model.startswith(FAST_IMAGE_NORM) else "fp32"


def timm_cases(shared: Path, bundle: Bundle, graphs: Iterable[TimmGraph]) -> Iterator[TimmCase]:
    """Yield every measured layout of ``graphs`` with its estimate by ``bundle``."""
    table = timm_rows(shared)
    for graph in graphs:
        for layout in layouts():
            truth = table.get((graph.path.stem, graph.img_size, layout))
            if truth is not None:
                yield _case(graph, truth, bundle)


def _case(graph: TimmGraph, truth: TimmRow, bundle: Bundle) -> TimmCase:
    options = {"amp_norms": norms_of(graph.path.stem)}
    if len(layouts()) > 1:
        options[_LAYOUT_OPTION] = truth.layout
    request = EstimateRequest([graph.path], [GPU], [truth.batch], dtype="amp", **options)  # type: ignore[arg-type]
    engine = Engine(request)
    engine.estimator = bundle
    [(_, outcome)] = engine.run()
    if isinstance(outcome, GkestimatorError):
        raise outcome
    [answer] = outcome
    row = requirement_row(engine, answer)
    if row.latency_ms is None or row.latency_low_ms is None or row.latency_high_ms is None:
        raise AssertionError(f"{graph.path.name}: no latency known")
    program = answer.lowering.program
    roofline_us = answer.predictions.roofline_us[program.kernel] * program.repeat
    return TimmCase(
        model=graph.path.stem,
        family=graph.family,
        attention=graph.attention,
        group=graph.group,
        layout=truth.layout,
        batch=truth.batch,
        measured_ms=truth.step_ms,
        latency_ms=row.latency_ms,
        low_ms=row.latency_low_ms,
        high_ms=row.latency_high_ms,
        roofline_ms=float(roofline_us.sum()) / 1e3,
        kinds=_kinds(answer),
    )


def _kinds(answer: Estimated) -> dict[str, float]:
    """Return estimated milliseconds by the kernels' names, the longest first."""
    program = answer.lowering.program
    times = (answer.predictions.duration_us[program.kernel] * program.repeat / 1e3).tolist()
    names = [kernel.name for step in program.steps for kernel in step.kernels]
    total: Counter[str] = Counter()
    for name, time in zip(names, times, strict=True):
        total[name] += time
    return dict(total.most_common())
