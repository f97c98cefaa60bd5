"""What callers use: ``estimate_rows`` (rows, failures, closing words) and ``estimate`` (a pandas DataFrame)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gkestimator.errors import GkestimatorError, UsageError
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.timeline import TAU_MS
from gkestimator.tables import KernelRow, Requirement

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from gkestimator.onnx_io.shapes.registry import ValueType

_T = TypeVar("_T")

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
    unfold_batchnorm: bool = True,
    streams: int | None = None,
    trip_count: int | None = None,
    host_overhead_us: float | None = None,
    context_mib: float | None = None,
    host: str | Path | None = None,
    include_copy: bool = False,
    bundles: Sequence[Path] = (),
    gpu_specs: Sequence[Path] = (),
    allow_unknown: bool = False,
    plugins: Sequence[Path] = (),
    kernels: bool = False,
    batch_dim: str | None = None,
    inputs: Mapping[str, ValueType | np.ndarray] | None = None,
    slo_ms: float | None = None,
    max_batch: bool = False,
    tau_ms: float = TAU_MS,
    progress: Callable[[str, int, int], None] | None = None,
) -> EstimateResult:
    """Estimate ``models`` on ``gpus``; see :class:`EstimateRequest` for the parameters.

    A model that cannot be estimated does not stop the others: it is in ``failures``. Raises UsageError, SpecError or
    BundleError when the request itself cannot be answered. ``progress(name, done, total)`` is called per model.
    """
    from gkestimator.estimation.collection import rare_collection
    from gkestimator.estimation.engine import Engine
    from gkestimator.estimation.maxbatch import largest_batches
    from gkestimator.estimation.rows import kernel_rows, requirement_row
    from gkestimator.estimation.words import closing_words
    from gkestimator.lowering import load_plugin

    request = EstimateRequest(
        models=list(dict.fromkeys(Path(p) for p in models)),
        gpus=list(gpus),
        batch_sizes=None if batch_sizes is None else list(batch_sizes),
        dims=dict(dims or {}),
        runtime=runtime,
        dtype=dtype,
        sm_shares=list(sm_shares),
        attention=attention,
        unfold_batchnorm=unfold_batchnorm,
        streams=streams,
        trip_count=trip_count,
        host_overhead_us=host_overhead_us,
        context_mib=context_mib,
        host=None if host is None else Path(host),
        include_copy=include_copy,
        bundles=[Path(p) for p in bundles],
        gpu_specs=[Path(p) for p in gpu_specs],
        allow_unknown=allow_unknown,
        plugins=[Path(p) for p in plugins],
        kernels=kernels,
        batch_dim=batch_dim,
        inputs=dict(inputs or {}),
        slo_ms=slo_ms,
        max_batch=max_batch,
        tau_ms=tau_ms,
    )
    for plugin in request.plugins:
        load_plugin(str(plugin))
    rows: list[Requirement] = []
    launches: list[KernelRow] = []
    failures: list[tuple[Path, GkestimatorError]] = []
    with rare_collection():
        engine = Engine(request)
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
        messages=(
            *([engine.host_note] if engine.host_note else ()),
            *closing_words(
                rows,
                engine.targets,
                slo_ms=slo_ms,
                host_overhead_source=engine.host_overhead_source,
                host_range_us=engine.host_range_us,
                searched=max_batch and batch_sizes is None,
            ),
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
    sm_shares: float | Sequence[float] = 100.0,
    attention: str | None = None,
    unfold_batchnorm: bool = True,
    streams: int | None = None,
    trip_count: int | None = None,
    host_overhead_us: float | None = None,
    context_mib: float | None = None,
    host: str | Path | None = None,
    include_copy: bool = False,
    bundles: str | Path | Sequence[str | Path] = (),
    gpu_specs: str | Path | Sequence[str | Path] = (),
    allow_unknown: bool = False,
    plugins: str | Path | Sequence[str | Path] = (),
    batch_dim: str | None = None,
    inputs: Mapping[str, ValueType | np.ndarray] | None = None,
    tau_ms: float = TAU_MS,
) -> pd.DataFrame:
    """The requirement table of one or several ONNX files as a pandas DataFrame, one row per combination.

    ``gpus`` are names as ``gkest gpus`` lists them; ``batch_sizes`` None takes the exported batch (symbolic = 1, said
    in ``warnings``). One value may stand for a list of one, and NumPy's integers for Python's. Unknown values are
    missing (NA), never 0. Raises the first model's GkestimatorError instead of leaving a model out.

        >>> table = gkestimator.estimate("resnet50.onnx", ["V100", "H100"], [1, 8, 64], runtime="onnxruntime")
        >>> table[["gpu", "batch_size", "latency_ms", "mreq_bytes", "warnings"]]
    """
    from gkestimator.tables import to_dataframe

    result = estimate_rows(
        _paths("models", models),
        gpus=_listed("gpus", gpus, str),
        batch_sizes=None if batch_sizes is None else _listed("batch_sizes", batch_sizes, int),
        dims=dims,
        runtime=runtime,
        dtype=dtype,
        sm_shares=_listed("sm_shares", sm_shares, float),
        attention=attention,
        unfold_batchnorm=unfold_batchnorm,
        streams=streams,
        trip_count=trip_count,
        host_overhead_us=host_overhead_us,
        context_mib=context_mib,
        host=None if host is None else Path(host),
        include_copy=include_copy,
        bundles=_paths("bundles", bundles),
        gpu_specs=_paths("gpu_specs", gpu_specs),
        allow_unknown=allow_unknown,
        plugins=_paths("plugins", plugins),
        batch_dim=batch_dim,
        inputs=inputs,
        tau_ms=tau_ms,
    )
    if result.failures:
        raise result.failures[0][1]
    return to_dataframe(result.rows)


def _paths(what: str, given: str | Path | Sequence[str | Path]) -> list[Path]:
    found = [given] if isinstance(given, str | Path) else _items(what, given)
    for path in found:
        if not isinstance(path, str | Path):
            raise UsageError(f"{what} holds {path!r}: expected paths")
    return [Path(path) for path in found]


def _listed(what: str, given: Any, kind: type[_T]) -> list[_T]:
    """``given`` as a list of ``kind``; NumPy's numbers become Python's, what is neither stays to be refused."""
    single = isinstance(given, str) or not hasattr(given, "__iter__")
    return [_plain(what, value, kind) for value in ([given] if single else _items(what, given))]


def _items(what: str, given: Any) -> list[Any]:
    try:
        return list(given)
    except TypeError as e:
        raise UsageError(f"{what} is {given!r}: expected one value or a list") from e


def _plain(what: str, value: Any, kind: type[_T]) -> _T:
    plain = value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value
    if kind is str and not isinstance(plain, str):
        raise UsageError(f"{what} holds {value!r}: expected a name")
    return plain  # type: ignore[no-any-return]  # numbers are checked by EstimateRequest
