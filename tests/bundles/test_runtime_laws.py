"""Laws of runtimes that compile models: at work in a bundle, by version, and as files from strangers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from gkestimator.bundles.bundle import Bundle, load_bundle, stack_bundles
from gkestimator.bundles.measured import MeasuredContents, MeasuredGpu
from gkestimator.bundles.models import chip_of
from gkestimator.bundles.runtime_laws import RuntimeLaw, laws_document
from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import BundleError, UsageError
from gkestimator.core.kernels import Family, GemmShape, Kernel, KernelTable
from gkestimator.estimation import estimate_rows
from gkestimator.hardware.gpus import gpu_catalogue

DEFAULT = Path(__file__).parents[2] / "models" / "default"
A100 = gpu_catalogue().resolve("A100-SXM4-40GB")[0]
PRODUCT = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[2048, 2048] x, float[2048, 2048] a) => (float[2048, 2048] y) {
      y = MatMul (x, a)
    }"""
LAW = RuntimeLaw(
    factors={"linear": {"fp16": 0.5, "int8": 0.25}, "attention": {"fp16": 2.0}},
    added_us=3.0,
    cycles_per_score=0.0,
    longest=384,
    half_width=0.3,
    widest=5.0,
    versions={"8.2": {"fp16": 1.5}, "8.6": {}, "10.0": {"int8": 1.1}, "10.8": {}},
)


def kernel(family: Family = Family.LINEAR, precision: Precision = Precision.FP16, m: int = 512) -> Kernel:
    size = 512
    batch = 1
    if family is Family.ATTENTION:
        size, batch = 64, 12
    return Kernel(
        name="k",
        family=family,
        variant=f"{family}.tensorrt",
        precision=precision,
        flops=2 * batch * m * 512 * size,
        read_bytes=2 * batch * 2 * m * size,
        write_bytes=2 * m * size,
        rows=m,
        element_bytes=2.0,
        inputs=2,
        gemm=GemmShape(batch=batch, m=m, n=512, k=size),
    )


KERNELS = (
    kernel(),
    kernel(precision=Precision.INT8),
    kernel(precision=Precision.FP32),
    kernel(Family.ATTENTION),
    kernel(Family.SOFTMAX),
)


def durations(bundle: Bundle, *kernels: Kernel) -> np.ndarray:
    return bundle.predict(KernelTable.from_kernels(kernels or KERNELS), A100).duration_us


def with_law(law: RuntimeLaw = LAW) -> Bundle:
    return replace(load_bundle(), laws={"tensorrt": law})


def test_a_law_holds_for_its_families_and_precisions_under_its_runtime() -> None:
    alone = durations(load_bundle())
    # The attention has 512 queries, those of the models had 384.
    expected = [alone[0] / 2 + 3, alone[1] / 4 + 3, alone[2], alone[3] * 2**0.75 + 3, alone[4]]
    assert durations(with_law().under("tensorrt")) == pytest.approx(expected)
    assert durations(with_law().under("torch")) == pytest.approx(alone)


def test_onnxruntime_with_tensorrt_lowers_as_tensorrt_does_and_has_its_law() -> None:
    assert durations(with_law().under("onnxruntime_tensorrt")) == pytest.approx(
        durations(with_law().under("tensorrt"))
    )


def test_the_error_of_a_law_widens_intervals_of_its_kernels_alone() -> None:
    table = KernelTable.from_kernels(KERNELS)
    alone = load_bundle().predict(table, A100)
    under = with_law().under("tensorrt").predict(table, A100)
    before = np.log(alone.high_us / alone.duration_us)
    after = np.log(under.high_us / under.duration_us)
    assert after[[0, 1, 3]] == pytest.approx(np.hypot(before, 0.3)[[0, 1, 3]])
    assert after[[2, 4]] == pytest.approx(before[[2, 4]])


def test_a_version_multiplies_what_it_has_factors_for() -> None:
    newest = durations(with_law().under("tensorrt"))
    older = durations(with_law().under("tensorrt", "8.2"))
    assert older / newest == pytest.approx([1.5, 1.0, 1.0, 1.5, 1.0])


def test_what_a_version_changes_on_a_measured_gpu_goes_before_what_gpus_agree_on() -> None:
    measured = {"8.0": {"8.2": {"int8": 1.2}, "8.6": {"fp16": 1.4}}, "7.5": {"10.8": {"fp16": 9.0}}}
    bundle = with_law(replace(LAW, measured_versions=measured))
    newest = durations(bundle.under("tensorrt"))
    for version, expected in (
        ("8.2", [1, 1.2, 1, 1, 1]),
        ("8.6", [1.4, 1, 1, 1.4, 1]),
        ("10.0", [1, 1.1, 1, 1, 1]),
    ):
        assert durations(bundle.under("tensorrt", version)) / newest == pytest.approx(expected)


def test_a_law_bounds_how_wide_intervals_of_its_kernels_are() -> None:
    table = KernelTable.from_kernels(KERNELS)
    under = with_law(replace(LAW, widest=0.2)).under("tensorrt").predict(table, A100)
    width = np.log(under.high_us / under.duration_us)
    assert width[[1, 3]] == pytest.approx([0.2, 0.2])
    assert width[4] > 0.2


def test_bf16_runs_at_the_factor_of_fp16() -> None:
    bf16 = kernel(precision=Precision.BF16)
    alone = durations(load_bundle(), bf16)
    assert durations(with_law().under("tensorrt"), bf16) == pytest.approx(alone / 2 + 3)


def test_an_attention_whose_blocks_take_whole_heads_takes_the_time_of_one_at_least() -> None:
    law = replace(LAW, cycles_per_score=10.0)
    heads = durations(with_law(law).under("tensorrt"), kernel(Family.ATTENTION, m=512))
    # Ten cycles for each score of 384 queries and keys, the longest that models had.
    assert heads == pytest.approx([10 * 384 * 384 / A100.boost_clock_mhz + 3])


@pytest.mark.parametrize(
    ("asked", "taken", "remark"),
    [
        ("8.6", "8.6", ""),
        ("8.6.1.6", "8.6", ""),
        ("8", "8.6", ""),
        ("10", "10.8", ""),
        ("8.4", "8.2", "runtime version 8.4 is not among the known ones: taken as 8.2"),
        ("9.3", "8.6", "runtime version 9.3 is not among the known ones: taken as 8.6"),
    ],
)
def test_versions_are_found_by_their_first_numbers_or_the_earlier_one(
    asked: str, taken: str, remark: str
) -> None:
    law = LAW.at(asked)
    assert (law.version, law.remark) == (taken, remark)


@pytest.mark.parametrize("asked", ["7.1", "10.9", "11", "8.x", "", "newest", "-8.6"])
def test_versions_outside_the_known_ones_are_refused_with_their_names(asked: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_law().under("tensorrt", asked)
    assert str(caught.value) == f"runtime_version is {asked!r}; known are 8.2, 8.6, 10.0, 10.8"


def test_what_corrects_a_measured_gpu_stands_on_the_law() -> None:
    nothing = MeasuredContents(corrections=(), lowering=None, occupancy=None, shift=None)
    measured = MeasuredGpu(
        bundle="mine", base=with_law(), gpus=(A100.name,), chip=chip_of(A100), read=lambda: nothing
    )
    bundle = replace(with_law(), measured=(measured,))
    for version in (None, "8.2"):
        expected = durations(with_law().under("tensorrt", version))
        assert durations(bundle.under("tensorrt", version)) == pytest.approx(expected)


def test_a_version_of_a_runtime_without_a_law_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing is known of versions of torch"):
        with_law().under("torch", "2.4")


def test_the_first_bundle_of_a_stack_that_has_a_law_gives_it() -> None:
    other = replace(LAW, added_us=50.0)
    assert stack_bundles([with_law(), with_law(other)]).laws == {"tensorrt": LAW}
    without = replace(load_bundle(), laws={})
    assert stack_bundles([without, with_law(other)]).laws["tensorrt"] == other


def folder_with(tmp_path: Path, change: Callable[[dict[str, Any]], None] = lambda document: None) -> Path:
    folder = tmp_path / "bundle"
    shutil.copytree(DEFAULT, folder)
    document = json.loads(json.dumps(laws_document({"tensorrt": LAW})))
    change(document)
    (folder / "runtimes.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def test_a_law_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert load_bundle(folder_with(tmp_path)).laws == {"tensorrt": LAW}


def test_a_bundle_without_laws_estimates_single_kernels(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    (folder / "runtimes.json").unlink()
    bundle = load_bundle(folder)
    assert bundle.laws == {}
    assert durations(bundle.under("tensorrt")) == pytest.approx(durations(bundle))


def law_of(document: dict[str, Any]) -> dict[str, Any]:
    return document["laws"]["tensorrt"]


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "version": (lambda d: d.update(schema_version=9), "schema_version: found 9, expected 1"),
    "no laws": (lambda d: d.pop("laws"), "laws: found nothing"),
    "law": (lambda d: d["laws"].update(tensorrt=[1]), "laws.tensorrt: found a list of 1, expected an object"),
    "family": (lambda d: law_of(d)["factors"].update(liner={"fp16": 1}), "factors: found 'liner'"),
    "factor": (lambda d: law_of(d)["factors"].update(linear={"fp16": 0}), "linear.fp16: found"),
    "truth": (lambda d: law_of(d)["factors"].update(linear={"fp16": True}), "linear.fp16: found"),
    "added": (
        lambda d: law_of(d).update(added_us="3"),
        "added_us: found '3', expected a number from -100 to 100",
    ),
    "width": (
        lambda d: law_of(d).pop("half_width"),
        "half_width: found nothing, expected a number from 0 to 5",
    ),
    "widest": (lambda d: law_of(d).update(widest=-1), "widest: found -1, expected a number from 0 to 5"),
    "chips": (lambda d: law_of(d).pop("measured_versions"), "measured_versions: found nothing"),
    "chip": (
        lambda d: law_of(d).update(measured_versions={"8.0": {"8.6": {"fp16": 0}}}),
        "measured_versions.8.0.8.6.fp16: found 0",
    ),
    "queries": (lambda d: law_of(d).update(longest=0), "longest: found 0, expected a whole number"),
    "versions": (lambda d: law_of(d).update(versions={}), "versions: found a table of 0"),
    "name": (lambda d: law_of(d)["versions"].update({"8.6.1": {}}), "not '8.6.1'"),
    "word": (lambda d: law_of(d)["versions"].update({"next": {}}), "not 'next'"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_law_is_one_line_that_names_file_and_field(tmp_path: Path, name: str) -> None:
    change, expected = DAMAGE[name]
    folder = folder_with(tmp_path, change)
    with pytest.raises(BundleError) as caught:
        load_bundle(folder)
    assert str(caught.value).startswith(f"damaged bundle: {folder / 'runtimes.json'}, ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_estimates_take_the_version_and_say_where_it_is_another(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(PRODUCT).SerializeToString())
    options = {"gpus": ["A100-SXM4-40GB"], "runtime": "tensorrt", "dtype": "fp16", "bundles": [folder]}
    newest, older = (estimate_rows([path], runtime_version=version, **options) for version in (None, "8.4"))
    said = "runtime version 8.4 is not among the known ones: taken as 8.2"
    assert said in older.messages and said not in newest.messages
    assert older.rows[0].gpu_ms > 1.2 * newest.rows[0].gpu_ms
