"""A worker whose models are names of behaviours: the real protocol and the real loops around an executor of sleeps.

``ok...``: 2 ms a call. ``crash...``: the process dies while it is prepared. ``quarrel...``: the process dies in its second
loop, beside another. ``hang...``: its second loop never ends. ``greedy...``: does not fit beside another in one process.
``broken...``: cannot be prepared.
"""

from __future__ import annotations

import os
import sys
import time
import types
from pathlib import Path

# Asks for onnx, half a second in each of the many workers that tests start.
_memory = types.ModuleType("gkestimator.profiling.executors.host_memory")
_memory.available_host_bytes = lambda: None  # type: ignore[attr-defined]
_memory.require_host_memory = lambda *_: None  # type: ignore[attr-defined]
sys.modules[_memory.__name__] = _memory

from gkestimator.profiling.colocating import worker  # noqa: E402
from gkestimator.profiling.executors.base import EntryUnsupportedError, ExecutionError  # noqa: E402
from gkestimator.profiling.plan import PlanEntry  # noqa: E402


class Pretended:
    """Tells its loops apart: each begins with a second synchronisation in a row."""

    def __init__(self, owner: PretendExecutor, name: str) -> None:
        self.owner, self.name, self.loops, self._ran = owner, name, 0, True
        owner.open.append(name)

    def run(self) -> None:
        self._ran = True
        if self.loops == 2 and self.name.startswith("quarrel"):
            os._exit(9)
        if self.loops == 2 and self.name.startswith("hang"):
            time.sleep(3600)
        time.sleep(0.002)

    def synchronise(self) -> None:
        self.loops += not self._ran
        self._ran = False

    def close(self) -> None:
        self.owner.open.remove(self.name)


class PretendExecutor:
    """Notes what it is asked to prepare in the file that PRETEND_LOG names."""

    name = "pretend"

    def __init__(self) -> None:
        self.open: list[str] = []

    def versions(self) -> dict[str, str]:
        return {"pretend": os.environ.get("PRETEND_VERSION", "1")}

    def prepare(self, entry: PlanEntry, seed: int) -> Pretended:
        assert entry.model is not None
        name = entry.model.name
        if "PRETEND_LOG" in os.environ:
            with Path(os.environ["PRETEND_LOG"]).open("a") as stream:
                share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
                stream.write(f"{name} {share} {os.environ['CUDA_MPS_PIPE_DIRECTORY']} {os.getpid()}\n")
        if name.startswith("crash"):
            os._exit(7)
        if name.startswith("broken"):
            raise EntryUnsupportedError(f"{name}: nobody runs this")
        if self.open and (name.startswith("greedy") or any(n.startswith("greedy") for n in self.open)):
            raise ExecutionError("out of memory: tried to allocate all there is")
        return Pretended(self, name)


def sms(device: str) -> int | None:
    share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    return None if share is None else int(float(share) * 132 / 100)


if __name__ == "__main__":
    print("a library prints what it likes", flush=True)
    worker.make_executor = lambda name, device: PretendExecutor()  # type: ignore[assignment]
    worker._visible_sms = sms
    worker.die_with(int(os.environ.pop("GKEST_PAIRS_PARENT", os.getppid())))
    sys.exit(worker.main())
