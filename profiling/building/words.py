"""What was built, in words: the lines that commands print and the report begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gkestimator.profiling.building.build import BuildResult
from gkestimator.profiling.building.merging import DatasetMerge
from gkestimator.profiling.building.provenance import dataset_counts
from gkestimator.profiling.building.sequences import USHER_PCT, LoweringTable, shares_of
from gkestimator.tables import KernelMeasurement

_HEAD = ("", "1 kernel", "2", "3", "4 or more")


def kernels_table(table: LoweringTable) -> str:
    """How many kernels operators became, overall and by family, beside USHER's, as aligned text."""
    rows: list[Sequence[str]] = [(*_HEAD, "operators")]
    rows.append(("all operators", *_percents(table.counts), f"{_calls(table.counts):,}"))
    rows += [(family, *_percents(c), f"{_calls(c):,}") for family, c in table.by_family.items()]
    rows.append(("USHER (its own set, TensorFlow and PyTorch)", *(f"{p:.0f} %" for p in USHER_PCT), ""))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _calls(counts: Mapping[int, int]) -> int:
    return sum(counts.values())


def _percents(counts: Mapping[int, int]) -> list[str]:
    return [f"{p:.0f} %" if p == 0 or p >= 1 else "< 1 %" for p in shares_of(counts)]


def summary_words(result: BuildResult) -> str:
    """One line: operators, launches, GPUs, qualities."""
    return _counted(result.rows)


def _counted(rows: Sequence[KernelMeasurement]) -> str:
    counts = dataset_counts(rows)
    quality = ", ".join(f"{n:,} {q}" for q, n in counts["quality"].items())
    gpus = ", ".join(f"{name} ({n:,})" for name, n in counts["gpus"].items())
    return (
        f"{counts['operators']:,} operators in {counts['rows']:,} launches: {quality}; {gpus}; "
        f"{counts['with_counters']:,} launches with counters"
    )


def build_words(result: BuildResult) -> list[str]:
    """Notes and checks, for people."""
    unstable = [o for o in result.table.operators if o.unstable]
    lines = [f"check: {c.line()}" for c in result.checks]
    lines.append(
        f"check: operators of one signature and class of shapes that became different kernels: {len(unstable):,} of "
        f"{len(result.table.operators):,} signatures"
        + (f" (first: {unstable[0].op_type} {unstable[0].shapes_class})" if unstable else "")
    )
    if result.varying:
        first, why = next(iter(result.varying.items()))
        lines.append(
            f"check: operators whose repeats launched different kernels: {len(result.varying):,} ({first}: {why}): "
            f"left out"
        )
    return [*result.notes, *lines]


def merge_words(result: DatasetMerge) -> str:
    """One line on a merged dataset."""
    return _counted(result.rows)
