"""What the runner needs of the machine it is on, in one place: the executor's child, collectors, GPUs, their clocks."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.profiling.collectors.base import Collector
from gkestimator.profiling.raw import DeviceFacts, EnvironmentSample
from gkestimator.profiling.records import EntryRecord

_QUERY_S = 30.0
_IMPORT_S = 300.0
_VERSIONS = """
import json, sys
from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.executors import make_executor
try:
    found = dict(make_executor(sys.argv[1], sys.argv[2]).versions())
except GkestimatorError as e:
    sys.exit(str(e))
except ImportError as e:
    sys.exit(f"{e} (pip install it to use this executor)")
print()
print(json.dumps(found))
"""


@functools.cache
def _collector(name: str, device: str, pass_name: str) -> Collector:
    from gkestimator.profiling.collectors import choose  # may try the profiler out: once is enough

    found: Collector = choose(name, device, pass_name)
    return found


def _probe(name: str, device: str) -> str | None:
    from gkestimator.profiling.collectors import make_collector, probe

    found: str | None = probe(make_collector(name, device), device)
    return found


def _facts(device: str) -> DeviceFacts:
    from gkestimator.profiling.device import device_facts

    found: DeviceFacts = device_facts(device)
    return found


def _sampler(path: Path, facts: DeviceFacts) -> AbstractContextManager[Any]:
    from gkestimator.profiling.environment import EnvironmentSampler

    sampler: AbstractContextManager[Any] = EnvironmentSampler(facts, path)
    return sampler


def _judge(samples: Sequence[EnvironmentSample], record: EntryRecord, cv: float | None, on_cpu: bool) -> str:
    from gkestimator.profiling.environment import judge

    return str(judge(samples, record, cv, on_cpu))


def _visible() -> list[str] | None:
    """The GPUs that the user lets CUDA see; None: all."""
    found = os.environ.get("CUDA_VISIBLE_DEVICES")
    if found is None:
        return None
    return [v.strip() for v in found.split(",") if v.strip()]


def child_device(device: str, facts: DeviceFacts | None = None) -> tuple[str, dict[str, str]]:
    """The device as the child is told it, and the variables that let it see that GPU alone: by its UUID where that is
    known, for numbers depend on who counts (CUDA: the fastest first, NVML: by the bus)."""
    if not device.startswith("cuda:"):
        return device, {}
    if facts is not None and facts.uuid:
        return "cuda:0", {"CUDA_VISIBLE_DEVICES": facts.uuid}
    number = int(device[5:])
    visible = _visible()
    if visible is not None and number >= len(visible):
        raise UsageError(f"device {device}: CUDA_VISIBLE_DEVICES shows {len(visible)} GPUs")
    return "cuda:0", {"CUDA_VISIBLE_DEVICES": str(number) if visible is None else visible[number]}


def count_gpus() -> int:
    """GPUs of this machine that the user lets CUDA see; 0 where none answers."""
    from gkestimator.profiling.cuda_driver import cuda_device_count

    return int(cuda_device_count())


def device_present(facts: DeviceFacts) -> bool | None:
    """Whether the device still answers its driver; None where nobody can be asked."""
    if facts.kind == "cpu":
        return True
    from gkestimator.profiling.nvml import NvmlError, NvmlGpu

    try:
        return NvmlGpu(uuid=facts.uuid, index=facts.index).ask("nvmlDeviceGetName") is not None
    except NvmlError:
        return _listed(facts.uuid)


def _listed(uuid: str | None) -> bool | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_QUERY_S, check=False
        )
    except FileNotFoundError:
        return None
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and (uuid or "GPU ").encode() in done.stdout


def executor_versions(executor: str, device: str) -> Mapping[str, str]:
    """Versions of the runtime and its libraries, asked of it in a process of its own, so that nothing of it stays
    here. Raises UsageError in one line where it cannot be loaded for ``device``."""
    told, variables = child_device(device)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _VERSIONS, executor, told],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_IMPORT_S,
            env=os.environ | variables,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise UsageError(f"executor {executor}: not loaded within {_IMPORT_S:.0f} s") from e
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = lines[-1] if lines else f"status {done.returncode} and no word"
    if done.returncode != 0:
        named = last.startswith(f"executor {executor}")
        raise UsageError(last if named else f"executor {executor}: {last}")
    found = json.loads(last)
    return {str(k): str(v) for k, v in found.items()}


def python_versions() -> dict[str, str]:
    """Versions of this tool and of what every run depends on."""
    found = {"python": platform.python_version()}
    for name in ("gkestimator", "numpy", "onnx"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@frozen
class Machine:
    """The real machine by default; tests put fakes in its place. ``child``: the command that runs entries; empty:
    that of this Python."""

    child: tuple[str, ...] = ()
    collector: Callable[[str, str, str], Collector] = _collector
    probe: Callable[[str, str], str | None] = _probe
    facts: Callable[[str], DeviceFacts] = _facts
    versions: Callable[[str, str], Mapping[str, str]] = executor_versions
    gpus: Callable[[], int] = count_gpus
    present: Callable[[DeviceFacts], bool | None] = device_present
    sampler: Callable[[Path, DeviceFacts], AbstractContextManager[Any]] = _sampler
    judge: Callable[[Sequence[EnvironmentSample], EntryRecord, float | None, bool], str] = _judge

    def child_command(self) -> list[str]:
        """The beginning of the child's command line."""
        return list(self.child) or [sys.executable, "-P", "-m", "gkestimator.profiling.executors.child"]
