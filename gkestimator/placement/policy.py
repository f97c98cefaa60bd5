"""The interface of a placement policy, and what every policy's answer is held to."""

from __future__ import annotations

import abc
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar, TypeAlias

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.limits import check_amount
from gkestimator.core.records import frozen
from gkestimator.placement.problem import Candidates, Gpu, Names, PlacementModel, Problem
from gkestimator.tables.candidate import CREQ_COLUMNS, Candidate

TOLERANCE_PCT = 1e-6
# What a policy may need of a candidate beside its latency, and the column a user looks for.
_NEEDS: Mapping[str, str] = {
    "creq": "creq_pct",
    "memory": "memory_pct",
    "dram_util_mean_pct": "",
    "l2_util_mean_pct": "",
    "power_w": "",
    "dram_bytes": "",
    "input_bytes": "",
    "output_bytes": "",
    "kernels": "",
}


class PolicyError(GkestimatorError):
    """Say that a policy answered something that does not stand: a defect of the policy, not of its input."""


@frozen
class Placed:
    """Put one replica on one GPU.

    ``partition`` and ``duty_cycle_ms``: replicas of one GPU with one partition take turns, each once every
    duty cycle (both None: it runs beside its neighbours whenever it has a batch). A partition
    whose candidates are confined to a share of the SMs holds that share once. ``cap``: the row of the largest
    batch that a server may form where batches are formed late (None: the candidate's).
    """

    gpu: Gpu
    model: str
    candidate: Candidate
    partition: str | None = None
    duty_cycle_ms: float | None = None
    cap: Candidate | None = None

    @property
    def largest(self) -> Candidate:
        """Return the row of the largest batch that it may run: its memory is held."""
        return self.cap or self.candidate

    @property
    def capacity_rps(self) -> float:
        """Return the requests a second that it can serve: a batch every duty cycle where it takes turns, else
        the table's throughput."""
        if self.duty_cycle_ms is not None:
            return 1e3 * self.candidate.batch_size / self.duty_cycle_ms
        return self.candidate.throughput_rps

    @property
    def most_rps(self) -> float:
        """Return the requests a second that it can serve in its largest batches, if those serve more."""
        if self.duty_cycle_ms is not None:
            return self.capacity_rps
        return max(self.capacity_rps, self.largest.throughput_rps)

    @property
    def response_ms(self) -> float:
        """Return the time from a full batch to its answer without neighbours: the latency, after at most one
        duty cycle of waiting."""
        return self.candidate.latency_ms + (self.duty_cycle_ms or 0.0)


PlacedReplicas: TypeAlias = Sequence[Placed]


@frozen
class Placement:
    """Hold a policy's answer: its replicas, why models are not (wholly) served, what a reader must know, and
    how far its own objective is at most from the best (percent; None: no bound)."""

    placed: tuple[Placed, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    notes: Names = ()
    gap_pct: float | None = None


class Policy(abc.ABC):
    """Turn models and GPUs into placements. Subclasses set the class attributes and write :meth:`place`.

    ``creq`` is the measure that it packs by unless told otherwise; ``needs`` are the columns that it packs by
    (``creq``, ``memory``, or columns of the requirement table), ``spares`` those of them without which it goes on
    where a table has none for a model (a CPU's): then nothing of it is checked, which a note says. ``options`` are
    the keyword arguments of its constructor. ``packs_by_creq``: whether the sum of Creq on a GPU stays within 100 %.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    creq: ClassVar[str] = "sm-util-mean"
    needs: ClassVar[Names] = ("memory",)
    spares: ClassVar[Names] = ()
    options: ClassVar[Names] = ()
    objectives: ClassVar[Names] = ("goodput", "cost")
    packs_by_creq: ClassVar[bool] = False

    @abc.abstractmethod
    def place(self, problem: Problem) -> Placement:
        """Place the models of ``problem``. The same problem (its seed included) gives the same answer; models
        without a feasible candidate, or no models at all, are answered, not refused."""


def checked_problem(policy: Policy, problem: Problem) -> Problem:
    """Return ``problem`` with the candidates that lack a column ``policy`` needs put apart as incomplete.
    Raises UsageError: the objective is none of the policy's, a model is left without candidates, naming
    the column, or the rates ask for more than the limit ``instances``."""
    if problem.objective not in policy.objectives:
        what = f"does not know the objective {problem.objective}"
        if problem.objective == "cost":
            what = "cannot minimise cost on rented GPUs"
        raise UsageError(f"policy {policy.name} {what}")
    models = []
    notes = list(problem.notes)
    unchecked: dict[str, list[str]] = defaultdict(list)
    for model in problem.models:
        usable = _usable(policy, problem, model, notes, unchecked)
        if len(usable) < len(model.candidates):
            able = {id(c) for c in usable}
            others = tuple(c for c in model.candidates if id(c) not in able)
            model = replace(model, candidates=usable, incomplete=(*model.incomplete, *others))
        models.append(model)
    for column, names in unchecked.items():
        notes.append(
            f"{column} is null in every row of {', '.join(names)}: whether they fit into a GPU's memory is not checked"
        )
    _check_instances(models)
    return replace(problem, models=tuple(models), notes=tuple(notes))


def _check_instances(models: Sequence[PlacementModel]) -> None:
    """Refuse rates that no cluster could serve: policies place instance after instance, also where GPUs are few."""
    whole = 0.0
    for model in models:
        fastest = max((c.throughput_rps for c in model.candidates), default=math.inf)
        whole += model.rate_rps / fastest
        what = f"{model.name}: rate_rps {model.rate_rps:g} at {fastest:.4g} req/s an instance"
        check_amount(what, "instances", whole)


def _usable(
    policy: Policy,
    problem: Problem,
    model: PlacementModel,
    notes: list[str],
    unchecked: Mapping[str, list[str]],
) -> Candidates:
    """Return the candidates of ``model`` that have every column ``policy`` needs, or may do without.

    ``notes`` gets a line for rows left out, ``unchecked`` the model at a column that no row of it has. Raises
    UsageError: no row has a column that the policy cannot do without.
    """
    usable = model.candidates
    for need in policy.needs:
        column = _column(need, problem)
        having = tuple(c for c in usable if _value(c, need) is not None)
        if usable and not having:
            if need not in policy.spares:
                raise UsageError(
                    f"policy {policy.name} needs {column}, which is null in every row of {model.name}"
                )
            unchecked[column].append(model.name)
            continue
        if len(having) < len(usable):
            lacking = f"{len(usable) - len(having)} of {len(usable)} rows left out"
            notes.append(f"{model.name}: {lacking}, their {column} is null")
        usable = having
    return usable


def _value(candidate: Candidate, need: str) -> object:
    attribute = _NEEDS[need]
    if attribute:
        return getattr(candidate, attribute)
    return getattr(candidate.row, need)


def _column(need: str, problem: Problem) -> str:
    if need == "creq":
        return CREQ_COLUMNS[problem.creq]
    if need == "memory":
        return "mreq_bytes (or reserved_bytes)"
    return need


def verify(policy: Policy, problem: Problem, placement: Placement) -> None:
    """Refuse an answer that does not stand. Raises PolicyError naming policy, GPU and replica.

    Held: GPUs and candidates are the problem's; no latency above the objective (the duty cycle included);
    memory (of the largest batches), the SM shares of confined partitions, and time within a partition are
    within 100 %; Creq too where the policy says so; no more rented GPUs than the offer's limit."""
    judge = _Judge(policy, problem)
    by_gpu: dict[str, list[Placed]] = defaultdict(list)
    for placed in placement.placed:
        judge.replica(placed)
        by_gpu[placed.gpu.id].append(placed)
    for gpu, here in by_gpu.items():
        judge.gpu(gpu, here)
    for offer in problem.offers:
        used = sum(1 for here in by_gpu.values() if here[0].gpu.type == offer.type)
        if offer.limit is not None and used > offer.limit:
            raise judge.fault(offer.type, f"{used} GPUs rented, at most {offer.limit} are offered")


class _Judge:
    """Hold the answer of ``policy`` to what ``problem`` allows."""

    def __init__(self, policy: Policy, problem: Problem) -> None:
        self._policy = policy
        self._problem = problem
        self._gpus = {g.id: g for g in problem.gpus}
        self._known = {m.name: frozenset(id(c) for c in m.candidates) for m in problem.models}

    def fault(self, where: str, what: str) -> PolicyError:
        """Return the error that says ``what`` does not stand, and where."""
        return PolicyError(f"policy {self._policy.name}: {where}: {what}")

    def replica(self, placed: Placed) -> None:
        """Raise PolicyError where one replica by itself does not stand."""
        problem = self._problem
        gpu = placed.gpu
        where = gpu.id
        name = placed.model
        if problem.gpus and self._gpus.get(where) != gpu:
            raise self.fault(where, "is not a GPU of the cluster")
        if gpu.type not in problem.types:
            raise self.fault(where, f"{gpu.type} is not a GPU type of the cluster")
        if id(placed.candidate) not in self._known.get(name, ()):
            raise self.fault(where, f"{name} runs in a way that is not in the table")
        if placed.candidate.gpu != gpu.type:
            raise self.fault(where, f"{name} runs by a row of {placed.candidate.gpu}")
        slo = problem.by_name[name].slo_ms
        if placed.response_ms > slo * (1 + 1e-9):
            late = f"{name} takes {placed.response_ms:.6g} ms, above its SLO {slo:g} ms"
            raise self.fault(where, late)
        if placed.cap is not None:
            self._cap(placed, placed.cap, slo)

    def _cap(self, placed: Placed, cap: Candidate, slo: float) -> None:
        """Raise PolicyError where a largest batch is not the table's, not of the replica's kind, or too slow."""
        where = placed.gpu.id
        name = placed.model
        planned = placed.candidate
        if id(cap) not in self._known.get(name, ()):
            raise self.fault(where, f"the largest batch of {name} is not in the table")
        alike = (cap.gpu, cap.sm_share_pct) == (planned.gpu, planned.sm_share_pct)
        if not alike or cap.batch_size < planned.batch_size or placed.duty_cycle_ms is not None:
            raise self.fault(where, f"the largest batch of {name} is not of its replica's kind")
        if cap.latency_ms > slo * (1 + 1e-9):
            raise self.fault(
                where, f"{name} takes {cap.latency_ms:.6g} ms at its largest batch, above its SLO"
            )

    def gpu(self, gpu: str, here: PlacedReplicas) -> None:
        """Raise PolicyError where the replicas of one GPU do not stand together."""
        if len({p.gpu.type for p in here}) > 1:
            raise self.fault(gpu, "stands for two GPU types")
        # What is not known of a model is not checked: the sum is of those that are.
        memory = sum(p.largest.memory_pct for p in here if p.largest.memory_pct is not None)
        if memory > 100 + TOLERANCE_PCT:
            raise self.fault(gpu, f"memory at {memory:.6g} %")
        groups = partitions(here)
        if self._policy.packs_by_creq and len(groups) > 1:
            creq = compute_pct(here)
            if creq is not None and creq > 100 + TOLERANCE_PCT:
                raise self.fault(gpu, f"Creq at {creq:.6g} %")
        confined = 0.0
        for group in groups:
            share = self._share_pct(gpu, group)
            if share < 100:
                confined += share
        if confined > 100 + TOLERANCE_PCT:
            raise self.fault(gpu, f"SM shares sum to {confined:.6g} %")

    def _share_pct(self, gpu: str, group: PlacedReplicas) -> float:
        """Return the share of the SMs of one partition. Raises PolicyError: it has no single one, no single
        duty cycle, or more to do in a cycle than there is time."""
        name = f"partition {group[0].partition}"
        cycle = group[0].duty_cycle_ms
        cycles = {p.duty_cycle_ms for p in group}
        if len(cycles) > 1 or (cycle is None and len(group) > 1):
            raise self.fault(gpu, f"{name} has no single duty cycle")
        shares = {p.candidate.sm_share_pct for p in group}
        if len(shares) > 1:
            raise self.fault(gpu, f"{name} has no single SM share")
        busy = sum(p.candidate.latency_ms for p in group)
        if cycle is not None and busy > cycle * (1 + 1e-9):
            raise self.fault(gpu, f"{name} needs {busy:.6g} ms of a cycle of {cycle:.6g} ms")
        return shares.pop()


def partitions(here: PlacedReplicas) -> list[list[Placed]]:
    """Return the replicas of one GPU by partition; one without a partition is alone in its own."""
    groups: dict[object, list[Placed]] = defaultdict(list)
    for i, placed in enumerate(here):
        groups[i if placed.partition is None else placed.partition].append(placed)
    return list(groups.values())


def compute_pct(here: PlacedReplicas) -> float | None:
    """Return Creq of the replicas of one GPU together: their sum, those that take turns with the part of the
    duty cycle that they run. None where one is unknown."""
    total = 0.0
    for placed in here:
        creq = placed.candidate.creq_pct
        if creq is None:
            return None
        if placed.duty_cycle_ms is not None:
            creq *= placed.candidate.latency_ms / placed.duty_cycle_ms
        total += creq
    return total


def check_flags(policy: str, **flags: object) -> None:
    """Raise UsageError where one of ``flags`` is neither true nor false: any text may be given for an
    option."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            shown = name.replace("_", "-")
            raise UsageError(f"policy {policy}: option {shown}: found {value!r}, expected true or false")
