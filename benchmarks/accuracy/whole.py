"""Judge whole models by published measurements: V100 fp32 (ETH thesis) and RTX 3090 AMP (timm)."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gkestimator.bundles.bundle import Bundle
from gkestimator.core.errors import GkestimatorError
from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.rows import requirement_row
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.memory import cumulative_reserved
from gkestimator.onnx_io import read_model
from gkestimator.tables import Requirement
from gkestimator.training.plan import PLAN

from .kernels import shipped, without_v100_convolutions
from .timm_cases import GPU, norms_of, timm_rows
from .workspace import Workspace

THESIS_VISIBLE_BYTES = 16_144 * 2**20
PROFILED_HOST_US = 52.0
"""Host time per call while the thesis recorded utilisations: an inference. Its latencies fit 37 us, but then the means of
small, host-bound batches come out half as large again as printed; with a profiler's overhead on every launch they do
not. Fitted on the development group (``benchmarks/utilisation.py``)."""
DEVELOPMENT = {
    "ethz": frozenset({"densenet121", "mobilenet_v2", "inception_v3", "gpt2", "bloom_560"}),
    "timm": frozenset(
        {
            "convnext_tiny", "resnet50", "efficientnet_b0", "vit_base_patch16_224", "mixer_b16_224",
            "regnety_032", "inception_v4",
        }
    ),
}  # fmt: skip
"""Models on whose errors constants may be fitted; the others are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeCase:
    """One measured row beside its estimate. ``group``: development or report. Memory is ``reserved_bytes`` with the
    batches of one model in one process, ``fresh_bytes`` in a fresh one; None where the table has no figure.
    ``profiled_*``: the means with a host that a profiler slows (:data:`PROFILED_HOST_US`)."""

    table: str
    group: str
    model: str
    gpu: str
    batch: int
    measured_ms: float
    latency_ms: float
    low_ms: float
    high_ms: float
    roofline_ms: float
    analytical_ms: float
    host_bound: bool
    coverage_pct: float
    reserved_bytes: int
    fresh_bytes: int
    sm_util_pct: float
    occupancy_mean_pct: float
    occupancy_max_pct: float
    measured_bytes: float | None
    measured_sm_util_pct: float | None
    measured_occupancy_mean_pct: float | None
    measured_occupancy_max_pct: float | None
    profiled_sm_util_pct: float | None = None
    profiled_occupancy_mean_pct: float | None = None


def run_whole(space: Workspace, name: str) -> None:
    """Both tables by the shipped recipe (``whole``) or without the V100's convolutions (``whole-no-v100-conv``)."""
    key = [name, space.data_key, space.recipe_key, space.product_key, *map(repr, PLAN)]
    key.append(Path(__file__).read_text(encoding="utf-8"))
    if space.current(name, key):
        return
    bundle = shipped(space) if name == "whole" else without_v100_convolutions(space)
    cases = compare(space, bundle)
    space.keep(name, key, [asdict(c) for c in cases])
    space.tell(f"{name}: {len(cases)} rows")


def compare(space: Workspace, bundle: Bundle) -> list[WholeCase]:
    """Every row of both tables that has a graph, by ``bundle``."""
    return [*_ethz(space, bundle), *_timm(space, bundle)]


def whole_cases(space: Workspace, name: str) -> list[WholeCase]:
    """The stored rows of :func:`run_whole`; none where it has not run."""
    return [WholeCase(**row) for row in space.listed(name) or []]  # type: ignore[arg-type]


def _answers(
    path: Path, bundle: Bundle, batches: Sequence[int], **options: object
) -> tuple[Engine, list[Estimated]]:
    request = EstimateRequest(models=[path], batch_sizes=list(batches), **options)  # type: ignore[arg-type]
    engine = Engine(request)
    engine.estimator = bundle
    for _, outcome in engine.run():
        if isinstance(outcome, GkestimatorError):
            raise outcome
        return engine, outcome
    raise AssertionError("one model gives one outcome")


def _roofline_ms(answer: Estimated) -> float:
    program = answer.lowering.program
    return float((answer.predictions.roofline_us[program.kernel] * program.repeat).sum()) / 1e3


def _rows(
    path: Path, bundle: Bundle, batches: Sequence[int], **options: object
) -> Iterator[tuple[Requirement, float, float]]:
    """(row, roofline with copies, analytical latency) per batch size."""
    engine, answers = _answers(path, bundle, batches, **options)
    bare_engine, bare = _answers(path, Bundle(name="analytical", models=()), batches, **options)
    for answer, plain in zip(answers, bare, strict=True):
        row, other = requirement_row(engine, answer), requirement_row(bare_engine, plain)
        if row.latency_ms is None or row.latency_high_ms is None or other.latency_ms is None:
            raise AssertionError(f"{path.name}: no latency known")
        copy = row.copy_ms if engine.request.include_copy else 0.0
        yield row, _roofline_ms(answer) + (copy or 0.0), other.latency_ms


def _number(text: str) -> float | None:
    return float(text) if text else None


def _share(text: str) -> float | None:
    value = _number(text)
    return None if value is None else value / 100 * THESIS_VISIBLE_BYTES


def _ethz(space: Workspace, bundle: Bundle) -> Iterator[WholeCase]:
    with open(space.shared / "data/ethz/v100_profile.csv", newline="") as file:
        printed = list(csv.DictReader(file))
    measured = [r for r in printed if r["status"] == "clean"]
    for model in sorted({r["model"] for r in measured}):
        path = space.shared / f"models/ethz/{model}.onnx"
        if not path.exists():
            continue  # t5: no graph
        rows = {int(r["batch"]): r for r in measured if r["model"] == model}
        # The runtime profile's figure is of this very machine, so it is given, as a user who knows the host would.
        host_us = load_runtime("torch").host_overhead_us
        options = {
            "gpus": ["V100-SXM2-16GB"],
            "include_copy": True,
            "dtype": "fp32",
            "host_overhead_us": host_us,
        }
        # Rows that were damaged in print were run too, and the process kept what they took.
        every = sorted(int(r["batch"]) for r in printed if r["model"] == model)
        together = _cumulative(path, bundle, every, options)
        slowed = {**options, "host_overhead_us": PROFILED_HOST_US}
        profiled = {r.batch_size: r for r, _, _ in _rows(path, bundle, sorted(rows), **slowed)}
        for row, roofline_ms, analytical_ms in _rows(path, bundle, sorted(rows), **options):
            assert row.batch_size is not None
            truth = rows[row.batch_size]
            case = _case(
                "ethz", model, row, row.batch_size / float(truth["throughput_rps"]) * 1e3, roofline_ms, analytical_ms,
                together[row.batch_size], _share(truth["mem_cap_pct"]), _number(truth["wavg_sm_util_pct"]),
                _number(truth["wavg_achieved_occupancy_pct"]), _number(truth["achieved_occupancy_pct"]),
            )  # fmt: skip
            yield replace(
                case,
                profiled_sm_util_pct=profiled[row.batch_size].sm_util_mean_pct,
                profiled_occupancy_mean_pct=profiled[row.batch_size].occupancy_mean_pct,
            )


def _cumulative(
    path: Path, bundle: Bundle, batches: Sequence[int], options: dict[str, object]
) -> dict[int, int]:
    """Reserved bytes per batch size when all run in one process, smallest first, without emptying the cache."""
    engine, answers = _answers(path, bundle, batches, **options)
    held = cumulative_reserved(
        [a.lowering.graph for a in answers],
        allocator=engine.profile.allocator,
        figures=engine.profile.allocator_bytes,
        library_workspace_bytes=engine.profile.library_workspace_bytes(answers[0].target.gpu),
    )
    return dict(zip(batches, held, strict=True))


def _timm(space: Workspace, bundle: Bundle) -> Iterator[WholeCase]:
    table = timm_rows(space.shared)
    for path in sorted((space.shared / "models/timm").glob("*.onnx")):
        size = image_size(path)
        truth = table.get((path.stem, size, "nchw"))
        if truth is None:
            continue
        options = {"gpus": [GPU], "dtype": "amp", "amp_norms": norms_of(path.stem)}
        for row, roofline_ms, analytical_ms in _rows(path, bundle, [truth.batch], **options):
            yield _case(
                "timm",
                path.stem,
                row,
                truth.step_ms,
                roofline_ms,
                analytical_ms,
                row.reserved_bytes,
                None,
                None,
                None,
                None,
            )


def image_size(path: Path) -> int:
    """Return the height of the images that the graph at ``path`` takes, pixels."""
    shape = read_model(path).bind(batch_size=1).inputs[0].shape
    return int(shape[-1])


def _case(
    table: str,
    model: str,
    row: Requirement,
    measured_ms: float,
    roofline_ms: float,
    analytical_ms: float,
    reserved: int | None,
    measured_bytes: float | None,
    sm: float | None,
    occupancy: float | None,
    occupancy_max: float | None,
) -> WholeCase:
    return WholeCase(
        table=table,
        group="development" if model in DEVELOPMENT[table] else "report",
        model=model,
        gpu=row.gpu,
        batch=int(row.batch_size or 0),
        measured_ms=measured_ms,
        latency_ms=_given(row.latency_ms),
        low_ms=_given(row.latency_low_ms),
        high_ms=_given(row.latency_high_ms),
        roofline_ms=roofline_ms,
        analytical_ms=analytical_ms,
        host_bound=bool(row.host_bound),
        coverage_pct=_given(row.coverage_pct),
        reserved_bytes=int(_given(reserved)),
        fresh_bytes=int(_given(row.reserved_bytes)),
        sm_util_pct=_given(row.sm_util_mean_pct),
        occupancy_mean_pct=_given(row.occupancy_mean_pct),
        occupancy_max_pct=_given(row.occupancy_max_pct),
        measured_bytes=measured_bytes,
        measured_sm_util_pct=sm,
        measured_occupancy_mean_pct=occupancy,
        measured_occupancy_max_pct=occupancy_max,
    )


def _given(value: float | int | None) -> float:
    if value is None:
        raise AssertionError("a public model with every operator known has every figure")
    return float(value)
