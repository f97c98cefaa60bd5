"""One side of a pair: a process with one executor that holds models and calls them on request.

``python -P -m gkestimator.profiling.colocating.worker --executor NAME --device D --seed N``, requests on
standard input (:mod:`gkestimator.profiling.colocating.protocol`), answers where standard output was. It ends
when its input is closed, and dies with the process that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gkestimator.core.errors import GkestimatorError, one_line
from gkestimator.jobs.children import die_with
from gkestimator.profiling.colocating.protocol import MOST_CALLS, MOST_LINE, ProtocolError, decode, encode
from gkestimator.profiling.executors import make_executor
from gkestimator.profiling.executors.base import (
    DeviceLostError,
    EntryUnsupportedError,
    ExecutionError,
    Executor,
    Prepared,
)
from gkestimator.profiling.executors.faults import judged
from gkestimator.profiling.executors.host_memory import available_host_bytes, require_host_memory
from gkestimator.profiling.executors.measuring import no_collection
from gkestimator.profiling.plan import PlanEntry, read_plan
from gkestimator.profiling.type_names import Fields, Members, Names

# What a call may still take when the input is closed, before the process ends in the middle of it.
_CLOSING_S = 5.0
_OUT_OF_MEMORY = "out of memory"  # how faults.judged begins what memory caused
# When the first call that counts began, and nanoseconds from there to the end of each call.
Calls = tuple[int, list[int]]


@dataclass
class Holder:
    """Hold the models that are prepared, the one used longest ago first."""

    executor: Executor
    device: str
    seed: int
    _held: dict[str, Prepared] = field(default_factory=dict)

    @property
    def held(self) -> Names:
        """Return the ids of the models that are prepared."""
        return tuple(self._held)

    def prepare(self, entry: PlanEntry, keep: Sequence[str] = ()) -> Prepared:
        """Return the model, prepared now if it is not yet. Where memory runs out others are closed, the one
        used longest ago first, never those in ``keep``. Raises what the executor raises once nothing is left
        to close."""
        while entry.id not in self._held:
            try:
                require_host_memory(entry, self.device, available_host_bytes())
                self._held[entry.id] = self.executor.prepare(entry, self.seed)
                break
            except Exception as e:  # noqa: BLE001 - any runtime's; what it means is judged
                error = judged(e)
                if not _is_memory(error) or not self._close_one(keep):
                    raise error from None
                del error  # with its traceback, which holds what the failed attempt had made
            gc.collect()
        return self.use(entry.id)

    def use(self, entry: str) -> Prepared:
        """Return the prepared model, now the one used last. Raises ExecutionError where it is not prepared."""
        if entry not in self._held:
            raise ExecutionError(f"{entry}: not prepared")
        self._held[entry] = self._held.pop(entry)
        return self._held[entry]

    def close(self, keep: Sequence[str] = ()) -> None:
        """Close all but ``keep``."""
        while self._close_one(keep):
            pass

    def _close_one(self, keep: Sequence[str]) -> bool:
        victim = next((i for i in self._held if i not in keep), None)
        if victim is None:
            return False
        self._held.pop(victim).close()
        return True


def call_for(
    prepared: Prepared,
    *,
    start_ns: int,
    seconds: float,
    least: int,
    most_seconds: float,
    going: Callable[[], bool],
    now: Callable[[], int] = time.monotonic_ns,
) -> Calls:
    """Call ``prepared`` until ``start_ns`` (once at least: it warms up caches and clocks), then for
    ``seconds`` from there and at least ``least`` times, but no longer than ``most_seconds``. Each call is
    waited for. The clock is CLOCK_MONOTONIC, one for all processes of a machine."""
    prepared.synchronise()
    prepared.run()
    prepared.synchronise()
    while now() < start_ns and going():
        prepared.run()
        prepared.synchronise()
    ends: list[int] = []
    with no_collection():
        first = now()
        end = start_ns + int(seconds * 1e9)
        latest = start_ns + int(max(seconds, most_seconds) * 1e9)
        while going():
            prepared.run()
            prepared.synchronise()
            done = now()
            if len(ends) < MOST_CALLS:
                ends.append(done - first)
            if done >= latest or (done >= end and len(ends) >= least):
                break
    return first, ends


@dataclass
class _Server:
    holder: Holder
    out: IO[bytes]
    going: Callable[[], bool]
    entries: dict[str, PlanEntry] = field(default_factory=dict)

    def tell(self, message: Members) -> None:
        self.out.write(encode(message))
        self.out.flush()

    def answer(self, request: Members) -> bool:
        """Do what is asked and say how it went; False: the device takes no more work."""
        try:
            self.tell({"n": request["n"], "ok": True, **self._do(request)})
            return True
        except Exception as e:  # noqa: BLE001 - a stranger's model in any runtime: its failure is an answer
            error = judged(e)
        lost = isinstance(error, DeviceLostError)
        kind = "memory" if _is_memory(error) else "failed"
        self.tell(
            {"n": request["n"], "ok": False, "kind": "lost" if lost else kind, "reason": one_line(error)}
        )
        return not lost

    def _do(self, request: Members) -> Fields:
        what = request.get("do")
        keep = tuple(request.get("keep", ()))
        if what == "prepare":
            begun = time.monotonic()
            prepared = self.holder.prepare(self._entry(request["entry"], request["file"]), keep)
            prepared.synchronise()
            called = time.monotonic()
            prepared.run()
            prepared.synchronise()
            done = time.monotonic()
            return {"seconds": done - begun, "call_s": done - called, "held": list(self.holder.held)}
        if what == "run":
            first, ends = call_for(
                self.holder.use(request["entry"]),
                start_ns=int(request["start_ns"]),
                seconds=float(request["seconds"]),
                least=int(request["least"]),
                most_seconds=float(request["most_seconds"]),
                going=self.going,
            )
            return {"first_ns": first, "ends_ns": ends}
        if what == "close":
            self.holder.close(keep)
            return {"held": list(self.holder.held)}
        raise ProtocolError(f"request: found {str(what)[:40]!r}, expected prepare, run or close")

    def _entry(self, name: str, file: str) -> PlanEntry:
        if name not in self.entries:
            self.entries |= {e.id: e for e in read_plan(Path(file)).entries}
        if name not in self.entries:
            raise EntryUnsupportedError(f"{file}: holds no entry {name}")
        return self.entries[name]


def _is_memory(error: BaseException) -> bool:
    return isinstance(error, ExecutionError) and str(error).startswith(_OUT_OF_MEMORY)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until the input ends; return the exit status (3: the device is lost)."""
    parser = argparse.ArgumentParser(prog="gkest pairs worker", allow_abbrev=False)
    parser.add_argument("--executor", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--seed", type=int, required=True)
    asked = parser.parse_args(arguments)
    # What libraries print on standard output goes to the log: the channel is ours alone.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    closed = threading.Event()
    threading.Thread(target=_read, args=(inbox, closed), daemon=True).start()
    try:
        executor = make_executor(asked.executor, asked.device)
        holder = Holder(executor, asked.device, asked.seed)
        server = _Server(holder, out, lambda: not closed.is_set())
        server.tell(
            {"n": 0, "ok": True, "sms": _visible_sms(asked.device), "versions": dict(executor.versions())}
        )
    except GkestimatorError as e:
        print(f"gkest pairs worker: {e}", file=sys.stderr)
        return e.exit_code
    gc.freeze()  # what the libraries made at import stays
    while (line := inbox.get()) is not None:
        request = decode(line)
        if request is not None and not server.answer(request):
            return DeviceLostError.exit_code
    with contextlib.suppress(GkestimatorError):
        holder.close()
    return 0


def _visible_sms(device: str) -> int | None:
    """Return the SMs that this process sees: under MPS with a share of them fewer than the GPU has. None on
    the CPU, and where the driver does not tell."""
    if device == "cpu":
        return None
    from gkestimator.profiling.cuda_driver import cuda_device

    gpu = cuda_device(int(device.partition(":")[2]))
    return None if isinstance(gpu, str) else gpu.attributes.get("sms")


def _read(inbox: queue.SimpleQueue[bytes | None], closed: threading.Event) -> None:
    # Not sys.stdin: while a thread waits in it the interpreter cannot end.
    with contextlib.suppress(OSError, ValueError), open(0, "rb", closefd=False) as stream:
        while line := stream.readline(MOST_LINE):
            inbox.put(line)
    closed.set()
    inbox.put(None)
    time.sleep(_CLOSING_S)  # a daemon's sleep: a process that ends by itself does not wait for it
    os._exit(0)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    die_with(int(os.environ.pop("GKEST_PAIRS_PARENT", os.getppid())))
    faulthandler.enable()  # a crash leaves the Python stack in the log
    sys.exit(main())
