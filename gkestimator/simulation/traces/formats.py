"""List the formats of traces: how each is known by its columns.

A new one is one entry here and, where its rows are not requests in order of time, a reader.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from gkestimator.core.errors import DocumentError
from gkestimator.core.records import frozen
from gkestimator.simulation.arrays import Names, Texts
from gkestimator.simulation.options import check_known
from gkestimator.simulation.traces.lines import quoted


@frozen
class Format:
    """Hold how a format is known and read.

    ``columns`` must be there, ``optional`` may, others may not; in any order. ``time``: the column of times,
    as ``clock`` says: ``seconds``, ``instants`` (dates), ``ends`` (seconds at which requests ended; less the
    column ``duration`` they are the arrivals) or ``minutes`` (columns 1, 2, ... are counts per minute).
    ``keys``: columns that together name a request's stream. ``length``: the column of the request's length in
    tokens. ``names``: a key that is the name of a model of the workload. ``source``: where the data and its
    description are.
    """

    name: str
    columns: Names
    optional: Names = ()
    clock: str
    time: str = ""
    duration: str = ""
    keys: Names = ()
    length: str = ""
    names: bool = False
    source: str

    @property
    def shown(self) -> str:
        """Return the columns as a message says them."""
        if self.clock == "minutes":
            more = ",2,..."
        else:
            more = "".join(f"[,{c}]" for c in self.optional)
        return ",".join(self.columns) + more


FORMATS = (
    Format(
        name="csv",
        columns=("time_s",),
        optional=("model", "length"),
        clock="seconds",
        time="time_s",
        keys=("model",),
        length="length",
        names=True,
        source="gkestimator's own: seconds from the start, the model asked, the request's length in tokens",
    ),
    Format(
        name="azure-functions-2019",
        columns=("HashOwner", "HashApp", "HashFunction", "Trigger", "1"),
        clock="minutes",
        keys=("HashOwner", "HashApp", "HashFunction"),
        source="Shahrad et al., Serverless in the Wild, USENIX ATC 2020; Azure/AzurePublicDataset",
    ),
    Format(
        name="azure-functions-2021",
        columns=("app", "func", "end_timestamp", "duration"),
        clock="ends",
        time="end_timestamp",
        duration="duration",
        keys=("app", "func"),
        source="Zhang et al., Faster and Cheaper Serverless Computing on Harvested Resources, SOSP 2021; "
        "Azure/AzurePublicDataset. Seconds are our reading (two weeks end at 1,209,600)",
    ),
    Format(
        name="azure-llm",
        columns=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        clock="instants",
        time="TIMESTAMP",
        length="ContextTokens",
        source="Patel et al., Splitwise, ISCA 2024 (2023's trace); Stojkovic et al., DynamoLLM, HPCA 2025 (2024's); "
        "Azure/AzurePublicDataset",
    ),
    Format(
        name="burstgpt",
        columns=(
            "Timestamp",
            "Model",
            "Request tokens",
            "Response tokens",
            "Total tokens",
            "Log Type",
        ),
        optional=("Session ID", "Elapsed time"),
        clock="seconds",
        time="Timestamp",
        keys=("Model", "Log Type"),
        length="Request tokens",
        source="Wang et al., BurstGPT, 2024; HPMLL/BurstGPT",
    ),
)


def format_named(name: str) -> Format:
    """Return the format called ``name``. Raises UsageError for another."""
    formats = {form.name: form for form in FORMATS}
    check_known("trace format", name, tuple(formats))
    return formats[name]


def detected(path: Path, header: Texts, wanted: Format | None = None) -> Format:
    """Return the format that ``header`` is of. Raises DocumentError: a column twice, missing or unknown."""
    where = f"{path}: line 1"
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if twice:
        raise DocumentError(f"{where}: found column {twice[0]!r} twice, expected each once")
    nearest = wanted or max(FORMATS, key=lambda f: (len(set(f.columns) & set(header)), -len(f.columns)))
    missing = [column for column in nearest.columns if column not in header]
    if wanted is None and len(missing) == len(nearest.columns):
        known = "; or ".join(form.shown for form in FORMATS)
        raise DocumentError(f"{where}: found columns {_listed(header)}, expected {known}")
    if missing:
        raise DocumentError(
            f"{where}: column {missing[0]!r} of {nearest.name} is missing, found {_listed(header)}, expected "
            f"{nearest.shown}"
        )
    allowed = {*nearest.columns, *nearest.optional}
    if nearest.clock == "minutes":
        allowed.update(minutes(path, header))
    for column in header:
        if column not in allowed:
            raise DocumentError(
                f"{where}: column {quoted(column)} is not one of {nearest.name}, expected {nearest.shown}"
            )
    return nearest


def minutes(path: Path, header: Texts) -> list[str]:
    """Return the columns that are minutes: 1, 2, ... without a gap. Raises DocumentError else."""
    numbers = sorted(int(c) for c in header if c.isascii() and c.isdigit() and len(c) <= 4 and c[0] != "0")
    for expected, number in enumerate(numbers, 1):
        if number != expected:
            raise DocumentError(f"{path}: line 1: minute {expected} is missing before minute {number}")
    return [str(number) for number in numbers]


def _listed(header: Texts) -> str:
    text = ",".join(header)
    if len(text) <= 120:
        return text
    return text[:117] + "..."
