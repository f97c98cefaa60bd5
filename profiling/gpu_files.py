"""The specification file of a measured device that the catalogue does not know: every figure says where it is from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gkestimator.core.errors import SpecError, UsageError
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.profiling.chip_rates import ChipRates, architecture_of, chip_rates
from gkestimator.profiling.raw import DeviceFacts

_READ = "read from the device"
_MEASURED = "measured on the device"
_SAME_MEMORY = 0.12
"""Two devices of one name with memory this close are one type: drivers keep back different amounts, and makers' GB are
sometimes 2^30 and sometimes 10^9 bytes."""
_SOLD_GIB = (
    2,
    3,
    4,
    6,
    8,
    10,
    11,
    12,
    16,
    20,
    24,
    32,
    40,
    48,
    64,
    80,
    94,
    96,
    128,
    141,
    144,
    180,
    192,
    256,
    288,
)
_MAKER = re.compile(r"^(?:(?:NVIDIA|Tesla|GeForce|Quadro)\s+)+", re.IGNORECASE)
_CPU_WORDS = re.compile(r"\((?:R|TM)\)|\bCPU\b|\bProcessor\b|@.*$|\b\d+-Core\b", re.IGNORECASE)
_CPU_NOTE = (
    "A CPU, described as if it were a GPU so that plan, run, build, train and estimate can be tried without "
    "one: occupancy, SM utilisation and launch geometry mean nothing here"
)
# What the estimator's launch rules need to run at all, where there are no SMs: the limits of compute capability 8.0.
_STAND_IN = "a stand-in: a CPU has none"
_CPU_LIMITS = {
    "registers_per_sm": 65536,
    "warps_per_sm": 64,
    "blocks_per_sm": 32,
    "threads_per_block_max": 1024,
}
_CPU_SHARED_KIB = (164, 163)
_CPU_WATTS_PER_CORE = 15.0
_ATTAINED = 0.9


def known_gpu(facts: DeviceFacts, extra_files: tuple[str, ...] = ()) -> GpuSpec | None:
    """Return the catalogue's specification of the device, by its name, memory and number of SMs; None where
    the catalogue has none (a MIG instance is not its whole GPU). ``extra_files``: as ``--gpu-spec``. Raises
    SpecError."""
    catalogue = gpu_catalogue(extra_files)
    if facts.kind == "gpu":
        names = [facts.name, _clean(facts.name), gpu_name(facts)]
    else:
        names = [gpu_name(facts)]
    for name in dict.fromkeys(names):
        try:
            spec = catalogue.spec(name)
        except UsageError:
            continue
        # "V100-SXM2" may mean 16 or 32 GB: what the device has decides, among the types whose name starts alike.
        stem = _clean(name).casefold()
        others = [n for n in catalogue.names() if n.casefold().startswith(stem) and n != spec.name]
        for candidate in (spec, *(catalogue.spec(n) for n in others)):
            if _is_same(candidate, facts):
                return candidate
    return None


def _is_same(spec: GpuSpec, facts: DeviceFacts) -> bool:
    if (facts.kind == "cpu") != (spec.architecture == "CPU"):
        return False
    sms = facts.limits.get("sms")
    if sms is not None and int(sms) != spec.sms:
        return False
    memory = facts.memory_bytes
    return memory is None or abs(memory / spec.memory_visible_bytes - 1.0) <= _SAME_MEMORY


def gpu_name(facts: DeviceFacts) -> str:
    """Return the canonical name of a device that the catalogue does not know: ``RTX-4070-12GB``,
    ``CPU-8-cores-AMD-EPYC-7763`` (at most 64 characters)."""
    if facts.kind == "cpu":
        words = _CPU_WORDS.sub(" ", facts.name)
        return _as_name(f"CPU-{facts.limits.get('sms', 1):.0f}-cores {words}")
    name = _clean(facts.name)
    if facts.memory_bytes is not None and not re.search(r"\d+\s?GB", name, re.IGNORECASE):
        name = f"{name}-{_whole_gib(facts.memory_bytes)}GB"
    return _as_name(name)


def _clean(name: str) -> str:
    return "-".join(_MAKER.sub("", name.strip()).split())


def _as_name(text: str) -> str:
    words = re.sub(r"[^A-Za-z0-9.+-]+", "-", text)
    return re.sub(r"-{2,}", "-", words).strip("-.+")[:64].strip("-.+") or "unnamed"


def _whole_gib(size: int) -> int:
    """Return the size that such a device is sold with: the driver keeps back up to a tenth of it."""
    gib = size / 2**30
    sold = next((s for s in _SOLD_GIB if s >= gib), None)
    if sold is not None and gib >= (1.0 - _SAME_MEMORY) * sold:
        return sold
    return max(1, math.ceil(gib))


@dataclass(slots=True)
class _Toml:
    """Hold the lines of the file; texts are written by a serialiser, so that no device's name can become a field."""

    lines: list[str]

    def key(self, name: str, value: object) -> None:
        self.lines.append(f"{name} = {json.dumps(value, ensure_ascii=True)}")

    def figure(self, name: str, value: object, unit: str, source: str, **extra: str) -> None:
        self.lines.append(f"\n[{name}]")
        for key, text in {"value": value, "unit": unit, **extra, "source": source}.items():
            self.key(key, text)


def gpu_toml(facts: DeviceFacts, measured: Mapping[str, float] | None = None) -> str:
    """Return the text of a specification file (``gkestimator.hardware.gpus.load_gpu_file`` reads it) for the
    device. ``measured``: ``dram_sustained_bytes_per_s``, where streaming kernels were measured. Raises
    SpecError naming what the device does not tell and the file cannot do without."""
    if facts.kind == "cpu":
        return _cpu_toml(facts)
    major, minor = _capability(facts)
    rates = chip_rates((major, minor), facts.name)
    need = _Needed(facts)
    sms = int(need.limit("sms"))
    clock = need.clock("sm")
    cores = rates.cores if rates else int(need.limit("cuda_cores_per_sm"))
    toml = _header(facts, architecture_of((major, minor)), "")
    toml.figure("compute_capability", f"{major}.{minor}", "1", _READ)
    toml.figure("sms", sms, "1", _READ)
    toml.figure("cuda_cores_per_sm", cores, "1", rates.source if rates else f"{_READ}: NVML's cores / SMs")
    toml.figure("base_clock_mhz", "unknown", "MHz", "the device does not tell")
    toml.figure("boost_clock_mhz", clock, "MHz", f"{_READ}: the highest SM clock it offers")
    _write_rates(toml, rates, sms, cores, clock)
    toml.figure(
        "dram_bytes_per_s",
        need.limit("dram_bytes_per_s"),
        "B/s",
        f"{_READ}: memory clock x 2 x bus width / 8",
    )
    if measured and "dram_sustained_bytes_per_s" in measured:
        rate = min(measured["dram_sustained_bytes_per_s"], need.limit("dram_bytes_per_s"))
        toml.figure("dram_sustained_bytes_per_s", rate, "B/s", _MEASURED)
    for name in (
        "l2_bytes",
        "memory_visible_bytes",
        "registers_per_sm",
        "shared_bytes_per_sm",
        "shared_bytes_per_block_max",
        "warps_per_sm",
        "blocks_per_sm",
        "threads_per_block_max",
    ):
        toml.figure(name, int(need.limit(name)), "B" if "bytes" in name else "1", _READ)
    toml.figure(
        "memory_bytes",
        _whole_gib(int(need.limit("memory_visible_bytes"))),
        "GiB",
        f"{_READ}: what programs see, rounded up to a size that is sold",
    )
    toml.figure(
        "pcie_bytes_per_s",
        need.limit("pcie_bytes_per_s"),
        "B/s",
        f"{_READ}: highest generation and width of its link",
    )
    toml.figure("power_limit_w", need.limit("power_limit_w"), "W", f"{_READ}: its default limit")
    _no_price(toml)
    return "\n".join(toml.lines) + "\n"


class _Needed:
    """Look up figures of the facts that the file cannot do without."""

    def __init__(self, facts: DeviceFacts) -> None:
        self._facts = facts

    def limit(self, name: str) -> float:
        return self._found(self._facts.limits.get(name), name)

    def clock(self, name: str) -> float:
        return self._found(self._facts.clocks_mhz.get(name), f"clocks_mhz.{name}")

    def memory(self) -> float:
        return self._found(self._facts.memory_bytes, "memory_bytes")

    def _found(self, value: float | None, name: str) -> float:
        if value is None or not math.isfinite(value) or value <= 0:
            raise SpecError(
                f"{self._facts.name}: {name}: the device does not tell it (nvidia-ml-py absent?); write a GPU file by "
                "hand (docs/extending.md) and name it with --gpu-spec"
            )
        return value


def _capability(facts: DeviceFacts) -> tuple[int, int]:
    capability = re.fullmatch(r"(\d{1,2})\.(\d)", facts.compute_capability or "")
    if capability is None:
        raise SpecError(
            f"{facts.name}: compute_capability: found {facts.compute_capability!r}, expected one like 9.0"
        )
    return int(capability[1]), int(capability[2])


def _header(facts: DeviceFacts, architecture: str, note: str) -> _Toml:
    toml = _Toml([])
    toml.key("schema_version", 1)
    name = gpu_name(facts)
    toml.key("name", name)
    # The same name once more would be a second claim on one key.
    own = _MAKER.sub("", facts.name).strip()
    if facts.kind == "gpu" and own and _as_name(own) != name and own.isprintable():
        alias = [own[:100]]
    else:
        alias = []
    toml.key("aliases", alias)
    toml.key("short_names", [])
    toml.key("architecture", architecture)
    toml.key("note", note)
    return toml


def _write_rates(toml: _Toml, rates: ChipRates | None, sms: int, cores: int, clock: float) -> None:
    vector_fp32 = 2.0 * sms * cores * clock * 1e6
    vector = {"fp32": vector_fp32}
    peak: dict[str, float] = {}
    source = "2 x SMs x cores x boost clock"
    if rates is not None:
        vector |= {p: factor * vector_fp32 for p, factor in rates.vector.items()}
        peak = {p: rate * sms * clock * 1e6 for p, rate in rates.tensor.items()}
        source = f"SMs x boost clock x {rates.source}"
    # Where no tensor core calculates in a type the CUDA cores do, and float16 without native arithmetic is converted.
    for precision, rate in vector.items():
        peak[precision] = max(peak.get(precision, 0.0), rate)
    peak.setdefault("fp16", vector_fp32)
    for label, figures in (("peak", peak), ("vector", vector)):
        for precision, rate in figures.items():
            unit = "OP/s" if precision == "int8" else "FLOP/s"
            toml.figure(f"{label}_flops_per_s.{precision}", rate, unit, source)


def _no_price(toml: _Toml) -> None:
    toml.figure("price_per_hour_usd", "unknown", "USD/h", "not known to the device", date="unknown")


def _cpu_toml(facts: DeviceFacts) -> str:
    need = _Needed(facts)
    cores = int(need.limit("sms"))
    lanes = int(need.limit("cuda_cores_per_sm"))
    copied = need.limit("dram_bytes_per_s")
    flops = need.limit("flops_per_s")
    told = facts.clocks_mhz.get("sm", 0.0)
    # A virtual machine tells its base clock and runs faster: the clock is at least what the measured product needs.
    needed = flops / _ATTAINED / (2.0 * cores * lanes * 1e6)
    clock = min(10_000.0, max(told, needed, 100.0))
    toml = _header(facts, "CPU", _CPU_NOTE)
    toml.figure("compute_capability", "1.0", "1", _STAND_IN)
    toml.figure("sms", cores, "1", "cores that the process may use")
    toml.figure("cuda_cores_per_sm", lanes, "1", "fp32 multiply-add lanes of a core by its instruction sets")
    toml.figure("base_clock_mhz", "unknown", "MHz", "not told")
    toml.figure(
        "boost_clock_mhz",
        clock,
        "MHz",
        "the larger of what the machine tells and what its measured matrix product needs",
    )
    rate = 2.0 * cores * lanes * clock * 1e6
    product = "2 x cores x lanes x clock"
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        factor = facts.limits.get(f"{precision}_per_fp32", 1.0)
        if factor == 1.0:
            source = product
        else:
            source = f"{product} x {factor:g}, by its instruction sets"
        toml.figure(f"peak_flops_per_s.{precision}", rate * factor, "FLOP/s", source)
    toml.figure("vector_flops_per_s.fp32", rate, "FLOP/s", product)
    toml.figure(
        "dram_bytes_per_s",
        copied,
        "B/s",
        f"{_MEASURED}: the fastest block that a core copies (read and write counted), times cores",
    )
    cache = int(facts.limits.get("l2_bytes", 2**20))
    toml.figure("l2_bytes", cache, "B", "the largest cache" if "l2_bytes" in facts.limits else _STAND_IN)
    memory = int(need.memory())
    toml.figure("memory_bytes", memory, "B", "the machine's memory")
    toml.figure("memory_visible_bytes", memory, "B", "the machine's memory")
    for name, value in _CPU_LIMITS.items():
        toml.figure(name, value, "1", _STAND_IN)
    for name, kib in zip(("shared_bytes_per_sm", "shared_bytes_per_block_max"), _CPU_SHARED_KIB, strict=True):
        toml.figure(name, kib, "KiB", _STAND_IN)
    toml.figure("pcie_bytes_per_s", copied, "B/s", "the copy's rate: nothing lies between host and device")
    toml.figure(
        "power_limit_w", _CPU_WATTS_PER_CORE * cores, "W", f"{_STAND_IN} of its own to tell: 15 W a core"
    )
    _no_price(toml)
    return "\n".join(toml.lines) + "\n"
