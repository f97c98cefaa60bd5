"""What a run of pairs is told, and what it says when it is over."""

from __future__ import annotations

import math
import statistics

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen

UNCONFINED = (100.0, 100.0)
DEFAULT_SHARES = (UNCONFINED, (50.0, 50.0), (20.0, 80.0), (80.0, 20.0))
MPS = ("auto", "off", "required")
_MOST_SHARES = 16


@frozen
class PairOptions:
    """How pairs are measured.

    ``executor``: None takes the plan's runtime. ``device``: ``cpu`` or ``cuda:N``; None: the first GPU, the CPU where
    there is none. ``shares``: percent of the SMs of the one and the other; None: DEFAULT_SHARES under MPS, else
    UNCONFINED. ``minutes``: stop in time; None: no limit. ``seconds``: how long a pair runs side by side. ``pairs``:
    how many pairs at most; None: all. ``mps``: ``auto``, ``off`` or ``required``. ``entry_s``: seconds that preparing a
    model may take. Raises UsageError.
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
        shares = self.shares
        checks = (
            ("minutes", self.minutes, self.minutes is None or 0 < self.minutes < 1e6, "a number above 0"),
            ("seconds", self.seconds, 0.05 <= self.seconds <= 600, "0.05 to 600"),
            ("pairs", self.pairs, self.pairs is None or self.pairs >= 1, "a whole number from 1"),
            ("mps", self.mps, self.mps in MPS, ", ".join(MPS)),
            ("seed", self.seed, 0 <= self.seed < 2**63, "a whole number from 0"),
            ("entry-timeout", self.entry_s, 0 < self.entry_s <= 86_400, "seconds above 0, at most 86400"),
            (
                "shares",
                shares,
                shares is None or 1 <= len(shares) <= _MOST_SHARES,
                f"1 to {_MOST_SHARES} of them",
            ),
        )
        for name, found, good, expected in checks:
            if not good:
                raise UsageError(f"{name}: found {found!r}, expected {expected}")
        for share in shares or ():
            if not all(math.isfinite(s) and 1 <= s <= 100 for s in share):
                raise UsageError(
                    f"shares: found {share[0]:g}:{share[1]:g}, expected 1 to 100 percent of the SMs each"
                )


@frozen
class PairsReport:
    """What a run did, earlier runs into the same table included. ``pairs``: measured, at all shares; ``failed``: tried
    in this run or an earlier one and not measured since; ``left``: not reached; ``marked``: measured while the GPU was
    throttled or others used it; ``slowdowns`` of single models beside another, in no order; ``worst``: in words;
    ``tables``: what models ask for alone was looked up in some."""

    output: str
    sharing: str | None
    pairs: int
    failed: int
    left: int
    marked: int
    minutes: float
    slowdowns: tuple[float, ...] = ()
    worst: str | None = None
    stopped: str | None = None
    stop_status: int = 0
    problems: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    tables: bool = False

    @property
    def exit_code(self) -> int:
        """0 all measured, or left because the time that was given is over; 1 partly failed; 2 nothing could be
        measured; 130 interrupted."""
        if self.stop_status == 130:
            return 130
        if not self.pairs:
            if self.failed or self.stop_status:
                return 2
            return 0
        if self.failed or self.stop_status:
            return 1
        return 0

    def summary(self) -> str:
        """One line: where it lies, and the counts."""
        total = self.pairs + self.failed + self.left
        line = (
            f"{self.output}: {self.pairs} pairs measured, {self.failed} failed, {self.left} left of {total}"
        )
        if self.slowdowns:
            middle = statistics.median(self.slowdowns)
            line += f"; slowdown {middle:.2f} in the median, {max(self.slowdowns):.2f} at most"
        return line

    def words(self) -> tuple[str, ...]:
        """Closing lines for people."""
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
