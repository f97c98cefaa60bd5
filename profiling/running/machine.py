"""What the runner needs of the machine it is on, in one place: the executor's child, collectors, GPUs, their
clocks."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.profiling.collectors import choose, make_collector, probe
from gkestimator.profiling.collectors.base import Collector
from gkestimator.profiling.cuda_driver import cuda_device_count
from gkestimator.profiling.device import device_facts
from gkestimator.profiling.environment import EnvironmentSampler, judge
from gkestimator.profiling.nvml import NvmlError, NvmlGpu
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.type_names import Names, TextByName, Texts
from gkestimator.profiling.variation import Judge

_QUERY_S = 30.0
_IMPORT_S = 300.0
_VERSIONS = """
import json, sys
from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.executors import make_executor
try:
    versions = dict(make_executor(sys.argv[1], sys.argv[2]).versions())
except GkestimatorError as e:
    sys.exit(str(e))
except ImportError as e:
    sys.exit(f"{e} (pip install it to use this executor)")
print()
print(json.dumps(versions))
"""


@functools.cache
def _collector(name: str, device: str, pass_name: str) -> Collector:
    return choose(name, device, pass_name)  # may try the profiler out: once is enough


def _probe(name: str, device: str) -> str | None:
    return probe(make_collector(name, device), device)


def _visible() -> list[str] | None:
    """Return the GPUs that the user lets CUDA see; None: all."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return None
    return [name.strip() for name in names.split(",") if name.strip()]


def child_device(device: str, facts: DeviceFacts | None = None) -> tuple[str, Texts]:
    """Return the device as its child is to know it, and the variables that let the child see that GPU alone: by its
    UUID where that is known, for numbers depend on who counts (CUDA: the fastest first, NVML: by the bus)."""
    if not device.startswith("cuda:"):
        return device, {}
    if facts is not None and facts.uuid:
        return "cuda:0", {"CUDA_VISIBLE_DEVICES": facts.uuid}
    number = int(device[5:])
    visible = _visible()
    if visible is not None and number >= len(visible):
        raise UsageError(f"device {device}: CUDA_VISIBLE_DEVICES shows {len(visible)} GPUs")
    return "cuda:0", {"CUDA_VISIBLE_DEVICES": str(number) if visible is None else visible[number]}


def device_present(facts: DeviceFacts) -> bool | None:
    """Return whether the device still answers its driver; None where nobody can be asked."""
    if facts.kind == "cpu":
        return True
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


def executor_versions(executor: str, device: str) -> TextByName:
    """Ask a runtime for its version and those of its libraries, in a process of its own, so that nothing of
    it stays here. Raises UsageError in one line where it cannot be loaded for ``device``."""
    visible_device, variables = child_device(device)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _VERSIONS, executor, visible_device],
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
    return {str(name): str(version) for name, version in json.loads(last).items()}


def python_versions() -> Texts:
    """Return the versions of this tool and of what every run depends on."""
    versions = {"python": platform.python_version()}
    for name in ("gkestimator", "numpy", "onnx"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


@frozen
class Machine:
    """Hold what a run asks of the machine it is on: the real one by default; tests put fakes in its place.
    ``child``: the command that runs entries; empty: that of this Python."""

    child: Names = ()
    collector: Callable[[str, str, str], Collector] = _collector
    probe: Callable[[str, str], str | None] = _probe
    facts: Callable[[str], DeviceFacts] = device_facts
    versions: Callable[[str, str], TextByName] = executor_versions
    gpus: Callable[[], int] = cuda_device_count
    present: Callable[[DeviceFacts], bool | None] = device_present
    sampler: Callable[[DeviceFacts, Path], AbstractContextManager[Any]] = EnvironmentSampler
    judge: Judge = judge

    def child_command(self) -> list[str]:
        """Return the beginning of the child's command line."""
        return list(self.child) or [sys.executable, "-P", "-m", "gkestimator.profiling.executors.child"]
