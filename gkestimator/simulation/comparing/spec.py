"""Read what is to be compared: the YAML of ``gkest compare``, strictly, and every file that it names."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from gkestimator.core.errors import DocumentError, GkestimatorError, UsageError
from gkestimator.core.records import frozen
from gkestimator.documents import Application, Cluster, ModelLoad, Workload, read_cluster, read_workload
from gkestimator.documents.checking import Fields, load_yaml
from gkestimator.documents.cluster import cluster_from
from gkestimator.documents.plan import BATCHINGS
from gkestimator.documents.workload import workload_from
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.interference.registry import MODELS
from gkestimator.placement.building import OBJECTIVES
from gkestimator.placement.registry import POLICIES, make_policy, policy_names
from gkestimator.simulation.admission import ADMISSIONS
from gkestimator.simulation.arrays import AnyByName, Numbers, ValuesByName, Wholes
from gkestimator.simulation.comparing.arriving import ArrivalsEntry, read_arrivals
from gkestimator.simulation.comparing.reading import (
    MANY,
    distinct,
    existing_file,
    file_of,
    label_of,
)
from gkestimator.simulation.options import COPIES, DROPS, ROUTINGS, SERVICES
from gkestimator.tables.candidate import CREQ_COLUMNS

__all__ = ["ArrivalsEntry", "ComparisonSpec", "Named", "PolicyEntry", "read_spec"]

MAX_CELLS = 100_000
T = TypeVar("T")
Asked = TypeVar("Asked", ModelLoad, Application)


@frozen
class PolicyEntry:
    """Hold a policy with its options, under the label that tables and pictures show.

    ``creq`` None: the policy's own. ``program``: the hash of a third party's code, None for ours, whose
    version is gkestimator's.
    """

    label: str
    name: str
    creq: str | None
    options: AnyByName
    program: str | None = None


@frozen
class Named:
    """Hold a workload or a cluster under its label."""

    label: str
    value: Any


@dataclass(frozen=True, kw_only=True)
class ComparisonSpec:
    """Hold everything that a comparison is made of.

    Every combination of ``policies``, ``workloads``, ``clusters``, ``slo_scale``, ``rate_scale``,
    ``arrivals`` and ``seeds`` is one cell; ``settings`` hold for all of them.
    """

    path: Path
    tables: tuple[Path, ...]
    policies: tuple[PolicyEntry, ...]
    workloads: tuple[Named, ...]
    clusters: tuple[Named, ...]
    slo_scale: Numbers
    rate_scale: Numbers
    arrivals: tuple[ArrivalsEntry, ...]
    seeds: Wholes
    settings: AnyByName

    @property
    def cells(self) -> int:
        """Return how many combinations there are."""
        parts: tuple[Sequence[object], ...] = (
            self.policies,
            self.workloads,
            self.clusters,
            self.slo_scale,
            self.rate_scale,
            self.arrivals,
            self.seeds,
        )
        return math.prod(len(part) for part in parts)

    @cached_property
    def digests(self) -> Mapping[Path, str]:
        """Return the SHA-256 of every file that cells are computed from."""
        files = [*self.tables, *self.settings["gpu_specs"]]
        files += [self.settings["coefficients"], self.settings["network"]]
        files += [entry.trace for entry in self.arrivals]
        files += [entry.options.get("coefficients") for entry in self.policies]
        return {path: _digest(path) for path in dict.fromkeys(files) if path is not None}


def read_spec(path: Path) -> ComparisonSpec:
    """Return the comparison in the YAML file at ``path``; files in it are looked for beside it.

    Raises DocumentError or UsageError naming the field: unknown, missing, empty, twice, a policy or file that
    is not there, more than MAX_CELLS cells.
    """
    return comparison_from(load_yaml(path, what="a comparison"), path)


def comparison_from(fields: Fields, path: Path) -> ComparisonSpec:
    """Return the comparison in ``fields``, the content of ``path``. Raises as :func:`read_spec` does."""
    fields.whole("schema_version", 1, low=1, high=1)
    here = path.parent
    gpu_specs = tuple(_files(fields, "gpu_specs", here, []))
    spec = ComparisonSpec(
        path=path,
        tables=tuple(_files(fields, "tables", here)),
        policies=_each(fields, "policies", lambda f, n: _policy(f, n, here)),
        workloads=_each(fields, "workloads", lambda f, n: _workload(f, n, here)),
        clusters=_each(fields, "clusters", lambda f, n: _cluster(f, n, here, gpu_specs)),
        slo_scale=_numbers(fields, "slo_scale", high=1e3),
        rate_scale=_numbers(fields, "rate_scale", high=1e6),
        arrivals=read_arrivals(fields, here),
        seeds=_seeds(fields),
        settings=_settings(fields, here) | {"gpu_specs": gpu_specs},
    )
    fields.finish()
    if spec.cells > MAX_CELLS:
        raise DocumentError(f"{path}: asks for {spec.cells:,} cells, expected at most {MAX_CELLS:,}")
    return spec


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from e


def _files(fields: Fields, name: str, here: Path, default: Any = ...) -> list[Path]:
    names = fields.items(name, default, limit=MANY, of="string")
    if not names and default is ...:
        raise fields.fail(name, "found none, expected at least one file")
    if not all(isinstance(text, str) for text in names):
        raise fields.fail(name, "found something else, expected names of files")
    return list(dict.fromkeys(existing_file(fields, name, here, text) for text in names))


def _each(fields: Fields, name: str, read: Callable[[Fields, int], T]) -> tuple[T, ...]:
    """Return what ``read`` makes of each entry of the list ``name``; a text alone names a policy or a file."""
    entries = []
    short = "name" if name == "policies" else "file"
    parts = fields.entries(name, short=short, what=f"an entry of {name}", limit=MANY)
    for number, part in enumerate(parts):
        entries.append(read(part, number))
        part.finish()
    return distinct(fields, name, entries)


def _policy(fields: Fields, number: int, here: Path) -> PolicyEntry:
    name = fields.text("name", limit=60)
    if name not in policy_names():
        raise fields.fail("name", f"found {name!r}, expected one of {', '.join(policy_names())}")
    creq = fields.choice("creq", None, tuple(CREQ_COLUMNS))
    entries = fields.take("options", {}, null=True) or {}
    if not isinstance(entries, Mapping) or not all(isinstance(key, str) for key in entries):
        raise fields.fail("options", "found something else, expected names and values")
    options = {}
    for key, value in entries.items():
        if value is None or isinstance(value, (list, dict)):
            raise fields.fail("options", f"{key}: found {value!r}, expected a number, a text, true or false")
        key = key.replace("-", "_")
        if key == "coefficients":
            value = existing_file(fields, "options", here, value)
        options[key] = value
    try:
        policy = make_policy(name, **options)
    except GkestimatorError as e:
        raise fields.fail("options" if options else "name", str(e)) from e
    return PolicyEntry(
        label=label_of(fields, name),
        name=name,
        creq=creq,
        options=options,
        program=None if name in POLICIES else _program(type(policy)),
    )


def _program(policy: type) -> str | None:
    """Return the hash of the file that a third party's policy is in: its author changes it and compares again."""
    try:
        file = inspect.getsourcefile(policy)
    except TypeError:
        return None
    if file is None:
        return None
    return _digest(Path(file))


def _workload(fields: Fields, number: int, here: Path) -> Named:
    path = file_of(fields, "file", here)
    if path is not None:
        return Named(label=label_of(fields, path.stem), value=read_workload(path))
    label = label_of(fields, f"workload-{number}")
    return Named(label=label, value=workload_from(fields.rest("models", "applications")))


def _cluster(fields: Fields, number: int, here: Path, gpu_specs: Sequence[Path]) -> Named:
    path = file_of(fields, "file", here)
    if path is not None:
        return Named(label=label_of(fields, path.stem), value=read_cluster(path, gpu_specs=gpu_specs))
    label = label_of(fields, f"cluster-{number}")
    return Named(label=label, value=cluster_from(fields.rest("gpus", "elastic"), gpu_catalogue(gpu_specs)))


def _numbers(fields: Fields, name: str, *, high: float) -> Numbers:
    numbers = []
    for value in fields.items(name, [1.0], limit=MANY, of="number"):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= high:
            raise fields.fail(name, f"found {value!r}, expected numbers above 0 and at most {high:g}")
        numbers.append(float(value))
    return distinct(fields, name, numbers)


def _seeds(fields: Fields) -> Wholes:
    seeds = fields.items("seeds", [0], limit=10_000, of="integer")
    for value in seeds:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise fields.fail("seeds", f"found {value!r}, expected whole numbers from 0")
    return distinct(fields, "seeds", seeds)


def _settings(fields: Fields, here: Path) -> ValuesByName:
    settings: ValuesByName = {
        "duration_s": fields.number("duration_s", 60.0, above=True, high=1e7),
        "warmup_s": fields.number("warmup_s", 0.0, high=1e7),
        "objective": fields.choice("objective", None, OBJECTIVES),
        "service": fields.choice("service", "deterministic", SERVICES),
        "interference": fields.choice("interference", "contention", tuple(MODELS)),
        "routing": fields.choice("routing", "round-robin", ROUTINGS),
        "copy": fields.choice("copy", "none", COPIES),
        "drop": fields.choice("drop", "none", DROPS),
        "batching": fields.choice("batching", "plan", ("plan", *BATCHINGS)),
        "admission": fields.choice("admission", "plan", ADMISSIONS),
        "max_wait_ms": fields.number("max_wait_ms", None, null=True),
        "coefficients": file_of(fields, "coefficients", here),
        "network": file_of(fields, "network", here),
    }
    for name in ("runtime", "dtype", "dims"):
        settings[name] = fields.text(name, None, limit=1000, null=True)
    if settings["warmup_s"] >= settings["duration_s"]:
        raise fields.fail("warmup_s", f"found {settings['warmup_s']:g}, expected less than duration_s")
    return settings


def scaled(workload: Workload, *, rate: float, slo: float) -> Workload:
    """Return ``workload`` with every rate times ``rate`` and every objective times ``slo``."""

    def of(asked: Asked) -> Asked:
        return dataclasses.replace(asked, rate_rps=asked.rate_rps * rate, slo_ms=asked.slo_ms * slo)

    return Workload(
        models=tuple(map(of, workload.models)), applications=tuple(map(of, workload.applications))
    )


def _spec_document(spec: GpuSpec) -> ValuesByName:
    """Return the figures of a GPU; one of which every figure is known keeps the cells that version 0.1 computed.

    Links between GPUs decide nothing here: compared policies place each replica on one.
    """
    document = dataclasses.asdict(spec)
    del document["nvlink_bytes_per_s"]
    document["sources"] = {k: v for k, v in spec.sources.items() if k != "nvlink_bytes_per_s"}
    if not spec.unknown:
        del document["unknown"]
    return document


def cluster_document(cluster: Cluster) -> ValuesByName:
    """Return what of ``cluster`` decides a result."""
    gpus = [{"spec": _spec_document(g.spec), "count": g.count} for g in cluster.gpus]
    elastic = []
    for rented in cluster.elastic:
        spec = _spec_document(rented.spec)
        elastic.append({"spec": spec, "price_per_hour": rented.price_per_hour, "limit": rented.limit})
    return {"gpus": gpus, "elastic": elastic}
