"""GPU specifications: what a GPU type can do, from one TOML file each, every figure with unit and source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["GpuSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU type. Rates are dense peaks per second; sizes bytes; clocks MHz; price USD per GPU-hour on demand.

    ``peak_flops_per_s`` maps a precision (``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``int8``, ``fp64``) to the peak of the
    units that calculate it at the boost clock: tensor cores where they exist, else the CUDA cores; a precision that
    the hardware lacks is absent. ``vector_flops_per_s`` is the same for the CUDA cores alone (elementwise work).
    ``price_per_hour_usd`` and ``price_date`` are None where no cloud sells the type.
    """

    name: str
    aliases: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int]
    sms: int
    cuda_cores_per_sm: int
    base_clock_mhz: float
    boost_clock_mhz: float
    peak_flops_per_s: Mapping[str, float]
    vector_flops_per_s: Mapping[str, float]
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
    sources: Mapping[str, str]
    note: str = ""
