"""torch.profiler's chrome trace as a capture: what CUPTI saw, where nsys is missing.

A kernel, copy or fill is tied to the host's call by the correlation id, and the call to the range
(``record_function``) of ours that holds it on the same thread. Times are in microseconds with three decimals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from gkestimator.core.errors import TableError, one_line
from gkestimator.profiling.captures import Capture, CapturedLaunch
from gkestimator.profiling.parsers.json_stream import stream_object
from gkestimator.profiling.parsers.labels import parse_label, printable_name
from gkestimator.profiling.parsers.spans import (
    OUTSIDE,
    HostCall,
    LabelledRange,
    Placed,
    busiest_device,
    common_place,
    entry_ranges,
    places_of,
    tell_of_nested,
)

LIMIT_S = 300.0
MAX_EVENTS = 10_000_000
_DEVICE_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_CALLS = ("cuda_runtime", "cuda_driver")
_LAUNCH = "LaunchKernel"
_FACTS = ("cupti_version", "cuda_runtime_version", "cuda_driver_version")
_MOST_FACTS = 200


class _Events:
    """Hold what matters of a trace, collected event by event."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, str] = {}
        self._seen = 0
        self.ranges: list[LabelledRange] = []
        self.calls: list[HostCall] = []
        self.correlations: dict[int | None, list[int]] = defaultdict(list)  # to indices of calls
        self.asked: set[int] = set()
        self.launches: list[tuple[int | None, CapturedLaunch]] = []
        self.host: list[HostCall] = []
        self.operators: list[str] = []

    def add(self, event: Any) -> None:
        """Take one element of ``traceEvents``. Raises TableError for one that is not as it should be."""
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
                call = self._call(event)
                self.ranges.append(LabelledRange(*label, call.start, call.end, call.thread))
        elif category in _DEVICE_KINDS:
            self._launch(event, _DEVICE_KINDS[category])
        elif category in _CALLS:
            correlation = self._whole(event, "correlation")
            if correlation is not None:
                self.correlations[correlation].append(len(self.calls))
                self.calls.append(self._call(event))
                if _LAUNCH in self._name(event):
                    self.asked.add(correlation)
        elif category == "cpu_op":
            self.host.append(self._call(event))
            self.operators.append(self._name(event))

    def _launch(self, event: dict[str, Any], kind: str) -> None:
        start, length = self._times(event)
        launch = CapturedLaunch(
            kind=kind,
            name=self._name(event),
            start_ns=start,
            duration_ns=length,
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

    def _fail(self, event: dict[str, Any], what: str, value: Any, expected: str) -> TableError:
        name = str(event.get("name"))[:60]
        return TableError(
            f"{self._path}: event {self._seen} ({name}): {what}: found {str(value)[:60]!r}, expected {expected}"
        )

    def _name(self, event: dict[str, Any]) -> str:
        name = event.get("name")
        if not isinstance(name, str):
            raise self._fail(event, "name", name, "text")
        if name not in self._names:
            self._names[name] = printable_name(name)
        return self._names[name]

    def _times(self, event: dict[str, Any]) -> tuple[int, int]:
        start = self._ns(event, "ts")
        length = self._ns(event, "dur")
        if length < 0:
            raise self._fail(event, "dur", event.get("dur"), "a duration of at least 0")
        return start, length

    def _ns(self, event: dict[str, Any], field: str) -> int:
        value = event.get(field)
        if (type(value) is int or type(value) is Decimal) and -(10**15) < value < 10**15:
            return round(value * 1000)
        raise self._fail(event, field, value, "microseconds")

    def _call(self, event: dict[str, Any]) -> HostCall:
        start, length = self._times(event)
        pid = event.get("pid")
        tid = event.get("tid")
        if not isinstance(pid, int | str) or not isinstance(tid, int | str):
            raise self._fail(event, "pid and tid", (pid, tid), "a process and a thread")
        return HostCall(start, start + length, (pid, tid))

    def _argument(self, event: dict[str, Any], field: str) -> Any:
        arguments = event.get("args", {})
        if not isinstance(arguments, dict):
            raise self._fail(event, "args", arguments, "an object")
        return arguments.get(field)

    def _whole(self, event: dict[str, Any], field: str) -> int | None:
        value = self._argument(event, field)
        if value is None:
            return None
        if isinstance(value, Decimal) and abs(value) < 2**63 and value == int(value):
            value = int(value)
        if type(value) is not int or not -(2**63) <= value < 2**64:
            raise self._fail(event, field, value, "a whole number")
        return value

    def _triple(self, event: dict[str, Any], field: str) -> tuple[int, int, int] | None:
        sizes = self._argument(event, field)
        if sizes is None:
            return None
        if not isinstance(sizes, list) or len(sizes) != 3 or not all(type(v) is int and v > 0 for v in sizes):
            raise self._fail(event, field, sizes, "three whole numbers")
        return (sizes[0], sizes[1], sizes[2])


def parse_kineto(path: Path, *, limit_s: float = LIMIT_S) -> Capture:
    """Return the capture in the chrome trace at ``path`` (.json or .json.gz). Ranges in order of their start,
    launches in the order of the host's calls; ``device``: the GPU's ``deviceProperties`` and the trace's CUDA
    versions.

    Where nothing ran on a device, the launches are the host's operators (kind ``host``) with the time that
    each spent outside the operators it called. Raises TableError in one line.
    """
    events = _Events(path)
    rest = stream_object(path, "traceEvents", events.add, limit_s=limit_s)
    problems: list[str] = []
    unjoined: Counter[str] = Counter()
    events.ranges.sort(key=lambda r: (r.start, -(r.end or 0)))
    if not events.ranges:
        problems.append("no range of ours was recorded (record_function)")
    tell_of_nested(events.ranges, problems)
    if events.launches or events.calls:
        placed = _device_launches(events, unjoined)
    else:
        placed = _host_launches(events, unjoined)
    dropped = len(events.asked - {correlation for correlation, _ in events.launches})
    if dropped:
        problems.append(f"{dropped} of {len(events.asked)} launches without a kernel: CUPTI dropped records")
    schema = rest.get("schemaVersion")
    return Capture(
        tool="kineto",
        tool_version=None,
        schema=None if schema is None else one_line(schema, limit=20),
        ranges=entry_ranges(events.ranges, placed),
        device=_device(rest, events, problems),
        unjoined=dict(unjoined),
        problems=tuple(problems),
    )


def _places(events: _Events, calls: Sequence[HostCall]) -> list[int | None]:
    """Return the index of the innermost range of each of ``calls``, which must end within it too."""
    places = places_of(calls, events.ranges)
    for i, place in enumerate(places):
        if place is not None and calls[i].end > (events.ranges[place].end or 0):
            places[i] = None
    return places


def _device_launches(events: _Events, unjoined: Counter[str]) -> Placed:
    places = _places(events, events.calls)
    placed: Placed = defaultdict(list)
    for correlation, launch in events.launches:
        candidates = events.correlations.get(correlation, [])
        place, reason = common_place(candidates, places)
        if place is None:
            unjoined[reason] += 1
        else:
            called = min(events.calls[c].start for c in candidates)
            placed[place].append((called, launch.start_ns, launch))
    return placed


def _host_launches(events: _Events, unjoined: Counter[str]) -> Placed:
    places = _places(events, events.host)
    inside = _nested_ns(events.host)
    placed: Placed = defaultdict(list)
    for i, (start, end, _) in enumerate(events.host):
        place = places[i]
        if place is None:
            unjoined[OUTSIDE] += 1
            continue
        own_ns = max(0, end - start - inside[i])
        launch = CapturedLaunch(kind="host", name=events.operators[i], start_ns=start, duration_ns=own_ns)
        placed[place].append((start, -end, launch))
    return placed


def _nested_ns(host: Sequence[HostCall]) -> list[int]:
    """Return of each operator the time spent in the operators that it called itself."""
    inside = [0] * len(host)
    stacks: dict[Hashable, list[int]] = defaultdict(list)
    for i in sorted(range(len(host)), key=lambda i: (host[i].start, -host[i].end)):
        start, end, thread = host[i]
        stack = stacks[thread]
        while stack and host[stack[-1]].end <= start:
            stack.pop()
        if stack:
            inside[stack[-1]] += end - start
        stack.append(i)
    return inside


def _device(rest: Mapping[str, Any], events: _Events, problems: list[str]) -> dict[str, str | int | float]:
    number = busiest_device((launch for _, launch in events.launches), problems)
    listed = rest.get("deviceProperties")
    properties_of: dict[str, Any] = {}
    for properties in listed if isinstance(listed, list) and number is not None else ():
        if isinstance(properties, dict) and properties.get("id") == number:
            properties_of.update(list(properties.items())[:_MOST_FACTS])
    properties_of.update({name: rest[name] for name in _FACTS if name in rest})
    facts: dict[str, str | int | float] = {}
    for name, value in properties_of.items():
        key = one_line(name, limit=80)
        if isinstance(value, str):
            facts[key] = one_line(value, limit=200)
        elif isinstance(value, int) and -(2**63) <= value < 2**64:
            facts[key] = int(value)
        elif isinstance(value, Decimal) and -(10**18) < value < 10**18:
            facts[key] = float(value)
    return facts
