"""Relations between estimates that the attack of November 2026 found broken: streams, the edge of the L2, batches."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import onnx
import onnx.parser
import pytest

from gkestimator.estimation import estimate_rows
from gkestimator.onnx_io.demo import write_resnet50
from gkestimator.tables import Requirement

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
# Branches that run side by side on several streams, each large enough for every SM.
BRANCHES = f"""{HEAD} branches (float[N,64,56,56] x, float[64,64,3,3] w) => (float[N,64,56,56] y) {{
  a = Conv <pads = [1,1,1,1]> (x, w)
  b = Conv <pads = [1,1,1,1]> (x, w)
  c = Conv <pads = [1,1,1,1]> (x, w)
  d = Conv <pads = [1,1,1,1]> (x, w)
  y = Sum (a, b, c, d)
}}"""
# The relative shift of Transformer-XL: rows of 1,023 in rows of 1,024, of which 512 columns are selected.
SHIFT = f"""{HEAD} shift (float[N,12,512,1024] x, int64[512] columns) => (float[N,12,512,512] y)
  <int64[4] turned = {{0,12,1024,512}}, int64[4] back = {{0,12,512,1023}}, int64[1] one = {{1}}, int64[1] end = {{1024}},
   int64[1] axis = {{2}}> {{
  t = Reshape (x, turned)
  s = Slice (t, one, end, axis, one)
  r = Reshape (s, back)
  y = Gather <axis = 3> (r, columns)
}}"""
CLASSIFIER = f"""{HEAD} classifier (float[N,4096] x, float[4096,4096] w) => (float[N,4096] y) {{ y = MatMul (x, w) }}"""


def rows_of(text: str, folder: Path, **options: object) -> tuple[Requirement, ...]:
    path = folder / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    result = estimate_rows([path], **options)
    assert not result.failures
    return result.rows


@pytest.mark.parametrize("share", [10.0, 50.0, 100.0])
def test_streams_share_what_the_share_allows(tmp_path: Path, share: float) -> None:
    options = {"gpus": ["V100"], "batch_sizes": [32], "sm_shares": [share], "runtime": "onnxruntime"}
    (alone,) = rows_of(BRANCHES, tmp_path, streams=1, **options)
    (together,) = rows_of(BRANCHES, tmp_path, streams=4, **options)
    for column in ("sm_util_max_pct", "sm_util_mean_pct"):
        assert getattr(together, column) <= share * (1 + 1e-9)
    for column in ("occupancy_max_pct", "occupancy_mean_pct", "dram_util_mean_pct", "l2_util_mean_pct"):
        assert getattr(together, column) <= 100
    # Every branch fills its SMs alone, so that side by side they gain no more than the ends of waves.
    assert together.gpu_ms == pytest.approx(alone.gpu_ms, rel=0.1)
    assert together.gpu_ms <= together.latency_ms <= alone.latency_ms
    assert together.latency_low_ms <= together.latency_ms <= together.latency_high_ms


def test_a_scattered_selection_leaves_the_cache_little_by_little(tmp_path: Path) -> None:
    batches = list(range(4, 129, 4))
    rows = rows_of(SHIFT, tmp_path, gpus=["L40S"], batch_sizes=batches, dtype="fp16")
    rises = [more.gpu_ms - less.gpu_ms for less, more in pairwise(rows)]
    assert min(rises) > 0
    assert max(rises) < 3 * sum(rises) / len(rises)
    # In the end every element opens three rows of the memory.
    assert rows[-1].gpu_ms / rows[0].gpu_ms > 5 * batches[-1] / batches[0]


@pytest.mark.parametrize("gpu", ["L40S", "L4", "V100", "H100-SXM"])
def test_a_vector_takes_no_longer_than_a_matrix_of_two(tmp_path: Path, gpu: str) -> None:
    one, two = rows_of(CLASSIFIER, tmp_path, gpus=[gpu], batch_sizes=[1, 2])
    assert one.gpu_ms <= two.gpu_ms


def test_a_row_that_needs_less_than_a_smaller_batch_says_why(tmp_path: Path) -> None:
    path = write_resnet50(tmp_path)
    rows = estimate_rows([path], gpus=["V100"], batch_sizes=range(8, 24)).rows
    falls = 0
    for less, more in pairwise(rows):
        fell = more.mreq_bytes < less.mreq_bytes
        assert (f"less memory than batch {less.batch_size}" in more.warnings) == fell
        faster = more.latency_ms < less.latency_ms * (1 - 1e-6)
        assert (f"faster than batch {less.batch_size}" in more.warnings) == faster
        falls += fell
        # What the model itself needs never falls.
        assert more.activations_bytes >= less.activations_bytes
    assert falls
