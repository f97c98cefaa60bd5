"""Where a dataset is from, as a JSON file beside it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gkestimator import __version__
from gkestimator.core.errors import OutputError, UsageError
from gkestimator.core.texts import parse_json
from gkestimator.profiling.building.checks import Check
from gkestimator.profiling.building.choosing import entries_of
from gkestimator.profiling.building.contents import RawContents
from gkestimator.profiling.building.entries import Measured
from gkestimator.profiling.building.sequences import LoweringTable, lowering_document
from gkestimator.profiling.type_names import Fields, Members, Paths, TextByName
from gkestimator.tables import KERNEL_DATASET, QUALITIES, KernelMeasurement
from gkestimator.tables.files import json_bytes
from gkestimator.tables.together import write_together
from gkestimator.tables.writing import encode_csv, encode_parquet

PROVENANCE_VERSION = 1
_MOST_PROBLEMS = 1000
_OF_CHECKS = ("name", "count", "of", "what_happens", "entries")
_OF_DEVICES = ("kind", "name", "compute_capability", "driver", "cuda", "memory_bytes", "clocks_mhz")
_MOST_BESIDE = 64 * 2**20


def data_format(output: Path, forms: Sequence[str] = ("parquet", "csv")) -> str:
    """Return one of ``forms``, by suffix (of a dataset not JSON, which is what lies beside). Raises UsageError for
    another."""
    form = output.suffix.lower().removeprefix(".")
    if form not in forms:
        raise UsageError(
            f"{output}: found the suffix {output.suffix!r}, expected {' or '.join(f'.{f}' for f in forms)}"
        )
    if output.is_dir():
        raise UsageError(f"{output}: found a folder, expected a file name to write to")
    if not output.parent.is_dir():
        raise OutputError(f"{output}: its folder does not exist")
    return form


def beside(output: Path, suffix: str) -> Path:
    """Return ``kernels.lowering.json`` beside ``kernels.parquet``, for the suffix ``.lowering.json``."""
    return output.with_name(output.stem + suffix)


def check_beside(output: Path, suffix: str = ".json") -> None:
    """See that the provenance of ``output`` would replace none but an earlier one: ``-o plan.parquet`` must
    not cost the user a ``plan.json``. Raises UsageError."""
    path = beside(output, suffix)
    try:
        if path.is_file():
            small = path.stat().st_size <= _MOST_BESIDE
            document = parse_json(path.read_bytes()) if small else None
            if isinstance(document, dict) and {"dataset", "sha256", "table_version"} <= document.keys():
                return
        elif not path.exists():
            return
    except (OSError, ValueError):
        pass
    raise UsageError(
        f"{path}: found something else than the provenance of a dataset, which is to be written there; expected "
        f"another name than {output.name}"
    )


def dataset_counts(rows: Sequence[KernelMeasurement]) -> Fields:
    """Return the counts of rows, operators, qualities, GPUs and families of a dataset."""
    entries = [group[0] for group in entries_of(rows).values()]
    by_quality = Counter(r.quality for r in entries)
    return {
        "rows": len(rows),
        "operators": len(entries),
        "quality": {q: by_quality[q] for q in QUALITIES},
        **counted(entries, gpus="gpu", runtimes="runtime", dtypes="dtype"),
        "with_counters": sum(r.achieved_occupancy_pct is not None for r in rows),
    }


def counted(rows: Sequence[object], **columns: str) -> dict[str, dict[str, int]]:
    """Return how many rows have each value of ``columns``, by the names that counts have."""
    counts = {}
    for name, column in columns.items():
        values = Counter(getattr(row, column) for row in rows)
        counts[name] = dict(sorted(values.items()))
    return counts


def source_of_raw(contents: RawContents) -> Fields:
    """Describe one raw folder in JSON values. Host names, paths and serial numbers stay in the folder."""
    run = contents.run
    measured: list[Measured] = [*contents.measured, *contents.latencies]
    ended = [m.chunk.ended for m in measured]
    not_measured = Counter(f"{n.status}: {n.reason}"[:200] for n in contents.not_measured)
    return {
        "kind": "raw",
        "name": contents.path.name,
        "plan_digest": run.plan_digest,
        "plan_entries": contents.planned,
        "executor": run.executor,
        "collector": run.collector,
        "versions": dict(sorted(run.versions.items())),
        "devices": [_fields(device, _OF_DEVICES) for device in run.devices],
        "started": run.started,
        "ended": max(ended, default=None),
        "chunks": contents.chunks,
        "unfinished_chunks": contents.unfinished,
        "measurements": len(contents.measured),
        **({"latencies": len(contents.latencies)} if contents.latencies else {}),
        "not_reached": contents.unreached,
        "not_measured": dict(not_measured.most_common()),
        "varying_between_repeats": len(contents.unstable),
    }


def _fields(record: object, names: Sequence[str]) -> Fields:
    return {name: getattr(record, name) for name in names}


def provenance(
    output: Path,
    data: bytes,
    counts: Members,
    *,
    made: str,
    sources: Sequence[Members],
    table_version: int,
    checks: Sequence[Check] = (),
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Fields:
    """Return the provenance of the dataset or table whose file is ``data``, written ``made`` (ISO 8601).
    ``counts``: what it holds (:func:`dataset_counts`)."""
    return {
        "schema_version": PROVENANCE_VERSION,
        "dataset": output.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "table_version": table_version,
        "made": made,
        "made_with": f"gkestimator {__version__}",
        "licence": None,
        **counts,
        "sources": list(sources),
        "checks": [_fields(check, _OF_CHECKS) for check in checks],
        "notes": list(notes),
        "problems": list(problems[:_MOST_PROBLEMS]),
    }


def write_dataset(
    output: Path,
    rows: Sequence[KernelMeasurement],
    table: LoweringTable,
    specs: Mapping[Path, bytes],
    *,
    varying: TextByName,
    **facts: Any,
) -> Paths:
    """Write a dataset with its lowering table, its provenance (``facts``: see :func:`provenance`) and the GPU files
    ``specs`` beside it; return all files, the dataset first. Raises OutputError."""
    encode = encode_csv if data_format(output) == "csv" else encode_parquet
    data = encode(KERNEL_DATASET, rows)
    counts = dataset_counts(rows)
    document = provenance(output, data, counts, table_version=KERNEL_DATASET.version, **facts)
    lowering = lowering_document(table, dataset=output.name, varying=varying)
    files = {
        **specs,
        beside(output, ".lowering.json"): json_bytes(lowering),
        beside(output, ".json"): json_bytes(document),
        output: data,
    }
    write_together(files)
    return tuple(reversed(files))
