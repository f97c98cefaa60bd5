"""TensorRT's kernels: importers of single convolutions and engines, which plans see them, and which regressor answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gkestimator.bundles.bundle import Bundle
from gkestimator.bundles.models import BundleModel, chip_of
from gkestimator.bundles.runtime_laws import RuntimeLaw
from gkestimator.core.errors import TableError
from gkestimator.core.kernels import KernelTable, is_listed
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.kernel_models.analytical import analytical_half_width
from gkestimator.kernel_models.anchors import ANCHORS
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.kernel_models.least import least_us
from gkestimator.kernel_models.roofline import roofline
from gkestimator.training.importers import load_source
from gkestimator.training.importers.tensorrt_convolutions import EVENTS_US
from gkestimator.training.importers.tensorrt_layers import events_us
from gkestimator.training.plan import PLANS
from gkestimator.training.recipe import fit_bundle
from gkestimator.training.rows import TrainingRows, conv_table, layer_hash, shape_hash

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

V100 = "V100-SXM2-16GB"


def spec(name: str) -> GpuSpec:
    return gpu_catalogue().resolve(name)[0]


def single(folder: Path, **changed: list[object]) -> Path:
    """Write a dense layer without and with a sum, and a depthwise one, as Alibaba publishes them."""
    columns: dict[str, list[object]] = {
        "gpu": [V100] * 3,
        "precision": ["fp16", "int8", "fp32"],
        "batch": [32, 1, 1],
        "in_channels": [64, 64, 96],
        "out_channels": [128, 128, 96],
        "h": [56, 56, 5],
        "w": [56, 56, 5],
        "kernel": [3, 3, 7],
        "stride": [2, 2, 1],
        "groups": [1, 1, 96],
        "depthwise": [False, False, True],
        "elementwise_fused": [False, True, False],
        "latency_ms": [0.2, 0.02, 0.0070],
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns | changed), folder / "tensorrt_conv_v100.parquet")
    return folder


def test_single_convolutions(tmp_path: Path) -> None:
    name, (dense, depthwise) = load_source(single(tmp_path))
    assert name == "alibaba"
    assert dense.table.variant.tolist() == ["conv.tensorrt", "conv.sum.tensorrt"]
    assert dense.table.precision.tolist() == ["fp16", "int8"]
    columns = dense.table.columns
    result = 128 * 28 * 28
    assert columns["gemm_m"].tolist() == [32 * 28 * 28, 28 * 28]
    assert columns["write_bytes"].tolist() == [2 * 32 * result, result]
    weights = 64 * 128 * 9
    # The sum reads an image of the result's size besides.
    assert columns["read_bytes"][1] == 64 * 56 * 56 + weights + result
    assert columns["read_bytes"][0] == 2 * (32 * 64 * 56 * 56 + weights)
    assert columns["inputs"].tolist() == [2, 3]
    assert depthwise.table.family.tolist() == ["depthwise"]
    assert depthwise.table.columns["gemm_batch"][0] == 96
    assert depthwise.table.columns["gemm_k"][0] == 49


def test_profiling_events_are_no_gpu_time(tmp_path: Path) -> None:
    _, (dense, depthwise) = load_source(single(tmp_path))
    assert dense.duration_us[0] == pytest.approx(200 - EVENTS_US)
    # The shortest of all is a kernel of 1.5 us, and known: nothing hides below the events.
    assert depthwise.duration_us[0] == pytest.approx(1.5)


def test_failed_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="latency_ms is not positive"):
        load_source(single(tmp_path, latency_ms=[0.2, -1.0, 0.1]))
    with pytest.raises(TableError, match="gpu is 'A100'"):
        load_source(single(tmp_path, gpu=["A100"] * 3))


def engine(folder: Path, **changed: list[object]) -> Path:
    """Write an engine of 100 us: a reformat, four convolutions, one that is a product, one with a pooling, a no-op."""
    half = "Channel major FP16 format where channel % 8 == 0"
    wide = "Channel major FP32 format"
    byte = "Thirty-two wide channel vectorized row major Int8 format"
    cask = "CaskConvolution"
    layers = [
        ("Reformat", None, None, "8x3x32x32", wide, half, None, None),
        (cask, "Half", "h16816", "8x64x28x28", half, half, 1, 3),
        (cask, "Float", "sm80_f32f32_tf32f32_f32", "8x64x28x28;8x64x28x28", wide + ";" + wide, wide, 1, 3),
        (cask, "Int8", "imma", "8x64x28x28", byte, wide, 1, 3),
        ("CudaDepthwiseConvolution", "Int8", None, "8x64x28x28", byte, byte, 64, 3),
        (cask, "Float", "ffma", "8x64x3x3", wide, wide, 1, 3),
        ("ConvActPool", "Int8", None, "8x64x28x28", byte, byte, 1, 3),
        ("NoOp", None, None, "8x64x28x28", half, half, None, None),
    ]
    kind, weights, tactic, dims, inputs, outputs, groups, kernel = zip(*layers, strict=True)
    sizes = dict.fromkeys(("kernel_h", "kernel_w"), kernel)
    sizes |= {
        name: [None if k is None else 1 for k in kernel]
        for name in ("stride_h", "stride_w", "pad_h", "pad_w")
    }
    columns: dict[str, object] = {
        "engine": ["e"] * len(layers),
        "gpu": ["RTX-3090"] * len(layers),
        "layer_type": kind,
        "weights_type": weights,
        "tactic": tactic,
        "input_dims": dims,
        "input_formats": inputs,
        "output_formats": outputs,
        "groups": groups,
        "out_maps": [None if k is None else 64 for k in kernel],
        "average_ms": [0.02, 0.03, 0.02, 0.02, 0.01, 0.01, 0.018, 0.0],
        "engine_median_ms": [0.1] * len(layers),
        **sizes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns | changed), folder / "tensorrt_layers.parquet")
    return folder


def test_layers_of_engines(tmp_path: Path) -> None:
    name, (dense, depthwise) = load_source(engine(tmp_path))
    assert name == "tensorrt"
    assert dense.table.precision.tolist() == ["fp16", "tf32", "int8"]
    assert dense.table.variant.tolist() == ["conv.tensorrt", "conv.sum.tensorrt", "conv.tensorrt"]
    # Eight layers, of which the no-op runs nothing: 128 us together, in an engine of 100.
    np.testing.assert_allclose(dense.gap_us, 4.0)
    np.testing.assert_allclose(dense.duration_us, [26, 16, 16])
    result = 8 * 64 * 28 * 28
    assert dense.table.columns["write_bytes"].tolist() == [2 * result, 4 * result, 4 * result]
    assert dense.table.columns["read_bytes"].tolist()[1] == 4 * (2 * result + 64 * 64 * 9)
    assert depthwise.table.precision.tolist() == ["int8"]
    assert depthwise.duration_us[0] == pytest.approx(6)


def test_an_engine_that_explains_its_layers_has_no_events() -> None:
    names = np.array(["a", "a", "b"], dtype=object)
    assert events_us(names, np.array([10.0, 0.0, 5.0]), np.array([20.0, 20.0, 3.0])).tolist() == [0, 0, 2]


def test_unreadable_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="input_dims is '8x64'"):
        load_source(engine(tmp_path, input_dims=["8x64"] * 8))
    with pytest.raises(TableError, match="format 'NHWC'"):
        load_source(engine(tmp_path, output_formats=["NHWC"] * 8))


def dense(
    variant: str = "conv.tensorrt",
    precision: str = "fp16",
    *,
    n: float = 8,
    k: float = 128,
    c: float | None = None,
    r: float = 3,
    stride: float = 1,
    family: str = "conv",
) -> KernelTable:
    one = np.ones(1)
    if c is None:
        c = k
    return conv_table(
        n=n * one, c=c * one, h=14 * one, w=14 * one, k=k * one, r=r * one, s=r * one, pad_h=r // 2 * one, pad_w=r // 2 * one,
        stride_h=stride * one, stride_w=stride * one, groups=k if family == "depthwise" else 1.0, family=family,
        variant=variant, precision=precision, size={"fp32": 4.0, "fp16": 2.0}.get(precision, 1.0),
    )  # fmt: skip


def rows_of(table: KernelTable, source: str) -> TrainingRows:
    return TrainingRows.make(
        table, gpu=np.array([V100], dtype=object), measured_us=np.array([50.0]), source=source
    )


def test_only_plans_of_tensorrt_learn_from_its_kernels() -> None:
    ours = rows_of(dense(precision="fp32"), "alibaba")
    others = rows_of(dense("conv", "fp32"), "neusight")
    learning = [name for name, plan in PLANS.items() if plan.mask(ours).any()]
    assert learning == ["tensorrt_conv"]
    assert {"conv", "conv_unseen"} == {name for name, plan in PLANS.items() if plan.mask(others).any()}


def test_single_convolutions_do_not_teach_other_gpus() -> None:
    unseen = PLANS["tensorrt_conv_unseen"]
    assert not unseen.mask(rows_of(dense(), "alibaba")).any()
    assert unseen.mask(rows_of(dense(), "tensorrt_layers")).all()


def test_an_ending_stands_for_every_variant_that_ends_so() -> None:
    assert is_listed("conv.sum.tensorrt", (".tensorrt",))
    assert not is_listed("scaled.tensorrt_llm", (".tensorrt",))
    assert not is_listed("conv", (".tensorrt", "linear"))
    assert is_listed("linear", (".tensorrt", "linear"))


def model(
    name: str, family: str, gpu: str, *, scope: str = "seen", variants: tuple[str, ...] = ()
) -> BundleModel:
    return BundleModel(
        name=name, features="tensor", feature_names=(), trains=frozenset({(family, "fp16")}),
        covers=frozenset({(family, "fp16")}), low=np.zeros(0), high=np.zeros(0), chips=(chip_of(spec(gpu)),),
        factors=(), beyond=1.0, path=Path("none"), scope=scope, variants=frozenset(variants),
    )  # fmt: skip


def test_kernels_of_tensorrt_are_answered_by_its_own_regressors() -> None:
    ours = (".tensorrt",)
    bundle = Bundle(
        name="b",
        models=(
            model("cudnn", "conv", "T4"),
            model("cudnn_unseen", "conv", "T4", scope="unseen"),
            model("ours", "conv", V100, variants=ours),
            model("ours_unseen", "conv", "RTX-3090", scope="unseen", variants=ours),
            model("ours_depthwise", "depthwise", V100, variants=ours),
        ),
    )

    def answers(family: str, gpu: str, variant: str) -> str | None:
        chosen = bundle.covering(family, "fp16", spec(gpu), variant)
        return chosen.name if chosen else None

    assert answers("conv", V100, "conv.sum.tensorrt") == "ours"
    # cuDNN was measured on a T4, TensorRT was not: its kernels are still not cuDNN's.
    assert answers("conv", "T4", "conv.tensorrt") == "ours_unseen"
    assert answers("conv", "T4", "conv") == "cudnn"
    assert answers("conv", V100, "conv") == "cudnn_unseen"
    assert answers("depthwise", V100, "conv.tensorrt") == "ours_depthwise"
    assert answers("depthwise", V100, "conv") is None
    assert answers("depthwise", "T4", "conv.tensorrt") is None


def test_a_layer_is_one_at_any_batch_precision_and_ending() -> None:
    alike = [dense(n=1), dense(n=128, precision="int8"), dense("conv.sum.tensorrt")]
    assert len({layer_hash(table)[0] for table in alike}) == 1
    assert len({shape_hash(table)[0] for table in alike}) == 3
    assert layer_hash(dense(k=64))[0] != layer_hash(dense())[0]


def anchor_us(table: KernelTable, gpu: str) -> float:
    return float(ANCHORS["tensorrt_convolution"](table, spec(gpu))[0])


def test_half_precision_is_summed_in_half_precision_on_geforce_boards() -> None:
    large = dense(n=256, k=512)
    table = dense("channels_last", n=256, k=512)
    cudnn = float(ANCHORS["half_convolution"](table, spec("RTX-3090"))[0])
    assert 0.5 < anchor_us(large, "RTX-3090") / cudnn < 0.7
    assert anchor_us(large, "A100-PCIE-80GB") == pytest.approx(
        float(ANCHORS["half_convolution"](table, spec("A100-PCIE-80GB"))[0])
    )


def test_a_deep_small_layer_waits_for_its_loads_before_ampere() -> None:
    """0.34 us for each 32 channels of a 1x1 kernel's depth on a V100 (Alibaba), at any depth."""
    shallow = dense(n=1, c=1024, r=1)
    deep = dense(n=1, c=2048, r=1)
    step = (anchor_us(deep, V100) - anchor_us(shallow, V100)) / 32
    assert 0.2 < step < 0.4
    later = (anchor_us(deep, "A100-PCIE-80GB") - anchor_us(shallow, "A100-PCIE-80GB")) / 32
    assert later < step / 2


def test_integers_run_on_the_units_that_a_gpu_has_for_them() -> None:
    large = {"n": 256.0, "k": 512.0}
    dp4a = anchor_us(dense(precision="int8", **large), V100)
    assert dp4a > 1.5 * anchor_us(dense(precision="fp16", **large), V100)
    assert anchor_us(dense(precision="int8", **large), "T4") < anchor_us(
        dense(precision="fp16", **large), "T4"
    )


def test_larger_batches_and_better_gpus() -> None:
    for precision in ("fp32", "fp16", "int8"):
        times = [anchor_us(dense(n=n, precision=precision), "T4") for n in (1, 4, 16, 64)]
        assert times == sorted(times)
        by_gpu = [
            anchor_us(dense(n=64, precision=precision), gpu) for gpu in ("H100-SXM", "A100-SXM4-80GB", "T4")
        ]
        assert by_gpu == sorted(by_gpu)


def test_steps_longer_than_the_filter_do_not_touch_every_pixel() -> None:
    gpu = spec(V100)
    table = dense(n=4096, k=64, r=1, stride=2)
    least = least_us(table, gpu, roofline(table, gpu))[0]
    columns = table.columns
    # A quarter of the pixels (and, of no account, of the filters) is read.
    images = columns["read_bytes"][0] / 4 - gpu.l2_bytes + columns["write_bytes"][0] - gpu.l2_bytes
    assert least == pytest.approx(images / gpu.dram_bytes_per_s * 1e6)


def test_a_depthwise_kernel_of_tensorrt_is_not_known_to_stream() -> None:
    known = analytical_half_width(dense("conv", family="depthwise"))[0]
    assert analytical_half_width(dense(family="depthwise"))[0] > 5 * known


def test_features_tell_a_sum_apart() -> None:
    plain, names = feature_matrix("tensorrt_conv", dense(), spec(V100))
    table = dense("conv.sum.tensorrt")
    table.columns["inputs"][:] = 3
    added, _ = feature_matrix("tensorrt_conv", table, spec(V100))
    changed = [name for name, a, b in zip(names, plain[0], added[0], strict=True) if a != b]
    assert changed == ["residuals"]
    assert len(set(names)) == len(names)


def measured(gpu: str, source: str, slowdown: float, count: int = 200) -> TrainingRows:
    """Return half-precision layers that take ``slowdown`` times the anchor."""
    rng = np.random.default_rng(0)
    channels = 32.0 * rng.integers(1, 33, count)
    side = rng.integers(4, 57, count).astype(float)
    one = np.ones(count)
    width = rng.choice([1.0, 3.0], count)
    table = conv_table(
        n=rng.choice([1.0, 8.0, 32.0], count), c=channels, h=side, w=side, k=channels, r=width, s=width, pad_h=width // 2,
        pad_w=width // 2, stride_h=one, stride_w=one, variant="conv.tensorrt", precision="fp16", size=2.0,
    )  # fmt: skip
    times = slowdown * ANCHORS["tensorrt_convolution"](table, spec(gpu))
    return TrainingRows.make(table, gpu=np.full(count, gpu, dtype=object), measured_us=times, source=source)


@pytest.mark.slow
def test_copies_of_single_convolutions_do_not_enter_compiled_models() -> None:
    few = {"xgboost": 20, "lightgbm": 20}
    plans = [replace(PLANS[name], estimators=few) for name in ("tensorrt_conv_half", "tensorrt_conv_unseen")]
    rows = [measured(V100, "alibaba", 6.0)]
    rows += [measured(gpu, "tensorrt_layers", 1.0) for gpu in ("A100-PCIE-80GB", "RTX-3090")]
    gpus = {name: spec(name) for name in (V100, "A100-PCIE-80GB", "RTX-3090")}
    bundle = fit_bundle(rows, gpus, plans=plans, geometry=False).bundle
    law = RuntimeLaw(
        factors={},
        added_us=0.0,
        cycles_per_score=0.0,
        longest=1,
        half_width=0.0,
        widest=5.0,
        versions={"10.0": {}},
    )
    table = rows[0].table
    anchor = ANCHORS["tensorrt_convolution"](table, spec(V100))
    alone = bundle.predict(table, spec(V100)).duration_us / anchor
    within = replace(bundle, law=law).predict(table, spec(V100)).duration_us / anchor
    assert np.median(alone) > 4
    assert np.median(within) < 2
    # Elsewhere only engines were measured, so there is nothing to hold.
    other = spec("A100-PCIE-80GB")
    np.testing.assert_array_equal(
        bundle.predict(table, other).duration_us, replace(bundle, law=law).predict(table, other).duration_us
    )
