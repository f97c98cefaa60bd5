"""Collectors: put a profiler around an executor's child, and see to it that it really recorded."""

from __future__ import annotations

import importlib
from functools import lru_cache

from gkestimator.errors import UsageError
from gkestimator.profiling.collectors.base import Collector, CollectorError
from gkestimator.profiling.collectors.probing import probe

__all__ = ["AUTO", "COLLECTORS", "Collector", "CollectorError", "choose", "make_collector", "probe"]

COLLECTORS = {
    "nsys": "nsys:NsysCollector",
    "ncu": "ncu:NcuCollector",
    "kineto": "kineto:KinetoCollector",
    "none": "plain:PlainCollector",
}
"""Collectors by name, each ``module:class`` of this package, imported when it is asked for."""
AUTO = "auto"


def make_collector(name: str, device: str) -> Collector:
    """The collector ``name`` for ``device`` (``cpu``, ``cuda:N``). Raises UsageError."""
    place = COLLECTORS.get(name)
    if place is None:
        raise UsageError(f"collector: found {name[:40]!r}, expected {AUTO}, {', '.join(COLLECTORS)}")
    module, _, kind = place.partition(":")
    made: Collector = getattr(importlib.import_module(f"{__name__}.{module}"), kind)(device)
    return made


@lru_cache(maxsize=64)
def _probed(name: str, device: str, version: str | None) -> str | None:
    del version  # part of the key: another tool is another answer
    return probe(make_collector(name, device), device)


def choose(name: str, device: str, pass_name: str = "timeline") -> Collector:
    """The collector of that name, or with ``auto`` the best that works here, probed (once a process).

    ``auto`` for the timeline: nsys; failing that kineto on a GPU and none on the CPU; for counters: ncu; for latency:
    none, which is all that serves it, for a profiler slows the host that makes the launches. Raises CollectorError in
    one line with the remedy where the one that was named does not work, or none does; UsageError where it serves
    another pass.
    """
    names = _automatic(device, pass_name) if name == AUTO else (name,)
    reasons = []
    for candidate in names:
        collector = make_collector(candidate, device)
        if not _serves(collector, pass_name):
            raise UsageError(f"collector {candidate} serves the pass {collector.pass_name}, not {pass_name}")
        reason = _probed(candidate, device, collector.version())
        if reason is None:
            return collector
        reasons.append(f"{candidate}: {reason}" if not reason.startswith(candidate) else reason)
    raise CollectorError("; ".join(reasons))


def _automatic(device: str, pass_name: str) -> tuple[str, ...]:
    if pass_name == "latency":
        return ("none",)
    return ("ncu",) if pass_name == "counters" else ("nsys", "none" if device == "cpu" else "kineto")


def _serves(collector: Collector, pass_name: str) -> bool:
    return pass_name == collector.pass_name or (pass_name == "latency" and collector.name == "none")
