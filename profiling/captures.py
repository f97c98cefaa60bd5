"""What a parser makes of a profiler's file: launches by entry, whichever tool saw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from gkestimator.core.records import frozen
from gkestimator.profiling.type_names import CountByName, Names, NumberByName

RangesByEntry: TypeAlias = "dict[str, list[EntryRange]]"

Dim3: TypeAlias = "tuple[int, int, int]"

NVTX_DOMAIN = "gkestimator"
"""Every range of ours is a push/pop range in this NVTX domain; its text is ``<entry id>#<repeats>``."""
LAUNCH_KINDS = ("kernel", "memcpy", "memset", "host")


@frozen
class CapturedLaunch:
    """Hold one thing that ran, in the order of the host's launches.

    ``kind``: one of ``LAUNCH_KINDS`` (``host``: an operator of a CPU executor, for which there is no launch geometry).
    ``start_ns`` and ``duration_ns`` on the device's clock; ``grid`` and ``block`` are (x, y, z). ``counters`` maps ncu
    metric names to their values in base units (bytes, ns, percent). ``smem_bytes``: static and dynamic shared memory
    together, also where the tool tells only the sum. What the tool does not tell is None.
    """

    kind: str
    name: str
    start_ns: int
    duration_ns: int
    stream: int | None = None
    device: int | None = None
    grid: Dim3 | None = None
    block: Dim3 | None = None
    registers_per_thread: int | None = None
    static_smem_bytes: int | None = None
    dynamic_smem_bytes: int | None = None
    smem_bytes: int | None = None
    bytes_moved: int | None = None
    in_graph: bool = False
    counters: NumberByName | None = None


@frozen
class EntryRange:
    """Hold one NVTX range of an entry: ``repeats`` calls, and the launches that the host issued inside, in order."""

    entry_id: str
    repeats: int
    start_ns: int
    end_ns: int
    launches: tuple[CapturedLaunch, ...]


@frozen
class Capture:
    """Hold one parsed file. ``tool``: nsys, ncu, kineto or executor. ``device``: what the tool says of the GPU, by the
    tool's own names. ``unjoined``: launches of which it cannot be told to which entry they belong, counted by reason.
    ``problems``: one line each, for people."""

    tool: str
    tool_version: str | None
    schema: str | None
    ranges: tuple[EntryRange, ...]
    device: Mapping[str, str | int | float] = field(default_factory=dict)
    unjoined: CountByName = field(default_factory=dict)
    problems: Names = ()
