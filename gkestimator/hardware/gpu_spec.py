"""Hold the specification of one GPU type: a record of figures and where each is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import UsageError
from gkestimator.core.records import frozen


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
    publishes none.
    ``price_per_hour_usd`` and ``price_date`` are None where no cloud sells the type. ``pcie_bytes_per_s`` is
    one direction's. ``dram_sustained_bytes_per_s`` is a published measurement of what streaming kernels reach
    (None: none is known). ``sources`` maps each field (``peak_flops_per_s.fp16`` for an entry of a mapping) to
    where its figure is from.
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
    memory_visible_bytes: int
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
    unknown: frozenset[str] = frozenset()

    @property
    def stands_in(self) -> bool:
        """Return whether this is a CPU described as a GPU, to try profiling without one (``gkest profile
        build`` writes it): launch geometry, occupancy and SM utilisation then mean nothing."""
        return self.architecture == "CPU"

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
                f"{self.name}: the {precision} rate of this GPU is unknown (no source states it; `gkest gpus "
                f"{self.name}`), so its time in {precision} is; --gpu-spec takes a file that states it"
            )

    def vector(self, precision: Precision | str) -> float:
        """Return the peak FLOP/s of the CUDA cores; a type they do not calculate in, or at an unknown rate, is
        converted to fp32 first."""
        return self.vector_flops_per_s.get(str(precision), self.vector_flops_per_s["fp32"])


GpuSpecs: TypeAlias = Mapping[str, GpuSpec]
"""Specifications by canonical GPU name."""
