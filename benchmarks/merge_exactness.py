"""Compare merged files with their originals in ONNX Runtime for docs/how-to/merging/exactness.md.

Families with random weights, every way of being alike.

    python benchmarks/merge_exactness.py [--samples 1000] [--report docs/how-to/merging/exactness.md]

Every case is merged with ``--always`` and any start (``tau inf``), so that all that can be merged is; originals and merged
file then run on the same random inputs on the CPU. ``difference`` is the largest over outputs and samples of
max |merged - original| / max |original|. ``changed`` are predictions (rows of class scores) whose largest score moved.
Bars of the project: 1e-5 in FP32 and 2e-3 in FP16 for equal weights, 1e-4 for weights within 1e-7 of each other. The paper
(USHER, OSDI 2024) states an accuracy change of 0.0003 %. For FP16 the last columns say how far the originals, the originals
with every operator's result rounded to FP16 (as a GPU does; ONNX Runtime on the CPU keeps FP32 between operators), and the merged
file are from the same weights calculated in FP32, on at most 100 inputs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "merging"))

import families

import gkestimator
from gkestimator.tables import write_bytes
from gkestimator.tables.layout import TextColumn, markdown_table, text_table

FLOAT16 = onnx.TensorProto.FLOAT16
Build = Callable[..., onnx.ModelProto]
# By family: how it is built, and a larger build of it.
FAMILIES: Mapping[str, tuple[Build, dict[str, Any], dict[str, Any]]] = {
    "ResNet-like": (families.resnet_like, {"width": 16, "blocks": (2, 2, 2), "image": 64}, {"image": 48}),
    "MobileNet-like": (families.mobilenet_like, {"width": 16, "image": 64}, {"image": 48}),
    "BERT-like": (families.bert_like, {"layers": 4, "width": 128}, {"sequence": 24}),
    "GPT-like": (families.gpt_like, {"layers": 4, "width": 128}, {"sequence": 24}),
}
EQUAL, HALF, NEAR = 1e-5, 2e-3, 1e-4


INTRO = (
    "A merged file computes what its originals do, in another order. So results differ by rounding: this page says by how much, for families of models "
    "and every way in which they can be alike."
)


def cases(name: str) -> Iterator[tuple[str, list[onnx.ModelProto], float, tuple[int, ...]]]:
    """What is compared: title, models, bar, batch sizes (one for each model)."""
    build, size, other = FAMILIES[name]
    base = build(**size)
    yield "last 2 layers fine-tuned", [base, families.sibling(base, last=2)], EQUAL, (2, 2)
    yield "last 5 layers fine-tuned", [base, families.sibling(base, last=5)], EQUAL, (2, 2)
    yield "the same model twice", [base, base], EQUAL, (2, 2)
    yield "batches of 1 and 5", [base, families.sibling(base, last=2)], EQUAL, (1, 5)
    yield (
        "three models",
        [base, families.sibling(base, last=2), families.sibling(base, last=5, seed=2)],
        EQUAL,
        (3, 1, 2),
    )
    yield "blocks shifted", [base, families.shifted(base, share=0.8)], EQUAL, (2, 3)
    yield "inputs of other size", [base, families.sibling(build(**size | other), last=2)], EQUAL, (2, 2)
    yield "weights within 1e-7", [base, families.nudged(base, by=5e-8)], NEAR, (2, 2)
    half = build(**size, dtype=FLOAT16)
    yield "FP16, last 2 fine-tuned", [half, families.sibling(half, last=2)], HALF, (2, 2)
    yield "FP16, blocks shifted", [half, families.shifted(half, share=0.8)], HALF, (2, 2)


def in_full(model: onnx.ModelProto, build: Build, size: Mapping[str, Any]) -> onnx.ModelProto:
    """The FP16 ``model`` calculating in FP32 with the very same weights."""
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    full = onnx.ModelProto()
    full.CopyFrom(build(**size))
    for tensor in full.graph.initializer:
        if held[tensor.name].dtype == np.float16:
            tensor.CopyFrom(numpy_helper.from_array(held[tensor.name].astype(np.float32), tensor.name))
    return full


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with every result an output, so that the runtime must round each to FP16 (on the CPU it calculates in FP32 and
    keeps that between operators where nobody looks; a GPU rounds each)."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    ends = {o.name for o in new.graph.output}
    new.graph.output.extend(
        onnx.ValueInfoProto(name=name)
        for node in model.graph.node
        for name in node.output
        if name not in ends
    )
    return new


def against_full(family: str, models: list[onnx.ModelProto], merged: Path, samples: int) -> list[float]:
    """Largest relative difference from FP32 of the FP16 originals, of those rounded, and of the merged file."""
    import onnxruntime

    build, size, _ = FAMILIES[family]
    both = onnxruntime.InferenceSession(str(merged))
    halves = [onnxruntime.InferenceSession(m.SerializeToString()) for m in models]
    fulls = [onnxruntime.InferenceSession(in_full(m, build, size).SerializeToString()) for m in models]
    rough = [onnxruntime.InferenceSession(rounded(m).SerializeToString()) for m in models]
    worst = [0.0, 0.0, 0.0]
    for seed in range(samples):
        feeds = [families.feeds(m, seed=seed + 10_000 * i, batch=2) for i, m in enumerate(models)]
        joined = both.run(None, {f"m{i}/{k}": v for i, feed in enumerate(feeds) for k, v in feed.items()})
        for i, feed in enumerate(feeds):
            wide = {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in feed.items()}
            (exact,), (half,) = fulls[i].run(None, wide), halves[i].run(None, feed)
            for at, found in enumerate((half, rough[i].run(["logits"], feed)[0], joined[i])):
                difference = np.abs(found.astype(np.float32) - exact).max() / np.abs(exact).max()
                worst[at] = max(worst[at], float(difference))
    return worst


def main() -> int:
    """Merge and compare every case; exit status 1 where one is beyond its bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--report", type=Path)
    asked = parser.parse_args()
    rows: list[list[str]] = []
    seen: dict[str, list[int]] = {"FP32": [0, 0], "FP16": [0, 0]}  # predictions, those that changed
    beyond = 0
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            for title, models, bar, batches in cases(family):
                paths = [families.saved(m, Path(folder, f"m{i}.onnx")) for i, m in enumerate(models)]
                report = gkestimator.merge(
                    paths, Path(folder, "merged.onnx"), always=True, tau_ms=float("inf"), batch_sizes=batches,
                    samples=asked.samples,
                ).report  # fmt: skip
                noise = [""] * 3
                if bar == HALF:
                    worst_of = against_full(
                        family, models, Path(folder, "merged.onnx"), min(asked.samples, 100)
                    )
                    noise = [f"{value:.1e}" for value in worst_of]
                check = report.check
                if check is None:
                    sys.exit(f"outputs were not compared: {report.check_reason}")
                worst = check.largest_relative_difference
                good = worst is not None and worst <= bar
                beyond += not good
                counts = seen["FP16" if bar == HALF else "FP32"]
                counts[0] += check.predictions
                counts[1] += check.changed_predictions
                rows.append([
                    family, title, f"{report.pairs}", f"{report.saved_bytes / 2**10:,.0f}",
                    "unknown" if worst is None else f"{worst:.1e}", f"{bar:.0e}", "yes" if good else "**no**",
                    f"{check.changed_predictions} of {check.predictions:,}", *noise,
                ])  # fmt: skip
                print(" · ".join(rows[-1]), file=sys.stderr, flush=True)
    headings = (
        "family",
        "case",
        "operators merged",
        "KiB read once",
        "difference",
        "bar",
        "within",
        "changed",
        "original to FP32",
        "rounded original to FP32",
        "merged to FP32",
    )
    columns = [TextColumn(heading=h, cells=[r[i] for r in rows], right=i > 1) for i, h in enumerate(headings)]
    shares = "; ".join(
        f"{kind}: {changed} of {predictions:,} predictions changed ({100 * changed / predictions:.4f} %)"
        for kind, (predictions, changed) in seen.items()
    )
    words = f"{len(rows) - beyond} of {len(rows)} cases within their bars. {shares}. The paper: 0.0003 %."
    print("\n".join([*text_table(columns, limit=160), "", words]))
    if asked.report:
        page = [
            "# Merging: are the outputs the same?",
            "",
            INTRO,
            "",
            words,
            "",
            *markdown_table(columns),
            "",
        ]
        page += ["## How it was made", "", (__doc__ or "").strip(), ""]
        write_bytes(asked.report, "\n".join(page).encode())
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
