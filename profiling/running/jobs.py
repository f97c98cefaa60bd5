"""What the parts of the runner tell each other: options, one chunk's job, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.running.supervise import Limits
from gkestimator.profiling.type_names import Names, TextByName

MAX_CHUNK_ENTRIES = 200
ENGINES = ("local", "ray")
A_SEED = (0, 2**63 - 1, "a whole number from 0")
_BOUNDS = {
    "repeats": (1, 10_000, "1 to 10000"),
    "warmup": (1, 10_000, "1 to 10000"),
    "retries": (0, 20, "0 to 20"),
    "seed": A_SEED,
}


@frozen
class RunOptions:
    """Say how a plan is worked off.

    ``executor``: None takes the plan's runtime. ``collector``: ``ncu`` measures counters of every entry, and
    times as ``auto`` does. ``devices``: ``cpu``, ``cuda:N``, or ``all``; empty: the first GPU, the CPU where
    there is none. ``gpu_types``: with engine ``ray``, the types to measure (a resource ``gkest:NAME`` or
    Ray's accelerator type); empty: all that the cluster offers. ``repeats``: None lets the child choose.
    ``minutes``: stop in time; None: no limit. ``retries``: how often an entry that came out noisy is measured
    again. ``retry_failed``: measure again what earlier runs recorded as failed. ``min_free_mb``: with less
    free space on the disk the run stops before it writes.
    """

    executor: str | None = None
    collector: str = "auto"
    devices: Names = ()
    engine: str = "local"
    gpu_types: Names = ()
    repeats: int | None = None
    warmup: int | None = None
    min_ms: float | None = None
    minutes: float | None = None
    chunk_seconds: float = 20.0
    limits: Limits = field(default_factory=Limits)
    retries: int = 2
    counters: bool = True
    retry_failed: bool = False
    seed: int = 0
    min_free_mb: float = 256.0
    command: str = ""

    def __post_init__(self) -> None:
        require("engine", self.engine, self.engine in ENGINES, "local or ray")
        require_within(self, _BOUNDS)
        minutes = self.minutes
        require("minutes", minutes, minutes is None or 0 < minutes < 1e6, "a positive number")
        require_seconds("chunk-seconds", self.chunk_seconds, 3600)
        require_seconds("entry-timeout", self.limits.entry_s, 86_400)
        if self.gpu_types and self.engine != "ray":
            raise UsageError("gpu-type: goes with engine ray alone; choose GPUs of this machine with device")
        if self.devices and self.engine == "ray":
            raise UsageError("device: goes with engine local alone; on a cluster choose with gpu-type")


def require(option: str, value: object, good: bool, expected: str) -> None:
    """Raise UsageError where the value of an option is not good."""
    if not good:
        raise UsageError(f"{option}: found {value!r}, expected {expected}")


def require_seconds(option: str, seconds: float, most: int) -> None:
    """Raise UsageError where an option's seconds are not above 0, or more than ``most``."""
    require(option, seconds, 0 < seconds <= most, f"seconds above 0, at most {most}")


def require_within(options: object, bounds: Mapping[str, tuple[float, float, str]]) -> None:
    """Raise UsageError where an option of ``bounds`` (least, most, in words) is beyond them; None is not."""
    for name, (least, most, expected) in bounds.items():
        value = getattr(options, name)
        require(name, value, value is None or least <= value <= most, expected)


@frozen
class ChunkJob:
    """Name one chunk to measure. ``settle``: a single entry whose captures were lost so far, for the last time;
    ``probe_if_lost``: should this one be lost too, try the profiler out, for it may not be the entries' fault;
    ``device`` as the executor knows it."""

    number: int
    pass_name: str
    attempt: int
    settle: bool
    probe_if_lost: bool
    runtime: str
    executor: str
    collector: str
    device: str
    facts: DeviceFacts
    entries: tuple[PlanEntry, ...]
    options: RunOptions
    limits: Limits

    @property
    def folder_name(self) -> str:
        """Return the name of its folder, such as ``000012-cuda0-timeline``."""
        label = "".join(c for c in self.device if c.isalnum())
        return f"{self.number:06d}-{label}-{self.pass_name}"


@frozen
class ChunkResult:
    """Say what became of a job.

    ``kind``: ``whole``; ``crashed`` (the child died or hung in an entry); ``lost`` (measured, but the capture
    is not whole); ``profiler`` (lost, and the profiler records nothing of a trial either); ``device`` (it
    does not answer any more); ``stopped`` (in time, on request); ``disk``; ``usage`` (the child refused its
    arguments, or cannot write). ``statuses``: by id, of the records in the folder, which is to be committed
    if there are any; ``qualities``: of the ok ones; ``reasons``: of the failed ones. What is not in
    ``statuses`` was not measured. ``line``: what happened, for people. ``working_s``: as :class:`Ending` has
    it.
    """

    kind: str
    statuses: TextByName = field(default_factory=dict)
    qualities: TextByName = field(default_factory=dict)
    reasons: TextByName = field(default_factory=dict)
    line: str | None = None
    working_s: float | None = None
