"""Read runtime profiles: what a framework adds to the kernels (host time, copies, context, allocator, precision).

One TOML file each under ``datasets/runtimes``, every figure with unit and source, read by the rules of
``specfiles``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from gkestimator.core import specfiles as specs
from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import SpecError, UsageError
from gkestimator.core.records import frozen
from gkestimator.core.specfiles import Quantity, SpecReader
from gkestimator.core.values import is_text
from gkestimator.hardware.gpu_spec import GpuSpec
from gkestimator.hardware.runtimes import RUNTIMES

WHAT = "runtime profile"
SCHEMA_VERSION = 1
DTYPE_WORDS = ("auto", "fp32", "tf32", "fp16", "bf16", "amp", "int8", "fp8", "w8a16", "w4a16")


@frozen
class AutoRule:
    """Say what float32 work is calculated in by default on GPUs of at least ``from_compute_capability``."""

    from_compute_capability: tuple[int, int]
    matmul: Precision
    conv: Precision


@frozen
class RuntimeProfile:
    """Hold one runtime. Times in microseconds, sizes in bytes, rates in bytes per second.

    ``allocator`` is ``caching`` (torch), ``arena`` (onnxruntime), ``engine`` (tensorrt) or ``arena_engine`` (tensorrt
    inside onnxruntime); ``allocator_bytes`` holds its constants, the keys of :data:`ALLOCATOR_FIGURES`.
    ``host_overhead_us`` is the host's time per framework call; ``host_overheads`` names that of other machines.
    ``copy_bytes_per_s`` is that of pageable host memory. ``graph_launch_us`` is the host's time to launch a CUDA graph,
    None where the runtime captures none; kernels follow each other in it as their predicted times say, which hold what
    starting a kernel adds. ``sources`` maps each field to where its figure is from.
    """

    name: str
    allocator: str
    allocator_bytes: Mapping[str, int] = field(hash=False)
    streams: int
    host_overhead_us: float
    host_overheads: Mapping[str, float] = field(hash=False)
    copy_bytes_per_s: float
    pinned_copy_pcie_fraction: float
    context_fixed_bytes: int | None
    context_bytes_per_thread: int
    workspace_default_bytes: int
    workspace_hopper_bytes: int
    workspace_later_bytes: int
    auto: tuple[AutoRule, ...]
    sources: Mapping[str, str] = field(hash=False)
    graph_launch_us: float | None = None
    note: str = ""

    @property
    def host_range_us(self) -> tuple[float, float]:
        """Return the fastest and the slowest host known, in microseconds per framework call."""
        known = (self.host_overhead_us, *self.host_overheads.values())
        return min(known), max(known)

    def context_bytes(self, gpu: GpuSpec) -> int | None:
        """Return the bytes of the CUDA context and library handles on ``gpu``: a fixed part and a stack for
        every resident thread.

        An estimate (the fixed part's source says how good); None where the fixed part is unknown.
        """
        if self.context_fixed_bytes is None:
            return None
        threads = gpu.sms * gpu.warps_per_sm * 32
        return self.context_fixed_bytes + threads * self.context_bytes_per_thread

    def library_workspace_bytes(self, gpu: GpuSpec) -> int:
        """Return the bytes of the matrix library's standing workspace for one handle and stream: on Hopper (9.x), on
        what came later, and elsewhere.
        """
        major, _ = gpu.compute_capability
        if major > 9:
            return self.workspace_later_bytes
        if major == 9:
            return self.workspace_hopper_bytes
        return self.workspace_default_bytes

    def pinned_copy_bytes_per_s(self, gpu: GpuSpec) -> float:
        """Return the rate of copies between pinned host memory and ``gpu``, one direction."""
        return self.pinned_copy_pcie_fraction * gpu.pcie_bytes_per_s

    def auto_rule(self, gpu: GpuSpec) -> AutoRule:
        """Return the rule for ``auto`` on ``gpu``. UsageError where the runtime supports no GPU so old. A CPU
        that stands in for a GPU follows the oldest GPU's, which knows no TF32."""
        if gpu.stands_in:
            return min(self.auto, key=lambda rule: rule.from_compute_capability)
        fitting = [rule for rule in self.auto if rule.from_compute_capability <= gpu.compute_capability]
        if not fitting:
            major, minor = gpu.compute_capability
            raise UsageError(f"{self.name} does not run on {gpu.name} (compute capability {major}.{minor})")
        return max(fitting, key=lambda rule: rule.from_compute_capability)


_BYTES = Quantity(units=specs.BYTES, low=1, high=2**34, integer=True)
_STANDING = Quantity(units=specs.BYTES, low=0, high=2**34, integer=True)
_CONTEXT = Quantity(units=specs.BYTES, low=0, high=2**34, integer=True, nullable=True)
_STREAMS = Quantity(units=specs.COUNT, low=1, high=1024, integer=True)
_COPY = Quantity(units=specs.BYTE_RATE, low=1e7, high=1e13)
_FRACTION = Quantity(units=specs.COUNT, low=0.01, high=1)
_TIME = Quantity(units=specs.TIME_US, low=0.01, high=1e5)
# The constants each kind of allocator needs; a profile gives exactly these.
ALLOCATOR_FIGURES: Mapping[str, tuple[str, ...]] = {
    "caching": (
        "block_rounding",
        "small_limit",
        "small_segment",
        "large_segment",
        "large_limit",
        "large_rounding",
        "small_remainder",
        "large_remainder",
    ),
    "arena": ("block_rounding", "initial_chunk", "dead_limit", "growth_limit"),
    "engine": ("block_rounding",),
    "arena_engine": ("block_rounding", "initial_chunk", "dead_limit", "growth_limit"),
}


def load_runtime_file(path: Path | str) -> RuntimeProfile:
    """Read one profile (TOML, at most 64 KiB). Raises SpecError naming the file and the field."""
    path = Path(path)
    data = specs.read_spec(path, what=WHAT)
    auto = data.pop("auto", None)
    reader = SpecReader(path, data, what=WHAT)
    reader.schema_version(SCHEMA_VERSION)
    allocator = reader.text("allocator")
    if allocator not in ALLOCATOR_FIGURES:
        raise reader.fail("allocator", f"is {allocator!r}, expected {' or '.join(ALLOCATOR_FIGURES)}")
    constants = _all_of(reader, "allocator_bytes", dict.fromkeys(ALLOCATOR_FIGURES[allocator], _BYTES))
    workspace = _all_of(reader, "workspace_bytes", dict.fromkeys(("default", "hopper", "later"), _STANDING))
    fixed, _ = reader.figure("context_fixed_bytes", _CONTEXT)
    if fixed is not None:
        fixed = int(fixed)
    hosts = {}
    for key, entry in reader.table("host_overheads").items():
        hosts[key] = reader.number_of(entry, f"host_overheads.{key}", _TIME)
    graph = None
    if reader.has("graph_launch_us"):
        graph = reader.number("graph_launch_us", _TIME)
    profile = RuntimeProfile(
        name=reader.text("name"),
        note=reader.text("note", default=""),
        allocator=allocator,
        allocator_bytes={key: int(value) for key, value in constants.items()},
        streams=reader.integer("streams", _STREAMS),
        host_overhead_us=reader.number("host_overhead_us", _TIME),
        host_overheads=hosts,
        copy_bytes_per_s=reader.number("copy_bytes_per_s", _COPY),
        pinned_copy_pcie_fraction=reader.number("pinned_copy_pcie_fraction", _FRACTION),
        context_fixed_bytes=fixed,
        context_bytes_per_thread=reader.integer("context_bytes_per_thread", _BYTES),
        workspace_default_bytes=int(workspace["default"]),
        workspace_hopper_bytes=int(workspace["hopper"]),
        workspace_later_bytes=int(workspace["later"]),
        auto=_auto_rules(reader, auto),
        graph_launch_us=graph,
        sources=reader.sources,
    )
    reader.finish()
    return profile


def _all_of(reader: SpecReader, name: str, quantities: Mapping[str, Quantity]) -> dict[str, float]:
    numbers = reader.numbers(name, quantities)
    for key in quantities:
        if key not in numbers:
            raise reader.fail(f"{name}.{key}", "is missing, but is required")
    return numbers


def _auto_rules(reader: SpecReader, entries: object) -> tuple[AutoRule, ...]:
    if not isinstance(entries, list) or not 1 <= len(entries) <= 32:
        raise reader.fail("auto", "is missing or not a list of 1 to 32 tables")
    return tuple(_auto_rule(reader, f"auto.{number}", entry) for number, entry in enumerate(entries))


def _auto_rule(reader: SpecReader, where: str, entry: object) -> AutoRule:
    keys = {"from_compute_capability", "matmul", "conv", "source"}
    if not isinstance(entry, dict) or set(entry) != keys or not all(map(is_text, entry.values())):
        raise reader.fail(where, f"must be a table of the texts {', '.join(sorted(keys))}")
    source = entry["source"]
    capability = re.fullmatch(r"([0-9]{1,2})\.([0-9])", entry["from_compute_capability"])
    if capability is None or not source.strip():
        raise reader.fail(where, "needs from_compute_capability of the form '8.0' and a source")
    try:
        matmul = Precision(entry["matmul"])
        conv = Precision(entry["conv"])
    except ValueError as e:
        raise reader.fail(where, f"{e}, expected one of {', '.join(Precision)}") from e
    reader.sources[where] = source
    at = (int(capability[1]), int(capability[2]))
    return AutoRule(from_compute_capability=at, matmul=matmul, conv=conv)


def _folder() -> Path:
    return Path(str(files("gkestimator.datasets"))) / "runtimes"


def runtime_names() -> tuple[str, ...]:
    """Return the names of the packaged profiles, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.toml")))


@lru_cache(maxsize=16)
def load_runtime(name: str) -> RuntimeProfile:
    """Return the packaged profile ``name`` (``torch``, ``onnxruntime``). Raises UsageError for another name."""
    known = runtime_names()
    if name not in known:  # compared with the list, so that no name becomes a path
        raise UsageError(f"unknown runtime {name!r}; known: {', '.join(known)}")
    profile = load_runtime_file(_folder() / f"{name}.toml")
    if profile.name != name:
        raise SpecError(f"{name}.toml: [name] is {profile.name!r}, expected the file's name")
    return profile


class ResolvedDtype(NamedTuple):
    """Hold what a dtype word means on one GPU.

    ``matmul_precision`` and ``conv_precision``: what float32 matrix products and convolutions calculate in;
    ``half``: the half type that activations are stored in, or None; ``effective``: the word that the row
    names. ``stored``: the word that says what tensors are stored in; another than the one asked for where a runtime
    takes that for a permission and something wider is faster. ``permits``: the precisions that such a runtime chooses
    from, the narrowest first.
    """

    matmul_precision: Precision
    conv_precision: Precision
    half: Precision | None
    effective: str
    stored: str
    permits: tuple[Precision, ...] = ()


def _auto(profile: RuntimeProfile, gpu: GpuSpec) -> ResolvedDtype:
    rule = profile.auto_rule(gpu)
    # Mixed arithmetic has a word of its own: such a row is neither that of fp32 nor that of tf32.
    if rule.matmul is rule.conv:
        word = rule.matmul.value
    else:
        word = f"{rule.conv}-conv"
    return ResolvedDtype(rule.matmul, rule.conv, None, word, "auto")


def _plain(word: str, precision: Precision, half: Precision | None) -> Callable[..., ResolvedDtype]:
    def resolve(profile: RuntimeProfile, gpu: GpuSpec) -> ResolvedDtype:
        profile.auto_rule(gpu)  # refuses a GPU that the runtime does not run on
        return ResolvedDtype(precision, precision, half, word, word)

    return resolve


def _int8(profile: RuntimeProfile, gpu: GpuSpec) -> ResolvedDtype:
    """Resolve int8: what the file has quantised runs in int8; what it left in float32 runs as under ``auto``."""
    rule = profile.auto_rule(gpu)
    return ResolvedDtype(rule.matmul, rule.conv, None, "int8", "int8")


_RESOLVERS: Mapping[str, Callable[[RuntimeProfile, GpuSpec], ResolvedDtype]] = {
    "auto": _auto,
    "fp32": _plain("fp32", Precision.FP32, None),
    "tf32": _plain("tf32", Precision.TF32, None),
    "fp16": _plain("fp16", Precision.FP16, Precision.FP16),
    "bf16": _plain("bf16", Precision.BF16, Precision.BF16),
    "amp": _plain("amp", Precision.FP16, Precision.FP16),
    "int8": _int8,
    # What is not narrowed is calculated in half precision: bf16 as serving frameworks do on GPUs that have FP8, fp16
    # where old GPUs are to run it too.
    "fp8": _plain("fp8", Precision.BF16, Precision.BF16),
    "w8a16": _plain("w8a16", Precision.FP16, Precision.FP16),
    "w4a16": _plain("w4a16", Precision.FP16, Precision.FP16),
}
_NEEDED = {"int8": Precision.INT8, "fp8": Precision.FP8}
_REMEDIES = {"fp8": "; w8a16 keeps the weights alone in 8 bits, as vLLM does on such a GPU"}


def resolve_dtype(profile: RuntimeProfile, dtype: str, gpu: GpuSpec) -> ResolvedDtype:
    """Return what ``dtype`` (one of :data:`DTYPE_WORDS`) means under ``profile`` on ``gpu``.

    TF32 work is calculated in FP32 on hardware that does both at one rate; the effective word stays. Raises
    UsageError, one line, for an unknown word, for a precision that the GPU lacks (bf16 and TF32 before compute
    capability 8.0: torch would emulate bf16 at a fraction of the speed) and for one that the runtime lacks.
    """
    resolver = _RESOLVERS.get(dtype)
    if resolver is None:
        raise UsageError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPE_WORDS)}")
    traits = RUNTIMES.get(profile.name)  # a profile read from a file of one's own may have any name
    if traits is not None and dtype in traits.lacking_dtypes:
        raise UsageError(f"dtype {dtype}: {traits.lacking_dtypes[dtype]}")
    if traits is not None and traits.permits:
        return _permitted(profile, traits.permits, dtype, gpu)
    resolved = resolver(profile, gpu)
    needed = [resolved.matmul_precision, resolved.conv_precision]
    if dtype in _NEEDED:
        needed = [_NEEDED[dtype]]
    for precision in needed:
        _require(precision, dtype, gpu, remedy=_REMEDIES.get(dtype, ""))
    return resolved._replace(
        matmul_precision=_worth(resolved.matmul_precision, gpu),
        conv_precision=_worth(resolved.conv_precision, gpu),
    )


def _worth(precision: Precision, gpu: GpuSpec) -> Precision:
    """Return FP32 for TF32 where the hardware calculates both at one rate (GeForce boards): TF32 is a
    permission, and the libraries' FP32 kernels need no other layout and know Winograd."""
    same_rate = precision is Precision.TF32 and gpu.peak(Precision.TF32) <= gpu.peak(Precision.FP32)
    if same_rate:
        return Precision.FP32
    return precision


def _require(precision: Precision, dtype: str, gpu: GpuSpec, *, remedy: str = "") -> None:
    """Raise UsageError where ``gpu`` lacks ``precision``, or has it at a rate that is unknown."""
    if precision.value in gpu.peak_flops_per_s:
        return
    gpu.refuse_unknown_peak(precision)
    major, minor = gpu.compute_capability
    raise UsageError(
        f"dtype {dtype} needs {precision} arithmetic, which {gpu.name} (compute capability "
        f"{major}.{minor}) lacks; it has {', '.join(gpu.peak_flops_per_s)}{remedy}"
    )


def _permitted(
    profile: RuntimeProfile, words: Mapping[str, tuple[Precision, ...]], dtype: str, gpu: GpuSpec
) -> ResolvedDtype:
    """Return what a runtime makes of ``dtype`` on ``gpu`` that takes the fastest precision that the word allows.

    Half precision that is no faster than single precision is not stored in (GeForce GTX 10xx calculate it at that rate
    or below). TF32 is permitted even at the rate of FP32: an engine for RTX 3090 runs 40 of its 53 convolutions so.
    """
    rule = profile.auto_rule(gpu)
    word = dtype
    if dtype == "auto":
        word = rule.matmul.value
    named = words[word][0]
    _require(named, dtype, gpu)
    permits: list[Precision] = []
    half = None
    for precision in words[word]:
        rate = gpu.peak_flops_per_s.get(precision.value)
        if rate is None:
            continue
        if precision in (Precision.FP16, Precision.BF16):
            if rate <= gpu.peak(Precision.FP32):
                continue
            half = precision
        permits.append(precision)
    single = Precision.FP32
    if Precision.TF32 in permits:
        single = Precision.TF32
    return ResolvedDtype(single, single, half, word, permits[0].value, tuple(permits))
