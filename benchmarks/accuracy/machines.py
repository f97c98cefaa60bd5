"""Measure what another machine on another day costs: one laboratory's kernels predicted from all others' of the same chip.

Shapes held out share their machine with those trained on, so their intervals do not know that a second machine runs a few
percent faster or slower throughout: other clocks, drivers and library versions. Here every source is left out of a chip
that another source measured too; the median of its log errors is that machine's own factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gkestimator.bundles.models import chip_of
from gkestimator.core.kernels import Array
from gkestimator.estimation.intervals import COMMON_ELSEWHERE, MACHINE
from gkestimator.training.fit import fit_stack, problem, sample
from gkestimator.training.plan import PLAN, ModelPlan

from .lines import Line
from .sections import Section
from .tables import markdown, number
from .workspace import SEED, Workspace

_FEWEST = 20
"""Fewer rows say little about a machine."""
_MOST = 1_500
_FAMILIES = ("linear", "bmm", "conv", "attention", "elementwise", "layernorm", "softmax")
_SAME_MACHINE = frozenset({"neusight/larger", "pipeweave", "pipeweave/test"})
"""Sources that are another file of a machine already there."""
_OTHER_KERNELS = frozenset({"decode"})
"""Regressors whose sources run different kernels (one cuts the keys for more blocks, the other does not): what they differ
by is no machine's."""


def run_machines(space: Workspace) -> None:
    """Predict every source of every chip from the chip's other sources, and keep the factors."""
    plans = [plan for plan in PLAN if plan.scope == "seen"]
    key = ["machines", space.data_key, space.recipe_key, space.judge_key, *map(repr, plans)]
    key.append(Path(__file__).read_text(encoding="utf-8"))
    if space.current("machines", key):
        return
    factors: list[dict[str, object]] = []
    for plan in plans:
        factors += _of_plan(space, plan)
    space.keep("machines", key, factors)


def _of_plan(space: Workspace, plan: ModelPlan) -> Iterator[dict[str, object]]:
    """Yield a machine's factor for each source that ``plan`` trains on and another source of its chip confirms."""
    rows = space.rows
    mine = plan.mask(rows) & ~np.isin(rows.source.astype(str), sorted(_SAME_MACHINE))
    chip = np.array([repr(chip_of(space.gpus[name])) for name in rows.gpu.tolist()])
    source = rows.source.astype(str)
    for name in sorted(set(source[mine].tolist())):
        for number_of_chip in sorted(set(chip[mine & (source == name)].tolist())):
            test = mine & (source == name) & (chip == number_of_chip)
            confirmed = mine & (source != name) & (chip == number_of_chip)
            if min(test.sum(), confirmed.sum()) < _FEWEST:
                continue
            train = mine & ~test
            bundle = space.bundle(f"machines-{plan.name}", np.flatnonzero(train), (plan,))
            yield from _factors(space, bundle, np.flatnonzero(test), plan.name)


def _factors(space: Workspace, bundle: object, index: Array, plan: str) -> Iterator[dict[str, object]]:
    if len(index) > _MOST:
        index = np.random.default_rng(SEED).choice(index, _MOST, replace=False)
    rows = space.rows.take(np.sort(index))
    for gpu in sorted(set(rows.gpu.tolist())):
        part = rows.take(np.flatnonzero(rows.gpu == gpu))
        predictions = bundle.predict(part.table, space.gpus[gpu])  # type: ignore[attr-defined]
        measured = part.duration_us
        known = np.isfinite(measured)
        if known.sum() < _FEWEST:
            continue
        errors = np.log(predictions.duration_us / measured)[known]
        held = (predictions.low_us <= measured) & (measured <= predictions.high_us)
        yield {
            "regressor": plan,
            "gpu": gpu,
            "source": str(part.source[0]),
            "n": int(known.sum()),
            "factor": float(np.median(errors)),
            "error_pct": 100 * float(np.median(np.abs(np.expm1(errors)))),
            "inside_pct": 100 * float(held[known].mean()),
        }


def run_chips(space: Workspace) -> None:
    """Fit every regressor for chips left out, and keep how much of the errors' variance a chip's kernels share."""
    plans = [plan for plan in PLAN if plan.scope == "unseen"]
    key = ["machines-chips", space.data_key, space.recipe_key, *map(repr, plans)]
    key.append(Path(__file__).read_text(encoding="utf-8"))
    if space.current("machines-chips", key):
        return
    space.keep("machines-chips", key, [_shared_by_chips(space, plan) for plan in plans])


def _shared_by_chips(space: Workspace, plan: ModelPlan) -> dict[str, object]:
    """Return the variance of log errors between the means of chips left out, and within each chip."""
    mine = space.rows.take(np.flatnonzero(plan.mask(space.rows)))
    index, stands_for = sample(mine, plan.rows, SEED, space.gpus)
    rows = mine.take(index)
    data = problem(plan, rows, space.gpus)
    fitted = fit_stack(plan, data, seed=SEED)
    known = np.isfinite(rows.duration_us) & ~data.hidden
    errors = (fitted.out_of_fold - data.y)[known]
    weight = (data.weight * stands_for)[known]
    means: list[float] = []
    scatter: list[float] = []
    for chip in np.unique(data.chip[known]):
        of_chip = data.chip[known] == chip
        if of_chip.sum() >= _FEWEST:
            mean = float(np.average(errors[of_chip], weights=weight[of_chip]))
            means.append(mean)
            scatter.append(float(np.average((errors[of_chip] - mean) ** 2, weights=weight[of_chip])))
    between = float(np.mean(np.square(means)))
    within = float(np.mean(scatter))
    return {"regressor": plan.name, "chips": len(means), "between": between, "within": within}


def common_share(space: Workspace) -> float | None:
    """Return the share of the variance that a chip's kernels have in common, pooled over regressors."""
    rows = space.listed("machines-chips")
    if not rows:
        return None
    between = sum(float(str(row["between"])) for row in rows)
    within = sum(float(str(row["within"])) for row in rows)
    return between / (between + within)


def machine_half_width(space: Workspace) -> float | None:
    """Return the 90 % half-width of log(time) that another machine adds: the quantile of |factor|, each counted once."""
    rows = space.listed("machines") or []
    factors = []
    for row in rows:
        if row["regressor"] not in _OTHER_KERNELS and row["source"] not in _SAME_MACHINE:
            factors.append(abs(float(str(row["factor"]))))
    if not factors:
        return None
    return float(np.quantile(factors, 0.9))


def _lines(space: Workspace) -> Iterator[Line]:
    width = machine_half_width(space)
    figure = "not measured"
    met = None
    if width is not None:
        figure = f"{width:.3f}"
        met = abs(width - MACHINE) < 0.02
    yield Line(
        what="another machine, another day: 90 % half-width",
        bar=f"{MACHINE:g} in use",
        figure=figure,
        met=met,
    )
    share = common_share(space)
    yield Line(
        what="chips left out: share of the errors' variance that a chip's kernels have in common",
        bar=f"{COMMON_ELSEWHERE:g} in use",
        figure="not measured" if share is None else f"{share:.2f}",
        met=None if share is None else abs(share - COMMON_ELSEWHERE) < 0.05,
    )


def _page(space: Workspace) -> list[str] | None:
    rows = space.listed("machines")
    width = machine_half_width(space)
    if not rows or width is None:
        return None
    head = ("regressor", "GPU", "source left out", "n", "machine's factor %", "median error %", "inside %")
    cells = []
    for row in rows:
        factor = 100 * float(np.expm1(float(str(row["factor"]))))
        words = (str(row["regressor"]), str(row["gpu"]), str(row["source"]), f"{row['n']:,}")
        cells.append(
            (
                *words,
                f"{factor:+.1f}",
                number(float(str(row["error_pct"]))),
                number(float(str(row["inside_pct"]))),
            )
        )
    return [
        "Each row is one laboratory's kernels on a chip, predicted from everybody else's kernels of that chip and all others.",
        "Its factor is what all its kernels share: how much longer (+) they were estimated than measured, in the median.",
        f"Where both ran the same kernels (decode apart), nine of ten lie within {100 * float(np.expm1(width)):.0f} % ({width:.3f} of the logarithm): the intervals of whole",
        "models add it in squares on GPUs that were trained on (`gkestimator/estimation/intervals.py`). On a GPU left out the",
        "interval of every kernel holds it already, for there the machine is left out with its GPU.",
        "",
        *markdown(head, cells, text=3),
        *_chip_table(space),
    ]


def _chip_table(space: Workspace) -> list[str]:
    """Return the table of chips left out; nothing where they were not run."""
    cells = []
    for row in space.listed("machines-chips") or []:
        between = float(str(row["between"]))
        within = float(str(row["within"]))
        share = number(100 * between / (between + within), 0)
        sizes = (number(100 * np.sqrt(between)), number(100 * np.sqrt(within)))
        cells.append((str(row["regressor"]), str(row["chips"]), *sizes, share))
    if not cells:
        return []
    head = ("regressor", "chips", "common to a chip %", "a kernel's own %", "common share of variance %")
    words = "Every chip left out in turn: standard deviations of the logarithm of estimate over measurement."
    return ["", words, "", *markdown(head, cells)]


SECTION = Section(
    title="Another machine, another day",
    jobs={"machines": run_machines, "machines-chips": run_chips},
    lines=_lines,
    page=_page,
)
