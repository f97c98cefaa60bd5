"""Say how much longer or shorter kernels take in models that a runtime compiled than single kernels are estimated to.

A runtime that compiles graphs (TensorRT) brings kernels of its own, and of most of them no single measurement is
published; whole models are. A :class:`RuntimeLaw` holds the few figures that such models show: a factor for each family
and precision of kernels, what starting a kernel adds, what attention takes where a block calculates a whole head, and
factors of versions of the runtime. It is fitted by :mod:`gkestimator.training.runtime_laws` and lies in
``runtimes.json`` of a bundle, by the name of the lowering: another runtime adds an entry there, not code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from typing import TypeAlias

import numpy as np

from gkestimator.bundles.models import SHORTEST_KERNEL_US
from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import Array, Family, KernelTable
from gkestimator.core.records import NamedNumbers, NamedValues, frozen
from gkestimator.core.stored import StoredObject
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


def read_laws(document: StoredObject) -> dict[str, RuntimeLaw]:
    """Return the laws that :func:`laws_document` gave, checked as a stranger's. Raises BundleError."""
    document.version(SCHEMA_VERSION)
    return {lowering: _law(entry) for lowering, entry in document.by_name("laws", most=_MOST_LAWS).items()}


def _law(entry: StoredObject) -> RuntimeLaw:
    families = {family.value for family in Family} - {Family.HOST.value}
    versions = _versions(entry, "versions")
    if not versions:
        raise entry.unfit("versions", "at least one")
    measured = entry.by_name("measured_versions", most=_MOST_VERSIONS)
    by_chip = entry.object("measured_versions")
    return RuntimeLaw(
        factors=_factors(entry, "factors", families),
        added_us=entry.number("added_us", -100.0, 100.0),
        cycles_per_score=entry.number("cycles_per_score", 0.0, 1000.0),
        longest=entry.whole("longest", 1, 1_000_000),
        half_width=entry.number("half_width", 0.0, 5.0),
        widest=entry.number("widest", 0.0, 5.0),
        versions=versions,
        measured_versions={chip: _versions(by_chip, chip) for chip in measured},
    )


def _versions(entry: StoredObject, field: str) -> dict[str, NamedNumbers]:
    versions = _factors(entry, field)
    for name in versions:
        if len(_numbers(name)) != 2:
            raise entry.unfit(field, f"versions as major.minor, not {name!r}")
    return versions


def _factors(
    entry: StoredObject, field: str, names: Collection[str] | None = None
) -> dict[str, NamedNumbers]:
    """Return the numbers by precision of each name under ``field``."""
    return {
        name: {precision: factors.number(precision, 0.01, 100.0) for precision in factors}
        for name, factors in entry.by_name(field, names, most=_MOST_VERSIONS).items()
    }
