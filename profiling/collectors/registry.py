"""The collectors by name. One line for each of ours; third parties by entry point (group
``gkestimator.collectors``), loaded only when named. What is known of one stands in its class."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from gkestimator.core.errors import UsageError, one_line
from gkestimator.profiling.captures import Capture
from gkestimator.profiling.collectors.base import Collector, CollectorError
from gkestimator.profiling.collectors.probing import probe
from gkestimator.profiling.type_names import Names, Texts

AUTO = "auto"
ENTRY_POINT_GROUP = "gkestimator.collectors"
# name: module of this package and class, in the order in which ``auto`` prefers them
COLLECTORS: Mapping[str, tuple[str, str]] = {
    "nsys": ("nsys", "NsysCollector"),
    "ncu": ("ncu", "NcuCollector"),
    "kineto": ("kineto", "KinetoCollector"),
    "none": ("plain", "PlainCollector"),
}


def collector_names() -> Names:
    """Return our names in order, then third parties' as installed; nothing is loaded."""
    others = sorted({e.name for e in entry_points(group=ENTRY_POINT_GROUP)} - {*COLLECTORS, AUTO})
    return (*COLLECTORS, *others)


def collector_summaries() -> Texts:
    """Return a line on each collector, by name. Of third parties' it says whose they are: nothing of theirs
    is loaded unless named."""
    summaries = {name: collector_class(name).summary for name in COLLECTORS}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        owner = point.dist.name if point.dist else point.value
        summaries.setdefault(point.name, f"a third party's, of {owner}")
    return {name: one_line(summaries[name]) for name in collector_names()}


def collector_class(name: str) -> type[Collector]:
    """Return the class of collector ``name``. Raises UsageError: unknown, or a third party's that cannot be
    loaded."""
    loaded: Any
    if name in COLLECTORS:
        module, attribute = COLLECTORS[name]
        loaded = getattr(importlib.import_module(f"gkestimator.profiling.collectors.{module}"), attribute)
    else:
        points = [e for e in entry_points(group=ENTRY_POINT_GROUP) if e.name == name and name != AUTO]
        if not points:
            raise UsageError(
                f"collector: found {name[:40]!r}, expected {AUTO}, {', '.join(collector_names())}"
            )
        try:
            loaded = points[0].load()
        except Exception as e:
            raise UsageError(
                f"collector {name} of {points[0].value} cannot be loaded: {type(e).__name__}: {e}"
            ) from e
    if not (isinstance(loaded, type) and issubclass(loaded, Collector)):
        raise UsageError(f"collector {name}: found {loaded!r}, expected a class derived from Collector")
    return loaded


def make_collector(name: str, device: str) -> Collector:
    """Return collector ``name`` for ``device`` (``cpu``, ``cuda:N``). Raises UsageError."""
    return collector_class(name)(device)


def records_launches(name: str) -> bool:
    """Return whether collector ``name`` leaves captures. Raises UsageError."""
    return bool(collector_class(name).suffixes)


def serves_counters_alone(name: str) -> bool:
    """Return whether collector ``name`` needs another that tells the timeline beside it. Raises UsageError."""
    return name != AUTO and collector_class(name).passes == ("counters",)


def parse_capture(name: str, path: Path) -> Capture:
    """Return what is in the file ``path`` of collector ``name``. Raises UsageError and TableError."""
    return collector_class(name).parse(path)


@lru_cache(maxsize=64)
def _probed(name: str, device: str, version: str | None) -> tuple[str | None, str]:
    """Return why it records nothing, None if it does, and the annotator that was found to work."""
    del version  # part of the key: another tool is another answer
    collector = make_collector(name, device)
    return probe(collector, device), collector.annotator


def choose(name: str, device: str, pass_name: str = "timeline") -> Collector:
    """Return the collector of that name, or with ``auto`` the best that works here, probed (once a process).

    ``auto`` for the timeline: nsys; failing that kineto on a GPU and none on the CPU; for counters: ncu; for
    latency: none, which is all that serves it, for a profiler slows the host that makes the launches. Raises
    CollectorError in one line with the remedy where the one that was named does not work, or none does;
    UsageError where it serves another pass.
    """
    candidates = automatic_collectors(device, pass_name) if name == AUTO else (name,)
    reasons = []
    for candidate in candidates:
        collector = make_collector(candidate, device)
        if pass_name not in collector.passes:
            raise UsageError(f"collector {candidate} serves the pass {collector.passes[0]}, not {pass_name}")
        reason, collector.annotator = _probed(candidate, device, collector.version())
        if reason is None:
            return collector
        reasons.append(f"{candidate}: {reason}" if not reason.startswith(candidate) else reason)
    raise CollectorError("; ".join(reasons))


def automatic_collectors(device: str, pass_name: str) -> Names:
    """Return what ``auto`` tries for a pass on ``device``, the best first. A third party's is used only when
    named."""
    kind = "cpu" if device == "cpu" else "gpu"
    return tuple(name for name in COLLECTORS if (pass_name, kind) in collector_class(name).automatic)
