"""Place language models: how many copies, of how many GPUs each, serve a rate within both objectives, in closed form.

For one copy at L requests a second, with S(n, c) the time of a step of n sequences with c cached tokens, P(i) that of a
prompt of i tokens, and answers of O tokens in the mean:

- sequences share the GPU: with n of them under way a token takes S(n, c) / (1 - r'), r' = L E[P'] being the part of the
  time that prompts take from them (P' = P; in chunks beside decoding less by one reading of the weights, the least
  step). Such sharing at a speed of the state is insensitive to how answers are distributed (F. P. Kelly, Reversibility
  and Stochastic Networks, 1979, chapter 3): n has weights L^n T(1) ... T(n) / n!, T(n) = (O - 1) S(n, c) / (1 - r');
- a burst brings sequences and prompts at once, which slow those under way: n moves 1 / (1 - r') times as far from its
  mean (linear noise);
- at m, which n does not exceed in 95 of 100, an answer of o tokens takes S(m, c) a token, and the prompts that come
  in its time: in the mean r' / (1 - r') S(m, c) a token, Poisson's in number. TPOT is what 95 in 100 answers do not
  exceed;
- a prompt waits for those before it (M/G/1 at r = L E[P], first come first served: mean W = L E[P^2] / (2 (1 - r)),
  tail r exp(-t r / W), as in heavy traffic) and for the step that runs. TTFT is the 95 % point of that wait, a step,
  and the prompt that is longer than 95 in 100;
- the cache must hold that many sequences with mean prompts and whole mean answers, so that few are preempted.

The largest L that keeps all is looked for by halving. Our combination of textbook laws (L. Kleinrock, Queueing
Systems, volume 1, 1975, for W); held to the simulator in tests/placement/test_languages.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gkestimator.core.errors import TableError, UsageError, one_line
from gkestimator.core.limits import check_amount
from gkestimator.core.records import frozen
from gkestimator.documents import (
    Cluster,
    LanguageLoad,
    LanguageReplica,
    ModelLoad,
    PlacedGpu,
    PlacementPlan,
    PlanTotals,
    Replica,
    Unserved,
    Workload,
)
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.llm.lengths import Lengths, lengths_of
from gkestimator.llm.steps import Serving, serving_of, settings
from gkestimator.tables import TableSource, rows_in, table_label
from gkestimator.tables.llm_requirement import LLM_TABLE, LlmRequirement

_SHARE = 0.95
_HALVINGS = 40
_POINTS = 32


@frozen
class TokenDemand:
    """Hold what the lengths of a model's requests come to, by one law.

    Means: ``answer`` (tokens), ``context`` (cached tokens, over the steps), a prompt's time, its square, and what it
    takes from sequences that decode (``taken_ms``), ``pages`` at the end. ``prompt_high_ms``: longer than 95 in 100.
    ``answers``: equally likely answers of more than one token, in steps.
    """

    answer: float
    context: float
    prompt_ms: float
    prompt_square: float
    prompt_high_ms: float
    taken_ms: float
    pages: float
    answers: tuple[float, ...]


@frozen
class Load:
    """Hold how one copy fares at a rate: sequences under way, and what 95 in 100 get (ms)."""

    rate_rps: float
    sequences: float
    ttft_ms: float
    tpot_ms: float


@frozen
class LanguageChoice:
    """Hold one way to serve a model: what its rows say, the largest rate a copy keeps (0: none), GPUs of a copy."""

    serving: Serving
    demand: TokenDemand
    rate_rps: float

    @property
    def gpus(self) -> int:
        """Return the GPUs of one copy."""
        return self.serving.row.gpus


def demand_of(lengths: Lengths, serving: Serving, chunked: bool) -> TokenDemand:
    """Return what ``lengths`` come to, prompts served in chunks or whole. Raises TableError where they are longer
    than the table's prompts."""
    law = serving.law
    tokens = np.array(lengths, float)
    longest = int(tokens.sum(axis=1).max())
    row = serving.row
    if longest > serving.longest:
        raise TableError(
            f"{row.model} on {row.gpu}: requests of up to {longest:,} tokens (prompt and answer), the table's prompts "
            f"go to {serving.longest:,}: estimate prompts of up to {longest:,} tokens too"
        )
    prompts = np.interp(tokens[:, 0], law.prompts, law.prompt_ms[0])
    held = np.ceil(tokens.sum(axis=1) / serving.page_tokens)
    steps = np.maximum(tokens[:, 1] - 1, 0.0)
    # Contexts count by the steps that are made at them.
    contexts = float((steps * (tokens[:, 0] + tokens[:, 1] / 2)).sum() / max(1.0, float(steps.sum())))
    answers: tuple[float, ...] = ()
    if steps.max() > 0:
        points = (np.arange(_POINTS) + 0.5) / _POINTS
        answers = tuple(np.quantile(steps[steps > 0], points, method="inverted_cdf").tolist())
    return TokenDemand(
        answer=float(tokens[:, 1].mean()),
        context=contexts,
        prompt_ms=float(prompts.mean()),
        prompt_square=float((prompts**2).mean()),
        prompt_high_ms=float(np.quantile(prompts, _SHARE)),
        taken_ms=float(np.maximum(prompts - law.step_ms[0][0] * chunked, 0.0).mean()),
        pages=float(held.mean()),
        answers=answers,
    )


def load_of(serving: Serving, demand: TokenDemand, rate_rps: float) -> Load | None:
    """Return how one copy fares at ``rate_rps``; None where it cannot keep up, or its cache or its rows do not
    reach."""
    rate = rate_rps / 1e3
    prompts = rate * demand.prompt_ms
    if prompts >= 1:
        return None
    left = 1 - rate * demand.taken_ms
    room = int(min(serving.most_sequences, serving.pages / demand.pages))
    states = np.arange(1, room + 1)
    column = [serving.law.step(batch, demand.context) for batch in serving.law.batches]
    steps = np.interp(states, serving.law.batches, column)
    chances = np.ones(1)
    if demand.answer > 1 and room:
        weights = np.concatenate(
            ([0.0], np.cumsum(np.log(rate * (demand.answer - 1) * steps / left / states)))
        )
        chances = np.exp(weights - weights.max())
        chances /= chances.sum()
    mean = float((chances * np.arange(len(chances))).sum())
    most = int(np.searchsorted(np.cumsum(chances), _SHARE))
    high = math.ceil(mean + max(0.0, most - mean) / left) + 1
    if high > room:
        return None
    step = float(steps[high - 1])
    wait = rate * demand.prompt_square / (2 * (1 - prompts))
    late = 0.0
    if prompts > 1 - _SHARE:
        late = math.log(prompts / (1 - _SHARE)) * wait / prompts
    return Load(
        rate_rps=rate_rps,
        sequences=mean,
        ttft_ms=late + step + demand.prompt_high_ms,
        tpot_ms=_tpot_ms(demand, step / left, rate),
    )


def _tpot_ms(demand: TokenDemand, token_ms: float, rate: float) -> float:
    """Return the time per token that 95 in 100 answers do not exceed, a token taking ``token_ms`` in the mean.

    The prompts that come in an answer's time are taken as normal, with the variance of Poisson's.
    """
    if not demand.answers:
        return token_ms
    deviations = [math.sqrt(rate * token_ms * demand.prompt_square / answer) for answer in demand.answers]
    low, high = token_ms, token_ms + 6 * max(deviations)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        kept = sum(math.erf((middle - token_ms) / (deviation * math.sqrt(2))) for deviation in deviations)
        enough = (1 + kept / len(deviations)) / 2 >= _SHARE
        low, high = (low, middle) if enough else (middle, high)
    return high


def most_rps(serving: Serving, demand: TokenDemand, asked: LanguageLoad) -> float:
    """Return the largest rate at which one copy keeps both objectives; 0 where it keeps them at none."""
    low, high = 0.0, 1e3 / demand.prompt_ms
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        load = load_of(serving, demand, middle)
        kept = load is not None and load.ttft_ms <= asked.slo_ttft_ms and load.tpot_ms <= asked.slo_tpot_ms
        low, high = (middle, high) if kept else (low, middle)
    # Halving from above never reaches 0: what is left of it is none.
    return low if low > 1e-9 * 1e3 / demand.prompt_ms else 0.0


def choices_of(
    rows: Sequence[LlmRequirement], load: ModelLoad, asked: LanguageLoad, table: str, *, chunked: bool
) -> list[LanguageChoice]:
    """Return every way that ``rows`` offer for ``load``; those that do not fit or keep the objectives have rate 0."""
    lengths = lengths_of(asked)
    choices = []
    for of_setting in settings([row for row in rows if row.model == load.name]).values():
        row = of_setting[0]
        if row.gpus_needed is None and all(r.mreq_pct is not None for r in of_setting):
            continue
        serving = serving_of(of_setting, table)
        if serving.pages < 1:
            continue
        demand = demand_of(lengths, serving, chunked)
        choices.append(
            LanguageChoice(serving=serving, demand=demand, rate_rps=most_rps(serving, demand, asked))
        )
    return choices


class _Yard:
    """Hand out GPUs of a cluster, those of one copy of one type."""

    def __init__(self, cluster: Cluster) -> None:
        catalogue = gpu_catalogue()
        self._names = {spec.name: spec.name for spec in cluster.types}
        self._canonical: Callable[[str], str] = catalogue.canonical
        self.left: dict[str, float] = {g.spec.name: g.count for g in cluster.gpus}
        self.left |= {e.spec.name: math.inf if e.limit is None else e.limit for e in cluster.elastic}
        prices: dict[str, float | None] = {g.spec.name: g.spec.price_per_hour_usd for g in cluster.gpus}
        self.prices = prices | {e.spec.name: e.price_per_hour for e in cluster.elastic}
        self.placed: list[PlacedGpu] = []
        self._taken: dict[str, int] = dict.fromkeys(self.left, 0)

    def type_of(self, gpu: str) -> str | None:
        """Return the cluster's name of a table's ``gpu``; None where it has none of it."""
        name = self._names.get(gpu) or self._canonical(gpu)
        return name if name in self.left else None

    def price(self, choice: LanguageChoice) -> float:
        """Return the price of one copy by the hour, for comparing; its GPUs where a price is unknown."""
        price = self.prices.get(self.type_of(choice.serving.row.gpu) or "")
        if price is None or None in self.prices.values():
            price = 1.0
        return price * choice.gpus

    def take(self, gpu: str, count: int) -> list[str]:
        """Return the ids of ``count`` GPUs of the type ``gpu``, which are taken."""
        first = self._taken[gpu]
        self._taken[gpu] += count
        self.left[gpu] -= count
        return [f"{gpu}-{number}" for number in range(first, first + count)]


def plan_languages(
    rows: Sequence[LlmRequirement],
    workload: Workload,
    cluster: Cluster,
    *,
    objective: str | None = None,
    chunked: bool = True,
    seed: int = 0,
    table: str = "table",
) -> PlacementPlan:
    """Return the plan that serves the language models of ``workload``, in the order of the file, each at the least
    price (the fewest GPUs where a price is unknown) that keeps its objectives.

    Raises UsageError for a workload with other models or applications, TableError for rows that lack something.
    """
    if workload.applications or len(workload.languages) < len(workload.models):
        raise UsageError("language models are placed by themselves: expected a workload without other models")
    yard = _Yard(cluster)
    replicas: list[LanguageReplica] = []
    unserved = []
    promised = 0.0
    for load in workload.models:
        assert load.language is not None
        choices = choices_of(rows, load, load.language, table, chunked=chunked)
        if not choices:
            raise TableError(
                f"{table}: no row for {load.name} that fits, expected rows of gkest llm on the cluster's GPUs"
            )
        served = _place(load, choices, yard, replicas, chunked)
        promised += served
        if served < load.rate_rps * (1 - 1e-9):
            reason = _reason(load, choices, yard, served)
            unserved.append(
                Unserved(model=load.name, rate_rps=load.rate_rps - served, reason=one_line(reason))
            )
    prices = [yard.prices.get(gpu.type) for gpu in yard.placed]
    known = [price for price in prices if price is not None]
    return PlacementPlan(
        policy="continuous",
        creq="none",
        objective=objective or ("cost" if cluster.elastic else "goodput"),
        seed=seed,
        workload=workload,
        gpus=tuple(yard.placed),
        totals=PlanTotals(
            goodput_rps=promised,
            expected_goodput_rps=None,
            gpus_used=len(yard.placed),
            cost_per_hour=sum(known) if len(known) == len(prices) else None,
        ),
        unserved=tuple(unserved),
        notes=(
            *cluster.notes,
            "TTFT and TPOT are those of 95 in 100 requests, by queueing theory; gkest simulate serves them",
        ),
        languages=tuple(replicas),
    )


def _place(
    load: ModelLoad,
    choices: Sequence[LanguageChoice],
    yard: _Yard,
    replicas: list[LanguageReplica],
    chunked: bool,
) -> float:
    """Place copies until the rate of ``load`` is served or no GPUs are left; return what is served (requests/s)."""
    left = load.rate_rps
    number = 0
    while left > 1e-9 * load.rate_rps:
        best = _best(choices, yard, left)
        if best is None:
            break
        gpu = yard.type_of(best.serving.row.gpu) or ""
        instances = left / best.rate_rps
        check_amount(f"{load.name}: rate_rps", "instances", instances)
        count = min(math.ceil(instances - 1e-9), int(min(yard.left[gpu], 1e6) // best.gpus))
        share = min(left / count, best.rate_rps)
        for _ in range(count):
            _add(load, best, share, f"{load.name}-{number}", gpu, yard, replicas, chunked)
            number += 1
        left -= count * share
    return load.rate_rps - max(left, 0.0)


def _best(choices: Sequence[LanguageChoice], yard: _Yard, left: float) -> LanguageChoice | None:
    """Return the choice that serves what is ``left`` at the least price; where none serves all, the most for its
    price."""
    ranked: list[tuple[bool, float, float, int, LanguageChoice]] = []
    for choice in choices:
        gpu = yard.type_of(choice.serving.row.gpu)
        if gpu is None or choice.rate_rps <= 0 or yard.left[gpu] < choice.gpus:
            continue
        copies = math.ceil(left / choice.rate_rps - 1e-9)
        whole = copies * choice.gpus <= yard.left[gpu]
        price = yard.price(choice)
        cost = copies * price if whole else price / choice.rate_rps
        ranked.append((not whole, cost, price, len(ranked), choice))
    return min(ranked)[-1] if ranked else None


def _add(
    load: ModelLoad,
    choice: LanguageChoice,
    rate: float,
    name: str,
    gpu: str,
    yard: _Yard,
    replicas: list[LanguageReplica],
    chunked: bool,
) -> None:
    serving = choice.serving
    row = serving.row
    at = load_of(serving, choice.demand, rate)
    assert at is not None  # the rate is at most the largest that it keeps
    own, *beside = yard.take(gpu, row.gpus)
    most = max(1, min(serving.most_sequences, int(serving.pages / choice.demand.pages)))
    replica = Replica(
        id=name,
        model=load.name,
        runtime=row.engine,
        dtype=row.dtype,
        dims="",
        batch_size=most,
        sm_share_pct=100.0,
        partition=None,
        duty_cycle_ms=None,
        latency_ms=choice.demand.prompt_ms + (choice.demand.answer - 1) * at.tpot_ms,
        goodput_rps=rate,
        slo_ms=load.slo_ms,
        throughput_rps=choice.rate_rps,
        max_wait_ms=0.0,
        mreq_pct=None,
    )
    yard.placed.append(PlacedGpu(id=own, type=gpu, cuti_pct=None, muti_pct=None, replicas=(replica,)))
    for other in beside:
        yard.placed.append(PlacedGpu(id=other, type=gpu, cuti_pct=None, muti_pct=None, replicas=()))
    replicas.append(
        LanguageReplica(
            replica=name,
            beside=tuple(beside),
            kv_dtype=row.kv_dtype,
            pages=serving.pages,
            page_tokens=serving.page_tokens,
            budget_tokens=max(serving.budget_tokens, most),
            chunked=chunked,
            ttft_ms=at.ttft_ms,
            tpot_ms=at.tpot_ms,
        )
    )


def _reason(load: ModelLoad, choices: Sequence[LanguageChoice], yard: _Yard, served: float) -> str:
    here = [choice for choice in choices if yard.type_of(choice.serving.row.gpu) is not None]
    if not here:
        return "the table has no row of it on a GPU type of the cluster"
    if all(choice.rate_rps <= 0 for choice in here):
        best = min(here, key=lambda c: c.serving.law.step(1, c.demand.context))
        return (
            f"no copy keeps its objectives: alone a prompt takes {best.demand.prompt_high_ms:.4g} ms and a token "
            f"{best.serving.law.step(1, best.demand.context):.4g} ms on {best.gpus} x {best.serving.row.gpu}"
        )
    return f"its copies serve {served:.6g} of {load.rate_rps:g} req/s: no GPUs for more"


def schedule_languages(
    tables: Sequence[TableSource],
    workload: Workload,
    cluster: Cluster,
    *,
    objective: str | None = None,
    seed: int = 0,
    runtime: str | None = None,
    dtype: str | None = None,
    prefill: str = "chunked",
) -> PlacementPlan:
    """Return :func:`plan_languages` by the rows of ``tables`` (of ``gkest llm``); ``runtime`` and ``dtype`` keep
    those of one engine or type of numbers. Raises its errors.
    """
    if prefill not in ("chunked", "first"):
        raise UsageError(f"prefill {prefill!r}: expected chunked or first")
    rows = language_rows(tables, workload.languages)
    rows = [row for row in rows if runtime in (None, row.engine) and dtype in (None, row.dtype)]
    label = ", ".join(map(table_label, tables))
    return plan_languages(
        rows, workload, cluster, objective=objective, chunked=prefill == "chunked", seed=seed, table=label
    )


def language_rows(tables: Sequence[TableSource], models: Iterable[str]) -> list[LlmRequirement]:
    """Return the rows of ``models`` in tables of ``gkest llm``. Raises TableError."""
    if not tables:
        raise UsageError("no table of gkest llm is named: expected at least one")
    rows: list[LlmRequirement] = []
    for table in tables:
        rows += rows_in(table, LLM_TABLE, where={"model": frozenset(models)})
    return rows
