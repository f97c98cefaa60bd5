"""Judge half-precision products and attention: shapes held out, GPUs left out, constants of the models behind them.

    GKEST_SHARED=... python benchmarks/half_precision.py [--constants] [--shapes] [--gpus] [--fp8]

``--constants`` fits the constants of ``tensor_cores``, ``tensor_attention`` and ``decode`` in
``gkestimator.kernel_models.features`` anew, on all GPUs and with each left out, and prints the error of the model alone.
``--gpus`` leaves the boards of one chip out of the whole recipe. ``--shapes`` holds out the shapes whose hash is below
0.15. ``--fp8`` fits the constants of 8-bit floats on PipeWeave's products on H100 and H800. Without an option: all four.
Errors are
mean / median absolute percentages of the time published (the median over frameworks of one shape, unless said).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from _shared import shared_dir

from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.decode import DECODE_CONSTANTS, DecodeConstants, decode_us
from gkestimator.kernel_models.features.tensor_attention import (
    ATTENTION_CONSTANTS,
    AttentionConstants,
    fused_attention_us,
)
from gkestimator.kernel_models.features.tensor_cores import (
    CONSTANTS,
    FP8_CONSTANTS,
    TensorConstants,
    tensor_core_us,
)
from gkestimator.training.importers.files import read_columns
from gkestimator.training.plan import PLANS
from gkestimator.training.recipe import fit_bundle
from gkestimator.training.rows import TrainingRows, shape_hash
from gkestimator.training.train import measured_rows

HELD_OUT = 0.15
FORMATS = ("aiconfigurator", "vidur", "deepbench", "pipeweave")
MODERN = ("A100-SXM4-80GB", "A40", "H100-SXM", "RTX-PRO-6000")
FIT_ROWS = 800  # of each GPU, for a dozen constants
LOOSE = 0.5  # standard deviation of the logarithm of a constant around the shipped one
FRAMEWORK_GPUS = {"a100_sxm": "A100-SXM4-80GB", "h100_sxm": "H100-SXM", "rtx_pro_6000_server": "RTX-PRO-6000"}
Gpus = dict[str, GpuSpec]
Modelled = Callable[[KernelTable, GpuSpec, Any], np.ndarray]


def family(rows: Sequence[TrainingRows], name: str) -> TrainingRows:
    """All rows of one family in half precision."""
    kept = []
    for part in rows:
        mask = (part.table.family == name) & np.isin(part.table.precision.astype(str), ("fp16", "bf16"))
        if mask.any():
            kept.append(part.take(np.flatnonzero(mask)))
    return TrainingRows.concatenate(kept)


def text(errors: np.ndarray) -> str:
    return f"{errors.mean():6.1f} / {np.median(errors):5.1f}" if len(errors) else "      -      "


def chip(gpu: GpuSpec) -> tuple[int, ...]:
    return (*gpu.compute_capability, gpu.sms)


def modelled(model: Modelled, rows: TrainingRows, gpus: Gpus, constants: Any) -> np.ndarray:
    result = np.empty(len(rows))
    for name in set(rows.gpu.tolist()):
        mask = np.flatnonzero(rows.gpu == name)
        result[mask] = model(rows.table.take(mask), gpus[name], constants)
    return result


def fitted(model: Modelled, rows: TrainingRows, gpus: Gpus, start: Any) -> Any:
    """``start`` with every constant fitted to ``rows`` by least squares of log(time), each held near its start."""
    from scipy.optimize import least_squares

    kind, names = type(start), list(asdict(start))
    origin = np.log([asdict(start)[n] for n in names])
    spread = np.array([0.05 if n in ("dram", "efficiency") else LOOSE for n in names])

    def residuals(x: np.ndarray) -> np.ndarray:
        constants = kind(**dict(zip(names, np.exp(x).tolist(), strict=True)))
        error = np.log(modelled(model, rows, gpus, constants) / rows.measured_us)
        return np.concatenate([error, (x - origin) / spread * np.sqrt(len(rows)) * 0.01])

    found = least_squares(residuals, origin, loss="soft_l1", f_scale=0.1, max_nfev=20, diff_step=1e-2).x
    return kind(**dict(zip(names, np.exp(found).tolist(), strict=True)))


def constants(rows: Sequence[TrainingRows], gpus: Gpus) -> None:
    kinds: tuple[tuple[str, Modelled, TensorConstants | AttentionConstants | DecodeConstants], ...] = (
        ("linear", tensor_core_us, CONSTANTS),
        ("attention", fused_attention_us, ATTENTION_CONSTANTS),
        ("decode", decode_us, DECODE_CONSTANTS),
    )
    rng = np.random.default_rng(0)
    for name, model, shipped in kinds:
        mine = family(rows, name)
        mine = mine.take(
            np.flatnonzero(
                (shape_hash(mine.table) >= HELD_OUT) & np.isin(mine.gpu.astype(str), (*MODERN, "L40S"))
            )
        )
        present = sorted(set(mine.gpu.tolist()))
        drawn = np.concatenate(
            [rng.choice(np.flatnonzero(mine.gpu == g), FIT_ROWS, replace=False) for g in present]
        )
        few = mine.take(np.sort(drawn))
        print(f"\n{name}: the model alone, without trees" + " " * 12 + "shipped   fitted without it")
        for gpu in present:
            other = fitted(model, few.take(np.flatnonzero(few.gpu != gpu)), gpus, shipped)
            test = mine.take(np.flatnonzero(mine.gpu == gpu))
            pair = [
                np.abs(modelled(model, test, gpus, c) / test.measured_us - 1) * 100 for c in (shipped, other)
            ]
            print(f"  {gpu:<20}{len(test):>8} rows  {text(pair[0])}    {text(pair[1])}", flush=True)
        best = asdict(fitted(model, few, gpus, shipped))
        listed = ", ".join(f"{k} {asdict(shipped)[k]:g} ({v:.3g})" for k, v in best.items())
        print(f"  shipped (fitted on all GPUs): {listed}")


def fp8_constants(rows: Sequence[TrainingRows], gpus: Gpus) -> None:
    """Fit those of 8-bit floats on Hopper's full chips, and print the error there and on H20."""
    products = TrainingRows.concatenate([part for part in rows if part.source[0].startswith("pipeweave")])
    kept = shape_hash(products.table) >= HELD_OUT
    hopper = np.flatnonzero(kept & np.isin(products.gpu.astype(str), ("H100-SXM", "H800-SXM")))
    drawn = np.random.default_rng(0).choice(hopper, 4 * FIT_ROWS, replace=False)
    best = fitted(tensor_core_us, products.take(np.sort(drawn)), gpus, FP8_CONSTANTS)
    print("\nfp8 linear: the model alone, without trees" + " " * 8 + "shipped   fitted again")
    for gpu in ("H100-SXM", "H800-SXM", "H20"):
        test = products.take(np.flatnonzero(products.gpu == gpu))
        errors = []
        for constants in (FP8_CONSTANTS, best):
            times = modelled(tensor_core_us, test, gpus, constants)
            errors.append(np.abs(times / test.measured_us - 1) * 100)
        print(f"  {gpu:<20}{len(test):>8} rows  {text(errors[0])}    {text(errors[1])}", flush=True)
    shipped = asdict(FP8_CONSTANTS)
    print(
        f"  shipped (fitted): {', '.join(f'{k} {shipped[k]:g} ({v:.3g})' for k, v in asdict(best).items())}"
    )


def report(predicted: Any, rows: TrainingRows, label: str) -> None:
    error = np.abs(predicted.duration_us / rows.measured_us - 1) * 100
    inside = (rows.measured_us >= predicted.low_us) & (rows.measured_us <= predicted.high_us)
    wide = np.median((predicted.high_us - predicted.low_us) / predicted.duration_us) / np.median(error) * 100
    print(
        f"  {label:<44}{len(rows):>7}  {text(error)}   inside {100 * inside.mean():3.0f} %, width {wide:.1f} x",
        flush=True,
    )


def by_source(bundle: Any, parts: Sequence[TrainingRows], gpus: Gpus) -> None:
    groups: dict[str, list[tuple[TrainingRows, str]]] = {}
    for part in parts:
        for gpu in sorted(set(part.gpu.tolist())):
            mine = part.take(np.flatnonzero(part.gpu == gpu))
            words = (
                gpu,
                mine.source[0],
                mine.table.family[0],
                mine.table.variant[0],
                mine.table.precision[0],
            )
            label = " ".join(dict.fromkeys(words))
            groups.setdefault(label, []).append((mine, gpu))
    for label, members in groups.items():
        rows = TrainingRows.concatenate([r for r, _ in members])
        report(bundle.predict(rows.table, gpus[members[0][1]]), rows, label)


def left_out(rows: Sequence[TrainingRows], gpus: Gpus) -> None:
    plans = [PLANS["gemm_half_unseen"], PLANS["attention_unseen"]]
    print("\nGPU left out, the recipe" + " " * 29 + "rows    mean / median")
    for gpu in (*MODERN, "L40S", "V100-SXM2-16GB", "T4"):
        siblings = [g for g in gpus if chip(gpus[g]) == chip(gpus[gpu])]
        kept = [p.take(np.flatnonzero(~np.isin(p.gpu.astype(str), siblings))) for p in rows]
        bundle = fit_bundle([p for p in kept if len(p)], gpus, plans=plans).bundle
        mine = [p.take(np.flatnonzero((p.gpu == gpu) & _half(p))) for p in rows]
        by_source(bundle, [p for p in mine if len(p)], gpus)


def _half(rows: TrainingRows) -> np.ndarray:
    return np.asarray(PLANS["gemm_half"].mask(rows.table) | PLANS["attention"].mask(rows.table))


def shapes(rows: Sequence[TrainingRows], gpus: Gpus, raw: dict[str, np.ndarray]) -> None:
    plans = [PLANS["gemm_half"], PLANS["attention"]]
    mine = [p.take(np.flatnonzero(_half(p))) for p in rows if _half(p).any()]
    hashes = [shape_hash(p.table) for p in mine]
    fit = [p.take(np.flatnonzero(h >= HELD_OUT)) for p, h in zip(mine, hashes, strict=True)]
    bundle = fit_bundle(fit, gpus, plans=plans).bundle
    test = [p.take(np.flatnonzero(h < HELD_OUT)) for p, h in zip(mine, hashes, strict=True)]
    print("\nShapes held out" + " " * 38 + "rows    mean / median")
    by_source(bundle, test, gpus)
    products = [p for p in test if p.source[0] == "aiconfigurator" and p.table.family[0] == "linear"]
    errors, published, floor = [], [], []
    for part in products:
        for gpu in sorted(set(part.gpu.tolist())):
            one = part.take(np.flatnonzero(part.gpu == gpu))
            predicted = bundle.predict(one.table, gpus[gpu]).duration_us
            errors.append(np.abs(predicted / one.measured_us - 1) * 100)
            columns = one.table.columns
            place = {
                key: i
                for i, key in enumerate(
                    zip(*(columns[f"gemm_{c}"].astype(int).tolist() for c in "mnk"), strict=True)
                )
            }
            shorts = [s for s, long in FRAMEWORK_GPUS.items() if long == gpu]
            if not shorts:  # L40S has a file of its own
                continue
            short = shorts[0]
            of_gpu = np.flatnonzero(raw["gpu"] == short)
            keys = zip(*(raw[c][of_gpu].astype(int).tolist() for c in "mnk"), strict=True)
            found = np.array([place.get(k, -1) for k in keys])
            times = raw["latency_ms"][of_gpu][found >= 0].astype(float) * 1e3
            published.append(np.abs(predicted[found[found >= 0]] / times - 1) * 100)
            floor.append(np.abs(one.measured_us[found[found >= 0]] / times - 1) * 100)
    print(f"  aiconfigurator products, median over frameworks  {text(np.concatenate(errors))}")
    print(f"  the same, every framework's row as published     {text(np.concatenate(published))}")
    print(f"  the median itself against those rows             {text(np.concatenate(floor))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("constants", "shapes", "gpus", "fp8"):
        parser.add_argument(f"--{option}", action="store_true")
    asked = vars(parser.parse_args())
    folder = shared_dir() / "data"
    _, rows, gpus = measured_rows([folder / name for name in FORMATS])
    everything = not any(asked.values())
    if asked["constants"] or everything:
        constants(rows, gpus)
    if asked["fp8"] or everything:
        fp8_constants(rows, gpus)
    if asked["gpus"] or everything:
        left_out(rows, gpus)
    if asked["shapes"] or everything:
        raw = read_columns(folder / "aiconfigurator/gemm_bf16.parquet", ("gpu", "m", "n", "k", "latency_ms"))
        shapes(rows, gpus, raw)


if __name__ == "__main__":
    main()
