"""Merge exported graphs with a fine-tuned sibling each for docs/how-to/merging/models.md: what is shared, saved and put out.

    python benchmarks/merge_models.py [--gpu V100] [--samples 4] [--most-mib 700] [--report docs/how-to/merging/models.md]

The public graphs have no weights: they get random ones, normal with the variance one over the fan-in (vectors: 0.5 and up), and the
sibling has its last six tensors of weights drawn again. Merged with the default options at the batch size of the export;
``operators`` are those of the sibling that share a weight, of all whose weights are equal. ``difference`` is the largest
relative difference of an output in ONNX Runtime on the CPU over ``--samples`` random inputs of each. Graphs whose weights are beyond
``--most-mib`` are left out and named. Needs GKEST_SHARED.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from _shared import exported_models
from onnx import TensorProto, helper

import gkestimator
from gkestimator.core.errors import GkestimatorError
from gkestimator.tables import write_bytes
from gkestimator.tables.layout import TextColumn, markdown_table, text_table

_REDRAWN = 6
INTRO = (
    "Each model below is merged with a sibling that was fine-tuned from it: all weights are equal but the last. What is read once instead of twice, "
    "and what the time of both models, one after the other, becomes:"
)
HEADINGS = (
    "graph", "MiB", "operators", "MiB read once", "ms before", "ms after", "change %", "90 % intervals", "difference",
    "predictions changed",
)  # fmt: skip


def weights_mib(graph: onnx.ModelProto) -> float:
    """Size of the weights that the file lacks."""
    sizes = (
        math.prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize
        for t in graph.graph.initializer
        if t.data_location == TensorProto.EXTERNAL
    )
    return sum(sizes) / 2**20


def filled(graph: onnx.ModelProto, *, again: int) -> onnx.ModelProto:
    """A copy with random weights; the last ``again`` tensors are others than without."""
    new = onnx.ModelProto()
    new.CopyFrom(graph)
    absent = [t for t in new.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    for place, tensor in enumerate(absent):
        generator = np.random.default_rng([1 if place >= len(absent) - again else 0, place])
        dtype, shape = helper.tensor_dtype_to_np_dtype(tensor.data_type), tuple(tensor.dims)
        if np.issubdtype(dtype, np.floating):
            values = generator.standard_normal(shape, dtype=np.float32)
            values = values / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else np.abs(values) + 0.5
        else:
            values = np.zeros(shape)
        del tensor.external_data[:]
        tensor.data_location = TensorProto.DEFAULT
        tensor.raw_data = values.astype(dtype).tobytes()
    return new


def row(name: str, graph: onnx.ModelProto, folder: Path, gpu: str, samples: int) -> list[str]:
    """Merge one graph with its sibling."""
    paths = [folder / "first.onnx", folder / "sibling.onnx"]
    for path, again in zip(paths, (0, _REDRAWN), strict=True):
        onnx.save(filled(graph, again=again), path)
    try:
        report = gkestimator.merge(paths, folder / "merged.onnx", gpu=gpu, samples=samples).report
    except GkestimatorError as e:
        return [name, f"{weights_mib(graph):,.0f}", str(e), *[""] * (len(HEADINGS) - 3)]
    check, alike = report.check, report.pairs + len([r for r in report.refused if r.similarity == 1])
    worst = None if check is None else check.largest_relative_difference
    return [
        name, f"{weights_mib(graph):,.0f}", f"{report.pairs} of {alike}", f"{report.saved_bytes / 2**20:,.1f}",
        f"{report.before.latency_ms:.2f}", f"{report.after.latency_ms:.2f}",
        f"{100 * (report.after.latency_ms / report.before.latency_ms - 1):+.1f}", report.confidence or "",
        "unknown" if worst is None else f"{worst:.1e}",
        "" if check is None else f"{check.changed_predictions} of {check.predictions}",
    ]  # fmt: skip


def main() -> int:
    """Print the table; write the page where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpu", default="V100-SXM2-16GB")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--most-mib", type=float, default=700)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--report", type=Path)
    asked = parser.parse_args()
    rows, left = [], []
    for path in exported_models():
        name = f"{path.parent.name}/{path.stem}"
        if asked.only and path.stem not in asked.only:
            continue
        graph = onnx.load(path, load_external_data=False)
        if weights_mib(graph) > asked.most_mib:
            left.append(f"{name} ({weights_mib(graph):,.0f} MiB)")
            continue
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(name, graph, Path(folder), asked.gpu, asked.samples))
        print(" · ".join(rows[-1]), file=sys.stderr, flush=True)
    columns = [TextColumn(heading=h, cells=[r[i] for r in rows], right=i > 0) for i, h in enumerate(HEADINGS)]
    words = f"Left out: {', '.join(left)}." if left else "None left out."
    print("\n".join([*text_table(columns, limit=180), "", words]))
    if asked.report:
        page = ["# Merging: what real models save", "", INTRO, ""]
        page += [
            f"Expected on {asked.gpu}, runtime onnxruntime.",
            "",
            *markdown_table(columns),
            "",
            words,
            "",
        ]
        page += ["## How it was made", "", (__doc__ or "").strip(), ""]
        write_bytes(asked.report, "\n".join(page).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
