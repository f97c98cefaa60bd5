"""The parts of the profiler that building leans on, by name, so that a test can put its own in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.profiling.captures import Capture, CapturedLaunch, EntryRange
from gkestimator.profiling.raw import DeviceFacts, EnvironmentSample
from gkestimator.profiling.records import EntryRecord

Split: TypeAlias = "tuple[Sequence[Sequence[CapturedLaunch]] | None, str | None]"
"""The launches of each repeat, or None and why a range cannot be cut into its repeats."""


@frozen
class Tools:
    """Hold how to ``parse`` the file of a collector (by its name), ``split`` a range into repeats, ``join`` a timeline
    with counters, find the samples taken ``during`` an entry, and ``judge`` the quality of a measurement (the last
    argument: it was latencies of a CPU); what is known of a device, and a specification made of what it says."""

    parse: Callable[[str, Path], Capture]
    split: Callable[[EntryRange], Split]
    join: Callable[[Capture, Capture], Capture]
    during: Callable[[Sequence[EnvironmentSample], EntryRecord], Sequence[EnvironmentSample]]
    judge: Callable[[Sequence[EnvironmentSample], EntryRecord, float | None, bool], str]
    known_gpu: Callable[[DeviceFacts], GpuSpec | None]
    gpu_toml: Callable[[DeviceFacts], str]


def default_tools() -> Tools:
    """The profiler's own."""
    from gkestimator.profiling.collectors import parse_capture
    from gkestimator.profiling.environment import during, judge
    from gkestimator.profiling.gpu_files import gpu_toml, known_gpu
    from gkestimator.profiling.parsers import join, split_repeats

    return Tools(
        parse=parse_capture,
        split=split_repeats,
        join=join,
        during=during,
        judge=judge,
        known_gpu=known_gpu,
        gpu_toml=gpu_toml,
    )
