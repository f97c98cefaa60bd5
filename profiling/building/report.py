"""A build as a folder: ``report.md``, ``operators.csv`` and pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gkestimator.core.escaping import printable, utf8
from gkestimator.profiling.building.build import BuildResult
from gkestimator.profiling.building.choosing import entries_of, longest_of
from gkestimator.profiling.building.pictures import pictures
from gkestimator.profiling.building.sequences import USHER_PCT, shares_of
from gkestimator.profiling.building.words import build_words, summary_words
from gkestimator.tables.csv_text import csv_text
from gkestimator.tables.together import write_folder

_MOST_LINES = 200
_MOST_UNSTABLE = 40


def write_report(result: BuildResult, folder: Path | str) -> tuple[list[Path], list[str]]:
    """Write the report into ``folder``, which is made where it is missing; return the files written and lines worth
    saying.

    Without matplotlib there are no pictures, and a line says how to get them. Raises OutputError.
    """
    drawn, notes = pictures(result)
    files = {
        "report.md": utf8(_markdown(result, [(name, caption) for name, caption, _ in drawn])),
        "operators.csv": _operators(result),
        **{name: data for name, _, data in drawn},
    }
    return write_folder(Path(folder), files), notes


def _markdown(result: BuildResult, drawn: Sequence[tuple[str, str]]) -> str:
    lines = [f"# {printable(result.files[0].name)}", "", printable(summary_words(result)), ""]
    lines += [f"![{caption}]({name})\n" for name, caption in drawn]
    lines += ["## Kernels per operator", "", *_kernels(result), ""]
    lines += ["## Checks and notes", "", *(f"- {printable(line)}" for line in build_words(result)), ""]
    lines += ["## By family", "", *_families(result), ""]
    lines += _reasons(result)
    lines += _unstable(result)
    if result.problems:
        lines += ["## What could not be used", ""]
        lines += [f"- {printable(p)}" for p in result.problems[:_MOST_LINES]]
        if len(result.problems) > _MOST_LINES:
            lines.append(f"- and {len(result.problems) - _MOST_LINES:,} more")
        lines.append("")
    lines += ["## Where it was measured", "", *_sources(result), ""]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    ruler = ["---"] + ["---:"] * (len(head) - 1)
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(ruler)}|"]
    for row in rows:
        cells = [printable(str(cell)).replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _kernels(result: BuildResult) -> list[str]:
    table = result.table
    rows: list[list[object]] = []
    for name, counts in (("all operators", table.counts), *table.by_family.items()):
        shares = [f"{p:.1f} %" for p in shares_of(counts)]
        rows.append([name, *shares, sum(counts.values())])
    rows.append(["USHER (its own operators, TensorFlow and PyTorch)", *(f"{p:.0f} %" for p in USHER_PCT), ""])
    return _table(["", "1", "2", "3", "4 or more", "operators"], rows)


def _families(result: BuildResult) -> list[str]:
    ratios: dict[tuple[str, str, str], list[float | None]] = {}
    for key, group in entries_of(result.rows).items():
        longest = longest_of(group)
        description = result.descriptions.get(key)
        floor = None if description is None else description.roofline_us
        ratio = longest.entry_us / floor if floor and longest.entry_us else None
        ratios.setdefault((longest.gpu, longest.family, longest.dtype), []).append(ratio)
    rows = []
    for family, values in sorted(ratios.items()):
        known = sorted(value for value in values if value is not None)
        middle = f"{known[len(known) // 2]:.2f}" if known else ""
        rows.append([*family, len(values), middle])
    return _table(["GPU", "family", "dtype", "operators", "median of time / roofline"], rows)


def _reasons(result: BuildResult) -> list[str]:
    measured = {r.entry_id for r in result.rows}
    reasons: Counter[str] = Counter()
    for contents in result.contents:
        last = {n.entry_id: n for n in contents.not_measured}
        reasons.update(f"{n.status}: {n.reason}" for n in last.values() if n.entry_id not in measured)
    if not reasons:
        return []
    rows = [[reason[:160], count] for reason, count in reasons.most_common(_MOST_LINES)]
    return ["## Not measured", "", *_table(["why", "operators"], rows), ""]


def _unstable(result: BuildResult) -> list[str]:
    lines: list[str] = []
    rows: list[tuple[str, int, str]] = []
    for operator in sorted(result.table.operators, key=lambda o: -len(o.sequences))[:_MOST_UNSTABLE]:
        # Sorted by how many sequences there are: all that follow have one.
        if not operator.unstable:
            break
        signature = f"{operator.op_type} {operator.attributes or ''} {operator.shapes_class} {operator.dtype}"
        first_two = []
        for sequence in operator.sequences[:2]:
            first_two.append(", ".join(name[:40] for _, name, _ in sequence.kernels)[:90])
        rows.append((signature[:120], len(operator.sequences), " / ".join(first_two)))
    if rows:
        lines += [
            "## Signatures that became different kernels",
            "",
            "Operators of one type, attributes, arithmetic and class of shapes (dimensions rounded down to a power of "
            "two); `.lowering.json` has them all.",
            "",
            *_table(["signature", "sequences", "the first two"], rows),
            "",
        ]
    if result.varying:
        lines += ["## Repeats that launched different kernels", ""]
        lines += [f"- {printable(why)}" for why in list(result.varying.values())[:_MOST_LINES]]
        lines.append("")
    return lines


def _sources(result: BuildResult) -> list[str]:
    lines = []
    for c in result.contents:
        run = c.run
        devices = ", ".join(dict.fromkeys(d.name for d in run.devices))
        versions = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
        line = (
            f"{c.path.name}: {run.executor} under {run.collector} on {devices}, started {run.started}; {c.chunks} "
            f"chunks, {len(c.measured)} measurements of {c.planned} planned operators; {versions}"
        )
        lines.append(f"- {printable(line)}")
    return lines


def _operators(result: BuildResult) -> bytes:
    """Return one line per operator, for spreadsheets."""
    described = ("roofline_us", "floor_us")
    measured = ("op_type", "dtype", "input_shapes")
    heading = (
        "entry_id",
        "gpu",
        "runtime",
        *measured,
        "kernels",
        "entry_us",
        *described,
        "quality",
        "kernel_names",
    )
    rows = []
    for key, group in entries_of(result.rows).items():
        first = group[0]
        description = result.descriptions.get(key)
        cells = [*key, *(getattr(first, name) for name in measured), len(group), first.entry_us]
        cells += [getattr(description, name, None) for name in described]
        rows.append([*cells, first.quality, "; ".join(row.kernel_name or "" for row in group)])
    return utf8(csv_text(heading, rows))
