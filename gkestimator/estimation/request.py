"""What is asked of the estimator, checked once before any file is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gkestimator.errors import UsageError
from gkestimator.estimation.timeline import TAU_MS
from gkestimator.runtime_traits import RUNTIMES

if TYPE_CHECKING:
    import numpy as np

    from gkestimator.onnx_io.shapes.registry import ValueType

__all__ = ["MAX_BATCH_SIZE", "EstimateRequest"]

MAX_BATCH_SIZE = 1_000_000
_DTYPES = ("auto", "fp32", "tf32", "fp16", "bf16", "amp", "int8")
_ATTENTION = ("fused", "eager")


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateRequest:
    """Models x GPUs x batch sizes x SM shares under one runtime and dtype.

    ``batch_sizes`` None: as exported (a symbolic batch is 1, and the row says so). ``sm_shares`` are percent of the
    GPU's SMs. ``streams`` None: what the runtime does. ``host_overhead_us`` None: the figure of ``host`` (a host
    profile; None: ``$GKEST_HOME/host.toml`` where there is one), else the runtime profile's. ``context_mib`` (CUDA
    context and library handles) None: the runtime profile's estimate for each GPU.
    ``attention`` None: fused. ``unfold_batchnorm`` (torch): BatchNorms that an exporter folded into convolutions run as
    kernels of their own. ``inputs`` gives types or values of inputs that the files leave open (``Model.bind``).
    ``tau_ms`` is USHER's concurrency tolerance. Raises UsageError on anything out of range.
    """

    models: Sequence[Path]
    gpus: Sequence[str]
    batch_sizes: Sequence[int] | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    runtime: str = "torch"
    dtype: str = "auto"
    sm_shares: Sequence[float] = (100.0,)
    attention: str | None = None
    unfold_batchnorm: bool = True
    streams: int | None = None
    trip_count: int | None = None
    host_overhead_us: float | None = None
    context_mib: float | None = None
    host: Path | None = None
    include_copy: bool = False
    bundles: Sequence[Path] = ()
    gpu_specs: Sequence[Path] = ()
    allow_unknown: bool = False
    plugins: Sequence[Path] = ()
    kernels: bool = False
    batch_dim: str | None = None
    inputs: Mapping[str, ValueType | np.ndarray] = field(default_factory=dict)
    slo_ms: float | None = None
    max_batch: bool = False
    tau_ms: float = TAU_MS

    def __post_init__(self) -> None:
        if not self.models:
            raise UsageError("no model given: name at least one ONNX file")
        if not self.gpus:
            raise UsageError("no GPU given: name at least one (see `gkest gpus`)")
        if self.batch_sizes is not None and not self.batch_sizes:
            raise UsageError("no batch size given: leave the option out to take the exported one")
        for n in self.batch_sizes or ():
            _integer("batch size", n, 1, MAX_BATCH_SIZE)
        for name, n in self.dims.items():
            _integer(f"dimension {name}", n, 1, 2**31 - 1)
        _word("runtime", self.runtime, tuple(RUNTIMES))
        _word("dtype", self.dtype, _DTYPES)
        if self.attention is not None:
            _word("attention", self.attention, _ATTENTION)
        if not self.sm_shares:
            raise UsageError("no SM share given: expected percent between 0 and 100")
        for share in self.sm_shares:
            _number("SM share in percent", share, 0, 100, open_low=True)
        if self.streams is not None:
            _integer("number of streams", self.streams, 1, 128)
        if self.trip_count is not None:
            _integer("trip count", self.trip_count, 0, 1_000_000)
        if self.context_mib is not None:
            _number("context in MiB", self.context_mib, 0, 2**20)
        if self.host_overhead_us is not None:
            _number("host overhead in us", self.host_overhead_us, 0, 1e6)
        if self.slo_ms is not None:
            _number("SLO in ms", self.slo_ms, 0, 1e9, open_low=True)
        _number("tau in ms", self.tau_ms, 0, 1e6)
        if self.max_batch and self.slo_ms is None:
            raise UsageError("--max-batch needs a latency objective: add --slo-ms")


def _integer(what: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{what} is {value!r}: expected a whole number from {low} to {high}")


def _number(what: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= float(value) <= high or (open_low and value == low):  # type: ignore[arg-type]
        bound = f"more than {low:g}" if open_low else f"at least {low:g}"
        raise UsageError(f"{what} is {value!r}: expected {bound} and at most {high:g}")


def _word(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{what} {value!r} is not known: expected one of {', '.join(known)}")
