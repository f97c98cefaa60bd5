"""torch.profiler's chrome trace as a capture: what CUPTI saw, where nsys is missing.

A kernel, copy or fill is tied to the host's call by the correlation id, and the call to the range
(``record_function``) of ours that holds it on the same thread. Times are in microseconds with three decimals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from gkestimator.core.errors import TableError, one_line
from gkestimator.profiling.captures import Capture, CapturedLaunch, EntryRange
from gkestimator.profiling.parsers.json_stream import stream_object
from gkestimator.profiling.parsers.labels import parse_label, printable_name
from gkestimator.profiling.parsers.spans import innermost, overlapping

LIMIT_S = 300.0
MAX_EVENTS = 10_000_000
_DEVICE_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_CALLS = ("cuda_runtime", "cuda_driver")
_LAUNCH = "LaunchKernel"
_FACTS = ("cupti_version", "cuda_runtime_version", "cuda_driver_version")

Thread = tuple[Any, Any]


class _Events:
    """What matters of a trace, collected event by event."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, str] = {}
        self._seen = 0
        self.ranges: list[tuple[int, int, Thread, str, int]] = []
        self.calls: list[tuple[int, int, Thread, int]] = []
        self.asked: set[int] = set()
        self.launches: list[tuple[int | None, CapturedLaunch]] = []
        self.host: list[tuple[int, int, Thread, str]] = []

    def add(self, event: Any) -> None:
        """One element of ``traceEvents``. Raises TableError for one that is not as it should be."""
        self._seen += 1
        if self._seen > MAX_EVENTS:
            raise TableError(f"{self._path}: more than {MAX_EVENTS:,} events")
        if not isinstance(event, dict):
            raise TableError(f"{self._path}: event {self._seen}: expected an object")
        if event.get("ph") != "X":
            return
        category = event.get("cat")
        if category == "user_annotation":
            label = parse_label(self._name(event), domain=None)
            if label is not None:
                self.ranges.append((*self._span(event), self._thread(event), *label))
        elif category in _DEVICE_KINDS:
            self._launch(event, _DEVICE_KINDS[category])
        elif category in _CALLS:
            correlation = self._whole(event, "correlation")
            if correlation is not None:
                self.calls.append((*self._span(event), self._thread(event), correlation))
                if _LAUNCH in self._name(event):
                    self.asked.add(correlation)
        elif category == "cpu_op":
            self.host.append((*self._span(event), self._thread(event), self._name(event)))

    def _launch(self, event: dict[str, Any], kind: str) -> None:
        start, end = self._span(event)
        launch = CapturedLaunch(
            kind=kind,
            name=self._name(event),
            start_ns=start,
            duration_ns=end - start,
            stream=self._whole(event, "stream"),
            device=self._whole(event, "device"),
            grid=self._triple(event, "grid"),
            block=self._triple(event, "block"),
            registers_per_thread=self._whole(event, "registers per thread"),
            smem_bytes=self._whole(event, "shared memory"),
            bytes_moved=self._whole(event, "bytes"),
            in_graph=bool(self._whole(event, "graph node id")),
        )
        self.launches.append((self._whole(event, "correlation"), launch))

    def _fail(self, event: dict[str, Any], what: str, found: Any, expected: str) -> TableError:
        name = str(event.get("name"))[:60]
        return TableError(
            f"{self._path}: event {self._seen} ({name}): {what}: found {str(found)[:60]!r}, expected {expected}"
        )

    def _name(self, event: dict[str, Any]) -> str:
        name = event.get("name")
        if not isinstance(name, str):
            raise self._fail(event, "name", name, "text")
        if name not in self._names:
            self._names[name] = printable_name(name)
        return self._names[name]

    def _span(self, event: dict[str, Any]) -> tuple[int, int]:
        start = self._ns(event, "ts")
        length = self._ns(event, "dur")
        if length < 0:
            raise self._fail(event, "dur", event.get("dur"), "a duration of at least 0")
        return start, start + length

    def _ns(self, event: dict[str, Any], field: str) -> int:
        found = event.get(field)
        if type(found) is not int and type(found) is not Decimal:
            raise self._fail(event, field, found, "microseconds")
        if not -(10**15) < found < 10**15:
            raise self._fail(event, field, found, "microseconds")
        return round(found * 1000)

    def _thread(self, event: dict[str, Any]) -> Thread:
        pid = event.get("pid")
        tid = event.get("tid")
        if not isinstance(pid, int | str) or not isinstance(tid, int | str):
            raise self._fail(event, "pid and tid", (pid, tid), "a process and a thread")
        return pid, tid

    def _arguments(self, event: dict[str, Any]) -> Mapping[str, Any]:
        found = event.get("args", {})
        if not isinstance(found, dict):
            raise self._fail(event, "args", found, "an object")
        return found

    def _whole(self, event: dict[str, Any], field: str) -> int | None:
        found = self._arguments(event).get(field)
        if found is None:
            return None
        if isinstance(found, Decimal) and abs(found) < 2**63 and found == int(found):
            found = int(found)
        if type(found) is not int or not -(2**63) <= found < 2**64:
            raise self._fail(event, field, found, "a whole number")
        return found

    def _triple(self, event: dict[str, Any], field: str) -> tuple[int, int, int] | None:
        found = self._arguments(event).get(field)
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != 3 or not all(type(v) is int and v > 0 for v in found):
            raise self._fail(event, field, found, "three whole numbers")
        return (found[0], found[1], found[2])


def parse_kineto(path: Path, *, limit_s: float = LIMIT_S) -> Capture:
    """The capture in the chrome trace at ``path`` (.json or .json.gz). Ranges in order of their start, launches in the
    order of the host's calls; ``device``: the GPU's ``deviceProperties`` and the trace's CUDA versions.

    Where nothing ran on a device, the launches are the host's operators (kind ``host``) with the time that each spent
    outside the operators it called. Raises TableError in one line.
    """
    events = _Events(path)
    rest = stream_object(path, "traceEvents", events.add, limit_s=limit_s)
    problems: list[str] = []
    unjoined: Counter[str] = Counter()
    events.ranges.sort(key=lambda r: (r[0], -r[1]))
    if not events.ranges:
        problems.append("no range of ours was recorded (record_function)")
    nested = sum(overlapping(spans) for spans in _by_thread(events.ranges).values())
    if nested:
        problems.append(f"{nested} ranges of ours lie within others; a launch counts for the innermost")
    on_device = bool(events.launches or events.calls)
    placed = (_device_launches if on_device else _host_launches)(events, unjoined)
    dropped = len(events.asked - {correlation for correlation, _ in events.launches})
    if dropped:
        problems.append(f"{dropped} of {len(events.asked)} launches without a kernel: CUPTI dropped records")
    schema = rest.get("schemaVersion")
    return Capture(
        tool="kineto",
        tool_version=None,
        schema=None if schema is None else one_line(schema, limit=20),
        ranges=tuple(
            EntryRange(
                entry_id=entry_id,
                repeats=repeats,
                start_ns=start,
                end_ns=end,
                launches=tuple(launch for _, _, launch in sorted(placed[i], key=lambda each: each[:2])),
            )
            for i, (start, end, _, entry_id, repeats) in enumerate(events.ranges)
        ),
        device=_device(rest, events, problems),
        unjoined=dict(unjoined),
        problems=tuple(problems),
    )


def _by_thread(ranges: list[tuple[int, int, Thread, str, int]]) -> dict[Thread, list[tuple[int, int]]]:
    threads: dict[Thread, list[tuple[int, int]]] = defaultdict(list)
    for start, end, thread, _, _ in ranges:
        threads[thread].append((start, end))
    return threads


def _places(events: _Events, spans: list[tuple[int, int, Thread]]) -> list[int | None]:
    """Index of the innermost range of each of ``spans``, which must end within it too."""
    of_thread: dict[Thread, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for i, r in enumerate(events.ranges):
        of_thread[r[2]][0].append(i)
    for i, span in enumerate(spans):
        of_thread[span[2]][1].append(i)
    places: list[int | None] = [None] * len(spans)
    for ranges, calls in of_thread.values():
        found = innermost([events.ranges[i][:2] for i in ranges], [spans[c][:2] for c in calls])
        for call, place in zip(calls, found, strict=True):
            if place is not None and spans[call][1] <= events.ranges[ranges[place]][1]:
                places[call] = ranges[place]
    return places


def _device_launches(
    events: _Events, unjoined: Counter[str]
) -> dict[int, list[tuple[int, int, CapturedLaunch]]]:
    places = _places(events, [call[:3] for call in events.calls])
    of_correlation: dict[int, list[int]] = defaultdict(list)
    for i, call in enumerate(events.calls):
        of_correlation[call[3]].append(i)
    placed: dict[int, list[tuple[int, int, CapturedLaunch]]] = defaultdict(list)
    for correlation, launch in events.launches:
        calls = of_correlation.get(correlation, []) if correlation is not None else []
        candidates = {places[c] for c in calls}
        place = next(iter(candidates)) if len(candidates) == 1 else None
        if not candidates:
            unjoined["without the host's call that caused it"] += 1
        elif len(candidates) > 1:
            unjoined["with several calls that may have caused it"] += 1
        elif place is None:
            unjoined["outside the ranges of entries"] += 1
        else:
            placed[place].append((min(events.calls[c][0] for c in calls), launch.start_ns, launch))
    return placed


def _host_launches(
    events: _Events, unjoined: Counter[str]
) -> dict[int, list[tuple[int, int, CapturedLaunch]]]:
    places = _places(events, [op[:3] for op in events.host])
    inside = _nested_ns(events.host)
    placed: dict[int, list[tuple[int, int, CapturedLaunch]]] = defaultdict(list)
    for i, (start, end, _, name) in enumerate(events.host):
        place = places[i]
        if place is None:
            unjoined["outside the ranges of entries"] += 1
        else:
            own = CapturedLaunch(
                kind="host", name=name, start_ns=start, duration_ns=max(0, end - start - inside[i])
            )
            placed[place].append((start, -end, own))
    return placed


def _nested_ns(host: list[tuple[int, int, Thread, str]]) -> list[int]:
    """Of each operator the time spent in the operators that it called itself."""
    inside = [0] * len(host)
    stacks: dict[Thread, list[int]] = defaultdict(list)
    for i in sorted(range(len(host)), key=lambda i: (host[i][0], -host[i][1])):
        stack = stacks[host[i][2]]
        while stack and host[stack[-1]][1] <= host[i][0]:
            stack.pop()
        if stack:
            inside[stack[-1]] += host[i][1] - host[i][0]
        stack.append(i)
    return inside


def _device(rest: Mapping[str, Any], events: _Events, problems: list[str]) -> dict[str, str | int | float]:
    used = Counter(launch.device for _, launch in events.launches if launch.device is not None)
    if len(used) > 1:
        problems.append(
            f"launches on {len(used)} GPUs ({', '.join(map(str, sorted(used)))}); facts are the busiest's"
        )
    number = used.most_common(1)[0][0] if used else None
    listed = rest.get("deviceProperties")
    facts: dict[str, Any] = {}
    for properties in listed if isinstance(listed, list) else ():
        if isinstance(properties, dict) and number is not None and properties.get("id") == number:
            facts.update(list(properties.items())[:200])
    facts.update({name: rest[name] for name in _FACTS if name in rest})
    kept: dict[str, str | int | float] = {}
    for name, value in facts.items():
        if isinstance(value, str):
            kept[one_line(name, limit=80)] = one_line(value, limit=200)
        elif isinstance(value, int) and -(2**63) <= value < 2**64:
            kept[one_line(name, limit=80)] = int(value)
        elif isinstance(value, Decimal) and -(10**18) < value < 10**18:
            kept[one_line(name, limit=80)] = float(value)
    return kept
