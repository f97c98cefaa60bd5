"""torch.profiler's chrome trace as a capture: what CUPTI saw, where nsys is missing.

A kernel, copy or fill is tied to the host's call by the correlation id, and the call to the range
(``record_function``) of ours that holds it on the same thread. Times are in microseconds with three decimals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from gkestimator.core.errors import TableError, one_line
from gkestimator.core.limits import allowed, exceeded
from gkestimator.profiling.captures import Capture, CapturedLaunch, Dim3
from gkestimator.profiling.parsers.json_stream import stream_object
from gkestimator.profiling.parsers.spans import (
    OUTSIDE,
    Causes,
    Facts,
    HostCall,
    IndicesByThread,
    LabelledRange,
    Placed,
    Places,
    busiest_device,
    entry_ranges,
    parse_label,
    places_of,
    printable_name,
    tell_of_nested,
)
from gkestimator.profiling.type_names import Fields, Members, Texts

_DEVICE_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
_CALLS = ("cuda_runtime", "cuda_driver")
_LAUNCH = "LaunchKernel"
_FACTS = ("cupti_version", "cuda_runtime_version", "cuda_driver_version")
_KEPT = ("schemaVersion", "deviceProperties", *_FACTS)
_MOST_FACTS = 200


class _Event:
    """Read one element of ``traceEvents`` without trusting it. Raises TableError for what is not as it should
    be."""

    __slots__ = ("_document", "_where")

    def __init__(self, where: str, document: Fields) -> None:
        self._where = where
        self._document = document

    def _fail(self, what: str, value: object, expected: str) -> TableError:
        name = str(self._document.get("name"))[:60]
        return TableError(f"{self._where} ({name}): {what}: found {str(value)[:60]!r}, expected {expected}")

    def name(self) -> str:
        name = self._document.get("name")
        if not isinstance(name, str):
            raise self._fail("name", name, "text")
        return name

    def times(self) -> tuple[int, int]:
        """Return start and duration in ns."""
        start = self._ns("ts")
        length = self._ns("dur")
        if length < 0:
            raise self._fail("dur", self._document.get("dur"), "a duration of at least 0")
        return start, length

    def _ns(self, field: str) -> int:
        value: Any = self._document.get(field)
        known = type(value) is int or type(value) is Decimal
        if known and -(10**15) < value < 10**15:
            nanoseconds: int = round(value * 1000)
            return nanoseconds
        raise self._fail(field, value, "microseconds")

    def call(self) -> HostCall:
        start, length = self.times()
        pid = self._document.get("pid")
        tid = self._document.get("tid")
        if not isinstance(pid, int | str) or not isinstance(tid, int | str):
            raise self._fail("pid and tid", (pid, tid), "a process and a thread")
        return HostCall(start, start + length, (pid, tid))

    def _argument(self, field: str) -> Any:
        arguments = self._document.get("args", {})
        if not isinstance(arguments, dict):
            raise self._fail("args", arguments, "an object")
        return arguments.get(field)

    def whole(self, field: str) -> int | None:
        value = self._argument(field)
        if isinstance(value, Decimal) and abs(value) < 2**63 and value == int(value):
            value = int(value)
        if value is None or (type(value) is int and -(2**63) <= value < 2**64):
            return value
        raise self._fail(field, value, "a whole number")

    def triple(self, field: str) -> Dim3 | None:
        sizes = self._argument(field)
        if sizes is None:
            return None
        if not isinstance(sizes, list) or len(sizes) != 3:
            raise self._fail(field, sizes, "three whole numbers")
        x, y, z = sizes
        for size in sizes:
            if type(size) is not int or size <= 0:
                raise self._fail(field, sizes, "three whole numbers")
        return x, y, z


class _Events:
    """Hold what matters of a trace, collected event by event."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: Texts = {}
        self._seen = 0
        self._most = allowed("trace_events")
        self.ranges: list[LabelledRange] = []
        self.calls: list[HostCall] = []
        self.correlations: dict[int | None, list[int]] = defaultdict(list)  # to indices of calls
        self.asked: set[int] = set()
        self.launches: list[tuple[int | None, CapturedLaunch]] = []
        self.host: list[HostCall] = []
        self.operators: list[str] = []

    def add(self, document: Any) -> None:
        """Take one element of ``traceEvents``. Raises TableError for one that is not as it should be."""
        self._seen += 1
        if self._seen > self._most:
            raise TableError(f"{self._path}: {exceeded('trace_events', 'more')}")
        if not isinstance(document, dict):
            raise TableError(f"{self._path}: event {self._seen}: expected an object")
        if document.get("ph") == "X":
            event = _Event(f"{self._path}: event {self._seen}", document)
            self._take(event, document.get("cat"))

    def _take(self, event: _Event, category: object) -> None:
        if category == "user_annotation":
            label = parse_label(self._name(event), domain=None)
            if label is not None:
                call = event.call()
                self.ranges.append(LabelledRange(*label, call.start, call.end, call.thread))
        elif category in _CALLS:
            correlation = event.whole("correlation")
            if correlation is not None:
                self.correlations[correlation].append(len(self.calls))
                self.calls.append(event.call())
                if _LAUNCH in self._name(event):
                    self.asked.add(correlation)
        elif category == "cpu_op":
            self.host.append(event.call())
            self.operators.append(self._name(event))
        elif isinstance(category, str) and category in _DEVICE_KINDS:
            launch = self._launch(event, _DEVICE_KINDS[category])
            self.launches.append((event.whole("correlation"), launch))

    def _launch(self, event: _Event, kind: str) -> CapturedLaunch:
        start, length = event.times()
        return CapturedLaunch(
            kind=kind,
            name=self._name(event),
            start_ns=start,
            duration_ns=length,
            stream=event.whole("stream"),
            device=event.whole("device"),
            grid=event.triple("grid"),
            block=event.triple("block"),
            registers_per_thread=event.whole("registers per thread"),
            smem_bytes=event.whole("shared memory"),
            bytes_moved=event.whole("bytes"),
            in_graph=bool(event.whole("graph node id")),
        )

    def _name(self, event: _Event) -> str:
        name = event.name()
        if name not in self._names:
            self._names[name] = printable_name(name)
        return self._names[name]


def parse_kineto(path: Path, *, limit_s: float | None = None) -> Capture:
    """Return the capture in the chrome trace at ``path`` (.json or .json.gz). Ranges in order of their start,
    launches in the order of the host's calls; ``device``: the GPU's ``deviceProperties`` and the trace's CUDA
    versions.

    Where nothing ran on a device, the launches are the host's operators (kind ``host``) with the time that
    each spent outside the operators it called. Raises TableError in one line.
    """
    events = _Events(path)
    rest = stream_object(path, "traceEvents", events.add, keep=_KEPT, limit_s=limit_s)
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
    schema_text = None
    if schema is not None:
        schema_text = one_line(schema, limit=20)
    return Capture(
        tool="kineto",
        tool_version=None,
        schema=schema_text,
        ranges=entry_ranges(events.ranges, placed),
        device=_device(rest, events, problems),
        unjoined=dict(unjoined),
        problems=tuple(problems),
    )


def _places(events: _Events, calls: Sequence[HostCall]) -> Places:
    """Return the index of the innermost range of each of ``calls``, which must end within it too."""
    places = places_of(calls, events.ranges)
    for i, place in enumerate(places):
        if place is not None and calls[i].end > (events.ranges[place].end or 0):
            places[i] = None
    return places


def _device_launches(events: _Events, unjoined: Counter[str]) -> Placed:
    places = _places(events, events.calls)
    placed: Placed = defaultdict(list)
    causes = Causes(events.calls, places)
    for correlation, launch in events.launches:
        cause = causes.of(correlation, events.correlations.get(correlation, []))
        if cause.place is None:
            unjoined[cause.reason] += 1
        else:
            placed[cause.place].append((cause.start_ns, launch.start_ns, launch))
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
    stacks: IndicesByThread = defaultdict(list)
    for i in sorted(range(len(host)), key=lambda i: (host[i].start, -host[i].end)):
        start, end, thread = host[i]
        stack = stacks[thread]
        while stack and host[stack[-1]].end <= start:
            stack.pop()
        if stack:
            inside[stack[-1]] += end - start
        stack.append(i)
    return inside


def _device(rest: Members, events: _Events, problems: list[str]) -> Facts:
    number = busiest_device((launch for _, launch in events.launches), problems)
    listed = rest.get("deviceProperties")
    properties_of: Fields = {}
    for properties in listed if isinstance(listed, list) and number is not None else ():
        if isinstance(properties, dict) and properties.get("id") == number:
            properties_of.update(list(properties.items())[:_MOST_FACTS])
    properties_of.update({name: rest[name] for name in _FACTS if name in rest})
    facts: Facts = {}
    for name, value in properties_of.items():
        key = one_line(name, limit=80)
        if isinstance(value, str):
            facts[key] = one_line(value, limit=200)
        elif isinstance(value, int) and -(2**63) <= value < 2**64:
            facts[key] = int(value)
        elif isinstance(value, Decimal) and -(10**18) < value < 10**18:
            facts[key] = float(value)
    return facts
