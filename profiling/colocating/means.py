"""What measuring pairs needs of the machine it is on, in one place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.profiling.colocating.mps import find_mps
from gkestimator.profiling.raw import DeviceFacts, EnvironmentSample
from gkestimator.profiling.records import EntryRecord
from gkestimator.profiling.running.machine import child_device, count_gpus, device_present


def _facts(device: str) -> DeviceFacts:
    from gkestimator.profiling.device import device_facts

    found: DeviceFacts = device_facts(device)
    return found


def _sampling(facts: DeviceFacts) -> Callable[[], EnvironmentSample]:
    from gkestimator.profiling.environment import sampling

    found: Callable[[], EnvironmentSample] = sampling(facts)
    return found


def _judge(samples: Sequence[EnvironmentSample], record: EntryRecord, cv: float | None) -> str:
    from gkestimator.profiling.environment import judge

    return str(judge(samples, record, cv))


def _known_gpu(facts: DeviceFacts) -> GpuSpec | None:
    from gkestimator.profiling.gpu_files import known_gpu

    found: GpuSpec | None = known_gpu(facts)
    return found


def _gpu_toml(facts: DeviceFacts) -> str:
    from gkestimator.profiling.gpu_files import gpu_toml

    return str(gpu_toml(facts))


@frozen
class PairMeans:
    """The real machine by default; tests put their own in its place. ``worker``: the command of a worker without its
    options; empty: that of this Python."""

    worker: tuple[str, ...] = ()
    facts: Callable[[str], DeviceFacts] = _facts
    gpus: Callable[[], int] = count_gpus
    present: Callable[[DeviceFacts], bool | None] = device_present
    told: Callable[[str, DeviceFacts], tuple[str, Mapping[str, str]]] = child_device
    sampling: Callable[[DeviceFacts], Callable[[], EnvironmentSample]] = _sampling
    judge: Callable[[Sequence[EnvironmentSample], EntryRecord, float | None], str] = _judge
    mps: Callable[[], Path | None] = find_mps
    known_gpu: Callable[[DeviceFacts], GpuSpec | None] = _known_gpu
    gpu_toml: Callable[[DeviceFacts], str] = _gpu_toml

    def worker_command(self) -> list[str]:
        """The beginning of a worker's command line."""
        return list(self.worker) or [sys.executable, "-P", "-m", "gkestimator.profiling.colocating.worker"]
