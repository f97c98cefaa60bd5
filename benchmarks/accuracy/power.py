"""Judge the power of repeated kernels: shapes left out on every GPU, and each GPU left out.

The serving framework is an input, as it is part of what was measured; the answer without one, the product's default, is
judged beside it. The other method is the one without a model: a busy board draws its power limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.evaluation.splits import HELD_OUT
from gkestimator.hardware.gpu_spec import GpuSpec
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.training.power import (
    PowerRows,
    fit_power,
    power_feature_rows,
    power_forest,
    read_power,
)

from .lines import Expected, Line, line
from .sections import Section
from .tables import markdown, number
from .workspace import SEED, Workspace, sources_of

BAR = 8.0
_SHAPES = "power-shapes"
_GPUS = "power-gpus"
_TYPICAL = "any"
Rows = Mapping[str, PowerRows]
Group = dict[str, Any]
"""One line of a table: its words, how many rows, and sums over them."""


def _key(space: Workspace, name: str) -> list[str]:
    sources = sorted(sources_of("gkestimator.training.power"))
    files = sorted((space.shared / "data" / "aiconfigurator").glob("power_*.parquet"))
    return [
        name,
        *[f"{path.name} {path.stat().st_size}" for path in files],
        *[path.read_text(encoding="utf-8") for path in (*sources, Path(__file__))],
    ]


def _measured(space: Workspace) -> tuple[Rows, dict[str, GpuSpec]]:
    rows = read_power(space.shared / "data" / "aiconfigurator")
    if space.smoke:
        rows = {name: mine.take(np.arange(0, len(mine), 10)) for name, mine in rows.items()}
    names = sorted({name for mine in rows.values() for name in mine.gpu.tolist()})
    catalogue = gpu_catalogue()
    return rows, {name: catalogue.resolve(name)[0] for name in names}


def run_shapes(space: Workspace) -> None:
    """Fit on the shapes that stay, predict those left out."""
    key = _key(space, _SHAPES)
    if space.current(_SHAPES, key):
        return
    rows, gpus = _measured(space)
    left = {name: mine.shape < HELD_OUT for name, mine in rows.items()}
    model = fit_power({name: mine.take(~left[name]) for name, mine in rows.items()}, gpus, seed=SEED)
    groups: list[Group] = []
    for family, mine in rows.items():
        for index, words in _groups(mine, left[family]):
            part = mine.take(index)
            answer = model.predict(part.table, gpus[words["gpu"]])
            assert answer is not None
            truth_w = part.share * part.limit_w
            inside = (truth_w >= answer.low_w) & (truth_w <= answer.high_w)
            groups.append({"family": family, **words, **_figures(answer.watts, part, inside)})
    space.keep(_SHAPES, key, groups)


def run_gpus(space: Workspace) -> None:
    """Fit on one GPU, predict the other."""
    key = _key(space, _GPUS)
    if space.current(_GPUS, key):
        return
    rows, gpus = _measured(space)
    groups: list[Group] = []
    for family, mine in rows.items():
        x, _ = power_feature_rows(family, mine, gpus)
        for name in gpus:
            out = mine.gpu == name
            share = power_forest(x, mine.share, ~out, SEED).predict(x)[:, 0]
            for index, words in _groups(mine, out):
                part = mine.take(index)
                groups.append({"family": family, **words, **_figures(share[index] * part.limit_w, part)})
    space.keep(_GPUS, key, groups)


def _groups(rows: PowerRows, mask: np.ndarray) -> Iterator[tuple[np.ndarray, dict[str, str]]]:
    """Yield the rows of the mask, by GPU, framework and precision."""
    columns = (rows.gpu, rows.framework, rows.table.precision)
    names = ("gpu", "framework", "precision")
    words = np.array(["|".join(row) for row in zip(*columns, strict=True)])
    for word in sorted(set(words[mask].tolist())):
        described = dict(zip(names, word.split("|"), strict=True))
        described["framework"] = described["framework"] or _TYPICAL
        yield np.flatnonzero(mask & (words == word)), described


def _figures(watts: np.ndarray, rows: PowerRows, inside: np.ndarray | None = None) -> Group:
    errors = 100 * np.abs(watts / (rows.share * rows.limit_w) - 1)
    known = np.isfinite(errors)
    figures: Group = {
        "asked": len(rows),
        "n": int(known.sum()),
        "errors": [round(float(error), 2) for error in errors[known]],
        "limit": round(float(np.mean(100 * np.abs(1 / rows.share[known] - 1))), 3),
    }
    if inside is not None:
        figures["inside"] = round(float(100 * inside[known].mean()), 1)
    return figures


def _over(groups: list[Group]) -> Group | None:
    """Return the figures of several groups together; None for none."""
    count = sum(group["n"] for group in groups)
    if not count:
        return None
    together: Group = {"n": count, "asked": sum(group["asked"] for group in groups)}
    together["errors"] = [error for group in groups for error in group["errors"]]
    for name in ("limit", "inside"):
        values = [group["n"] * group[name] for group in groups if name in group]
        together[name] = sum(values) / count if values else float("nan")
    return together


def _of_frameworks(groups: list[Group]) -> list[Group]:
    return [group for group in groups if group["framework"] != _TYPICAL]


def lines(space: Workspace) -> Iterator[Line]:
    """Yield the bar of shapes left out, and the figure of the GPU left out."""
    what = "power of repeated kernels, held-out shapes"
    groups = space.listed(_SHAPES)
    total = None if groups is None else _over(_of_frameworks(groups))
    if total is None:
        yield line(what, BAR, None)
        return
    mean = float(np.mean(total["errors"]))
    more = f" ({total['n']:,} rows; median {np.median(total['errors']):.1f} %, the limit itself {total['limit']:.1f} %, "
    yield line(what, BAR, mean, more=f"{more}inside {total['inside']:.0f} %)")


def expected(space: Workspace) -> Iterator[Expected]:
    """Yield the row of the first page. In the roofline's place stands the other method: a board draws its limit."""
    groups = space.listed(_SHAPES)
    total = None if groups is None else _over(_of_frameworks(groups))
    if total is None:
        return
    yield Expected(
        what="power of repeated kernels, shapes left out (beside: the power limit itself)",
        where="H200, B200",
        cases=total["n"],
        median=float(np.median(total["errors"])),
        mean=float(np.mean(total["errors"])),
        roofline=total["limit"],
        inside=total["inside"],
    )


def page(space: Workspace) -> list[str] | None:
    """Return the tables, None where nothing has been run."""
    shapes = space.listed(_SHAPES)
    left = space.listed(_GPUS)
    if shapes is None:
        return None
    text = [_INTRO, "", "## Shapes left out", "", *_table(shapes)]
    if left is not None:
        text += ["", "## A GPU left out", "", _LEFT, "", *_table(left)]
    return [*text, "", _OUTSIDE]


def _table(groups: list[Group]) -> list[str]:
    head = (
        "kernels",
        "GPU",
        "framework",
        "precision",
        "n",
        "mean %",
        "median %",
        "limit itself %",
        "inside %",
    )
    body = [
        _line(group, group["family"], group["gpu"], group["framework"], group["precision"])
        for group in groups
    ]
    for family in dict.fromkeys(group["family"] for group in groups):
        mine = _over([group for group in _of_frameworks(groups) if group["family"] == family])
        if mine is not None:
            body.append(_line(mine, f"**{family}**", "all", "each", "all"))
    total = _over(_of_frameworks(groups))
    if total is not None:
        body.append(_line(total, "**all**", "all", "each", "all"))
    return markdown(head, body, text=4)


def _line(group: Group, *words: str) -> list[str]:
    errors = group["errors"]
    mean, median = None, None
    if errors:
        mean = float(np.mean(errors))
        median = float(np.median(errors))
    figures = (mean, median, group["limit"], group.get("inside"))
    return [*words, f"{group['n']:,}", *(number(figure) for figure in figures)]


_INTRO = """Mean power of the board while one kernel repeats (NVIDIA's management library), H200 and B200, kernels above 0.1 ms:
aiconfigurator's `power_gemm` and `power_attention`. A shape left out is left out on both GPUs and in every framework. Errors are
absolute, in percent of the measured power; *limit itself* is the error of taking the power limit. `any` is the answer where nobody
names a framework, the product's default, against the median over frameworks; *all* counts the rows of each framework. `n` are the
rows that get an answer: kernels estimated below 0.02 ms get none."""
_LEFT = """Fitted on one GPU and asked of the other, which says how far a chip without measurements may lie away. The product answers
`null` there; boards of a measured chip with its power limit get the 90 % quantile of these errors as their interval."""
_OUTSIDE = """Left out: vLLM's `fp8_block`, whose readings jump between 0.3 and 0.98 of the limit from shape to shape, in long runs of the
order of measurement, as a GPU's do that now waits for its host and now replays a CUDA graph (its times are of both kinds too): that
is no property of a shape; `nvfp4`, in which no ONNX operator calculates; and vLLM's Triton attention, which runs where no fast
kernel does. Attention on the H200 scatters by a tenth between nearly equal work, and what is left over from one row to the next is
independent: the sensor averages over longer than such a run lasts."""

SECTION = Section(
    title="Power of repeated kernels",
    jobs={_SHAPES: run_shapes, _GPUS: run_gpus},
    lines=lines,
    page=page,
    expected=expected,
)
