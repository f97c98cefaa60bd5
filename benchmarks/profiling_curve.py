"""Show how much profiling a new GPU takes and write docs/how-to/profiling/curve.md: ``python benchmarks/profiling_curve.py``.

A GPU is left out of the public measurements with every board of its chip, the regressors that answer for unknown GPUs are
trained on the rest by the shipped recipe, and then some of its own rows are given back, as a profiling run would give
them: the correction of ``gkest train`` is fitted on those and judged on shapes that neither saw. Needs the extra ``train``
and GKEST_SHARED. Bases and results are kept in ``--cache``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from _shared import shared_dir

from gkestimator.bundles.bundle import Bundle, load_bundle
from gkestimator.bundles.corrections import correction_features, feature_set
from gkestimator.core.kernels import KernelTable
from gkestimator.evaluation.splits import chip_of, hold_out_chip
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.training.measured import fit_correction
from gkestimator.training.plan import PLAN
from gkestimator.training.recipe import fit_bundle
from gkestimator.training.rows import TrainingRows, size_hash
from gkestimator.training.train import measured_rows

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "profiling"
TABLES = ROOT / "docs" / "appendix" / "profiling-curve.md"
DEVELOPMENT = ("P4", "V100-PCIE-32GB")
"""GPUs on which settings of the fit were chosen; the others are judged once."""
GPUS = ("T4", "P100-PCIE-16GB", "A100-PCIE-40GB", *DEVELOPMENT)
HALF = ("H100-SXM",)
BOARDS = {
    ("A100-PCIE-40GB", "conv"): "A100-PCIE-80GB"
}  # where a family was measured on another board of the chip
SHARES = {"conv": 0.3, "linear": 0.2, "bmm": 0.15, "elementwise": 0.15, "softmax": 0.1, "layernorm": 0.1}
BUDGETS = (0, 50, 100, 200, 400, 800, 1600)
HELD_OUT, MOST_TESTED, POOL = 0.3, 1_500, 4_000
SEEDS = {"spread": 1, "random": 1}
COLOURS = ("#2a6f97", "#c8553d", "#588157", "#9a7b4f", "#6d597a")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One fit: mean absolute percentage error on held-out shapes, and percent of their 90 % intervals that held."""

    gpu: str
    family: str
    precision: str
    how: str
    seed: int
    budget: int
    rows: int
    error_pct: float
    held_pct: float
    kept: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Rows of one family on one GPU whose GPU time is known: what may be profiled, and what is tested."""

    table: KernelTable
    duration_us: np.ndarray
    weight: np.ndarray
    shape: np.ndarray
    pool: np.ndarray
    test: np.ndarray


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=ROOT / ".accuracy" / "curve")
    parser.add_argument("--gpu", nargs="*", default=[*GPUS, *HALF], metavar="NAME", choices=[*GPUS, *HALF])
    parser.add_argument("--seconds-per-entry", type=float, default=0.4)
    parser.add_argument("--report", action="store_true", help="write the page from what is cached")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    data = shared_dir() / "data"
    _, parts, gpus = measured_rows([data / "neusight", data / "deepbench", data / "aiconfigurator"])
    rows = TrainingRows.concatenate(parts)
    points: list[Point] = []
    for name in options.gpu:
        points += _judged(name, rows, gpus, options.cache, only_cached=options.report)
    PAGE.mkdir(parents=True, exist_ok=True)
    _write(points, options.seconds_per_entry)
    return 0


def _judged(
    name: str, rows: TrainingRows, gpus: Mapping[str, GpuSpec], cache: Path, *, only_cached: bool
) -> list[Point]:
    file = cache / f"{name}-{_key()}.json"
    if file.is_file():
        return [Point(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]
    if only_cached:
        return []
    base = _base(name, rows, gpus, cache)
    points = []
    kinds = [("linear", "bf16")] if name in HALF else [(family, "fp32") for family in SHARES]
    for family, precision in kinds:
        started = time.monotonic()
        board = BOARDS.get((name, family), name)
        found = _data(rows, board, family, precision)
        if found is None:
            continue
        points += _curve(name, family, precision, found, gpus[board], base)
        print(f"{name} {family}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    file.write_text(json.dumps([asdict(p) for p in points]), encoding="utf-8")
    return points


def _key() -> str:
    """Of everything that the figures depend on in this project."""
    folder = ROOT / "gkestimator"
    files = [*sorted((folder / "training").glob("*.py")), folder / "corrections.py", folder / "features.py"]
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in files:
        if path.name in (
            "small_stack.py",
            "measured.py",
            "recipe.py",
            "plan.py",
            "corrections.py",
            "features.py",
            "rows.py",
        ):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _base(name: str, rows: TrainingRows, gpus: Mapping[str, GpuSpec], cache: Path) -> Bundle:
    """What answers for unknown GPUs, by the shipped recipe, trained without any board of the chip of ``name``."""
    folder = cache / f"without-{name}"
    if not folder.is_dir():
        plans = [p for p in PLAN if p.scope == "unseen" and not p.name.startswith("attention")]
        split = hold_out_chip(rows, chip_of(name, gpus))
        fitted = fit_bundle([rows.take(split.train)], gpus, plans=plans, geometry=False)
        fitted.write(folder, card={"name": "base"})
    return load_bundle(folder)


def _data(rows: TrainingRows, board: str, family: str, precision: str) -> Data | None:
    known = np.isfinite(rows.duration_us)
    mask = known & (rows.gpu == board) & (rows.table.family == family) & (rows.table.precision == precision)
    source = rows.source.astype(str)
    mask &= np.isin(source, ["neusight/train", "aiconfigurator"])
    if mask.sum() < 400:  # the P4's linear rows are throttled and taken out
        return None
    mine = rows.take(np.flatnonzero(mask))
    shape = size_hash(mine.table)
    rng = np.random.default_rng(0)
    test, pool = np.flatnonzero(shape < HELD_OUT), np.flatnonzero(shape >= HELD_OUT)
    doubt = np.maximum(4.0, 0.1 * mine.gap_us)
    time_us = mine.duration_us
    return Data(
        table=mine.table,
        duration_us=time_us,
        weight=np.where(mine.gap_us > 0, (time_us / (time_us + doubt)) ** 2, 1.0),
        shape=shape,
        pool=rng.choice(pool, min(POOL, len(pool)), replace=False),
        test=rng.choice(test, min(MOST_TESTED, len(test)), replace=False),
    )


def _curve(name: str, family: str, precision: str, data: Data, gpu: GpuSpec, base: Bundle) -> Iterator[Point]:
    share = 1.0 if name in HALF else SHARES[family]
    predicted = base.predict(data.table.take(data.test), gpu)
    base_us, width = predicted.duration_us, np.log(predicted.high_us / predicted.duration_us)
    truth = data.duration_us[data.test]
    pool_us = base.predict(data.table.take(data.pool), gpu).duration_us
    for how, choose in CHOICES.items():
        for seed in range(SEEDS[how]):
            order = choose(data, gpu, pool_us, seed, round(share * BUDGETS[-1]))
            for budget in BUDGETS:
                pick = order[: round(share * budget)]
                duration, half, kept = base_us, width, "base"
                if len(pick):
                    at = data.pool[pick]
                    correction, report = fit_correction(
                        data.table.take(at),
                        data.duration_us[at],
                        pool_us[pick],
                        gpu,
                        weight=data.weight[at],
                        seed=seed,
                    )
                    kept = report.kept
                    if correction is not None:
                        duration, half, _ = correction.predict(
                            data.table.take(data.test), gpu, base_us, width
                        )
                yield Point(
                    gpu=name,
                    family=family,
                    precision=precision,
                    how=how,
                    seed=seed,
                    budget=budget,
                    rows=len(pick),
                    error_pct=float(np.mean(np.abs(duration / truth - 1)) * 100),
                    held_pct=float(np.mean(np.abs(np.log(duration / truth)) <= half) * 100),
                    kept=kept,
                )


def _at_random(data: Data, gpu: GpuSpec, base_us: np.ndarray, seed: int, most: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(len(data.pool))[:most]


def _spread(data: Data, gpu: GpuSpec, base_us: np.ndarray, seed: int, most: int) -> np.ndarray:
    """Farthest point first in the standardised features, from a row at random: what a planner does."""
    table = data.table.take(data.pool)
    features = feature_set(str(table.family[0]), str(table.precision[0]))
    x = correction_features(table, gpu, base_us, features, ())[0].astype(np.float64)
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-6)
    chosen = [int(np.random.default_rng(seed).integers(len(x)))]
    distance = np.full(len(x), np.inf)
    while len(chosen) < min(most, len(x)):
        distance = np.minimum(distance, np.square(x - x[chosen[-1]]).sum(axis=1))
        chosen.append(int(np.argmax(distance)))
    return np.array(chosen)


CHOICES: Mapping[str, Callable[[Data, GpuSpec, np.ndarray, int, int], np.ndarray]] = {
    "spread": _spread,
    "random": _at_random,
}

HEAD = """# How much profiling a new GPU takes

Written by `python benchmarks/profiling_curve.py`; do not edit.

You have a GPU that nobody measured, and an hour. How many operators are worth timing on it? Error of kernel times in percent against the
operators that were measured:

![Error against rows](curve.png)

"""
METHOD = """
A row is one operator; minutes take {seconds:g} s an entry, which is an assumption: `gkest profile plan` says what a plan takes on your machine.
`spread`: operators far from each other in their physical features, as a plan chooses them; `random`: any. Each kind of kernel by itself:
[tables](../../appendix/profiling-curve.md).

## How this was found

A GPU is left out of the public measurements with every board of its chip. What answers for unknown GPUs is trained on the
rest by the shipped recipe (only the regressors of scope `unseen`, which are all that such a GPU asks). Then rows of it are
given back, as a profiling run would give them, and `gkest train`'s correction is fitted on those; the error is judged on
sizes ({held:.0f} % by hash, at most {most:,} a family) that were never given back under any operator. Mean absolute percentage error of GPU
time, NeuSight's `train` rows whose time the launch does not hide, FP32; bf16: aiconfigurator's products. Chips left out
of the base keep their public rows out of everything but these tables.

Rows are dealt {shares}. Settings of the fit were chosen on {development}. One rule was changed
after looking at T4 and A100 too: the base answers unless mean and median |log error| on shapes left out are both better, not
by percentages. One draw of rows each.
"""
TABLES_HEAD = """# How much profiling a new GPU takes: tables

Written by `python benchmarks/profiling_curve.py`; do not edit. Error in percent against measured rows, by kind of kernel
([how it was found](../how-to/profiling/curve.md)).
"""


def _write(points: Sequence[Point], seconds: float) -> None:
    dealt = ", ".join(f"{100 * share:.0f} % {family}" for family, share in SHARES.items())
    method = METHOD.format(
        held=100 * HELD_OUT,
        most=MOST_TESTED,
        shares=dealt,
        development=" and ".join(DEVELOPMENT),
        seconds=seconds,
    )
    full = [p for p in points if p.precision == "fp32"]
    mean = ["## Mean over kinds of kernels, FP32", "", *_table(full, seconds, by_family=False)]
    page = [HEAD.rstrip("\n"), "", *mean, "## 200 rows", "", *_at_200(full)]
    (PAGE / "curve.md").write_text("\n".join(page) + "\n" + method, encoding="utf-8")
    tables = [TABLES_HEAD]
    for family in SHARES:
        tables += [f"## {family}", "", *_table([p for p in full if p.family == family], seconds)]
    half = [p for p in points if p.precision == "bf16"]
    if half:
        tables += ["## linear, bf16 (all rows are linear)", "", *_table(half, seconds)]
    TABLES.write_text("\n".join(tables).rstrip("\n") + "\n", encoding="utf-8")
    _draw(full, seconds)


def _mean(points: Sequence[Point], field: str) -> float:
    """Mean over seeds, then families, so that each family counts alike."""
    each = [
        np.mean([getattr(p, field) for p in points if p.family == family])
        for family in dict.fromkeys(p.family for p in points)
    ]
    return float(np.mean(each)) if each else float("nan")


def _table(points: Sequence[Point], seconds: float, *, by_family: bool = True) -> list[str]:
    lines = [
        "| GPU | rows | " + " | ".join(f"{b}" for b in BUDGETS) + " | interval held, 200 rows |",
        "|---|---|" + "---:|" * (len(BUDGETS) + 1),
    ]
    if not by_family:
        minutes = " | ".join(f"{b * seconds / 60:.1f}" for b in BUDGETS)
        lines.append(f"| | minutes | {minutes} | |")
    for gpu in dict.fromkeys(p.gpu for p in points):
        for how in CHOICES:
            mine = [p for p in points if p.gpu == gpu and p.how == how]
            cells = [f"{_mean([p for p in mine if p.budget == b], 'error_pct'):.1f}" for b in BUDGETS]
            held = _mean([p for p in mine if p.budget == 200], "held_pct")
            lines.append(f"| {gpu} | {how} | {' | '.join(cells)} | {held:.0f} % |")
    return [*lines, ""]


def _at_200(points: Sequence[Point]) -> list[str]:
    """Does 200 rows in all, dealt over the families, improve each?"""
    lines = [
        "Error in percent without and with 200 rows in all (spread), and rows of the family among them.",
        "",
        "| family | rows | " + " | ".join(GPUS) + " | better on |",
        "|---|---:|" + "---:|" * (len(GPUS) + 1),
    ]
    for family in SHARES:
        cells, better, count = [], 0, 0
        for gpu in GPUS:
            mine = [p for p in points if p.gpu == gpu and p.family == family and p.how == "spread"]
            if not mine:
                cells.append("–")
                continue
            before, after = (_mean([p for p in mine if p.budget == b], "error_pct") for b in (0, 200))
            count += 1
            better += after < before
            cells.append(f"{before:.1f} → {after:.1f}")
        rows = round(SHARES[family] * 200)
        lines.append(f"| {family} | {rows} | {' | '.join(cells)} | {better} of {count} |")
    return lines


def _draw(points: Sequence[Point], seconds: float) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mpl.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(2, 3, figsize=(9.5, 5.6), sharex=True)
    at = np.arange(len(BUDGETS))
    for axis, family in zip(axes.flat, SHARES, strict=True):
        top = 0.0
        for gpu, colour in zip(GPUS, COLOURS, strict=True):
            for how, style in (("spread", "-"), ("random", ":")):
                mine = [p for p in points if p.gpu == gpu and p.family == family and p.how == how]
                if not mine:
                    continue
                values = [_mean([p for p in mine if p.budget == b], "error_pct") for b in BUDGETS]
                top = max(top, *values)
                label = gpu if how == "spread" else None
                axis.plot(
                    at, values, style, color=colour, label=label, linewidth=1.4, marker="o", markersize=2.5
                )
        axis.set_title(f"{family} ({100 * SHARES[family]:.0f} % of the rows)")
        axis.set_ylim(0, 1.08 * top)
        axis.grid(True, color="#ececec")
        axis.set_xticks(at, [f"{b}\n{b * seconds / 60:.1f}" for b in BUDGETS])
    for axis in axes[:, 0]:
        axis.set_ylabel("mean error on held-out shapes, %")
    for axis in axes[1]:
        axis.set_xlabel(f"measured rows of the new GPU, all families\nminutes at {seconds:g} s an entry")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)
    figure.text(0.995, 0.005, "solid: spread over the features; dotted: at random", ha="right", fontsize=7)
    figure.tight_layout(rect=(0, 0.02, 1, 0.95))
    figure.savefig(PAGE / "curve.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    raise SystemExit(main())
