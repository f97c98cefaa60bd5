"""Hold what may be asked about a language model: the one place where each of these options is said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gkestimator.core.option_kinds import File, Many, Number, Text, Word
from gkestimator.core.options import REQUIRED, Option, Value, variant
from gkestimator.estimation.request import ASK, EstimateRequest, OnePath, Paths
from gkestimator.llm.configs import KINDS
from gkestimator.llm.decoder import MOST_BATCH, MOST_TOKENS
from gkestimator.llm.objectives import Objectives
from gkestimator.llm.profiles import ENGINES

PARALLEL = (1, 2, 4, 8)
"""GPUs of one host that share a model."""
DTYPES = {"fp16": "fp16", "bf16": "bf16", "fp8": "fp8", "int8": "w8a16", "int4": "w4a16"}
"""Words for numbers, and what an estimate calls them: int8 and int4 are weights alone."""
CACHE_DTYPES = ("auto", "fp16", "bf16", "fp8", "int8")

_TOKENS = Number(low=1, high=MOST_TOKENS, whole=True)


def _many(item: Number) -> Many:
    return Many(item=item, least=1, commas=True)


@dataclass
class LlmRequest:
    """Hold a question about one decoder: lengths, batches, types of numbers, GPUs, engine. Raises UsageError."""

    model: OnePath = Option(
        REQUIRED, File(), "Configuration (config.json), or a decoder's ONNX file.", flag=None
    )
    gpus: Option[str | Sequence[str], tuple[str, ...]] = variant(EstimateRequest, "gpus")
    input_tokens: Option[int | Sequence[int], tuple[int, ...]] = Option(
        (2048,), _many(_TOKENS), "Tokens of each prompt.", flag="--input", unit="tokens", section=ASK
    )
    output_tokens: Option[int | Sequence[int], tuple[int, ...]] = Option(
        (256,), _many(_TOKENS), "Tokens of each answer.", flag="--output", unit="tokens", section=ASK
    )
    batch_sizes: Option[int | Sequence[int] | None, tuple[int, ...] | None] = Option(
        None,
        _many(Number(low=1, high=MOST_BATCH, whole=True)),
        "Requests answered together; default: 1, 8 and 64, with objectives the largest that keeps them.",
        flag="--batch",
        unit="requests",
        section=ASK,
    )
    dtypes: Option[str | Sequence[str], tuple[str, ...]] = Option(
        ("fp16",),
        Many(item=Word(tuple(DTYPES)), least=1, commas=True),
        "What is calculated in; int8 and int4 are weights alone.",
        flag="--dtype",
        section=ASK,
    )
    kv_dtype: Value[str] = Option(
        "auto",
        Word(CACHE_DTYPES),
        "Element type of cached keys and values; auto: that of the activations.",
        section=ASK,
    )
    engine: Value[str] = Option(
        "paged",
        Word(tuple(ENGINES)),
        "Engine that runs the decoder; paged: as vLLM and its like.",
        flag="--runtime",
    )
    tensor_parallel: Option[int | Sequence[int], tuple[int, ...]] = Option(
        (1,),
        _many(Number(low=1, high=max(PARALLEL), whole=True)),
        "GPUs of one host that hold one copy together: 1, 2, 4 or 8.",
        unit="GPUs",
        section=ASK,
    )
    like: Value[str | None] = Option(
        None,
        Word(tuple(sorted(KINDS))),
        "Read the configuration as that of another kind of decoder.",
        section=ASK,
    )
    dims: Option[str | Sequence[str], tuple[str, ...]] = Option(
        (),
        Many(item=Text("a dimension and what it stands for", metavar="NAME=ROLE")),
        "What an ONNX file's dimension stands for where it is not told: batch, tokens, past, total, or a number.",
        flag="--dim",
        repeat=True,
        section=ASK,
    )
    slo_ttft_ms: Value[float | None] = Option(
        None,
        Number(low=0, high=1e9, above=True),
        "Objective for the time to the first token.",
        unit="ms",
        section=ASK,
    )
    slo_tpot_ms: Value[float | None] = Option(
        None,
        Number(low=0, high=1e9, above=True),
        "Objective for the time per output token.",
        unit="ms",
        section=ASK,
    )
    step_host_ms: Value[float | None] = Option(
        None, Number(low=0, high=1e6), "Host time that a step adds; default: the engine's.", unit="ms"
    )
    host_overhead_us: Value[float | None] = variant(EstimateRequest, "host_overhead_us")
    bundles: Paths = variant(EstimateRequest, "bundles")
    gpu_specs: Paths = variant(EstimateRequest, "gpu_specs")

    @property
    def objectives(self) -> Objectives:
        """Return what rows must keep."""
        return Objectives(ttft_ms=self.slo_ttft_ms, tpot_ms=self.slo_tpot_ms)
