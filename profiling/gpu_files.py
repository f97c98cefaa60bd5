"""The specification file of a measured device that the catalogue does not know: every figure says where it is from."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from gkestimator.core.errors import SpecError, UsageError
from gkestimator.core.escaping import is_line
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.profiling.chip_rates import ChipRates, architecture_of, chip_rates
from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.type_names import Names, NumberByName

_STAND_IN = "a stand-in: a CPU has none"
_COPY = "measured on the device: the fastest block that a core copies (read and write counted), times cores"
_READ = "read from the device"
_SAME_MEMORY = 0.12
_LEAST_VISIBLE = 0.85
"""Error correction takes a sixteenth of GDDR memory, the driver a few per cent more."""
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
_CPU_WATTS_PER_CORE = 15.0
_ATTAINED = 0.9
# Figures in the order of the file: name, value in braces, unit, source.
_GPU_HEAD = """
compute_capability | {capability} | 1 | read from the device
sms | {sms} | 1 | read from the device
cuda_cores_per_sm | {cores} | 1 | {cores_source}
base_clock_mhz | {unknown} | MHz | the device does not tell
boost_clock_mhz | {clock} | MHz | read from the device: the highest SM clock it offers
"""
_GPU_MEMORY = """
dram_bytes_per_s | {dram_bytes_per_s} | B/s | read from the device: memory clock x 2 x bus width / 8
"""
_GPU_SUSTAINED = """
dram_sustained_bytes_per_s | {sustained} | B/s | measured on the device
"""
_GPU_TAIL = """
l2_bytes | {l2_bytes} | B | read from the device
memory_visible_bytes | {memory_visible_bytes} | B | read from the device
registers_per_sm | {registers_per_sm} | 1 | read from the device
shared_bytes_per_sm | {shared_bytes_per_sm} | B | read from the device
shared_bytes_per_block_max | {shared_bytes_per_block_max} | B | read from the device
warps_per_sm | {warps_per_sm} | 1 | read from the device
blocks_per_sm | {blocks_per_sm} | 1 | read from the device
threads_per_block_max | {threads_per_block_max} | 1 | read from the device
memory_bytes | {gib} | GiB | read from the device: what programs see, rounded up to a size that is sold
pcie_bytes_per_s | {pcie_bytes_per_s} | B/s | read from the device: highest generation and width of its link
power_limit_w | {power_limit_w} | W | read from the device: its default limit
"""
_GPU_LIMITS = (
    "l2_bytes",
    "memory_visible_bytes",
    "registers_per_sm",
    "shared_bytes_per_sm",
    "shared_bytes_per_block_max",
    "warps_per_sm",
    "blocks_per_sm",
    "threads_per_block_max",
)
# What the estimator's launch rules need to run at all, where there are no SMs: the limits of compute capability 8.0.
_CPU_HEAD = """
compute_capability | {capability} | 1 | a stand-in: a CPU has none
sms | {cores} | 1 | cores that the process may use
cuda_cores_per_sm | {lanes} | 1 | fp32 multiply-add lanes of a core by its instruction sets
base_clock_mhz | {unknown} | MHz | not told
boost_clock_mhz | {clock} | MHz | the larger of what the machine tells and what its measured matrix product needs
"""
_CPU_TAIL = """
dram_bytes_per_s | {copied} | B/s | {copy_source}
l2_bytes | {cache} | B | {cache_source}
memory_bytes | {memory} | B | the machine's memory
memory_visible_bytes | {memory} | B | the machine's memory
registers_per_sm | 65536 | 1 | a stand-in: a CPU has none
warps_per_sm | 64 | 1 | a stand-in: a CPU has none
blocks_per_sm | 32 | 1 | a stand-in: a CPU has none
threads_per_block_max | 1024 | 1 | a stand-in: a CPU has none
shared_bytes_per_sm | 164 | KiB | a stand-in: a CPU has none
shared_bytes_per_block_max | 163 | KiB | a stand-in: a CPU has none
pcie_bytes_per_s | {copied} | B/s | the copy's rate: nothing lies between host and device
power_limit_w | {power} | W | a stand-in: a CPU has none of its own to tell: 15 W a core
"""


def known_gpu(facts: DeviceFacts, extra_files: Names = ()) -> GpuSpec | None:
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
        if _is_same(spec, facts):
            return spec
        for other in catalogue.names():
            if other == spec.name or not other.casefold().startswith(stem):
                continue
            if catalogue.sheet(other)[0].missing():  # the device tells what its file does not
                continue
            candidate = catalogue.spec(other)
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
    visible = spec.memory_visible_bytes
    if memory is None:
        return True
    if (
        visible is None
    ):  # programs see less than what is installed, by what error correction and the driver keep
        return _LEAST_VISIBLE * spec.memory_bytes <= memory <= spec.memory_bytes
    return abs(memory / visible - 1.0) <= _SAME_MEMORY


def gpu_name(facts: DeviceFacts) -> str:
    """Return the canonical name of a device that the catalogue does not know: ``RTX-4070-12GB``,
    ``CPU-8-cores-AMD-EPYC-7763`` (at most 64 characters)."""
    if facts.kind == "cpu":
        words = _CPU_WORDS.sub(" ", facts.name)
        return _as_name(f"CPU-{facts.limits.get('sms', 1):.0f}-cores {words}")
    # The maker's name is in every product: left out, names are as the catalogue has them.
    name = _clean(facts.name)
    # Boards of one name are sold with different memory, and place differently.
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

    def text(self) -> str:
        """Return the file, which ends with a price that no device knows."""
        self.figure("price_per_hour_usd", "unknown", "USD/h", "not known to the device", date="unknown")
        return "\n".join(self.lines) + "\n"

    def figures(self, table: str, **values: object) -> None:
        """Write the figures of a table; braces stand for ``values``."""
        for row in table.strip().splitlines():
            name, value, unit, source = (cell.strip() for cell in row.split("|"))
            number = json.loads(value) if value.isdigit() else values[value.strip("{}")]
            self.figure(name, number, unit, source.format(**values))


def gpu_toml(facts: DeviceFacts, measured: NumberByName | None = None) -> str:
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
    toml.figures(
        _GPU_HEAD,
        capability=f"{major}.{minor}",
        sms=sms,
        cores=cores,
        cores_source=rates.source if rates else f"{_READ}: NVML's cores / SMs",
        unknown="unknown",
        clock=clock,
    )
    _write_rates(toml, rates, sms, cores, clock)
    dram = need.limit("dram_bytes_per_s")
    toml.figures(_GPU_MEMORY, dram_bytes_per_s=dram)
    if measured and "dram_sustained_bytes_per_s" in measured:
        toml.figures(_GPU_SUSTAINED, sustained=min(measured["dram_sustained_bytes_per_s"], dram))
    limits = {name: int(need.limit(name)) for name in _GPU_LIMITS}
    toml.figures(
        _GPU_TAIL,
        **limits,
        gib=_whole_gib(limits["memory_visible_bytes"]),
        pcie_bytes_per_s=need.limit("pcie_bytes_per_s"),
        power_limit_w=need.limit("power_limit_w"),
    )
    return toml.text()


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
                "hand (docs/how-to/extending.md) and name it with --gpu-spec"
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
    if facts.kind == "gpu" and own and _as_name(own) != name and is_line(own, 10**4):
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
        for precision, factor in rates.vector.items():
            vector[precision] = factor * vector_fp32
        for precision, per_sm in rates.tensor.items():
            peak[precision] = per_sm * sms * clock * 1e6
        source = f"SMs x boost clock x {rates.source}"
    # Where no tensor core calculates in a type the CUDA cores do, and float16 without native arithmetic is converted.
    for precision, rate in vector.items():
        peak[precision] = max(peak.get(precision, 0.0), rate)
    peak.setdefault("fp16", vector_fp32)
    for label, figures in (("peak", peak), ("vector", vector)):
        for precision, rate in figures.items():
            unit = "OP/s" if precision == "int8" else "FLOP/s"
            toml.figure(f"{label}_flops_per_s.{precision}", rate, unit, source)


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
    toml.figures(_CPU_HEAD, capability="1.0", cores=cores, lanes=lanes, unknown="unknown", clock=clock)
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
    toml.figures(
        _CPU_TAIL,
        copied=copied,
        copy_source=_COPY,
        cache=int(facts.limits.get("l2_bytes", 2**20)),
        cache_source="the largest cache" if "l2_bytes" in facts.limits else _STAND_IN,
        memory=int(need.memory()),
        power=_CPU_WATTS_PER_CORE * cores,
    )
    return toml.text()
