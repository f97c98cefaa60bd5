"""Write docs/accuracy.md and its plots from the results kept."""

from __future__ import annotations

from pathlib import Path

from gkestimator.evaluation.cases import KernelCases
from gkestimator.evaluation.splits import chips
from gkestimator.kernel_models.regressors import MEMBERS

from . import plots, tables
from .figures import lines
from .kernels import chip_job, gpu_cases
from .sections import SECTION_NAMES, section
from .whole import whole_cases
from .workspace import Workspace

_HEAD = """# Accuracy

Written by `python -m benchmarks.accuracy` from public measurements; do not edit. How each figure is made is at the end.

All errors are |estimated / measured - 1| in percent. Kernels are compared with what the publisher measured, launch gap
included (every method gets the same gap); intervals with GPU time alone. Every figure of a kernel is nested: the recipe of
the shipped bundle (`gkestimator.training.recipe.fit_bundle`) was run again without the rows it is tested on. Whole models
never enter training.
"""
_SHAPES = """## Kernels: shapes held out, GPUs seen

15 % of the shapes, chosen by a hash of the shape, are left out on every GPU and from every source. Beside the estimator, mean
error of: the roofline; the **best constant** (one time / roofline per family, precision and GPU, fitted on the same training
rows); the **analytical** model (no measurement in it); **USHER literal**: raw sizes, one-hot GPU and operator, milliseconds, the
same five members stacked, fitted on at most 12,000 of the same rows per regressor."""
_LARGER = """## Kernels: larger shapes, GPUs seen

NeuSight's `larger` rows (all sizes beyond the training rows), from everything else. The P4's linear training rows were taken
on a throttled card and are excluded everywhere, so its larger ones are an extrapolation too."""
_GPUS = """## Kernels: one GPU left out

Every row of every board of one chip, whatever its source, is left out; tested on at most 3,000 rows of each (GPU, source,
family, precision). The best constant here is fitted over the GPUs that remain; USHER's literal features have no entry for
a GPU they have not seen. Mean of each GPU's mean error over GPUs:"""
_WHOLE = """## Whole models

Groups: constants were fitted on `development` models only; the bars count on `report`. V100: P. Elvinger, master thesis 505,
ETH Zurich 2024, table A.1 (torch 2.4 eager, fp32; latency includes the copy of inputs; rows damaged in print and t5,
which has no graph, left out); memory is torch's max_memory_reserved with the batches of a model in one process, smallest
first. RTX 3090: timm's AMP table at its batch; no RTX 3090 and no AMP is in the training data."""
_INTERVALS = """## Intervals

Share of measurements inside the 90 % interval and its median width, (high - low) / estimate, over the median error. Kernels:
GPU time, rows whose launch does not hide it. GPU `left out`: the chip was not trained on (RTX 3090 never is). For comparison: the
exact 90 % interval of a normal law is 4.9 times as wide as its median error, of a uniform law 3.6, of a Laplace law 6.6."""
_USHER = """## USHER's claim examined

USHER (Shubha, Shen, Iyer, OSDI 2024) reports 99.98 % accuracy for a stack of regressors over raw kernel sizes and publishes neither
data nor regressors. Three questions.

**Does the stack beat its members?** The columns named after members in the first table above are the same recipe with that one
member. {members}

**Which features and which target?** XGBoost alone, 8,000 rows of NeuSight's FP32 data per family, mean error by what it
sees (literal: raw sizes, one-hot GPU and operator; physical: this project's) and what it is fitted to (milliseconds, their
logarithm, log(time / roofline)):"""
_TAU = """**Does tau matter?** USHER calls kernels concurrent whose starts differ by at most tau. Largest sum of the occupancies of
concurrent kernels (percent, here not capped at 100) on a V100-SXM2-16GB at batch 8, fp32, torch, for two readings: this project's
(kernels of different streams that overlap, or start within tau) and USHER's words alone (kernels that start within tau of each
other). On one stream nothing overlaps, so the first reading is a single kernel's occupancy whatever tau is; the second
adds up kernels that run one after the other as soon as tau exceeds their spacing:"""
_PEERS = """## Published peers

Other cases than ours, so no race: they show what is usual. NeuSight (Lee et al., ASPLOS 2025): 9.7 % whole-model error over 54 published
inference cases, 6.1 % on H100, 14.6 % on L4; on the same cases Habitat 221 %, a roofline 31 %. USHER claims 99.98 % accuracy and
publishes neither data nor regressors."""
_HOW = """## How this was made

`GKEST_SHARED=... python -m benchmarks.accuracy --jobs 2` runs every experiment and writes this page; nested bundles and results are kept
in `.accuracy/` under a hash of the sources they depend on, so that a second run trains only what changed; `--report` alone
rewrites the page. Seeds are fixed. On a GPU that is left out only the regressors that would be asked are trained, which changes
no answer. The two development and report groups, the shape hash and the splits are in `benchmarks/accuracy/` and
`gkestimator/evaluation/splits.py`."""


_NAMES = (
    "shapes", "larger", "h100-gemm", "whole", "whole-no-v100-conv", "usher-targets", "usher-tau",
    *(f"member-{name}" for name in MEMBERS),
)  # fmt: skip


def write_report(space: Workspace, out: Path) -> Path:
    """``out``/accuracy.md and ``out``/accuracy/*.png; what has not been run is left out and said so."""
    pictures = out / "accuracy"
    pictures.mkdir(parents=True, exist_ok=True)
    stale = space.stale([*_NAMES, *(chip_job(c) for c in chips(space.rows, space.gpus))])
    if stale:
        space.tell(f"not of the present recipe or not run: {', '.join(stale)}")
    text: list[str] = [_HEAD]
    if stale:
        text += [f"**Not run, or of an earlier state of the recipe:** {', '.join(stale)}.", ""]
    text += ["<!-- summary -->", *tables.summary(space), "<!-- /summary -->"]
    text += ["", "## What must be shown", ""]
    text += tables.bars(lines(space))
    shapes, larger, left = shapes_cases(space), space.cases("larger"), gpu_cases(space)
    for title, cases in ((_SHAPES, shapes), (_LARGER, larger)):
        text += ["", title, ""]
        if cases is None:
            text.append("Not run.")
            continue
        text += tables.by_source(cases, members=cases is shapes)
        text += ["", "Per GPU:", "", *tables.by_gpu(cases)]
    text += ["", _GPUS, ""]
    if left is None:
        text.append("Not run.")
    else:
        text += [*tables.over_gpus(left), "", "Per GPU:", "", *tables.by_gpu(left)]
        strict = space.cases("h100-gemm")
        if strict is not None:
            text += [
                "",
                "bf16 GEMM on the H100 from the A100 and the RTX PRO 6000 alone:",
                "",
                *tables.by_gpu(strict),
            ]
    text += _kernel_plots(space, shapes, larger, left, pictures)
    text += _whole(space, pictures)
    text += ["", _INTERVALS, "", *tables.intervals(space)]
    if plots.intervals(space, pictures / "intervals.png"):
        text += ["", "![Share inside by stretch of the interval, and widths](accuracy/intervals.png)"]
    text += _usher(space, shapes)
    text += _sections(space, pictures)
    text += ["", _PEERS, "", _HOW]
    page = out / "accuracy.md"
    page.write_text("\n".join(text) + "\n", encoding="utf-8")
    space.tell(f"{page} written")
    return page


def _sections(space: Workspace, folder: Path) -> list[str]:
    """Write every section's page into ``folder``; return the list of links to them."""
    links: list[str] = []
    for name in SECTION_NAMES:
        part = section(name)
        body = part.page(space)
        if body is None:
            links.append(f"- {part.title}: not run")
            continue
        head = [f"# {part.title}", "", "Written by `python -m benchmarks.accuracy`; do not edit.", ""]
        (folder / f"{name}.md").write_text("\n".join([*head, *body]) + "\n", encoding="utf-8")
        links.append(f"- [{part.title}](accuracy/{name}.md)")
    if not links:
        return []
    return ["", "## More pages", "", *links]


def shapes_cases(space: Workspace) -> KernelCases | None:
    """The shapes experiment with every member's predictions beside."""
    cases = space.cases("shapes")
    if cases is None:
        return None
    for name in MEMBERS:
        alone = space.cases(f"member-{name}")
        if alone is not None and len(alone) == len(cases):
            cases = cases.with_estimate(name, alone.estimates["estimator"])
    return cases


def _kernel_plots(
    space: Workspace,
    shapes: KernelCases | None,
    larger: KernelCases | None,
    left: KernelCases | None,
    pictures: Path,
) -> list[str]:
    text: list[str] = []
    if shapes is not None:
        plots.predicted_against_measured(
            shapes, pictures / "predicted-shapes.png", "Shapes held out, GPUs seen"
        )
        text += ["", "![Predicted against measured, shapes held out](accuracy/predicted-shapes.png)"]
    if left is not None:
        plots.predicted_against_measured(left, pictures / "predicted-gpus.png", "GPU left out")
        text += ["", "![Predicted against measured, GPU left out](accuracy/predicted-gpus.png)"]
    if shapes is not None:
        plots.error_by_size(shapes, left, pictures / "error-by-size.png")
        text += ["", "![Error by size of the kernel](accuracy/error-by-size.png)"]
    return text


def _whole(space: Workspace, pictures: Path) -> list[str]:
    text = ["", _WHOLE]
    cases = whole_cases(space, "whole")
    if not cases:
        return [*text, "", "Not run."]
    text += ["", *tables.whole_baselines(cases)]
    for table, words in (("ethz", "V100-SXM2-16GB, fp32"), ("timm", "RTX 3090, AMP")):
        text += ["", f"{words}:", "", *tables.whole_by_model([c for c in cases if c.table == table])]
    plots.whole_models(cases, pictures / "whole-models.png")
    text += ["", "![Errors of whole models](accuracy/whole-models.png)"]
    without = whole_cases(space, "whole-no-v100-conv")
    if without:
        text += ["", "Without the V100's own convolutions in training:", ""]
        text += tables.whole_by_model([c for c in without if c.table == "ethz"])
        if [c.latency_ms for c in without if c.table == "timm"] != [
            c.latency_ms for c in cases if c.table == "timm"
        ]:
            text += ["", *tables.whole_by_model([c for c in without if c.table == "timm"])]
        else:
            text += ["", "The RTX 3090 rows do not change."]
    text += ["", "Every row:", ""]
    for table in ("ethz", "timm"):
        text += [*tables.whole_rows([c for c in cases if c.table == table]), ""]
    return text[:-1]


def _usher(space: Workspace, shapes: KernelCases | None) -> list[str]:
    members = "" if shapes is None else tables.members_in_words(shapes)
    text = ["", _USHER.format(members=members or "Not run."), ""]
    targets, tau = space.listed("usher-targets"), space.listed("usher-tau")
    text += tables.usher_targets(targets) if targets else ["Not run."]
    text += ["", _TAU, ""]
    text += tables.usher_tau(tau) if tau else ["Not run."]
    return text
