"""Learn the power of repeated kernels from aiconfigurator's public rows (``power_gemm``, ``power_attention``).

A row is the mean power of the board, by NVIDIA's management library, while one kernel of a serving framework repeats,
and the board's power limit. Left out are rows that say nothing of a kernel that we lower:

- ``fp8_block`` of vLLM: neighbouring shapes read 0.3 or 0.98 of the limit in long runs of the measurement's order,
  for it was run partly without a CUDA graph, where the GPU waits for the host (the data's README says so of its times);
- ``nvfp4``, a precision that no operator has; ``vllm_triton_attn``, which runs where no fast kernel does.

The serving framework is a word of the variant. Beside the rows of each stands the median over frameworks of one shape
on one GPU, without a word: what is estimated where nobody says whose kernel will run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gkestimator.core.errors import TableError
from gkestimator.core.kernels import BYTE_CACHE, Array, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpu_spec import GpuSpecs
from gkestimator.kernel_models.power import (
    POWER_FEATURES,
    SHARE_EDGES,
    ChipPower,
    PowerModel,
    PowerRegressor,
)
from gkestimator.kernel_models.regressors import Forest
from gkestimator.training.importers.files import equal_rows, read_columns
from gkestimator.training.members import fit_member, predicted
from gkestimator.training.rows import by_gpu, kernel_table, product_table, shape_hash

FILES = ("power_gemm.parquet", "power_attention.parquet")
_FRAMEWORKS = {"VLLM": "vllm", "TRTLLM": "tensorrt_llm"}
_HALF = 2.0
_BYTE = 1.0
# What stays of the types: vLLM's fp8_block and nvfp4 do not.
_PRECISIONS = {"bfloat16": "bf16", "fp8": "fp8"}
_SHARED = ("gpu", "framework", "kernel_source", "power_w", "power_limit_w")
_ATTENTION_SIZES = (
    "batch_size",
    "isl",
    "step",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "window_size",
)
_OTHER_KERNEL = "vllm_triton_attn"
_TREES = 250
_FOLDS = 3
LEVEL = 0.9
_FEWEST = 40
_SHORTEST_SHARE = 0.1
Columns: TypeAlias = Mapping[str, Array]
"""Arrays of one length by name."""

_CHIPS = 2  # fewer cannot say how far a board may lie from them


@frozen
class PowerRows:
    """Hold measured powers: one entry per row. ``share``: power over the board's limit ``limit_w``; ``framework``:
    whose kernel it is, "" for the median over those that measured the shape."""

    table: KernelTable
    gpu: Array
    framework: Array
    share: Array
    limit_w: Array

    def __len__(self) -> int:
        return len(self.table)

    def take(self, index: Array) -> PowerRows:
        """Return the rows that ``index`` (integers or a mask) selects."""
        return PowerRows(
            table=self.table.take(index),
            gpu=self.gpu[index],
            framework=self.framework[index],
            share=self.share[index],
            limit_w=self.limit_w[index],
        )

    @property
    def shape(self) -> Array:
        """Return the hash of every row's shape; frameworks and GPUs share one."""
        variant = np.array([without_framework(v) for v in self.table.variant.tolist()], dtype=object)
        return shape_hash(replace(self.table, variant=variant))


def without_framework(variant: str) -> str:
    """Return a variant without the word that names a serving framework."""
    return ".".join(word for word in variant.split(".") if word not in _FRAMEWORKS.values())


def read_power(folder: Path) -> dict[str, PowerRows]:
    """Return the rows of ``folder`` by family, each framework's and their medians. Raises TableError without files."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise TableError(f"{folder}: {missing[0]} is missing; expected {' and '.join(FILES)}")
    rows = {"linear": _products(folder / FILES[0])}
    for family, op in (("attention", "context_attention"), ("decode", "generation_attention")):
        rows[family] = _attention(folder / FILES[1], family, op)
    return rows


def _products(path: Path) -> PowerRows:
    data = read_columns(path, (*_SHARED, "gemm_dtype", "m", "n", "k"))
    sizes = {name: data[name].astype(np.float64) for name in ("m", "n", "k")}
    columns = _columns(data, "gemm_dtype", sizes)
    columns = _with_medians(columns)
    precision = columns["precision"]
    operand = np.where(precision == "fp8", _BYTE, _HALF)
    table = product_table("linear", precision, m=columns["m"], n=columns["n"], k=columns["k"], size=operand)
    return _rows(columns, replace(table, variant=_variants("linear", columns)))


def _attention(path: Path, family: str, op: str) -> PowerRows:
    data = read_columns(path, (*_SHARED, "op", "attn_dtype", "kv_cache_dtype", *_ATTENTION_SIZES))
    sizes = {name: np.nan_to_num(data[name].astype(np.float64)) for name in _ATTENTION_SIZES}
    sizes["narrow"] = (data["kv_cache_dtype"] == "fp8").astype(np.float64)
    of_op = (data["op"] == op) & (data["kernel_source"] != _OTHER_KERNEL)
    columns = _with_medians(_columns(data, "attn_dtype", sizes, of_op))
    table = _attention_table(family, columns)
    words = "causal" if family == "attention" else family
    return _rows(columns, replace(table, variant=_variants(words, columns)))


def _attention_table(family: str, columns: Columns) -> KernelTable:
    """Return attention of every query on what lies before it: of all tokens, or of one on a cache."""
    batch, heads, caches, size = (
        columns[name] for name in ("batch_size", "num_heads", "num_key_value_heads", "head_dim")
    )
    window = columns["window_size"]
    keys = columns["isl"] + columns["step"]
    limit = np.where(window > 0, np.minimum(window, keys), keys)
    if family == "attention":
        queries = columns["isl"]
        scores = limit * queries - limit * (limit - 1) / 2
        held = keys
    else:
        queries = np.ones(len(keys))
        scores = limit
        held = limit
    element = np.where(columns["narrow"] > 0, _BYTE, _HALF)
    query_bytes = batch * heads * queries * size * _HALF
    return kernel_table(
        family=family,
        variant=family,
        precision=columns["precision"],
        columns={
            # Two products and, per score, a scale and the five operations of a softmax.
            "flops": batch * heads * scores * (4 * size + 6),
            "read_bytes": query_bytes + 2 * batch * caches * held * size * element,
            "write_bytes": query_bytes,
            "rows": batch * heads * queries,
            "cols": keys,
            "element_bytes": _HALF,
            "inputs": 3.0,
            "gemm_batch": batch * heads,
            "gemm_m": queries,
            "gemm_n": held,
            "gemm_k": size,
            "sequences": batch,
        },
    )


def _columns(data: Columns, dtype: str, sizes: Columns, mask: Array | None = None) -> dict[str, Array]:
    """Return our columns of the rows that ``mask`` selects and whose ``dtype`` we have."""
    known = np.isin(data[dtype].astype(str), list(_PRECISIONS))
    kept = np.flatnonzero(known if mask is None else known & mask)
    columns: dict[str, Array] = {name: values[kept] for name, values in sizes.items()}
    columns["gpu"] = data["gpu"][kept].astype(object)
    columns["framework"] = _translated(data["framework"][kept], _FRAMEWORKS)
    columns["precision"] = _translated(data[dtype][kept], _PRECISIONS)
    columns["limit_w"] = data["power_limit_w"][kept].astype(np.float64)
    columns["share"] = data["power_w"][kept].astype(np.float64) / columns["limit_w"]
    return columns


def _with_medians(columns: Columns) -> dict[str, Array]:
    """Return the rows, and behind them one of each shape on each GPU with the median and no framework."""
    keys = []
    for name, values in columns.items():
        if name not in ("framework", "share"):
            keys.append(np.unique(values, return_inverse=True)[1].astype(np.float64))
    order, first, count = equal_rows(keys, columns["share"])
    result = {}
    for name, values in columns.items():
        result[name] = np.concatenate([values, values[order[first]]])
    lower = columns["share"][order[first + (count - 1) // 2]]
    upper = columns["share"][order[first + count // 2]]
    rows = len(columns["share"])
    result["share"][rows:] = (lower + upper) / 2
    result["framework"][rows:] = ""
    return result


def _variants(first: str, columns: Columns) -> Array:
    narrow = columns.get("narrow", np.zeros(len(columns["share"])))
    variants = np.empty(len(narrow), dtype=object)
    for at, (is_narrow, framework) in enumerate(
        zip(narrow.tolist(), columns["framework"].tolist(), strict=True)
    ):
        words = (first, BYTE_CACHE if is_narrow else "", framework)
        variants[at] = ".".join(filter(None, words))
    return variants


def _rows(columns: Columns, table: KernelTable) -> PowerRows:
    names = ("gpu", "framework", "share", "limit_w")
    return PowerRows(table=table, **{name: columns[name] for name in names})


def _translated(words: Array, names: Mapping[str, str]) -> Array:
    return np.array([names[word] for word in words.tolist()], dtype=object)


def fit_power(rows: Mapping[str, PowerRows], gpus: GpuSpecs, *, seed: int = 0) -> PowerModel:
    """Return a regressor for each family in ``rows``; ``gpus`` specifies every GPU that they name."""
    return PowerModel(regressors={family: _fit(family, mine, gpus, seed) for family, mine in rows.items()})


def _fit(family: str, rows: PowerRows, gpus: GpuSpecs, seed: int) -> PowerRegressor:
    x, names = power_feature_rows(family, rows, gpus)
    everything = np.ones(len(rows), dtype=bool)
    fold = np.floor(rows.shape * 1e6).astype(int) % _FOLDS
    held = np.empty(len(rows))
    for number in range(_FOLDS):
        test = fold == number
        held[test] = power_forest(x, rows.share, ~test, seed).predict(x[test])[:, 0]
    errors = np.abs(np.log(np.maximum(held, 1e-3) / rows.share))
    chips = []
    for name, index in by_gpu(rows.gpu):
        chips.append(_chip(rows.take(index), gpus, name, held[index], errors[index]))
    return PowerRegressor(
        forest=power_forest(x, rows.share, everything, seed),
        feature_names=names,
        low=x.min(axis=0).astype(np.float64),
        high=x.max(axis=0).astype(np.float64),
        beyond=_shorter(x, rows.share, names, seed),
        sibling=_other_chip(x, rows, seed),
        chips=tuple(chips),
    )


def power_feature_rows(family: str, rows: PowerRows, gpus: GpuSpecs) -> tuple[Array, tuple[str, ...]]:
    """Return the float32 features of every row on its own GPU, and their names."""
    x = np.empty((0, 0))
    names: tuple[str, ...] = ()
    for name, index in by_gpu(rows.gpu):
        part, names = POWER_FEATURES[family](rows.table.take(index), gpus[name])
        if not x.size:
            x = np.empty((len(rows), len(names)), dtype=np.float32)
        x[index] = part
    return x, names


def power_forest(x: Array, share: Array, rows: Array, seed: int) -> Forest:
    """Return the forest fitted on ``rows``: absolute errors relative to the power itself."""
    y = share[rows]
    fitted = fit_member("lightgbm", x[rows], y, 1 / y, seed=seed, estimators=_TREES, loss="absolute")
    assert isinstance(fitted, Forest)
    return fitted


def _chip(rows: PowerRows, gpus: GpuSpecs, name: str, held: Array, errors: Array) -> ChipPower:
    gpu = gpus[name]
    size = np.searchsorted(SHARE_EDGES, held)
    widths = []
    for number in range(len(SHARE_EDGES) + 1):
        mine = errors[size == number]
        if len(mine) < _FEWEST:
            mine = errors
        widths.append(round(float(np.quantile(mine, LEVEL)), 4))
    return ChipPower(
        chip=(*gpu.compute_capability, gpu.sms),
        limit_w=float(rows.limit_w[0]),
        gpus=(name,),
        precisions=tuple(sorted(set(rows.table.precision.tolist()))),
        least=round(float(rows.share.min()), 4),
        most=round(float(rows.share.max()), 4),
        widths=tuple(widths),
    )


def _shorter(x: Array, share: Array, names: tuple[str, ...], seed: int) -> float:
    """Return the 90 % quantile of |log error| on the tenth of the rows that take the shortest time, fitted without
    them: what leaving the measured range downwards costs."""
    anchor = x[:, names.index("log_anchor")]
    train = anchor > np.quantile(anchor, _SHORTEST_SHARE)
    return _error_quantile(x, share, train, seed)


def _other_chip(x: Array, rows: PowerRows, seed: int) -> float:
    """Return the 90 % quantile of |log error| on each chip while it was left out, the larger of both."""
    names = rows.gpu.astype(str)
    if len(set(names)) < _CHIPS:
        raise TableError(f"powers of {len(set(names))} GPU; expected those of at least {_CHIPS}")
    return max(_error_quantile(x, rows.share, names != name, seed) for name in sorted(set(names)))


def _error_quantile(x: Array, share: Array, train: Array, seed: int) -> float:
    held = predicted(power_forest(x, share, train, seed), x[~train])
    errors = np.abs(np.log(np.maximum(held, 1e-3) / share[~train]))
    return round(float(np.quantile(errors, LEVEL)), 4)
