"""Build the system of a plan of language models, and say what their requests got."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.errors import DocumentError, TableError, UsageError
from gkestimator.core.options import spelled
from gkestimator.documents import LanguageReplica, ModelLoad, PlacedGpu, PlacementPlan, Replica
from gkestimator.documents.simulation import SimulatedLanguage
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.llm.lengths import Lengths, lengths_of
from gkestimator.llm.steps import Serving, serving_of
from gkestimator.simulation.arrays import ValuesByName
from gkestimator.simulation.histogram import quantile_ms
from gkestimator.simulation.options import PREFILLS, check_known
from gkestimator.simulation.result import Result, TokenCounts
from gkestimator.simulation.summary import mean_of
from gkestimator.simulation.system import (
    SimGpu,
    SimIterating,
    SimModel,
    SimReplica,
    SimSource,
    SimStage,
    System,
    TokenPace,
)
from gkestimator.tables.llm_requirement import LlmRequirement

_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def check_language_options(plan: PlacementPlan, options: ValuesByName) -> None:
    """Raise UsageError for the first of ``options`` that says how batches are served, which language models are not,
    and for a plan that has other models too.
    """
    if plan.workload.applications or len(plan.workload.languages) < len(plan.workload.models):
        raise UsageError("language models are simulated by themselves: expected a plan without other models")
    usual = {"copy": "none", "drop": "none", "network": None, "max_wait_ms": None, "coefficients": None}
    usual["batching"] = "early"
    for name, value in usual.items():
        if options.get(name, value) != value:
            raise UsageError(f"{spelled(name)} {options[name]}: has no use for language models")
    if options.get("service") == "exponential" or options.get("admission") == "expected":
        raise UsageError("service exponential and admission expected: have no use for language models")


def language_system(
    plan: PlacementPlan,
    rows: Sequence[LlmRequirement],
    *,
    admission: str = "plan",
    prefill: str = "plan",
    table: str = "table",
) -> System:
    """Return the system that ``plan`` describes, its replicas as fast as ``rows`` of ``gkest llm`` say.

    ``prefill``: how prompts are served, ``first``, ``chunked`` or as the plan says. Raises TableError where the rows
    lack a replica's, or do not reach as far as its requests may.
    """
    check_known("prefill", prefill, PREFILLS)
    lengths = {m.name: lengths_of(m.language) for m in plan.workload.models if m.language is not None}
    models = {name: number for number, name in enumerate(plan.workload.names())}
    numbers = {gpu.id: number for number, gpu in enumerate(plan.gpus)}
    languages = {language.replica: language for language in plan.languages}
    served = dict.fromkeys(models, 0.0)
    replicas = []
    notes = []
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            language = languages[replica.id]
            serving = serving_of(_rows_of(rows, replica, language, gpu, table), table)
            _check_reach(serving, replica, lengths[replica.model], table)
            chunked = language.chunked if prefill == "plan" else prefill == "chunked"
            iterates = SimIterating(
                law=serving.law,
                page_tokens=language.page_tokens,
                pages=language.pages,
                most_sequences=replica.batch_size,
                budget_tokens=language.budget_tokens,
                chunked=chunked,
                beside=tuple(numbers[other] for other in language.beside),
            )
            replicas.append(_replica(replica, models[replica.model], numbers[gpu.id], iterates))
            served[replica.model] += replica.goodput_rps
            notes += _below(serving, replica.model, lengths[replica.model])
    sources = []
    for load in plan.workload.models:
        admit = 1.0
        if admission == "plan":
            admit = min(1.0, served[load.name] / load.rate_rps + 1e-9)
        sources.append(_source(load, models[load.name], lengths[load.name], admit))
    catalogue = gpu_catalogue()
    return System(
        sources=tuple(sources),
        models=tuple(_model(load) for load in plan.workload.models),
        gpus=tuple(
            SimGpu(id=gpu.id, type=gpu.type, price_per_hour=catalogue.spec(gpu.type).price_per_hour_usd)
            for gpu in plan.gpus
        ),
        replicas=tuple(replicas),
        notes=tuple(dict.fromkeys(notes)),
    )


def _rows_of(
    rows: Sequence[LlmRequirement], replica: Replica, language: LanguageReplica, gpu: PlacedGpu, table: str
) -> list[LlmRequirement]:
    """Return the rows that ``replica`` runs by. Raises TableError without any."""
    catalogue = gpu_catalogue()
    asked = (
        replica.model,
        gpu.type,
        1 + len(language.beside),
        replica.runtime,
        replica.dtype,
        language.kv_dtype,
    )
    matching = [
        row
        for row in rows
        if (row.model, catalogue.canonical(row.gpu), row.gpus, row.engine, row.dtype, row.kv_dtype) == asked
    ]
    if not matching:
        raise TableError(
            f"{table}: no row for {replica.model} on {asked[2]} x {gpu.type} ({replica.runtime}, {replica.dtype}, "
            f"cache {language.kv_dtype}), by which {replica.id} of the plan runs"
        )
    return matching


def _check_reach(serving: Serving, replica: Replica, lengths: Lengths, table: str) -> None:
    """Raise TableError where requests are longer, or batches larger, than the rows say anything of."""
    longest = max(prompt + answer for prompt, answer in lengths)
    if longest > serving.longest:
        raise TableError(
            f"{table}: {replica.model}: requests of up to {longest:,} tokens (prompt and answer), its prompts go to "
            f"{serving.longest:,}: estimate prompts of up to {longest:,} tokens too"
        )
    if replica.batch_size > serving.most_sequences:
        raise TableError(
            f"{table}: {replica.model}: {replica.id} of the plan serves up to {replica.batch_size} sequences at once, "
            f"its batches go to {serving.most_sequences}: estimate batches of up to {replica.batch_size:,} too"
        )


def _below(serving: Serving, model: str, lengths: Lengths) -> list[str]:
    """Return a note where prompts are shorter than the table's shortest, which they then take as long as."""
    least = serving.law.prompts[0]
    shorter = sum(prompt < least for prompt, _ in lengths)
    if not shorter:
        return []
    return [
        f"{model}: {100 * shorter / len(lengths):.3g} % of the prompts are shorter than the table's shortest, "
        f"{least:,} tokens: they take as long as that"
    ]


def _replica(replica: Replica, model: int, gpu: int, iterates: SimIterating) -> SimReplica:
    return SimReplica(
        id=replica.id,
        model=model,
        gpu=gpu,
        batch_size=1,
        max_wait_ms=0.0,
        weight=replica.goodput_rps or replica.throughput_rps or 1.0,
        batches=(1,),
        latencies_ms=(replica.latency_ms,),
        creq_pct=None,
        memory_pct=None,
        iterates=iterates,
    )


def _model(load: ModelLoad) -> SimModel:
    language = load.language
    if language is None:
        raise DocumentError(f"{load.name}: found no lengths, expected a language model")
    paced = TokenPace(ttft_ms=language.slo_ttft_ms, tpot_ms=language.slo_tpot_ms)
    return SimModel(name=load.name, slo_ms=load.slo_ms, paced=paced)


def _source(load: ModelLoad, model: int, lengths: Lengths, admit: float) -> SimSource:
    return SimSource(
        name=load.name,
        application=False,
        rate_rps=load.rate_rps,
        slo_ms=load.slo_ms,
        stages=(SimStage(model=model),),
        admit=admit,
        lengths=lengths,
    )


def summarise_languages(system: System, result: Result) -> tuple[SimulatedLanguage, ...]:
    """Return what requests to each language model got; none where there is no such model."""
    counts = result.tokens
    if counts is None:
        return ()
    languages = []
    for m, model in enumerate(system.models):
        if model.paced is not None:
            languages.append(_summary(system, result, counts, m, model.paced))
    return tuple(languages)


def _summary(
    system: System, result: Result, counts: TokenCounts, m: int, pace: TokenPace
) -> SimulatedLanguage:
    values: ValuesByName = {
        "ttft_mean_ms": mean_of(float(counts.ttft_sums_ms[m]), int(result.done[m])),
        "tpot_mean_ms": mean_of(float(counts.tpot_sums_ms[m]), int(counts.spread[m])),
    }
    for k, kind in enumerate(("ttft", "tpot")):
        for name, q in _PERCENTILES.items():
            values[f"{kind}_{name}_ms"] = quantile_ms(counts.histograms[m, k], q)
    span = result.until_ms - result.from_ms
    sequences = pages = held = 0.0
    for at, r in enumerate(counts.replicas.tolist()):
        iterates = system.replicas[r].iterates
        if iterates is not None and system.replicas[r].model == m:
            sequences += float(counts.sequences_ms[at]) / span
            held += float(counts.held_ms[at]) / span
            pages += iterates.pages
    return SimulatedLanguage(
        model=system.models[m].name,
        slo_ttft_ms=pace.ttft_ms,
        slo_tpot_ms=pace.tpot_ms,
        **values,
        tokens_per_s=1e3 * int(counts.tokens[m]) / result.end_ms if result.end_ms else None,
        sequences_mean=sequences,
        cache_pct=100 * held / pages if pages else 0.0,
        iterations=int(counts.iterations[m]),
        preempted=int(counts.preempted[m]),
    )
