"""The state of a run of pairs: what is left, whose fault a failure was, when to give up."""

from __future__ import annotations

import statistics
import time
from collections import deque
from datetime import UTC, datetime

from gkestimator.core.errors import GkestimatorError
from gkestimator.jobs.stopping import Progress, RunLog, Stop
from gkestimator.profiling.colocating.jobs import PairMeans
from gkestimator.profiling.colocating.journal import Journal, PairRecord
from gkestimator.profiling.colocating.order import PairJob, model_name
from gkestimator.profiling.colocating.session import PairFailed, Span, WorkerSession
from gkestimator.profiling.raw import DeviceFacts, EnvironmentSample
from gkestimator.profiling.records import EntryRecord
from gkestimator.profiling.type_names import Texts

_SAMPLE_S = 0.2
_MOST_SAMPLES = 20_000
# What the pair at hand may still take when the time that was given is over.
_OVERTIME_S = 10.0
# What ending the workers and the daemon takes, of the time that was given.
_CLOSING_S = 2.0
# So many workers that broke without a pair measured in between: the next would break as well.
BREAKS_IN_A_ROW = 3


class Stopped(GkestimatorError):  # noqa: N818 - a wish, not a defect
    """Say that somebody asked to stop, or time is over."""


class PairCampaign(RunLog):
    """Work pairs off. ``jobs``: all that is wanted, set once it is known how the device is shared."""

    def __init__(
        self, journal: Journal, facts: DeviceFacts, means: PairMeans, stop: Stop, progress: Progress | None
    ) -> None:
        super().__init__()
        self.jobs: list[PairJob] = []
        self._journal = journal
        self._facts = facts
        self._means = means
        self._stop = stop
        self._progress = progress
        self._take = means.sampling(facts)  # before the workers: who is there by now is another tenant
        self._samples: deque[EnvironmentSample] = deque(maxlen=_MOST_SAMPLES)
        self._sampled = 0.0
        self._failing: Texts = {}  # ids of entries that fail by themselves, and how
        self._breaks = 0

    def tick(self) -> None:
        """Take a sample of the device; called while waiting. Raises Stopped."""
        left = self._stop.seconds_left()
        if self._stop.asked or (left is not None and left < -_OVERTIME_S):
            raise Stopped("stopped")
        now = time.monotonic()
        if now - self._sampled >= _SAMPLE_S:
            self._sampled = now
            self._samples.append(self._take())

    def work(self, session: WorkerSession) -> None:
        """Measure what is left: what failed before comes last. Raises Stopped."""
        known = [(job, self._journal.of(job.key)) for job in self.jobs]
        todo = [job for job, record in known if record is None]
        todo += [job for job, record in known if record is not None and record.reason is not None]
        done = len(known) - len(todo)
        for job in todo:
            if self._progress is not None:
                self._progress(" beside ".join(map(model_name, job.entries)), done, len(known))
            left = self._stop.seconds_left()
            # Half a pair tells nothing: one that does not fit into the time is not begun.
            if left is not None and left < session.expected_s(job) + _CLOSING_S:
                raise Stopped("stopped")
            try:
                self._measure(session, job)
                done += 1
            except PairFailed as e:
                self._look_at_alone(session)
                self._failed(job, e)
            if self.stopped is not None:
                return

    def _measure(self, session: WorkerSession, job: PairJob) -> None:
        # A model that failed by itself would fail beside every other: a worker's start is saved.
        for entry in job.entries:
            if entry.id in self._failing:
                raise PairFailed(self._failing[entry.id])
        sides, span = session.measure(job)
        self._breaks = 0
        qualities = (self._quality(job.entries[0].id, span), self._look_at_alone(session))
        quality = next((q for q in ("throttled", "noisy") if q in qualities), "ok")
        if quality != "ok":
            self.problem(f"{sides[0].model} beside {sides[1].model}: {quality} while they were measured")
        clocks = []
        for sample in self._samples:
            if span[0] <= sample.unix_ns <= span[1] and sample.sm_clock_mhz is not None:
                clocks.append(sample.sm_clock_mhz)
        clock = statistics.median(clocks) if clocks else None
        self._journal.add(
            PairRecord(key=job.key, sides=sides, quality=quality, sm_clock_mhz=clock, measured=_now())
        )

    def _quality(self, entry: str, span: Span) -> str:
        spell = EntryRecord(entry_id=entry, status="ok", started_unix_ns=span[0], ended_unix_ns=span[1])
        return self._means.judge(list(self._samples), spell, None, False)

    def _look_at_alone(self, session: WorkerSession) -> str:
        """Return the worst quality of what was measured alone just now. What is not ok is measured again for
        the next pair: one that is too slow alone would make every later pair look better than it is."""
        worst = "ok"
        for alone in session.fresh():
            quality = self._quality(alone.entry.id, alone.span)
            if quality != "ok":
                alone.forget()
                worst = quality if worst != "throttled" else worst
        return worst

    def _failed(self, job: PairJob, error: PairFailed) -> None:
        line = str(error)
        self._failing |= {entry.id: line for entry in error.entries}
        if error.broke and self._means.present(self._facts) is False:
            # Not this pair's fault: it is not recorded, and comes first in the next run.
            self.stop(f"stopped: {self._facts.name} does not answer any more")
            return
        self.problem(line)
        self._journal.add(PairRecord(key=job.key, reason=line, measured=_now()))
        self._breaks += error.broke
        if self._breaks >= BREAKS_IN_A_ROW:
            self.stop(f"stopped: {self._breaks} workers in a row broke: {line}")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
