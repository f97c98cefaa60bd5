"""Compare the copies between types and layouts with those of ten public engines.

    GKEST_SHARED=... python benchmarks/tensorrt_reformats.py [--details]

A layer of type "Reformat" is a copy between formats, or a QuantizeLinear or DequantizeLinear that nothing fuses. One of ours
is the same where it converts as many elements between types of the same sizes. Times: the engines' own against the shipped
bundle's of the copies that are the same; profiling layer by layer adds 5 to 8 us to each (sums of layers against whole
engines).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from _shared import shared_dir
from tensorrt_layers import ENGINES

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.kernels import Kernel, KernelTable
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.targets import targets_of
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.hardware.runtimes.profiles import load_runtime
from gkestimator.lowering import lower
from gkestimator.onnx_io.model import model_of

_SIZES = {"FP32": 4, "FP16": 2, "Int8": 1}


class Copy(NamedTuple):
    """Hold what a copy converts: how many elements, from and to how many bytes each."""

    elements: int
    source_bytes: int
    result_bytes: int

    @property
    def moved(self) -> int:
        """Return the bytes read and written."""
        return self.elements * (self.source_bytes + self.result_bytes)


def engine_copies(layers: pd.DataFrame) -> Mapping[Copy, list[float]]:
    """Return the copies of an engine with their times (us)."""
    copies = defaultdict(list)
    for row in layers[layers.layer_type == "Reformat"].itertuples():
        elements = int(np.prod([int(size) for size in str(row.input_dims).split("x")]))
        sizes = []
        for text in (row.input_formats, row.output_formats):
            sizes.append(next(size for word, size in _SIZES.items() if word in str(text)))
        copies[Copy(elements, *sizes)].append(1e3 * row.average_ms)
    return copies


def our_copies(kernels: list[Kernel], gpu: str) -> Mapping[Copy, list[float]]:
    """Return the copies among ``kernels`` with their predicted times (us)."""
    chosen = [kernel for kernel in kernels if kernel.variant == "reformat"]
    copies = defaultdict(list)
    if not chosen:
        return copies
    durations = (
        load_bundle().predict(KernelTable.from_kernels(chosen), gpu_catalogue().resolve(gpu)[0]).duration_us
    )
    for kernel, duration in zip(chosen, durations, strict=True):
        copy = Copy(kernel.rows, kernel.read_bytes // kernel.rows, kernel.write_bytes // kernel.rows)
        copies[copy].append(float(duration))
    return copies


def main() -> None:
    """Print a line per engine, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--details", action="store_true", help="name every copy")
    details = parser.parse_args().details
    table = pd.read_parquet(shared_dir() / "data/tensorrt/tensorrt_layers.parquet")
    total = np.zeros(7)
    head = ("copies", "ours", "same", "MB", "our MB", "us", "our us")
    print(f"{'engine':36}" + "".join(f"{word:>9}" for word in head))
    for engine, (network, dtype, gpu) in ENGINES.items():
        graph = model_of(network().SerializeToString(), name=engine).bind()
        request = EstimateRequest(models=("x",), gpus=(gpu,), runtime="tensorrt", dtype=dtype)
        (target,) = targets_of(request, gpu_catalogue(), load_runtime("tensorrt")).known
        lowered = lower(graph, target.options)
        theirs = engine_copies(table[table.engine == engine])
        ours = our_copies([kernel for step in lowered.steps for kernel in step.kernels], gpu)
        line = _compared(theirs, ours)
        total += line
        _print(engine, line)
        if details:
            for copy in sorted({*theirs, *ours}):
                print(
                    f"    {copy} engine {np.round(theirs.get(copy, []), 1)} ours {np.round(ours.get(copy, []), 1)}"
                )
    _print("all", total)


def _compared(theirs: Mapping[Copy, list[float]], ours: Mapping[Copy, list[float]]) -> np.ndarray:
    line = np.zeros(7)
    for copy in {*theirs, *ours}:
        measured = theirs.get(copy, [])
        predicted = ours.get(copy, [])
        same = min(len(measured), len(predicted))
        line[:3] += len(measured), len(predicted), same
        line[3:5] += len(measured) * copy.moved / 1e6, len(predicted) * copy.moved / 1e6
        if same:
            line[5:] += same * np.mean(measured), same * np.mean(predicted)
    return line


def _print(name: str, line: np.ndarray) -> None:
    counts = "".join(f"{int(count):9}" for count in line[:3])
    print(f"{name:36}{counts}" + "".join(f"{figure:9.1f}" for figure in line[3:]))


if __name__ == "__main__":
    main()
