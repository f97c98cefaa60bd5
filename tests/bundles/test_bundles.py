"""The default bundle, stacks of bundles, and folders from strangers."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gkestimator.bundles.bundle import Bundle, load_bundle, stack_bundles
from gkestimator.bundles.files import LARGEST_BUNDLE_BYTES, write_bundle
from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import BundleError, OutputError
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.kernel_models.attainable import attainable_us

CATALOGUE = gpu_catalogue()
V100 = CATALOGUE.resolve("V100-SXM2-16GB")[0]
H200 = CATALOGUE.resolve("H200")[0]
L4 = CATALOGUE.resolve("L4")[0]
DEFAULT = Path(str(__import__("importlib.resources").resources.files("gkestimator.models") / "default"))


def product(
    m: int, n: int, k: int, family: Family = Family.LINEAR, precision: Precision = Precision.FP32
) -> Kernel:
    size = 4 if precision is Precision.FP32 else 2
    return Kernel(
        name="p", family=family, variant=family.value, precision=precision, flops=2 * m * n * k,
        read_bytes=size * (m * k + n * k), write_bytes=size * m * n, weight_bytes=size * n * k, rows=m * n, inputs=2,
        element_bytes=size, gemm=GemmShape(batch=1, m=m, n=n, k=k),
    )  # fmt: skip


def stream(family: Family, elements: int, variant: str = "relu") -> Kernel:
    return Kernel(
        name="s", family=family, variant=variant, precision=Precision.FP32, flops=elements, read_bytes=4 * elements,
        write_bytes=4 * elements, rows=elements,
    )  # fmt: skip


def predict(*kernels: Kernel, gpu: object = V100, share: float = 100.0) -> object:
    return load_bundle().predict(KernelTable.from_kernels(kernels), gpu, sm_share_pct=share)  # type: ignore[arg-type]


def test_a_large_product_runs_near_the_peak_and_a_stream_near_the_bandwidth() -> None:
    result = predict(product(4096, 4096, 4096), stream(Family.ELEMENTWISE, 1 << 26))
    assert result.trained.all() and result.in_range.all()
    assert 0.75 < result.compute_us[0] / result.duration_us[0] <= 1
    assert 80 < result.dram_util_pct[1] < 97


def test_what_no_regressor_covers_is_analytical_and_says_so() -> None:
    result = predict(stream(Family.POOLING, 1 << 20), stream(Family.HOST, 100), product(64, 64, 64))
    assert result.trained.tolist() == [False, False, True]
    assert result.high_us[0] / result.duration_us[0] == pytest.approx(2)
    assert result.duration_us[1] == result.low_us[1] == result.high_us[1] == 0


def test_unknown_gpus_and_shares_are_out_of_range_and_less_certain() -> None:
    kernel = product(2048, 2048, 2048)
    known, unknown, part = predict(kernel), predict(kernel, gpu=L4), predict(kernel, share=50)
    assert known.in_range[0] and not unknown.in_range[0] and not part.in_range[0]
    assert unknown.high_us[0] / unknown.duration_us[0] > known.high_us[0] / known.duration_us[0]
    assert 1.5 * known.duration_us[0] < part.duration_us[0] < 3 * known.duration_us[0]
    assert part.sm_util_pct[0] <= 50


@pytest.mark.parametrize("gpu", [V100, L4, H200], ids=lambda gpu: gpu.name)
def test_no_part_of_a_gpu_is_faster_than_a_larger_one(gpu: GpuSpec) -> None:
    kernels = [product(m, n, 64) for m in (1, 32, 170, 1024, 8192) for n in (16, 256, 2048)]
    kernels += [
        stream(f, n) for f in (Family.ELEMENTWISE, Family.SOFTMAX, Family.POOLING) for n in (1 << 8, 1 << 24)
    ]
    times = [predict(*kernels, gpu=gpu, share=share).duration_us for share in (1, 5, 10, 25, 50, 75, 100)]
    assert (np.diff(times, axis=0) <= 1e-9).all()
    assert (times[0] > 5 * times[-1]).any() and (times[0] < 1.5 * times[-1]).any()


def test_the_same_chip_with_other_memory_is_known() -> None:
    assert predict(product(4096, 4096, 4096, precision=Precision.BF16), gpu=H200).in_range[0]
    assert not predict(product(4096, 4096, 4096, precision=Precision.TF32), gpu=H200).in_range[0]


def test_a_sibling_board_is_less_certain_where_its_memory_differs() -> None:
    """The H200 is the H100's chip with 1.43 times its bandwidth: nobody measured how much of that reaches a kernel."""
    h100 = CATALOGUE.resolve("H100-SXM")[0]
    thin = product(8, 8192, 8192, precision=Precision.BF16)
    square = product(8192, 8192, 8192, precision=Precision.BF16)
    model = load_bundle().covering("linear", "bf16", H200)
    assert model is not None and model.knows_chip(H200)
    assert model.other_bandwidth(h100) == 0
    assert model.other_bandwidth(H200) == pytest.approx(np.log(4.8e12 / 3.35e12), abs=0.02)
    measured, sibling = predict(thin, square, gpu=h100), predict(thin, square, gpu=H200)
    measured_width = np.log(measured.high_us / measured.duration_us)
    sibling_width = np.log(sibling.high_us / sibling.duration_us)
    assert sibling_width[0] > measured_width[0] + 0.1  # reads weights: bound by memory
    assert sibling_width[1] < measured_width[1] + 0.1  # a large product is bound by arithmetic
    assert model.other_bandwidth(L4) == 0  # not this chip: intervals of chips left out hold there


def test_a_shape_beyond_training_and_an_unmeasured_operator_are_out_of_range() -> None:
    result = predict(product(10**7, 3, 10**6), stream(Family.ELEMENTWISE, 1 << 24, "my_op"))
    assert result.trained.all() and not result.in_range.any()


def test_more_work_takes_longer_and_intervals_hold_the_estimate() -> None:
    sizes = [256, 512, 1024, 2048, 4096, 8192]
    result = predict(*(product(s, s, s) for s in sizes))
    assert (np.diff(result.duration_us) > 0).all()
    assert (result.low_us < result.duration_us).all() and (result.duration_us < result.high_us).all()
    for name in ("occupancy_pct", "sm_util_pct", "dram_util_pct", "l2_util_pct"):
        values = getattr(result, name)
        assert ((values > 0) & (values <= 100)).all(), name


def test_predictions_do_not_depend_on_neighbours() -> None:
    kernels = [
        product(100, 200, 300),
        stream(Family.ELEMENTWISE, 10**6),
        stream(Family.COPY, 10**6),
        product(1, 4096, 1000),
    ]
    whole = predict(*kernels)
    for i, kernel in enumerate(kernels):
        assert predict(kernel).duration_us[0] == pytest.approx(whole.duration_us[i], rel=1e-12)


def convolution(side: int, channels: int, *, kernel: int = 1, groups: int = 1) -> Kernel:
    """An FP32 convolution of one square image, as many channels out as in."""
    m, k = side * side, channels // groups * kernel * kernel
    size = channels * m * 4
    return Kernel(
        name="c", family=Family.CONV, variant="conv", precision=Precision.FP32, flops=2 * m * channels * k,
        read_bytes=size + 4 * channels * k, write_bytes=size, weight_bytes=4 * channels * k, rows=channels * m,
        gemm=GemmShape(batch=groups, m=m, n=channels // groups, k=k),
        conv=ConvShape(
            batch=1, in_channels=channels, out_channels=channels, groups=groups, in_h=side, in_w=side, out_h=side,
            out_w=side, kernel_h=kernel, kernel_w=kernel, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1,
        ),
    )  # fmt: skip


def test_a_grouped_convolution_pays_for_its_call_up_to_turing_alone() -> None:
    grouped = convolution(28, 256, kernel=3, groups=32)
    a100 = CATALOGUE.resolve("A100-PCIE-40GB")[0]
    assert predict(grouped).duration_us[0] > 150 > 3 * predict(grouped, gpu=a100).duration_us[0]


def test_a_short_convolution_takes_nearly_what_it_attains_at_least() -> None:
    kernels = [convolution(side, channels) for side in (6, 13) for channels in (16, 64, 256)]
    table = KernelTable.from_kernels(kernels)
    for name in ("V100-SXM2-16GB", "A100-PCIE-80GB", "T4"):
        gpu = CATALOGUE.resolve(name)[0]
        assert (attainable_us(table, gpu) < 50).all()
        assert (predict(*kernels, gpu=gpu).duration_us >= 0.9 * attainable_us(table, gpu) - 1e-9).all()


def test_half_precision_rows_make_no_chip_known_in_fp32() -> None:
    for name in ("H100-SXM", "A40"):
        answers = load_bundle().covering("elementwise", "fp32", CATALOGUE.resolve(name)[0])
        assert answers is not None and answers.scope == "unseen"
    assert load_bundle().covering("elementwise", "fp16", CATALOGUE.resolve("A40")[0]).scope == "seen"  # type: ignore[union-attr]


def test_a_frameworks_kernels_are_answered_by_a_model_of_their_own() -> None:
    h100, h20, b200 = (CATALOGUE.resolve(name)[0] for name in ("H100-SXM", "H20", "B200"))
    expected = {
        (h100, "scaled.vllm"): "gemm_fp8_vllm",
        (h100, "scaled.sglang.blocks"): "gemm_fp8_blocks",
        (h100, "scaled"): "gemm_fp8",
        (h100, "fused"): "gemm_fp8",
        # Only the library's products were measured on an H20, and nothing on a B200.
        (h20, "scaled.vllm"): "gemm_fp8",
        (b200, "scaled.vllm"): "gemm_fp8_unseen",
    }
    for (gpu, variant), name in expected.items():
        model = load_bundle().covering("linear", "fp8", gpu, variant)
        assert model is not None and model.name == name, (gpu.name, variant)


def test_fewer_bits_read_less_and_weights_alone_do_not_calculate_faster() -> None:
    def product(rows: int, precision: Precision, weight_bytes: float, variant: str = "weight_only") -> Kernel:
        n = k = 8192
        weight = int(n * k * weight_bytes)
        return Kernel(
            name="p", family=Family.LINEAR, variant=variant, precision=precision, flops=2 * rows * n * k,
            read_bytes=2 * rows * k + weight, write_bytes=2 * rows * n, weight_bytes=weight, rows=rows, cols=n,
            element_bytes=2.0, inputs=2, gemm=GemmShape(batch=1, m=rows, n=n, k=k),
        )  # fmt: skip

    gpu = CATALOGUE.resolve("A100-SXM4-80GB")[0]
    half, eight, four = (Precision.FP16, 2.0, "matmul"), (Precision.W8A16, 1.0), (Precision.W4A16, 0.5)
    alone = predict(product(1, *half), product(1, *eight), product(1, *four), gpu=gpu)
    assert alone.duration_us[1] < 0.7 * alone.duration_us[0]
    assert alone.duration_us[2] < 0.9 * alone.duration_us[1]
    assert alone.in_range.tolist() == [True, True, False], "nobody measured weights of 4 bits"
    many = predict(product(4096, *half), product(4096, *eight), gpu=gpu)
    assert many.duration_us[1] > 0.85 * many.duration_us[0]


def test_an_empty_table() -> None:
    assert len(predict().duration_us) == 0


def test_the_default_bundle_is_small_and_its_card_complete() -> None:
    assert sum(p.stat().st_size for p in DEFAULT.iterdir()) <= LARGEST_BUNDLE_BYTES
    card = load_bundle().card
    assert card["licence"] and card["date"] and card["versions"]["xgboost"] and card["trained_on"]
    for model in card["models"]:
        assert model["error_pct"] and model["per_gpu_pct"] and 85 <= model["coverage_pct"] <= 95


def test_the_first_bundle_that_knows_the_chip_answers() -> None:
    default = load_bundle()
    linear = next(m for m in default.models if m.name == "linear")
    first = Bundle(name="mine", models=(linear,))
    both = stack_bundles([first, default])
    assert both.name == "mine+default"
    assert both.covering("linear", "fp32", V100) is first.models[0]
    assert both.covering("bmm", "fp32", V100) is next(m for m in default.models if m.name == "bmm")
    assert both.covering("pooling", "fp32", V100) is None
    with pytest.raises(BundleError, match="no bundles"):
        stack_bundles([])


def edit(name: str, change: Callable[[dict], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        change(document)
        (folder / name).write_text(json.dumps(document))

    return apply


def replace(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(data) and None


def archive(members: dict[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return stream.getvalue()


def npy(array: np.ndarray, *, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickled)
    return stream.getvalue()


class Bomb:
    def __reduce__(self) -> tuple:
        return (pytest.fail, ("a pickle in a bundle was executed",))


HOSTILE = {
    "missing card": lambda f: (f / "card.json").unlink(),
    "missing arrays": lambda f: (f / "linear.npz").unlink(),
    "folder as file": lambda f: ((f / "stack.json").unlink(), (f / "stack.json").mkdir()),
    "json noise": replace("stack.json", bytes(range(256))),
    "json list": replace("stack.json", b"[]"),
    "json depth": replace("stack.json", b"[" * 100_000),
    "json NaN": replace("quantiles.json", b'{"linear": {"factors": [NaN, 1, 1]}}'),
    "json size": replace("ranges.json", b" " * 3_000_000),
    "version": edit("stack.json", lambda d: d.update(schema_version=99)),
    "no models": edit("stack.json", lambda d: d.update(models=[])),
    "path in a name": edit("stack.json", lambda d: d["models"][0].update(name="../../etc/passwd")),
    "unknown features": edit("stack.json", lambda d: d["models"][0].update(features="quantum")),
    "other features": edit("stack.json", lambda d: d["models"][0]["feature_names"].__setitem__(0, "log_moon")),
    "fewer features": edit("stack.json", lambda d: d["models"][0]["feature_names"].pop()),
    "twice": edit("stack.json", lambda d: d["models"].append(d["models"][0])),
    "pairs": edit("stack.json", lambda d: d["models"][0].update(covers=[["linear"]])),
    "range length": edit("ranges.json", lambda d: d["linear"]["low"].pop()),
    "range text": edit("ranges.json", lambda d: d["linear"]["high"].__setitem__(0, "1")),
    "chips": edit("ranges.json", lambda d: d["linear"].update(chips=[[7, 0]])),
    "negative width": edit("quantiles.json", lambda d: d["linear"].update(factors=[-1, 0, 0])),
    "bundle name": edit("card.json", lambda d: d.update(name="$(reboot)")),
    "arrays noise": replace("linear.npz", b"PK\x03\x04" + bytes(range(256))),
    "pickle": replace("linear.npz", archive({"weights.npy": npy(np.array([Bomb()], dtype=object), pickled=True)})),
    "zip bomb": replace("linear.npz", archive({"weights.npy": bytes(70_000_000)})),
    "false shape": replace("linear.npz", archive({"weights.npy": npy(np.zeros(5)).replace(b"(5,)", b"(9,)")})),
    "huge shape": replace(
        "linear.npz", archive({"weights.npy": npy(np.zeros(5)).replace(b"(5,), }             ", b"(99999999999999,), } ")})
    ),
    "too many arrays": replace("linear.npz", archive({f"a{i}.npy": npy(np.zeros(1)) for i in range(70)})),
    "text array": replace("linear.npz", archive({"weights.npy": npy(np.array(["a"] * 5))})),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_a_hostile_folder_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(DEFAULT, folder)
    HOSTILE[case](folder)
    with pytest.raises(BundleError) as caught:
        load_bundle(folder).predict(KernelTable.from_kernels([product(64, 64, 64)]), V100)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_no_folder() -> None:
    with pytest.raises(BundleError, match="no such bundle folder"):
        load_bundle("/nowhere/at/all")


@pytest.mark.slow
def test_writing_replaces_a_bundle_but_nothing_else(tmp_path: Path) -> None:
    documents = {"stack": {"schema_version": 1}, "card": {"name": "x"}}
    write_bundle(tmp_path / "b", documents, {"m": {"a": np.zeros(3)}})
    write_bundle(tmp_path / "b", documents, {"n": {"a": np.zeros(3)}})
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["card.json", "n.npz", "stack.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("years of work")
    with pytest.raises(OutputError, match="no bundle"):
        write_bundle(tmp_path / "thesis", documents, {})
    with pytest.raises(OutputError, match="at most"):
        noise = np.random.default_rng(0).normal(size=3_000_000)
        write_bundle(tmp_path / "large", documents, {"m": {"a": noise}})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "thesis"]
