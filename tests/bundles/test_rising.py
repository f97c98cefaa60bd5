"""A product of fewer rows takes no longer, on GPUs whose chip was not measured; measured chips are not argued with."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.bundles import bundle as bundles
from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Array, Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue

CATALOGUE = gpu_catalogue()


def product(m: int, n: int, k: int, precision: Precision) -> Kernel:
    size = 4 if precision is Precision.FP32 else 2
    return Kernel(
        name="p", family=Family.LINEAR, variant="linear", precision=precision, flops=2 * m * n * k,
        read_bytes=size * (m * k + n * k), write_bytes=size * m * n, weight_bytes=size * n * k, rows=m * n, inputs=2,
        element_bytes=size, gemm=GemmShape(batch=1, m=m, n=n, k=k),
    )  # fmt: skip


def excess(gpu: str, precision: Precision) -> Array:
    """Return the time of 200 products over that of twice as many rows."""
    rng = np.random.default_rng(3)
    sizes = []
    for _ in range(200):
        n, k = (64 * int(rng.integers(1, 64)) for _ in range(2))
        sizes.append((2 ** int(rng.integers(1, 11)), n, k))
    few = KernelTable.from_kernels([product(*size, precision) for size in sizes])
    twice = KernelTable.from_kernels([product(2 * m, n, k, precision) for m, n, k in sizes])
    predict = load_bundle().predict
    spec = CATALOGUE.spec(gpu)
    return np.asarray(predict(few, spec).duration_us / predict(twice, spec).duration_us)


@pytest.mark.parametrize(
    ("gpu", "precision"), [("L4", Precision.FP32), ("RTX-4090", Precision.FP32), ("RTX-3080", Precision.FP16)]
)
def test_fewer_rows_take_no_longer_on_a_chip_that_was_not_measured(
    gpu: str, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = excess(gpu, precision)
    assert (held > 1.001).mean() < 0.08 and held.max() < 1.06
    monkeypatch.setattr(bundles, "no_slower_than_more_rows", lambda model, table, gpu, duration: duration)
    free = excess(gpu, precision)
    assert (free > 1.001).mean() > 2 * (held > 1.001).mean() and free.max() > held.max()


def test_measured_chips_keep_what_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a measured chip was argued with")

    monkeypatch.setattr(bundles, "no_slower_than_more_rows", refuse)
    assert excess("A100-SXM4-80GB", Precision.FP32).min() > 0


def test_an_estimate_does_not_depend_on_what_else_is_asked() -> None:
    spec = CATALOGUE.spec("L4")
    kernels = [product(2**m, 1024, 4096, Precision.FP32) for m in range(1, 9)]
    together = load_bundle().predict(KernelTable.from_kernels(kernels), spec).duration_us
    alone = [
        load_bundle().predict(KernelTable.from_kernels([kernel]), spec).duration_us[0] for kernel in kernels
    ]
    assert together == pytest.approx(alone, rel=1e-9)
