"""torch's index_select where it coalesces nothing, and convolutions that give one pixel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family, KernelGraph, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.launch import launch_geometry
from gkestimator.lowering import lower
from gkestimator.lowering.strides import collapsed
from gkestimator.onnx_io import read_model
from gkestimator.operators.registry import LoweringOptions

V100 = gpu_catalogue().resolve("V100-SXM2-16GB")[0]


def lowered(text: str, tmp_path: Path, runtime: str = "torch") -> KernelGraph:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    options = LoweringOptions(
        runtime=runtime, dtype="fp32", matmul_precision=Precision.FP32, conv_precision=Precision.FP32
    )
    return lower(read_model(path).bind(batch_size=4), options)


def shift(indices: int, slices: str = "12") -> str:
    """The relative shift of Transformer-XL: (N, heads, i, j) seen as (N, heads, j, i), its first row dropped, seen as
    (N, heads, i, j - 1), the first ``indices`` columns selected."""
    listed = ", ".join(map(str, range(indices)))
    return f"""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, {slices}, 512, 1024] x) => (float[N, {slices}, 512, {indices}] y)
          <int64[4] turned = {{0, {slices}, 1024, 512}}, int64[4] back = {{0, {slices}, 512, 1023}}, int64[1] one = {{1}},
           int64[1] end = {{1024}}, int64[1] axis = {{2}}, int64[{indices}] columns = {{{listed}}}> {{
          t = Reshape (x, turned)
          s = Slice (t, one, end, axis, one)
          r = Reshape (s, back)
          g = Gather <axis = 3> (r, columns)
          y = Sigmoid (g)
        }}"""


def variants(graph: KernelGraph) -> list[str]:
    return [k.variant for s in graph.steps for k in s.kernels if k.family is Family.GATHER]


def test_dimensions_that_lie_one_inside_the_other_collapse() -> None:
    assert collapsed((4, 12, 512, 1024), (6291456, 524288, 1024, 1), 3) == 2
    assert collapsed((4, 12, 512, 1023), (6291456, 524288, 1023, 1), 3) == 3  # a row of 1023 in rows of 1024
    assert collapsed((4, 1, 512, 1024), (524288, 7, 1024, 1), 3) == 2  # size 1 vanishes
    assert collapsed((8, 8), (8, 1), 0) == 2


def test_a_selection_from_a_strided_source_walks_slices(tmp_path: Path) -> None:
    assert variants(lowered(shift(512), tmp_path)) == ["index_select_scattered"]
    assert variants(lowered(shift(16), tmp_path)) == ["gather"]  # few indices have a kernel of their own
    assert variants(lowered(shift(512), tmp_path, "onnxruntime")) == ["gather"]
    contiguous = shift(512).replace("Reshape (s, back)", "Identity (x)").replace("1023", "1024")
    assert variants(lowered(contiguous, tmp_path)) == ["gather"]


def gather_us(slices: str, tmp_path: Path) -> float:
    graph = lowered(shift(512, slices), tmp_path)
    (kernel,) = (k for s in graph.steps for k in s.kernels if k.family is Family.GATHER)
    return float(analytical_duration_us(KernelTable.from_kernels([kernel]), V100)[0])


def test_scattered_sectors_and_their_launch(tmp_path: Path) -> None:
    graph = lowered(shift(512), tmp_path)
    (kernel,) = (k for s in graph.steps for k in s.kernels if k.family is Family.GATHER)
    elements = 4 * 12 * 512 * 512
    assert kernel.write_bytes == 4 * elements and kernel.cols == 4 * 12 * 512
    table = KernelTable.from_kernels([kernel])
    # 24,576 slices with a line of source and result each are the V100's 6 MiB of L2: three sectors an element.
    assert analytical_duration_us(table, V100)[0] == pytest.approx(
        elements * 3 * 99 / V100.dram_bytes_per_s * 1e6 + 1.5
    )
    launch = launch_geometry(table, V100)
    assert (launch.grid_blocks[0], launch.block_threads[0]) == (8 * 80, 128)
    # half as many slices find five sevenths of their lines in the L2
    assert gather_us("6", tmp_path) == pytest.approx(
        elements / 2 * 3 * 99 / V100.dram_bytes_per_s * 1e6 * 2 / 7 + 1.5
    )
    # a quarter of them finds all, so that only the traffic counts
    assert gather_us("3", tmp_path) < elements / 4 * 24 / V100.dram_bytes_per_s * 1e6
    assert np.isfinite(launch.registers_per_thread[0])


@pytest.mark.parametrize(
    ("size", "kernel", "family"), [(7, 7, Family.LINEAR), (7, 3, Family.CONV), (1, 1, Family.LINEAR)]
)
def test_one_pixel_is_a_matrix_product(size: int, kernel: int, family: Family, tmp_path: Path) -> None:
    out = size - kernel + 1
    graph = lowered(
        f"""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 64, {size}, {size}] x, float[128, 64, {kernel}, {kernel}] w) => (float[N, 128, {out}, {out}] y) {{
          y = Conv (x, w)
        }}""",
        tmp_path,
    )
    ((main,),) = (s.kernels for s in graph.steps)
    assert main.family is family
    assert main.gemm is not None
    assert (main.gemm.m, main.gemm.n, main.gemm.k) == (4 * out * out, 128, 64 * kernel * kernel)
