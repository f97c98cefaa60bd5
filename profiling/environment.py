"""The surroundings of a measurement: clocks, power, temperature and other tenants, sampled while a chunk runs, and the
verdict on each entry. Reads only: clocks, limits, MIG and compute modes stay as they were found."""

from __future__ import annotations

import json
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TextIO, TypeAlias

from gkestimator.profiling.nvml import NvmlError, NvmlGpu
from gkestimator.profiling.raw import DeviceFacts, EnvironmentSample, document_of
from gkestimator.profiling.records import EntryRecord
from gkestimator.tables.files import output_errors

INTERVAL_S = 0.2
HOLDS_BACK = frozenset(
    {"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"}
)
"""Reasons that make a measurement ``throttled``: heat, the power supply's brake, hardware emergencies: they come and
go with the room, not with the work. ``sw_power_cap`` is not among them: a GPU in its default setting works at its power
limit whenever matrix products fill it, so that is what the same work will get next time; the row keeps its clock. So do
``applications_clocks`` and the like, which an administrator chose: the clock is recorded, and is this machine's."""
LOW_CLOCK = 0.9
"""An SM clock below this share of the run's usual one, without a power cap to explain it, is ``throttled``."""
NOISY_CV = 0.10
"""Coefficient of variation (standard deviation / mean of the repeats) above which a GPU measurement is ``noisy``: of
kernels undisturbed on an idle GPU it is 1 to 3 %."""
NOISY_CV_HOST = 0.30
"""The same for CPU executors, whose repeats the operating system interrupts."""
_JITTER_US = 0.5
"""What time stamps of a launch vary by themselves: counts for kernels of a few microseconds."""
_NEAR_NS = int(0.5e9)
_OTHERS_PCT = 1.0
HeldBytes: TypeAlias = "Mapping[int, int | None]"
"""Bytes of the GPU by process id; None where a size is not told."""


def noise_limit(record: EntryRecord, *, on_cpu: bool = False) -> float:
    """Return the coefficient of variation above which the entry's repeats are noisy. ``on_cpu``: a CPU
    measured it, which a record with the runtime's own profile tells by itself."""
    if on_cpu or record.kernels is not None:
        return NOISY_CV_HOST
    short = 0.0 if not record.elapsed_us else _JITTER_US / record.elapsed_us
    return math.hypot(NOISY_CV, short)


def judge(
    samples: Sequence[EnvironmentSample], record: EntryRecord, cv: float | None, on_cpu: bool = False
) -> str:
    """Return ``ok``, ``noisy`` or ``throttled`` for one entry. ``samples``: of its chunk, or of the whole
    run, in order of time; ``cv``: the coefficient of variation of its repeats, None where there was one only;
    ``on_cpu``: as :func:`noise_limit` has it.

    ``throttled`` wins: the driver names a reason of :data:`HOLDS_BACK`, or the SM clock was below :data:`LOW_CLOCK` of
    the median at work of all ``samples`` with no power cap named. ``noisy``: ``cv`` above :func:`noise_limit`, or
    kernels of other processes ran. Without samples ``cv`` alone decides.
    """
    near = during(samples, record)
    if _held_back(near, reference_clock_mhz(samples)):
        return "throttled"
    if cv is not None and cv > noise_limit(record, on_cpu=on_cpu):
        return "noisy"
    for sample in near:
        if sample.others_sm_pct is not None and sample.others_sm_pct >= _OTHERS_PCT:
            return "noisy"
    return "ok"


def _held_back(near: Sequence[EnvironmentSample], usual_mhz: float | None) -> bool:
    reasons: set[str] = set()
    for sample in near:
        reasons.update(sample.throttled or ())
    if reasons & HOLDS_BACK:
        return True
    if usual_mhz is None or "sw_power_cap" in reasons:
        return False
    clock_mhz = reference_clock_mhz(near)
    return clock_mhz is not None and clock_mhz < LOW_CLOCK * usual_mhz


def during(samples: Sequence[EnvironmentSample], record: EntryRecord) -> list[EnvironmentSample]:
    """Return the samples taken while the entry ran; where it was shorter than the interval, the nearest
    before and after within half a second."""
    if record.started_unix_ns is None or record.ended_unix_ns is None:
        return []
    inside = [s for s in samples if record.started_unix_ns <= s.unix_ns <= record.ended_unix_ns]
    if inside:
        return inside
    before = [s for s in samples if 0 < record.started_unix_ns - s.unix_ns <= _NEAR_NS]
    after = [s for s in samples if 0 < s.unix_ns - record.ended_unix_ns <= _NEAR_NS]
    return [*before[-1:], *after[:1]]


def reference_clock_mhz(samples: Sequence[EnvironmentSample]) -> float | None:
    """Return the median SM clock of the samples at work; None without any."""
    clocks = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None and _at_work(s)]
    if clocks:
        return statistics.median(clocks)
    return None


def _at_work(sample: EnvironmentSample) -> bool:
    # An idle GPU lowers its clocks: between entries, while a child compiles and copies.
    return sample.throttled is None or "gpu_idle" not in sample.throttled


class EnvironmentSampler:
    """Append a sample every ``interval_s`` seconds to ``path`` (JSON lines) while the context is open.

    Enter it before the child starts: processes that use the GPU by then, and are not descendants of this one, are
    other tenants. A machine that tells nothing gives samples of nulls; a full disk ends the sampling, not the run
    (``problem`` says so).
    """

    def __init__(self, device: DeviceFacts, path: Path, *, interval_s: float = INTERVAL_S) -> None:
        self._device = device
        self._path = path
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None

    def __enter__(self) -> EnvironmentSampler:
        with output_errors(self._path):
            stream = open(self._path, "a", encoding="utf-8")
        take = sampling(self._device)
        self._write(stream, take())
        self._thread = threading.Thread(
            target=self._work, args=(stream, take), name="environment", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)

    def _work(self, stream: TextIO, take: Callable[[], EnvironmentSample]) -> None:
        ended = False
        while not ended and self.problem is None:
            ended = self._stop.wait(self._interval_s)
            self._write(stream, take())
        with suppress(OSError):  # what a full disk refused is in the stream's buffer still
            stream.close()

    def _write(self, stream: TextIO, taken: EnvironmentSample) -> None:
        try:
            stream.write(json.dumps(document_of(taken), separators=(",", ":")) + "\n")
            stream.flush()
        except OSError as e:
            self.problem = f"{self._path}: sampling ended: {e.strerror or e}"


@contextmanager
def sample(path: Path, device: DeviceFacts | str) -> Iterator[EnvironmentSampler]:
    """Open an :class:`EnvironmentSampler` for facts, or for ``cpu`` or ``cuda:N``."""
    if isinstance(device, str):
        from gkestimator.profiling.device import facts_without_measuring

        device = facts_without_measuring(device)
    with EnvironmentSampler(device, path) as sampler:
        yield sampler


def sampling(device: DeviceFacts) -> Callable[[], EnvironmentSample]:
    """Return what takes a sample of the device each time it is called."""
    if device.kind == "cpu":
        return _host_sample
    try:
        gpu = NvmlGpu(uuid=device.uuid, index=device.index)
    except NvmlError:
        return lambda: EnvironmentSample(unix_ns=time.time_ns())
    tenants = Tenants(gpu.processes() or {}, own=_family(os.getpid()))

    def take() -> EnvironmentSample:
        now = time.time_ns()
        running = gpu.processes()
        if running is None:
            others = None
        else:
            others = tenants.others(running, own=_family(os.getpid()))
        busy = gpu.sm_pct_by_process(now // 1000 - 1_000_000) if others else None
        return EnvironmentSample(
            unix_ns=now,
            sm_clock_mhz=gpu.clock_mhz("SM"),
            memory_clock_mhz=gpu.clock_mhz("MEM"),
            power_w=gpu.power_w(),
            temperature_c=gpu.temperature_c(),
            throttled=gpu.throttled(),
            tenants=None if others is None else len(others),
            others_bytes=_sum_of_known(others),
            others_sm_pct=_share_of(others, busy),
        )

    return take


def _sum_of_known(others: HeldBytes | None) -> int | None:
    """Return what other processes hold together; None where that of one is not told."""
    if others is None:
        return None
    total = 0
    for size in others.values():
        if size is None:
            return None
        total += size
    return total


def _share_of(others: HeldBytes | None, busy: Mapping[int, float] | None) -> float | None:
    if others is None:
        return None
    if not others:
        return 0.0
    if busy is None:
        return None
    return min(100.0, sum(busy.get(pid, 0.0) for pid in others))


class Tenants:
    """Tell our processes on the GPU from others'.

    NVML gives the host's process ids. Outside containers ours are this process's descendants. Inside one, our ids
    there are unknown here; then who came after the start and is no process of ours here is taken for our child.
    """

    def __init__(self, first: HeldBytes, *, own: frozenset[int]) -> None:
        self._first = frozenset(first) - own

    def others(self, listed: HeldBytes, *, own: frozenset[int]) -> dict[int, int | None]:
        """Return the processes of ``listed`` that are not ours; ``own``: this process and its descendants now."""
        ours_seen = not own.isdisjoint(listed)
        foreign = {}
        for pid, size in listed.items():
            if pid in own:
                continue
            # Without a sign of ours, an unknown number that came after the start may be our child under another.
            if pid in self._first or ours_seen or Path(f"/proc/{pid}").exists():
                foreign[pid] = size
        return foreign


def _family(root: int) -> frozenset[int]:
    """Return ``root`` and its descendants, as /proc tells; also those that carry the mark of a tool that it started
    and whose parents are gone (nsys reparents its agent)."""
    from gkestimator.profiling.tools import MARK

    parents: dict[int, int] = {}
    family = {root}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # The command's name may hold spaces and brackets: fields count from the last bracket.
            behind_the_name = (folder / "stat").read_text().rpartition(")")[2]
            parents[int(folder.name)] = int(behind_the_name.split()[1])
            if f"{MARK}={root}.".encode() in (folder / "environ").read_bytes():
                family.add(int(folder.name))
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return frozenset(family)


def _host_sample() -> EnvironmentSample:
    from gkestimator.profiling.host import cpu_clock_mhz

    return EnvironmentSample(unix_ns=time.time_ns(), sm_clock_mhz=cpu_clock_mhz())
