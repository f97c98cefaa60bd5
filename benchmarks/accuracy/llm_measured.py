"""Read the measured kernels of public tables by what a decoder's pass asks for: products and attention, each by sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gkestimator.training.importers.files import equal_rows, read_columns
from gkestimator.training.importers.generation import _KERNELS as DECODE_KERNELS

GPUS = ("A100-SXM4-80GB", "H100-SXM", "RTX-PRO-6000", "L40S")
_NAMES = {
    "a100_sxm": GPUS[0],
    "h100_sxm": GPUS[1],
    "rtx_pro_6000_server": GPUS[2],
    "a100": GPUS[0],
    "h100": GPUS[1],
}
_VIDUR_LEAST_MS = 0.020  # rounded to whole microseconds, so shorter ones are 2.5 % off by rounding alone
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head")

Sizes: TypeAlias = tuple[int, ...]
Place: TypeAlias = tuple[str, str, Sizes]
"""GPU, kind of kernel, and sizes. ``product``: m, n, k. ``prefill`` and ``decode``: sequences, keys, query heads, key-value
heads, head size."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold a kernel's time (us), whose table it is from, and whose kernel it is where only one framework measured it and
    frameworks differ much (words of a variant; empty: typical).
    """

    time_us: float
    source: str
    kernel: str = ""


Table: TypeAlias = Mapping[Place, Measured]


def measured_kernels(data: Path) -> Table:
    """Return every measured product and attention of the tables in the folder ``data``.

    Several frameworks or models that measured one kernel count as their median (of two that differ, the geometric mean).
    A kernel that several publishers measured is aiconfigurator's, else Vidur's, else LLMServingSim's.
    """
    table: dict[Place, Measured] = {}
    for place, measured in _all(data):
        table.setdefault(place, measured)
    return table


def _all(data: Path) -> Iterator[tuple[Place, Measured]]:
    folder = data / "aiconfigurator"
    yield from _decode(folder / "attention_generation_bf16.parquet")
    for ending in ("", "_l40s"):
        path = folder / f"gemm_bf16{ending}.parquet"
        yield from _medians(path, "product", ("m", "n", "k"), "aiconfigurator")
        path = folder / f"attention_context_bf16{ending}.parquet"
        yield from _medians(path, "prefill", _SEEN, "aiconfigurator", never=("window_size", "step"))
    yield from _vidur(data / "vidur" / "mlp.parquet")
    yield from _llmservingsim(data / "llmservingsim" / "layers_fp16.parquet")


_SEEN = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")


def _medians(
    path: Path, kind: str, names: Sequence[str], source: str, never: Sequence[str] = ()
) -> Iterator[tuple[Place, Measured]]:
    """Yield the kernels of an aiconfigurator file; rows where a column of ``never`` is set are other kernels."""
    data = read_columns(path, ("gpu", *names, *never, "latency_ms"))
    keep = np.ones(len(data["gpu"]), dtype=bool)
    for name in never:
        keep &= np.nan_to_num(data[name].astype(np.float64)) == 0
    index = np.flatnonzero(keep)
    gpus = [_NAMES.get(name, name) for name in data["gpu"][index].tolist()]
    sizes = [data[name][index].astype(np.float64) for name in names]
    yield from _placed(gpus, kind, sizes, 1e3 * data["latency_ms"][index].astype(np.float64), source)


def _decode(path: Path) -> Iterator[tuple[Place, Measured]]:
    """Yield attention of one query a sequence on a cache in bf16, without a window.

    Frameworks differ by up to 2 times: a kernel that one of them alone measured is named.
    """
    names = ("batch_size", "kv_len", *_SEEN[2:])
    data = read_columns(
        path, ("gpu", *names, "v_head_dim", "window_size", "kv_cache_dtype", "kernel_source", "latency_ms")
    )
    keep = np.nan_to_num(data["window_size"].astype(np.float64)) == 0
    keep &= (data["kv_cache_dtype"] == "bfloat16") & (data["v_head_dim"] == data["head_dim"])
    groups: dict[Place, list[tuple[float, str]]] = {}
    columns = [data[name][keep].tolist() for name in ("gpu", "kernel_source", "latency_ms", *names)]
    for gpu, kernel, time_ms, *sizes in zip(*columns, strict=True):
        groups.setdefault((gpu, "decode", tuple(sizes)), []).append((1e3 * time_ms, kernel))
    for place, times in groups.items():
        times.sort()
        middle = math.sqrt(times[(len(times) - 1) // 2][0] * times[len(times) // 2][0])
        kernel = DECODE_KERNELS[times[0][1]] if len(times) == 1 else ""
        yield place, Measured(middle, "aiconfigurator", kernel)


def _placed(
    gpus: Sequence[str], kind: str, sizes: Sequence[np.ndarray], time_us: np.ndarray, source: str
) -> Iterator[tuple[Place, Measured]]:
    """Yield every distinct kernel on the GPUs that are judged, with the median of its times."""
    number = np.array([GPUS.index(name) if name in GPUS else -1 for name in gpus], dtype=np.float64)
    known = np.flatnonzero(number >= 0)
    if not len(known):
        return
    keys = [number[known], *(size[known] for size in sizes)]
    times = time_us[known]
    order, first, size = equal_rows(keys, times)
    lower = times[order[first + (size - 1) // 2]]
    upper = times[order[first + size // 2]]
    chosen = np.stack(keys)[:, order[first]].astype(int).T.tolist()
    for (gpu, *rest), middle in zip(chosen, np.sqrt(lower * upper).tolist(), strict=True):
        yield (GPUS[gpu], kind, tuple(rest)), Measured(middle, source)


def _vidur(path: Path) -> Iterator[tuple[Place, Measured]]:
    """Yield Vidur's linear layers, as each tensor-parallel worker holds them."""
    sizes = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers")
    layers = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
    times = {name: f"time_stats.{name}.median" for name in layers}
    data = read_columns(path, ("gpu", "use_gated_mlp", *sizes, *times.values()))
    heads, caches, width, inner, tokens, workers = (data[name].astype(np.float64) for name in sizes)
    gated = np.where(data["use_gated_mlp"], 2.0, 1.0)
    held = heads / workers + 2 * np.maximum(caches / workers, 1)
    shapes = {
        "attn_pre_proj": (held * width / heads, width),
        "attn_post_proj": (width, width / workers),
        "mlp_up_proj": (gated * inner / workers, width),
        "mlp_down_proj": (width, inner / workers),
    }
    gpus = np.array([_NAMES.get(name, name) for name in data["gpu"].tolist()], dtype=object)
    for name, (n, k) in shapes.items():
        time_ms = data[times[name]].astype(np.float64)
        index = np.flatnonzero(time_ms >= _VIDUR_LEAST_MS)
        products = (tokens[index], n[index], k[index])
        yield from _placed(gpus[index].tolist(), "product", products, 1e3 * time_ms[index], "vidur")


def _llmservingsim(path: Path) -> Iterator[tuple[Place, Measured]]:
    """Yield LLMServingSim's linear layers."""
    names = ("tokens", "out_features", "in_features")
    data = read_columns(path, ("gpu", "layer", *names, "latency_us"))
    index = np.flatnonzero(np.isin(data["layer"], _PROJECTIONS))
    sizes = [data[name][index].astype(np.float64) for name in names]
    gpus = data["gpu"][index].tolist()
    yield from _placed(gpus, "product", sizes, data["latency_us"][index].astype(np.float64), "llmservingsim")
