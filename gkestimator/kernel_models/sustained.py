"""What a GPU sustains, from its specification alone: clock under full arithmetic load, DRAM and L2 bandwidth.

Peak rates assume the boost clock. A board whose power limit is small for its silicon (T4 70 W, P4 75 W, L4
72 W) cannot hold it while every lane multiplies. The clock follows from a power balance,

    limit = idle + lanes x clock x energy(process) x (voltage(clock) / voltage(top))^2,

where the energy per lane and clock of a process is set by one reference board that is taken to hold exactly its
boost clock at its limit under single-precision matrix products. No measurement enters.
"""

from __future__ import annotations

from functools import lru_cache

from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.roofline import peak_rate

# Process of a chip by compute capability (NVIDIA architecture white papers): 28 nm Kepler and Maxwell, TSMC
# 16FF Pascal and 12FFN Volta and Turing (one density and voltage class), N7 GA100, Samsung 8N GA10x, TSMC 4N
# and 4NP from Ada and Hopper on. First entry whose capability is reached, from new to old.
_PROCESS = (((8, 9), "4N"), ((8, 6), "8N"), ((8, 0), "N7"), ((6, 0), "16FF"), ((0, 0), "28HP"))
# Clock in MHz at which parts of a process run at their full voltage (the boost clocks of its fastest boards),
# and the reference board: power limit in W, lanes, boost clock in MHz. 28HP one chip of a K80, 16FF the
# V100-PCIE (GV100), N7 the A100-PCIE-40GB, 8N the RTX 3090, 4N the RTX 4090: their TOML files.
_TOP_MHZ = {"28HP": 1000.0, "16FF": 1600.0, "N7": 1750.0, "8N": 1900.0, "4N": 2600.0}
_REFERENCE = {
    "28HP": (150.0, 2496, 875.0),
    "16FF": (250.0, 5120, 1380.0),
    "N7": (250.0, 6912, 1410.0),
    "8N": (350.0, 10496, 1695.0),
    "4N": (450.0, 16384, 2520.0),
}
# Power that does not scale with the clock: leakage, DRAM refresh, regulators and fans. A tenth to an eighth of
# the limit and some 10 W is what boards draw at base voltage without work.
_IDLE_SHARE = 0.12
_IDLE_W = 10.0
# Voltage over full voltage at zero clock: supply voltage falls about linearly with the clock, from 1.05 V at the
# top to 0.7 V near a third of it.
_VOLTAGE_FLOOR = 0.65

# Share of the nominal bandwidth that streaming kernels sustain. HBM2 and later from Volta on: V100 0.91, A100
# 0.89 (NeuSight's elementwise rows). GDDR: T4 0.74 and P4 0.75 with ECC in the memory itself (NeuSight), A40
# 0.82 with it (Vidur's additions), RTX PRO 6000 0.92 without (aiconfigurator's thin products), RTX 3090 0.94
# (timm's development networks, benchmarks/layouts.py). In-band ECC takes a sixteenth of the bytes, so without
# it older parts reach 16/15 of theirs. Pascal's HBM2: 510 of 732 GB/s (Jia et al., arXiv:1903.07486, table
# 3.1), also stated in the P100's files.
_HBM = 0.90
_HBM_PASCAL = 0.70
_GDDR_ECC, _GDDR_PLAIN = (0.75, 0.82), (0.80, 0.94)  # up to Turing, from Ampere on
HBM_CHIPS = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (10, 3)})
_ECC_IN_BAND = 0.95  # of the memory is visible at most where ECC bits (a sixteenth) live in it

L2_BYTES_PER_CLOCK_AND_SM = 20.0
"""What an SM loads from L2 per clock: V100 2155, P100 1624 and T4 1270 GB/s (Jia et al., arXiv:1804.06826 and
arXiv:1903.07486, measured) are 19.5, 22 and 20 bytes per SM and boost clock."""

_L2_OVER_DRAM = 1.5


def _process(gpu: GpuSpec) -> str:
    return next(name for least, name in _PROCESS if gpu.compute_capability >= least)


def _relative_power(clock_mhz: float, process: str) -> float:
    """clock x (voltage / full voltage)^2, in MHz."""
    voltage = _VOLTAGE_FLOOR + (1 - _VOLTAGE_FLOOR) * clock_mhz / _TOP_MHZ[process]
    return clock_mhz * voltage**2


@lru_cache(maxsize=512)
def _clock(
    process: str, lanes: int, boost_mhz: float, limit_w: float, activity: float
) -> float:  # keyed by what it depends on, so that changed copies of a specification do not share it
    watts, reference_lanes, reference_mhz = _REFERENCE[process]
    energy = (watts * (1 - _IDLE_SHARE) - _IDLE_W) / (
        reference_lanes * _relative_power(reference_mhz, process)
    )
    budget = max(limit_w * (1 - _IDLE_SHARE) - _IDLE_W, 0.05 * limit_w)
    per_relative = lanes * energy * activity
    if per_relative * _relative_power(boost_mhz, process) <= budget:
        return boost_mhz
    low = 0.0
    high = boost_mhz
    for _ in range(40):
        middle = (low + high) / 2
        if per_relative * _relative_power(middle, process) <= budget:
            low = middle
        else:
            high = middle
    return max(low, 0.1 * boost_mhz)


def sustained_clock_mhz(gpu: GpuSpec, *, activity: float = 1.0) -> float:
    """The clock that ``gpu`` holds at its power limit, MHz; at most its boost clock.

    ``activity``: power of the work per lane and clock, relative to single-precision matrix products (1) on the
    CUDA cores. T4: 870 of 1,590 MHz; P4: 920 of 1,063; L4: 1,158 of 2,040; V100 and A100: their boost clocks.
    """
    lanes = gpu.sms * gpu.cuda_cores_per_sm
    return _clock(_process(gpu), lanes, gpu.boost_clock_mhz, gpu.power_limit_w, activity)


def issue_fraction(gpu: GpuSpec) -> float:
    """Share of the FP32 lanes that matrix kernels keep busy at best.

    Since compute capability 8.6 an SM has 128 lanes behind four single-issue schedulers of 32: every load,
    address or barrier instruction takes a slot from a multiply-add, where 64-lane SMs have every other slot
    free and Pascal's 128-lane SMs issue two at once. An 8 x 8 register tile needs about 64 multiply-adds to 16
    other instructions per step of k: 0.8.
    """
    if gpu.cuda_cores_per_sm == 128 and gpu.compute_capability >= (8, 6):
        return 0.8
    return 1.0


def library_generation(gpu: GpuSpec) -> int:
    """Which generation of single-precision library kernels runs: 1 Maxwell's (to Pascal), 2 Volta's (to Turing),
    3 Ampere's, which later chips run too. NeuSight's kernel names: ``maxwell_sgemm``, ``volta_sgemm``,
    ``ampere_sgemm``."""
    major = gpu.compute_capability[0]
    if major < 7:
        return 1
    if major == 7:
        return 2
    return 3


def sustained_flops_per_s(
    gpu: GpuSpec, precision: str, *, matrix: bool = True, activity: float = 1.0
) -> float:
    """FLOP/s at the sustained clock; FP32 matrix products also pay :func:`issue_fraction`.

    Raises UsageError for a precision that has no rate.
    """
    rate = peak_rate(gpu, precision, matrix=matrix)
    share = sustained_clock_mhz(gpu, activity=activity) / gpu.boost_clock_mhz
    if matrix and rate == peak_rate(gpu, "fp32", matrix=True):
        share *= issue_fraction(gpu)
    return rate * share


def sustained_bytes_per_s(gpu: GpuSpec) -> float:
    """DRAM bandwidth of streaming kernels, bytes/s: the published figure of the specification where there is
    one, else nominal bandwidth times the share that its kind of memory sustains."""
    if gpu.dram_sustained_bytes_per_s is not None:
        return min(gpu.dram_sustained_bytes_per_s, gpu.dram_bytes_per_s)
    return gpu.dram_bytes_per_s * _streaming_share(gpu)


def _streaming_share(gpu: GpuSpec) -> float:
    capability = tuple(gpu.compute_capability)
    if capability in HBM_CHIPS:
        if capability == (6, 0):
            return _HBM_PASCAL
        return _HBM
    protected, plain = _GDDR_ECC[capability >= (8, 0)], _GDDR_PLAIN[capability >= (8, 0)]
    visible = gpu.memory_visible_bytes
    if (
        visible is None
    ):  # whether ECC bits live in the memory is not known: the middle is at most 5 % off either way
        return (protected + plain) / 2
    if visible < _ECC_IN_BAND * gpu.memory_bytes:
        return protected
    return plain


def l2_bytes_per_s(gpu: GpuSpec) -> float:
    """Bandwidth of the L2 cache, bytes/s, at the boost clock; at least 1.5 times what DRAM sustains, because a
    cache is built to be faster than its memory (V100: 2.7 times; HBM3 parts outgrow the older chips' figure)."""
    drawn = gpu.sms * L2_BYTES_PER_CLOCK_AND_SM * gpu.boost_clock_mhz * 1e6
    return max(drawn, _L2_OVER_DRAM * sustained_bytes_per_s(gpu))
