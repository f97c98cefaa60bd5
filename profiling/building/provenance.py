"""Where a dataset is from, as a JSON file beside it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gkestimator import __version__
from gkestimator.core.errors import OutputError, UsageError
from gkestimator.profiling.building.checks import Check
from gkestimator.profiling.building.reading import RawContents
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.tables import QUALITIES, KernelMeasurement

PROVENANCE_VERSION = 1
_MOST_PROBLEMS = 1000
_MOST_BESIDE = 64 * 2**20


def data_format(output: Path, forms: Sequence[str] = ("parquet", "csv")) -> str:
    """One of ``forms``, by suffix (of a dataset not JSON, which is what lies beside). Raises UsageError for another."""
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
    """``kernels.lowering.json`` beside ``kernels.parquet``, for the suffix ``.lowering.json``."""
    return output.with_name(output.stem + suffix)


def check_beside(output: Path, suffix: str = ".json") -> None:
    """See that the provenance of ``output`` would replace none but an earlier one: ``-o plan.parquet`` must not cost
    the user a ``plan.json``. Raises UsageError."""
    path = beside(output, suffix)
    try:
        if path.is_file():
            if path.stat().st_size <= _MOST_BESIDE:
                found = json.loads(path.read_bytes())
            else:
                found = None
            if isinstance(found, dict) and {"dataset", "sha256", "table_version"} <= found.keys():
                return
        elif not path.exists():
            return
    except (OSError, ValueError, RecursionError):
        pass
    raise UsageError(
        f"{path}: found something else than the provenance of a dataset, which is to be written there; expected "
        f"another name than {output.name}"
    )


def dataset_counts(rows: Sequence[KernelMeasurement]) -> dict[str, Any]:
    """Rows, operators, qualities, GPUs and families of a dataset."""
    entries = {(r.entry_id, r.gpu, r.runtime): r for r in rows}
    by_quality = Counter(r.quality for r in entries.values())
    return {
        "rows": len(rows),
        "operators": len(entries),
        "quality": {q: by_quality.get(q, 0) for q in QUALITIES},
        "gpus": dict(sorted(Counter(r.gpu for r in entries.values()).items())),
        "runtimes": dict(sorted(Counter(r.runtime for r in entries.values()).items())),
        "dtypes": dict(sorted(Counter(r.dtype for r in entries.values()).items())),
        "with_counters": sum(r.achieved_occupancy_pct is not None for r in rows),
    }


def source_of_raw(contents: RawContents) -> dict[str, Any]:
    """One raw folder, in JSON values. Host names, paths and serial numbers stay in the folder."""
    run = contents.run
    ended = [*(m.chunk.ended for m in contents.measured), *(m.chunk.ended for m in contents.latencies)]
    not_measured = Counter(f"{n.status}: {n.reason}"[:200] for n in contents.not_measured)
    return {
        "kind": "raw",
        "name": contents.path.name,
        "plan_digest": run.plan_digest,
        "plan_entries": contents.planned,
        "executor": run.executor,
        "collector": run.collector,
        "versions": dict(sorted(run.versions.items())),
        "devices": [_device(d) for d in run.devices],
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


def _device(facts: DeviceFacts) -> dict[str, Any]:
    return {
        "kind": facts.kind,
        "name": facts.name,
        "compute_capability": facts.compute_capability,
        "driver": facts.driver,
        "cuda": facts.cuda,
        "memory_bytes": facts.memory_bytes,
        "clocks_mhz": dict(facts.clocks_mhz),
    }


def provenance(
    output: Path,
    data: bytes,
    counts: Mapping[str, Any],
    *,
    made: str,
    sources: Sequence[Mapping[str, Any]],
    table_version: int,
    checks: Sequence[Check] = (),
    problems: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The provenance of the dataset or table whose file is ``data``, written ``made`` (ISO 8601). ``counts``: what it
    holds (:func:`dataset_counts`)."""
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
        "checks": [
            {
                "name": c.name,
                "count": c.count,
                "of": c.of,
                "what_happens": c.what_happens,
                "entries": list(c.entries),
            }
            for c in checks
        ],
        "notes": list(notes),
        "problems": list(problems[:_MOST_PROBLEMS]),
    }
