"""Estimates on a part of the SMs: waves are counted anew, more SMs never cost time, and what does not need them does not
feel them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from golden_models import golden_models
from onnx import TensorProto, helper

from gkestimator.core.kernels import Family, GemmShape, Kernel, KernelTable, Precision
from gkestimator.estimation import estimate_rows
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.analytical import analytical_duration_us
from gkestimator.kernel_models.roofline import confined
from gkestimator.tables import Requirement

SHARES = tuple(float(s) for s in range(10, 101, 10))
NAMES = ("resnet50", "encoder_s128", "mobilenet_v2", "light_vgg19", "light_inception_v1")
V100 = gpu_catalogue().spec("V100-SXM2-16GB")
Curve = Mapping[float, Requirement]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found = golden_models(tmp_path_factory.mktemp("golden"))
    return [p for p in found if p.stem in NAMES]


def curves(models: list[Path], gpus: list[str], batches: list[int]) -> dict[tuple[str, str, int], Curve]:
    rows = estimate_rows(models, gpus=gpus, batch_sizes=batches, sm_shares=SHARES).rows
    found: dict[tuple[str, str, int], dict[float, Requirement]] = defaultdict(dict)
    for row in rows:
        found[row.model, row.gpu, row.batch_size or 1][row.sm_share_pct] = row
    return dict(found)


@pytest.fixture(scope="module")
def golden(models: list[Path]) -> dict[tuple[str, str, int], Curve]:
    return curves(models, ["V100", "A100-SXM4-80GB", "T4"], [1, 8, 64])


@pytest.mark.slow
def test_more_sms_never_cost_time_and_never_gain_more_than_waves_can(
    golden: dict[tuple[str, str, int], Curve],
) -> None:
    assert len(golden) >= 9
    for (_, gpu, _), curve in golden.items():
        sms = {s: confined(gpu_catalogue().spec(gpu), s).sms for s in SHARES}
        for few, many in pairwise(SHARES):
            ratio = curve[few].latency_ms / curve[many].latency_ms
            assert ratio >= 1 - 1e-9
            # With k times the SMs, ceil(blocks / SMs) falls by less than 2 k (one wave of two is the extreme).
            assert ratio <= 2 * sms[many] / sms[few]
            assert curve[few].latency_ms <= curve[100.0].latency_ms * 100 / few * (1 + 1e-9)


@pytest.mark.slow
def test_utilisation_is_of_the_whole_gpu(golden: dict[tuple[str, str, int], Curve]) -> None:
    for curve in golden.values():
        for share, row in curve.items():
            assert 0 < row.sm_util_mean_pct <= row.sm_util_max_pct <= share + 1e-9
            assert row.mreq_bytes == curve[100.0].mreq_bytes
    busy = golden["resnet50", "V100-SXM2-16GB", 64]
    assert busy[20.0].sm_util_mean_pct > 19.5  # nearly all of its part, all the time
    # Half the time at the same traffic is twice the bandwidth.
    low, high = busy[20.0], busy[60.0]
    assert high.dram_util_mean_pct / low.dram_util_mean_pct == pytest.approx(
        low.latency_ms / high.latency_ms, rel=0.1
    )


@pytest.mark.slow
def test_a_part_is_less_certain_than_the_whole(golden: dict[tuple[str, str, int], Curve]) -> None:
    curve = golden["resnet50", "V100-SXM2-16GB", 64]
    widths = [curve[s].latency_high_ms / curve[s].latency_low_ms for s in (50.0, 100.0)]
    assert widths[0] > widths[1]
    assert curve[50.0].coverage_pct == 0


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_where_the_host_binds_throughout_a_share_costs_nothing(models: list[Path], runtime: str) -> None:
    # A host of a millisecond a call outlasts every kernel but the last, which nothing is issued behind.
    paths = [path for path in models if path.stem in ("mobilenet_v2", "encoder_s128", "light_inception_v1")]
    rows = estimate_rows(
        paths, gpus=["V100"], batch_sizes=[1], sm_shares=[25, 50, 100], runtime=runtime, host_overhead_us=1000
    ).rows
    for path in paths:
        quarter, half, whole = (row for row in rows if row.model == path.stem)
        assert quarter.host_bound and half.host_bound and whole.host_bound
        assert half.latency_ms == pytest.approx(whole.latency_ms, rel=1e-3)
        assert quarter.latency_ms == pytest.approx(whole.latency_ms, rel=1e-3)


@pytest.mark.slow
def test_a_model_that_waits_for_its_host_does_not_feel_its_share(
    golden: dict[tuple[str, str, int], Curve],
) -> None:
    curve = golden["mobilenet_v2", "V100-SXM2-16GB", 1]
    assert curve[100.0].host_bound and curve[50.0].host_bound
    assert curve[50.0].latency_ms == pytest.approx(curve[100.0].latency_ms, rel=0.01)
    # The same graph at a batch that fills the GPU does.
    full = golden["mobilenet_v2", "V100-SXM2-16GB", 64]
    assert not full[50.0].host_bound
    assert full[50.0].latency_ms > 1.2 * full[100.0].latency_ms


def test_what_the_memory_bounds_needs_no_more_sms_than_draw_its_bandwidth(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x0"], ["x1"], name="r"),
        helper.make_node("Sigmoid", ["x1"], ["y"], name="s"),
    ]
    shape = [1, 1 << 26]
    graph = helper.make_graph(
        nodes,
        "stream",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    path = tmp_path / "stream.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    rows = estimate_rows([path], gpus=["V100"], sm_shares=[10, 20, 50, 80, 100], host_overhead_us=0.0).rows
    tenth, fifth, half, most, whole = (r.latency_ms for r in rows)
    assert half == pytest.approx(whole, rel=0.02)
    assert most == pytest.approx(whole, rel=0.02)
    assert fifth > 1.5 * whole
    assert tenth == pytest.approx(2 * fifth, rel=0.05)


def test_waves_are_counted_on_the_sms_of_the_share() -> None:
    # Products of `tiles` 128 x 128 tiles whose k is too short to split: on 80 SMs, 80 tiles are one wave and 81 need another
    # (or smaller tiles, which cost too); on half of the SMs that is so at 40 and 41.
    def duration(tiles: int, share: float) -> float:
        m, n, k = 128 * tiles, 128, 384
        kernel = Kernel(
            name="p", family=Family.LINEAR, variant="linear", precision=Precision.FP32, flops=2 * m * n * k,
            read_bytes=4 * (m * k + n * k), write_bytes=4 * m * n, weight_bytes=4 * n * k, rows=m * n, inputs=2,
            element_bytes=4, gemm=GemmShape(batch=1, m=m, n=n, k=k),
        )  # fmt: skip
        table = KernelTable.from_kernels([kernel])
        return float(analytical_duration_us(table, confined(V100, share))[0])

    assert duration(81, 100) > 1.3 * duration(80, 100)
    assert duration(41, 50) > 1.3 * duration(40, 50)
    assert duration(41, 75) < 1.1 * duration(40, 75)  # one wave on 60 SMs either way
    assert duration(61, 75) > 1.3 * duration(60, 75)
    assert duration(40, 50) < 1.1 * duration(40, 75)  # SMs beyond the tiles have nothing to do


@pytest.mark.slow
def test_curves_of_small_batches_bend_earlier(models: list[Path]) -> None:
    # gpulet (USENIX ATC 2022), figure 3: throughput over the share of an RTX 2080 Ti saturates early at small batches
    # and rises to the whole GPU at large ones.
    found = curves([p for p in models if p.stem in ("resnet50", "light_vgg19", "light_inception_v1")],
                   ["RTX-2080-TI"], [1, 8, 32])  # fmt: skip

    def knee(curve: Curve) -> float:
        return min(s for s in SHARES if curve[100.0].latency_ms / curve[s].latency_ms >= 0.95)

    for name in {model for model, _, _ in found}:
        knees = [knee(found[name, "RTX-2080-TI", b]) for b in (1, 8, 32)]
        assert knees == sorted(knees)
        assert knees[-1] >= 80
    assert min(knee(found[name, "RTX-2080-TI", 1]) for name, _, _ in found) <= 60
