"""List the cells of a comparison: one combination each, named by a hash of all that decides its result."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gkestimator.core.records import frozen
from gkestimator.documents import Cluster, Workload
from gkestimator.simulation.arrays import AnyByName
from gkestimator.simulation.comparing.arriving import ArrivalsEntry
from gkestimator.simulation.comparing.reading import with_files
from gkestimator.simulation.comparing.spec import (
    ComparisonSpec,
    PolicyEntry,
    cluster_document,
    scaled,
)

CELL_VERSION = 1
"""Goes up when what a cell holds, or how it is computed, changes: older cells are computed again."""


@frozen
class Cell:
    """Hold one simulation of a job's plan. ``key``: the name of its file."""

    key: str
    arrivals: ArrivalsEntry
    seed: int


@frozen
class CellJob:
    """Hold one placement and the cells that are simulated from it: what a process computes at once.

    ``workload`` is scaled already; ``labels`` are how the report calls its coordinates.
    """

    policy: PolicyEntry
    workload: Workload
    cluster: Cluster
    tables: tuple[Path, ...]
    settings: AnyByName
    labels: AnyByName
    cells: tuple[Cell, ...]


def jobs(spec: ComparisonSpec, version: str) -> Iterator[CellJob]:
    """Yield every job of ``spec``, in its order; ``version`` of the program that computes the cells."""
    digests = spec.digests
    settings = dict(spec.settings)
    if settings["batching"] == "plan":
        # So it was before there was a choice: cells that were computed then keep their names.
        del settings["batching"]
    common = {
        "version": [CELL_VERSION, version],
        "tables": sorted(digests[t] for t in spec.tables),
        "settings": _plain(settings, digests),
    }
    places = itertools.product(spec.workloads, spec.clusters, spec.slo_scale, spec.rate_scale, spec.policies)
    for workload, cluster, slo, rate, policy in places:
        asked = scaled(workload.value, rate=rate, slo=slo)
        options = _plain(policy.options, digests)
        decides = common | {
            "workload": asked.document(),
            "cluster": cluster_document(cluster.value),
            "policy": [policy.name, policy.creq, policy.program, options],
        }
        cells = []
        for arrivals, seed in itertools.product(spec.arrivals, spec.seeds):
            key = _key(decides, arrivals, seed, digests)
            cells.append(Cell(key=key, arrivals=arrivals, seed=seed))
        labels = {
            "policy": policy.label,
            "workload": workload.label,
            "cluster": cluster.label,
            "slo_scale": slo,
            "rate_scale": rate,
        }
        yield CellJob(
            policy=policy,
            workload=asked,
            cluster=cluster.value,
            tables=spec.tables,
            settings=spec.settings,
            labels=labels,
            cells=tuple(cells),
        )


def _key(decides: AnyByName, arrivals: ArrivalsEntry, seed: int, digests: Mapping[Path, str]) -> str:
    trace = with_files(arrivals.trace, digests)
    whole = {**decides, "arrivals": [arrivals.kind, trace, _plain(arrivals.options, digests)], "seed": seed}
    text = json.dumps(whole, sort_keys=True, default=_as_text)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _plain(values: AnyByName, digests: Mapping[Path, str]) -> Any:
    """Return ``values`` in order, with the contents' hash in place of every file."""
    return with_files(dict(sorted(values.items())), digests)


def _as_text(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
