"""Parts of recurrent layers that are left out together: no precision and no GPU gives another's answer away."""

from __future__ import annotations

import itertools

import numpy as np

from gkestimator.core.kernels import KernelTable
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.training.importers.deepbench_rnn import recurrence_table
from gkestimator.training.rows import TrainingRows
from gkestimator.training.train import training_gpus


def layers(precision: str) -> KernelTable:
    sizes = np.array(list(itertools.product((256.0, 512.0, 1024.0), (1.0, 16.0, 64.0), (25.0, 150.0))))
    count = len(sizes)
    return recurrence_table(
        np.array(["LSTM"] * count, dtype=object),
        np.array([precision] * count, dtype=object),
        hidden=sizes[:, 0],
        batch=sizes[:, 1],
        steps=sizes[:, 2],
        size=np.full(count, 4.0 if precision == "fp32" else 2.0),
    )


def test_a_layer_is_left_out_in_every_precision_and_a_size_with_all_its_steps() -> None:
    from benchmarks.accuracy.rnn import _BY_LAYER, _BY_SIZE, PARTS, layer_parts

    single, half = layers("fp32"), layers("fp16")
    parts = layer_parts(single, _BY_LAYER)
    assert np.array_equal(parts, layer_parts(half, _BY_LAYER))
    assert set(parts.tolist()) <= set(range(PARTS)) and len(set(parts.tolist())) > 2
    by_size = layer_parts(single, _BY_SIZE).reshape(9, 2)
    assert np.array_equal(by_size[:, 0], by_size[:, 1])
    assert not np.array_equal(parts.reshape(9, 2)[:, 0], parts.reshape(9, 2)[:, 1])


def test_boards_of_one_chip_are_left_out_together() -> None:
    from benchmarks.accuracy.rnn import chip_parts

    names = ["M40", "TITAN-X-MAXWELL", "P100-PCIE-16GB", "GTX-1080-TI"]
    catalogue = gpu_catalogue(training_gpus())
    gpus = {name: catalogue.spec(name) for name in names}
    table = layers("fp32").take(np.arange(4))
    rows = TrainingRows.make(
        table, gpu=np.array(names, dtype=object), measured_us=np.ones(4), source="deepbench"
    )
    parts = chip_parts(rows, gpus)
    assert parts[0] == parts[1]
    assert len(set(parts.tolist())) == 3
