"""Place, export and simulate for programs: by paths or by tables and plans in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from gkestimator.core.option_kinds import Anything
from gkestimator.core.options import REQUIRED, Option, Value, taking, values_of
from gkestimator.core.records import Names, frozen
from gkestimator.documents.plan import PlacementPlan
from gkestimator.documents.simulation import SimulationReport
from gkestimator.exporting.deployment import ExportFile
from gkestimator.simulation.run_options import SimulateOptions
from gkestimator.tables import TableSource, listed

_Progress = Callable[[str, int, int], None]


def schedule(
    tables: TableSource | Sequence[TableSource],
    workload: Path | str | Mapping[str, Any],
    cluster: Path | str | Mapping[str, Any],
    *,
    policy: str = "gkest",
    objective: str | None = None,
    creq: str | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    batching: str = "early",
    runtime: str | None = None,
    dtype: str | None = None,
    dims: str | None = None,
    gpu_specs: str | Path | Sequence[str | Path] = (),
    allow_unserved: bool = False,
    progress: _Progress | None = None,
) -> PlacementPlan:
    """Return where the models of ``workload`` run on the GPUs of ``cluster``, by what ``tables`` say that they need.

    ``tables``: estimates, DataFrames with their columns, or files; one or several. ``workload`` and ``cluster``: YAML
    files, or mappings with the same fields. ``policy`` places, with ``options`` of its own; ``objective``:
    ``goodput`` or ``cost`` (None: cost where GPUs are rented); ``creq``: the measure of compute to pack by (None: the
    policy's). ``batching``: how the plan's servers form batches, ``early`` (filled at the router) or ``late`` (of
    what waits when the GPU is free). ``runtime``, ``dtype`` and ``dims`` keep the rows that name them; ``gpu_specs``
    are GPU files (TOML). A model that no GPU here could serve in time is an error, or with ``allow_unserved`` part of
    the plan's ``unserved``. ``progress`` is called with what comes next, steps done, and steps. Raises TableError,
    DocumentError or UsageError.

        >>> plan = gkestimator.schedule(needs, "workload.yaml", {"gpus": [{"type": "V100", "count": 4}]})
        >>> plan.totals.goodput_rps, plan.table[["gpu", "model", "batch_size"]]
    """
    from gkestimator.placement import scheduling

    return scheduling.schedule(
        tables,
        workload,
        cluster,
        policy=policy,
        objective=objective,
        creq=creq,
        options=options,
        seed=seed,
        batching=batching,
        runtime=runtime,
        dtype=dtype,
        dims=dims,
        gpu_specs=_several(gpu_specs),
        allow_unserved=allow_unserved,
        progress=progress,
    ).plan


@dataclass
class SimulateRequest(SimulateOptions):
    """Hold what is simulated, and how. ``progress(what, done, total)`` is called as it goes on. Raises UsageError."""

    plan: Value[str | Path | PlacementPlan] = Option(
        REQUIRED,
        Anything("a plan or the path of one", "str | Path | PlacementPlan"),
        "The plan to serve.",
        flag=None,
    )
    tables: Value[TableSource | Sequence[TableSource]] = Option(
        REQUIRED,
        Anything("tables or their paths", "str | Path | pandas.DataFrame | Sequence[...]"),
        "Requirement tables by which replicas run.",
        flag=None,
    )
    _: KW_ONLY
    progress: _Progress | None = None


@taking(SimulateRequest)
def simulate(request: SimulateRequest) -> SimulationReport:
    """Serve a plan under arrivals, request by request, without a cluster, and return what was found.

    >>> found = gkestimator.simulate(plan, needs, duration_s=10, arrivals="mmpp")
    >>> found.totals.on_time_pct, found.table[["model", "goodput_rps", "latency_p99_ms"]]
    """
    from gkestimator.simulation.running import FileRun, simulate_files

    run = FileRun(**values_of(request, SimulateOptions))
    return simulate_files(request.plan, listed(request.tables), run, progress=request.progress).report


@frozen
class Exported:
    """Hold the files of one target, with their texts.

    ``paths``: where they were written, in the same order; none where nobody asked. ``limits`` says which demands the
    target enforces and which are bookkeeping, ``messages`` what is still to be done or known.
    """

    target: str
    files: tuple[ExportFile, ...]
    paths: tuple[Path, ...]
    limits: str
    messages: Names


def export(
    source: TableSource | PlacementPlan,
    to: str,
    output: Path | str | None = None,
    *,
    creq: str | None = None,
    models: str | Path | Sequence[str | Path] = (),
    only: str | Sequence[str] = (),
    gpu: str | None = None,
    batch_size: int | None = None,
    runtime: str | None = None,
    dtype: str | None = None,
    dims: str | None = None,
    sm_share_pct: float | None = None,
    gpu_specs: str | Path | Sequence[str | Path] = (),
    image: str | None = None,
    queue: str | None = None,
    storage_uri: str | None = None,
    gpus_per_server: int | None = None,
) -> Exported:
    """Return a plan, or a table that leaves one row per model, as the files of the target ``to``.

    ``source``: a plan, an estimate, a DataFrame with its columns, or a file of these. With ``output`` the files are
    written, all or none, to ``output/to``. ``only`` (names of models), ``gpu``, ``batch_size``, ``runtime``, ``dtype``,
    ``dims`` and ``sm_share_pct`` choose rows of a table. ``models``: ONNX files, folders or patterns, for targets that
    name inputs and outputs; ``image``, ``queue``, ``storage_uri`` and ``gpus_per_server`` are what some targets ask.
    Raises UsageError for what the target cannot express, TableError, DocumentError, OutputError.

        >>> gkestimator.export(plan, "kai", "deploy", image="registry/server:1").paths
    """
    from gkestimator.exporting.loading import TableFilter, load_deployment
    from gkestimator.exporting.registry import make_exporters
    from gkestimator.exporting.writing import write_files

    gpu_specs = _several(gpu_specs)
    settings = {
        "image": image,
        "queue": queue,
        "storage_uri": storage_uri,
        "gpus_per_server": gpus_per_server,
    }
    (exporter,) = make_exporters((to,), **settings)
    chosen = TableFilter(
        gpu=gpu, batch_size=batch_size, runtime=runtime, dtype=dtype, dims=dims, sm_share_pct=sm_share_pct
    )
    deployment = load_deployment(
        source,
        creq=creq,
        models=[str(model) for model in _several(models)],
        gpu_specs=gpu_specs,
        only=chosen,
        names=[str(name) for name in _several(only)],
    )
    files = exporter.files(deployment)
    paths: tuple[Path, ...] = ()
    if output is not None:
        read = [Path(source)] if isinstance(source, str | Path) else []
        read += [*map(Path, deployment.models.values()), *map(Path, gpu_specs)]
        paths = write_files(Path(output) / exporter.name, files, read=read)
    return Exported(
        target=exporter.name,
        files=files,
        paths=paths,
        limits=exporter.limits,
        messages=(*deployment.notes, *exporter.notices(deployment)),
    )


def _several(values: str | Path | Sequence[str | Path]) -> Sequence[str | Path]:
    """Return several texts or paths as they are, and one as a tuple of one."""
    if isinstance(values, str | Path):
        return (values,)
    return values
