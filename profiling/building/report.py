"""A build as a folder: ``report.md``, ``operators.csv`` and pictures."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gkestimator.core.errors import OutputError
from gkestimator.profiling.building.build import BuildResult
from gkestimator.profiling.building.pictures import pictures
from gkestimator.profiling.building.sequences import USHER_PCT, entries_of, shares_of
from gkestimator.profiling.building.words import build_words, summary_words
from gkestimator.tables import write_bytes
from gkestimator.tables.layout import printable

_MOST_LINES = 200
_MOST_UNSTABLE = 40


def write_report(result: BuildResult, folder: Path | str) -> tuple[list[Path], list[str]]:
    """Write the report into ``folder``, which is made where it is missing; the files written and lines worth saying.

    Without matplotlib there are no pictures, and a line says how to get them. Raises OutputError.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OutputError(f"{folder}: cannot be made: {e.strerror or e}") from e
    drawn, notes = pictures(result)
    files = {
        "report.md": _markdown(result, [(name, caption) for name, caption, _ in drawn]).encode(),
        "operators.csv": _operators(result),
        **{name: data for name, _, data in drawn},
    }
    for name, data in files.items():
        write_bytes(folder / name, data)
    return [folder / name for name in files], notes


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
    cells = [[printable(str(c)).replace("|", "\\|") for c in row] for row in rows]
    return [
        f"| {' | '.join(head)} |",
        f"|{'|'.join(['---'] + ['---:'] * (len(head) - 1))}|",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def _kernels(result: BuildResult) -> list[str]:
    table = result.table
    rows: list[list[object]] = [
        ["all operators", *(f"{p:.1f} %" for p in table.percent()), sum(table.counts.values())]
    ]
    rows += [
        [family, *(f"{p:.1f} %" for p in shares_of(counts)), sum(counts.values())]
        for family, counts in table.by_family.items()
    ]
    rows.append(["USHER (its own operators, TensorFlow and PyTorch)", *(f"{p:.0f} %" for p in USHER_PCT), ""])
    return _table(["", "1", "2", "3", "4 or more", "operators"], rows)


def _families(result: BuildResult) -> list[str]:
    groups: dict[tuple[str, str, str], list[float | None]] = {}
    for group in entries_of(result.rows).values():
        longest = max(group, key=lambda r: r.duration_us or 0.0)
        key = (longest.gpu, longest.family, longest.dtype)
        description = result.descriptions.get((longest.entry_id, longest.gpu, longest.runtime))
        floor = None if description is None else description.roofline_us
        ratio = longest.entry_us / floor if floor and longest.entry_us else None
        groups.setdefault(key, []).append(ratio)
    rows = []
    for key, ratios in sorted(groups.items()):
        known = sorted(r for r in ratios if r is not None)
        if known:
            middle = f"{known[len(known) // 2]:.2f}"
        else:
            middle = ""
        rows.append([*key, len(ratios), middle])
    return _table(["GPU", "family", "dtype", "operators", "median of time / roofline"], rows)


def _reasons(result: BuildResult) -> list[str]:
    measured = {r.entry_id for r in result.rows}
    found: Counter[tuple[str, str]] = Counter()
    for contents in result.contents:
        for one in {n.entry_id: n for n in contents.not_measured}.values():
            if one.entry_id not in measured:
                found[one.status, one.reason] += 1
    if not found:
        return []
    rows = [
        [f"{status}: {reason}"[:160], count] for (status, reason), count in found.most_common(_MOST_LINES)
    ]
    return ["## Not measured", "", *_table(["why", "operators"], rows), ""]


def _unstable(result: BuildResult) -> list[str]:
    lines: list[str] = []
    unstable = sorted((o for o in result.table.operators if o.unstable), key=lambda o: -len(o.sequences))
    if unstable:
        rows = [
            [
                f"{o.op_type} {o.attributes or ''} {o.shapes_class} {o.dtype}"[:120],
                len(o.sequences),
                " / ".join(", ".join(k[1][:40] for k in s.kernels)[:90] for s in o.sequences[:2]),
            ]
            for o in unstable[:_MOST_UNSTABLE]
        ]
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
        devices = ", ".join(dict.fromkeys(d.name for d in c.run.devices))
        versions = ", ".join(f"{k} {v}" for k, v in sorted(c.run.versions.items()))
        lines.append(
            f"- {printable(c.path.name)}: {c.run.executor} under {c.run.collector} on {printable(devices)}, started "
            f"{printable(c.run.started)}; {c.chunks} chunks, {len(c.measured)} measurements of "
            f"{c.planned} planned operators; {printable(versions)}"
        )
    return lines


def _operators(result: BuildResult) -> bytes:
    """One line per operator, for spreadsheets."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        [
            "entry_id",
            "gpu",
            "runtime",
            "op_type",
            "dtype",
            "input_shapes",
            "kernels",
            "entry_us",
            "roofline_us",
            "floor_us",
            "quality",
            "kernel_names",
        ]
    )
    for key, group in entries_of(result.rows).items():
        first = group[0]
        description = result.descriptions.get(key)
        writer.writerow(
            [
                *key,
                first.op_type,
                first.dtype,
                first.input_shapes,
                len(group),
                first.entry_us,
                None if description is None else description.roofline_us,
                None if description is None else description.floor_us,
                first.quality,
                "; ".join(r.kernel_name or "" for r in group),
            ]
        )
    return buffer.getvalue().encode()
