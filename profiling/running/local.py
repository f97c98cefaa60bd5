"""Working a campaign off on this machine: one thread per device, one queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from gkestimator.core.errors import GkestimatorError
from gkestimator.jobs.disk import is_disk_full
from gkestimator.jobs.stopping import INTERRUPTED, OUT_OF_TIME, Progress, Stop, stop_on_signals
from gkestimator.profiling.running.campaign import Campaign
from gkestimator.profiling.running.chunk import run_job
from gkestimator.profiling.running.folder import RawFolder
from gkestimator.profiling.running.jobs import ChunkJob, ChunkResult
from gkestimator.profiling.running.machine import Machine

_TICK_S = 0.1


class _Crew:
    def __init__(
        self, campaign: Campaign, folder: RawFolder, machine: Machine, stop: Stop, progress: Progress | None
    ) -> None:
        self.campaign = campaign
        self.folder = folder
        self.machine = machine
        self.stop = stop
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
    campaign: Campaign,
    folder: RawFolder,
    devices: Sequence[str],
    machine: Machine,
    *,
    stop: Stop,
    progress: Progress | None,
) -> None:
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
