"""Import LLMServingSim's attention of decoding sequences (casys-kaist/LLMServingSim; ``attention_flash2_fp16``).

FlashAttention-2 for sequences of several lengths, which neither cuts the keys into parts nor makes the heads of a group
rows of one tile: what runs where a decoder calls the kernel of prompts for its next token. Replayed on one cache.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.core.kernels import DECODE, UNCUT, WARM_CACHE
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.training.importers.files import read_columns, translated
from gkestimator.training.importers.generation import generation_table
from gkestimator.training.rows import TrainingRows

FILE = "attention_flash2_fp16.parquet"
_GPUS = {"H100-SXM": "H100-SXM", "RTX-A6000": "RTX-A6000"}
_SIZES = ("batch_size", "kv_len", "heads", "kv_heads", "head_dim")


def matches(folder: Path) -> bool:
    """Return whether the folder holds LLMServingSim's file."""
    return (folder / FILE).is_file()


def load(folder: Path) -> list[TrainingRows]:
    """Return the rows of decoding sequences on the GPUs that have a file."""
    path = folder / FILE
    data = read_columns(path, ("gpu", "phase", *_SIZES, "median_ms"))
    names = translated(path, "gpu", data["gpu"], _GPUS)
    index = np.flatnonzero((data["phase"] == "decode") & np.isin(names, gpu_catalogue().names()))
    batch, keys, heads, caches, size = (data[name][index].astype(np.float64) for name in _SIZES)
    variant = np.full(len(index), ".".join((DECODE, UNCUT, WARM_CACHE)), dtype=object)
    table = generation_table(variant, batch, keys, heads, caches, size, size, np.zeros(len(index)))
    table.precision[:] = "fp16"
    measured_us = data["median_ms"][index].astype(np.float64) * 1e3
    return [TrainingRows.make(table, gpu=names[index], measured_us=measured_us, source="llmservingsim")]
