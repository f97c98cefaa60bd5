"""A regressor may limit its intervals: whole networks say more of it than the kernels of few chips."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.dtypes import Precision
from gkestimator.core.errors import BundleError
from gkestimator.core.kernels import ConvShape, Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue

DEFAULT = Path(__file__).parents[2] / "models" / "default"
NAME = "conv_half_unseen"


def convolution() -> KernelTable:
    elements = 64 * 128 * 28 * 28
    shape = ConvShape(
        batch=64, in_channels=128, out_channels=128, groups=1, in_h=28, in_w=28, out_h=28, out_w=28,
        kernel_h=3, kernel_w=3, stride_h=1, stride_w=1, dilation_h=1, dilation_w=1,
    )  # fmt: skip
    kernel = Kernel(
        name="conv",
        family=Family.CONV,
        variant="conv",
        precision=Precision.FP16,
        flops=2 * elements * 1152,
        read_bytes=2 * elements,
        write_bytes=2 * elements,
        element_bytes=2.0,
        inputs=2,
        gemm=GemmShape(batch=1, m=64 * 784, n=128, k=1152),
        conv=shape,
    )
    return KernelTable.from_kernels([kernel])


def half_width(folder: Path) -> float:
    gpu = gpu_catalogue().resolve("RTX-3090")[0]
    predictions = load_bundle(folder).predict(convolution(), gpu)
    return float(np.log(predictions.high_us / predictions.duration_us)[0])


def stated(folder: Path, widest: object) -> Path:
    shutil.copytree(DEFAULT, folder)
    path = folder / "quantiles.json"
    quantiles = json.loads(path.read_text(encoding="utf-8"))
    quantiles[NAME]["widest"] = widest
    path.write_text(json.dumps(quantiles), encoding="utf-8")
    return folder


def test_no_interval_is_wider_than_stated(tmp_path: Path) -> None:
    assert half_width(stated(tmp_path / "narrow", 0.1)) == pytest.approx(0.1)
    assert half_width(stated(tmp_path / "wide", 5.0)) > 0.2


def test_a_width_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BundleError, match=r"conv_half_unseen.widest: found -1.0, expected a number from 0 to 5"
    ):
        load_bundle(stated(tmp_path / "wrong", -1.0))
