"""Rules that hold the figures of a GPU specification to each other, so that a wrong one is refused when it is read.

A rule is physical (a product of other figures), documented (a limit of the compute capability) or the range of known
boards, widened. Each states its derivation. Two kinds of files keep fewer of them: a CPU described as a GPU has none
of a GPU's limits, and a compute capability without a capability file has only the rules that hold for every GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gkestimator.core.records import frozen
from gkestimator.hardware.gpu_capabilities import Capability, capability_of, limits_problem
from gkestimator.hardware.gpu_spec import STAND_IN, GpuSheet

Problem = tuple[str, str]
_CORES = 0.05
"""Rounding of published clocks and rates: a data sheet's 14 TFLOP/s stand for 14.13."""
_BANDWIDTH = 0.03
_VECTOR = 0.1
_TENSOR = (0.15, 1.15)
"""Boards sold under export limits keep 0.23 of their chip's tensor rate (H20), GeForce boards 0.5; a published rate is
at a clock up to 8 % from the boost clock (H100, B200)."""
_CUT_FP64 = (1 / 110, 1 / 35)
"""Boards sold under export limits do about 1 TFLOP/s of fp64 (H20, H800): 1/40 to 1/67 of fp32."""
_CLOCK_MHZ = (300.0, 4000.0)
"""Boost clocks of boards from Kepler to Blackwell: 625 (Jetson Orin Nano) to 2,617 MHz."""
_BASE_OVER_BOOST = 0.2
"""The least of known boards is 0.29 (L40)."""
_VISIBLE = 0.5
"""Error correction takes at most 1/8 of the memory, the driver a few per cent; a MIG slice is rounded to whole GiB."""
_GIB_PER_BUS_BIT = {"GDDR": (0.014, 0.26), "HBM2": (0.0035, 0.018), "HBM3": (0.011, 0.04)}
"""A chip of GDDR has 32 bits and 0.5 to 3 GiB, two where both sides of the board are used (Jetson's LPDDR5: 8 GiB to
32 bits); a stack of HBM has 1,024 bits and 4 to 16 GiB, from Hopper on 16 to 36."""
_HBM_BITS = 2048
"""No board with GDDR has a wider bus than 512 bits, none with HBM a narrower one than 3,072."""
_SUSTAINED = 0.3
_L2 = (0.5, 1.25)
"""Boards with half of a chip's cache slices switched off are sold; none has more than the chip."""
_WATTS = (0.5, 2.0)
"""Makers sell one chip with half and with twice the power (mobile and overclocked boards)."""
_LINK = 0.05
# One direction of a lane, bytes per second: 2.5 and 5 GT/s with 8 of 10 bits, 8 to 32 GT/s with 128 of 130, 64 GT/s
# with 242 of 256 (PCI Express Base Specification 6.0).
_LANE_RATES = (
    0.25e9,
    0.5e9,
    8e9 * 128 / 130 / 8,
    16e9 * 128 / 130 / 8,
    32e9 * 128 / 130 / 8,
    64e9 * 242 / 256 / 8,
)
_LANES = (1, 2, 4, 8, 16)
# From 400 GB/s of both directions beside PCI Express 5.0 (H800) to 1.8 TB/s beside it (B200).
_NVLINK_OVER_HOST = (1.5, 16.0)
_NVLINK_C2C = 450e9
"""NVLink-C2C between Grace and Hopper, one direction (GH200 data sheet)."""


class _UnknownFigureError(Exception):
    """Say that a rule asks for a figure that the file does not know, and so says nothing of it."""


class _Figures:
    """Give the figures of a sheet as attributes; one that is unknown ends the rule that asks for it."""

    def __init__(self, sheet: GpuSheet) -> None:
        self.stands_in = sheet.architecture == STAND_IN
        self.values = sheet.values

    def __getattr__(self, name: str) -> Any:
        value = self.values[name]
        if value is None:
            raise _UnknownFigureError(name)
        return value

    def known(self, name: str) -> Any:
        """Return the figure ``name``, None where it is unknown."""
        return self.values[name]


@frozen
class _Board:
    """Hold one GPU's figures together with its capability (None: the package has no file of it)."""

    spec: _Figures
    capability: Capability | None
    bus_bits: float | None
    pin_bits_per_s: float | None


def contradiction(sheet: GpuSheet, *, bus_bits: float | None, pin_bits_per_s: float | None) -> Problem | None:
    """Return the first field of ``sheet`` that other figures contradict and the message, or None.

    ``bus_bits`` and ``pin_bits_per_s`` (bits per second and pin): the memory's, where the file gives them.
    """
    figures = _Figures(sheet)
    if figures.stands_in:
        known = None
    else:
        known = capability_of(figures.compute_capability)
    board = _Board(spec=figures, capability=known, bus_bits=bus_bits, pin_bits_per_s=pin_bits_per_s)
    rules = [_rates, _fp32_rate, _bandwidth, _visible_memory, _installed_memory, _limit_ratios]
    if not figures.stands_in:
        rules += [_generation, _clocks, _link, _links_to_gpus]
    if known is not None:
        rules += [_limits, _vector_rates, _tensor_rates, _cache, _power]
    for rule in rules:
        try:
            problem = next(rule(board), None)
        except _UnknownFigureError:
            continue
        if problem is not None:
            return problem
    return None


def _rates(board: _Board) -> Iterator[Problem]:
    """Hold each peak to the CUDA cores' rate of the same precision."""
    spec = board.spec
    for label, rates in (("peak", spec.peak_flops_per_s), ("vector", spec.vector_flops_per_s)):
        if "fp32" not in rates:
            yield f"{label}_flops_per_s.fp32", "is missing, but is required"
            return
    stated = spec.vector_flops_per_s["fp32"]
    for precision, rate in spec.vector_flops_per_s.items():
        peak = spec.peak_flops_per_s.get(precision)
        if peak is not None and rate > (1.0 + _CORES) * peak:
            yield (
                f"peak_flops_per_s.{precision}",
                f"is {peak:.4g}, below the vector rate of the same precision, {rate:.4g}",
            )
    # No tensor core calculates in fp32: its peak is the CUDA cores'.
    peak = spec.peak_flops_per_s["fp32"]
    if not spec.stands_in and peak > (1.0 + _CORES) * stated:
        yield "peak_flops_per_s.fp32", f"is {peak:.4g} FLOP/s, but vector_flops_per_s.fp32 is {stated:.4g}"


def _fp32_rate(board: _Board) -> Iterator[Problem]:
    """Hold the fp32 rate to two operations per core and clock."""
    spec = board.spec
    stated = spec.vector_flops_per_s["fp32"]
    derived = 2.0 * spec.sms * spec.cuda_cores_per_sm * spec.boost_clock_mhz * 1e6
    if abs(stated / derived - 1.0) > _CORES:
        yield (
            "vector_flops_per_s.fp32",
            f"is {stated:.4g} FLOP/s, but 2 x SMs x cores x boost clock is {derived:.4g}",
        )


def _bandwidth(board: _Board) -> Iterator[Problem]:
    """Hold bandwidth to bus width x pin rate, and measured to stated bandwidth."""
    spec = board.spec
    if board.bus_bits is not None and board.pin_bits_per_s is not None:
        bandwidth = board.bus_bits * board.pin_bits_per_s / 8.0
        if abs(spec.dram_bytes_per_s / bandwidth - 1.0) > _BANDWIDTH:
            yield (
                "dram_bytes_per_s",
                f"is {spec.dram_bytes_per_s:.4g} B/s, but bus width x pin rate is {bandwidth:.4g}",
            )
    sustained = spec.known("dram_sustained_bytes_per_s")
    if sustained is not None and not _SUSTAINED * spec.dram_bytes_per_s <= sustained <= spec.dram_bytes_per_s:
        yield (
            "dram_sustained_bytes_per_s",
            f"is {sustained:.4g} B/s, expected 0.3 to 1 times dram_bytes_per_s",
        )


def _visible_memory(board: _Board) -> Iterator[Problem]:
    """Hold visible to installed memory."""
    spec = board.spec
    if spec.memory_visible_bytes > spec.memory_bytes:
        yield "memory_visible_bytes", "is more than memory_bytes"
    if spec.memory_visible_bytes < _VISIBLE * spec.memory_bytes:
        yield (
            "memory_visible_bytes",
            f"is {spec.memory_visible_bytes} B, expected at least {_VISIBLE:g} of memory_bytes, {spec.memory_bytes} B",
        )


def _installed_memory(board: _Board) -> Iterator[Problem]:
    """Hold the installed memory to the width of its bus: chips and stacks have a range of sizes."""
    if board.bus_bits is None or board.spec.stands_in:
        return
    kind = "GDDR"
    if board.bus_bits >= _HBM_BITS:
        kind = "HBM2"
        if board.spec.compute_capability >= (9, 0):
            kind = "HBM3"
    least, most = (bound * board.bus_bits for bound in _GIB_PER_BUS_BIT[kind])
    stated = board.spec.memory_bytes / 2**30
    if not least <= stated <= most:
        yield (
            "memory_bytes",
            f"is {stated:.4g} GiB, but {kind} on memory_bus_bits {board.bus_bits:g} has {least:.3g} to {most:.3g}",
        )


def _limit_ratios(board: _Board) -> Iterator[Problem]:
    """Hold the limits of an SM to each other."""
    names = (
        "registers_per_sm",
        "warps_per_sm",
        "blocks_per_sm",
        "threads_per_block_max",
        "shared_bytes_per_sm",
        "shared_bytes_per_block_max",
    )
    problem = limits_problem({name: getattr(board.spec, name) for name in names})
    if problem is not None:
        yield problem


def _generation(board: _Board) -> Iterator[Problem]:
    """Refuse compute capabilities that no CUDA toolkit has had."""
    major, minor = board.spec.compute_capability
    if not 2 <= major <= 20:
        yield "compute_capability", f"is {major}.{minor}, expected 2.0 to 20.9"


def _clocks(board: _Board) -> Iterator[Problem]:
    """Hold the clocks to what silicon runs at, and to each other."""
    base = board.spec.known("base_clock_mhz")
    boost = board.spec.boost_clock_mhz
    least, most = _CLOCK_MHZ
    if not least <= boost <= most:
        yield "boost_clock_mhz", f"is {boost:g} MHz, expected {least:g} to {most:g}"
    if base is None:
        return
    if base > boost:
        yield "base_clock_mhz", f"is {base:g} MHz, above the boost clock of {boost:g}"
    if base < _BASE_OVER_BOOST * boost:
        yield (
            "base_clock_mhz",
            f"is {base:g} MHz, expected at least {_BASE_OVER_BOOST:g} of the boost clock, {boost:g}",
        )


def _link(board: _Board) -> Iterator[Problem]:
    """Hold the host link to a rate that links have: lanes x a generation's rate, or NVLink-C2C."""
    rate = board.spec.pcie_bytes_per_s
    rates = [lanes * lane for lane in _LANE_RATES for lanes in _LANES]
    nearest = min((*rates, _NVLINK_C2C), key=lambda known: abs(known - rate))
    if abs(rate / nearest - 1.0) > _LINK:
        yield (
            "pcie_bytes_per_s",
            f"is {rate / 1e9:.5g} GB/s, expected one direction of a PCI Express link (lanes x generation; the nearest "
            f"is {nearest / 1e9:.5g})",
        )


def _links_to_gpus(board: _Board) -> Iterator[Problem]:
    """Hold the links to other GPUs to the host's link, beside which they stand on every board that has them."""
    rate = board.spec.known("nvlink_bytes_per_s")
    host = board.spec.pcie_bytes_per_s
    low, high = _NVLINK_OVER_HOST
    if rate is not None and not low * host <= rate <= high * host:
        yield (
            "nvlink_bytes_per_s",
            f"is {rate / 1e9:.5g} GB/s, expected {low:g} to {high:g} times the host's link, {host / 1e9:.5g}",
        )


def _limits(board: _Board) -> Iterator[Problem]:
    """Hold the limits per SM to the capability's: the programming guide gives one value to each capability."""
    assert board.capability is not None
    for name, expected in board.capability.limits.items():
        stated = getattr(board.spec, name)
        if stated != expected:
            yield name, f"is {stated}, but compute capability {_version(board)} has {expected}"


def _vector_rates(board: _Board) -> Iterator[Problem]:
    """Hold the CUDA cores' rates to the capability's multiples of fp32."""
    assert board.capability is not None
    fp32 = board.spec.vector_flops_per_s["fp32"]
    for precision, of in board.capability.vector.items():
        stated = board.spec.vector_flops_per_s.get(precision)
        if stated is None or abs(stated / (of.ratio * fp32) - 1.0) <= _VECTOR:
            continue
        if precision == "fp64" and _CUT_FP64[0] <= stated / fp32 <= _CUT_FP64[1]:
            continue
        yield (
            f"vector_flops_per_s.{precision}",
            f"is {stated:.4g}, but {of.ratio:.4g} x vector_flops_per_s.fp32 at compute capability {_version(board)} "
            f"is {of.ratio * fp32:.4g}",
        )


def _tensor_rates(board: _Board) -> Iterator[Problem]:
    """Hold each peak to SMs x boost clock x the capability's tensor-core rate, or to the CUDA cores' rate."""
    assert board.capability is not None
    spec = board.spec
    # SMs x clock, also where the board knows neither: the fp32 rate is two operations a core and clock.
    sm_clocks = spec.vector_flops_per_s["fp32"] / (2 * spec.cuda_cores_per_sm)
    for precision, stated in spec.peak_flops_per_s.items():
        fp32 = spec.vector_flops_per_s["fp32"]
        # Without a rate of their own, CUDA cores take 8-bit integers four at a time (DP4A), all else as fp32.
        otherwise = {"int8": 4 * fp32}.get(precision, fp32)
        vector = spec.vector_flops_per_s.get(precision, otherwise)
        per_clock = board.capability.tensor.get(precision)
        if per_clock is None:
            tensor = 0.0
        else:
            tensor = per_clock * sm_clocks
        most = _TENSOR[1] * max(tensor, vector)
        # An export-limited board's fp64 runs on the CUDA cores, which :func:`_rates` and :func:`_vector_rates` hold.
        if precision == "fp64":
            least = 0.0
        else:
            least = _TENSOR[0] * tensor
        if not least <= stated <= most:
            yield (
                f"peak_flops_per_s.{precision}",
                f"is {stated:.4g}, but SMs x boost clock x the rate per SM at compute capability {_version(board)} is "
                f"{max(tensor, vector):.4g} (expected {least:.4g} to {most:.4g})",
            )


def _cache(board: _Board) -> Iterator[Problem]:
    """Hold the L2 cache to the memory bus: each memory controller has a fixed number of slices."""
    assert board.capability is not None
    if board.bus_bits is None:
        return
    least, most = board.capability.l2_kib_per_bus_bit
    low = _L2[0] * least * board.bus_bits / 1024
    high = _L2[1] * most * board.bus_bits / 1024
    stated = board.spec.l2_bytes / 2**20
    if not low <= stated <= high:
        yield (
            "l2_bytes",
            f"is {stated:.4g} MiB, but boards of compute capability {_version(board)} with memory_bus_bits "
            f"{board.bus_bits:g} have {low:.4g} to {high:.4g}",
        )


def _power(board: _Board) -> Iterator[Problem]:
    """Hold the power to the fp32 rate: boards of one capability share a process node and a design."""
    assert board.capability is not None
    least, most = board.capability.watts_per_tflops
    teraflops = board.spec.vector_flops_per_s["fp32"] / 1e12
    low = _WATTS[0] * least * teraflops
    high = _WATTS[1] * most * teraflops
    stated = board.spec.power_limit_w
    if not low <= stated <= high:
        yield (
            "power_limit_w",
            f"is {stated:.4g} W, but boards of compute capability {_version(board)} with {teraflops:.4g} TFLOP/s of "
            f"fp32 take {low:.3g} to {high:.3g}",
        )


def _version(board: _Board) -> str:
    major, minor = board.spec.compute_capability
    return f"{major}.{minor}"
