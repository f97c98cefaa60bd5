"""What a run of pairs is asked to do, what it measures with, and what it says when it is over."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.profiling.colocating.mps import find_mps
from gkestimator.profiling.environment import sampling
from gkestimator.profiling.gpu_files import gpu_toml, known_gpu
from gkestimator.profiling.raw import DeviceFacts, EnvironmentSample
from gkestimator.profiling.running.jobs import A_SEED, require, require_seconds, require_within
from gkestimator.profiling.running.machine import Machine, child_device
from gkestimator.profiling.type_names import Floats, Names, TextByName

UNCONFINED = (100.0, 100.0)
DEFAULT_SHARES = (UNCONFINED, (50.0, 50.0), (20.0, 80.0), (80.0, 20.0))
MPS = ("auto", "off", "required")
_MOST_SHARES = 16
_BOUNDS = {
    "seconds": (0.05, 600, "0.05 to 600"),
    "pairs": (1, math.inf, "a whole number from 1"),
    "seed": A_SEED,
}


@frozen
class PairOptions:
    """Say how pairs are measured.

    ``executor``: None takes the plan's runtime. ``device``: ``cpu`` or ``cuda:N``; None: the first GPU, the
    CPU where there is none. ``shares``: percent of the SMs of the one and the other; None: DEFAULT_SHARES
    under MPS, else UNCONFINED. ``minutes``: stop in time; None: no limit. ``seconds``: how long a pair runs
    side by side. ``pairs``: how many pairs at most; None: all. ``mps``: ``auto``, ``off`` or ``required``.
    ``entry_s``: seconds that preparing a model may take. Raises UsageError.
    """

    executor: str | None = None
    device: str | None = None
    shares: tuple[tuple[float, float], ...] | None = None
    minutes: float | None = 4.0
    seconds: float = 1.5
    pairs: int | None = None
    mps: str = "auto"
    seed: int = 0
    entry_s: float = 120.0
    command: str = ""

    def __post_init__(self) -> None:
        shares = self.shares or ()
        minutes = self.minutes
        require("minutes", minutes, minutes is None or 0 < minutes < 1e6, "a number above 0")
        require("mps", self.mps, self.mps in MPS, ", ".join(MPS))
        require_within(self, _BOUNDS)
        require_seconds("entry-timeout", self.entry_s, 86_400)
        few = self.shares is None or 1 <= len(shares) <= _MOST_SHARES
        require("shares", self.shares, few, f"1 to {_MOST_SHARES} of them")
        for one, other in shares:
            if not (1 <= one <= 100 and 1 <= other <= 100):
                raise UsageError(
                    f"shares: found {one:g}:{other:g}, expected 1 to 100 percent of the SMs each"
                )


@frozen
class PairMeans(Machine):
    """Hold what measuring pairs asks of the machine: the real one by default; tests put their own in its place.
    ``worker``: the command of a worker without its options; empty: that of this Python."""

    worker: Names = ()
    child_device: Callable[[str, DeviceFacts], tuple[str, TextByName]] = child_device
    sampling: Callable[[DeviceFacts], Callable[[], EnvironmentSample]] = sampling
    mps: Callable[[], Path | None] = find_mps
    known_gpu: Callable[[DeviceFacts], GpuSpec | None] = known_gpu
    gpu_toml: Callable[[DeviceFacts], str] = gpu_toml

    def worker_command(self) -> list[str]:
        """Return the beginning of a worker's command line."""
        return list(self.worker) or [sys.executable, "-P", "-m", "gkestimator.profiling.colocating.worker"]


@frozen
class PairsReport:
    """Say what a run did, earlier runs into the same table included. ``pairs``: measured, at all shares;
    ``failed``: tried in this run or an earlier one and not measured since; ``left``: not reached; ``marked``:
    measured while the GPU was throttled or others used it; ``slowdowns`` of single models beside another, in
    no order; ``worst``: in words; ``tables``: what models ask for alone was looked up in some."""

    output: str
    sharing: str | None
    pairs: int
    failed: int
    left: int
    marked: int
    minutes: float
    slowdowns: Floats = ()
    worst: str | None = None
    stopped: str | None = None
    stop_status: int = 0
    problems: Names = ()
    messages: Names = ()
    tables: bool = False

    @property
    def exit_code(self) -> int:
        """Return 0: all measured, or left because the time that was given is over; 1: partly failed; 2:
        nothing could be measured; 130: interrupted."""
        if self.stop_status == 130:
            return 130
        if self.failed or self.stop_status:
            return 1 if self.pairs else 2
        return 0

    def summary(self) -> str:
        """Say in one line where it lies, and the counts."""
        total = self.pairs + self.failed + self.left
        line = (
            f"{self.output}: {self.pairs} pairs measured, {self.failed} failed, {self.left} left of {total}"
        )
        if self.slowdowns:
            middle = statistics.median(self.slowdowns)
            line += f"; slowdown {middle:.2f} in the median, {max(self.slowdowns):.2f} at most"
        return line

    def words(self) -> Names:
        """Return closing lines for people."""
        lines = [f"{self.minutes:.1f} minutes"]
        if self.worst:
            lines.append(f"slowed most: {self.worst}")
        if self.marked:
            lines.append(
                f"{self.marked} pairs were measured while the device was throttled or others used it: the journal says "
                "which"
            )
        if self.stopped:
            lines.append(self.stopped)
        if self.left:
            lines.append(f"{self.left} pairs are left; the same command goes on where this one ended")
        if self.sharing == "cpu":
            lines.append(
                "a CPU shares its cores, not SMs: this tries the command out, and says nothing of a GPU"
            )
        elif self.sharing == "time" and self.pairs:
            lines.append(
                "without MPS models take turns: this says what turns cost; gkest train --interference asks for MPS"
            )
        elif self.pairs:
            if not self.tables:
                lines.append(
                    "what models ask for alone is missing: the same command with --table measured.parquet fills it, "
                    "and measures nothing again"
                )
            lines.append(f"next: gkest train --interference {self.output} -o interference.yaml")
        return tuple(lines)
