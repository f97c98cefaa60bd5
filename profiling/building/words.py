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
    """Say how many kernels operators became, overall and by family, beside USHER's, as aligned text."""
    rows: list[Sequence[str]] = [(*_HEAD, "operators")]
    for name, counts in (("all operators", table.counts), *table.by_family.items()):
        rows.append((name, *_percents(counts), f"{sum(counts.values()):,}"))
    usher = [f"{p:.0f} %" for p in USHER_PCT]
    rows.append(("USHER (its own set, TensorFlow and PyTorch)", *usher, ""))
    columns = []
    for number, cells in enumerate(zip(*rows, strict=True)):
        width = max(map(len, cells))
        columns.append([cell.rjust(width) if number else cell.ljust(width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _percents(counts: Mapping[int, int]) -> list[str]:
    return [f"{p:.0f} %" if p == 0 or p >= 1 else "< 1 %" for p in shares_of(counts)]


def summary_words(result: BuildResult) -> str:
    """Say in one line: operators, launches, GPUs, qualities."""
    return _counted(result.rows)


def _counted(rows: Sequence[KernelMeasurement]) -> str:
    counts = dataset_counts(rows)
    quality = ", ".join(f"{count:,} {name}" for name, count in counts["quality"].items())
    gpus = ", ".join(f"{name} ({count:,})" for name, count in counts["gpus"].items())
    return (
        f"{counts['operators']:,} operators in {counts['rows']:,} launches: {quality}; {gpus}; "
        f"{counts['with_counters']:,} launches with counters"
    )


def build_words(result: BuildResult) -> list[str]:
    """Return notes and checks, for people."""
    unstable = [o for o in result.table.operators if o.unstable]
    lines = [f"check: {c.line()}" for c in result.checks]
    first_one = f" (first: {unstable[0].op_type} {unstable[0].shapes_class})" if unstable else ""
    lines.append(
        f"check: operators of one signature and class of shapes that became different kernels: {len(unstable):,} of "
        f"{len(result.table.operators):,} signatures{first_one}"
    )
    if result.varying:
        first, why = next(iter(result.varying.items()))
        lines.append(
            f"check: operators whose repeats launched different kernels: {len(result.varying):,} ({first}: {why}): "
            f"left out"
        )
    return [*result.notes, *lines]


def merge_words(result: DatasetMerge) -> str:
    """Say in one line what a merged dataset holds."""
    return _counted(result.rows)
