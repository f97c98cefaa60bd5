"""Judge single kernels: each experiment trains by the recipe on filtered rows and predicts what was left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from gkestimator.bundles.bundle import Bundle
from gkestimator.core.kernels import KernelTable
from gkestimator.evaluation.baselines import fit_constants, fit_free_stack
from gkestimator.evaluation.cases import KernelCases, predict_cases
from gkestimator.evaluation.splits import Split, chips, hold_out_chip, hold_out_shapes, hold_out_source, thin
from gkestimator.kernel_models.regressors import MEMBERS
from gkestimator.kernel_models.regressors.stack import TREE_MEMBERS
from gkestimator.training.plan import PLAN
from gkestimator.training.rows import TrainingRows

from .workspace import SEED, Workspace, plans_for

LARGER = "neusight/larger"
_LITERAL_ROWS = 12_000
_FEWEST_LITERAL = 100
_TREES = dict.fromkeys(TREE_MEMBERS, 200)  # of a member alone that the plan gives no number
_MOST_PER_GROUP = 3_000  # rows tested of each (GPU, source, family, precision) left out with a chip


def _literal(space: Workspace, train: TrainingRows, test: TrainingRows, most: int) -> np.ndarray:
    """USHER's literal features with its stack, fitted per family, microseconds per row of ``test``; NaN where fewer
    than 100 rows could be fitted."""
    result = np.full(len(test), np.nan)
    known = train.take(np.flatnonzero(np.isfinite(train.duration_us)))
    kinds, asked = label_column(known.table), label_column(test.table)
    for kind in sorted(set(asked.tolist())):
        mine = np.flatnonzero(kinds == kind)
        if len(mine) < _FEWEST_LITERAL:
            continue
        if len(mine) > most:
            mine = np.sort(np.random.default_rng(SEED).choice(mine, most, replace=False))
        stack = fit_free_stack(known.take(mine), space.gpus, seed=SEED)
        at = np.flatnonzero(asked == kind)
        part = test.take(at)
        result[at] = stack.predict_us(part.table, part.gpu, space.gpus)
    return result


def label(family: str, precision: str) -> str:
    """The name a family goes by in tables: FP32 plain, anything narrower marked."""
    if precision == "fp32":
        return family
    if precision in ("int8", "fp8", "w8a16", "w4a16"):
        return f"{family}, {precision}"
    return f"{family}, half"


def label_column(table: KernelTable | KernelCases) -> np.ndarray:
    """:func:`label` per row."""
    both = np.char.add(np.char.add(table.family.astype(str), "|"), table.precision.astype(str))
    found, inverse = np.unique(both, return_inverse=True)
    return np.array([label(*word.split("|")) for word in found.tolist()], dtype=str)[inverse]


def _experiment(
    space: Workspace, name: str, split: Callable[[], Split], literal_rows: int = 0, *, unseen: bool = False
) -> None:
    """Train on one side of ``split()``, predict the other by the bundle and the baselines, and keep the result.

    ``literal_rows`` > 0: USHER's literal features beside, fitted on at most so many rows a family.
    """
    made = split()
    plans = plans_for(space, made.train, made.test, unseen=unseen)
    key = [name, space.data_key, space.recipe_key, space.judge_key, *map(repr, plans), _own_source()]
    if space.current(name, key):
        return
    bundle = space.bundle(name, made.train, plans)
    fitted, left = space.rows.take(made.train), space.rows.take(made.test)
    cases = predict_cases(bundle, left, space.gpus)
    constants = fit_constants(fitted, space.gpus)
    cases = cases.with_estimate("constant", constants.predict_us(left.table, left.gpu, space.gpus))
    if literal_rows:
        space.tell(f"{name}: USHER's literal features")
        cases = cases.with_estimate("literal", _literal(space, fitted, left, literal_rows))
    space.keep(name, key, cases)
    space.tell(f"{name}: {len(cases):,} rows predicted")


def _own_source() -> str:
    return Path(__file__).read_text(encoding="utf-8")


def shapes(space: Workspace) -> None:
    """Shapes left out on every GPU."""
    _experiment(space, "shapes", lambda: hold_out_shapes(space.rows), _LITERAL_ROWS)


_MEMBER_TREES = 200
"""Trees of a member that a plan's own stack does not ask for."""


def member(space: Workspace, name: str) -> None:
    """One member in place of the whole stack, on the split of :func:`shapes`."""
    made = hold_out_shapes(space.rows)
    plans = tuple(
        replace(p, members=(name,), estimators={name: _MEMBER_TREES, **p.estimators})
        for p in plans_for(space, made.train, made.test, unseen=False)
    )
    job = f"member-{name}"
    key = [job, space.data_key, space.recipe_key, space.judge_key, *map(repr, plans), _own_source()]
    if space.current(job, key):
        return
    bundle = space.bundle(job, made.train, plans)
    space.keep(job, key, predict_cases(bundle, space.rows.take(made.test), space.gpus))


def larger(space: Workspace) -> None:
    """NeuSight's larger shapes from everything else."""
    _experiment(space, "larger", lambda: hold_out_source(space.rows, LARGER), _LITERAL_ROWS)


def chip(space: Workspace, boards: frozenset[str]) -> None:
    """One chip left out with all its boards."""

    def split() -> Split:
        made = hold_out_chip(space.rows, boards)
        return Split(train=made.train, test=thin(space.rows, made.test, most=_MOST_PER_GROUP, seed=SEED))

    _experiment(space, chip_job(boards), split, unseen=True)


def chip_job(boards: frozenset[str]) -> str:
    """The name of the experiment that leaves these boards out."""
    return f"gpu-{min(boards)}"


def h100_gemm(space: Workspace) -> None:
    """bf16 GEMM on the H100 from those on the A100 and the RTX PRO 6000 alone (aiconfigurator)."""

    def split() -> Split:
        rows = space.rows
        gemm = (rows.source == "aiconfigurator") & (rows.table.family == "linear")
        gemm &= rows.table.precision == "bf16"
        known = np.isin(rows.gpu.astype(str), ["A100-SXM4-80GB", "RTX-PRO-6000"])
        test = np.flatnonzero(gemm & (rows.gpu == "H100-SXM"))
        return Split(train=np.flatnonzero(gemm & known), test=thin(rows, test, most=6_000, seed=SEED))

    _experiment(space, "h100-gemm", split, unseen=True)


def shipped(space: Workspace) -> Bundle:
    """The recipe on every row: what is shipped."""
    return space.bundle("everything", np.arange(len(space.rows)), PLAN, geometry=True)


def shipped_folder(space: Workspace) -> Path:
    """The folder of :func:`shipped`, trained if need be."""
    shipped(space)
    return space.bundle_folder("everything", np.arange(len(space.rows)), PLAN, geometry=True)


def without_v100_convolutions(space: Workspace) -> Bundle:
    """The shipped bundle with its regressors of convolutions trained without those measured on the V100's chip."""
    rows = space.rows
    boards = next(c for c in chips(rows, space.gpus) if "V100-PCIE-32GB" in c)
    out = np.isin(rows.gpu.astype(str), sorted(boards)) & (rows.table.family == "conv")
    plans = tuple(p for p in PLAN if any(family == "conv" for family, _ in p.trains))
    part = space.bundle("no-v100-conv", np.flatnonzero(~out), plans)
    whole, other, names = shipped(space), {m.name: m for m in part.models}, {p.name for p in plans}
    kept = [other.get(m.name, m) for m in whole.models if m.name in other or m.name not in names]
    return replace(whole, models=tuple(kept))


def kernel_jobs(space: Workspace) -> dict[str, Callable[[Workspace], None]]:
    """Name -> function of every experiment that trains, the longest first."""
    found: dict[str, Callable[[Workspace], None]] = {
        "everything": _bundles,
        "shapes": shapes,
        "larger": larger,
    }
    for boards in chips(space.rows, space.gpus):
        found[chip_job(boards)] = partial(chip, boards=boards)
    found["h100-gemm"] = h100_gemm
    for name in MEMBERS:
        found[f"member-{name}"] = partial(member, name=name)
    return found


def _bundles(space: Workspace) -> None:
    without_v100_convolutions(space)


def gpu_cases(space: Workspace) -> KernelCases | None:
    """The stored results of every chip left out, together."""
    names = space.stored("gpu-")
    return space.joined("gpus", names) if names else None
