"""What is read of a raw folder and with which tools, and what went wrong with single entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.profiling.building.entries import MeasuredEntry, MeasuredLatency
from gkestimator.profiling.captures import Capture, CapturedLaunch, EntryRange
from gkestimator.profiling.collectors import parse_capture
from gkestimator.profiling.environment import during, judge
from gkestimator.profiling.gpu_files import gpu_toml, known_gpu
from gkestimator.profiling.parsers import join, split_repeats
from gkestimator.profiling.plan import SweepPlan
from gkestimator.profiling.raw import DeviceFacts, EnvironmentSample, RunInfo
from gkestimator.profiling.records import EntryRecord
from gkestimator.profiling.type_names import Names, Texts
from gkestimator.profiling.variation import Judge

# The launches of each repeat, or None and why a range cannot be cut into its repeats.
Split: TypeAlias = "tuple[Sequence[Sequence[CapturedLaunch]] | None, str | None]"


@frozen
class Tools:
    """Hold how to ``parse`` the file of a collector (by its name), ``split`` a range into repeats, ``join`` a
    timeline with counters, find the samples taken ``during`` an entry, and ``judge`` the quality of a
    measurement (the last argument: it was latencies of a CPU); what is known of a device, and a specification
    made of what it says."""

    parse: Callable[[str, Path], Capture] = parse_capture
    split: Callable[[EntryRange], Split] = split_repeats
    join: Callable[[Capture, Capture], Capture] = join
    during: Callable[[Sequence[EnvironmentSample], EntryRecord], Sequence[EnvironmentSample]] = during
    judge: Judge = judge
    known_gpu: Callable[[DeviceFacts], GpuSpec | None] = known_gpu
    gpu_toml: Callable[[DeviceFacts], str] = gpu_toml


class Problems:
    """Hold lines for people: what befell many entries of one place alike is one line with a count and an
    example."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._groups: dict[str, list[str]] = {}

    def line(self, text: str) -> None:
        """Add a line on something that happened once."""
        self._lines.append(text)

    def lines(self, where: str, texts: Iterable[str]) -> None:
        """Add several lines on what happened at ``where``."""
        self._lines.extend(f"{where}: {text}" for text in texts)

    def of_entry(self, where: str, what: str, entry_id: str, detail: str = "") -> None:
        """Say that ``what`` befell an entry at ``where``; ``detail`` is said of the first."""
        example = f"{entry_id}: {detail}" if detail else entry_id
        self._groups.setdefault(f"{where}: {what}", []).append(example)

    def all(self) -> Names:
        """Return the lines in the order in which they came."""
        lines = list(self._lines)
        for what, examples in self._groups.items():
            often = f"{len(examples)} times, first " if len(examples) > 1 else ""
            lines.append(f"{what}: {often}{examples[0]}")
        return tuple(lines)

    def __len__(self) -> int:
        return len(self._lines) + len(self._groups)


@frozen
class NotMeasured:
    """Name an entry that a child recorded as failed or skipped."""

    entry_id: str
    status: str
    reason: str


@dataclass(slots=True, kw_only=True)
class RawContents:
    """Hold what a raw folder has of operators, or of whole models. ``planned``: how many of them the plan
    has; ``others``: entries of the other kind, which were passed over. ``measured``: every attempt of a
    timeline; ``latencies``: every attempt of whole models without a profiler. ``unstable``: entries whose
    repeats launched different kernels, with what differs. ``silent``: entries that launched nothing.
    ``unreached``: planned entries without any record (of whole models: of their latency). ``unjoined``:
    launches that belong to no entry, by reason. ``environment``: all samples, by device name. ``remarks``:
    oddities that spoil nothing."""

    path: Path
    run: RunInfo
    plan: SweepPlan
    planned: int = 0
    others: int = 0
    measured: list[MeasuredEntry] = field(default_factory=list)
    latencies: list[MeasuredLatency] = field(default_factory=list)
    not_measured: list[NotMeasured] = field(default_factory=list)
    unstable: Texts = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    unreached: int = 0
    chunks: int = 0
    unfinished: int = 0
    unjoined: Counter[str] = field(default_factory=Counter)
    launches: int = 0
    counted: int = 0
    environment: dict[str, list[EnvironmentSample]] = field(default_factory=dict)
    remarks: Problems = field(default_factory=Problems)
