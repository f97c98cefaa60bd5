"""What estimates of each shipped GPU rest on, and that intervals are wider where it is less."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from gkestimator.bundles.basis import BOARD, BORROWED, CHIP, GROUPS, OTHER, Basis, basis_of, basis_text
from gkestimator.bundles.bundle import load_bundle
from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family, GemmShape, Kernel, KernelTable
from gkestimator.hardware.gpus import gpu_catalogue

CATALOGUE = gpu_catalogue()
BUNDLE = load_bundle()
KINDS = (BOARD, CHIP, OTHER, BORROWED)
# Boards that are sold with another amount or rate of a chip's memory, or another clock, and none else.
SIBLINGS = {
    ("A100-PCIE-80GB", "fp32 products"): "A100-PCIE-40GB",
    ("V100-SXM2-32GB", "fp32 convolutions"): "V100-PCIE-32GB",
    ("GTX-1080", "fp32 products"): "P4",
    ("P40", "fp32 products"): "GTX-1080-TI",
    ("TITAN-XP", "fp32 products"): "GTX-1080-TI",
    ("TITAN-V", "fp32 products"): "V100-PCIE-32GB",
    ("RTX-A6000", "fp16 products"): "A40",
    ("H800-SXM", "fp16 products"): "H100-SXM",
}
# A cut chip, one of half the size, and one of other matrix units are no siblings of a chip that was measured.
STRANGERS = [
    ("A30", "fp16 products"),
    ("A10", "fp16 products"),
    ("RTX-3080", "fp16 products"),
    ("RTX-3090-TI", "fp16 products"),
    ("H20", "fp16 products"),
    ("H800-PCIE", "fp32 products"),
    ("H100-NVL", "fp32 products"),
    ("L20", "fp32 products"),
    ("RTX-4080", "fp32 products"),
    ("RTX-5070", "fp16 products"),
    ("RTX-5080", "fp16 products"),
]


def bases(name: str) -> dict[str, Basis]:
    return {basis.group: basis for basis in basis_of(BUNDLE, CATALOGUE.spec(name), CATALOGUE)}


def product(m: int, n: int, k: int, precision: Precision) -> Kernel:
    size = 4 if precision is Precision.FP32 else 2
    return Kernel(
        name="p", family=Family.LINEAR, variant="linear", precision=precision, flops=2 * m * n * k,
        read_bytes=size * (m * k + n * k), write_bytes=size * m * n, weight_bytes=size * n * k, rows=m * n, inputs=2,
        element_bytes=size, gemm=GemmShape(batch=1, m=m, n=n, k=k),
    )  # fmt: skip


def half_width(name: str, precision: Precision) -> float:
    """Return the mean 90 % half-width of log(time) of products of many sizes."""
    sizes = [(2**a, 2**b, 2**c) for a in (9, 10, 12) for b in (10, 12) for c in (10, 12)]
    table = KernelTable.from_kernels([product(*size, precision) for size in sizes])
    predicted = BUNDLE.predict(table, CATALOGUE.spec(name))
    return float(np.mean(np.log(predicted.high_us / predicted.duration_us)))


@pytest.mark.parametrize(("name", "group"), SIBLINGS)
def test_a_board_of_a_measured_chip_rests_on_the_board_that_was_measured(name: str, group: str) -> None:
    basis = bases(name)[group]
    assert basis.kind == CHIP and SIBLINGS[name, group] in basis.boards and name not in basis.boards


@pytest.mark.parametrize(("name", "group"), STRANGERS)
def test_a_board_of_another_chip_is_not_taken_for_a_measured_one(name: str, group: str) -> None:
    assert bases(name)[group].kind == OTHER


@pytest.mark.parametrize("name", CATALOGUE.complete_names())
def test_every_board_says_what_each_group_rests_on(name: str) -> None:
    known = bases(name)
    assert list(known) == [group for group, _, _ in GROUPS]
    text = basis_text(tuple(known.values()))
    assert max(map(len, text.splitlines())) <= 100
    for basis in known.values():
        assert basis.kind in KINDS and basis.group in " ".join(text.split())
        assert (basis.kind == BOARD) == (basis.boards == (name,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "precision"), [("fp32 products", Precision.FP32), ("fp16 products", Precision.FP16)]
)
def test_intervals_are_wider_where_less_was_measured(group: str, precision: Precision) -> None:
    widths: dict[str, list[float]] = {}
    for name in CATALOGUE.complete_names():
        if f"peak_flops_per_s.{precision}" in CATALOGUE.spec(name).unknown:
            continue
        widths.setdefault(bases(name)[group].kind, []).append(half_width(name, precision))
    assert median(widths[OTHER]) > 1.2 * median(widths[BOARD])
    for (name, of_group), measured in SIBLINGS.items():
        if of_group == group:
            assert half_width(name, precision) >= 0.85 * half_width(measured, precision)
