"""Operands that are broadcast are read again where the L2 does not hold them."""

from __future__ import annotations

import numpy as np
import pytest

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Tensor
from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.traffic import broadcast_misses, least_traffic_us
from gkestimator.operators.builders import elementwise_kernel

GPU = gpu_catalogue().resolve("V100-PCIE-32GB")[0]  # 6 MiB of L2


def tensor(name: str, *shape: int) -> Tensor:
    return Tensor(name=name, dtype=DType.FLOAT, shape=shape, storage=name)


@pytest.mark.parametrize(
    ("operand", "result", "again", "window"),
    [
        ((64, 64), (2, 8, 64, 64), 15 * 64 * 64 * 4, 3 * 64 * 64 * 4),
        ((2, 1, 64, 64), (2, 8, 64, 64), 7 * 2 * 64 * 64 * 4, 3 * 64 * 64 * 4),
        ((2, 8, 1, 1), (2, 8, 64, 64), 0, 0),  # a factor of each channel stays where it is
        ((8, 1, 1), (2, 8, 64, 64), 8 * 4, (8 + 2 * 8 * 64 * 64) * 4),
        ((2, 8, 64, 64), (2, 8, 64, 64), 0, 0),
    ],
)
def test_what_is_read_again(
    operand: tuple[int, ...], result: tuple[int, ...], again: int, window: int
) -> None:
    kernel = elementwise_kernel(
        "add", (tensor("x", *result), tensor("m", *operand)), (tensor("y", *result),), flops_per_element=1
    )
    assert (kernel.again_bytes, kernel.again_window) == (again, window)


def masked(tokens: int) -> KernelTable:
    scores = (1, 16, tokens, tokens)
    kernel = elementwise_kernel(
        "add",
        (tensor("x", *scores), tensor("m", tokens, tokens)),
        (tensor("y", *scores),),
        flops_per_element=1,
    )
    return KernelTable.from_kernels([kernel])


def test_a_mask_beyond_the_l2_is_read_for_every_head() -> None:
    assert broadcast_misses(masked(256), GPU)[0] == 0.0
    assert least_traffic_us(masked(256), GPU)[0] == 0.0
    large = masked(2048)
    assert broadcast_misses(large, GPU)[0] == 1.0
    once_us = large.total_bytes[0] / GPU.dram_bytes_per_s * 1e6
    assert least_traffic_us(large, GPU)[0] / once_us == pytest.approx(48 / 33 * 0.9 / 0.87, rel=0.02)
    shares = [broadcast_misses(masked(n), GPU)[0] for n in range(256, 2049, 64)]
    assert (np.diff(shares) >= 0).all()
