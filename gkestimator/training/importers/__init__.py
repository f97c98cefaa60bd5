"""Import public measurement formats to training rows, one file each.

A source is a folder of one format, or a Parquet or CSV file in the kernel dataset format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from gkestimator.core.errors import TableError
from gkestimator.training.importers import (
    aiconfigurator,
    deepbench,
    kernel_dataset,
    llmservingsim,
    neusight,
    pipeweave,
    tensorrt_convolutions,
    tensorrt_layers,
    vidur,
)
from gkestimator.training.rows import TrainingRows

__all__ = ["IMPORTERS", "load_source", "source_format"]

Matches = Callable[[Path], bool]
Load = Callable[[Path], list[TrainingRows]]
IMPORTERS: Mapping[str, tuple[Matches, Load]] = MappingProxyType(
    {
        "neusight": (neusight.matches, neusight.load),
        "deepbench": (deepbench.matches, deepbench.load),
        "aiconfigurator": (aiconfigurator.matches, aiconfigurator.load),
        "pipeweave": (pipeweave.matches, pipeweave.load),
        "vidur": (vidur.matches, vidur.load),
        "llmservingsim": (llmservingsim.matches, llmservingsim.load),
        "alibaba": (tensorrt_convolutions.matches, tensorrt_convolutions.load),
        "tensorrt": (tensorrt_layers.matches, tensorrt_layers.load),
        "kernel dataset": (kernel_dataset.matches, kernel_dataset.load),
    }
)


def load_source(path: Path) -> tuple[str, list[TrainingRows]]:
    """Return the format's name and the rows of ``path``.

    Raises TableError if it is missing or in no known format.
    """
    name = source_format(path)
    return name, IMPORTERS[name][1](path)


def source_format(path: Path) -> str:
    """Return the name of the format of ``path``, a key of :data:`IMPORTERS`.

    Raises TableError as :func:`load_source`.
    """
    if not path.exists():
        raise TableError(f"{path}: no such file or folder; expected measurements to train on")
    for name, (matches, _) in IMPORTERS.items():
        if matches(path):
            return name
    folders = ", ".join(name for name in IMPORTERS if name != "kernel dataset")
    raise TableError(
        f"{path}: unknown format; expected a kernel dataset (.parquet or .csv) or a folder of {folders}"
    )
