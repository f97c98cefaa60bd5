"""The policy of USHER: groups of models whose demands balance, and for each group the best of all its
configurations.

Source: USHER (Shubha, Shen, Iyer, OSDI 2024) for the groups (:mod:`.usher_grouping`), what a configuration is
and the C-heavy and M-heavy order (:mod:`.usher_configurations`), and where replicas go: inside the group's
GPUs, outside, then the cheapest new GPU (:mod:`.usher_packing`). Its own enumeration is millions of
configurations a group; :mod:`.usher_search` finds the same best one.

The paper's variants of the compute demand are the problem's ``creq``: ``occupancy-max`` is Usher,
``occupancy-mean`` WAO-Usher, ``sm-util-mean`` WSM-Usher (the names of the ETH thesis whose table A.1 is in
the package). Our reading, where the texts leave it open:

- replicas are placed model by model (all of one model before the next), each first fit: inside in the order
  in which the group came to the GPUs, outside in the order in which they were opened;
- the order is by Creq for C-heavy models, those that are neither and everything without ``heavy`` (figure 7
  of the paper holds for no other measure), by Mreq for M-heavy ones; C-heavy begin, those that are neither come
  last;
- a group takes what it can use before the next one is looked at; groups go in descending order of mean Creq +
  mean Mreq;
- "cheapest" is the price per hour; where a fixed cluster's prices are not all known, the cluster's order
  stands for it;
- best is most goodput, then fewest GPUs (rented: then least cost, then fewest), then the first in the order
  of model names, batch sizes and degrees, ascending: small batches and few replicas."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

from gkestimator.core.errors import UsageError
from gkestimator.placement.papers.usher.configurations import BATCH_SIZES, UsherChoice, choices_of, considered
from gkestimator.placement.papers.usher.grouping import MAX_ROUNDS, ModelGroup, group
from gkestimator.placement.papers.usher.packing import Garage, Packing, put, settled
from gkestimator.placement.papers.usher.search import Step, search
from gkestimator.placement.policy import Placed, Placement, Policy, check_flags
from gkestimator.placement.problem import Floats, PlacementModel, Problem, Words

# One group of many models has more configurations than can be enumerated, pruned or not.
_UNDIVIDED_MODELS = 100
_UNDIVIDED_NODES = 20_000
# Of one model, where GPUs are rented without limit: as many as the largest cluster that may be written down.
_MOST_REPLICAS = 100_000


class UsherPolicy(Policy):
    """Form balanced groups, try every batch size and replication degree, greedy packing.

    ``no_heavy``: models are not interleaved by their kind; ``no_division``: one group of all models (above
    four models its search stops after 20,000 beginnings and says so); ``no_sort``: models of a group are
    placed in the workload's order.
    """

    name = "usher"
    summary = "USHER: balanced groups, best batch sizes and degrees, C-heavy and M-heavy in turn"
    creq = "occupancy-max"
    needs = ("creq", "memory")
    options = ("no_heavy", "no_division", "no_sort")
    packs_by_creq = True

    def __init__(self, *, no_heavy: bool = False, no_division: bool = False, no_sort: bool = False) -> None:
        check_flags(self.name, no_heavy=no_heavy, no_division=no_division, no_sort=no_sort)
        self.no_heavy = no_heavy
        self.no_division = no_division
        self.no_sort = no_sort

    def place(self, problem: Problem) -> Placement:
        """Return USHER's placement of ``problem``. Raises UsageError: no division, and more than 100
        models."""
        if self.no_division and len(problem.models) > _UNDIVIDED_MODELS:
            raise UsageError(
                f"policy usher without division: found {len(problem.models)} models, expected at most "
                f"{_UNDIVIDED_MODELS} in one group"
            )
        types = problem.types
        garage = garage_of(problem)
        most = min(sum(garage.limits), _MOST_REPLICAS)
        packing = Packing([], [], (0,) * len(types))
        order = {m.name: i for i, m in enumerate(problem.models)}
        placed: list[Placed] = []
        reasons: Words = {}
        notes: list[str] = []
        for own in groups_of(problem.models, divide=not self.no_division):
            names = own.names
            if self.no_sort:
                names = tuple(sorted(names, key=lambda n: order[n]))
            choices: list[tuple[UsherChoice, ...]] = []
            for name in names:
                model = problem.by_name[name]
                mine = choices_of(
                    model,
                    len(choices),
                    types=types,
                    most=most,
                    sort=not self.no_sort,
                    heavy=not self.no_heavy,
                )
                if mine:
                    choices.append(mine)
                else:
                    reasons[name] = _why_none(model, most)
            limit = math.inf
            if len(choices) > 2**MAX_ROUNDS:
                limit = _UNDIVIDED_NODES
            best = search(choices, packing, garage, rented=problem.elastic, most_nodes=limit)
            if best.cut:
                notes.append(
                    f"the search of the group of {len(choices)} models stopped after {_UNDIVIDED_NODES} beginnings; "
                    "its configuration is the best of those"
                )
            packing = _carry_out(best.steps, packing, garage, problem, placed)
        return Placement(placed=tuple(placed), reasons=reasons, notes=tuple(notes))


def groups_of(models: Sequence[PlacementModel], *, divide: bool = True) -> tuple[ModelGroup, ...]:
    """Return the groups of ``models`` in the order in which they are placed; one group of all where
    ``divide`` is false. Creq and Mreq of a model are means over its profiled batch sizes, infeasible ones
    included, each over those where it is known: a batch size whose Creq is null still has its Mreq."""
    singles = [_single(m) for m in models]
    if divide or not singles:
        return group(singles)
    return (functools.reduce(ModelGroup.joined, singles),)


def _single(model: PlacementModel) -> ModelGroup:
    rows = considered(model)
    low, high = BATCH_SIZES
    if any(low <= c.batch_size <= high for c in rows):
        rows += tuple(c for c in model.incomplete if c.sm_share_pct == 100 and low <= c.batch_size <= high)
    creq = [c.creq_pct for c in rows if c.creq_pct is not None]
    mreq = [c.memory_pct for c in rows if c.memory_pct is not None]
    # Without a row on whole GPUs nothing of it will be placed: it balances nothing.
    return ModelGroup(names=(model.name,), creq_pct=_mean_or_zero(creq), mreq_pct=_mean_or_zero(mreq))


def _mean_or_zero(values: Floats) -> float:
    if values:
        return sum(values) / len(values)
    return 0.0


def _carry_out(
    steps: Iterable[Step],
    packing: Packing,
    garage: Garage,
    problem: Problem,
    placed: list[Placed],
) -> Packing:
    """Pack the best configuration, add its replicas to ``placed``, and return the packing for the next
    group."""
    for choice, degree in steps:
        packing, taken = put(packing, choice.creq, choice.mreq, degree, garage)
        for t, _, _, count, start, _ in taken:
            candidate = choice.candidates[t]
            assert candidate is not None
            for i in range(start, start + count):
                gpu = problem.gpu(problem.types[t], i)
                placed.append(Placed(gpu=gpu, model=choice.name, candidate=candidate))
    return Packing([], settled(packing), packing.opened)


def garage_of(problem: Problem) -> Garage:
    """Return the GPUs of ``problem`` by type."""
    limits = problem.pools
    known = problem.known_prices
    if known is None:
        known = dict.fromkeys(problem.types, 0.0)
    prices = tuple(known[t] for t in problem.types)
    order = sorted(range(len(limits)), key=lambda t: (prices[t], t))
    return Garage(limits=limits, order=tuple(order), prices=prices)


def _why_none(model: PlacementModel, most: float) -> str:
    low, high = BATCH_SIZES
    rows = considered(model)
    if not rows:
        return "usher needs rows of whole GPUs (100 % of the SMs), the table has none"
    if all(c.latency_ms > model.slo_ms for c in rows):
        fastest = min(rows, key=lambda c: c.latency_ms)
        return (
            f"no batch size from {low} to {high} within its SLO {model.slo_ms:g} ms: the fastest takes "
            f"{fastest.latency_ms:.4g} ms (batch {fastest.batch_size} on {fastest.gpu})"
        )
    return f"its rate {model.rate_rps:g} req/s asks for more than {most:,.0f} replicas, one on each GPU"
