"""Estimate language models for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gkestimator.core.options import taking
from gkestimator.llm.request import LlmRequest

if TYPE_CHECKING:
    import pandas


@taking(LlmRequest)
def estimate_llm(request: LlmRequest) -> pandas.DataFrame:
    """Return the table of language models: a row per type of numbers, number of GPUs, lengths, batch and GPU type.

    ``model`` is a configuration as Hugging Face models have it (``config.json``). One value may stand for a list of
    one. Unknown values are missing (NA), never 0.

        >>> rows = gkestimator.estimate_llm("config.json", ["H100", "L4"], batch_sizes=[1, 8, 64], input_tokens=2048)
        >>> rows[["gpu", "batch_size", "ttft_ms", "tpot_ms", "tokens_per_s", "mreq_bytes", "gpus_needed"]]
    """
    from gkestimator.llm.estimating import estimate_llm as estimated
    from gkestimator.tables.llm_requirement import LLM_TABLE
    from gkestimator.tables.writing import to_dataframe

    return to_dataframe(estimated(request), LLM_TABLE)
