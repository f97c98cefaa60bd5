"""CSV and JSON: the replicas of a plan as a flat table, or the rows of a requirement table as they stand."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from pathlib import PurePosixPath

from gkestimator.core.records import NamedValues, Names
from gkestimator.core.versions import derived_version
from gkestimator.documents import PlacementPlan
from gkestimator.exporting.deployment import Deployment, Exporter, ExportFile
from gkestimator.tables import REQUIREMENTS
from gkestimator.tables.csv_text import csv_text
from gkestimator.tables.files import json_bytes

_LIMITS = "Nothing is enforced: these are the figures themselves."

# The columns of a plan's replicas, in order; those that a plan's replica does not have come from its GPU and plan.
REPLICA_COLUMNS: Mapping[str, str] = {
    "gpu": "the plan's GPU",
    "gpu_type": "canonical name of its type",
    "id": "the replica",
    "model": "its model, as in the requirement table",
    "runtime": "of the row it was placed by",
    "dtype": "of the row it was placed by",
    "dims": "of the row it was placed by",
    "batch_size": "samples in one batch",
    "sm_share_pct": "percent of the SMs it is confined to (100: not confined)",
    "partition": "replicas of one GPU with one partition take turns",
    "duty_cycle_ms": "how often each of them has its turn",
    "latency_ms": "of one batch alone on the GPU, with the ends of its 90 % interval",
    "latency_low_ms": "lower end",
    "latency_high_ms": "upper end",
    "slo_ms": "the model's objective",
    "throughput_rps": "requests a second that the replica can serve",
    "max_wait_ms": "how long a batch may wait to fill",
    "goodput_rps": "requests a second that it is to serve",
    "creq": "the measure behind creq_pct",
    "creq_pct": "compute, percent of the whole GPU",
    "mreq_bytes": "GPU memory",
    "mreq_pct": "the same, percent of the GPU's visible memory",
}


def _replicas(plan: PlacementPlan) -> list[NamedValues]:
    rows = []
    for gpu in plan.gpus:
        for replica in gpu.replicas:
            cells = dataclasses.asdict(replica) | {"gpu": gpu.id, "gpu_type": gpu.type, "creq": plan.creq}
            rows.append({name: cells[name] for name in REPLICA_COLUMNS})
    return rows


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    return str(value)


class CsvExporter(Exporter):
    """RFC 4180 with a heading line; an unknown value is an empty cell, and floats are written in full."""

    name = "csv"
    summary = "CSV: a plan's replicas as a flat table, or a table's rows as they stand."
    limits = _LIMITS

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return ``replicas.csv`` or ``requirements.csv``, and ``README.txt``, for CSV has no comments."""
        names: Names
        if deployment.plan is not None:
            stem = "replicas"
            names = tuple(REPLICA_COLUMNS)
            rows = _replicas(deployment.plan)
            about = ["Columns of replicas.csv (an empty cell: not known):", ""]
            about += [f"  {name:16} {words}" for name, words in REPLICA_COLUMNS.items()]
        else:
            stem = "requirements"
            names = REQUIREMENTS.names
            rows = [REQUIREMENTS.record(row) for row in deployment.rows]
            about = [
                f"requirements.csv is a requirement table of gkestimator, schema version {REQUIREMENTS.version}; "
                "docs/reference/tables.md describes it."
            ]
        text = csv_text(names, ([_cell(row[name]) for name in names] for row in rows))
        notes = [line for note in deployment.notes for line in textwrap.wrap(note, 105)]
        readme = ["Written by gkest export for csv.", f"Limits: {self.limits}", *notes, "", *about]
        return (
            ExportFile(path=PurePosixPath(f"{stem}.csv"), text=text),
            ExportFile(path=PurePosixPath("README.txt"), text="\n".join(readme) + "\n"),
        )


class JsonExporter(Exporter):
    """``{"schema_version": ..., "_notes": {...}, "rows": [...]}``; a table's file is a requirement table that
    gkest reads."""

    name = "json"
    summary = "JSON: a plan's replicas as a flat list with totals, or a table's rows as they stand."
    limits = _LIMITS

    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return ``replicas.json`` or ``requirements.json``."""
        notes: NamedValues = {"limits": self.limits, "notes": list(deployment.notes)}
        plan = deployment.plan
        version = REQUIREMENTS.version
        if plan is not None:
            version = derived_version(REPLICA_COLUMNS)
        document: NamedValues = {"schema_version": version, "_notes": notes}
        if plan is not None:
            stem = "replicas"
            notes["columns"] = dict(REPLICA_COLUMNS)
            document |= {"policy": plan.policy, "creq": plan.creq, "objective": plan.objective}
            document["totals"] = dataclasses.asdict(plan.totals)
            document["unserved"] = [dataclasses.asdict(u) for u in plan.unserved]
            document["rows"] = _replicas(plan)
        else:
            stem = "requirements"
            document["rows"] = [REQUIREMENTS.record(row) for row in deployment.rows]
        text = json_bytes(document).decode()
        return (ExportFile(path=PurePosixPath(f"{stem}.json"), text=text),)
