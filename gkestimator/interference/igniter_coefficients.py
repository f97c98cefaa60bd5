"""The coefficients of iGniter's latency model: the file that carries them, and what the table knows without
it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen
from gkestimator.core.specfiles import read_spec
from gkestimator.documents.checking import Fields, load_json
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.interference.igniter_law import GpuTerms, IgniterLoad, active_ms, linear
from gkestimator.tables.candidate import Candidate

FiguresOf: TypeAlias = Mapping[str, float | None]

_WHAT = "file of iGniter coefficients"
_ANY = -1e15


@frozen
class ModelCoefficients:
    """Hold what was fitted for one model on one GPU type; None: the table's column instead.

    ``schedule_ms_per_kernel``: k_sch. ``cache_slowdown``: alpha_cache, per unit of the neighbours' L2
    utilisation (0 to 1). ``kernels``: n_k. ``active``: k1 to k5 (ms; the share from 0 to 1). ``power_w``
    (above the idle GPU) and ``l2_util_pct``: (slope, offset) over samples per ms.
    """

    schedule_ms_per_kernel: float
    cache_slowdown: float
    kernels: int | None = None
    active: tuple[float, float, float, float, float] | None = None
    power_w: tuple[float, float] | None = None
    l2_util_pct: tuple[float, float] | None = None


@frozen
class IgniterCoefficients:
    """Hold ``gpus`` by type (figures that the file leaves out are None there), ``models`` by (model, GPU
    type); ``source`` is the file."""

    source: str
    gpus: Mapping[str, FiguresOf]
    models: Mapping[tuple[str, str], ModelCoefficients]


def read_coefficients(path: Path | str) -> IgniterCoefficients:
    """Return the coefficients in the TOML or JSON (``*.json``) file at ``path``. Raises SpecError or
    DocumentError naming the field. ``examples/igniter-coefficients.toml`` documents every field."""
    path = Path(path)
    if path.suffix.casefold() == ".json":
        fields = load_json(path, what=f"a {_WHAT}")
    else:
        fields = Fields(read_spec(path, what=_WHAT), where=str(path), what=f"a {_WHAT}")
    return coefficients_from(fields, str(path))


def coefficients_from(fields: Fields, source: str) -> IgniterCoefficients:
    """Return the coefficients in ``fields``, which ``source`` holds. Raises DocumentError naming the field."""
    fields.whole("schema_version", low=1, high=1)
    catalogue = gpu_catalogue()  # a type of the user's own specification file keeps its name
    gpus: dict[str, FiguresOf] = {}
    for entry in fields.objects("gpus", what="a GPU type with its coefficients", limit=1000):
        name = catalogue.canonical(entry.text("type", limit=100))
        if name in gpus:
            raise entry.fail("type", f"found {name} twice, expected once")
        number = entry.number
        gpus[name] = {
            "idle_power_w": number("idle_power_w", high=1e5),
            "clock_mhz_per_w": number("clock_mhz_per_w", low=-1e4, high=0.0),
            "schedule_ms_per_model": number("schedule_ms_per_model", high=1e3),
            "schedule_offset_ms": number("schedule_offset_ms", low=-1e3, high=1e3),
            "clock_mhz": number("clock_mhz", None, above=True, high=1e5),
            "power_limit_w": number("power_limit_w", None, above=True, high=1e5),
            "pcie_bytes_per_s": number("pcie_bytes_per_s", None, above=True, high=1e13),
        }
        entry.finish()
    models: dict[tuple[str, str], ModelCoefficients] = {}
    for entry in fields.objects("models", [], what="a model with its coefficients on one GPU type"):
        key = (entry.name("name"), catalogue.canonical(entry.text("gpu", limit=100)))
        if key in models:
            raise entry.fail("name", f"found {key[0]} on {key[1]} twice, expected once")
        number = entry.number
        models[key] = ModelCoefficients(
            schedule_ms_per_kernel=number("schedule_ms_per_kernel", high=1e3),
            cache_slowdown=number("cache_slowdown", high=1e6),
            kernels=entry.whole("kernels", None),
            active=_fit(entry),
            power_w=_line(entry, "power_w"),
            l2_util_pct=_line(entry, "l2_util_pct"),
        )
        entry.finish()
    fields.finish()
    return IgniterCoefficients(source=source, gpus=gpus, models=models)


def _fit(entry: Fields) -> tuple[float, float, float, float, float] | None:
    own = entry.object("active", None, what="the fit of k_act")
    if own is None:
        return None
    k1, k2, k3, k4, k5 = (own.number(f"k{i}", low=_ANY) for i in range(1, 6))
    own.finish()
    return (k1, k2, k3, k4, k5)


def _line(entry: Fields, field: str) -> tuple[float, float] | None:
    own = entry.object(field, None, what=f"the line of {field}")
    if own is None:
        return None
    slope = own.number("slope", low=_ANY)
    offset = own.number("offset", low=_ANY)
    own.finish()
    return (slope, offset)


def terms_of(spec: GpuSpec, coefficients: IgniterCoefficients | None) -> GpuTerms:
    """Return the terms of the GPU type ``spec``. Raises UsageError: the coefficients lack it."""
    given: FiguresOf = {}
    if coefficients is not None:
        if spec.name not in coefficients.gpus:
            names = ", ".join(coefficients.gpus) or "none"
            raise UsageError(
                f"{coefficients.source}: gpus: found {names}, expected {spec.name} too, which the cluster has"
            )
        given = coefficients.gpus[spec.name]
    known = given.get
    return GpuTerms(
        pcie_bytes_per_s=known("pcie_bytes_per_s") or spec.pcie_bytes_per_s,
        clock_mhz=known("clock_mhz") or spec.boost_clock_mhz,
        power_limit_w=known("power_limit_w") or spec.power_limit_w,
        idle_power_w=known("idle_power_w"),
        clock_mhz_per_w=known("clock_mhz_per_w"),
        schedule_ms_per_model=known("schedule_ms_per_model"),
        schedule_offset_ms=known("schedule_offset_ms"),
    )


def load_of(
    model: str,
    candidate: Candidate,
    gpu: GpuTerms,
    coefficients: IgniterCoefficients | None,
    *,
    beside: bool,
    asker: str = "policy igniter",
) -> IgniterLoad:
    """Return ``candidate`` in the model's terms. ``beside``: whether it may have neighbours. ``asker``: who
    needs what is null, for the error.

    Without a model's own coefficients its L2 utilisation and power are the table's columns, k_sch n_k is
    part of the latency, and alpha_cache is its L2 utilisation: the part of its time that moves data through
    the L2 is stretched by what the neighbours take of it. Raises UsageError naming the column that is null
    where it is needed.
    """
    row = candidate.row
    if coefficients is not None:
        own = coefficients.models.get((model, candidate.gpu))
    else:
        own = None
    if own is None:
        own = _NOTHING_FITTED
    if own.kernels is None:
        kernels = row.kernels
    else:
        kernels = own.kernels
    if coefficients is not None and beside and kernels is None:
        raise UsageError(
            f"{asker} needs kernels, which is null for {model} on {candidate.gpu} in the table and missing "
            f"from {coefficients.source}"
        )
    schedule = own.schedule_ms_per_kernel * (kernels or 0)
    active = candidate.latency_ms - schedule
    if own.active is not None:
        active = active_ms(own.active, candidate.batch_size, candidate.sm_share_pct / 100)
    if active <= 0:
        assert coefficients is not None
        raise UsageError(
            f"{coefficients.source}: schedule_ms_per_kernel of {model}: found {schedule:g} ms for {kernels} kernels, "
            f"expected less than the latency, {candidate.latency_ms:g} ms at batch {candidate.batch_size}"
        )
    l2 = _l2_util(own, candidate, active)
    if l2 is None and beside:
        if coefficients is not None:
            where = f" (models: {model}: l2_util_pct)"
        else:
            where = ""
        raise UsageError(
            f"{asker} needs l2_util_mean_pct, which is null for {model} on {candidate.gpu}, or "
            f"a file of coefficients{where}"
        )
    cache_slowdown = l2
    if own is not _NOTHING_FITTED:
        cache_slowdown = own.cache_slowdown
    return IgniterLoad(
        batch_size=candidate.batch_size,
        input_bytes=row.input_bytes,
        output_bytes=row.output_bytes,
        kernels=kernels,
        schedule_ms=schedule,
        active_ms=active,
        cache_slowdown=cache_slowdown,
        l2_util=l2,
        power_w=_power_w(own, candidate, active, gpu),
    )


_NOTHING_FITTED = ModelCoefficients(schedule_ms_per_kernel=0.0, cache_slowdown=0.0)


def _l2_util(own: ModelCoefficients, candidate: Candidate, active: float) -> float | None:
    """Return c, 0 to 1: by the fitted line, else the table's column; None: neither is known."""
    if own.l2_util_pct is not None:
        return linear(*own.l2_util_pct, candidate.batch_size, active) / 100
    percent = candidate.row.l2_util_mean_pct
    if percent is None:
        return None
    return percent / 100


def _power_w(own: ModelCoefficients, candidate: Candidate, active: float, gpu: GpuTerms) -> float | None:
    """Return what it adds to an idle GPU: by the fitted line, else the table's column; None: neither is
    known."""
    if own.power_w is not None:
        return linear(*own.power_w, candidate.batch_size, active)
    power = candidate.row.power_w
    if power is None or gpu.idle_power_w is None:
        return None
    return max(0.0, power - gpu.idle_power_w)
