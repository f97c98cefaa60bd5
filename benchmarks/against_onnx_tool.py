"""Compare reading, binding and lowering with onnx-tool's profile of the same file, and the MACs of both, in one run.

    GKEST_SHARED=... python benchmarks/against_onnx_tool.py [NAME...]

onnx-tool needs weights, so it gets a temporary copy filled with zeros (made before its clock starts). Ours is timed on
the same copy and on the graph without weights; each repetition reads the file anew. Needs ``pip install onnx-tool``.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import sys
import tempfile
import time
from pathlib import Path

from _shared import shared_dir, with_zero_weights

from gkestimator.core.dtypes import Precision
from gkestimator.lowering import lower
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import LoweringOptions

REPEATS = 5
OPTIONS = LoweringOptions(
    runtime="onnxruntime", dtype="fp32", matmul_precision=Precision.FP32, conv_precision=Precision.FP32
)


def ours(path: Path) -> tuple[float, float]:
    """Median seconds to read, bind (batch 1) and lower; GMACs of matrix products and convolutions, biases included."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        graph = lower(read_model(path).bind(batch_size=1), OPTIONS)
        seconds.append(time.perf_counter() - start)
    macs = 0
    for step in graph.steps:
        for k in step.kernels:
            if k.gemm is not None:
                macs += k.gemm.batch * k.gemm.m * k.gemm.n * k.gemm.k * step.repeat
            elif (
                k.variant == "bias_add"
            ):  # onnx-tool counts a convolution's bias as one MAC per output element
                macs += k.rows * step.repeat
    return statistics.median(seconds), macs / 1e9


def theirs(path: Path) -> tuple[float, float]:
    """Seconds and GMACs of onnx-tool's shape inference and profile, loading included."""
    import numpy
    import onnx_tool

    with contextlib.redirect_stdout(io.StringIO()):
        start = time.perf_counter()
        graph = onnx_tool.loadmodel(str(path), {"constant_folding": True, "verbose": False}).graph
        feed = {}
        for name in graph.input:
            tensor = graph.tensormap[name]
            shape = [d if isinstance(d, int) and d > 0 else 1 for d in tensor.get_shape()]
            feed[name] = numpy.zeros(shape, dtype=tensor.dtype if tensor.dtype is not None else numpy.float32)
        graph.shape_infer(feed)
        graph.profile()
        seconds = time.perf_counter() - start
    layers = ("Conv", "Gemm", "MatMul", "ConvTranspose")
    macs = sum(
        n.macs[0] if isinstance(n.macs, list) else n.macs
        for n in graph.nodemap.values()
        if n.op_type in layers
    )
    return seconds, macs / 1e9


def main() -> None:
    folder = shared_dir() / "models"
    wanted = set(sys.argv[1:])
    print(
        f"{'model':<40}{'ours ms':>9}{'onnx-tool s':>13}{'times faster':>14}{'our GMACs':>11}{'theirs':>9}{'off %':>7}"
    )
    ratios, ours_all, theirs_all = [], [], []
    for source in sorted(folder.glob("*/*.onnx")):
        if wanted and source.stem not in wanted and source.parent.name not in wanted:
            continue
        if source.parent.name == "llm":
            continue  # 27 GB of zeros do not fit
        with tempfile.TemporaryDirectory() as scratch:
            copy = with_zero_weights(source, Path(scratch, source.name))
            mine, macs = ours(source)
            try:
                other, other_macs = theirs(copy)
            except Exception as e:  # noqa: BLE001 - a peer's failure is a result, not ours to narrow
                print(
                    f"{source.parent.name}/{source.stem:<34}{mine * 1e3:>9.1f}  onnx-tool failed: {e!r:.60}"
                )
                continue
        ratios.append(other / mine)
        ours_all.append(mine)
        theirs_all.append(other)
        off = 100 * (macs / other_macs - 1)
        name = f"{source.parent.name}/{source.stem}"
        print(
            f"{name:<40}{mine * 1e3:>9.1f}{other:>13.2f}{other / mine:>14.1f}{macs:>11.3f}{other_macs:>9.3f}{off:>7.2f}",
            flush=True,
        )
    if ratios:
        print(
            f"median: ours {statistics.median(ours_all) * 1e3:.1f} ms, onnx-tool {statistics.median(theirs_all):.2f} s; "
            f"median ratio {statistics.median(ratios):.1f}, ratio of medians "
            f"{statistics.median(theirs_all) / statistics.median(ours_all):.1f} (n = {len(ratios)})"
        )


if __name__ == "__main__":
    main()
