"""The table of language models: one row for a decoder on a GPU type at a batch size, lengths and a type of numbers."""

from __future__ import annotations

from gkestimator.tables.schema import TableSchema, column, required_column, table_row, version_column

_KEY = "key"
_TIME = "time"
_MEMORY = "memory"
_TRUST = "trust"


def _version() -> int:
    return LLM_TABLE.version


@table_row
class LlmRequirement:
    """Hold one row: a batch of equal requests, each a prompt of ``input_tokens`` and ``output_tokens`` answered."""

    model: str = required_column("", "Model's name: the folder's or file's.", _KEY)
    gpu: str = required_column("", "GPU type, as `gkest gpus` lists it.", _KEY)
    gpus: int = required_column(
        "GPUs", "GPUs that hold one copy together (tensor parallel).", _KEY, minimum=1
    )
    engine: str = required_column("", "Engine that runs the decoder.", _KEY)
    dtype: str = required_column(
        "", "What is calculated in; w8a16 and w4a16 store weights in 8 and 4 bits.", _KEY
    )
    kv_dtype: str = required_column("", "Element type of cached keys and values.", _KEY)
    batch_size: int = required_column("requests", "Requests that are answered together.", _KEY, minimum=1)
    input_tokens: int = required_column("tokens", "Tokens of each prompt.", _KEY, minimum=1)
    output_tokens: int = required_column("tokens", "Tokens of each answer.", _KEY, minimum=1)

    ttft_ms: float | None = column(
        "ms", "Time to the first token: the whole batch's prompts in one go.", _TIME, minimum=0
    )
    ttft_low_ms: float | None = column("ms", "Lower end of its 90 % interval.", _TIME, minimum=0)
    ttft_high_ms: float | None = column("ms", "Upper end.", _TIME, minimum=0)
    tpot_ms: float | None = column(
        "ms",
        "Time per output token after the first, the mean over the answer; null for one token.",
        _TIME,
        minimum=0,
    )
    tpot_low_ms: float | None = column("ms", "Lower end of its 90 % interval.", _TIME, minimum=0)
    tpot_high_ms: float | None = column("ms", "Upper end.", _TIME, minimum=0)
    request_ms: float | None = column(
        "ms", "Time of a whole request: first token and all others.", _TIME, minimum=0
    )
    tokens_per_s_request: float | None = column("tokens/s", "1000 / tpot_ms.", _TIME, minimum=0)
    tokens_per_s_request_low: float | None = column(
        "tokens/s", "Lower end of its 90 % interval.", _TIME, minimum=0
    )
    tokens_per_s_request_high: float | None = column("tokens/s", "Upper end.", _TIME, minimum=0)
    tokens_per_s: float | None = column(
        "tokens/s",
        "Tokens of answers of the whole batch over request_ms, prompts included in the time.",
        _TIME,
        minimum=0,
    )
    tokens_per_s_low: float | None = column("tokens/s", "Lower end of its 90 % interval.", _TIME, minimum=0)
    tokens_per_s_high: float | None = column("tokens/s", "Upper end.", _TIME, minimum=0)
    step_gpu_ms: float | None = column(
        "ms", "GPU time of a decoding step, mean over the answer.", _TIME, minimum=0
    )
    step_host_ms: float | None = column("ms", "Host time of a decoding step.", _TIME, minimum=0)
    step_link_ms: float | None = column(
        "ms", "Time of a step that GPUs exchange sums, calculated.", _TIME, minimum=0
    )
    binds: str | None = column(
        "", "What bounds a decoding step.", _TIME, choices=("memory", "compute", "host", "link")
    )
    energy_j_per_token: float | None = column(
        "J", "Energy of a token of an answer, all GPUs, prompts included.", _TIME, minimum=0
    )
    energy_j_per_token_low: float | None = column("J", "Lower end of its 90 % interval.", _TIME, minimum=0)
    energy_j_per_token_high: float | None = column("J", "Upper end.", _TIME, minimum=0)
    usd_per_million_tokens: float | None = column(
        "USD",
        "Price of a million tokens of answers at tokens_per_s; null where no cloud sells the GPU.",
        _TIME,
        minimum=0,
    )
    usd_per_million_tokens_low: float | None = column(
        "USD", "Lower end of its 90 % interval.", _TIME, minimum=0
    )
    usd_per_million_tokens_high: float | None = column("USD", "Upper end.", _TIME, minimum=0)

    mreq_bytes: int | None = column(
        "B", "Memory needed on each GPU at the end of the answers.", _MEMORY, minimum=0
    )
    mreq_pct: float | None = column("%", "Of what programs see of the GPU's memory.", _MEMORY, minimum=0)
    weights_bytes: int | None = column(
        "B", "Weights on each GPU, scales of narrow ones included.", _MEMORY, minimum=0
    )
    kv_bytes: int | None = column(
        "B", "Keys and values of all requests at their ends, on each GPU.", _MEMORY, minimum=0
    )
    activations_bytes: int | None = column(
        "B", "Largest intermediate results of a pass, on each GPU.", _MEMORY, minimum=0
    )
    context_bytes: int | None = column("B", "CUDA context and libraries.", _MEMORY, minimum=0)
    largest_batch: int | None = column(
        "requests", "Most requests of these lengths that fit at once; 0: not even one.", _MEMORY, minimum=0
    )
    longest_context: int | None = column(
        "tokens",
        "Longest prompt and answer together that fit at this batch size; 0: none.",
        _MEMORY,
        minimum=0,
    )
    gpus_needed: int | None = column(
        "GPUs", "Fewest of 1, 2, 4 and 8 GPUs that hold it together; null where 8 do not.", _MEMORY, minimum=1
    )

    coverage_pct: float | None = column(
        "%", "Part of the GPU's time inside the trained range.", _TRUST, minimum=0, maximum=100.001
    )
    source: str = required_column("", "Bundle behind most of the time, or `analytical`.", _TRUST)
    warnings: str = required_column("", "What to know about this row.", _TRUST, default="")
    schema_version: int = version_column(_version)


LLM_TABLE: TableSchema[LlmRequirement] = TableSchema(
    "language model table",
    LlmRequirement,
    key=(
        "model",
        "gpu",
        "gpus",
        "engine",
        "dtype",
        "kv_dtype",
        "batch_size",
        "input_tokens",
        "output_tokens",
    ),
)
