"""Read the cluster: the GPUs there are (fixed), or those that may be rented (elastic)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gkestimator.core.errors import DocumentError, UsageError
from gkestimator.core.records import Names, frozen
from gkestimator.documents.checking import Fields, load_yaml
from gkestimator.hardware.gpus import GpuCatalogue, GpuSpec, gpu_catalogue

# Above any data centre: a typing error, not a cluster.
_MAX_GPUS = 100_000


@frozen
class GpuCount:
    """Hold ``count`` GPUs of one type."""

    spec: GpuSpec
    count: int


@frozen
class ElasticGpu:
    """Hold a GPU type that may be rented at ``price_per_hour`` (USD); at most ``limit`` of them (None: no
    limit).
    """

    spec: GpuSpec
    price_per_hour: float
    limit: int | None = None


@frozen
class Cluster:
    """Hold either ``gpus`` that are there or ``elastic`` types that may be rented; the other is empty.

    ``notes`` say what was assumed (a short GPU name, a price of the specification).
    """

    gpus: tuple[GpuCount, ...] = ()
    elastic: tuple[ElasticGpu, ...] = ()
    notes: Names = ()

    @property
    def types(self) -> tuple[GpuSpec, ...]:
        """Return the GPU types, in the order of the file."""
        return tuple(g.spec for g in self.gpus) or tuple(g.spec for g in self.elastic)


def read_cluster(path: Path | str | Mapping[str, Any], *, gpu_specs: Sequence[Path | str] = ()) -> Cluster:
    """Return the cluster in the YAML file at ``path``, or in a mapping of the same fields; GPU names are looked up as
    everywhere.

    Raises DocumentError naming the field.
    """
    return cluster_from(load_yaml(path, what="a cluster"), gpu_catalogue(gpu_specs))


def cluster_from(fields: Fields, catalogue: GpuCatalogue) -> Cluster:
    """Return the cluster in ``fields``. Raises DocumentError naming the field."""
    fields.whole("schema_version", 1, low=1, high=1)
    fixed = fields.objects("gpus", [], what="GPUs of one type", limit=1000)
    elastic = fields.objects("elastic", [], what="a GPU type to rent", limit=1000)
    fields.finish()
    if bool(fixed) == bool(elastic):
        both = "both gpus and elastic" if fixed else "no GPUs"
        raise DocumentError(f"{fields.where}: found {both}, expected either gpus or elastic")
    notes: list[str] = []
    counts = [_count(entry, catalogue, notes) for entry in fixed]
    offers = [_offer(entry, catalogue, notes) for entry in elastic]
    names = [g.spec.name for g in counts] + [e.spec.name for e in offers]
    for name in names:
        if names.count(name) > 1:
            raise DocumentError(f"{fields.where}: {name} stands twice, expected once")
    if sum(g.count for g in counts) > _MAX_GPUS:
        raise DocumentError(f"{fields.where}: found more than {_MAX_GPUS:,} GPUs, expected fewer")
    return Cluster(gpus=tuple(counts), elastic=tuple(offers), notes=tuple(notes))


def _spec(fields: Fields, catalogue: GpuCatalogue, notes: list[str]) -> GpuSpec:
    text = fields.text("type", limit=100)
    try:
        spec, note = catalogue.resolve(text)
    except UsageError as e:
        raise fields.fail("type", str(e)) from e
    if note:
        notes.append(note)
    return spec


def _count(fields: Fields, catalogue: GpuCatalogue, notes: list[str]) -> GpuCount:
    spec = _spec(fields, catalogue, notes)
    count = fields.whole("count", high=_MAX_GPUS)
    fields.finish()
    return GpuCount(spec=spec, count=count)


def _offer(fields: Fields, catalogue: GpuCatalogue, notes: list[str]) -> ElasticGpu:
    spec = _spec(fields, catalogue, notes)
    price = fields.number("price_per_hour", None, above=True, high=1e6)
    if price is None:
        price = spec.price_per_hour_usd
        if price is None:
            raise fields.fail("price_per_hour", f"missing, and none is known of {spec.name}")
        notes.append(f"{spec.name} at {price:g} USD per hour (on demand, {spec.price_date})")
    limit = fields.whole("limit", None, high=_MAX_GPUS)
    fields.finish()
    return ElasticGpu(spec=spec, price_per_hour=price, limit=limit)
