"""Put whole decoding steps together from public tables: linear layers by one publisher, attention by another.

A step is one layer of a decoder for a batch of sequences: its linear layers at as many tokens as sequences, and attention
of one query each. Estimates come from regressors that saw neither the linear layers' source nor the attention's shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.bundles.bundle import Bundle
from gkestimator.core.kernels import Array, KernelTable
from gkestimator.evaluation.splits import HELD_OUT
from gkestimator.kernel_models.roofline import roofline
from gkestimator.training.importers.files import read_columns
from gkestimator.training.plan import PLANS
from gkestimator.training.rows import TrainingRows, product_table, shape_hash

from .workspace import Workspace

STEPS = "decode-steps"
VECTORS = "decode-vectors"
_HALF = 2.0  # bytes of an element
_VIDUR_GPUS = {"a100": "A100-SXM4-80GB", "h100": "H100-SXM"}
_VIDUR_LAYERS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
_VIDUR_LEAST_MS = 0.020  # rounded to whole microseconds, so shorter ones are 2.5 % off by rounding alone
_VIDUR_SIZES = (
    "n_head",
    "n_kv_head",
    "n_embd",
    "n_expanded_embd",
    "num_tokens",
    "num_tensor_parallel_workers",
)
_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_MOST_SEQUENCES = 256
_HEAVY = 0.3  # of a step
_LONG_US = 50.0  # of attention whose traffic outweighs its launch


@dataclass(frozen=True)
class Layers:
    """Hold the linear layers of one decoder layer at one number of tokens: products (n, k), and their time together."""

    source: str
    model: str
    gpu: str
    heads: float
    caches: float
    tokens: float
    products: tuple[tuple[float, float], ...]
    measured_us: float


Attentions = Mapping[tuple[str, float, float, float], list[int]]
"""Row numbers by GPU, tokens x heads, tokens x caches, and tokens."""


def vidur_layers(folder: Path) -> Iterator[Layers]:
    """Yield the layers of Vidur's table whose four times are all told by its clock."""
    times = [f"time_stats.{name}.median" for name in _VIDUR_LAYERS]
    data = read_columns(folder / "mlp.parquet", ("gpu", "model", "use_gated_mlp", *_VIDUR_SIZES, *times))
    sizes = [data[name].astype(float).tolist() for name in _VIDUR_SIZES]
    measured = np.stack([data[name].astype(float) for name in times], axis=1)
    for at, (heads, caches, width, inner, tokens, workers) in enumerate(zip(*sizes, strict=True)):
        gpu = _VIDUR_GPUS.get(data["gpu"][at])
        told = bool(np.all(measured[at] >= _VIDUR_LEAST_MS))
        if gpu is None or not told or tokens > _MOST_SEQUENCES:
            continue
        head = width / heads
        own = max(caches / workers, 1.0)
        gated = 2.0 if data["use_gated_mlp"][at] else 1.0
        products = (
            ((heads / workers + 2 * own) * head, width),
            (width, width / workers),
            (gated * inner / workers, width),
            (width, inner / workers),
        )
        yield Layers(
            "vidur", data["model"][at], gpu, heads / workers, own, tokens, products, 1e3 * measured[at].sum()
        )


def llama_layers(folder: Path, names: frozenset[str]) -> Iterator[Layers]:
    """Yield the layers of LLMServingSim's dense decoders on the GPUs ``names``."""
    path = folder / "layers_fp16.parquet"
    data = read_columns(
        path, ("gpu", "model", "tp", "layer", "tokens", "in_features", "out_features", "latency_us")
    )
    dense = np.char.startswith(data["model"].astype(str), "Llama")
    chosen = dense & np.isin(data["layer"], _LAYERS) & (data["tokens"] <= _MOST_SEQUENCES)
    groups: dict[tuple[str, str, int, int], dict[str, int]] = {}
    for at in np.flatnonzero(chosen & np.isin(data["gpu"], sorted(names))).tolist():
        key = (data["gpu"][at], data["model"][at], int(data["tp"][at]), int(data["tokens"][at]))
        groups.setdefault(key, {})[data["layer"][at]] = at
    for (gpu, model, _, tokens), rows in groups.items():
        if len(rows) != len(_LAYERS):
            continue
        index = [rows[name] for name in _LAYERS]
        out = data["out_features"][index].astype(float)
        products = tuple(zip(out.tolist(), data["in_features"][index].astype(float).tolist(), strict=True))
        time_us = float(data["latency_us"][index].sum())
        heads = out[0] / 128
        yield Layers("llmservingsim", model, gpu, heads, out[1] / 128, tokens, products, time_us)


def _attentions(rows: TrainingRows, index: Array) -> Attentions:
    """Return the rows ``index`` by what a layer asks: GPU, batch x heads, batch x caches."""
    columns = rows.table.columns
    heads = columns["gemm_batch"]
    keys = columns["gemm_n"]
    size = columns["gemm_k"]
    caches = (columns["read_bytes"] - heads * size * _HALF) / (keys * 2 * size * _HALF)
    placed: dict[tuple[str, float, float, float], list[int]] = {}
    for at in index.tolist():
        place = (str(rows.gpu[at]), float(heads[at]), float(round(caches[at])), float(size[at]))
        placed.setdefault(place, []).append(at)
    return placed


def run_steps(space: Workspace) -> None:
    """Estimate every step whose attention was held out, and keep it beside the measured sum."""
    plans = (PLANS["gemm_half"], PLANS["decode"])
    own = Path(__file__).read_text(encoding="utf-8")
    key = [STEPS, space.data_key, space.recipe_key, space.judge_key, *map(repr, plans), own]
    if space.current(STEPS, key):
        return
    rows = space.rows
    family = rows.table.family.astype(str)
    held_out = np.zeros(len(rows), dtype=bool)
    decode = np.flatnonzero(family == "decode")
    held_out[decode] = shape_hash(rows.table.take(decode)) < HELD_OUT
    linear = plans[0].mask(rows) & (rows.source.astype(str) != "vidur")
    train = np.flatnonzero(linear | ((family == "decode") & ~held_out))
    bundle = space.bundle(STEPS, train, plans)
    data = space.shared / "data"
    layers = [*vidur_layers(data / "vidur"), *llama_layers(data / "llmservingsim", frozenset(space.gpus))]
    steps = []
    for source, variant in (("vidur", "decode.warm_cache"), ("llmservingsim", "decode.uncut.warm_cache")):
        index = np.flatnonzero(held_out & (rows.table.variant == variant))
        mine = [part for part in layers if part.source == source]
        steps += list(_estimated(space, bundle, mine, _attentions(rows, index)))
    space.keep(STEPS, key, steps)
    space.tell(f"{STEPS}: {len(steps):,} steps")


def _estimated(
    space: Workspace, bundle: Bundle, layers: list[Layers], attentions: Attentions
) -> Iterator[dict[str, object]]:
    """Yield each step: a layer with every held-out attention of its sizes."""
    rows = space.rows
    for layer in layers:
        batch = layer.tokens
        index = attentions.get((layer.gpu, batch * layer.heads, batch * layer.caches, 128.0), [])
        if not index:
            continue
        gpu = space.gpus[layer.gpu]
        linear = _linear_table(layer)
        table = rows.table.take(np.array(index))
        products = bundle.predict(linear, gpu)
        attention = bundle.predict(table, gpu)
        bare_linear = float(roofline(linear, gpu).roofline_us.sum())
        bare = roofline(table, gpu).roofline_us
        for place, at in enumerate(index):
            measured = layer.measured_us + float(rows.measured_us[at])
            estimated = float(products.duration_us.sum() + attention.duration_us[place])
            low = float(products.low_us.sum() + attention.low_us[place])
            high = float(products.high_us.sum() + attention.high_us[place])
            yield {
                "source": layer.source,
                "model": layer.model,
                "gpu": layer.gpu,
                "batch": batch,
                "keys": float(rows.table.columns["gemm_n"][at]),
                "attention_share": float(rows.measured_us[at]) / measured,
                "error_pct": 100 * abs(estimated / measured - 1),
                "signed_pct": 100 * (estimated / measured - 1),
                "roofline_pct": 100 * abs((bare_linear + bare[place]) / measured - 1),
                "inside": bool(low <= measured <= high),
            }


def _linear_table(layer: Layers) -> KernelTable:
    n = np.array([product[0] for product in layer.products])
    k = np.array([product[1] for product in layer.products])
    return product_table("linear", "fp16", m=np.full(len(n), layer.tokens), n=n, k=k, size=_HALF)


def steps_page(space: Workspace) -> list[str]:
    """Return the table of decoding steps, Markdown lines."""
    steps = space.listed(STEPS)
    if not steps:
        return []
    head = "| linear layers | model | GPU | steps | mean | median | bias | roofline | inside | attention's share |"
    out = ["", "## One layer's decoding step: linear layers and attention", "", head, "|" + "---|" * 10]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for step in steps:
        groups.setdefault(tuple(str(step[name]) for name in ("source", "model", "gpu")), []).append(step)
    for names, mine in sorted(groups.items()):
        errors = np.array([step["error_pct"] for step in mine])
        bias = np.median([step["signed_pct"] for step in mine])
        roof = np.mean([step["roofline_pct"] for step in mine])
        inside = 100 * np.mean([step["inside"] for step in mine])
        share = 100 * np.mean([step["attention_share"] for step in mine])
        out.append(
            f"| {' | '.join(names)} | {len(mine):,} | {errors.mean():.1f} % | {np.median(errors):.1f} % "
            f"| {bias:+.1f} % | {roof:.0f} % | {inside:.0f} % | {share:.0f} % |"
        )
    heavy = [step["error_pct"] for step in steps if float(step["attention_share"]) >= _HEAVY]  # type: ignore[arg-type]
    if heavy:
        mean = np.mean(heavy)
        out += [
            "",
            f"Of the {len(heavy):,} steps that spend 30 % or more in attention the mean error is {mean:.1f} %.",
        ]
    return out


def run_vectors(space: Workspace) -> None:
    """Estimate attention without fusion, two batches of matrices times vectors, beside the fused kernel measured."""
    own = Path(__file__).read_text(encoding="utf-8")
    key = [VECTORS, space.data_key, space.judge_key, own]
    if space.current(VECTORS, key):
        return
    rows = space.rows
    columns = rows.table.columns
    grouped = (
        columns["read_bytes"]
        < 0.9 * 2 * columns["gemm_batch"] * columns["gemm_n"] * columns["gemm_k"] * _HALF
    )
    plain = (rows.table.variant == "decode.warm_cache") & ~grouped
    bundle = Bundle(name="analytical", models=())
    placed = []
    for name, gpu in sorted(space.gpus.items()):
        beyond = columns["read_bytes"] > 4 * gpu.l2_bytes
        index = np.flatnonzero(plain & beyond & (rows.gpu == name) & (rows.measured_us > _LONG_US))
        if not len(index):
            continue
        heads = columns["gemm_batch"][index]
        keys = columns["gemm_n"][index]
        size = columns["gemm_k"][index]
        one = np.ones(len(index))
        scores = product_table("bmm", "bf16", m=one, n=keys, k=size, size=_HALF, batch=heads)
        values = product_table("bmm", "bf16", m=one, n=size, k=keys, size=_HALF, batch=heads)
        together = bundle.predict(scores, gpu).duration_us + bundle.predict(values, gpu).duration_us
        ratio = together / rows.measured_us[index]
        low, middle, high = np.percentile(ratio, (10, 50, 90)).tolist()
        placed.append({"gpu": name, "rows": len(index), "low": low, "median": middle, "high": high})
    space.keep(VECTORS, key, placed)


def vectors_page(space: Workspace) -> list[str]:
    """Return the table of matrices times vectors, Markdown lines."""
    placed = space.listed(VECTORS)
    if not placed:
        return []
    out = [
        "",
        "## Attention without fusion: matrices times vectors",
        "",
        "No public table has batches of matrices times vectors. Their estimate is the traffic at what streaming kernels",
        "sustain. Beside the fused kernel as measured, which reads the same keys and values (from DRAM, no grouped heads):",
        "",
        "| GPU | rows | both products over the fused kernel: 10 %, median, 90 % |",
        "|---|---|---|",
    ]
    for entry in placed:
        spread = ", ".join(f"{entry[name]:.2f}" for name in ("low", "median", "high"))
        out.append(f"| {entry['gpu']} | {entry['rows']:,} | {spread} |")
    return out
