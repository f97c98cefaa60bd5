"""The cells of a comparison: one combination each, named by a hash of everything that decides its result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gkestimator.core.records import frozen
from gkestimator.documents import Cluster, Workload
from gkestimator.simulation.comparing.arriving import ArrivalsEntry
from gkestimator.simulation.comparing.spec import (
    ComparisonSpec,
    PolicyEntry,
    cluster_document,
    scaled,
)

CELL_VERSION = 1
"""Goes up when what a cell holds, or how it is computed, changes: older cells are computed again."""
_PLACEMENT_SETTINGS = ("objective", "runtime", "dtype", "dims")


@frozen
class Cell:
    """One simulation of a job's plan. ``key``: the name of its file."""

    key: str
    arrivals: ArrivalsEntry
    seed: int


@frozen
class CellJob:
    """One placement and the cells that are simulated from it; what a process computes at once. ``workload`` is
    scaled already; ``labels`` are how the report calls its coordinates."""

    policy: PolicyEntry
    workload: Workload
    cluster: Cluster
    tables: tuple[Path, ...]
    settings: Mapping[str, Any]
    labels: Mapping[str, Any]
    cells: tuple[Cell, ...]


def jobs(spec: ComparisonSpec, version: str) -> Iterator[CellJob]:
    """Every job of ``spec``, in its order; ``version`` of the program that computes the cells."""
    digests = spec.digests
    common = {
        "version": [CELL_VERSION, version],
        "tables": sorted(digests[t] for t in spec.tables),
        "settings": _plain(spec.settings, digests),
    }
    for workload in spec.workloads:
        for cluster in spec.clusters:
            there = cluster_document(cluster.value)
            for slo in spec.slo_scale:
                for rate in spec.rate_scale:
                    asked = scaled(workload.value, rate=rate, slo=slo)
                    for policy in spec.policies:
                        decides = common | {
                            "workload": asked.document(),
                            "cluster": there,
                            "policy": [
                                policy.name,
                                policy.creq,
                                policy.program,
                                _plain(policy.options, digests),
                            ],
                        }
                        yield CellJob(
                            policy=policy,
                            workload=asked,
                            cluster=cluster.value,
                            tables=spec.tables,
                            settings=spec.settings,
                            labels={
                                "policy": policy.label,
                                "workload": workload.label,
                                "cluster": cluster.label,
                                "slo_scale": slo,
                                "rate_scale": rate,
                            },
                            cells=tuple(
                                Cell(key=_key(decides, entry, seed, digests), arrivals=entry, seed=seed)
                                for entry in spec.arrivals
                                for seed in spec.seeds
                            ),
                        )


def _key(decides: Mapping[str, Any], arrivals: ArrivalsEntry, seed: int, digests: Mapping[Path, str]) -> str:
    trace = None if arrivals.trace is None else digests[arrivals.trace]
    whole = {**decides, "arrivals": [arrivals.kind, trace, _plain(arrivals.options, digests)], "seed": seed}
    text = json.dumps(whole, sort_keys=True, default=_as_text)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _plain(values: Mapping[str, Any], digests: Mapping[Path, str]) -> dict[str, Any]:
    """``values`` with the contents' hash in place of every file."""

    def plain(value: Any) -> Any:
        if isinstance(value, Path):
            return digests[value]
        if isinstance(value, (list, tuple)):
            return [plain(v) for v in value]
        return value

    return {name: plain(value) for name, value in sorted(values.items())}


def _as_text(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
