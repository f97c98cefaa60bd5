"""Sensitivity of a merge to omega: operators merged, bytes of weights read once, expected time, on sibling families.

    python benchmarks/merge_omega.py [--gpu V100] [--report docs/merging/omega.md] [--plot docs/merging/omega.png]

Two kinds of siblings with random weights. **Fine-tuned**: the last layers are drawn again, all others are equal; every
similarity is 0 or 1. **Graded**: the k-th of n layers keeps the first (k + 1) / (n + 1) of its output channels, the rest is
drawn again, so that similarities are spread evenly over 0 to 1. ``merged`` are operators of the second model that share a
block with the first; ``always`` without asking the price, then only where the expected time falls. ``read once`` are bytes
of weights that are read once instead of twice. Times are the estimator's, of one pass of each model, on ``--gpu``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "merging"))

import families

import gkestimator
from gkestimator.merging.report import MergeReport
from gkestimator.picture_style import BLUE, GREY, INK, STYLE, saved
from gkestimator.tables import write_bytes
from gkestimator.tables.layout import TextColumn, markdown_table, text_table

OMEGAS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)

BATCH = 8
GREEN = "#6a994e"


def models() -> Iterator[tuple[str, onnx.ModelProto, int]]:
    """Name, model, and how many last layers a fine-tuned sibling has drawn again."""
    yield "ResNet-18", families.resnet_like(width=64, blocks=(2, 2, 2, 2), image=224, classes=1000), 6
    stages = ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
    yield "MobileNet-v2", families.mobilenet_like(width=32, stages=stages, image=224, classes=1000), 12
    size = {"layers": 6, "width": 768, "heads": 12, "sequence": 128, "vocabulary": 1000, "positions": 128}
    yield "BERT, 6 layers", families.bert_like(**size), 8
    yield "GPT, 6 layers", families.gpt_like(**size), 8


def graded(model: onnx.ModelProto, seed: int = 3) -> onnx.ModelProto:
    """The k-th of n layers keeps its first (k + 1) / (n + 1) output channels, in a mixed order of layers."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    by_name = {t.name: t for t in new.graph.initializer}
    columns_last = {i for n in new.graph.node if n.op_type == "MatMul" for i in n.input[1:]}
    layers = [layer[0] for layer in families.weighted_layers(model)]
    generator = np.random.default_rng(seed)
    for name, place in zip(layers, generator.permutation(len(layers)), strict=True):
        tensor = by_name[name]
        old = numpy_helper.to_array(tensor)
        axis = old.ndim - 1 if name in columns_last else 0
        kept = int(old.shape[axis] * (int(place) + 1) / (len(layers) + 1))
        values = old.copy()
        rest = (slice(None),) * axis + (slice(kept, None),)
        values[rest] = generator.normal(0, float(old.std()) or 1.0, values[rest].shape).astype(old.dtype)
        tensor.CopyFrom(numpy_helper.from_array(values, name))
    return new


def swept(first: Path, second: Path, gpu: str, *, always: bool) -> list[MergeReport]:
    """One report per omega; nothing is written."""
    return [
        gkestimator.merge(
            [first, second], gpu=gpu, omega=omega, tau_ms=float("inf"), always=always, batch_sizes=BATCH
        ).report
        for omega in OMEGAS
    ]


def cells(name: str, kind: str, omega: float, forced: MergeReport, priced: MergeReport) -> list[str]:
    """One row of the table."""
    return [
        name, kind, f"{omega:.1f}", f"{forced.pairs}", f"{forced.saved_bytes / 2**20:,.1f}",
        f"{forced.before.latency_ms:.2f}", f"{forced.after.latency_ms:.2f}",
        f"{forced.before.gpu_ms:.2f}", f"{forced.after.gpu_ms:.2f}",
        f"{priced.pairs}", f"{priced.saved_bytes / 2**20:,.1f}", f"{priced.after.latency_ms:.2f}",
    ]  # fmt: skip


HEADINGS = (
    "siblings", "kind", "omega", "merged, always", "MiB read once", "ms before", "ms after", "GPU ms before",
    "GPU ms after", "merged where it pays", "MiB read once", "ms after",
)  # fmt: skip


def drawn(results: dict[tuple[str, str], tuple[list[MergeReport], list[MergeReport]]]) -> bytes:
    """Two rows of panels (operators merged, expected time) by omega, a column per family; graded siblings."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for name, _ in results))
    with matplotlib.rc_context(STYLE):
        figure, axes = plt.subplots(2, len(names), figsize=(9.2, 4.2), layout="constrained", sharex=True)
        for at, name in enumerate(names):
            forced, priced = results[name, "graded"]
            above, below = axes[0, at], axes[1, at]
            above.plot(OMEGAS, [r.pairs for r in forced], "o-", ms=3, color=GREY, label="always")
            above.plot(OMEGAS, [r.pairs for r in priced], "o-", ms=3, color=BLUE, label="where it pays")
            above.set_title(name, loc="left")
            above.set_ylim(bottom=0)
            before = forced[0].before.latency_ms
            below.axhline(before, color=INK, lw=0.8, ls="--", label="not merged")
            below.plot(OMEGAS, [r.after.latency_ms for r in forced], "o-", ms=3, color=GREY, label="always")
            below.plot(
                OMEGAS, [r.after.latency_ms for r in priced], "o-", ms=3, color=BLUE, label="where it pays"
            )
            below.set_ylim(bottom=0)
            below.set_xlabel("omega")
        axes[0, 0].set_ylabel("operators merged")
        axes[1, 0].set_ylabel(f"expected ms, batch {BATCH}")
        axes[1, 0].legend(loc="lower left")
        data = saved(figure, "png")
        plt.close(figure)
    return data


def main() -> int:
    """Sweep, print, and write the page and the picture where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpu", default="V100-SXM2-16GB")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    results: dict[tuple[str, str], tuple[list[MergeReport], list[MergeReport]]] = {}
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, model, last in models():
            first = families.saved(model, Path(folder, "first.onnx"))
            relatives = {"fine-tuned": families.sibling(model, last=last), "graded": graded(model)}
            for kind, relative in relatives.items():
                second = families.saved(relative, Path(folder, "second.onnx"))
                forced, priced = (swept(first, second, asked.gpu, always=flag) for flag in (True, False))
                results[name, kind] = forced, priced
                for omega, one, other in zip(OMEGAS, forced, priced, strict=True):
                    rows.append(cells(name, kind, omega, one, other))
                    print(f"\r{name} {kind} {omega}", end="", file=sys.stderr)
    print(file=sys.stderr)
    columns = [TextColumn(heading=h, cells=[r[i] for r in rows], right=i > 1) for i, h in enumerate(HEADINGS)]
    print("\n".join(text_table(columns, limit=160)))
    if asked.plot:
        write_bytes(asked.plot, drawn(results))
    if asked.report:
        page = ["# Merging: sensitivity to omega", "", (__doc__ or "").strip(), ""]
        if asked.plot:
            page += [f"![graded siblings by omega]({asked.plot.name})", ""]
        page += [
            f"Expected on {asked.gpu}, batch {BATCH}, runtime onnxruntime.",
            "",
            *markdown_table(columns),
            "",
        ]
        write_bytes(asked.report, "\n".join(page).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
