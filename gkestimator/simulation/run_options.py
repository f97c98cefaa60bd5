"""Hold the options of a simulation of files: the one place where each of them is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gkestimator.core.option_kinds import File, Flag, Many, Number, Text, Word
from gkestimator.core.options import Option, Value, variant
from gkestimator.documents.plan import BATCHINGS
from gkestimator.estimation.request import EstimateRequest, OnePath, Paths
from gkestimator.interference.registry import MODELS
from gkestimator.simulation.options import (
    ADMISSIONS,
    ASSIGNMENTS,
    COPIES,
    DROPS,
    PREFILLS,
    RATES,
    ROUTINGS,
    SCALINGS,
    SERVICES,
)

_FROM_0 = Number(low=0, high=1e9)
_ABOVE_0 = Number(low=0, high=1e9, above=True)
Bursts: TypeAlias = Option[Sequence[float] | None, tuple[float, ...] | None]


@dataclass(kw_only=True)
class SimulateOptions:
    """Hold how files are simulated; ``gkest simulate`` offers all of it. Raises UsageError."""

    arrivals: Value[str] = Option(
        "poisson",
        Text(),
        "poisson, mmpp, constant, closed:N (N clients that wait for answers), or the file of a trace.",
    )
    bursts: Bursts = Option(
        None,
        Many(item=_FROM_0, commas=True, repeats=True),
        "mmpp: FACTOR,SHARE,S: bursts of S seconds at FACTOR times the rate, SHARE of the time.",
    )
    trace_format: Value[str | None] = Option(
        None, Text(), "Format of the trace; default: known by its columns."
    )
    streams: Value[str | None] = Option(
        None,
        Word(ASSIGNMENTS),
        "How a trace's requests are dealt to models: by name, whole streams in turn, each in turn.",
    )
    trace_rates: Value[str | None] = Option(None, Word(RATES), "Scaled to the plan's, or as recorded.")
    trace_scaling: Value[str | None] = Option(None, Word(SCALINGS), "How rates are scaled.")
    trace_start_s: Value[float | None] = Option(None, _FROM_0, "Where in the trace to begin.", unit="s")
    trace_duration_s: Value[float | None] = Option(None, _ABOVE_0, "How much of the trace is used.", unit="s")
    trace_loop: Value[bool] = Option(False, Flag(), "Begin the trace again at its end.")
    duration_s: Value[float | None] = Option(
        None, _ABOVE_0, "Seconds of arrivals; default: 60, or all of a trace.", unit="s"
    )
    warmup_s: Value[float] = Option(0.0, _FROM_0, "Seconds not counted.", unit="s")
    rate_scale: Value[float] = Option(1.0, _ABOVE_0, "Factor on all rates.")
    max_wait_ms: Value[float | None] = Option(
        None, _FROM_0, "How long a batch may fill at the router; default: the plan's.", unit="ms"
    )
    network: Value[str] = Option("none", Text(), "none, or a file of delays by size (TOML).")
    service: Value[str] = Option(
        "deterministic", Word(SERVICES), "interval: drawn once a model from the estimate's interval."
    )
    interference: Value[str] = Option(
        "contention", Word(tuple(MODELS)), "How replicas of one GPU slow each other."
    )
    coefficients: OnePath = Option(None, File(), "Coefficients of the interference model.")
    copy: Value[str] = Option(
        "none",
        Word(COPIES),
        "Moving inputs and outputs: not counted, before the batch, or beside other batches.",
    )
    routing: Value[str] = Option("round-robin", Word(ROUTINGS), "Which replica takes the next batch.")
    drop: Value[str] = Option(
        "none", Word(DROPS), "late: requests that cannot be on time any more are not served."
    )
    batching: Value[str] = Option(
        "plan",
        Word(("plan", *BATCHINGS)),
        "Batches fill at the router (early), or are formed of what waits at a free GPU (late).",
    )
    admission: Value[str] = Option(
        "plan",
        Word(ADMISSIONS),
        "What is let in: what the plan serves, what it expects to serve on time, or all.",
    )
    prefill: Value[str] = Option(
        "plan",
        Word(PREFILLS),
        "Language models: whole prompts first, or in chunks beside decoding; default: as the plan says.",
    )
    window_s: Value[float | None] = Option(
        None, _ABOVE_0, "Of the timeline; default: a 60th, at least 1.", unit="s"
    )
    gpu_specs: Paths = variant(EstimateRequest, "gpu_specs")
    seed: Value[int] = Option(0, Number(low=0, high=2**63 - 1, whole=True), "One seed, one result.")
