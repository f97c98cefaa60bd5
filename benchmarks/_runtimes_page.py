"""Write docs/accuracy/runtimes.md: errors of each runtime, the order of runtimes, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from _diffusion_truth import MODEL as DIFFUSION
from _triton_truth import APART, Pair, pairs_apart, share_right

from gkestimator.hardware.runtimes import runtime_traits

if TYPE_CHECKING:
    from runtimes_side_by_side import Case

TENSORRT = ("tensorrt", "onnxruntime_tensorrt")
SMALL_BERTS = ("bert_dist4l", "bert_dist6l")
BERT_GPUS = ("T4", "A100-SXM4-80GB")
LARGE = 512
"""Batches from which on TFT's LSTM is a small part of its time."""
ORDER_BAR = 90.0
BERT_BAR = 15.0
Method = Callable[["Case"], float]
Variants = Mapping[str, Sequence["Case"]]

_INTRO = """# Are the runtimes in the right order?

Written by `GKEST_SHARED=... python benchmarks/runtimes_side_by_side.py`; do not edit.

Which runtime is the fastest for a model on a GPU? NVIDIA published whole models behind the server Triton (DeepLearningExamples):
the same model on the same GPU under TorchScript, ONNX Runtime with its CUDA provider, ONNX Runtime with TensorRT, and
TensorRT itself. Here each row stands beside its estimate, and each pair of runtimes beside the order that the estimates
give it. ONNX Runtime's README has Stable Diffusion 1.5 in the same way; it is counted apart.

**What is compared.** Of a row, `compute_infer` and `compute_output` together: TorchScript returns before the GPU is done and
waits while its outputs are read. Moving the inputs is Triton's work and is in neither side. Rows that the tables do not split
hold a client's whole latency, its way to the server included: they are listed, and of them only Jasper's are counted,
for the order alone, as whatever else is in them is the same under both runtimes. A row of Stable Diffusion is one batch of
images: 50 runs of the U-Net, the text encoder and the decoder of the VAE.

**How they are estimated.** Precision as the row says. TorchScript counts as torch, with attention operator by operator as these
models have it, and a host cost of {host} us a call. ONNX Runtime and TensorRT with `graph_level=basic`: ONNX Runtime 1.9 ran
these files so ([ort_models](ort_models.md)), and the developer guide of TensorRT 8.0, which the containers hold, names
no fusion of attention, of normalisations or around a softmax (as recalled: it was not at hand). `runtime_version` is the container's. Stable Diffusion, which
ran on newer releases, has the defaults.

**What was chosen by what.** The half of a model is a hash of its name: *chosen by* (the Temporal Fusion Transformer, TFT) or
*reported* (all others with a graph). TorchScript's host cost is TFT's (`--fit`). The level of fusions was settled by the guide,
but after all fusions, none of attention, and this level had been tried on BERT's rows: it is not blind; TFT's rows, looked at
afterwards, say the same (below). That the epilogues of products (GELU) stay fused is an assumption; the guide of 8.0 names ReLU alone.

**Baselines.** *Roofline*: each kernel at the GPU's peak arithmetic or memory rate. *Scaled*: the estimate under ONNX Runtime's CUDA
provider times the constant that fits best each runtime's own rows, in hindsight; *scaled by the other half*: times the one that fits
best those of the models that figures are chosen by. Errors are means of absolute values.
"""


_BY_MODEL = """# Errors by runtime, GPU and model

Written by `GKEST_SHARED=... python benchmarks/runtimes_side_by_side.py`; do not edit.

The models behind [the order of the runtimes](runtimes.md), which says what is compared, how they are estimated, and what the
baselines are. All rows: [runtimes-1.csv](runtimes-1.csv).
"""


def best_constant(ratios: Sequence[float]) -> float:
    """Return the factor of least mean error, for measurements over estimates ``ratios``."""
    values = np.array(ratios)
    errors = [float(np.abs(factor / values - 1).mean()) for factor in values]
    return float(values[int(np.argmin(errors))])


def methods_of(cases: Sequence[Case]) -> dict[str, Method]:
    """Return what is judged: the estimate, and the baselines."""
    best = {}
    elsewhere = {}
    for runtime in {case.row.runtime for case in cases}:
        ratios = [case.row.ms / case.scaled_ms for case in cases if case.row.runtime == runtime]
        best[runtime] = best_constant(ratios)
        elsewhere[runtime] = constant_elsewhere(cases, runtime)
    return {
        "estimate": estimated_ms,
        "roofline": lambda case: case.estimate.roofline_ms,
        "scaled": lambda case: best[case.row.runtime] * case.scaled_ms,
        "scaled by the other half": lambda case: elsewhere[case.row.runtime] * case.scaled_ms,
    }


def constant_elsewhere(cases: Iterable[Case], runtime: str) -> float:
    """Return the best factor of the models that figures are chosen by, 1 where they never ran under ``runtime``."""
    lowering = runtime_traits(runtime).lowers_as
    ratios = []
    for case in cases:
        same = runtime_traits(case.row.runtime).lowers_as == lowering
        if same and case.row.half == "chosen by":
            ratios.append(case.row.ms / case.scaled_ms)
    return best_constant(ratios) if ratios else 1.0


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int) -> list[str]:
    """Return a Markdown table whose first ``words`` columns are text, and an empty line."""
    rule = ["---" if i < words else "---:" for i in range(len(head))]
    return [*(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows)), ""]


def in_percent(methods: Iterable[str]) -> list[str]:
    """Return the headings of what is judged."""
    return [f"{name} %" for name in methods]


def errors(cases: Iterable[Case], method: Method) -> np.ndarray:
    """Return signed errors in percent."""
    return np.array([100 * (method(case) / case.row.ms - 1) for case in cases])


def mean_error(cases: Sequence[Case], method: Method) -> str:
    """Return the mean absolute error in words."""
    return f"{np.abs(errors(cases, method)).mean():.1f}"


def error_tables(cases: Sequence[Case], methods: Mapping[str, Method]) -> list[str]:
    """Return errors by runtime, GPU and model."""
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.row.runtime, case.row.gpu, case.row.model), []).append(case)
    rows = []
    for key, group in sorted(groups.items()):
        signed = float(np.median(errors(group, methods["estimate"])))
        inside = [case.estimate.low_ms <= case.row.ms <= case.estimate.high_ms for case in group]
        means = [mean_error(group, method) for method in methods.values()]
        half = group[0].row.half
        rows.append((*key, half, str(len(group)), *means, f"{signed:+.1f}", f"{100 * np.mean(inside):.0f}"))
    head = ("runtime", "GPU", "model", "half", "rows", *in_percent(methods), "signed median %", "inside %")
    return table(head, rows, 4)


def order_tables(cases: Sequence[Case], methods: Mapping[str, Method]) -> list[str]:
    """Return the share of right pairs: all, by half, and by pair of runtimes."""
    pairs = {name: apart(cases, method) for name, method in methods.items()}
    chosen: dict[str, Callable[[Pair], bool]] = {
        "all": lambda pair: True,
        "Triton's, reported half": lambda pair: (pair.faster.row.half, family(pair)) == ("reported", ""),
        "Triton's, chosen-by half": lambda pair: pair.faster.row.half == "chosen by",
        "Triton's, without a client's latency": lambda pair: not pair.faster.row.client and not family(pair),
        "Stable Diffusion": lambda pair: family(pair) == DIFFUSION,
    }
    for names in sorted({pair.runtimes for pair in pairs["estimate"]}):
        chosen[names] = lambda pair, names=names: pair.runtimes == names
    rows = []
    for words, keep in chosen.items():
        kept = {name: [pair for pair in found if keep(pair)] for name, found in pairs.items()}
        shares = [f"{share_right(found):.1f}" for found in kept.values()]
        rows.append((words, str(len(kept["estimate"])), *shares))
    return table(("pairs of runtimes", "pairs", *in_percent(methods)), rows, 1)


def family(pair: Pair) -> str:
    """Name the model where its measurements are not Triton's, else nothing."""
    return DIFFUSION if pair.faster.row.model == DIFFUSION else ""


def apart(cases: Iterable[Case], method: Method) -> list[Pair]:
    """Return the pairs that have an order, judged by ``method``."""
    return pairs_apart(case.judged(method(case)) for case in cases)


def wrong_pairs(cases: Sequence[Case], method: Method) -> list[str]:
    """Return the pairs whose order the estimates have wrong."""
    rows = []
    for pair in apart(cases, method):
        if pair.right:
            continue
        row = pair.faster.row
        cells = []
        for judged in (pair.faster, pair.slower):
            cells += [judged.row.runtime, f"{judged.row.ms:.2f}", f"{judged.estimate_ms:.2f}"]
        rows.append((row.gpu, row.model, str(row.batch), *cells))
    head = (
        "GPU",
        "model",
        "batch",
        "faster",
        "measured ms",
        "estimated ms",
        "slower",
        "measured ms",
        "estimated ms",
    )
    return table(head, sorted(rows), 2)


def bert_tables(cases: Sequence[Case], methods: Mapping[str, Method]) -> list[str]:
    """Return the small BERTs under TensorRT: errors by runtime and GPU, then every row."""
    small = [c for c in cases if c.row.model in SMALL_BERTS and c.row.runtime in TENSORRT]
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in small:
        groups.setdefault((case.row.runtime, case.row.gpu), []).append(case)
    rows = []
    for key, group in sorted(groups.items()):
        means = [mean_error(group, method) for method in methods.values()]
        rows.append((*key, str(len(group)), *means))
    rows.append(
        ("both", "both", str(len(small)), *(mean_error(small, method) for method in methods.values()))
    )
    head = ("runtime", "GPU", "rows", *in_percent(methods))
    every = []
    for case in small:
        estimate = case.estimate
        every.append(
            (case.row.model, case.row.gpu, case.row.runtime, str(case.row.batch), f"{case.row.ms:.2f}",
             f"{estimate.ms:.2f}", f"{100 * (estimate.ms / case.row.ms - 1):+.0f}", str(estimate.kernels))
        )  # fmt: skip
    columns = ("model", "GPU", "runtime", "batch", "measured ms", "estimated ms", "error %", "kernels")
    return [*table(head, rows, 2), *table(columns, sorted(every), 3)]


def variant_table(variants: Variants) -> list[str]:
    """Return the figures of the bars under other assumptions."""
    rows = []
    for words, cases in variants.items():
        triton = [case for case in countable(cases) if case.row.model != DIFFUSION]
        pairs = apart(triton, estimated_ms)
        small = [case for case in triton if case.row.model in SMALL_BERTS and case.row.runtime in TENSORRT]
        cells = [f"{share_right(pairs):.1f}"]
        for gpu in BERT_GPUS:
            cells.append(mean_error([case for case in small if case.row.gpu == gpu], estimated_ms))
        large = [c for c in triton if c.row.half == "chosen by" and c.row.runtime in TENSORRT]
        cells.append(mean_error([case for case in large if case.row.batch >= LARGE], estimated_ms))
        rows.append((words, *cells))
    bert = [f"small BERTs, {gpu}, mean error %" for gpu in BERT_GPUS]
    head = ("estimated", "order right %", *bert, f"TFT under TensorRT from {LARGE} samples on, mean error %")
    return table(head, rows, 1)


def estimated_ms(case: Case) -> float:
    """Return the estimate itself."""
    return case.estimate.ms


def bar_table(cases: Sequence[Case], methods: Mapping[str, Method]) -> list[str]:
    """Return the two bars."""
    estimate = methods["estimate"]
    pairs = apart(cases, estimate)
    triton = [pair for pair in pairs if pair.faster.row.model != DIFFUSION]
    reported = [pair for pair in triton if pair.faster.row.half == "reported"]
    rows = []
    for words, found in (
        ("Triton's models", triton),
        ("Triton's models, reported half", reported),
        ("Stable Diffusion beside them", pairs),
    ):
        share = share_right(found)
        figure = f"{share:.1f} % of {len(found)} pairs"
        rows.append((f"order right, {words}", f"at least {ORDER_BAR:g} %", figure, met(share >= ORDER_BAR)))
    for runtime in TENSORRT:
        for gpu in BERT_GPUS:
            group = [
                case
                for case in cases
                if case.row.model in SMALL_BERTS and (case.row.runtime, case.row.gpu) == (runtime, gpu)
            ]
            error = float(np.abs(errors(group, estimate)).mean())
            what = f"BERT of 4 and 6 layers, {runtime}, {gpu}, mean error"
            figure = f"{error:.1f} % of {len(group)} rows"
            rows.append((what, f"at most {BERT_BAR:g} %", figure, met(error <= BERT_BAR)))
    return table(("what", "bar", "figure", "met"), rows, 4)


def met(yes: bool) -> str:
    """Return the cell that says whether a bar is met."""
    return "yes" if yes else "**no**"


def client_table(cases: Sequence[Case]) -> list[str]:
    """Return the rows whose way to the server is not known apart: the range of their ratio to the estimate."""
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        row = case.row
        groups.setdefault((row.model, row.gpu, row.runtime, row.precision), []).append(case)
    rows = []
    for key, group in sorted(groups.items()):
        ratios = [case.estimate.ms / case.row.ms for case in group]
        rows.append((*key, str(len(group)), f"{min(ratios):.2f} to {max(ratios):.2f}"))
    head = ("model", "GPU", "runtime", "precision", "rows", "estimate / client's latency")
    return table(head, rows, 4)


def countable(cases: Iterable[Case]) -> list[Case]:
    """Return the cases that have an order: of those with a client's latency, Jasper's alone."""
    return [case for case in cases if not case.row.client or case.row.model == "jasper"]


def page_lines(cases: Sequence[Case], variants: Variants, host_us: float) -> Iterator[str]:
    """Yield the page's lines; ``variants``: the cases estimated in other ways, by what is other."""
    split = [case for case in cases if not case.row.client]
    ordered = countable(cases)
    methods = methods_of(split)
    yield from _INTRO.format(host=f"{host_us:g}").splitlines()
    yield ""
    yield from bar_table(ordered, methods)
    yield from (
        "## Order",
        "",
        f"Pairs whose measurements are more than {100 * (APART - 1):.0f} % apart:",
        "",
    )
    yield from order_tables(ordered, methods)
    yield from ("Those that the estimates have wrong:", "")
    yield from wrong_pairs(ordered, methods["estimate"])
    yield from ("## BERT of 4 and 6 layers", "")
    yield from bert_tables(split, methods)
    yield from ("## What the figures rest on", "", *VARIED.strip().splitlines(), "")
    yield from variant_table({"as above": cases, **variants})
    yield "Errors by model, what is wrong and why, and what is not estimated: [runtimes by model](runtimes-models.md)."


def model_lines(cases: Sequence[Case]) -> Iterator[str]:
    """Yield the lines of the page beside it, model by model."""
    split = [case for case in cases if not case.row.client]
    yield from _BY_MODEL.splitlines()
    yield ""
    yield from error_tables(split, methods_of(split))
    yield from ("## What is wrong, and why", "", *WHY.strip().splitlines(), "")
    yield from ("## Rows with a client's latency alone", "", *CLIENT.strip().splitlines(), "")
    yield from client_table([case for case in cases if case.row.client])
    yield from ("## Not estimated", "", *LEFT_OUT.strip().splitlines())


VARIED = """
The figures above, with one assumption changed at a time. The last column is of the half that figures may be chosen by: TFT at batches
where its LSTM no longer counts (TensorRT 8.2). It speaks for the guide's level of fusions, apart from BERT's rows.
"""

WHY = """
- **ONNX Runtime with TensorRT against TensorRT itself**: the same engine, and the same estimate, so no pair of them that is more
  than 10 % apart can be right. In the tables neither is the faster one as a rule (median ratio 1.00 of 17 cases), and
  differences are 0.1 to 0.4 ms, which is their resolution.
- **BERT under TensorRT, A100**: at 4 layers of 288 the engine took 0.1 to 0.6 ms longer than estimated. Its kernels are short, and what
  release 8.0 left unfused of them is known by its guide alone, not by a dump of such an engine. **T4**: 8 to 12 % too slow.
- **TFT under TensorRT**: up to three times too slow at small batches, right at large ones. Nearly all of the estimate is the LSTM,
  whose 192 steps cost what cuDNN 7 took for a step (DeepBench); TensorRT's whole model takes 7 to 8 us a step at batch 1.
- **TFT under TorchScript**: the rows say fp16, but at large batches they take what float32 takes (1,024 samples: 40 ms on the A100, 248 ms on
  the T4). Estimated in fp16 as stated, they come out two to four times too fast there, below TensorRT on the T4.
- **BERT under TorchScript**: 10 to 25 % too fast at large batches. Its LayerNorm is written out in Python, and likely ran as several
  kernels; the estimate takes it for one.
- **Stable Diffusion**: the A100s are a third too fast under every runtime alike, so the order holds; the pipeline's Python between
  steps, its scheduler and copies are not in the estimate. The T4 ran at 990 MHz, which the estimate does not know.
- **nnU-Net, A100, float32**: estimated without TF32, which NVIDIA's containers allow.
"""

CLIENT = """
What passes between client and server is not known of these rows, so no error is given: an estimate above the latency
would be wrong, one far below it may be right.
"""

LEFT_OUT = """
- **GPUNet** (49 rows, ONNX Runtime with TensorRT): the layer lists that a search found are not at hand; a network of equal
  size would not be that one.
- **FastPitch** (24 rows, TorchScript): how long its decoder runs depends on durations that it predicts from weights.
- **Wide & Deep** (TensorFlow's, as an engine too), **ResNet-50 of TensorFlow**: no ONNX file of theirs is published.
- **Jasper under ONNX Runtime** (12 rows): throughput alone, at an unknown number of clients.
"""


def write_pages(cases: Sequence[Case], variants: Variants, host_us: float, folder: Path | None) -> str:
    """Return both pages, one behind the other; write them into ``folder`` unless that is None."""
    pages = {
        "runtimes.md": "\n".join(page_lines(cases, variants, host_us)) + "\n",
        "runtimes-models.md": "\n".join(model_lines(cases)) + "\n",
    }
    if folder is not None:
        for name, text in pages.items():
            (folder / name).write_text(text, encoding="utf-8")
    return "\n".join(pages.values())
