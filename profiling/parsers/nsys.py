"""Nsight Systems: the SQLite export (schemas 2.x and 3.x, releases 2022 to 2026) as a capture.

A kernel, copy or fill is tied to the host's call that caused it by process and correlation id, and the call to the
innermost range of ours that holds it on the same thread, as NVIDIA's own reports do. Tables and columns come and go
with the release, and a lazy export leaves empty tables out, so nothing is taken for granted but what is read.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from gkestimator.core.errors import TableError, one_line
from gkestimator.profiling.captures import Capture, CapturedLaunch, EntryRange
from gkestimator.profiling.parsers.labels import looks_like_label, parse_label, printable_name
from gkestimator.profiling.parsers.spans import innermost, overlapping
from gkestimator.profiling.parsers.sqlite_file import SqliteFile, open_sqlite

LIMIT_S = 300.0
MAX_LAUNCHES = 5_000_000
MAX_RANGES = 2_000_000
MAX_TEXT_IN_ALL = 256 * 2**20

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_META = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""2023 and later; 2022 and before."""
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
"""CUPTI's kinds of copies, as the exports label them."""
_PUSH_POP = 59
_START_END = 60
_DOMAIN_CREATED = 75
_PROCESS = ~0xFFFFFF
"""Of a globalTid: machine and process without the thread, which is the globalPid."""

_TIMES = (("start", int), ("end", int))
_WHERE = (
    ("correlationId", int),
    ("globalPid", int),
    ("deviceId", int),
    ("streamId", int),
    ("graphNodeId", int),
)
_GRID = tuple((f"{what}{axis}", int) for what in ("grid", "block") for axis in "XYZ")


@dataclass(frozen=True, slots=True)
class _Range:
    entry_id: str
    repeats: int
    start: int
    end: int | None
    thread: int


@dataclass(frozen=True, slots=True)
class _Found:
    """A launch, and what ties it to its call."""

    process: int | None
    correlation: int | None
    launch: CapturedLaunch


def parse_nsys(path: Path, *, limit_s: float = LIMIT_S) -> Capture:
    """The capture in the SQLite export at ``path``. Ranges in order of their start, launches in the order of the
    host's calls; times in ns on the capture's clock. ``device``: the row of TARGET_INFO_GPU of the GPU that ran the
    launches. Raises TableError in one line for anything but a whole export with the tables' known columns, and where
    reading takes more than ``limit_s`` seconds."""
    with open_sqlite(path, limit_s=limit_s) as file:
        meta = _meta(file)
        problems: list[str] = []
        strings = _strings(file)
        ranges = _ranges(file, strings, problems)
        found = [*_kernels(file, strings), *_memory_operations(file)]
        if file.has(_GRAPHS):
            whole_graphs = file.count(_GRAPHS, at_most=MAX_LAUNCHES)
        else:
            whole_graphs = 0
        unjoined: Counter[str] = Counter()
        if whole_graphs:
            unjoined["in a CUDA graph that was recorded as one piece"] = whole_graphs
        joined = _join(file, ranges, found, unjoined, problems)
        device = _device(file, found, problems)
    return Capture(
        tool="nsys",
        tool_version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema=meta.get("EXPORT_SCHEMA_VERSION"),
        ranges=joined,
        device=device,
        unjoined=dict(unjoined),
        problems=tuple(problems),
    )


def _meta(file: SqliteFile) -> dict[str, str]:
    for table in _META:
        if file.has(table):
            file.count(table, at_most=10_000)
            found = file.rows(table, [("name", str)], [("value", str)])
            return {name: one_line(value, limit=200) for name, value in found if value is not None}
    return {}


def _strings(file: SqliteFile) -> dict[int, str]:
    """The strings that kernels and NVTX events refer to; of hundreds of thousands most belong to other things."""
    if not file.has("StringIds"):
        return {}
    users = [
        f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL"
        for table, column in ((_KERNELS, "demangledName"), (_KERNELS, "shortName"), ("NVTX_EVENTS", "textId"))
        if file.has(table) and column in file.columns(table)
    ]
    if not users:
        return {}
    strings: dict[int, str] = {}
    length = 0
    for key, value in file.rows(
        "StringIds", [("id", int), ("value", str)], where=f"WHERE id IN ({' UNION '.join(users)})"
    ):
        length += len(value)
        if length > MAX_TEXT_IN_ALL:
            raise TableError(f"{file.path}: StringIds: more than {MAX_TEXT_IN_ALL:,} characters of names")
        strings[key] = value
    return strings


def _ranges(file: SqliteFile, strings: dict[int, str], problems: list[str]) -> list[_Range]:
    if not file.has("NVTX_EVENTS"):
        problems.append("no NVTX events were recorded (table NVTX_EVENTS is absent)")
        return []
    file.count("NVTX_EVENTS", at_most=MAX_RANGES)
    required = [("start", int), ("eventType", int)]
    optional = [("end", int), ("text", str), ("textId", int), ("globalTid", int), ("domainId", int)]
    domains: dict[tuple[int, int], str] = {}
    kinds = f"WHERE eventType IN ({_PUSH_POP}, {_START_END}, {_DOMAIN_CREATED})"
    events = list(file.rows("NVTX_EVENTS", required, optional, where=kinds))
    for _, kind, _, text, text_id, thread, domain in events:
        if kind == _DOMAIN_CREATED and domain is not None:
            name = text if text is not None else strings.get(text_id)
            if name is not None:
                domains[((thread or 0) & _PROCESS, domain)] = name
    ranges = []
    seen: Counter[str] = Counter()
    for start, kind, end, text, text_id, thread, domain in events:
        name = text if text is not None else strings.get(text_id)
        if kind == _DOMAIN_CREATED or name is None:
            continue
        if domain:
            domain_name = domains.get(((thread or 0) & _PROCESS, domain))
        else:
            domain_name = None
        label = parse_label(name, domain=domain_name)
        if label is None:
            seen["unknown domain"] += bool(domain) and domain_name is None and looks_like_label(name)
        elif kind == _START_END:
            seen["start/end"] += 1
        elif end is not None and end < start:
            raise TableError(
                f"{file.path}: NVTX_EVENTS: range {name!r}: ends at {end}, before its start at {start}"
            )
        else:
            seen["no end"] += end is None
            ranges.append(_Range(label[0], label[1], start, end, thread or 0))
    _tell_of_ranges(ranges, seen, problems)
    return sorted(ranges, key=lambda r: r.start)


def _tell_of_ranges(ranges: list[_Range], seen: Counter[str], problems: list[str]) -> None:
    if not ranges:
        problems.append("no NVTX push/pop range of ours was recorded")
    if seen["unknown domain"]:
        problems.append(
            f"{seen['unknown domain']} ranges look like ours, but the name of their domain is missing"
        )
    if seen["start/end"]:
        problems.append(f"{seen['start/end']} start/end ranges bear our labels; only push/pop ranges count")
    if seen["no end"]:
        ids = [r.entry_id for r in ranges if r.end is None]
        problems.append(
            f"{seen['no end']} ranges never ended: {', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''}"
        )
    threads: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for r in ranges:
        if r.end is not None:
            threads[r.thread].append((r.start, r.end))
    nested = sum(overlapping(spans) for spans in threads.values())
    if nested:
        problems.append(f"{nested} ranges of ours lie within others; a launch counts for the innermost")


def _kernels(file: SqliteFile, strings: dict[int, str]) -> list[_Found]:
    if not file.has(_KERNELS):
        return []
    file.count(_KERNELS, at_most=MAX_LAUNCHES)
    optional = [
        *_WHERE,
        ("demangledName", int),
        ("shortName", int),
        ("registersPerThread", int),
        ("staticSharedMemory", int),
        ("dynamicSharedMemory", int),
    ]
    found = []
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
            smem_bytes=static + dynamic if static is not None and dynamic is not None else None,
            in_graph=bool(node),
        )
        found.append(_Found(process, correlation, launch))
    return found


def _memory_operations(file: SqliteFile) -> list[_Found]:
    directions = dict(enumerate(_DIRECTIONS)) | _enumeration(file, "ENUM_CUDA_MEMCPY_OPER")
    found = []
    for table, kind in ((_COPIES, "memcpy"), (_FILLS, "memset")):
        if not file.has(table):
            continue
        file.count(table, at_most=MAX_LAUNCHES)
        for row in file.rows(table, _TIMES, [*_WHERE, ("bytes", int), ("copyKind", int)]):
            start, end, correlation, process, device, stream, node, size, direction = row
            if direction is None:
                name = f"[CUDA {kind}]"
            else:
                name = f"[CUDA {kind} {directions.get(direction, direction)}]"
            launch = CapturedLaunch(
                kind=kind,
                name=name,
                start_ns=start,
                duration_ns=end - start,
                stream=stream,
                device=device,
                bytes_moved=size,
                in_graph=bool(node),
            )
            found.append(_Found(process, correlation, launch))
    return found


def _enumeration(file: SqliteFile, table: str) -> dict[int, str]:
    """Labels of an ENUM table (Host-to-Device, ...), which some releases leave empty."""
    if not file.has(table) or not {"id", "label"} <= file.columns(table):
        return {}
    file.count(table, at_most=10_000)
    return {key: one_line(label, limit=80) for key, label in file.rows(table, [("id", int), ("label", str)])}


def _join(
    file: SqliteFile, ranges: list[_Range], found: list[_Found], unjoined: Counter[str], problems: list[str]
) -> tuple[EntryRange, ...]:
    calls, of_key = _calls(file, found)
    range_of_call = _range_of_call(ranges, calls)
    processes = {thread & _PROCESS for _, _, thread in calls}
    launches: dict[int, list[tuple[int, int, CapturedLaunch]]] = defaultdict(list)
    for f in found:
        if f.process is not None:
            process = f.process
        elif len(processes) == 1:
            process = next(iter(processes))
        else:
            process = None
        candidates = of_key.get((process, f.correlation), [])
        reason, where = _place(f, candidates, range_of_call, ranges, calls)
        if where is None:
            unjoined[reason] += 1
        else:
            call_start = min(calls[c][0] for c in candidates)
            launches[where].append((call_start, f.launch.start_ns, f.launch))
    if found and not calls:
        problems.append(
            f"{len(found)} launches, but no calls of the host (table {_CALLS}) to tie them to ranges"
        )
    return tuple(
        EntryRange(
            entry_id=r.entry_id,
            repeats=r.repeats,
            start_ns=r.start,
            end_ns=r.end,
            launches=tuple(each[2] for each in sorted(launches[i], key=lambda each: each[:2])),
        )
        for i, r in enumerate(ranges)
        if r.end is not None
    )


def _calls(
    file: SqliteFile, found: list[_Found]
) -> tuple[list[tuple[int, int, int]], dict[tuple[int | None, int | None], list[int]]]:
    """(start, end, globalTid) of the host's calls that caused launches, and their indices by process and
    correlation id."""
    calls: list[tuple[int, int, int]] = []
    of_key: dict[tuple[int | None, int | None], list[int]] = {}
    if not found or not file.has(_CALLS) or "correlationId" not in file.columns(_CALLS):
        return calls, of_key
    wanted = {f.correlation for f in found}
    file.count(_CALLS, at_most=20 * MAX_LAUNCHES)
    causing = " UNION ".join(
        f"SELECT correlationId FROM {table}"
        for table in (_KERNELS, _COPIES, _FILLS)
        if file.has(table) and "correlationId" in file.columns(table)
    )
    where = f"WHERE correlationId IN ({causing})"
    columns = [*_TIMES, ("correlationId", int), ("globalTid", int)]
    for start, end, correlation, thread in file.rows(_CALLS, columns, where=where):
        if correlation in wanted:
            of_key.setdefault((thread & _PROCESS, correlation), []).append(len(calls))
            calls.append((start, end, thread))
            if len(calls) > MAX_LAUNCHES:
                raise TableError(f"{file.path}: {_CALLS}: more than {MAX_LAUNCHES:,} calls cause launches")
    return calls, of_key


def _range_of_call(ranges: list[_Range], calls: list[tuple[int, int, int]]) -> list[int | None]:
    """Index of the innermost range that holds the start of each call. A range without an end goes on for ever: what
    was launched in it must not count for the one around it."""
    for_ever = max(chain((c[1] for c in calls), (r.start for r in ranges)), default=0)
    threads: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for i, r in enumerate(ranges):
        threads[r.thread][0].append(i)
    for i, call in enumerate(calls):
        threads[call[2]][1].append(i)
    answer: list[int | None] = [None] * len(calls)
    for of_thread, called in threads.values():
        spans = [(ranges[i].start, e if (e := ranges[i].end) is not None else for_ever) for i in of_thread]
        for index, span in zip(called, innermost(spans, [calls[c][:2] for c in called]), strict=True):
            answer[index] = None if span is None else of_thread[span]
    return answer


def _place(
    found: _Found,
    candidates: list[int],
    range_of_call: list[int | None],
    ranges: list[_Range],
    calls: list[tuple[int, int, int]],
) -> tuple[str, int | None]:
    """The range of a launch, or None and the reason why there is none."""
    if found.launch.duration_ns < 0:
        return "with an end before the start", None
    if not candidates:
        return "without the host's call that caused it", None
    places = {range_of_call[c] for c in candidates}
    if len(places) > 1:
        return "with several calls that may have caused it", None
    place = places.pop()
    if place is None:
        return "outside the ranges of entries", None
    end = ranges[place].end
    if end is None:
        return "in a range that never ended", None
    if any(calls[c][1] > end for c in candidates):
        return "by a call that outlasts its range", None
    return "", place


def _device(file: SqliteFile, found: list[_Found], problems: list[str]) -> dict[str, str | int | float]:
    """What TARGET_INFO_GPU says of the GPU that ran the launches; of the only one if nothing ran."""
    if not file.has("TARGET_INFO_GPU"):
        return {}
    file.count("TARGET_INFO_GPU", at_most=1024)
    rows = [_facts(row) for row in file.dictionaries("TARGET_INFO_GPU")]
    used = Counter(f.launch.device for f in found if f.launch.device is not None)
    if not used:
        if len(rows) == 1:
            return rows[0]
        return {}
    if len(used) > 1:
        problems.append(
            f"launches on {len(used)} GPUs ({', '.join(map(str, sorted(used)))}); facts are the busiest's"
        )
    number = used.most_common(1)[0][0]
    # A device's number is CUDA's, which starts at 0 among the visible GPUs; the row's id is the machine's.
    for column in ("cuDevice", "id"):
        matching = [row for row in rows if row.get(column) == number]
        if len(matching) == 1 and (
            len(rows) == 1 or column == "cuDevice" or all("cuDevice" not in r for r in rows)
        ):
            return matching[0]
    if len(rows) == 1:
        return rows[0]
    problems.append(f"TARGET_INFO_GPU has {len(rows)} rows and none that is surely device {number}")
    if rows:
        shared = set(rows[0].items()).intersection(*(row.items() for row in rows[1:]))
    else:
        shared = set()
    return dict(sorted(shared))


def _facts(row: dict[str, Any]) -> dict[str, str | int | float]:
    return {
        key: one_line(value, limit=200) if isinstance(value, str) else value
        for key, value in row.items()
        if isinstance(value, str | int | float)
    }
