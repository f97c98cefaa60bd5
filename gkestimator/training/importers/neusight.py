"""NeuSight's operator latencies (Lee et al., ASPLOS 2025; folder ``neusight`` with ``train_*`` and
``larger_*`` Parquet files).

FP32, torch 2.1, milliseconds between two CUDA events around one operator call, so the host's launch is inside:
:mod:`gkestimator.training.importers.launch_gap` says how much, row by row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.core.errors import TableError
from gkestimator.hardware.gpus import gpu_catalogue
from gkestimator.kernel_models.tiles import recorded_tile
from gkestimator.training.importers.files import read_columns
from gkestimator.training.importers.launch_gap import Part, with_launch_gaps
from gkestimator.training.rows import TrainingRows, kernel_table

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
_F = 4.0


def matches(folder: Path) -> bool:
    """True for a folder that holds NeuSight's files."""
    return any((folder / f"train_{name}.parquet").is_file() for name in _FILES)


def load(folder: Path) -> list[TrainingRows]:
    """Rows of every file found. The P4's linear training rows are left out: that card was throttled (three
    times slower than its own larger rows)."""
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
    catalogue = gpu_catalogue()
    names = {str(g) for _, rows, _ in parts for g in np.unique(rows.gpu.astype(str))}
    return with_launch_gaps(parts, {name: catalogue.resolve(name)[0] for name in sorted(names)})


def rows_of(path: Path) -> TrainingRows:
    """Every row of the file ``train_<kind>.parquet`` or ``larger_<kind>.parquet`` as published: none left out, no
    launch gap taken off."""
    prefix, _, kind = path.stem.partition("_")
    if prefix not in ("train", "larger") or kind not in _FILES:
        raise TableError(f"{path}: expected train_ or larger_ and one of {', '.join(_FILES)}")
    return _published(path, kind, prefix)[0]


def _published(path: Path, kind: str, prefix: str) -> tuple[TrainingRows, np.ndarray]:
    data = read_columns(path, _wanted(kind))
    return _rows(kind, prefix, data, path), data["OPName"].astype(str)


def _wanted(kind: str) -> tuple[str, ...]:
    sizes: dict[str, tuple[str, ...]] = {
        "linear": ("B", "M", "N", "K"),
        "bmm": ("B", "M", "N", "K"),
        "conv": ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding"),
    }
    named = ("Kernel Name", "Block x", "Block y", "Block z") if kind in sizes else ()
    grid = ("Grid x", "Grid y", "Grid z")
    return ("OPName", "Latency", "Device", *grid, *named, *sizes.get(kind, ("B", "H")))


def _rows(kind: str, prefix: str, data: dict[str, Any], path: Path) -> TrainingRows:
    unknown = sorted(set(data["Device"]) - set(_GPUS))
    if unknown:
        raise TableError(f"{path}: Device is {unknown[0]!r}; expected one of {', '.join(_GPUS)}")
    number = {
        n: v.astype(np.float64) for n, v in data.items() if n not in ("OPName", "Device", "Kernel Name")
    }
    if kind in ("linear", "bmm"):
        b, m, n, k = number["B"], number["M"], number["N"], number["K"]  # (B, M, N) x (N, K)
        if kind == "linear":
            weight = n * k * _F
        else:
            weight = np.zeros_like(n)
        if kind == "linear":
            right = n * k * _F
        else:
            right = b * n * k * _F
        if kind == "linear":
            b, m = np.ones_like(b), b * m
        table = kernel_table(
            family=kind,
            variant=kind,
            precision="fp32",
            columns={
                "flops": 2 * b * m * n * k,
                "read_bytes": b * m * n * _F + right,
                "write_bytes": b * m * k * _F,
                "weight_bytes": weight,
                "rows": b * m * k,
                "element_bytes": _F,
                "inputs": 2.0,
                "gemm_batch": b,
                "gemm_m": m,
                "gemm_n": k,
                "gemm_k": n,
            },
        )
    elif kind == "conv":
        table = conv_table(
            n=number["B"],
            c=number["Input_Channel"],
            h=number["Input_Size"],
            w=number["Input_Size"],
            k=number["Output_Channel"],
            r=number["Kernel_Szie"],
            s=number["Kernel_Szie"],
            pad_h=number["Padding"],
            pad_w=number["Padding"],
            stride_h=number["Stride"],
            stride_w=number["Stride"],
            precision="fp32",
            size=_F,
        )
    elif kind == "elem":
        operators = data["OPName"].astype(str)
        strange = sorted(set(operators) - set(_ELEMENTWISE))
        if strange:
            raise TableError(f"{path}: OPName is {strange[0]!r}; expected one of {', '.join(_ELEMENTWISE)}")
        inputs = np.array([_ELEMENTWISE[o][1] for o in operators], dtype=np.float64)
        elements = number["B"] * number["H"]
        table = kernel_table(
            family="elementwise",
            variant=np.array([_ELEMENTWISE[o][0] for o in operators], dtype=object),
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
    else:
        rows = number["B"]
        cols = number["H"]
        norm = kind == "ln"
        table = kernel_table(
            family="layernorm" if norm else "softmax",
            variant="layer_norm" if norm else "softmax",
            precision="fp32",
            columns={
                "flops": rows * cols * (6 if norm else 5),
                "read_bytes": rows * cols * _F + (2 * cols * _F if norm else 0),
                "write_bytes": rows * cols * _F,
                "weight_bytes": 2 * cols * _F if norm else np.zeros_like(cols),
                "rows": rows,
                "cols": cols,
                "element_bytes": _F,
            },
        )
    grid = number["Grid x"] * number["Grid y"] * number["Grid z"]
    gpu = np.array([_GPUS[d] for d in data["Device"]], dtype=object)
    classes: np.ndarray | str = ""
    if "Kernel Name" in data:
        threads = (number["Block x"] * number["Block y"] * number["Block z"]).astype(int)
        pairs = list(zip(data["Kernel Name"].astype(str).tolist(), threads.tolist(), strict=True))
        known = {pair: recorded_tile(*pair, convolution=kind == "conv") for pair in set(pairs)}
        classes = np.array([known[pair] for pair in pairs], dtype=object)
    return TrainingRows.make(
        table,
        gpu=gpu,
        measured_us=number["Latency"] * 1e3,
        source=f"neusight/{prefix}",
        grid_blocks=grid,
        kernel_class=classes,
    )


def conv_table(
    *,
    n: np.ndarray,
    c: np.ndarray,
    h: np.ndarray,
    w: np.ndarray,
    k: np.ndarray,
    r: np.ndarray,
    s: np.ndarray,
    pad_h: np.ndarray,
    pad_w: np.ndarray,
    stride_h: np.ndarray,
    stride_w: np.ndarray,
    precision: np.ndarray | str,
    size: np.ndarray | float,
) -> Any:
    """Dense 2-D convolutions of n images (c, h, w) with k filters (c, r, s); ``size`` is bytes per
    element."""
    out_h = np.floor((h + 2 * pad_h - r) / stride_h) + 1
    out_w = np.floor((w + 2 * pad_w - s) / stride_w) + 1
    m = n * out_h * out_w
    depth = c * r * s
    one = np.ones_like(n)
    return kernel_table(
        family="conv",
        variant="conv",
        precision=precision,
        columns={
            "flops": 2 * m * k * depth,
            "read_bytes": (n * c * h * w + k * depth) * size,
            "write_bytes": m * k * size,
            "weight_bytes": k * depth * size,
            "rows": m * k,
            "element_bytes": np.asarray(size * one),
            "inputs": 2.0,
            "gemm_batch": one,
            "gemm_m": m,
            "gemm_n": k,
            "gemm_k": depth,
            "conv_batch": n,
            "conv_in_channels": c,
            "conv_out_channels": k,
            "conv_groups": one,
            "conv_in_h": h,
            "conv_in_w": w,
            "conv_out_h": out_h,
            "conv_out_w": out_w,
            "conv_kernel_h": r,
            "conv_kernel_w": s,
            "conv_stride_h": stride_h,
            "conv_stride_w": stride_w,
            "conv_dilation_h": one,
            "conv_dilation_w": one,
        },
    )
