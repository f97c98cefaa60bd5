"""Hold what is known of one GPU type: the sheet that its file states, and the specification that estimates need.

A sheet may lack any figure (None: no source states it). A specification lacks only what an estimate can do without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, TypeAlias

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import UsageError
from gkestimator.core.options import spelled
from gkestimator.core.records import frozen

STAND_IN = "CPU"
"""The architecture of a CPU that is described as a GPU."""


@frozen
class GpuSpec:
    """Hold one GPU type. Rates are dense peaks per second; sizes bytes; clocks MHz; price USD per GPU-hour on
    demand.

    ``peak_flops_per_s`` maps a precision (``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``int8``,
    ``fp64``) to the peak of the units that calculate it at the boost clock: tensor cores where they exist,
    else the CUDA cores; a precision that the hardware lacks is absent. ``vector_flops_per_s`` is the same for
    the CUDA cores alone (elementwise work). ``unknown`` names figures that the file says are not known: rates that
    the hardware has but no source states (``peak_flops_per_s.fp64``), and ``boost_clock_mhz`` where the clock in that
    field is the tensor clock because sources disagree on the boost clock. ``base_clock_mhz`` is None where the vendor
    publishes none. ``memory_visible_bytes``, what a program sees, is None where nobody printed it: whether a model fits
    is then unknown. ``price_per_hour_usd`` and ``price_date`` are None where no cloud sells the type.
    ``pcie_bytes_per_s`` is one direction's. ``dram_sustained_bytes_per_s`` is a published measurement of what
    streaming kernels reach (None: none is known). ``nvlink_bytes_per_s`` is one direction's of all links to other GPUs
    of the host together (None: boards of this type are not linked as they are sold). ``sources`` maps each field
    (``peak_flops_per_s.fp16`` for an entry of a mapping) to where its figure is from.
    """

    name: str
    aliases: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int]
    sms: int
    cuda_cores_per_sm: int
    base_clock_mhz: float | None
    boost_clock_mhz: float
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    vector_flops_per_s: Mapping[str, float] = field(hash=False)
    dram_bytes_per_s: float
    l2_bytes: int
    memory_bytes: int
    memory_visible_bytes: int | None
    registers_per_sm: int
    shared_bytes_per_sm: int
    shared_bytes_per_block_max: int
    warps_per_sm: int
    blocks_per_sm: int
    threads_per_block_max: int
    pcie_bytes_per_s: float
    power_limit_w: float
    price_per_hour_usd: float | None
    price_date: str | None
    sources: Mapping[str, str] = field(hash=False)
    note: str = ""
    short_names: tuple[str, ...] = ()
    dram_sustained_bytes_per_s: float | None = None
    nvlink_bytes_per_s: float | None = None
    unknown: frozenset[str] = frozenset()

    @property
    def link_bytes_per_s(self) -> float:
        """Return the rate, one direction, at which this GPU exchanges data with others of its host."""
        return self.nvlink_bytes_per_s or self.pcie_bytes_per_s

    @property
    def stands_in(self) -> bool:
        """Return whether this is a CPU described as a GPU, to try profiling without one (``gkest profile
        build`` writes it): launch geometry, occupancy and SM utilisation then mean nothing."""
        return self.architecture == STAND_IN

    def peak(self, precision: Precision | str) -> float:
        """Return the peak FLOP/s of matrix work in ``precision``. Raises UsageError where the hardware lacks it, and
        where no source states its rate."""
        rate = self.peak_flops_per_s.get(str(precision))
        if rate is None:
            self.refuse_unknown_peak(precision)
            known = ", ".join(self.peak_flops_per_s)
            raise UsageError(f"{self.name} has no {precision} arithmetic (it has {known})")
        return rate

    def refuse_unknown_peak(self, precision: Precision | str) -> None:
        """Raise UsageError where the GPU file says that the peak in ``precision`` is unknown: nothing is estimated from
        a guess."""
        if f"peak_flops_per_s.{precision}" in self.unknown:
            raise UsageError(
                f"{self.name}: the {precision} rate of this GPU is unknown (no source states it), and nothing is "
                f"estimated from a guess; known: {', '.join(self.peak_flops_per_s)}"
            )

    def vector(self, precision: Precision | str) -> float:
        """Return the peak FLOP/s of the CUDA cores; a type they do not calculate in, or at an unknown rate, is
        converted to fp32 first."""
        return self.vector_flops_per_s.get(str(precision), self.vector_flops_per_s["fp32"])

    def usd_per_million(self, throughput_rps: float | None) -> float | None:
        """Return what a million samples cost at ``throughput_rps`` samples a second (USD); None where either the price
        or the throughput is unknown."""
        if self.price_per_hour_usd is None or not throughput_rps:
            return None
        return self.price_per_hour_usd / 3600 / throughput_rps * 1e6

    def visible_bytes(self) -> int:
        """Return the memory that a program sees. Raises UsageError where it is unknown."""
        if self.memory_visible_bytes is None:
            raise UsageError(
                f"{self.name}: the memory that programs see on this GPU is unknown (no source states it), which this "
                f"needs; {spelled('gpu_specs', '--gpu-spec')} takes a file that states memory_visible_mib"
            )
        return self.memory_visible_bytes


@frozen
class GpuSheet:
    """Hold what a GPU file states, complete or not.

    ``values``: every figure of :class:`GpuSpec` by the name of its field, in base units, None where unknown; rates by
    precision without the unknown ones, which ``unknown`` names.
    """

    name: str
    aliases: tuple[str, ...]
    short_names: tuple[str, ...]
    architecture: str
    note: str
    values: Mapping[str, Any] = field(hash=False)
    unknown: frozenset[str]
    sources: Mapping[str, str] = field(hash=False)

    def missing(self) -> tuple[str, ...]:
        """Return the figures that are unknown and that every estimate of time needs."""
        return tuple(name for name in _NEEDED if self.values[name] is None)

    def refusal(self) -> str:
        """Return why nothing is estimated for this type, of which a figure is :meth:`missing`."""
        return (
            f"{self.name}: nothing can be estimated, because no source states its {', '.join(self.missing())} "
            f"(`gkest gpus {self.name}`; {spelled('gpu_specs', '--gpu-spec')} takes a file that states them)"
        )

    def spec(self) -> GpuSpec:
        """Return the specification. Raises UsageError, naming the figures, where it lacks what estimates need."""
        if self.missing():
            raise UsageError(self.refusal())
        return GpuSpec(
            name=self.name,
            aliases=self.aliases,
            short_names=self.short_names,
            architecture=self.architecture,
            note=self.note,
            unknown=self.unknown,
            sources=self.sources,
            **self.values,
        )


# An estimate does without these: what they are needed for is unknown then.
_OPTIONAL = (
    "base_clock_mhz",
    "memory_visible_bytes",
    "price_per_hour_usd",
    "price_date",
    "dram_sustained_bytes_per_s",
    "nvlink_bytes_per_s",
)
_TEXTS = ("name", "aliases", "short_names", "architecture", "note", "unknown", "sources")
FIGURES = tuple(member.name for member in fields(GpuSpec) if member.name not in _TEXTS)
_NEEDED = tuple(name for name in FIGURES if name not in _OPTIONAL)

GpuSpecs: TypeAlias = Mapping[str, GpuSpec]
"""Specifications by canonical GPU name."""
