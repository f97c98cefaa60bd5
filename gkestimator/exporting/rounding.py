"""What a replica asks of a target: whole percents and MiB, rounded up; what the target cannot grant is
refused."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from gkestimator.core.errors import UsageError
from gkestimator.core.options import spelled
from gkestimator.core.records import NamedNumbers, Names
from gkestimator.exporting.deployment import Deployment, Instance

MIB = 2**20
_SLACK = 1e-6  # what placement allows sums to be above the capacity
_NOISE = 1e-9  # 100 * 0.3 is 30.000000000000004: one part in 10^9 is not a demand


def up(value: float) -> int:
    """Return ``value`` rounded up, the last bits of floating-point arithmetic not counted; at least 1 (a
    target reads 0 as no limit)."""
    return max(1, math.ceil(value * (1 - _NOISE)))


def percent_up(value: float) -> int:
    """Percent, rounded up to a whole one, 1 to 100 or more."""
    return up(value)


def count_down(value: float) -> int:
    """Return a number of replicas, rounded down, the last bits of floating-point arithmetic not counted."""
    return math.floor(value * (1 + _NOISE))


def compute_pct(instance: Instance, target: str) -> float:
    """Return the compute that ``instance`` asks for, percent of the whole GPU: its SM share where it is
    confined to one (its latency was estimated inside it), else Creq. Raises UsageError where that is unknown
    or more than a GPU has."""
    if instance.sm_share_pct < 100:
        return instance.sm_share_pct
    if instance.creq_pct is None:
        raise _unknown(instance, "Creq", target)
    refuse_above_one_gpu(instance, target)
    return instance.creq_pct


def refuse_above_one_gpu(instance: Instance, target: str) -> None:
    """Refuse a known Creq or Mreq that is more than one GPU has. Raises UsageError."""
    for what, of, percent in (
        ("Creq", "", instance.creq_pct),
        ("Mreq", "the memory of ", instance.mreq_pct),
    ):
        if percent is not None and percent > 100:
            raise UsageError(
                f"{instance.id}: found a {what} of {percent:.4g} % of {of}a {instance.gpu_type}, expected at most 100: "
                f"{target} gives a replica one GPU or a part of it"
            )


def refuse_other_batch(instance: Instance, fixed_batch: int | None, target: str) -> None:
    """Refuse a batch size other than the one (None: any) that the ONNX file was exported at. Raises
    UsageError."""
    if fixed_batch is not None and instance.batch_size != fixed_batch:
        raise UsageError(
            f"{target}: {instance.model}: its file runs at batch {fixed_batch} alone, batch {instance.batch_size} "
            "is asked for: export the model again with a symbolic batch"
        )


def memory_bytes(instance: Instance, target: str) -> int:
    """Return the memory that ``instance`` asks for. Raises UsageError where that is unknown or more than a
    GPU has."""
    if instance.mreq_bytes is None:
        raise _unknown(instance, "Mreq", target)
    refuse_above_one_gpu(instance, target)
    return instance.mreq_bytes


def _unknown(instance: Instance, what: str, target: str) -> UsageError:
    return UsageError(
        f"{instance.id}: its {what} is not known, and {target} needs it; expected a row that has it"
    )


def memory_mib(instance: Instance, target: str) -> int:
    """Return :func:`memory_bytes` in MiB, rounded up."""
    return max(1, -(-memory_bytes(instance, target) // MIB))


def memory_pct(instance: Instance, target: str) -> float:
    """Return :func:`memory_bytes` as percent of the GPU's visible memory."""
    memory_bytes(instance, target)
    assert instance.mreq_pct is not None  # loading fills both or neither
    return instance.mreq_pct


def by_gpu(instances: Iterable[Instance]) -> Mapping[str, tuple[Instance, ...]]:
    """Return the instances of each GPU of a plan, in order; those of a table, which stand on none, are left
    out."""
    gpus: dict[str, list[Instance]] = defaultdict(list)
    for instance in instances:
        if instance.gpu_id is not None:
            gpus[instance.gpu_id].append(instance)
    return {gpu: tuple(here) for gpu, here in gpus.items()}


def no_turns(instances: Iterable[Instance], target: str) -> None:
    """Refuse replicas that take turns on a part of a GPU: ``target`` would run them at the same time. Raises
    UsageError."""
    first: dict[tuple[str | None, str], Instance] = {}
    for instance in instances:
        if instance.partition is None:
            continue
        other = first.setdefault((instance.gpu_id, instance.partition), instance)
        if other is not instance:
            without_turns = spelled("options={'turns': False}", "--option turns=false")
            raise UsageError(
                f"{other.id} and {instance.id} take turns on {instance.gpu_id} (partition {instance.partition}): "
                f"{target} has no turns and would run both at once; expected a plan without time sharing, as "
                f"policy gkest makes it under {without_turns}"
            )


def within_gpu(
    demands: Iterable[tuple[Instance, float]], limit: Mapping[str, float], what: str, target: str
) -> Names:
    """Refuse a plan whose ``demands`` add up to more on one GPU than ``limit`` (by GPU type): ``target``
    would not put those replicas on one GPU. Raises UsageError. Where they fit and only their sum after
    rounding up does not, that is said, a line for each GPU."""
    exact: NamedNumbers = defaultdict(float)
    rounded: dict[str, int] = defaultdict(int)
    most: NamedNumbers = {}
    for instance, demand in demands:
        if instance.gpu_id is not None:
            exact[instance.gpu_id] += demand
            rounded[instance.gpu_id] += up(demand)
            most[instance.gpu_id] = limit[instance.gpu_type]
    notes = []
    for gpu, total in rounded.items():
        if exact[gpu] > most[gpu] * (1 + _SLACK):
            raise UsageError(
                f"{gpu}: its replicas ask for {exact[gpu]:,.6g} {what}, expected at most {most[gpu]:,.6g}: "
                f"{target} would not put them on one GPU"
            )
        if total > most[gpu]:
            notes.append(
                f"{gpu}: its replicas ask for {total:,} {what} after rounding up, more than {most[gpu]:,.6g}: "
                f"{target} will not put all of them on one GPU"
            )
    return tuple(notes)


def cores_and_memory(deployment: Deployment, target: str, *, cores: bool = True) -> Names:
    """Return :func:`within_gpu` for memory, and for compute where ``target`` counts it."""
    every = deployment.instances
    visible = {name: spec.visible_bytes() / MIB for name, spec in deployment.specs.items()}
    notes = within_gpu([(i, memory_bytes(i, target) / MIB) for i in every], visible, "MiB", target)
    if not cores:
        return notes
    whole = dict.fromkeys(deployment.specs, 100.0)
    return (
        *within_gpu([(i, compute_pct(i, target)) for i in every], whole, "% of its compute", target),
        *notes,
    )
