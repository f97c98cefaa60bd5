"""Simulate a plan by rows and arrivals: what ``gkest simulate`` does, for programs too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from gkestimator.core.compiled import COMPILED
from gkestimator.core.errors import UsageError, one_line
from gkestimator.core.options import spelled
from gkestimator.core.records import frozen
from gkestimator.documents import PlacementPlan, read_cluster, read_plan
from gkestimator.documents.simulation import SimulationReport, SimulationSettings
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.placement.languages import language_rows
from gkestimator.reporting.simulated import first_of
from gkestimator.simulation.arrays import Files, Names, Texts, ValuesByName
from gkestimator.simulation.arrivals.base import Arrivals
from gkestimator.simulation.arrivals.closed import ClosedArrivals, closed_loop
from gkestimator.simulation.arrivals.making import is_trace, make_arrivals, sources_of
from gkestimator.simulation.arrivals.rates import Bursts
from gkestimator.simulation.arrivals.replay import Replay, ReplayedArrivals
from gkestimator.simulation.conditions import (
    Conditions,
    Progress,
    answerable,
    check_streams,
    rows_of_models,
    system_builder,
)
from gkestimator.simulation.engine.simulator import Simulator
from gkestimator.simulation.languages import check_language_options, language_system, summarise_languages
from gkestimator.simulation.options import OPTION_WORDS, Options, batching_for
from gkestimator.simulation.result import Result
from gkestimator.simulation.run_options import SimulateOptions
from gkestimator.simulation.summary import summarise
from gkestimator.simulation.system import System
from gkestimator.tables import Requirement, TableSource, table_label
from gkestimator.tables.llm_requirement import LlmRequirement
from gkestimator.tables.units import number_text

if TYPE_CHECKING:
    from gkestimator.simulation.replanning.report import ReplanReport
    from gkestimator.simulation.replanning.settings import Replanning


_SECONDS = 60.0  # of arrivals, unless more or less is asked for
_SOURCES_SAID = 8


@frozen
class Simulated:
    """Hold the document of a run (``report``), and the ``system`` and ``result`` that it was made of."""

    report: SimulationReport
    system: System
    result: Result


def simulate_plan(
    plan: PlacementPlan,
    rows: Iterable[Requirement] | Iterable[LlmRequirement],
    arrivals: Arrivals,
    options: Options,
    *,
    arrivals_name: str = "arrivals",
    rate_scale: float = 1.0,
    notes: Texts = (),
    prefill: str = "plan",
    progress: Progress | None = None,
    **conditions: Unpack[Conditions],
) -> Simulated:
    """Serve ``plan`` by ``rows`` under ``arrivals``; by rows of ``gkest llm`` where its models are language models.

    The arrivals' streams are in the order of the plan's workload (models, then applications), already at the
    scaled rate. ``options.interference`` names the interference model, ``coefficients`` its file.
    ``arrivals_name`` and ``rate_scale`` are written into the report's settings alone. For the rest see
    :func:`gkestimator.simulation.building.build_system`. Raises its errors.
    """
    if not plan.workload.languages:
        batched = cast(list[Requirement], list(rows))
        options, unanswered = answerable(options, batched, conditions.get("coefficients"))
        rows = batched
        notes = (*unanswered, *notes)
    system = _system(plan, rows, options, prefill, conditions)
    check_streams(arrivals, len(system.sources), arrivals_name, "the plan's workload")
    result = _served(system, arrivals, options, progress)
    settings = SimulationSettings(
        policy=plan.policy,
        arrivals=one_line(arrivals_name),
        duration_s=options.duration_ms / 1e3,
        warmup_s=options.warmup_ms / 1e3,
        rate_scale=rate_scale,
        max_wait_ms=conditions.get("max_wait_ms"),
        admission=conditions.get("admission", "plan"),
        **{name: getattr(options, name) for name in OPTION_WORDS},
        coefficients=_line_or_none(conditions.get("coefficients")),
        network=_line_or_none(conditions.get("network")),
        window_s=options.window_ms / 1e3,
        seed=options.seed,
    )
    lines = [one_line(note, limit=2000) for note in (*system.notes, *notes)]
    report = summarise(plan, system, result, settings, lines)
    if result.tokens is not None:
        report = replace(report, languages=summarise_languages(system, result))
    return Simulated(report=report, system=system, result=result)


def _system(
    plan: PlacementPlan, rows: Iterable[Any], options: Options, prefill: str, conditions: Conditions
) -> System:
    """Return the system of ``plan`` by rows of its kind."""
    if plan.workload.languages:
        words = {name: getattr(options, name) for name in OPTION_WORDS}
        check_language_options(plan, {**words, **conditions})
        return language_system(
            plan,
            list(rows),
            admission=conditions.get("admission", "plan"),
            prefill=prefill,
            table=conditions.get("table", "table"),
        )
    if prefill != "plan":
        raise UsageError(f"prefill {prefill}: has no use where no model is a language model")
    specs = _known_types(plan, conditions.get("gpu_specs", ()))
    return system_builder(rows, options, specs, **conditions)(plan)


def _line_or_none(value: Path | str | None) -> str | None:
    if value is None:
        return None
    return one_line(value)


def _known_types(plan: PlacementPlan, gpu_specs: Files) -> tuple[GpuSpec, ...]:
    """Return the GPU types of ``plan`` of which something is known."""
    catalogue = gpu_catalogue(gpu_specs)
    specs = []
    for gpu_type in dict.fromkeys(gpu.type for gpu in plan.gpus):
        with contextlib.suppress(UsageError):  # refused when interference asks for it
            specs.append(catalogue.spec(gpu_type))
    return tuple(specs)


def _served(system: System, arrivals: Arrivals, options: Options, progress: Progress | None) -> Result:
    if arrivals.closed:
        system = closed_loop(system)
    simulator = Simulator(system, options)
    steps = max(1, round(options.duration_ms / 1e3))
    what = "seconds simulated"
    if progress is not None:
        compiling = " (compiling)" if COMPILED else ""  # the first run on a machine compiles for a while
        progress(what + compiling, 0, steps)
    for chunk in arrivals.chunks(options.duration_ms):
        simulator.advance(chunk)
        if progress is not None:
            progress(what, min(steps, int(chunk.end_ms / 1e3)), steps)
    return simulator.finish()


@frozen
class PreparedRun:
    """Hold what a run is made of beside plan and rows: arrivals, options, and how reports name the arrivals."""

    arrivals: Arrivals
    options: Options
    arrivals_name: str
    notes: Names = ()


@dataclass(kw_only=True)
class FileRun(SimulateOptions):
    """Hold how files are simulated, and whether the result has every request.

    ``arrivals``: a process (``poisson``, ``mmpp``, ``constant``) at the rates of the plan's workload times
    ``rate_scale``, the file of rate profiles, or that of a trace, replayed for ``duration_s`` (None: 60; a
    trace to its end), of which the first ``warmup_s`` are not counted. ``bursts`` of ``mmpp``:
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
        said: ValuesByName = {name: value for name, value in options.items() if value is not None}
        return Replay(**said) if said else None

    @property
    def delays(self) -> str | None:
        """Return the file of the network's delays; None where there are none."""
        if self.network == "none":
            return None
        return self.network

    def prepared(self, plan: PlacementPlan) -> PreparedRun:
        """Return arrivals for the workload of ``plan``, what the simulator is told, and notes.

        Raises what the arrivals' factory raises, and UsageError for options that do not go together.
        """
        replay = self.replay
        seconds = self.duration_s
        from_file = is_trace(self.arrivals)
        if replay is not None and not from_file:
            raise UsageError(
                f"options of a trace: found arrivals {self.arrivals}, expected the file of a trace"
            )
        if seconds is not None or not from_file:
            self._options(seconds or _SECONDS, plan)  # wrong in no time; a trace takes a while to read
        sources = sources_of(plan.workload)
        arrivals = make_arrivals(
            self.arrivals,
            [s.rate_rps for s in sources],
            [s.name for s in sources],
            seed=self.seed,
            rate_scale=self.rate_scale,
            bursts=self._burst_states(),
            replay=replay,
        )
        name = str(self.arrivals)
        notes: Names = ()
        if isinstance(arrivals, ReplayedArrivals):
            name += f" ({_replay_words(arrivals.replay)})"
            notes = (_recorded_note(arrivals),)
            if seconds is None:
                seconds = arrivals.length_ms / 1e3
        elif replay is not None:
            raise UsageError(f"options of a trace: {self.arrivals} holds rate profiles, expected a trace")
        elif isinstance(arrivals, ClosedArrivals):
            notes = (arrivals.note,)
        elif self.bursts is not None:
            name += f" (bursts {', '.join(f'{b:g}' for b in self.bursts)})"
        options = self._options(_SECONDS if seconds is None else seconds, plan)
        return PreparedRun(arrivals=arrivals, options=options, arrivals_name=name, notes=notes)

    def conditions(self, tables: Sequence[TableSource]) -> Conditions:
        """Return under which conditions plans are served by the rows of ``tables``."""
        return {
            "coefficients": self.coefficients,
            "network": self.delays,
            "max_wait_ms": self.max_wait_ms,
            "admission": self.admission,
            "gpu_specs": self.gpu_specs,
            "table": ", ".join(map(table_label, tables)),
        }

    def _options(self, duration_s: float, plan: PlacementPlan) -> Options:
        window_s = self.window_s
        if window_s is None:
            window_s = max(1.0, duration_s / 60)
        words = {name: getattr(self, name) for name in OPTION_WORDS}
        words["batching"] = batching_for(self.batching, plan)
        return Options(
            duration_ms=duration_s * 1e3,
            warmup_ms=self.warmup_s * 1e3,
            **words,
            window_ms=1e3 * window_s,
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


def _replay_words(replay: Replay) -> str:
    words = [f"streams {replay.assign}", f"rates {replay.rates}", f"scaling {replay.scaling}"]
    if replay.start_s:
        words.append(f"from {replay.start_s:g} s")
    if replay.duration_s is not None:
        words.append(f"{replay.duration_s:g} s of it")
    if replay.loop:
        words.append("in a loop")
    return ", ".join(words)


def _recorded_note(arrivals: ReplayedArrivals) -> str:
    """Return what the trace has for each source, and how it was scaled."""
    sources = []
    for r in arrivals.recordings():
        text = f"{r.name} {r.requests:,} requests at {number_text(r.mean_rps)} req/s"
        if r.gap_cv is not None:
            text += f" (variation of the gaps {number_text(r.gap_cv)})"
        if r.factor != 1:
            text += f", times {number_text(r.factor)}"
        sources.append(text)
    return f"trace {arrivals.path}: {first_of(sources, _SOURCES_SAID, '; ', '; and')}"


def _plan_in(plan: Path | str | PlacementPlan) -> PlacementPlan:
    if isinstance(plan, PlacementPlan):
        return plan
    if not isinstance(plan, str | Path):
        raise UsageError(f"plan: found {type(plan).__name__}, expected a plan or the path of one")
    return read_plan(Path(plan))


def simulate_files(
    plan: Path | str | PlacementPlan,
    tables: Sequence[TableSource],
    run: FileRun,
    *,
    progress: Progress | None = None,
) -> Simulated:
    """Serve ``plan`` (a JSON file, or in memory) by the requirement ``tables`` (CSV, JSON, Parquet, DataFrames).

    ``progress`` is told what is done, how much of it, and of how much. Raises DocumentError and TableError
    for what is wrong with a file, UsageError for the rest.
    """
    placed = _plan_in(plan)
    prepared = run.prepared(placed)
    names = {r.model for gpu in placed.gpus for r in gpu.replicas}
    rows: list[Requirement] | list[LlmRequirement]
    if placed.workload.languages:
        rows = language_rows(tables, names)
    else:
        rows = rows_of_models(tables, names, progress)
    return simulate_plan(
        placed,
        rows,
        prepared.arrivals,
        prepared.options,
        arrivals_name=prepared.arrivals_name,
        rate_scale=run.rate_scale,
        notes=prepared.notes,
        prefill=run.prefill,
        progress=progress,
        **run.conditions(tables),
    )


def replan_files(
    plan: Path | str,
    tables: Files,
    cluster: Path | str,
    replanning: Replanning,
    run: FileRun,
    *,
    policy: str | None = None,
    progress: Progress | None = None,
) -> ReplanReport:
    """Serve the plan in the JSON file ``plan``, and let ``policy`` (None: the plan's) run again meanwhile.

    It plans as ``replanning`` says, on the GPUs of the ``cluster`` file (YAML), for the plan's objective by
    its measure of compute. Raises what :func:`simulate_files` raises, and UsageError for requests that were
    asked to be kept.
    """
    from gkestimator.simulation.replanning.running import simulate_replanned

    if run.keep_requests:
        raise UsageError(
            f"{spelled('keep_requests', '--requests')}: requests are not kept where the policy runs again"
        )
    placed = read_plan(Path(plan))
    if placed.workload.languages:
        raise UsageError(
            f"{plan}: found language models, for which no policy runs again, expected other models alone"
        )
    gpus = read_cluster(Path(cluster), gpu_specs=run.gpu_specs)
    prepared = run.prepared(placed)
    creq = None
    if policy in (None, placed.policy):
        creq = placed.creq
    return simulate_replanned(
        placed,
        rows_of_models(tables, placed.workload.names(), progress),
        gpus,
        prepared.arrivals,
        prepared.options,
        replanning,
        policy=policy,
        objective=placed.objective,
        creq=creq,
        arrivals_name=prepared.arrivals_name,
        notes=prepared.notes,
        progress=progress,
        **run.conditions(tables),
    )
