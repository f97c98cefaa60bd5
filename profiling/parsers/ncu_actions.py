"""What both ways of reading a report of Nsight Compute give: one profiled action after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gkestimator.core.records import frozen


@frozen
class Action:
    """Hold a profiled kernel, or a range or graph (``workload``). ``ranges``: (domain, text) of the NVTX
    push/pop ranges around it. ``metrics``: numbers in base units. ``words``: metrics that are text."""

    name: str
    workload: str = "kernel"
    ranges: tuple[tuple[str | None, str], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)


@frozen
class ReadReport:
    """Hold the actions in the order they ran; ``reader``: what read them; ``problems``: one line each."""

    reader: str
    actions: tuple[Action, ...]
    problems: tuple[str, ...] = ()
