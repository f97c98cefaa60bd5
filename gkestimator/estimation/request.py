"""Hold the options of an estimate: the one place where each of them is said."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gkestimator.core.errors import UsageError
from gkestimator.core.input_values import InputValues
from gkestimator.core.option_kinds import File, Flag, Many, Number, Pairs, Text, Word
from gkestimator.core.options import REQUIRED, Option, Value, spelled, variant
from gkestimator.core.records import frozen
from gkestimator.hardware.runtimes import PROVIDERS, RUNTIMES, runtime_with

if TYPE_CHECKING:
    from gkestimator.onnx_io import ModelProto


MAX_BATCH_SIZE = 1_000_000
TAU_MS = 0.001  # USHER, section 3.2: kernels whose starts differ by at most this are concurrent

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is worked on, how many parts are done, and of how many."""

Paths: TypeAlias = Option[str | Path | Sequence[str | Path], tuple[Path, ...]]
OnePath: TypeAlias = Option[str | Path | None, Path | None]
Wholes: TypeAlias = Option[int | Sequence[int] | None, tuple[int, ...] | None]
Numbers: TypeAlias = Option[float | Sequence[float], tuple[float, ...]]
Dims: TypeAlias = Option[Mapping[str, int] | Sequence[tuple[str, int]] | None, dict[str, int]]
DimSweeps: TypeAlias = Option[Mapping[str, int | Sequence[int]] | None, dict[str, tuple[int, ...]]]
_MODEL = "Model"
ASK = "What to ask"
SIZE = Number(low=0, high=2**31 - 1, whole=True)


_NO_NAME = re.compile(r"[^A-Za-z0-9_.+-]+")


@frozen
class ModelInMemory:
    """Hold a model that no file holds: a name made of its graph's, and its bytes without large weight values."""

    name: str
    content: bytes

    @classmethod
    def of(cls, model: ModelProto) -> ModelInMemory:
        """Return ``model`` as it is now. Raises ModelError for one beyond 2 GB."""
        from gkestimator.onnx_io import serialised

        name = _NO_NAME.sub("_", model.graph.name).strip("_.+-")
        return cls(name=name or "model", content=serialised(model))


class ModelKind(File):
    """Take a path, or a model in memory."""

    python = "str | Path | onnx.ModelProto"
    expected = "a path or an onnx.ModelProto"
    several = "paths or models of onnx"

    def checked(self, value: object) -> Path | ModelInMemory:  # type: ignore[override]  # or a path
        """Return the path, or the model as it is now. Raises UnfitError for anything else."""
        if isinstance(value, ModelInMemory):
            return value
        onnx = sys.modules.get("onnx")  # who has a model has imported it
        if onnx is not None and isinstance(value, onnx.ModelProto):
            return ModelInMemory.of(value)
        return super().checked(value)


GivenModel: TypeAlias = Path | ModelInMemory
"""What is estimated: a file, or a model in memory."""
Models: TypeAlias = Option[
    "GivenModel | str | ModelProto | Sequence[GivenModel | str | ModelProto]", tuple[GivenModel, ...]
]


def _dtypes() -> tuple[str, ...]:
    from gkestimator.hardware.runtimes.profiles import DTYPE_WORDS

    return DTYPE_WORDS


@dataclass(kw_only=True)
class EstimateOptions:
    """Hold what every kind of estimate may be told: ``estimate``, ``demo`` and ``evaluate`` offer all of it.

    To add an option, add a field here and use it where the engine reads ``request.NAME``. Raises UsageError.
    """

    dims: DimSweeps = Option(
        (),
        Pairs(item=Many(item=SIZE, least=1, commas=True)),
        "Number for a symbolic dimension; several: rows for each.",
        flag="--dim",
        repeat=True,
        section=_MODEL,
    )
    batch_dim: Value[str | None] = Option(
        None,
        Text(metavar="NAME"),
        "Name of the batch dimension where it is not found.",
        section=_MODEL,
    )
    runtime: Value[str] = Option("torch", Word(tuple(sorted(RUNTIMES))), "Framework that runs the model.")
    provider: Value[str | None] = Option(
        None, Word(PROVIDERS), "Execution provider of the runtime, where it has several."
    )
    runtime_version: Value[str | None] = Option(
        None,
        Text(metavar="VERSION"),
        "Its version, where models showed what versions change; default: the newest known.",
    )
    dtype: Value[str] = Option(
        "auto",
        Word(_dtypes),
        "What is calculated in (tensorrt: what it may choose from); auto: what the runtime does by default.",
    )
    attention: Value[str] = Option(
        "auto",
        Word(("auto", "fused", "eager")),
        "How attention is launched; auto: as its form in the graph says.",
    )
    amp_norms: Value[str] = Option(
        "fp32",
        Word(("fp32", "half", "images")),
        "dtype amp: what normalisations calculate in; images: half for those over images, fp32 over tokens.",
    )
    unfold_batchnorm: Value[bool] = Option(
        True, Flag(), "torch: run BatchNorms that the exporter folded into convolutions."
    )
    layout: Value[str] = Option(
        "nchw",
        Word(("nchw", "nhwc")),
        "torch: how images and the weights of convolutions lie in memory; nhwc is channels_last.",
    )
    graph_level: Value[str] = Option(
        "extended",
        Word(("basic", "extended")),
        "How much is fused; basic: neither attention nor LayerNorm; onnxruntime: nor GELU; tensorrt: as 8.0 did.",
    )
    streams: Value[int | None] = Option(
        None, Number(low=1, high=128, whole=True), "CUDA streams; default: the runtime's."
    )
    cuda_graph: Value[bool] = Option(
        False, Flag(), "Launch the whole model as one CUDA graph, where it can be captured."
    )
    trip_count: Value[int | None] = Option(
        None,
        Number(low=0, high=1_000_000, whole=True),
        "Iterations of loops whose count is not known.",
        section=_MODEL,
    )
    host_overhead_us: Value[float | None] = Option(
        None,
        Number(low=0, high=1e6),
        "Host time per framework call; default: the host's, else the runtime's.",
        unit="us",
    )
    context_mib: Value[float | None] = Option(
        None, Number(low=0, high=2**20), "Memory of the CUDA context and library handles.", unit="MiB"
    )
    workspace_mib: Value[float | None] = Option(
        None,
        Number(low=0, high=2**20),
        "TensorRT: most scratch memory that a kernel may take; default: all of the GPU's.",
        unit="MiB",
    )
    host: OnePath = Option(None, File(), "This host's figures: a file that an evaluation wrote (TOML).")
    include_copy: Value[bool] = Option(False, Flag(), "Add moving inputs and outputs to the latency.")
    bundles: Paths = Option((), Many(item=File()), "Estimator bundle.", flag="--bundle", repeat=True)
    gpu_specs: Paths = Option(
        (),
        Many(item=File()),
        "GPU file (TOML).",
        flag="--gpu-spec",
        repeat=True,
        section=ASK,
    )
    plugins: Paths = Option(
        (),
        Many(item=File()),
        "Python file with rules; it is run.",
        flag="--plugin",
        repeat=True,
        section=_MODEL,
    )
    allow_unknown: Value[bool] = Option(
        False,
        Flag(),
        "Lower bounds in spite of unknown operators.",
        section=_MODEL,
    )

    def __post_init__(self) -> None:
        """Name the runtime that the provider makes of the one given, so that nobody below asks for the provider.

        Raises UsageError for a provider that the runtime lacks.
        """
        vars(self).update(runtime=runtime_with(self.runtime, self.provider), provider=None)


@dataclass(kw_only=True)
class DimOptions:
    """Hold the sizes of dimensions where each has one. Raises UsageError."""

    dims: Dims = variant(
        EstimateOptions, "dims", kind=Pairs(item=SIZE), help="Number for a symbolic dimension."
    )


@dataclass
class EstimateRequest(EstimateOptions):
    """Hold what is asked of the estimator: models x GPUs x batch sizes x SM shares, under one set of options.

    Everything is checked when the request is made, before any file is read. Raises UsageError.
    """

    models: Models = Option(
        REQUIRED, Many(item=ModelKind(), least=1), "ONNX files, or models in memory.", flag=None
    )
    gpus: Option[str | Sequence[str], tuple[str, ...]] = Option(
        REQUIRED,
        Many(item=Text(metavar="NAME"), least=1, commas=True),
        "GPU type, as gkest gpus lists them; all, or an architecture (ampere), for every one of it.",
        flag="--gpu",
        repeat=True,
        section=ASK,
    )
    batch_sizes: Wholes = Option(
        None,
        Many(item=Number(low=1, high=MAX_BATCH_SIZE, whole=True), least=1, commas=True),
        "Batch sizes; default: as exported, 1 where that is symbolic.",
        flag="--batch-size",
        section=ASK,
    )
    _: KW_ONLY
    sm_shares: Numbers = Option(
        (100.0,),
        Many(item=Number(low=0, high=100, above=True), least=1, commas=True),
        "Percent of the SMs (as with MPS).",
        flag="--sm-share",
        unit="%",
        section=ASK,
    )
    slo_ms: Value[float | None] = Option(
        None,
        Number(low=0, high=1e9, above=True),
        "Latency objective, for the closing line and the largest batch.",
        unit="ms",
        section=ASK,
    )
    max_batch: Value[bool] = Option(
        False,
        Flag(),
        "Find the largest batch within the latency objective and memory.",
        section=ASK,
    )
    inputs: Option[Mapping[str, Any] | None, dict[str, Any] | None] = Option(
        None,
        InputValues(),
        "Value of an input that decides shapes; programs may pass types too.",
        flag="--input",
        repeat=True,
        section=_MODEL,
    )
    tau_ms: Value[float] = Option(
        TAU_MS,
        Number(low=0, high=1e6),
        "Kernels whose starts differ by at most this are concurrent.",
        flag=None,
        unit="ms",
    )

    def __post_init__(self) -> None:
        """Raise UsageError for options that do not go together."""
        super().__post_init__()
        if self.max_batch and self.slo_ms is None:
            raise UsageError(f"{spelled('max_batch')} needs a latency objective: add {spelled('slo_ms')}")

    @property
    def dim_combinations(self) -> tuple[dict[str, int], ...]:
        """Return one number for each dimension, for every combination of those that are asked for."""
        return tuple(dict(zip(self.dims, sizes, strict=True)) for sizes in product(*self.dims.values()))


@dataclass(kw_only=True)
class ChooseOptions:
    """Hold the load that a GPU is chosen for. Raises UsageError."""

    slo_ms: Value[float | None] = Option(
        None,
        Number(low=0, high=1e9, above=True),
        "Latency objective of a request.",
        unit="ms",
        section=ASK,
    )
    rate_rps: Value[float | None] = Option(
        None,
        Number(low=0, high=1e9, above=True),
        "Requests a second.",
        flag="--rate",
        unit="requests/s",
        section=ASK,
    )


@dataclass(kw_only=True)
class ChangeLimits:
    """Hold by how much figures may grow between two models or tables; None: by as much as they like. Raises
    UsageError."""

    max_latency_pct: Value[float | None] = Option(
        None, Number(low=-100, high=1e6), "Percent by which latency may grow.", unit="%"
    )
    max_memory_pct: Value[float | None] = Option(
        None, Number(low=-100, high=1e6), "Percent by which memory may grow.", unit="%"
    )
    max_flops_pct: Value[float | None] = Option(
        None, Number(low=-100, high=1e6), "Percent by which FLOPs may grow.", unit="%"
    )
