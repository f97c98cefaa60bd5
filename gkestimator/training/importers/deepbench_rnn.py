"""Import DeepBench's recurrent layers (baidu-research/DeepBench; file ``rnn_forward``): LSTM and GRU, one layer, one
direction, forward, cuDNN 7 era.

The times are those of the recurrence alone: cuDNN was told to skip the products of the inputs (``CUDNN_SKIP_INPUT``,
which adds an input as wide as the state to every gate). The times leave no other reading: an FP32 LSTM 4,096 wide at
batch 128 takes 1,247 us a step on a V100, in which the recurrent products alone reach 0.88 of the peak; with as many
operations again for the inputs it would be 1.76 of it.

Milliseconds per call over many calls in a row: launches overlap execution, and what the host needs to issue the steps
is inside where it is longer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.core.kernels import Array, KernelTable
from gkestimator.operators.recurrent import GATES, cell_flops
from gkestimator.training.importers.files import read_columns, translated
from gkestimator.training.rows import TrainingRows, kernel_table

_GPUS = {
    "V100-SXM2-16GB": "V100-SXM2-16GB",
    "P100-PCIE-16GB": "P100-PCIE-16GB",
    "GTX-1080-TI": "GTX-1080-TI",
    # These two have files for training alone: gkestimator/training/gpus.
    "M40": "M40",
    "TITAN-X-MAXWELL": "TITAN-X-MAXWELL",
}
_CELLS = {"lstm": "LSTM", "gru": "GRU"}
_SIZES = {"fp32": 4.0, "fp16": 2.0}


def recurrent_rows(path: Path) -> TrainingRows:
    """Return the rows of ``rnn_forward.parquet``, one kernel of family ``rnn`` each."""
    sizes = ("hidden", "batch", "steps")
    data = read_columns(path, ("gpu", "cell", "precision", "latency_ms", *sizes))
    gpu = translated(path, "gpu", data["gpu"], _GPUS)
    cell = translated(path, "cell", data["cell"], _CELLS)
    translated(path, "precision", data["precision"], {name: name for name in _SIZES})
    size = np.array([_SIZES[name] for name in data["precision"]])
    hidden, batch, steps = (data[name].astype(np.float64) for name in sizes)
    return TrainingRows.make(
        recurrence_table(cell, data["precision"], hidden=hidden, batch=batch, steps=steps, size=size),
        gpu=gpu,
        measured_us=data["latency_ms"].astype(float) * 1e3,
        source="deepbench",
    )


def recurrence_table(
    cell: Array, precision: Array, *, hidden: Array, batch: Array, steps: Array, size: Array
) -> KernelTable:
    """Return recurrences of one direction with biases and states, as the operators LSTM, GRU and RNN are lowered.

    ``cell``: those operators' names; ``size``: bytes of an element.
    """
    gates = np.array([GATES[name] for name in cell], dtype=np.float64)
    step_flops = []
    for name, rows, wide in zip(cell.tolist(), batch.tolist(), hidden.tolist(), strict=True):
        step = cell_flops(name, batch=int(rows), hidden=int(wide), inputs=0, bias=True, peepholes=False)
        step_flops.append(step)
    states = np.where(cell == "LSTM", 2.0, 1.0) * batch * hidden
    weights = (gates * hidden * hidden + 2 * gates * hidden) * size
    return kernel_table(
        family="rnn",
        variant=np.array([name.lower() for name in cell], dtype=object),
        precision=precision,
        columns={
            "flops": steps * np.array(step_flops, dtype=np.float64),
            "read_bytes": weights + (steps * batch * gates * hidden + states) * size,
            "write_bytes": (steps * batch * hidden + states) * size,
            "weight_bytes": weights,
            "rows": steps,
            "cols": batch * hidden,
            "element_bytes": size,
            "inputs": 2.0,
            "gemm_batch": steps,
            "gemm_m": batch,
            "gemm_n": gates * hidden,
            "gemm_k": hidden,
        },
    )
