"""Working a campaign off on this machine: one thread per device, one queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gkestimator.core.errors import GkestimatorError
from gkestimator.jobs.stopping import Progress, Stop, stop_on_signals
from gkestimator.profiling.running.campaign import Campaign
from gkestimator.profiling.running.chunk import run_job
from gkestimator.profiling.running.folder import RawFolder
from gkestimator.profiling.running.jobs import ChunkJob
from gkestimator.profiling.running.machine import Machine

_TICK_S = 0.1


@dataclass
class _Crew:
    campaign: Campaign
    folder: RawFolder
    machine: Machine
    stop: Stop
    changed: threading.Condition = field(default_factory=threading.Condition)
    defect: BaseException | None = None

    def work(self, device: str) -> None:
        """Measure chunks on ``device`` until nothing is left, or the device is gone."""
        try:
            while (job := self._next(device)) is not None and self._measure(job) != "device":
                pass
        except BaseException as e:  # noqa: BLE001 - it is raised again in the thread that waits
            with self.changed:
                self.defect = self.defect or e
                line = "stopped"
                if isinstance(e, GkestimatorError):
                    line = f"stopped: {e}"
                self.campaign.stop(line)
                self.changed.notify_all()

    def _next(self, device: str) -> ChunkJob | None:
        campaign = self.campaign
        with self.changed:
            while self.stop() is None and campaign.stopped is None:
                if campaign.waiting and not self.folder.has_room(campaign.options.min_free_mb):
                    campaign.disk_full()
                    break
                job = campaign.next_job(device, self.stop.seconds_left())
                if job is not None or not campaign.running:
                    return job
                self.changed.wait(_TICK_S)  # what others measure now may come back to the queue
            return None

    def _measure(self, job: ChunkJob) -> str:
        result = self.folder.keep(job, lambda aside: run_job(job, aside, self.machine, self.stop))
        with self.changed:
            self.campaign.finished(job, result)
            self.changed.notify_all()
        return result.kind


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
    crew = _Crew(campaign, folder, machine, stop)
    threads = [threading.Thread(target=crew.work, args=(d,), name=f"gkest-{d}") for d in devices]
    with stop_on_signals(stop):
        for thread in threads:
            thread.start()
        # Short waits, not one join: Python handles signals between them.
        while any(t.is_alive() for t in threads):
            if threads[0].is_alive():
                threads[0].join(_TICK_S)
            else:
                time.sleep(_TICK_S)
            if progress is not None:
                with crew.changed:
                    shown = campaign.progress()
                progress(*shown)
    if crew.defect is not None:
        raise crew.defect
    gone = "the device is"
    if len(devices) > 1:
        gone = "all devices are"
    say_why_left(campaign, stop, gone)


def say_why_left(campaign: Campaign, stop: Stop, gone: str = "the device is") -> None:
    """Say why entries are left, where nothing has said so yet."""
    if stop.asked or (campaign.waiting and stop() is not None):
        campaign.stop_for(stop)
    elif campaign.waiting:
        campaign.stop(f"stopped: {gone} gone")
