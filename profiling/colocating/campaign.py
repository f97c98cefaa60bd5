"""The state of a run of pairs: what is left, whose fault a failure was, when to give up."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gkestimator.core.errors import GkestimatorError
from gkestimator.jobs.stopping import INTERRUPTED, OUT_OF_TIME, Stop
from gkestimator.profiling.colocating.journal import Journal, PairRecord
from gkestimator.profiling.colocating.means import PairMeans
from gkestimator.profiling.colocating.order import PairJob
from gkestimator.profiling.colocating.session import PairFailed, Span, WorkerSession
from gkestimator.profiling.raw import DeviceFacts, EnvironmentSample
from gkestimator.profiling.records import EntryRecord

_SAMPLE_S = 0.2
_MOST_SAMPLES = 20_000
_MOST_PROBLEMS = 200
_OVERTIME_S = 10.0
"""What the pair at hand may still take when the time that was given is over."""
_CLOSING_S = 2.0
"""What ending the workers and the daemon takes, of the time that was given."""
BREAKS_IN_A_ROW = 3
"""So many workers that broke without a pair measured in between: the next would break as well."""


class Stopped(GkestimatorError):  # noqa: N818 - a wish, not a defect
    """Somebody asked to stop, or time is over."""


@dataclass(slots=True, kw_only=True)
class PairState:
    """What a run comes to. ``jobs``: all that is wanted; ``stopped``: why it ended before they were done, with the exit
    status that goes with it; ``problems`` and ``messages``: lines for people."""

    jobs: list[PairJob] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    stopped: str | None = None
    stop_status: int = 0

    def stop(self, why: str, status: int) -> None:
        """Nothing more is begun."""
        self.stopped = why
        self.stop_status = status

    def problem(self, line: str) -> None:
        """One line, each once, not without end."""
        if line not in self.problems and len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(line)


class PairCampaign:
    """``state``: its jobs are set once it is known how the device is shared."""

    def __init__(
        self,
        journal: Journal,
        facts: DeviceFacts,
        means: PairMeans,
        stop: Stop,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:
        self.state = PairState()
        self._journal = journal
        self._facts = facts
        self._means = means
        self._stop = stop
        self._progress = progress
        self._take = means.sampling(facts)  # before the workers: who is there by now is another tenant
        self._samples: deque[EnvironmentSample] = deque(maxlen=_MOST_SAMPLES)
        self._sampled = 0.0
        self._dropped: dict[str, str] = {}
        self._breaks = 0

    def tick(self) -> None:
        """Called while waiting: takes a sample of the device. Raises Stopped."""
        if self._stop.asked:
            raise Stopped(INTERRUPTED)
        left = self._stop.seconds_left()
        if left is not None and left < -_OVERTIME_S:
            raise Stopped(OUT_OF_TIME)
        now = time.monotonic()
        if now - self._sampled >= _SAMPLE_S:
            self._sampled = now
            self._samples.append(self._take())

    def work(self, session: WorkerSession) -> None:
        """Measure what is left: what failed before comes last. Raises Stopped."""
        known = [(j, self._journal.of(j.key)) for j in self.state.jobs]
        todo = [j for j, found in known if found is None]
        todo += [j for j, found in known if found is not None and found.reason is not None]
        done = len(known) - len(todo)
        for job in todo:
            if self._progress is not None:
                self._progress(f"{_of(job, 0)} beside {_of(job, 1)}", done, len(known))
            left = self._stop.seconds_left()
            if left is not None and left < session.expected_s(job) + _CLOSING_S:
                raise Stopped(OUT_OF_TIME)
            done += self._one(session, job)
            if self.state.stopped is not None:
                return

    def end(self) -> None:
        """It was stopped from outside: say why."""
        if self._stop.asked:
            self.state.stop(INTERRUPTED, 130)
        else:
            self.state.stop(OUT_OF_TIME, 0)

    def _one(self, session: WorkerSession, job: PairJob) -> bool:
        """Whether it was measured."""
        dropped = next((self._dropped[e.id] for e in job.entries if e.id in self._dropped), None)
        try:
            if dropped is not None:
                raise PairFailed(dropped)
            sides, (began, ended) = session.measure(job)
        except PairFailed as e:
            self._alone(session)
            self._failed(job, e)
            return False
        self._breaks = 0
        spells = (self._quality(job.entries[0].id, (began, ended)), self._alone(session))
        quality = next((q for q in ("throttled", "noisy") if q in spells), "ok")
        clocks = [
            s.sm_clock_mhz
            for s in self._samples
            if began <= s.unix_ns <= ended and s.sm_clock_mhz is not None
        ]
        if quality != "ok":
            self.state.problem(
                f"{sides[0].model} beside {sides[1].model}: {quality} while they were measured"
            )
        self._journal.add(
            PairRecord(
                key=job.key,
                sides=sides,
                quality=quality,
                sm_clock_mhz=statistics.median(clocks) if clocks else None,
                measured=_now(),
            )
        )
        return True

    def _quality(self, entry: str, span: Span) -> str:
        spell = EntryRecord(entry_id=entry, status="ok", started_unix_ns=span[0], ended_unix_ns=span[1])
        return self._means.judge(list(self._samples), spell, None)

    def _alone(self, session: WorkerSession) -> str:
        """The worst of what was measured alone just now. What is not ok is measured again for the next pair: one that
        is too slow alone would make every later pair look better than it is."""
        worst = "ok"
        for alone in session.fresh():
            quality = self._quality(alone.entry.id, alone.span)
            if quality != "ok":
                alone.forget()
                worst = quality if worst != "throttled" else worst
        return worst

    def _failed(self, job: PairJob, error: PairFailed) -> None:
        for entry in error.entries:
            self._dropped[entry.id] = str(error)
        if error.broke and self._means.present(self._facts) is False:
            # Not this pair's fault: it is not recorded, and comes first in the next run.
            self.state.stop(f"stopped: {self._facts.name} does not answer any more", 1)
            return
        self.state.problem(str(error))
        self._journal.add(PairRecord(key=job.key, reason=str(error), measured=_now()))
        self._breaks += error.broke
        if self._breaks >= BREAKS_IN_A_ROW:
            self.state.stop(f"stopped: {self._breaks} workers in a row broke: {error}", 1)


def _of(job: PairJob, side: int) -> str:
    entry = job.entries[side]
    if entry.model is not None:
        return entry.model.name
    return entry.id


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
