"""Nsight Systems: the SQLite export (schemas 2.x and 3.x, releases 2022 to 2026) as a capture.

A kernel, copy or fill is tied to the host's call that caused it by process and correlation id, and the call to the
innermost range of ours that holds it on the same thread, as NVIDIA's own reports do. Tables and columns come and go
with the release, and a lazy export leaves empty tables out, so nothing is taken for granted but what is read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from gkestimator.core.errors import TableError, one_line
from gkestimator.profiling.captures import Capture, CapturedLaunch, EntryRange
from gkestimator.profiling.parsers.spans import (
    Causes,
    Facts,
    HostCall,
    LabelledRange,
    Placed,
    busiest_device,
    entry_ranges,
    looks_like_label,
    parse_label,
    places_of,
    printable_name,
    tell_of_nested,
)
from gkestimator.profiling.parsers.sqlite_file import SqliteFile, open_sqlite
from gkestimator.profiling.type_names import Fields, Texts

StringsById: TypeAlias = "dict[int, str]"

MAX_LAUNCHES = 5_000_000
MAX_RANGES = 2_000_000

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_DIAGNOSTICS = "DIAGNOSTIC_EVENT"
_RANGE_NAMES = (("NVTX_EVENTS", "textId"),)
_NAMES = ((_KERNELS, "demangledName"), (_KERNELS, "shortName"), *_RANGE_NAMES)
# 2023 and later; 2022 and before.
_META = ("META_DATA_EXPORT", "EXPORT_META_DATA")
# CUPTI's kinds of copies, as the exports label them.
_DIRECTIONS = (
    "Unknown",
    "Host-to-Device",
    "Device-to-Host",
    "Host-to-Array",
    "Array-to-Host",
    "Array-to-Array",
    "Array-to-Device",
    "Device-to-Array",
    "Device-to-Device",
    "Host-to-Host",
    "Peer-to-Peer",
)
_PUSH_POP = 59
_START_END = 60
_DOMAIN_CREATED = 75
# Mask of a globalTid: machine and process without the thread, which is the globalPid.
_PROCESS = ~0xFFFFFF

_TIMES = (("start", int), ("end", int))
_WHERE = (
    ("correlationId", int),
    ("globalPid", int),
    ("deviceId", int),
    ("streamId", int),
    ("graphNodeId", int),
)
_GRID = tuple((f"{what}{axis}", int) for what in ("grid", "block") for axis in "XYZ")


class _Tied(NamedTuple):
    """Hold a launch, and what ties it to its call."""

    process: int | None
    correlation: int | None
    launch: CapturedLaunch


# Indices of the host's calls by process and correlation id.
Calls = dict[tuple[int | None, int | None], list[int]]


def parse_nsys(path: Path, *, limit_s: float | None = None) -> Capture:
    """Return the capture in the SQLite export at ``path``. Ranges in order of their start, launches in the
    order of the host's calls; times in ns on the capture's clock. ``device``: the row of TARGET_INFO_GPU of
    the GPU that ran the launches. Raises TableError in one line for anything but a whole export with the
    tables' known columns, and where reading takes more than ``limit_s`` seconds."""
    with open_sqlite(path, limit_s=limit_s) as file:
        meta = _meta(file)
        problems: list[str] = []
        strings = _strings(file, _NAMES)
        ranges = _ranges(file, strings, problems)
        launches = [*_kernels(file, strings), *_memory_operations(file)]
        unjoined: Counter[str] = Counter()
        if file.has(_GRAPHS) and (whole_graphs := file.count(_GRAPHS, at_most=MAX_LAUNCHES)):
            unjoined["in a CUDA graph that was recorded as one piece"] = whole_graphs
        joined = _join(file, ranges, launches, unjoined, problems)
        device = _device(file, launches, problems)
    return Capture(
        tool="nsys",
        tool_version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema=meta.get("EXPORT_SCHEMA_VERSION"),
        ranges=joined,
        device=device,
        unjoined=dict(unjoined),
        problems=tuple(problems),
    )


def recorded_entries(path: Path, *, limit_s: float | None = None) -> frozenset[str]:
    """Return the ids of entries with a range that ended in the export at ``path``. Raises TableError."""
    with open_sqlite(path, limit_s=limit_s) as file:
        ranges = _ranges(file, _strings(file, _RANGE_NAMES), [])
    return frozenset(r.entry_id for r in ranges if r.end is not None)


def has_cuda_calls(path: Path, *, limit_s: float | None = None) -> bool:
    """Return whether the export at ``path`` holds a call of CUDA. Raises TableError."""
    with open_sqlite(path, limit_s=limit_s) as file:
        calls = file.rows(_CALLS, (), [("start", int)], where="LIMIT 1") if file.has(_CALLS) else iter(())
        return next(calls, None) is not None


def first_complaint(path: Path, *, limit_s: float | None = None) -> str | None:
    """Return the gravest message of nsys in the export at ``path``; None before 2024, which has none. Raises
    TableError."""
    with open_sqlite(path, limit_s=limit_s) as file:
        if not file.has(_DIAGNOSTICS) or "severity" not in file.columns(_DIAGNOSTICS):
            return None
        gravest = "ORDER BY severity DESC LIMIT 1"
        for (text,) in file.rows(_DIAGNOSTICS, (), [("text", str)], where=gravest):
            return None if text is None else one_line(text, limit=200)
    return None


def _meta(file: SqliteFile) -> Texts:
    for table in _META:
        if file.has(table, at_most=10_000):
            rows = file.rows(table, [("name", str)], [("value", str)])
            return {name: one_line(value, limit=200) for name, value in rows if value is not None}
    return {}


def _strings(file: SqliteFile, referring: Sequence[tuple[str, str]]) -> StringsById:
    """Return the strings that columns (table, name) refer to; of hundreds of thousands most belong to other
    things."""
    if not file.has("StringIds"):
        return {}
    users = []
    for table, column in referring:
        if file.has(table) and column in file.columns(table):
            users.append(f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL")
    if not users:
        return {}
    strings: StringsById = {}
    # SQLite sorts the names out; Python would make a string of each of hundreds of thousands.
    wanted = f"WHERE id IN ({' UNION '.join(users)})"
    for key, value in file.rows("StringIds", [("id", int), ("value", str)], where=wanted):
        strings[key] = value
    return strings


def _ranges(file: SqliteFile, strings: StringsById, problems: list[str]) -> list[LabelledRange]:
    if not file.has("NVTX_EVENTS", at_most=MAX_RANGES):
        problems.append("no NVTX events were recorded (table NVTX_EVENTS is absent)")
        return []
    required = [("start", int), ("eventType", int)]
    optional = [("end", int), ("text", str), ("textId", int), ("globalTid", int), ("domainId", int)]
    kinds = f"WHERE eventType IN ({_PUSH_POP}, {_START_END}, {_DOMAIN_CREATED})"
    named = []
    domains: dict[tuple[int, int | None], str] = {}
    for start, kind, end, text, text_id, thread, domain in file.rows(
        "NVTX_EVENTS", required, optional, where=kinds
    ):
        name = text if text is not None else strings.get(text_id)
        if name is None:
            continue
        event = _NvtxEvent(name, start, end, thread or 0, domain or None, paired=kind == _PUSH_POP)
        if kind != _DOMAIN_CREATED:
            named.append(event)
        elif domain is not None:
            domains[event.process, domain] = name
    ranges = []
    odd: Counter[str] = Counter()
    for event in named:
        domain_name = domains.get((event.process, event.domain)) if event.domain else None
        labelled = _labelled(file, event, domain_name, odd)
        if labelled is not None:
            ranges.append(labelled)
    _tell_of_ranges(ranges, odd, problems)
    return sorted(ranges, key=lambda r: r.start)


class _NvtxEvent(NamedTuple):
    """Hold a row of NVTX_EVENTS. ``domain``: None for the default one; ``paired``: pushed and popped."""

    name: str
    start: int
    end: int | None
    thread: int
    domain: int | None
    paired: bool

    @property
    def process(self) -> int:
        return self.thread & _PROCESS


def _labelled(
    file: SqliteFile, event: _NvtxEvent, domain: str | None, odd: Counter[str]
) -> LabelledRange | None:
    """Return the range of ours that an event is; None for any other, those that look like ours counted."""
    label = parse_label(event.name, domain=domain)
    if label is None:
        odd["unknown domain"] += bool(event.domain) and domain is None and looks_like_label(event.name)
        return None
    if not event.paired:
        odd["start/end"] += 1
        return None
    if event.end is not None and event.end < event.start:
        raise TableError(
            f"{file.path}: NVTX_EVENTS: range {event.name!r}: ends at {event.end}, before its start at {event.start}"
        )
    return LabelledRange(*label, event.start, event.end, event.thread)


def _tell_of_ranges(ranges: list[LabelledRange], odd: Counter[str], problems: list[str]) -> None:
    if not ranges:
        problems.append("no NVTX push/pop range of ours was recorded")
    if odd["unknown domain"]:
        problems.append(
            f"{odd['unknown domain']} ranges look like ours, but the name of their domain is missing"
        )
    if odd["start/end"]:
        problems.append(f"{odd['start/end']} start/end ranges bear our labels; only push/pop ranges count")
    endless = [r.entry_id for r in ranges if r.end is None]
    if endless:
        more = ", ..." if len(endless) > 3 else ""
        problems.append(f"{len(endless)} ranges never ended: {', '.join(endless[:3])}{more}")
    tell_of_nested(ranges, problems)


def _kernels(file: SqliteFile, strings: StringsById) -> list[_Tied]:
    if not file.has(_KERNELS, at_most=MAX_LAUNCHES):
        return []
    optional = [
        *_WHERE,
        ("demangledName", int),
        ("shortName", int),
        ("registersPerThread", int),
        ("staticSharedMemory", int),
        ("dynamicSharedMemory", int),
    ]
    kernels = []
    for row in file.rows(_KERNELS, [*_TIMES, *_GRID], optional):
        start, end, gx, gy, gz, bx, by, bz, correlation, process, device, stream, node = row[:13]
        demangled, short, registers, static, dynamic = row[13:]
        name = strings.get(demangled) if demangled is not None else None
        if name is None and short is not None:
            name = strings.get(short)
        if name is None:
            raise TableError(
                f"{file.path}: {_KERNELS}: the name of a kernel (string {demangled}) is not among StringIds"
            )
        shared = None
        if static is not None and dynamic is not None:
            shared = static + dynamic
        launch = CapturedLaunch(
            kind="kernel",
            name=printable_name(name),
            start_ns=start,
            duration_ns=end - start,
            stream=stream,
            device=device,
            grid=(gx, gy, gz),
            block=(bx, by, bz),
            registers_per_thread=registers,
            static_smem_bytes=static,
            dynamic_smem_bytes=dynamic,
            smem_bytes=shared,
            in_graph=bool(node),
        )
        kernels.append(_Tied(process, correlation, launch))
    return kernels


def _memory_operations(file: SqliteFile) -> list[_Tied]:
    directions = dict(enumerate(_DIRECTIONS)) | _enumeration(file, "ENUM_CUDA_MEMCPY_OPER")
    operations = []
    for table, kind in ((_COPIES, "memcpy"), (_FILLS, "memset")):
        if not file.has(table, at_most=MAX_LAUNCHES):
            continue
        for row in file.rows(table, _TIMES, [*_WHERE, ("bytes", int), ("copyKind", int)]):
            start, end, correlation, process, device, stream, node, size, direction = row
            way = "" if direction is None else f" {directions.get(direction, direction)}"
            launch = CapturedLaunch(
                kind=kind,
                name=f"[CUDA {kind}{way}]",
                start_ns=start,
                duration_ns=end - start,
                stream=stream,
                device=device,
                bytes_moved=size,
                in_graph=bool(node),
            )
            operations.append(_Tied(process, correlation, launch))
    return operations


def _enumeration(file: SqliteFile, table: str) -> StringsById:
    """Return the labels of an ENUM table (Host-to-Device, ...), which some releases leave empty."""
    if not file.has(table) or not {"id", "label"} <= file.columns(table):
        return {}
    file.count(table, at_most=10_000)
    return {key: one_line(label, limit=80) for key, label in file.rows(table, [("id", int), ("label", str)])}


def _join(
    file: SqliteFile,
    ranges: list[LabelledRange],
    launches: list[_Tied],
    unjoined: Counter[str],
    problems: list[str],
) -> tuple[EntryRange, ...]:
    calls, of_key = _calls(file, launches)
    places = places_of(calls, ranges)
    processes = {call.thread & _PROCESS for call in calls}  # type: ignore[operator]
    only = next(iter(processes)) if len(processes) == 1 else None
    causes = Causes(calls, places)
    placed: Placed = defaultdict(list)
    for tied in launches:
        process = only if tied.process is None else tied.process
        key = (process, tied.correlation)
        cause = causes.of(key, of_key.get(key, []))
        place, reason = cause.place, cause.reason
        if tied.launch.duration_ns < 0:
            place = None
            reason = "with an end before the start"
        elif place is not None:
            end = ranges[place].end
            if end is None:
                place = None
                reason = "in a range that never ended"
            elif cause.end_ns > end:
                place = None
                reason = "by a call that outlasts its range"
        if place is None:
            unjoined[reason] += 1
        else:
            placed[place].append((cause.start_ns, tied.launch.start_ns, tied.launch))
    if launches and not calls:
        problems.append(
            f"{len(launches)} launches, but no calls of the host (table {_CALLS}) to tie them to ranges"
        )
    return entry_ranges(ranges, placed)


def _calls(file: SqliteFile, launches: list[_Tied]) -> tuple[list[HostCall], Calls]:
    """Return the host's calls that caused launches, and their indices by process and correlation id."""
    calls: list[HostCall] = []
    of_key: Calls = {}
    if not launches or not file.has(_CALLS) or "correlationId" not in file.columns(_CALLS):
        return calls, of_key
    wanted = {tied.correlation for tied in launches}
    file.count(_CALLS, at_most=20 * MAX_LAUNCHES)
    causing = []
    for table in (_KERNELS, _COPIES, _FILLS):
        if file.has(table) and "correlationId" in file.columns(table):
            causing.append(f"SELECT correlationId FROM {table}")
    where = f"WHERE correlationId IN ({' UNION '.join(causing)})"
    columns = [*_TIMES, ("correlationId", int), ("globalTid", int)]
    for start, end, correlation, thread in file.rows(_CALLS, columns, where=where):
        if correlation in wanted:
            of_key.setdefault((thread & _PROCESS, correlation), []).append(len(calls))
            calls.append(HostCall(start, end, thread))
            if len(calls) > MAX_LAUNCHES:
                raise TableError(f"{file.path}: {_CALLS}: more than {MAX_LAUNCHES:,} calls cause launches")
    return calls, of_key


def _device(file: SqliteFile, launches: list[_Tied], problems: list[str]) -> Facts:
    """Return what TARGET_INFO_GPU says of the GPU that ran the launches; of the only one if nothing ran."""
    if not file.has("TARGET_INFO_GPU", at_most=1024):
        return {}
    rows = list(map(_facts, file.dictionaries("TARGET_INFO_GPU")))
    number = busiest_device((tied.launch for tied in launches), problems)
    if len(rows) == 1:
        return rows[0]
    if number is None:
        return {}
    # A device's number is CUDA's, which starts at 0 among the visible GPUs; the row's id is the machine's.
    column = "cuDevice" if any("cuDevice" in row for row in rows) else "id"
    matching = [row for row in rows if row.get(column) == number]
    if len(matching) == 1:
        return matching[0]
    problems.append(f"TARGET_INFO_GPU has {len(rows)} rows and none that is surely device {number}")
    shared = set.intersection(*(set(row.items()) for row in rows)) if rows else set()
    return dict(sorted(shared))


def _facts(row: Fields) -> Facts:
    facts: Facts = {}
    for key, value in row.items():
        if isinstance(value, str):
            facts[key] = one_line(value, limit=200)
        elif isinstance(value, int | float):
            facts[key] = value
    return facts
