"""What callers use: ``estimate_rows`` (rows, failures, closing words) and ``estimate`` (a pandas DataFrame)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gkestimator.errors import GkestimatorError
from gkestimator.estimation.request import EstimateRequest
from gkestimator.tables import KernelRow, Requirement

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EstimateResult", "estimate", "estimate_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateResult:
    """Rows of the good models, the errors of the bad ones, and closing lines in words."""

    rows: tuple[Requirement, ...]
    kernel_rows: tuple[KernelRow, ...]
    failures: tuple[tuple[Path, GkestimatorError], ...]
    messages: tuple[str, ...]


def estimate_rows(
    models: Sequence[Path],
    *,
    gpus: Sequence[str],
    batch_sizes: Sequence[int] | None = None,
    dims: Mapping[str, int] | None = None,
    runtime: str = "torch",
    dtype: str = "auto",
    sm_shares: Sequence[float] = (100.0,),
    attention: str | None = None,
    streams: int | None = None,
    trip_count: int | None = None,
    host_overhead_us: float | None = None,
    include_copy: bool = False,
    bundles: Sequence[Path] = (),
    gpu_specs: Sequence[Path] = (),
    allow_unknown: bool = False,
    plugins: Sequence[Path] = (),
    kernels: bool = False,
    batch_dim: str | None = None,
    slo_ms: float | None = None,
    max_batch: bool = False,
    tau_ms: float = 0.001,
    progress: Callable[[str, int, int], None] | None = None,
) -> EstimateResult:
    """Estimate ``models`` on ``gpus``; see :class:`EstimateRequest` for the parameters.

    A model that cannot be estimated does not stop the others: it is in ``failures``. Raises UsageError, SpecError or
    BundleError when the request itself cannot be answered. ``progress(name, done, total)`` is called per model.
    """
    from gkestimator.estimation.engine import Engine
    from gkestimator.estimation.maxbatch import largest_batches
    from gkestimator.estimation.rows import kernel_rows, requirement_row
    from gkestimator.estimation.words import closing_words
    from gkestimator.lowering import load_plugin

    request = EstimateRequest(
        models=[Path(p) for p in models],
        gpus=list(gpus),
        batch_sizes=None if batch_sizes is None else list(batch_sizes),
        dims=dict(dims or {}),
        runtime=runtime,
        dtype=dtype,
        sm_shares=list(sm_shares),
        attention=attention,
        streams=streams,
        trip_count=trip_count,
        host_overhead_us=host_overhead_us,
        include_copy=include_copy,
        bundles=[Path(p) for p in bundles],
        gpu_specs=[Path(p) for p in gpu_specs],
        allow_unknown=allow_unknown,
        plugins=[Path(p) for p in plugins],
        kernels=kernels,
        batch_dim=batch_dim,
        slo_ms=slo_ms,
        max_batch=max_batch,
        tau_ms=tau_ms,
    )
    for plugin in request.plugins:
        load_plugin(str(plugin))
    engine = Engine(request)
    rows: list[Requirement] = []
    launches: list[KernelRow] = []
    failures: list[tuple[Path, GkestimatorError]] = []
    if max_batch:
        rows, failures = largest_batches(engine, progress)
    else:
        for path, outcome in engine.run(progress):
            if isinstance(outcome, GkestimatorError):
                failures.append((path, outcome))
                continue
            for answer in outcome:
                rows.append(requirement_row(engine, answer))
                if kernels:
                    launches.extend(kernel_rows(engine, answer))
    return EstimateResult(
        rows=tuple(rows),
        kernel_rows=tuple(launches),
        failures=tuple(failures),
        messages=closing_words(
            rows,
            engine.targets,
            slo_ms=slo_ms,
            host_overhead_source=engine.host_overhead_source,
            searched=max_batch and batch_sizes is None,
        ),
    )


def estimate(
    models: str | Path | Sequence[str | Path],
    gpus: str | Sequence[str],
    batch_sizes: int | Sequence[int] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    runtime: str = "torch",
    dtype: str = "auto",
    sm_shares: Sequence[float] = (100.0,),
    attention: str | None = None,
    streams: int | None = None,
    trip_count: int | None = None,
    host_overhead_us: float | None = None,
    include_copy: bool = False,
    bundles: Sequence[str | Path] = (),
    gpu_specs: Sequence[str | Path] = (),
    allow_unknown: bool = False,
    plugins: Sequence[str | Path] = (),
    batch_dim: str | None = None,
    tau_ms: float = 0.001,
) -> pd.DataFrame:
    """The requirement table of one or several ONNX files as a pandas DataFrame, one row per combination.

    ``gpus`` are names as ``gkest gpus`` lists them; ``batch_sizes`` None takes the exported batch (symbolic = 1, said
    in ``warnings``). Unknown values are missing (NaN, NA or None), never 0. Raises the first model's
    GkestimatorError instead of leaving a model out.
    """
    from gkestimator.tables import to_dataframe

    single = isinstance(models, str | Path)
    result = estimate_rows(
        [Path(models)] if single else [Path(p) for p in models],  # type: ignore[arg-type, union-attr]
        gpus=[gpus] if isinstance(gpus, str) else list(gpus),
        batch_sizes=[batch_sizes] if isinstance(batch_sizes, int) else batch_sizes,
        dims=dims,
        runtime=runtime,
        dtype=dtype,
        sm_shares=sm_shares,
        attention=attention,
        streams=streams,
        trip_count=trip_count,
        host_overhead_us=host_overhead_us,
        include_copy=include_copy,
        bundles=[Path(p) for p in bundles],
        gpu_specs=[Path(p) for p in gpu_specs],
        allow_unknown=allow_unknown,
        plugins=[Path(p) for p in plugins],
        batch_dim=batch_dim,
        tau_ms=tau_ms,
    )
    if result.failures:
        raise result.failures[0][1]
    return to_dataframe(result.rows)
