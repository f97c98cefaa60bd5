"""Merge sibling families at several omega for docs/how-to/merging/omega.md: operators, bytes read once, expected time.

    python benchmarks/merge_omega.py [--gpu V100] [--report docs/how-to/merging/omega.md] [--plot docs/how-to/merging/omega.png]

Two kinds of siblings with random weights. **Fine-tuned**: the last layers are drawn again, all others are equal; every
similarity is 0 or 1. **Graded**: the k-th of n layers (in a mixed order) keeps the first (k + 1) / (n + 1) of its output
channels, the rest is drawn again, so that similarities are spread evenly over 0 to 1. ``merged`` are operators of the
second model that share a block with the first; ``always`` without asking the price, then only where the expected time
falls. ``read once`` are bytes of weights that are read once instead of twice. Times are the estimator's, of one pass of
each model, on ``--gpu``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "merging"))

import families

import gkestimator
from gkestimator.merging.report import MergeReport
from gkestimator.reporting.style import BLUE, GREY, INK, STYLE, saved
from gkestimator.tables import write_bytes
from gkestimator.tables.layout import TextColumn, markdown_table, text_table

OMEGAS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)

BATCHES = (1, 8)
GREEN = "#6a994e"


class Key(NamedTuple):
    """One sweep: family, kind of sibling, batch size."""

    name: str
    kind: str
    batch: int


Results: TypeAlias = dict[Key, tuple[list[MergeReport], list[MergeReport]]]


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


def swept(first: Path, second: Path, gpu: str, batch: int, *, always: bool) -> list[MergeReport]:
    """One report per omega; nothing is written."""
    return [
        gkestimator.merge(
            [first, second], gpu=gpu, omega=omega, tau_ms=float("inf"), always=always, batch_sizes=batch
        ).report
        for omega in OMEGAS
    ]


def change(report: MergeReport) -> float:
    """Percent by which the expected time changes."""
    return 100 * (report.after.latency_ms / report.before.latency_ms - 1)


ON_PAGE = (0.2, 0.4, 0.6, 0.8)  # the picture has all
INTRO = (
    "How alike must two operators be to be worth merging (`gkest merge --omega`)? Where siblings were fine-tuned, every omega gives the same: their "
    "weights are equal or not. Where weights are equal in part, merging costs more than it saves at any omega, so next to nothing is merged "
    "where the expected time decides, as it does by default."
)
HEADINGS = (
    "siblings", "kind", "batch", "omega", "merged, always", "MiB read once", "ms before", "ms after", "change %",
    "merged where it pays", "MiB read once", "ms after", "change %",
)  # fmt: skip


def rows_of(
    key: Key, forced: list[MergeReport], priced: list[MergeReport], omegas: Sequence[float]
) -> list[list[str]]:
    """Return rows of the table for ``omegas``; those that give the same share one."""
    found: dict[tuple[str, ...], list[float]] = {}
    for omega, one, other in zip(OMEGAS, forced, priced, strict=True):
        if omega not in omegas:
            continue
        cells = (
            f"{one.pairs}", f"{one.saved_bytes / 2**20:,.1f}", f"{one.before.latency_ms:.2f}",
            f"{one.after.latency_ms:.2f}", f"{change(one):+.1f}",
            f"{other.pairs}", f"{other.saved_bytes / 2**20:,.1f}", f"{other.after.latency_ms:.2f}",
            f"{change(other):+.1f}",
        )  # fmt: skip
        found.setdefault(cells, []).append(omega)
    spans = {c: f"{o[0]:.1f}" if len(o) == 1 else f"{o[0]:.1f} to {o[-1]:.1f}" for c, o in found.items()}
    return [[key.name, key.kind, f"{key.batch}", spans[c], *c] for c in found]


def drawn(results: Results) -> bytes:
    """A column per family: operators merged, then the change of the expected time at each batch size, by omega."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(key.name for key in results))
    with matplotlib.rc_context(STYLE):
        figure, axes = plt.subplots(
            1 + len(BATCHES), len(names), figsize=(9.2, 5.6), layout="constrained", sharex=True, sharey="row"
        )
        lines = (("fine-tuned", 1, GREEN), ("graded", 0, GREY), ("graded", 1, BLUE))
        words = ("fine-tuned, where it pays", "graded, always", "graded, where it pays")
        for at, name in enumerate(names):
            for (kind, which, colour), label in zip(lines, words, strict=True):
                counts = [r.pairs for r in results[Key(name, kind, BATCHES[0])][which]]
                axes[0, at].plot(OMEGAS, counts, "o-", ms=3, color=colour, label=label)
                for row, batch in enumerate(BATCHES, start=1):
                    values = [change(r) for r in results[Key(name, kind, batch)][which]]
                    axes[row, at].plot(OMEGAS, values, "o-", ms=3, color=colour, label=label)
            for row in range(1, 1 + len(BATCHES)):
                axes[row, at].axhline(0, color=INK, lw=0.8)
            axes[0, at].set_title(name, loc="left")
            axes[-1, at].set_xlabel("omega")
        axes[0, 0].set_ylabel(f"operators merged, batch {BATCHES[0]}")
        axes[0, 0].set_ylim(bottom=0)
        for row, batch in enumerate(BATCHES, start=1):
            axes[row, 0].set_ylabel(f"change of time, %, batch {batch}")
        axes[0, 0].legend(loc="upper right")
        data = saved(figure, "png")
        plt.close(figure)
    return data


def columns_of(results: Results, omegas: Sequence[float]) -> list[TextColumn]:
    """Return the columns of the table for ``omegas``."""
    rows = [row for key, found in results.items() for row in rows_of(key, *found, omegas)]
    return [TextColumn(heading=h, cells=[r[i] for r in rows], right=i > 1) for i, h in enumerate(HEADINGS)]


def main() -> int:
    """Sweep, print, and write the page and the picture where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpu", default="V100-SXM2-16GB")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    results: Results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, model, last in models():
            first = families.saved(model, Path(folder, "first.onnx"))
            relatives = {"fine-tuned": families.sibling(model, last=last), "graded": graded(model)}
            for kind, relative in relatives.items():
                second = families.saved(relative, Path(folder, "second.onnx"))
                for batch in BATCHES:
                    key = Key(name, kind, batch)
                    forced, priced = (
                        swept(first, second, asked.gpu, batch, always=flag) for flag in (True, False)
                    )
                    results[key] = forced, priced
                    print(f"{name}, {kind}, batch {batch}", file=sys.stderr)
    print("\n".join(text_table(columns_of(results, OMEGAS), limit=180)))
    if asked.plot:
        write_bytes(asked.plot, drawn(results))
    if asked.report:
        page = ["# Merging: which omega?", "", INTRO, ""]
        if asked.plot:
            page += [f"![operators merged and change of time by omega]({asked.plot.name})", ""]
        page += [
            f"Expected on {asked.gpu}, runtime onnxruntime.",
            "",
            *markdown_table(columns_of(results, ON_PAGE)),
            "",
        ]
        page += ["## How it was made", "", (__doc__ or "").strip(), ""]
        write_bytes(asked.report, "\n".join(page).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
