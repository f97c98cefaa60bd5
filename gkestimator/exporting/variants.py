"""Replicas that one entry of a serving system's configuration describes together, and names that every system
takes."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.documents.checking import valid_name
from gkestimator.exporting.deployment import Instance


@frozen
class Variant:
    """``instances`` of one model that run alike: same GPU type, runtime, dtype, dims, batch size and SM
    share. ``name`` is unique among the variants: letters, digits and ``_ . -``; the model's own where it has
    one."""

    name: str
    model: str
    instances: tuple[Instance, ...]

    @property
    def first(self) -> Instance:
        """Return one of them, for what they share."""
        return self.instances[0]

    @property
    def wait_ms(self) -> float | None:
        """Return how long a batch may wait to fill on every one of them, in milliseconds; None: unknown."""
        return longest_wait_ms(self.instances)

    @property
    def goodput_rps(self) -> float | None:
        """Return requests a second that they are to serve together; None: unknown."""
        rates = [i.goodput_rps for i in self.instances if i.goodput_rps is not None]
        if len(rates) < len(self.instances):
            return None
        return math.fsum(rates)


def variants(instances: Iterable[Instance], *, reserved: Iterable[str] = ()) -> tuple[Variant, ...]:
    """Return ``instances`` by what they share, in their order; none is called one of ``reserved``. Raises
    UsageError on a model's name that cannot be written."""
    groups: dict[tuple[Hashable, ...], list[Instance]] = {}
    for i in instances:
        if not valid_name(i.model):
            raise UsageError(f"model {i.model!r}: not a name that can be exported")
        key = (i.model, i.gpu_type, i.runtime, i.dtype, i.dims, i.batch_size, i.sm_share_pct)
        groups.setdefault(key, []).append(i)
    several = [key[0] for key in groups]
    taken = {name.lower() for name in reserved}
    alike = []
    for members in groups.values():
        first = members[0]
        name = first.model
        if several.count(first.model) > 1:
            name = f"{name}_b{first.batch_size}"
        name = plain_name(name, taken)
        alike.append(Variant(name=name, model=first.model, instances=tuple(members)))
    return tuple(alike)


def plain_name(name: str, taken: set[str]) -> str:
    """Return ``name`` in letters, digits and ``_ . -`` alone, made unlike all in ``taken`` (capitals do not
    tell two apart) by a number at its end, and put there."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    unlike = plain
    number = 2
    while unlike.lower() in taken:
        unlike = f"{plain}_{number}"
        number += 1
    taken.add(unlike.lower())
    return unlike


def longest_wait_ms(instances: Iterable[Instance]) -> float | None:
    """Return how long a batch of any of ``instances`` may wait to fill (ms); None where it is not known of
    one of them."""
    longest: float | None = None
    for instance in instances:
        wait = wait_ms(instance)
        if wait is None:
            return None
        longest = wait if longest is None else min(longest, wait)
    return longest


def wait_ms(instance: Instance) -> float | None:
    """Return how long a batch may wait to fill, in milliseconds: what the plan says, at most the slack
    between objective and latency; None where neither is known. Raises UsageError where the latency alone is
    above the objective."""
    slack = slack_ms(instance)
    if slack is None:
        return instance.max_wait_ms
    if instance.max_wait_ms is None:
        return slack
    return min(instance.max_wait_ms, slack)


def slack_ms(instance: Instance) -> float | None:
    """Return the milliseconds between latency and objective; None where one of them is not known. Raises UsageError
    where the latency alone is above the objective."""
    latency = instance.latency_ms
    slo = instance.slo_ms
    if latency is None or slo is None:
        return None
    if latency > slo * (1 + 1e-9):
        raise UsageError(f"{instance.id}: latency {latency:.6g} ms is above its SLO {slo:g} ms")
    return max(slo - latency, 0.0)
