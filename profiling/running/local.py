"""Working a campaign off on this machine: one thread per device, one queue."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from gkestimator.errors import GkestimatorError
from gkestimator.profiling.running.campaign import Campaign
from gkestimator.profiling.running.chunk import run_job
from gkestimator.profiling.running.folder import RawFolder, is_disk_full
from gkestimator.profiling.running.jobs import ChunkJob, ChunkResult
from gkestimator.profiling.running.machine import Machine

__all__ = ["INTERRUPTED", "OUT_OF_TIME", "Stop", "end_words", "stop_on_signals", "work_off"]

INTERRUPTED = "interrupted"
OUT_OF_TIME = "the time that was given is over"
_TICK_S = 0.1
Progress = Callable[[str, int, int], None]


class Stop:
    """Why and how to stop, as every worker asks it."""

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline
        self._wish: str | None = None

    def ask(self) -> None:
        """Once: let running chunks end with what they have; twice: end at once."""
        self._wish = "soft" if self._wish is None else "hard"

    @property
    def asked(self) -> bool:
        """Somebody asked."""
        return self._wish is not None

    def seconds_left(self) -> float | None:
        """Until the deadline; None: there is none."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def __call__(self) -> str | None:
        left = self.seconds_left()
        return self._wish or ("soft" if left is not None and left <= 0 else None)


class _Crew:
    def __init__(
        self, campaign: Campaign, folder: RawFolder, machine: Machine, stop: Stop, progress: Progress | None
    ) -> None:
        self.campaign, self.folder, self.machine, self.stop = campaign, folder, machine, stop
        self.progress = progress
        self.changed = threading.Condition()
        self.defect: BaseException | None = None

    def work(self, device: str) -> None:
        """Measure chunks on ``device`` until nothing is left, or the device is gone."""
        try:
            while (job := self._next(device)) is not None:
                if not self._measure(job):
                    return
        except BaseException as e:  # noqa: BLE001 - it is raised again in the thread that waits
            with self.changed:
                self.defect = self.defect or e
                self.campaign.stop(f"stopped: {e}" if isinstance(e, GkestimatorError) else "stopped")
                self.changed.notify_all()

    def _next(self, device: str) -> ChunkJob | None:
        with self.changed:
            while self.stop() is None and self.campaign.stopped is None:
                if (
                    self.campaign.waiting
                    and self.folder.free_bytes() < self.campaign.options.min_free_mb * 2**20
                ):
                    self.campaign.disk_full()
                    return None
                job = self.campaign.next_job(device, self.stop.seconds_left())
                if job is not None:
                    return job
                if not self.campaign.running:
                    return None
                self.changed.wait(_TICK_S)  # what others measure now may come back to the queue
            return None

    def _measure(self, job: ChunkJob) -> bool:
        aside = self.folder.aside(job.folder_name)
        try:
            result = run_job(job, aside, self.machine, self.stop)
            if result.statuses:
                self.folder.commit(aside, job.folder_name)
        except OSError as e:
            if not is_disk_full(e):
                raise
            result = ChunkResult(kind="disk")
        finally:
            self.folder.drop(aside)
        with self.changed:
            self.campaign.finished(job, result)
            self.changed.notify_all()
        return result.kind != "device"


def work_off(
    campaign: Campaign, folder: RawFolder, devices: Sequence[str], machine: Machine, *, stop: Stop,
    progress: Progress | None,
) -> None:  # fmt: skip
    """Run chunks on all ``devices`` until nothing is left or the run must end; the campaign says why it ended."""
    crew = _Crew(campaign, folder, machine, stop, progress)
    threads = [threading.Thread(target=crew.work, args=(d,), name=f"gkest-{d}") for d in devices]
    with stop_on_signals(stop):
        for thread in threads:
            thread.start()
        while any(t.is_alive() for t in threads):
            threads[0].join(_TICK_S) if threads[0].is_alive() else time.sleep(_TICK_S)
            if progress is not None:
                with crew.changed:
                    shown = campaign.progress()
                progress(*shown)
    if crew.defect is not None:
        raise crew.defect
    end_words(campaign, stop, gone=len(devices))


def end_words(campaign: Campaign, stop: Stop, *, gone: int) -> None:
    """Say why entries are left, where nothing has said so yet."""
    if campaign.stopped is not None:
        return
    if stop.asked:
        campaign.stop(INTERRUPTED, status=130)
    elif not campaign.waiting:
        return
    elif stop() is not None:
        campaign.stop(OUT_OF_TIME, status=0)
    else:
        campaign.stop(f"stopped: {'the device is' if gone == 1 else 'all devices are'} gone", status=1)


@contextmanager
def stop_on_signals(stop: Stop) -> Iterator[None]:
    """While measuring, Ctrl-C and SIGTERM ask to stop; the second time at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_: int, __: FrameType | None) -> None:
        stop.ask()

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
