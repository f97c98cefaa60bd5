"""Say how much longer or shorter kernels take in models that a runtime compiled than single kernels are estimated to.

A runtime that compiles graphs (TensorRT) brings kernels of its own, and of most of them no single measurement is
published; whole models are. A :class:`RuntimeLaw` holds the few figures that such models show: a factor for each family
and precision of kernels, what starting a kernel adds, what attention takes where a block calculates a whole head, and
factors of versions of the runtime. It is fitted by :mod:`gkestimator.training.runtime_laws` and lies in
``runtimes.json`` of a bundle, by the name of the lowering: another runtime adds an entry there, not code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, TypeAlias

import numpy as np

from gkestimator.bundles.models import SHORTEST_KERNEL_US
from gkestimator.core.errors import BundleError, UsageError
from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.core.records import NamedValues, frozen
from gkestimator.core.values import Document, is_number
from gkestimator.hardware.gpus import GpuSpec

SCHEMA_VERSION = 1  # of runtimes.json
ByPrecision: TypeAlias = Mapping[str, float]
Versions: TypeAlias = Mapping[str, ByPrecision]
"""Time over that of the newest version, by version (``major.minor``) and precision."""
_SAME_KERNELS = {"bf16": "fp16"}
"""Precisions that no model was measured in, and the one whose kernels differ from theirs in the format alone."""
_MOST_LAWS = 16
_MOST_VERSIONS = 64


@frozen
class RuntimeLaw:
    """Hold what whole models of one runtime showed.

    ``factors``: time over the estimate, by family and precision; kernels of others stay as estimated. ``added_us``:
    what each of the kernels takes besides. ``cycles_per_score``: clock cycles of an SM for each score of an attention
    whose blocks calculate a whole head of one sample each (0: they do not), up to ``longest`` queries and keys: the
    most that the models had. ``half_width``: what the error of the law adds, in squares, to the 90 % half-width of
    each kernel's log(time), which ``widest`` bounds then. ``versions``: what several GPUs agree on; a version without
    factors is known, and no faster or slower. ``measured_versions``: those of GPUs that were measured, by compute
    capability (``major.minor``): they go before. ``version``: the one in use; ``remark``: what there is to say of it.
    """

    factors: Mapping[str, ByPrecision]
    added_us: float
    cycles_per_score: float
    longest: int
    half_width: float
    widest: float
    versions: Versions
    measured_versions: Mapping[str, Versions] = field(default_factory=dict)
    version: str = ""
    remark: str = field(default="", compare=False)

    def at(self, version: str | None) -> RuntimeLaw:
        """Return the law of one version; None is the newest.

        A version between two known ones is taken as the earlier, and ``remark`` says so. Raises UsageError for one that
        is older or newer than all known, or none at all.
        """
        if version is None:
            return self
        known = sorted(self.versions, key=_numbers)
        oldest = _numbers(known[0])
        newest = _numbers(known[-1])
        asked = _numbers(version)
        same = [name for name in known if asked and _numbers(name)[: len(asked)] == asked[:2]]
        if same:
            return replace(self, version=same[-1])
        if not asked or not oldest < asked < newest:
            raise UsageError(f"runtime_version is {version!r}; known are {', '.join(known)}")
        earlier = [name for name in known if _numbers(name) < asked][-1]
        remark = f"runtime version {version} is not among the known ones: taken as {earlier}"
        return replace(self, version=earlier, remark=remark)

    def apply(
        self, table: KernelTable, gpu: GpuSpec, duration_us: Array, width: Array
    ) -> tuple[Array, Array]:
        """Return microseconds of the kernels of ``table`` in a compiled model, and the 90 % half-widths of their
        logarithms; ``duration_us`` and ``width`` are those of single kernels."""
        factor = np.full(len(table), np.nan)
        version = np.ones(len(table))
        by_version = self._version_on(gpu)
        for precision, rows in table.by_precision():
            measured = _SAME_KERNELS.get(precision, precision)
            version[rows] = by_version.get(measured, 1.0)
            for family, factors in self.factors.items():
                if measured in factors:
                    of_family = table.family[rows] == family
                    factor[rows[of_family]] = factors[measured]
        known = np.isfinite(factor)
        factor = factor ** self._share_of_seen(table)
        in_model = np.maximum(duration_us * factor, self._whole_heads_us(table, gpu))
        in_model = np.maximum((in_model + self.added_us) * version, SHORTEST_KERNEL_US)
        wider = np.minimum(np.hypot(width, self.half_width), self.widest)
        return np.where(known, in_model, duration_us), np.where(known, wider, width)

    def _share_of_seen(self, table: KernelTable) -> Array:
        """Return the exponent of each kernel's factor: below 1 for attention of more queries than the models had.

        Judged: what short attention gains over a kernel for any length (starting, tiles that are not full) is one part
        in so many of a longer one.
        """
        share = np.minimum(1.0, self.longest / table.size("gemm_m"))
        return np.where(table.family == Family.ATTENTION, share, 1.0)

    def _version_on(self, gpu: GpuSpec) -> ByPrecision:
        """Return the factors of the version in use; none for the newest."""
        major, minor = gpu.compute_capability
        measured = self.measured_versions.get(f"{major}.{minor}", {})
        return measured.get(self.version, self.versions.get(self.version, {}))

    def _whole_heads_us(self, table: KernelTable, gpu: GpuSpec) -> Array:
        """Return the least microseconds of attention whose blocks calculate a whole head each; 0 for all else."""
        queries = np.minimum(table.size("gemm_m"), self.longest)
        keys = np.minimum(table.size("gemm_n"), self.longest)
        cycles = self.cycles_per_score * queries * keys
        microseconds = cycles / gpu.boost_clock_mhz
        return np.where(table.family == Family.ATTENTION, microseconds, 0.0)

    def document(self) -> NamedValues:
        """Return the law as JSON values."""
        measured = {}
        for chip, versions in self.measured_versions.items():
            measured[chip] = _plain(versions)
        return {
            "factors": _plain(self.factors),
            "added_us": self.added_us,
            "cycles_per_score": self.cycles_per_score,
            "longest": self.longest,
            "half_width": self.half_width,
            "widest": self.widest,
            "versions": _plain(self.versions),
            "measured_versions": measured,
        }


def _plain(versions: Versions) -> dict[str, dict[str, float]]:
    return {version: dict(factors) for version, factors in versions.items()}


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version; none for a text that is no version."""
    parts = version.split(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        return ()
    return tuple(map(int, parts))


def laws_document(laws: Mapping[str, RuntimeLaw]) -> NamedValues:
    """Return ``runtimes.json`` of laws by lowering."""
    return {
        "schema_version": SCHEMA_VERSION,
        "laws": {lowering: law.document() for lowering, law in laws.items()},
    }


def read_laws(document: Document, *, where: str) -> dict[str, RuntimeLaw]:
    """Return the laws that :func:`laws_document` gave, checked as a stranger's. Raises BundleError."""
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise BundleError(f"{where}: schema_version is {version!r}; expected {SCHEMA_VERSION}")
    listed = document.get("laws")
    if not isinstance(listed, dict) or len(listed) > _MOST_LAWS:
        raise BundleError(f"{where}: laws is no object of at most {_MOST_LAWS} runtimes")
    return {lowering: _law(f"{where}: {lowering}", entry) for lowering, entry in listed.items()}


def _law(at: str, entry: Any) -> RuntimeLaw:
    if not isinstance(entry, dict):
        raise BundleError(f"{at} is a {type(entry).__name__}; expected an object")
    families = {family.value for family in Family} - {Family.HOST.value}
    factors = _factors(f"{at}: factors", entry.get("factors"), len(families))
    unknown = sorted(set(factors) - families)
    if unknown:
        raise BundleError(f"{at}: factors of {unknown[0][:40]!r}; expected families of kernels")
    versions = _versions(f"{at}: versions", entry.get("versions"))
    if not versions:
        raise BundleError(f"{at}: versions names none; expected at least one")
    measured = entry.get("measured_versions")
    if not isinstance(measured, dict) or len(measured) > _MOST_VERSIONS:
        raise BundleError(f"{at}: measured_versions is no object of at most {_MOST_VERSIONS} entries")
    measured_versions = {}
    for chip, each in measured.items():
        measured_versions[chip] = _versions(f"{at}: measured_versions: {chip[:40]}", each)
    return RuntimeLaw(
        factors=factors,
        added_us=_number(at, entry, "added_us", -100.0, 100.0),
        cycles_per_score=_number(at, entry, "cycles_per_score", 0.0, 1000.0),
        longest=int(_number(at, entry, "longest", 1, 1_000_000)),
        half_width=_number(at, entry, "half_width", 0.0, 5.0),
        widest=_number(at, entry, "widest", 0.0, 5.0),
        versions=versions,
        measured_versions=measured_versions,
    )


def _versions(at: str, value: Any) -> dict[str, dict[str, float]]:
    versions = _factors(at, value, _MOST_VERSIONS)
    for name in versions:
        if len(_numbers(name)) != 2:
            raise BundleError(f"{at} has {name[:40]!r}; expected major.minor")
    return versions


def _factors(at: str, value: Any, most: int) -> dict[str, dict[str, float]]:
    if not isinstance(value, dict) or len(value) > most:
        raise BundleError(f"{at} is no object of at most {most} entries")
    for name, factors in value.items():
        fits = isinstance(factors, dict) and len(factors) <= _MOST_LAWS
        if not fits or not all(is_number(factor, 0.01, 100.0) for factor in factors.values()):
            raise BundleError(f"{at}: {name[:40]}: expected numbers from 0.01 to 100 by precision")
    return value


def _number(at: str, entry: Document, name: str, low: float, high: float) -> float:
    value = entry.get(name)
    if not is_number(value, low, high):
        raise BundleError(f"{at}: {name} is {str(value)[:40]}; expected a number from {low:g} to {high:g}")
    return float(value)
