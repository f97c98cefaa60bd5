"""Hold every limit on what a file or a number from a stranger may cost: its name, its value and what it protects.

A limit is checked before the memory or the time is taken. Its message says its name, and ``GKEST_LIMITS`` raises it:
``GKEST_LIMITS=edges=5000000,rows=4e6``. Run as a module, this file prints docs/reference/input-limits.md.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import NamedTuple

from gkestimator.core.errors import UsageError

VARIABLE = "GKEST_LIMITS"
_BYTES_PER_LIMIT = 10_000_000


class Limit(NamedTuple):
    """Hold a limit: its ``value`` in ``unit``, and what it ``protects`` from."""

    name: str
    value: int
    unit: str
    protects: str


_ALL: tuple[Limit, ...] = (
    # Models.
    Limit(
        name="input_value_bytes",
        value=1 << 20,
        unit="bytes",
        protects="values of inputs that are given as a text or a file of NumPy",
    ),
    Limit(
        name="file_bytes",
        value=64 << 30,
        unit="bytes of a model file",
        protects="walking a file for hours; weight values are skipped, so this is no memory",
    ),
    Limit(
        name="graph_bytes",
        value=512 << 20,
        unit="bytes of a model without its weight values",
        protects="memory for what is parsed",
    ),
    Limit(
        name="wire_fields",
        value=4_000_000,
        unit="protobuf fields",
        protects="time: fields are walked one by one before protobuf sees them",
    ),
    Limit(
        name="message_bytes",
        value=400 << 20,
        unit="bytes of protobuf objects",
        protects="memory: an empty attribute is 2 bytes in the file and 200 in memory",
    ),
    Limit(
        name="tensors",
        value=500_000,
        unit="initializers, inputs and outputs of a graph",
        protects="memory of their types and names",
    ),
    Limit(
        name="nodes",
        value=200_000,
        unit="nodes once functions are inlined",
        protects="time and memory, both of which grow with nodes",
    ),
    Limit(
        name="expanded_nodes",
        value=20_000,
        unit="nodes once functions are inlined and loops unrolled",
        protects="kilobytes that inline or unroll into minutes (files of more nodes may make eight times as many)",
    ),
    Limit(
        name="edges",
        value=1_000_000,
        unit="edges",
        protects="time: nodes that read all nodes before them (inputs and outputs, loops unrolled)",
    ),
    Limit(
        name="attribute_items",
        value=4_000_000,
        unit="attributes and items of their lists",
        protects="memory: an item is 1 byte in the file and 40 in memory",
    ),
    Limit(
        name="name_characters",
        value=100_000_000,
        unit="characters of names",
        protects="memory: names inside functions begin with the names around them",
    ),
    Limit(
        name="operators",
        value=200_000,
        unit="operators once loops are unrolled",
        protects="time and memory of lowering and of rows",
    ),
    Limit(
        name="steps",
        value=250_000,
        unit="nodes walked once loops are unrolled",
        protects="time of inferring shapes",
    ),
    Limit(
        name="expanded_steps",
        value=100_000,
        unit="nodes walked in small files once loops are unrolled",
        protects="kilobytes that unroll into minutes",
    ),
    Limit(
        name="unrolled_trips",
        value=2_048,
        unit="trips of a loop whose shapes change from trip to trip",
        protects="time: such trips are inferred one by one",
    ),
    Limit(
        name="trip_count",
        value=10_000_000,
        unit="trips of a loop",
        protects="figures that no run would reach",
    ),
    Limit(
        name="sequence_tensors",
        value=65_536,
        unit="tensors of a sequence",
        protects="memory: each tensor of a sequence is an object",
    ),
    Limit(
        name="batch_size",
        value=1_000_000,
        unit="samples of a batch",
        protects="figures that no GPU would reach",
    ),
    Limit(
        name="kernels",
        value=250_000,
        unit="kernel launches of a model",
        protects="time and memory: an operator of many inputs is as many kernels",
    ),
    # Tables and datasets.
    Limit(
        "rows",
        200_000,
        "rows",
        "Parquet of few bytes and many equal rows; a report of more takes over 2 GB",
    ),
    Limit("log_rows", 1_000_000, "requests of a log", "Parquet logs of few bytes and many equal rows"),
    Limit("table_bytes", 512 << 20, "bytes", "tables too large"),
    Limit(
        name="unpacked_bytes",
        value=256 << 20,
        unit="bytes of unpacked pages",
        protects="Parquet of kilobytes whose pages unpack to gigabytes, of which readers hold five copies",
    ),
    Limit("pages", 500_000, "pages", "Parquet whose columns share their pages, which are walked one by one"),
    Limit(
        "cell_characters", 1 << 20, "characters of a cell", "texts, which Parquet stores once for many rows"
    ),
    Limit("line_characters", 4 << 20, "characters of a line", "CSV files that are one line"),
    # Documents: YAML, TOML and JSON.
    Limit("json_depth", 64, "levels", "JSON that nests, whose readers recurse"),
    Limit("yaml_items", 200_000, "items", "YAML of many small values, which takes seconds"),
    # Profiler reports and traces.
    Limit(
        "trace_characters",
        1 << 29,
        "characters of a trace, unpacked",
        "minutes, and gzip that grows a thousandfold",
    ),
    Limit("trace_events", 2_000_000, "events of a trace", "memory: an event of interest takes a kilobyte"),
    Limit("trace_words", 200_000, "words nan and inf in a trace", "minutes: each is mended by itself"),
    Limit(
        "report_seconds",
        25,
        "seconds for 10 MB of a report",
        "files that say the same page or the same call without end",
    ),
    Limit(
        "report_characters",
        256 << 20,
        "characters of texts in a report",
        "exports of nsys that store a text once for all rows",
    ),
    # Simulation and placement.
    Limit(
        "requests", 10_000_000, "requests of a simulation", "minutes, and memory where they queue without end"
    ),
    Limit(
        "rate_changes",
        100_000_000,
        "changes of rate of a simulation",
        "minutes: bursts of microseconds are drawn one by one for as long as is simulated",
    ),
    Limit(
        name="under_way_bytes",
        value=768 << 20,
        unit="bytes of requests under way",
        protects="memory: where more come than are served, all that wait are held",
    ),
    Limit(
        name="speeds",
        value=50_000_000,
        unit="changes of a batch's speed",
        protects="minutes: with interference a start changes the speeds of all that run on its GPU",
    ),
    Limit(
        "looks",
        1_000_000,
        "looks at the rates",
        "hours: where a policy runs again, rates are looked at for as long as is simulated",
    ),
    Limit(
        "instances",
        10_000,
        "GPUs' worth of requests",
        "minutes, and memory: each instance is placed by itself",
    ),
    # Merging.
    Limit(
        "check_seconds", 20, "seconds for 10 MB of models and 4 inputs", "merged models that run without end"
    ),
    Limit(
        "check_bytes", 1500 << 20, "bytes beyond those of the models", "merged models that take all memory"
    ),
    Limit("check_input_bytes", 256 << 20, "bytes of random inputs", "inputs of gigabytes, drawn for a check"),
)
LIMITS: Mapping[str, Limit] = {limit.name: limit for limit in _ALL}


def allowed(name: str) -> int:
    """Return the value of the limit ``name``, in its unit. Raises UsageError where ``GKEST_LIMITS`` is malformed."""
    return _raised(os.environ.get(VARIABLE, "")).get(name, LIMITS[name].value)


def exceeded(name: str, amount: int | str) -> str:
    """Return the end of a message about ``amount`` being over the limit ``name``, and how it is raised."""
    limit = LIMITS[name]
    shown = f"{amount:,}" if isinstance(amount, int) else amount
    return f"found {shown} {limit.unit}, expected at most {allowed(name):,} ({remedy(name)})"


def remedy(name: str) -> str:
    """Return how the limit ``name`` is raised, in words."""
    return f"{VARIABLE}={name}=NUMBER raises this limit"


def seconds_for(name: str, size_bytes: int) -> float:
    """Return the seconds that the limit ``name``, which is for 10 MB, allows for ``size_bytes``: at least its own."""
    return allowed(name) * max(1.0, size_bytes / _BYTES_PER_LIMIT)


def check_amount(what: str, name: str, amount: float) -> None:
    """Raise UsageError about ``what`` where ``amount``, which may be an expectation, is over the limit ``name``."""
    if amount > allowed(name):
        raise UsageError(f"{what}: {exceeded(name, f'{amount:,.4g}')}")


@functools.cache
def _raised(text: str) -> Mapping[str, int]:
    values: dict[str, int] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = entry.partition("=")
        if name not in LIMITS:
            raise UsageError(f"{VARIABLE}: found {name!r}, expected names of docs/reference/input-limits.md")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not 1 <= value <= 1e18:
            raise UsageError(f"{VARIABLE}: {name}: found {number!r}, expected a number from 1 to 1e18")
        values[name] = int(value)
    return values


_INTRODUCTION = """# Limits on input

A file of 100 bytes can ask for gigabytes. gkestimator counts before it takes memory or time, and refuses in one line:

```
gkest: error: dense.onnx: EXAMPLE
```

`GKEST_LIMITS=edges=5000000,rows=4e6 gkest estimate ...` raises two of them for one command.
Raise a limit only for files that you trust: time and memory grow with it.

| limit | value | of | protects from |
|---|---|---|---|
"""


if __name__ == "__main__":
    print(_INTRODUCTION.replace("EXAMPLE", exceeded("edges", 4_498_500)), end="")
    for each in _ALL:
        print(f"| `{each.name}` | {each.value:,} | {each.unit} | {each.protects} |")
