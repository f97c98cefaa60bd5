"""The CPU as a device: its facts, and how fast it copies and multiplies, measured in about a second.

Linux tells most under /proc and /sys; elsewhere less is known.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gkestimator.profiling.raw import DeviceFacts
from gkestimator.profiling.type_names import TextByName, Texts

# FP32 results of multiply-add units per clock and core, by the widest instruction set: two 512-bit or 256-bit FMA
# units (Intel Skylake-X and later, AMD Zen 4 and later; Intel Haswell and later, AMD Zen 2 and later), two 128-bit
# ones (Arm Neoverse N1 has two, V1 and Apple cores up to four).
_LANES = (("avx512f", 32), ("avx2", 16), ("asimd", 16), ("avx", 8))
_FEWEST_LANES = 8
# Rates of half precision over fp32's: a tile unit (AMX) makes 1,024 results' operations a clock and core where two
# 512-bit FMA units make 64; AVX-512's own BF16 and FP16 instructions, and Arm's, twice fp32's.
_HALF = {
    "bf16": (("amx_bf16", 16.0), ("avx512_bf16", 2.0), ("bf16", 2.0)),
    "fp16": (("amx_fp16", 16.0), ("avx512_fp16", 2.0), ("asimdhp", 2.0)),
}
_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
_BYTES = {"": 1, "K": 2**10, "M": 2**20}
_COPY_SECONDS = 0.3
_MULTIPLY_SECONDS = 0.3
_LEAST_COPY = 32 * 2**20
_MOST_COPY = 192 * 2**20
_BLOCK = 4 * 2**20
_MATRIX = 768


def host_facts() -> DeviceFacts:
    """Return the facts of this machine's CPU. ``limits``: ``sms`` = cores this process may use,
    ``cuda_cores_per_sm`` = FP32 multiply-add lanes of a core, ``bf16_per_fp32`` and ``fp16_per_fp32`` = rate
    of its matrix work in these types over fp32's, ``l2_bytes`` = the largest cache, ``dram_bytes_per_s`` =
    what a core copies at best (read and write counted) times the cores, and ``flops_per_s`` = a
    single-precision matrix product (numpy's, with the threads it uses), both measured now."""
    info = _cpuinfo()
    limits: dict[str, float] = {"sms": float(usable_cores()), "cuda_cores_per_sm": float(_lanes(info))}
    for dtype, known in _HALF.items():
        limits[f"{dtype}_per_fp32"] = _first_of(_flags(info), known, 1.0)
    cache = _largest_cache_bytes()
    if cache is not None:
        limits["l2_bytes"] = float(cache)
    limits["dram_bytes_per_s"] = _copy_bytes_per_s(cache)
    limits["flops_per_s"] = _flops_per_s()
    clock = _max_clock_mhz(info)
    return DeviceFacts(
        kind="cpu",
        name=_name(info),
        memory_bytes=_memory_bytes(),
        clocks_mhz={} if clock is None else {"sm": clock},
        limits=limits,
    )


def cpu_clock_mhz() -> float | None:
    """Return the clock of the fastest core now, or None where the machine does not tell."""
    clocks = [_number_in(path) or 0.0 for path in _CPUS.glob("cpu[0-9]*/cpufreq/scaling_cur_freq")]
    fastest_khz = max(clocks, default=0.0)
    if fastest_khz:
        return fastest_khz / 1e3
    listed = re.findall(r"^cpu MHz\s*:\s*([0-9.]+)", _read(_CPUINFO), re.MULTILINE)
    if listed:
        return max(map(float, listed))
    return None


def _cpuinfo() -> TextByName:
    """Return the fields of the first processor."""
    fields: Texts = {}
    for line in _read(_CPUINFO).split("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    return fields


def _name(info: TextByName) -> str:
    return info.get("model name") or platform.processor() or platform.machine() or "unknown CPU"


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _lanes(info: TextByName) -> int:
    return int(_first_of(_flags(info), _LANES, _FEWEST_LANES))


def _flags(info: TextByName) -> frozenset[str]:
    return frozenset(f"{info.get('flags', '')} {info.get('Features', '')}".split())


def _first_of(flags: frozenset[str], known: Sequence[tuple[str, float]], otherwise: float) -> float:
    """Return what stands beside the first of the instruction sets that the processor has."""
    for flag, figure in known:
        if flag in flags:
            return figure
    return otherwise


def _max_clock_mhz(info: TextByName) -> float | None:
    khz = _number_in(_CPUS / "cpu0/cpufreq/cpuinfo_max_freq")
    if khz:
        return khz / 1e3
    try:
        return float(info["cpu MHz"])
    except (KeyError, ValueError):
        return None


def _largest_cache_bytes() -> int | None:
    sizes = []
    for path in (_CPUS / "cpu0/cache").glob("index*/size"):
        size = re.fullmatch(r"(\d+)([KM]?)", _read(path).strip())
        if size:
            sizes.append(int(size[1]) * _BYTES[size[2]])
    return max(sizes, default=None)


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _copy_bytes_per_s(cache: int | None) -> float:
    """Return the bytes read and written a second: the fastest block that one core copies between arrays
    larger than the cache (as far as 192 MiB are), times the cores. An upper bound, as a peak is, and the same
    on a busy machine, where some blocks still go uninterrupted."""
    import numpy as np

    size = min(_MOST_COPY, max(_LEAST_COPY, 2 * (cache or 0)))
    source = np.ones(size // 8)
    target = np.zeros_like(source)
    blocks = max(1, size // _BLOCK)
    pairs = zip(np.array_split(target, blocks), np.array_split(source, blocks), strict=True)
    turns = itertools.cycle(pairs)

    def copy() -> None:
        np.copyto(*next(turns))

    moved = 2.0 * source.nbytes / blocks
    return moved / _fastest_s(copy, _COPY_SECONDS) * usable_cores()


def _flops_per_s() -> float:
    import numpy as np

    left = np.full((_MATRIX, _MATRIX), 0.5, dtype=np.float32)
    right = np.full((_MATRIX, _MATRIX), 0.25, dtype=np.float32)
    return 2.0 * _MATRIX**3 / _fastest_s(lambda: left @ right, _MULTIPLY_SECONDS)


def _fastest_s(call: Callable[[], object], budget_s: float) -> float:
    """Return the seconds of the fastest of the calls that fit into the budget; at least three, the first not
    counted."""
    # The first call pays for memory and threads that later ones find.
    call()
    best = float("inf")
    started = time.perf_counter()
    calls = 0
    while calls < 2 or time.perf_counter() - started < budget_s:
        before = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - before)
        calls += 1
    return best


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number_in(path: Path) -> float | None:
    try:
        return float(_read(path).strip())
    except ValueError:
        return None
