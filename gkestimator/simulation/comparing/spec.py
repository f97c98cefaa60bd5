"""What is to be compared: the YAML of ``gkest compare``, read strictly, and every file that it names."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from gkestimator.documents import Cluster, Workload, read_cluster, read_workload
from gkestimator.documents.checking import Fields, load_yaml
from gkestimator.documents.cluster import cluster_from
from gkestimator.documents.workload import workload_from
from gkestimator.errors import DocumentError, UsageError
from gkestimator.gpus import gpu_catalogue
from gkestimator.placement.building import OBJECTIVES
from gkestimator.placement.problem import CREQ_COLUMNS
from gkestimator.placement.registry import policy_names
from gkestimator.simulation.options import COPIES, INTERFERENCES, ROUTINGS, SERVICES

__all__ = ["ArrivalsEntry", "ComparisonSpec", "Named", "PolicyEntry", "read_spec"]

PROCESSES = ("poisson", "mmpp", "constant")
ADMISSIONS = ("plan", "none")
MAX_CELLS = 100_000
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@-]{0,59}")
_MANY = 200
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """A policy with its options, under the label that tables and pictures show. ``creq`` None: the policy's own."""

    label: str
    name: str
    creq: str | None
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A workload or a cluster under its label."""

    label: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalsEntry:
    """A process (``kind``) or a trace (``trace``, its file; ``options`` of the reader or process)."""

    label: str
    kind: str | None
    trace: Path | None
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ComparisonSpec:
    """Everything that a comparison is made of. Every combination of ``policies``, ``workloads``, ``clusters``,
    ``slo_scale``, ``rate_scale``, ``arrivals`` and ``seeds`` is one cell; ``settings`` hold for all of them."""

    path: Path
    tables: tuple[Path, ...]
    policies: tuple[PolicyEntry, ...]
    workloads: tuple[Named, ...]
    clusters: tuple[Named, ...]
    slo_scale: tuple[float, ...]
    rate_scale: tuple[float, ...]
    arrivals: tuple[ArrivalsEntry, ...]
    seeds: tuple[int, ...]
    settings: Mapping[str, Any]

    @property
    def cells(self) -> int:
        """How many combinations there are."""
        parts: tuple[Sequence[object], ...] = (
            self.policies, self.workloads, self.clusters, self.slo_scale, self.rate_scale, self.arrivals, self.seeds,
        )  # fmt: skip
        found = 1
        for part in parts:
            found *= len(part)
        return found

    @cached_property
    def digests(self) -> Mapping[Path, str]:
        """SHA-256 of every file that cells are computed from."""
        files = [*self.tables, *(a.trace for a in self.arrivals if a.trace is not None)]
        files += [p for name in ("coefficients", "network") if (p := self.settings[name]) is not None]
        files += [p for entry in self.policies if (p := entry.options.get("coefficients")) is not None]
        files += list(self.settings["gpu_specs"])
        return {path: _digest(path) for path in dict.fromkeys(files)}


def read_spec(path: Path) -> ComparisonSpec:
    """The comparison in the YAML file at ``path``; files in it are looked for beside it. Raises DocumentError or
    UsageError naming the field: unknown, missing, empty, twice, a policy or file that is not there, more than
    MAX_CELLS cells."""
    fields = load_yaml(path, what="a comparison")
    fields.whole("schema_version", 1, low=1, high=1)
    here = path.parent
    gpu_specs = tuple(_files(fields, "gpu_specs", here, []))
    found = ComparisonSpec(
        path=path,
        tables=tuple(_files(fields, "tables", here)),
        policies=_each(fields, "policies", lambda f, n: _policy(f, n, here)),
        workloads=_each(fields, "workloads", lambda f, n: _workload(f, n, here)),
        clusters=_each(fields, "clusters", lambda f, n: _cluster(f, n, here, gpu_specs)),
        slo_scale=_numbers(fields, "slo_scale", high=1e3),
        rate_scale=_numbers(fields, "rate_scale", high=1e6),
        arrivals=_arrivals(fields, here),
        seeds=_seeds(fields),
        settings=_settings(fields, here) | {"gpu_specs": gpu_specs},
    )
    fields.finish()
    if found.cells > MAX_CELLS:
        raise DocumentError(f"{path}: asks for {found.cells:,} cells, expected at most {MAX_CELLS:,}")
    return found


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from e


def _file(fields: Fields, name: str, here: Path) -> Path | None:
    text = fields.text(name, None, limit=4096, null=True)
    return None if text is None else _found(fields, name, here, text)


def _found(fields: Fields, name: str, here: Path, text: str) -> Path:
    path = here / text
    try:
        there = path.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise fields.fail(name, f"{text}: no such file beside {fields.where.partition(':')[0]}")
    return path


def _files(fields: Fields, name: str, here: Path, default: Any = ...) -> list[Path]:
    found = fields.items(name, default, limit=_MANY)
    if not found and default is ...:
        raise fields.fail(name, "found none, expected at least one file")
    if not all(isinstance(t, str) for t in found):
        raise fields.fail(name, "found something else, expected names of files")
    return list(dict.fromkeys(_found(fields, name, here, t) for t in found))


def _each(fields: Fields, name: str, read: Callable[[Fields, int], T]) -> tuple[T, ...]:
    entries = fields.items(name, limit=_MANY)
    found = []
    for number, entry in enumerate(entries):
        where = f"{fields.where}: {name}[{number}]"
        if isinstance(entry, str):
            entry = {"name": entry} if name == "policies" else {"file": entry}
        part = Fields(entry, where=where, what=f"an entry of {name}")
        found.append(read(part, number))
        part.finish()
    return _distinct(fields, name, found)


def _distinct(fields: Fields, name: str, found: Sequence[T]) -> tuple[T, ...]:
    if not found:
        raise fields.fail(name, "found none, expected at least one")
    seen = set()
    for entry in found:
        label = getattr(entry, "label", entry)
        if label in seen:
            raise fields.fail(name, f"{label} stands twice; give one of them another label")
        seen.add(label)
    return tuple(found)


def _label(fields: Fields, default: str) -> str:
    label = fields.text("label", default, limit=60)
    if not _LABEL.fullmatch(label):
        raise fields.fail("label", f"found {label!r}, expected letters, digits and _ . + @ -")
    return str(label)


def _policy(fields: Fields, number: int, here: Path) -> PolicyEntry:
    name = fields.text("name", limit=60)
    if name not in policy_names():
        raise fields.fail("name", f"found {name!r}, expected one of {', '.join(policy_names())}")
    creq = _choice(fields, "creq", None, tuple(CREQ_COLUMNS))
    given = fields.take("options", {}, null=True) or {}
    if not isinstance(given, Mapping) or not all(isinstance(k, str) for k in given):
        raise fields.fail("options", "found something else, expected names and values")
    options = {}
    for key, value in given.items():
        if value is None or isinstance(value, (list, dict)):
            raise fields.fail("options", f"{key}: found {value!r}, expected a number, a text, true or false")
        key = key.replace("-", "_")
        options[key] = _found(fields, "options", here, value) if key == "coefficients" else value
    return PolicyEntry(label=_label(fields, name), name=name, creq=creq, options=options)


def _workload(fields: Fields, number: int, here: Path) -> Named:
    path = _file(fields, "file", here)
    if path is not None:
        return Named(label=_label(fields, path.stem), value=read_workload(path))
    label = _label(fields, f"workload-{number}")
    return Named(label=label, value=workload_from(_rest(fields, "models", "applications")))


def _cluster(fields: Fields, number: int, here: Path, gpu_specs: Sequence[Path]) -> Named:
    path = _file(fields, "file", here)
    if path is not None:
        return Named(label=_label(fields, path.stem), value=read_cluster(path, gpu_specs=gpu_specs))
    label = _label(fields, f"cluster-{number}")
    return Named(label=label, value=cluster_from(_rest(fields, "gpus", "elastic"), gpu_catalogue(gpu_specs)))


def _rest(fields: Fields, *names: str) -> Fields:
    inline = {n: v for n in names if (v := fields.take(n, None, null=True)) is not None}
    if not inline:
        raise fields.fail(names[0], f"found neither file nor {' nor '.join(names)}")
    return Fields(inline, where=fields.where, what=fields.what)


def _arrivals(fields: Fields, here: Path) -> tuple[ArrivalsEntry, ...]:
    found = []
    for number, entry in enumerate(fields.items("arrivals", ["poisson"], limit=_MANY)):
        where = f"{fields.where}: arrivals[{number}]"
        part = Fields({"kind": entry} if isinstance(entry, str) else entry, where=where, what="arrivals")
        trace = _file(part, "trace", here)
        kind = _choice(part, "kind", None, PROCESSES)
        if (trace is None) == (kind is None):
            raise part.fail("kind", f"expected either a trace or a kind ({', '.join(PROCESSES)})")
        label = _label(part, str(kind) if trace is None else trace.stem[:60])
        options = part.take("options", {}, null=True) or {}
        if not isinstance(options, Mapping) or not all(isinstance(k, str) for k in options):
            raise part.fail("options", "found something else, expected names and values")
        part.finish()
        found.append(ArrivalsEntry(label=label, kind=kind, trace=trace, options=dict(options)))
    return _distinct(fields, "arrivals", found)


def _numbers(fields: Fields, name: str, *, high: float) -> tuple[float, ...]:
    found = []
    for value in fields.items(name, [1.0], limit=_MANY):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= high:
            raise fields.fail(name, f"found {value!r}, expected numbers above 0 and at most {high:g}")
        found.append(float(value))
    return _distinct(fields, name, found)


def _seeds(fields: Fields) -> tuple[int, ...]:
    found = fields.items("seeds", [0], limit=10_000)
    for value in found:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise fields.fail("seeds", f"found {value!r}, expected whole numbers from 0")
    return _distinct(fields, "seeds", found)


def _choice(fields: Fields, name: str, default: str | None, known: Sequence[str]) -> Any:
    found = fields.text(name, default, null=True)
    if found is not None and found not in known:
        raise fields.fail(name, f"found {found!r}, expected one of {', '.join(known)}")
    return found


def _settings(fields: Fields, here: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "duration_s": fields.number("duration_s", 60.0, above=True, high=1e7),
        "warmup_s": fields.number("warmup_s", 0.0, high=1e7),
        "objective": _choice(fields, "objective", None, OBJECTIVES),
        "service": _choice(fields, "service", "deterministic", SERVICES),
        "interference": _choice(fields, "interference", "contention", INTERFERENCES),
        "routing": _choice(fields, "routing", "round-robin", ROUTINGS),
        "copy": _choice(fields, "copy", "none", COPIES),
        "admission": _choice(fields, "admission", "plan", ADMISSIONS),
        "max_wait_ms": fields.number("max_wait_ms", None, null=True),
        "coefficients": _file(fields, "coefficients", here),
        "network": _file(fields, "network", here),
    }
    for name in ("runtime", "dtype", "dims"):
        found[name] = fields.text(name, None, limit=1000, null=True)
    if found["warmup_s"] >= found["duration_s"]:
        raise fields.fail("warmup_s", f"found {found['warmup_s']:g}, expected less than duration_s")
    return found


def scaled(workload: Workload, *, rate: float, slo: float) -> Workload:
    """``workload`` with every rate times ``rate`` and every objective times ``slo``."""
    return Workload(
        models=tuple(
            dataclasses.replace(m, rate_rps=m.rate_rps * rate, slo_ms=m.slo_ms * slo) for m in workload.models
        ),
        applications=tuple(
            dataclasses.replace(a, rate_rps=a.rate_rps * rate, slo_ms=a.slo_ms * slo)
            for a in workload.applications
        ),
    )


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """What of ``cluster`` decides a result."""
    return {
        "gpus": [{"spec": dataclasses.asdict(g.spec), "count": g.count} for g in cluster.gpus],
        "elastic": [
            {"spec": dataclasses.asdict(e.spec), "price_per_hour": e.price_per_hour, "limit": e.limit}
            for e in cluster.elastic
        ],
    }
