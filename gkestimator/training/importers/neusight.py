"""Import NeuSight's operator latencies (Lee et al., ASPLOS 2025; folder ``neusight`` with ``train_*`` and
``larger_*`` Parquet files).

FP32, torch 2.1, milliseconds between two CUDA events around one operator call, so the host's launch is inside:
:mod:`gkestimator.training.importers.launch_gap` says how much, row by row.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gkestimator.core.errors import TableError
from gkestimator.core.kernels import Array, KernelTable
from gkestimator.core.records import NamedValues, Names
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.tiles import recorded_tile
from gkestimator.training.importers.files import read_columns, translated
from gkestimator.training.importers.launch_gap import Part, with_launch_gaps
from gkestimator.training.rows import TrainingRows, conv_table, kernel_table, product_table

_GPUS = {
    "Tesla P4": "P4",
    "Tesla P100-PCIE-16GB": "P100-PCIE-16GB",
    "Tesla T4": "T4",
    "Tesla V100-PCIE-32GB": "V100-PCIE-32GB",
    "NVIDIA A100-PCIE-40GB": "A100-PCIE-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIE-80GB",
}
_FILES = ("linear", "bmm", "conv", "elem", "softmax", "ln")
# Operators with a scalar operand end in u and read one tensor.
_ELEMENTWISE = {
    "add": ("add", 2),
    "mul": ("mul", 2),
    "div": ("div", 2),
    "pow": ("pow", 2),
    "addu": ("add", 1),
    "mulu": ("mul", 1),
    "divu": ("div", 1),
    "powu": ("pow", 1),
    "relu": ("relu", 1),
    "gelu": ("gelu", 1),
    "tanh": ("tanh", 1),
}
_F = 4.0  # bytes of an element: everything was measured in FP32
_GRID = ("Grid x", "Grid y", "Grid z")
_BLOCK = ("Block x", "Block y", "Block z")
# Sizes, as the publisher spells them, of the kinds whose kernels have names; the others have B rows of H elements.
_SIZE_COLUMNS = {
    "linear": ("B", "M", "N", "K"),
    "bmm": ("B", "M", "N", "K"),
    "conv": ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding"),
}


def matches(folder: Path) -> bool:
    """Return whether the folder holds NeuSight's files."""
    return any((folder / f"train_{name}.parquet").is_file() for name in _FILES)


def load(folder: Path) -> list[TrainingRows]:
    """Return the rows of every file found.

    The P4's linear training rows are left out: that card was throttled (three times slower than its own
    larger rows).
    """
    parts: list[Part] = []
    for kind in _FILES:
        for prefix in ("train", "larger"):
            path = folder / f"{prefix}_{kind}.parquet"
            if not path.is_file():
                continue
            rows, operators = _published(path, kind, prefix)
            if kind == "linear" and prefix == "train":
                keep = np.flatnonzero(rows.gpu != "P4")
                rows = rows.take(keep)
                operators = operators[keep]
            parts.append((kind, rows, operators))
    # Gaps are found over train and larger files together, so all parts come first.
    catalogue = gpu_catalogue()
    names = {str(g) for _, rows, _ in parts for g in np.unique(rows.gpu.astype(str))}
    return with_launch_gaps(parts, {name: catalogue.resolve(name)[0] for name in sorted(names)})


def rows_of(path: Path) -> TrainingRows:
    """Return every row of the file ``train_<kind>.parquet`` or ``larger_<kind>.parquet`` as published.

    None is left out, and no launch gap is taken off.
    """
    prefix, _, kind = path.stem.partition("_")
    if prefix not in ("train", "larger") or kind not in _FILES:
        raise TableError(f"{path}: expected train_ or larger_ and one of {', '.join(_FILES)}")
    return _published(path, kind, prefix)[0]


def _published(path: Path, kind: str, prefix: str) -> tuple[TrainingRows, Array]:
    data = read_columns(path, _wanted(kind))
    return _rows(kind, prefix, data, path), data["OPName"].astype(str)


def _wanted(kind: str) -> Names:
    sizes = _SIZE_COLUMNS.get(kind, ("B", "H"))
    named = ("Kernel Name", *_BLOCK) if kind in _SIZE_COLUMNS else ()
    return ("OPName", "Latency", "Device", *_GRID, *named, *sizes)


def _rows(kind: str, prefix: str, data: NamedValues, path: Path) -> TrainingRows:
    gpu = translated(path, "Device", data["Device"], _GPUS)
    words = ("OPName", "Device", "Kernel Name")
    number = {name: column.astype(np.float64) for name, column in data.items() if name not in words}
    if kind in ("linear", "bmm"):
        table = _products(kind, number)
    elif kind == "conv":
        table = _convolutions(number)
    elif kind == "elem":
        table = _elementwise(path, data["OPName"].astype(str), number["B"] * number["H"])
    else:
        table = _along_rows(kind, number["B"], number["H"])
    classes: Array | str = ""
    if "Kernel Name" in data:
        threads = np.prod([number[name] for name in _BLOCK], axis=0).astype(int)
        pairs = list(zip(data["Kernel Name"].astype(str).tolist(), threads.tolist(), strict=True))
        # Some hundred distinct names stand in a hundred thousand rows.
        known = {pair: recorded_tile(*pair, convolution=kind == "conv") for pair in set(pairs)}
        classes = np.array([known[pair] for pair in pairs], dtype=object)
    return TrainingRows.make(
        table,
        gpu=gpu,
        measured_us=number["Latency"] * 1e3,
        source=f"neusight/{prefix}",
        grid_blocks=np.prod([number[name] for name in _GRID], axis=0),
        kernel_class=classes,
    )


def _products(kind: str, number: dict[str, Array]) -> KernelTable:
    """Return the products (B, M, N) x (N, K); a linear layer takes its batch as more rows."""
    batch = number["B"]
    rows = number["M"]
    if kind == "linear":
        rows = batch * rows
        batch = np.ones_like(batch)
    return product_table(kind, "fp32", batch=batch, m=rows, n=number["K"], k=number["N"], size=_F)


def _convolutions(number: dict[str, Array]) -> KernelTable:
    """Return the convolutions: images, filters, strides and paddings are square."""
    side = number["Input_Size"]
    width = number["Kernel_Szie"]
    padding = number["Padding"]
    stride = number["Stride"]
    return conv_table(
        n=number["B"],
        c=number["Input_Channel"],
        h=side,
        w=side,
        k=number["Output_Channel"],
        r=width,
        s=width,
        pad_h=padding,
        pad_w=padding,
        stride_h=stride,
        stride_w=stride,
        precision="fp32",
        size=_F,
    )


def _elementwise(path: Path, operators: Array, elements: Array) -> KernelTable:
    variants = {operator: variant for operator, (variant, _) in _ELEMENTWISE.items()}
    variant = translated(path, "OPName", operators, variants)
    inputs = np.array([_ELEMENTWISE[operator][1] for operator in operators], dtype=np.float64)
    return kernel_table(
        family="elementwise",
        variant=variant,
        precision="fp32",
        columns={
            "flops": elements,
            "read_bytes": inputs * elements * _F,
            "write_bytes": elements * _F,
            "rows": elements,
            "element_bytes": _F,
            "inputs": inputs,
        },
    )


def _along_rows(kind: str, rows: Array, cols: Array) -> KernelTable:
    """Return softmaxes, or layer norms (``ln``) with their scale and offset of ``cols`` elements each."""
    family, variant, flops_each, weights = "softmax", "softmax", 5, 0.0 * cols
    if kind == "ln":
        family, variant, flops_each, weights = "layernorm", "layer_norm", 6, 2 * cols * _F
    return kernel_table(
        family=family,
        variant=variant,
        precision="fp32",
        columns={
            "flops": rows * cols * flops_each,
            "read_bytes": rows * cols * _F + weights,
            "write_bytes": rows * cols * _F,
            "weight_bytes": weights,
            "rows": rows,
            "cols": cols,
            "element_bytes": _F,
        },
    )
