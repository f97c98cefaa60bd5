"""Experiments on single kernels: each trains by the recipe on filtered rows and predicts what was left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from gkestimator.evaluation.baselines import fit_constants, fit_free_stack
from gkestimator.evaluation.cases import KernelCases, predict_cases
from gkestimator.evaluation.splits import chips, hold_out_chip, hold_out_shapes, hold_out_source, thin
from gkestimator.regressors import MEMBERS
from gkestimator.training.plan import PLAN, ModelPlan
from gkestimator.training.rows import TrainingRows

from .workspace import SEED, Workspace, plans_for

LARGER = "neusight/larger"
_LITERAL_ROWS = 12_000
_LITERAL_ROWS_GPU = 6_000
_MOST_PER_GROUP = 3_000  # rows tested of each (GPU, source, family, precision) left out with a chip


def _pairs(rows: TrainingRows) -> set[tuple[str, str]]:
    return set(zip(rows.table.family.astype(str), rows.table.precision.astype(str), strict=True))


def _literal(space: Workspace, train: TrainingRows, test: TrainingRows, most: int) -> np.ndarray:
    """USHER's literal features with its stack, fitted per regressor of the plan, microseconds per row of ``test``."""
    result = np.full(len(test), np.nan)
    for plan in PLAN:
        asked, known = plan.mask(test.table) & np.isnan(result), plan.mask(train.table)
        if not asked.any() or not known.any():
            continue
        mine = train.take(np.flatnonzero(known))
        rng = np.random.default_rng(SEED)
        if len(mine) > most:
            mine = mine.take(np.sort(rng.choice(len(mine), most, replace=False)))
        stack = fit_free_stack(mine, space.gpus, seed=SEED)
        at = np.flatnonzero(asked)
        part = test.take(at)
        result[at] = stack.predict_us(part.table, part.gpu, space.gpus)
    return result


def _experiment(
    space: Workspace,
    name: str,
    train: Callable[[], np.ndarray],
    test: Callable[[], np.ndarray],
    plans: tuple[ModelPlan, ...],
    literal_rows: int,
) -> None:
    key = [name, space.data_key, space.recipe_key, *map(repr, plans), _own_source()]
    if space.result(name, key)[1]:
        space.tell(f"{name}: kept")
        return
    bundle = space.bundle(name, train, plans)
    index, kept = train(), test()
    fitted, left = space.rows.take(index), space.rows.take(kept)
    cases = predict_cases(bundle, left, space.gpus)
    constants = fit_constants(fitted, space.gpus)
    cases = cases.with_estimate("constant", constants.predict_us(left.table, left.gpu, space.gpus))
    space.tell(f"{name}: USHER's literal features")
    cases = cases.with_estimate("literal", _literal(space, fitted, left, literal_rows))
    space.keep(name, key, cases)
    space.tell(f"{name}: {len(cases):,} rows predicted")


def _own_source() -> str:
    return Path(__file__).read_text(encoding="utf-8")


def shapes(space: Workspace) -> None:
    """Shapes left out on every GPU."""
    _experiment(
        space,
        "shapes",
        lambda: hold_out_shapes(space.rows).train,
        lambda: hold_out_shapes(space.rows).test,
        plans_for(_pairs(space.rows), unseen=False),
        _LITERAL_ROWS,
    )


def member(space: Workspace, name: str) -> None:
    """One member in place of the whole stack, on the split of :func:`shapes`."""
    plans = tuple(replace(p, members=(name,)) for p in plans_for(_pairs(space.rows), unseen=False))
    key = [name, space.data_key, space.recipe_key, *map(repr, plans), _own_source()]
    job = f"member-{name}"
    if space.result(job, key)[1]:
        space.tell(f"{job}: kept")
        return
    bundle = space.bundle(job, lambda: hold_out_shapes(space.rows).train, plans)
    left = space.rows.take(hold_out_shapes(space.rows).test)
    space.keep(job, key, predict_cases(bundle, left, space.gpus))


def larger(space: Workspace) -> None:
    """NeuSight's larger shapes from everything else."""
    _experiment(
        space,
        "larger",
        lambda: hold_out_source(space.rows, LARGER).train,
        lambda: hold_out_source(space.rows, LARGER).test,
        plans_for(_pairs(space.rows.take(np.flatnonzero(space.rows.source == LARGER))), unseen=False),
        _LITERAL_ROWS,
    )


def chip(space: Workspace, boards: frozenset[str]) -> None:
    """One chip left out with all its boards."""

    def test() -> np.ndarray:
        return thin(space.rows, hold_out_chip(space.rows, boards).test, most=_MOST_PER_GROUP, seed=SEED)

    _experiment(
        space,
        f"gpu-{sorted(boards)[0]}",
        lambda: hold_out_chip(space.rows, boards).train,
        test,
        plans_for(_pairs(space.rows.take(test())), unseen=True),
        _LITERAL_ROWS_GPU,
    )


def h100_gemm(space: Workspace) -> None:
    """bf16 GEMM on the H100 from those on the A100 and the RTX PRO 6000 alone (aiconfigurator)."""
    rows = space.rows
    gemm = (rows.source == "aiconfigurator") & (rows.table.family == "linear")
    known = np.isin(rows.gpu.astype(str), ["A100-SXM4-80GB", "RTX-PRO-6000"])
    _experiment(
        space,
        "h100-gemm",
        lambda: np.flatnonzero(gemm & known),
        lambda: thin(rows, np.flatnonzero(gemm & (rows.gpu == "H100-SXM")), most=6_000, seed=SEED),
        plans_for({("linear", "bf16")}, unseen=True),
        _LITERAL_ROWS_GPU,
    )


def without_v100_convolutions(space: Workspace) -> np.ndarray:
    """Rows but for the convolutions measured on boards of the V100's chip."""
    rows = space.rows
    boards = next(c for c in chips(rows, space.gpus) if "V100-PCIE-32GB" in c)
    out = np.isin(rows.gpu.astype(str), sorted(boards)) & (rows.table.family == "conv")
    return np.flatnonzero(~out)


def everything_plans(space: Workspace) -> tuple[ModelPlan, ...]:
    """All plans: the shipped recipe."""
    return PLAN


def train_everything(space: Workspace) -> None:
    """The shipped recipe on every row."""
    space.bundle("everything", lambda: np.arange(len(space.rows)), everything_plans(space))


def convolution_plans() -> tuple[ModelPlan, ...]:
    """The plans that train on convolutions."""
    return tuple(p for p in PLAN if any(family == "conv" for family, _ in p.trains))


def train_without_v100_convolutions(space: Workspace) -> None:
    """The regressors of convolutions without those of the V100."""
    space.bundle("no-v100-conv", lambda: without_v100_convolutions(space), convolution_plans())


def kernel_jobs(space: Workspace) -> dict[str, Callable[[Workspace], None]]:
    """Name -> function of every experiment that trains, the longest first."""
    found: dict[str, Callable[[Workspace], None]] = {
        "everything": train_everything,
        "shapes": shapes,
        "larger": larger,
    }
    for boards in chips(space.rows, space.gpus):
        found[f"gpu-{sorted(boards)[0]}"] = _Chip(boards)
    found["h100-gemm"] = h100_gemm
    found["no-v100-conv"] = train_without_v100_convolutions
    for name in MEMBERS:
        found[f"member-{name}"] = _Member(name)
    return found


class _Chip:
    def __init__(self, boards: frozenset[str]) -> None:
        self.boards = boards

    def __call__(self, space: Workspace) -> None:
        chip(space, self.boards)


class _Member:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, space: Workspace) -> None:
        member(space, self.name)


def gpu_cases(space: Workspace) -> KernelCases | None:
    """The stored results of every chip left out, together."""
    parts = [cases for name in space.stored("gpu-") if (cases := space.cases(name)) is not None]
    return KernelCases.concatenate(parts) if parts else None
