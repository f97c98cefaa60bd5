"""Write the page of whole decoding steps and prompts: means for each GPU, where the error comes from, and every row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

Step: TypeAlias = "dict[str, Any]"

_FOREWORD = [
    "What `gkest llm` calculates a decoding step or a prompt from, kernel by kernel, beside public measurements of the same kernels:",
    "the products and the attention of a layer times the layers, and the output layer. A product counts as measured where a table",
    "has its sizes (m, n, k) on that GPU, attention where one has its sequences, keys, query heads, key-value heads and head size.",
    "Nothing is interpolated: 512, 4,096 and 32,768 keys were measured as such. The *share* is the measured part of all that the GPU",
    "does in the pass, by the estimate. Norms, activations and copies are left out (the tables have other kernels for them: vLLM's own, or",
    "chains of eager ones), as are most output layers, which nobody measured. Nor has any table a step of a whole engine: the host's",
    "part is not judged here.",
    "",
    "Tables: aiconfigurator's products and attention in bf16 (the median over TensorRT-LLM, vLLM and SGLang, of those that measured the",
    "shape on that GPU); where it has none Vidur's linear layers (20 us and longer; A100, H100), then LLMServingSim's (H100). A",
    "configuration with `gpus` above 1 is one GPU's part of it: what GPUs exchange was not measured. The *form* is `fused` where one",
    "product makes queries, keys and values and one gate and up (`--runtime paged`), `composed` where these are products of their own",
    "(`--runtime torch`): the one of which more was measured. No prompt above 16,384 tokens has measured attention, so prompts of",
    "16,384 stand beside those of 32,768, of which products alone can be compared; passes of more than 32,768 tokens were not measured.",
    "",
    "Estimates come from bundles trained for this page. For A100, H100 and RTX PRO 6000 every product and attention of every pass here",
    "was left out on all GPUs, from all publishers, frameworks, cache types and numbers of key-value heads. For the L40S all that was",
    "measured on an L40S was left out. Nothing was tuned on these sums.",
    "",
    "aiconfigurator repeats decode attention on one cache, which stays in L2 where it fits, and frameworks differ by up to two times.",
    "`mean` and all columns but one compare with the estimate of what was measured: a warm cache, and where one framework alone has",
    "the shape, its kernel. `as said, mean` is the error of what the command says, where nobody says whose kernel will run, and the",
    "weights of a step push the cache out of L2: there the measurement is no model's, but the reader may want to know how far off it is.",
    "",
    "Means are over passes of which every product and the attention of the layers were measured; others are listed, not counted.",
]
_STRICTER = [
    "With a stricter split: besides those shapes, every product with one of these configurations' weights left out, whatever the number",
    "of tokens (no row in training has a weight of 4,096 x 4,096 then, on any GPU):",
]


def steps_page(steps: Sequence[Step], unknown_weights: Sequence[Step]) -> list[str]:
    """Return the page below its title, Markdown lines; ``unknown_weights``: steps of a stricter split beside."""
    whole = [step for step in steps if step["whole"]]
    out = [*_FOREWORD, "", *_far(whole), "", "## By GPU", "", *_by(whole, ("gpu", "kind"))]
    stricter = [step for step in unknown_weights if step["whole"]]
    if stricter:
        out += ["", *_STRICTER, "", *_by(stricter, ("gpu", "kind"))]
    out += ["", "## By configuration", "", *_by(whole, ("model", "gpus", "gpu"))]
    out += ["", "## By batch and context", "", *_by(whole, ("kind", "batch", "context"))]
    out += ["", "## Where it comes from", "", *_kinds(whole)]
    return [*out, "", "## Every step and prompt", "", *_rows(steps)]


def _far(steps: Sequence[Step]) -> Iterator[str]:
    """Yield how many passes on each GPU are off by more than a tenth and a fifth."""
    for (gpu,), mine in _groups(steps, ("gpu",)):
        errors = errors_pct(mine)
        tenth = int((errors > 10).sum())
        fifth = int((errors > 20).sum())
        yield f"- {gpu}: mean {errors.mean():.1f} %; of {len(mine)} passes {tenth} are off by more than 10 %, {fifth} by more than 20 %."


def errors_pct(steps: Sequence[Step], what: str = "estimated_ms") -> np.ndarray:
    """Return the absolute error of every step in percent."""
    return np.abs(_signed_pct(steps, what))


def inside(step: Step) -> bool:
    """Return whether the measured sum lies in the interval."""
    return bool(step["low_ms"] <= step["measured_ms"] <= step["high_ms"])


def _signed_pct(steps: Sequence[Step], what: str = "estimated_ms", of: str = "measured_ms") -> np.ndarray:
    return np.array([100 * (step[what] / step[of] - 1) for step in steps])


def _groups(steps: Sequence[Step], names: Sequence[str]) -> Iterator[tuple[list[str], list[Step]]]:
    groups: dict[tuple[Any, ...], list[Step]] = {}
    for step in steps:
        groups.setdefault(tuple(step[name] for name in names), []).append(step)
    for key, mine in sorted(groups.items()):
        yield [f"{part:,}" if isinstance(part, int) else str(part) for part in key], mine


def _by(steps: Sequence[Step], names: Sequence[str]) -> Iterator[str]:
    """Yield a table of means for each value of ``names``."""
    head = (
        *names,
        "passes",
        "mean",
        "median",
        "largest",
        "bias",
        "as said, mean",
        "roofline",
        "inside",
        "share",
    )
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for key, mine in _groups(steps, names):
        signed = _signed_pct(mine)
        errors = np.abs(signed)
        said = errors_pct(mine, "said_ms").mean()
        roof = errors_pct(mine, "roofline_ms").mean()
        held = np.mean([inside(step) for step in mine])
        share = np.mean([step["share_pct"] for step in mine])
        yield (
            f"| {' | '.join(key)} | {len(mine)} | {errors.mean():.1f} % | {np.median(errors):.1f} % "
            f"| {errors.max():.1f} % | {np.median(signed):+.1f} % | {said:.1f} % | {roof:.0f} % | {100 * held:.0f} % "
            f"| {share:.0f} % |"
        )


def _kinds(steps: Sequence[Step]) -> Iterator[str]:
    """Yield what products and attention are off by on each GPU, each summed over a pass."""
    yield "| GPU | pass | products: mean | bias | attention: mean | bias | attention's part of the measured time |"
    yield "|---|---|---|---|---|---|---|"
    for key, mine in _groups(steps, ("gpu", "kind")):
        cells = []
        for kind in ("product", "attention"):
            signed = _signed_pct(mine, f"{kind}_estimated_ms", f"{kind}_measured_ms")
            cells.append(f"{np.abs(signed).mean():.1f} % | {np.median(signed):+.1f} %")
        part = np.mean([step["attention_measured_ms"] / step["measured_ms"] for step in mine])
        yield f"| {' | '.join([*key, *cells])} | {100 * part:.0f} % |"


def _rows(steps: Sequence[Step]) -> Iterator[str]:
    head = (
        "GPU", "configuration", "pass", "form", "batch", "context", "share", "counted", "tables", "measured ms",
        "estimated ms", "error", "interval ms", "inside", "roofline ms", "as said ms", "products' error",
        "attention's error",
    )  # fmt: skip
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for step in sorted(steps, key=_order):
        name = step["model"] if step["gpus"] == 1 else f"{step['model']} x {step['gpus']}"
        tables = step["sources"]
        if step["kernel"]:
            tables = f"{tables} ({step['kernel']} alone)"
        cells = (
            step["gpu"], name, step["kind"], step["form"], f"{step['batch']}", f"{step['context']}",
            f"{step['share_pct']:.0f} %", "yes" if step["whole"] else "no", tables,
            f"{step['measured_ms']:.3f}", f"{step['estimated_ms']:.3f}", _signed_text(step, "estimated_ms", "measured_ms"),
            f"{step['low_ms']:.3f} to {step['high_ms']:.3f}", "yes" if inside(step) else "no",
            f"{step['roofline_ms']:.3f}", f"{step['said_ms']:.3f}", _signed_text(step, "product_estimated_ms", "product_measured_ms"),
            _signed_text(step, "attention_estimated_ms", "attention_measured_ms"),
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def _order(step: Step) -> tuple[Any, ...]:
    return tuple(step[name] for name in ("gpu", "model", "gpus", "kind", "context", "batch"))


def _signed_text(step: Step, what: str, of: str) -> str:
    if not step[of]:
        return "-"
    return f"{_signed_pct([step], what, of)[0]:+.1f} %"
