"""The lowering table: which kernels an operator really became, and how often it is one, two, three or more.

It is made of the rows of a dataset, so that merged datasets have one too.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gkestimator.core.records import frozen
from gkestimator.core.texts import parse_json
from gkestimator.profiling.building.choosing import entries_of
from gkestimator.profiling.type_names import CountByName, Fields, Floats, TextByName
from gkestimator.tables import KernelMeasurement

Group = Sequence[KernelMeasurement]
# Kind, name and family of each launch of a call.
Names = tuple[tuple[str, str, str], ...]
LOWERING_VERSION = 1
_SIGNATURE = ("gpu", "runtime", "op_type", "op_domain", "attributes", "dtype")
# Percent of operators that became 1, 2, 3 and 4 kernels in USHER (OSDI 2024, section 3.2): of its own set
# of operators in TensorFlow and PyTorch, so beside ours, not against it.
USHER_PCT = (2.0, 8.0, 56.0, 34.0)


@frozen
class KernelSequence:
    """Hold one sequence of launches, and the entries that showed it. ``kernels``: (kind, name, family);
    ``grids``: of the first of the entries; ``share``: of the operator's time, median over the entries, per
    kernel."""

    kernels: Names
    grids: tuple[str | None, ...]
    blocks: tuple[str | None, ...]
    entries: tuple[str, ...]
    shares: Floats


@frozen
class OperatorSequences:
    """Hold one operator signature on one GPU. ``sequences``: the most frequent first; more than one is
    unstable: the class of shapes does not decide which kernels run."""

    gpu: str
    runtime: str
    op_type: str
    op_domain: str
    attributes: str | None
    dtype: str
    shapes_class: str
    sequences: tuple[KernelSequence, ...]

    @property
    def unstable(self) -> bool:
        """Return whether operators of this signature became different kernels."""
        return len(self.sequences) > 1


@frozen
class LoweringTable:
    """Hold all signatures. ``counts``: how many operator calls became 1, 2, 3, ... kernels (kinds ``kernel``
    and ``host``; copies and memory sets are not kernels); ``by_family``: the same by the family that took
    most of the time."""

    operators: tuple[OperatorSequences, ...]
    counts: Mapping[int, int]
    by_family: Mapping[str, Mapping[int, int]]
    launches: CountByName

    def percent(self) -> tuple[float, float, float, float]:
        """Return the percent of operator calls that became 1, 2, 3 and 4 or more kernels."""
        return shares_of(self.counts)


def shares_of(counts: Mapping[int, int]) -> tuple[float, float, float, float]:
    """Return the percent of calls with 1, 2, 3 and 4 or more kernels; zeros where there is none."""
    total = sum(n for kernels, n in counts.items() if kernels > 0)
    four = sum(n for kernels, n in counts.items() if kernels >= 4)
    calls = (counts.get(1, 0), counts.get(2, 0), counts.get(3, 0), four)
    one, two, three, more = (100.0 * n / max(total, 1) for n in calls)
    return one, two, three, more


def shapes_class(input_shapes: str) -> str:
    """Return the shapes with every dimension rounded down to a power of two: what stands for all shapes of
    about this size."""
    try:
        shapes = parse_json(input_shapes)
        classes = [list(map(_power_of_two, shape)) for shape in shapes]
    except (ValueError, TypeError, OverflowError):
        return "?"
    return json.dumps(classes, separators=(",", ":"))


def _power_of_two(size: int) -> int:
    return 1 << (int(size).bit_length() - 1) if size > 0 else 0


def lowering_table(rows: Sequence[KernelMeasurement]) -> LoweringTable:
    """Return the lowering table of a dataset. Calls of which only the whole was measured (no kernel's name)
    are left out."""
    grouped: dict[tuple[Any, ...], dict[Names, list[Group]]] = {}
    counts: Counter[int] = Counter()
    launches: Counter[str] = Counter()
    by_family: dict[str, Counter[int]] = {}
    for group in entries_of(rows).values():
        # Such a call is one row whatever it launched.
        if any(r.kernel_name is None for r in group):
            continue
        first = group[0]
        kernels = sum(r.kind in ("kernel", "host") for r in group)
        counts[kernels] += 1
        launches.update(r.kind for r in group)
        by_family.setdefault(_main_family(group), Counter())[kernels] += 1
        signed = (*(getattr(first, name) for name in _SIGNATURE), shapes_class(first.input_shapes))
        names = tuple((r.kind, r.kernel_name or "", r.family) for r in group)
        grouped.setdefault(signed, {}).setdefault(names, []).append(group)
    operators = []
    for key, sequences in grouped.items():
        *signature, shapes = key
        ordered = sorted(sequences.items(), key=lambda item: -len(item[1]))
        operators.append(
            OperatorSequences(
                **dict(zip(_SIGNATURE, signature, strict=True)),
                shapes_class=shapes,
                sequences=tuple(_sequence(names, groups) for names, groups in ordered),
            )
        )
    return LoweringTable(
        operators=tuple(operators),
        counts=dict(sorted(counts.items())),
        by_family={f: dict(sorted(c.items())) for f, c in sorted(by_family.items())},
        launches=dict(sorted(launches.items())),
    )


def _main_family(group: Group) -> str:
    """Return the family that took most of the call's time."""
    times: Counter[str] = Counter()
    for row in group:
        times[row.family] += row.duration_us or 0.0  # type: ignore[assignment]
    return times.most_common(1)[0][0]


def _sequence(names: Names, groups: Sequence[Group]) -> KernelSequence:
    first = groups[0]
    shares = []
    for i in range(len(names)):
        each = sorted(_share(group, i) for group in groups)
        shares.append(each[len(each) // 2])
    return KernelSequence(
        kernels=names,
        grids=tuple(r.grid for r in first),
        blocks=tuple(r.block for r in first),
        entries=tuple(group[0].entry_id for group in groups),
        shares=tuple(shares),
    )


def _share(group: Group, i: int) -> float:
    total = math.fsum(r.duration_us or 0.0 for r in group)
    if total > 0:
        return (group[i].duration_us or 0.0) / total
    return 1 / len(group)


def lowering_document(table: LoweringTable, *, dataset: str, varying: TextByName) -> Fields:
    """Return the table as JSON values. ``varying``: entries whose repeats launched different kernels (so that
    they are in no row), with what differed."""
    by_family = {}
    for family, counts in table.by_family.items():
        by_family[family] = {str(kernels): calls for kernels, calls in counts.items()}
    return {
        "schema_version": LOWERING_VERSION,
        "dataset": dataset,
        "kernels_per_operator": {str(k): n for k, n in table.counts.items()},
        "percent_1_2_3_4": list(table.percent()),
        "usher_percent_1_2_3_4": list(USHER_PCT),
        "by_family": by_family,
        "varying_between_repeats": dict(varying),
        "operators": [_operator_document(operator) for operator in table.operators],
    }


def _operator_document(operator: OperatorSequences) -> Fields:
    document = {name: getattr(operator, name) for name in (*_SIGNATURE, "shapes_class")}
    if operator.attributes is not None:
        document["attributes"] = parse_json(operator.attributes)
    document["shapes_class"] = None
    if operator.shapes_class != "?":
        document["shapes_class"] = parse_json(operator.shapes_class)
    document["unstable"] = operator.unstable
    document["sequences"] = [_sequence_document(sequence) for sequence in operator.sequences]
    return document


def _sequence_document(sequence: KernelSequence) -> Fields:
    columns = zip(sequence.kernels, sequence.grids, sequence.blocks, sequence.shares, strict=True)
    kernels = []
    for (kind, name, family), grid, block, share in columns:
        kernel = {"kind": kind, "name": name, "family": family, "grid": grid, "block": block}
        kernels.append(kernel | {"time_share": round(share, 4)})
    return {"kernels": kernels, "entries": list(sequence.entries)}
