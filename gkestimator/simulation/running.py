"""From a plan, rows and arrivals to what a simulation found: what ``gkest simulate`` does, for programs too."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gkestimator.core.compiled import COMPILED
from gkestimator.core.errors import UsageError, one_line
from gkestimator.core.records import frozen
from gkestimator.documents import PlacementPlan, read_cluster, read_plan
from gkestimator.documents.simulation import SimulationReport, SimulationSettings
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.interference.registry import interference_between
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.arrivals.making import make_arrivals
from gkestimator.simulation.arrivals.processes import PROCESSES
from gkestimator.simulation.arrivals.rates import Bursts
from gkestimator.simulation.arrivals.replay import Replay, ReplayedArrivals
from gkestimator.simulation.building import build_system
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.network import read_network
from gkestimator.simulation.options import Options
from gkestimator.simulation.result import Result
from gkestimator.simulation.run_options import SimulateOptions
from gkestimator.simulation.summary import summarise
from gkestimator.simulation.system import System
from gkestimator.tables import REQUIREMENTS, Requirement, read_table
from gkestimator.tables.units import number_text

if TYPE_CHECKING:
    from gkestimator.simulation.replanning.report import ReplanReport
    from gkestimator.simulation.replanning.settings import Replanning


_SECONDS = 60.0  # of arrivals, unless more or less is asked for
_SOURCES_SAID = 8


@frozen
class Simulated:
    """``report`` is the document; ``system`` and ``result`` are what it was made of."""

    report: SimulationReport
    system: System
    result: Result


def simulate_plan(
    plan: PlacementPlan,
    rows: Iterable[Requirement],
    arrivals: Arrivals,
    options: Options,
    *,
    arrivals_name: str = "arrivals",
    rate_scale: float = 1.0,
    coefficients: Path | str | None = None,
    network: Path | str | None = None,
    max_wait_ms: float | None = None,
    admission: str = "plan",
    gpu_specs: Sequence[Path | str] = (),
    table: str = "table",
    notes: Sequence[str] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> Simulated:
    """Serve ``plan`` by ``rows`` under ``arrivals`` (streams in the order of the plan's workload: models, then
    applications; already at the scaled rate).

    ``options.interference`` names the interference model, ``coefficients`` its file. ``arrivals_name`` and
    ``rate_scale`` are written into the report's settings alone. For the rest see
    :func:`gkestimator.simulation.building.build_system`. Raises its errors.
    """
    law = interference_between(options.interference, coefficients, _known_types(plan, gpu_specs))
    wired = None if network is None else read_network(network)
    system = build_system(
        plan,
        rows,
        interference=law,
        network=wired,
        copy=options.copy,
        max_wait_ms=max_wait_ms,
        admission=admission,
        gpu_specs=gpu_specs,
        table=table,
    )
    if arrivals.sources != len(system.sources):
        raise UsageError(
            f"{arrivals_name}: found {arrivals.sources} streams, expected {len(system.sources)}: one for each model "
            "and application of the plan's workload"
        )
    result = _served(system, arrivals, options, progress)
    settings = SimulationSettings(
        policy=plan.policy,
        arrivals=one_line(arrivals_name),
        duration_s=options.duration_ms / 1e3,
        warmup_s=options.warmup_ms / 1e3,
        rate_scale=rate_scale,
        max_wait_ms=max_wait_ms,
        admission=admission,
        routing=options.routing,
        service=options.service,
        copy=options.copy,
        interference=options.interference,
        drop=options.drop,
        coefficients=None if coefficients is None else one_line(coefficients),
        network=None if network is None else one_line(network),
        window_s=options.window_ms / 1e3,
        seed=options.seed,
    )
    said = tuple(one_line(n, limit=2000) for n in (*system.notes, *notes))
    return Simulated(report=summarise(plan, system, result, settings, said), system=system, result=result)


def _known_types(plan: PlacementPlan, gpu_specs: Sequence[Path | str]) -> tuple[GpuSpec, ...]:
    """The GPU types of ``plan`` of which something is known."""
    catalogue = gpu_catalogue(gpu_specs)
    specs = {}
    for gpu in plan.gpus:
        if gpu.type not in specs:
            with contextlib.suppress(UsageError):  # refused when interference asks for it
                specs[gpu.type] = catalogue.spec(gpu.type)
    return tuple(specs.values())


def _served(
    system: System,
    arrivals: Arrivals,
    options: Options,
    progress: Callable[[str, int, int], None] | None,
) -> Result:
    simulator = Simulator(system, options)
    steps = max(1, round(options.duration_ms / 1e3))
    if progress is not None:  # the first run on a machine compiles for a while
        progress("seconds simulated (compiling)" if COMPILED else "seconds simulated", 0, steps)
    for chunk in arrivals.chunks(options.duration_ms):
        simulator.advance(chunk)
        if progress is not None:
            progress("seconds simulated", min(steps, int(chunk.end_ms / 1e3)), steps)
    return simulator.finish()


@dataclass(kw_only=True)
class FileRun(SimulateOptions):
    """Hold how files are simulated, and whether the result has every request.

    ``arrivals``: a process (``poisson``, ``mmpp``, ``constant``) at the rates of the plan's workload times
    ``rate_scale``, the file of rate profiles, or that of a trace, replayed for ``duration_s`` (None: 60; a trace to
    its end), of which the first ``warmup_s`` are not counted. ``bursts`` of ``mmpp``:
    :meth:`gkestimator.simulation.arrivals.rates.Bursts.of`.
    """

    keep_requests: bool = False

    @property
    def replay(self) -> Replay | None:
        """Return how a trace is replayed; None where no option of a trace was said."""
        options = {
            "form": self.trace_format,
            "assign": self.streams,
            "rates": self.trace_rates,
            "scaling": self.trace_scaling,
            "start_s": self.trace_start_s,
            "duration_s": self.trace_duration_s,
            "loop": self.trace_loop or None,
        }
        said: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        return Replay(**said) if said else None

    @property
    def delays(self) -> str | None:
        """Return the file of the network's delays; None where there are none."""
        if self.network == "none":
            return None
        return self.network

    def prepared(self, plan: PlacementPlan) -> tuple[Arrivals, Options, str, tuple[str, ...]]:
        """Arrivals for the workload of ``plan``, what the simulator is told, the arrivals in words, and notes on
        them. Raises what their factory raises, and UsageError for options that do not go together."""
        if self.replay is not None and self.arrivals in PROCESSES:
            raise UsageError(
                f"options of a trace: found arrivals {self.arrivals}, expected the file of a trace"
            )
        if self.duration_s is not None or self.arrivals in PROCESSES:
            self._options(self.duration_s or _SECONDS)  # wrong in no time; a trace takes a while to read
        asked = [(m.rate_rps, m.name) for m in plan.workload.models]
        asked += [(a.rate_rps, a.name) for a in plan.workload.applications]
        came = make_arrivals(
            self.arrivals,
            [rate for rate, _ in asked],
            [name for _, name in asked],
            seed=self.seed,
            rate_scale=self.rate_scale,
            bursts=self._burst_states(),
            replay=self.replay,
        )
        name = str(self.arrivals)
        seconds = self.duration_s
        notes: tuple[str, ...] = ()
        if isinstance(came, ReplayedArrivals):
            how = came.replay
            name = f"{name} (streams {how.assign}, rates {how.rates}, scaling {how.scaling}"
            name += f", from {how.start_s:g} s" if how.start_s else ""
            name += f", {how.duration_s:g} s of it" if how.duration_s is not None else ""
            name += ", in a loop)" if how.loop else ")"
            notes = _recorded(came)
            if seconds is None:
                seconds = came.length_ms / 1e3
        elif self.replay is not None:
            raise UsageError(f"options of a trace: {self.arrivals} holds rate profiles, expected a trace")
        elif self.bursts is not None:
            name = f"{name} (bursts {', '.join(f'{b:g}' for b in self.bursts)})"
        return came, self._options(_SECONDS if seconds is None else seconds), name, notes

    def _options(self, duration_s: float) -> Options:
        return Options(
            duration_ms=duration_s * 1e3,
            warmup_ms=self.warmup_s * 1e3,
            routing=self.routing,
            drop=self.drop,
            service=self.service,
            copy=self.copy,
            interference=self.interference,
            window_ms=1e3 * (max(1.0, duration_s / 60) if self.window_s is None else self.window_s),
            keep_requests=self.keep_requests,
            seed=self.seed,
        )

    def _burst_states(self) -> Bursts | None:
        if self.bursts is None:
            return None
        if str(self.arrivals) != "mmpp":
            raise UsageError(f"bursts are those of arrivals mmpp, found arrivals {self.arrivals}")
        if len(self.bursts) != 3:
            raise UsageError(f"bursts: found {len(self.bursts)} numbers, expected factor, share and seconds")
        factor, share, seconds = self.bursts
        return Bursts.of(factor=factor, share=share, burst_s=seconds)


def simulate_files(
    plan: Path | str,
    tables: Sequence[Path | str],
    run: FileRun,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> Simulated:
    """Serve the plan in the JSON file ``plan`` by the requirement ``tables`` (CSV, JSON, Parquet). ``progress`` is
    told (what is done, done, total). Raises DocumentError and TableError for what is wrong with a file, UsageError
    for the rest."""
    placed = read_plan(Path(plan))
    came, options, name, notes = run.prepared(placed)
    names = {r.model for gpu in placed.gpus for r in gpu.replicas}
    return simulate_plan(
        placed,
        _rows(tables, names, progress),
        came,
        options,
        arrivals_name=name,
        rate_scale=run.rate_scale,
        coefficients=run.coefficients,
        network=run.delays,
        max_wait_ms=run.max_wait_ms,
        admission=run.admission,
        gpu_specs=run.gpu_specs,
        table=", ".join(str(t) for t in tables),
        notes=notes,
        progress=progress,
    )


def _recorded(came: ReplayedArrivals) -> tuple[str, ...]:
    """What the trace has for each source, and how it was scaled."""
    found = came.recordings()
    said = [
        f"{r.name} {r.requests:,} requests at {number_text(r.mean_rps)} req/s"
        + (f" (variation of the gaps {number_text(r.gap_cv)})" if r.gap_cv is not None else "")
        + (f", times {number_text(r.factor)}" if r.factor != 1 else "")
        for r in found[:_SOURCES_SAID]
    ]
    if len(found) > _SOURCES_SAID:
        more = f"; and {len(found) - _SOURCES_SAID:,} more"
    else:
        more = ""
    return (f"trace {came.path}: {'; '.join(said)}{more}",)


def replan_files(
    plan: Path | str,
    tables: Sequence[Path | str],
    cluster: Path | str,
    replanning: Replanning,
    run: FileRun,
    *,
    policy: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> ReplanReport:
    """As :func:`simulate_files`, beginning with the plan; ``policy`` (None: the plan's) runs again as ``replanning``
    says, on the GPUs of the ``cluster`` file (YAML), for the plan's objective by its measure of compute. Raises the
    same, and UsageError for requests that were asked to be kept."""
    from gkestimator.simulation.replanning.running import simulate_replanned

    if run.keep_requests:
        raise UsageError(
            "--requests: requests are not kept where the policy runs again, expected --replan none"
        )
    placed = read_plan(Path(plan))
    there = read_cluster(Path(cluster), gpu_specs=run.gpu_specs)
    came, options, name, notes = run.prepared(placed)
    return simulate_replanned(
        placed,
        _rows(tables, set(placed.workload.names()), progress),
        there,
        came,
        options,
        replanning,
        policy=policy,
        objective=placed.objective,
        creq=placed.creq if policy is None or policy == placed.policy else None,
        arrivals_name=name,
        coefficients=run.coefficients,
        network=run.delays,
        max_wait_ms=run.max_wait_ms,
        admission=run.admission,
        gpu_specs=run.gpu_specs,
        table=", ".join(str(t) for t in tables),
        notes=notes,
        progress=progress,
    )


def _rows(
    tables: Sequence[Path | str], models: Collection[str], progress: Callable[[str, int, int], None] | None
) -> list[Requirement]:
    """Rows of ``models``."""
    if not tables:
        raise UsageError("no requirement table is named: expected at least one")
    rows: list[Requirement] = []
    for number, table in enumerate(tables):
        if progress is not None:
            progress(f"reading {Path(table).name}", number, len(tables))
        rows += read_table(Path(table), REQUIREMENTS, where={"model": models})
    return rows
