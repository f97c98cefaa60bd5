"""Show what each interference model says of pairs of our estimates, and what a fit finds again of a known law.

    python benchmarks/interference.py [--seed 0] [--models 9] [--only estimates|again|others]

First table: every pair of two models of the golden set (batch 8, torch, fp32) on each GPU type, both unconfined or both on
half of the SMs; the factor on each. Second: slowdowns of ``--models`` made-up models, two shares, made by a known law with
lognormal noise (no pair measured on a GPU is available to us); errors with each model left out in turn, and what is kept.
Third (``others``): the same of two laws that are not ours (tests/interference/_other_laws.py), whose forms and seeds were
written down before any fit saw them: the bar is to be below the constant, the mean slowdown, at both figures.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "interference"))
sys.path.insert(0, str(Path(__file__).parent))
from _other_laws import LAWS as OTHER_LAWS
from _other_laws import SEEDS, other_pairs
from _pairs import pairs, written
from _placement_tables import GPUS, own_estimates

from gkestimator.documents.interference import ContentionWeights
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.interference.base import Interference
from gkestimator.interference.contention import Contention
from gkestimator.interference.fitting import fit_interference
from gkestimator.interference.gpulet import Gpulet
from gkestimator.interference.gpulet_law import GpuletCoefficients
from gkestimator.interference.laws import memory_slowdown, slowdown
from gkestimator.interference.pairs import read_pairs
from gkestimator.interference.registry import make_interference
from gkestimator.tables.layout import TextColumn, markdown_table

BATCH = 8
SHARES = (100.0, 50.0)
LAWS = ("contention", "gpulet", "igniter")
RESOURCES = ("SMs", "DRAM", "L2")
# Numbers of models whose pairs are measured.
MODEL_COUNTS = (9, 5, 4)
NOISE = (0.0, 0.03, 0.1)
TRUTHS: dict[str, Interference] = {
    "contention without weights": Contention(),
    "contention with weights": Contention(
        ContentionWeights(
            sm_overlap=0.3, sm_excess=0.8, dram_overlap=0.5, dram_excess=1.2, l2_overlap=0.2, l2_excess=0.6
        )
    ),
    "gpulet's, other coefficients": Gpulet(
        GpuletCoefficients(constant=0.9, l2_own=0.1, l2_other=0.4, dram_own=0.05, dram_other=0.6)
    ),
}


def on_estimates() -> Iterator[list[str]]:
    """GPU type, share, law, pairs, median, 90th percentile and most of the factor, what sets it where it is above 1."""
    rows = own_estimates()
    for gpu in GPUS:
        spec = gpu_catalogue().spec(gpu)
        for share in SHARES:
            here = [
                r for r in rows if r.gpu == spec.name and r.sm_share_pct == share and r.batch_size == BATCH
            ]
            for name in LAWS:
                law = make_interference(name, gpus=[spec])
                terms = np.array(law.terms(spec))
                features = [np.array(law.features(r)) for r in here]
                found = [slowdown(law.code, a, b, 1, terms) for a, b in permutations(features, 2)]
                quantiles = [f"{q:.2f}" for q in np.quantile(found, (0.5, 0.9, 1.0))]
                sets = _binding(features) if name == "contention" else "-"
                yield [spec.name, f"{share:g}", name, str(len(found)), *quantiles, sets]


def _binding(features: list[np.ndarray]) -> str:
    """How many pairs each resource sets the factor of, where that is above 1."""
    counts = dict.fromkeys(RESOURCES, 0)
    for a, b in permutations(features, 2):
        asked = (a[0] + (b[3] if a[4] else b[0]), memory_slowdown(a[1], b[1]), memory_slowdown(a[2], b[2]))
        if max(asked) > 1:
            counts[RESOURCES[int(np.argmax(asked))]] += 1
    return ", ".join(f"{n} {c}" for n, c in counts.items())


def found_again(models: int, seed: int) -> Iterator[list[str]]:
    """Truth, noise, median (90th percentile) error of each law in percent, what is kept."""
    for truth, law in TRUTHS.items():
        for noise in NOISE:
            with tempfile.TemporaryDirectory() as folder:
                runs = pairs(law, models=models, noise=noise, seed=seed)
                fit = fit_interference(read_pairs(written(Path(folder) / "pairs.csv", runs)))
            errors = [f"{e.median_pct:.1f} ({e.p90_pct:.1f})" for e in fit.errors]
            kept = (
                f"gpulet {'fitted' if fit.gpulet.fitted else 'derived'}, "
                f"contention {'derived' if fit.contention is None else 'fitted'}, {fit.fitted.form}"
            )
            yield [truth, f"{100 * noise:.0f}", *errors, kept]


def other_laws() -> Iterator[list[str]]:
    """Law, models, seed, mean slowdown, median (90th percentile) error of each law in percent, chosen form, verdict."""
    for name in OTHER_LAWS:
        for models in MODEL_COUNTS:
            for seed in SEEDS:
                with tempfile.TemporaryDirectory() as folder:
                    runs = other_pairs(name, models=models, seed=seed)
                    fit = fit_interference(read_pairs(written(Path(folder) / "pairs.csv", runs)))
                errors = [f"{e.median_pct:.1f} ({e.p90_pct:.1f})" for e in fit.errors]
                by_law = {e.law: e for e in fit.errors}
                form = fit.fitted.form
                if fit.fitted.logarithm:
                    form += ", logarithm"
                below = by_law["fitted"].beats(by_law["constant"])
                verdict = "below" if below else "not below"
                yield [name, str(models), str(seed), f"{fit.constant:.2f}", *errors, f"{form}: {verdict}"]


def shown(headings: list[str], rows: list[list[str]], texts: int) -> str:
    """A Markdown table; the first ``texts`` columns and the last are not numbers."""
    columns = [
        TextColumn(heading=h, cells=[row[i] for row in rows], right=texts <= i < len(headings) - 1)
        for i, h in enumerate(headings)
    ]
    return "\n".join(markdown_table(columns))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=int, default=9)
    parser.add_argument("--only", choices=["estimates", "again", "others"])
    asked = parser.parse_args()
    laws = [
        "none", "constant", "gpulet, derived", "gpulet, fitted", "contention, derived", "contention, fitted", "fitted"
    ]  # fmt: skip
    if asked.only in (None, "estimates"):
        headings = ["GPU", "share %", "model", "factors", "median", "90th percentile", "most", "set by"]
        print(shown(headings, list(on_estimates()), 3), end="\n\n")
    if asked.only in (None, "again"):
        rows = list(found_again(asked.models, asked.seed))
        print(shown(["truth", "noise %", *laws, "kept"], rows, 1), end="\n\n")
    if asked.only in (None, "others"):
        headings = ["law", "models", "seed", "mean slowdown", *laws, "chosen form"]
        print(shown(headings, list(other_laws()), 1))


if __name__ == "__main__":
    main()
