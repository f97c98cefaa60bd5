"""Write docs/accuracy.md, a page that a buyer reads, and its appendices and plots from the results kept."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gkestimator.evaluation.cases import KernelCases
from gkestimator.evaluation.splits import chips
from gkestimator.kernel_models.regressors import MEMBERS

from . import plots, tables
from .figures import lines
from .kernels import chip_job, gpu_cases
from .lines import Line
from .sections import SECTION_NAMES, section, section_jobs
from .whole import whole_cases
from .workspace import Workspace

_HEAD = """# How accurate the estimates are

Written by `python -m benchmarks.accuracy` from public measurements; do not edit.

Take a ResNet-50 on a V100 at batch 32, in FP32, with PyTorch. Somebody measured it (the thesis cited below), gkestimator had never
seen it, and the table's first row says how far such estimates are from such measurements: half of them by less than the
median. The last column says how often the measurement lay inside the row's 90 % interval.

The **roofline** is what a data sheet gives: arithmetic over the peak rate or bytes over the bandwidth, whichever is longer. **New shapes**
are sizes left out of training on every GPU; a **new GPU** was left out with all its boards. Whole models never enter training.
On the RTX 3090 some constants of half-precision convolutions and norms were fitted to other models of the same table (their names
are in [its page](accuracy/timm3090.md)); those counted here were not looked at.
"""
_SHAPES = """## Kernels: shapes held out, GPUs seen

15 % of the shapes, chosen by a hash of the shape, are left out on every GPU and from every source. Beside the estimator, mean
error of: the roofline; the **best constant** (one time / roofline per family, precision and GPU, fitted on the same training
rows); the **analytical** model (no measurement in it); **USHER literal**: raw sizes, one-hot GPU and operator, milliseconds, the
same five members stacked, fitted on at most 12,000 of the same rows per regressor."""
_LARGER = """## Kernels: larger shapes, GPUs seen

NeuSight's `larger` rows (all sizes beyond the training rows), from everything else. The P4's linear training rows were taken
on a throttled card and are excluded everywhere, so its larger ones are an extrapolation too."""
_GPUS = """Every row of every board of one chip, whatever its source, is left out; tested on at most 3,000 rows of each (GPU, source,
family, precision). The best constant here is fitted over the GPUs that remain; USHER's literal features have no entry for
a GPU they have not seen, and are left out. Mean of each GPU's mean error over GPUs:"""
_WHOLE = """Groups: constants were fitted on `development` models only; the bars count on `report`. V100: P. Elvinger, master thesis 505,
ETH Zurich 2024, table A.1 (torch 2.4 eager, fp32; latency includes the copy of inputs; rows damaged in print and t5,
which has no graph, left out); memory is torch's max_memory_reserved with the batches of a model in one process, smallest
first. RTX 3090: timm's AMP table at its batch; no kernel of an RTX 3090 and no AMP is in the training data, but constants of
half-precision convolutions were fitted to whole models of the development groups."""
_INTERVALS = """Share of measurements inside the 90 % interval and its median width, (high - low) / estimate, over the median error. Kernels:
GPU time, rows whose launch does not hide it. GPU `left out`: the chip was not trained on (RTX 3090 never is). For comparison: the
exact 90 % interval of a normal law is 4.9 times as wide as its median error, of a uniform law 3.6, of a Laplace law 6.6."""
_USHER = """USHER (Shubha, Shen, Iyer, OSDI 2024) reports 99.98 % accuracy for a stack of regressors over raw kernel sizes and publishes neither
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
_TRUST = """## When to trust a row

- `coverage_pct` says which share of the time was predicted for sizes and GPUs inside the training range. Near 100 is the first kind of row
  above, near 0 the last.
- The interval is the honest part: on a GPU that nobody measured it is as wide as such estimates were off when a GPU was left out.
- Small batches wait for the host, not for the GPU. Give your host's figure (`--host-overhead-us`, or `gkest evaluate --write-host`).
- What is known to be off is listed in [limits.md](reference/limits.md). Your own measurements count for more than this page: `gkest evaluate`
  prints the same table for them."""
_BARS = """Before a figure was measured, a *bar* was set that it should reach."""
_PEERS = """## Published peers

Other cases than ours, so no race: they show what is usual. NeuSight (Lee et al., ASPLOS 2025): 9.7 % whole-model error over 54 published
inference cases, 6.1 % on H100, 14.6 % on L4; on the same cases Habitat 221 %, a roofline 31 %. USHER claims 99.98 % accuracy and
publishes neither data nor regressors."""
_HOW = """## How this was made

`GKEST_SHARED=... python -m benchmarks.accuracy --jobs 2` runs every experiment and writes this page; nested bundles and results are kept
in `.accuracy/` under a hash of the sources they depend on, so that a second run trains only what changed; `--report` alone
rewrites the pages. Seeds are fixed. On a GPU that is left out only the regressors that would be asked are trained, which changes
no answer. The two development and report groups, the shape hash and the splits are in `benchmarks/accuracy/` and
`gkestimator/evaluation/splits.py`."""


MOST_ROWS = 50
"""Rows of a table that stands in a page."""
_NAMES = (
    "shapes", "larger", "h100-gemm", "whole", "whole-no-v100-conv", "usher-targets", "usher-tau",
    *(f"member-{name}" for name in MEMBERS),
)  # fmt: skip


def write_report(space: Workspace, out: Path) -> Path:
    """Write ``out``/accuracy.md, its pages and pictures in ``out``/accuracy/; what has not been run is left out and said so."""
    folder = out / "accuracy"
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [
        *_NAMES,
        *(chip_job(c) for c in chips(space.rows, space.gpus)),
        *section_jobs(list(SECTION_NAMES)),
    ]
    stale = space.stale(jobs)
    text: list[str] = [_HEAD]
    if stale:
        space.tell(f"not of the present recipe or not run: {', '.join(stale)}")
        text += [f"**Not run, or of an earlier state of the recipe:** {', '.join(stale)}.", ""]
    text += [*tables.expected(space), "", "<!-- summary -->", *tables.summary(space), "<!-- /summary -->"]
    text += ["", _TRUST, "", _PEERS, "", "## Every figure", ""]
    for name, title, body in _pages(space, folder):
        if body is None:
            text.append(f"- {title}: not run")
            continue
        _write_page(folder / f"{name}.md", title, body)
        text.append(f"- [{title}](accuracy/{name}.md)")
    text += ["", _HOW]
    page = out / "accuracy.md"
    page.write_text("\n".join(text) + "\n", encoding="utf-8")
    space.tell(f"{page} written")
    return page


def _write_page(path: Path, title: str, body: list[str]) -> None:
    head = [f"# {title}", "", "Written by `python -m benchmarks.accuracy`; do not edit.", ""]
    for old in path.parent.glob(f"{path.stem}-[0-9].csv"):
        old.unlink()
    text = "\n".join([*head, *body]) + "\n"
    path.write_text(long_tables_apart(text, path), encoding="utf-8")


def long_tables_apart(text: str, path: Path) -> str:
    """Return the page ``text`` of ``path`` with a link in the place of each table that nobody reads through.

    Tables of more than MOST_ROWS rows are written beside the page as CSV: STEM-1.csv, STEM-2.csv, ...
    """
    parts = re.split(r"((?:^\|.*\n)+)", text, flags=re.MULTILINE)
    written = 0
    for at, part in enumerate(parts):
        rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in part.splitlines()]
        if not part.startswith("|") or len(rows) - 2 <= MOST_ROWS:
            continue
        written += 1
        file = path.with_name(f"{path.stem}-{written}.csv")
        with file.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows([rows[0], *rows[2:]])
        parts[at] = f"All {len(rows) - 2} rows ({', '.join(rows[0])}): [{file.name}]({file.name})\n"
    return "".join(parts)


def _bars(found: Sequence[Line]) -> list[str]:
    """Return the page of bars: those that are not met first."""
    missed = [line for line in found if line.met is False]
    met = sum(line.met is True for line in found)
    said = f"{_BARS} {met} of {len(found)} are met. Not met:"
    return [said, "", *tables.bars(missed), "", "## Every line", "", *tables.bars(found)]


def _pages(space: Workspace, folder: Path) -> Iterator[tuple[str, str, list[str] | None]]:
    """Yield file name, title and text of every page; the text is None where nothing has been run."""
    yield "bars", "Bars and figures", _bars(lines(space))
    yield "kernels-shapes", "Kernels: new shapes", _kernel_page(space, folder)
    yield "kernels-gpus", "Kernels: new GPUs", _gpu_page(space, folder)
    yield "whole-models", "Whole models", _whole(space, folder)
    yield "intervals", "Intervals", _interval_page(space, folder)
    yield "usher", "USHER's claim examined", _usher(space, shapes_cases(space))
    for name in SECTION_NAMES:
        part = section(name)
        yield name, part.title, part.page(space)


def _kernel_page(space: Workspace, folder: Path) -> list[str] | None:
    shapes = shapes_cases(space)
    larger = space.cases("larger")
    if shapes is None and larger is None:
        return None
    text: list[str] = []
    for title, cases in ((_SHAPES, shapes), (_LARGER, larger)):
        text += [title, ""]
        if cases is None:
            text += ["Not run.", ""]
            continue
        text += tables.by_source(cases, members=cases is shapes)
        text += ["", "Per GPU:", "", *tables.by_gpu(cases), ""]
    if shapes is not None:
        plots.predicted_against_measured(
            shapes, folder / "predicted-shapes.png", "Shapes held out, GPUs seen"
        )
        text += ["![Predicted against measured, shapes held out](predicted-shapes.png)", ""]
        plots.error_by_size(shapes, gpu_cases(space), folder / "error-by-size.png")
        text += ["![Error by size of the kernel](error-by-size.png)"]
    return text


def _gpu_page(space: Workspace, folder: Path) -> list[str] | None:
    left = gpu_cases(space)
    if left is None:
        return None
    text = [_GPUS, "", *tables.over_gpus(left), "", "Per GPU:", "", *tables.by_gpu(left)]
    strict = space.cases("h100-gemm")
    if strict is not None:
        text += [
            "",
            "bf16 GEMM on the H100 from the A100 and the RTX PRO 6000 alone:",
            "",
            *tables.by_gpu(strict),
        ]
    plots.predicted_against_measured(left, folder / "predicted-gpus.png", "GPU left out")
    return [*text, "", "![Predicted against measured, GPU left out](predicted-gpus.png)"]


def _interval_page(space: Workspace, folder: Path) -> list[str]:
    text = [_INTERVALS, "", *tables.intervals(space)]
    if plots.intervals(space, folder / "intervals.png"):
        text += ["", "![Share inside by stretch of the interval, and widths](intervals.png)"]
    return text


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


def _whole(space: Workspace, pictures: Path) -> list[str] | None:
    text = [_WHOLE]
    cases = whole_cases(space, "whole")
    if not cases:
        return None
    text += ["", *tables.whole_baselines(cases)]
    for table, words in (("ethz", "V100-SXM2-16GB, fp32"), ("timm", "RTX 3090, AMP")):
        text += ["", f"{words}:", "", *tables.whole_by_model([c for c in cases if c.table == table])]
    plots.whole_models(cases, pictures / "whole-models.png")
    text += ["", "![Errors of whole models](whole-models.png)"]
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
    text = [_USHER.format(members=members or "Not run."), ""]
    targets, tau = space.listed("usher-targets"), space.listed("usher-tau")
    text += tables.usher_targets(targets) if targets else ["Not run."]
    text += ["", _TAU, ""]
    text += tables.usher_tau(tau) if tau else ["Not run."]
    return text
