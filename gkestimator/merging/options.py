"""What the caller of a merge may say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gkestimator.errors import UsageError

__all__ = ["PRICES", "MergeOptions"]

PRICES = ("latency", "gpu")
MOST_MODELS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """Options of a merge.

    ``omega``: least similarity of two weights that are merged (USHER: 0.4). ``tolerance``: weights are equal when
    they differ by at most this. ``tau_ms``: operators start together when their starts differ by at most this on
    their models' timelines (infinity: any may be merged). ``group_distance``: DBSCAN's epsilon on the share of the
    smaller operator graph that the larger one lacks, by graph edit distance, in [0, 1]
    (:attr:`gkestimator.merging.grouping.EditDistance.changed`; of 28 exported graphs, members of a family are at most
    0.041 apart, others at least 0.088; ResNet-18 and -34, the smallest of theirs, 0.076). ``price``: what must fall,
    ``latency`` (host included) or ``gpu`` (time of the kernels); ``always`` merges without asking the price. ``gpu``,
    ``runtime``, ``dtype``, ``bundles``, ``gpu_specs``:
    as in an estimate. ``batch_sizes``: for all models or one each (None: as exported, symbolic 1); they are for the
    price and the timeline alone. ``dims`` fix symbolic dimensions in the merged file too.
    """

    omega: float = 0.4
    tolerance: float = 1e-7
    tau_ms: float = 0.001
    group_distance: float = 0.08
    price: str = "latency"
    always: bool = False
    gpu: str = "V100"
    runtime: str = "onnxruntime"
    dtype: str = "auto"
    batch_sizes: tuple[int, ...] | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    bundles: tuple[Path, ...] = ()
    gpu_specs: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        """Check types and numbers. Raises UsageError."""
        for name in ("gpu", "runtime", "dtype"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"{name} is {getattr(self, name)!r}: expected a name")
        if not isinstance(self.always, bool):
            raise UsageError(f"always is {self.always!r}: expected True or False")
        if not isinstance(self.dims, Mapping) or not all(isinstance(name, str) for name in self.dims):
            raise UsageError(f"dims is {self.dims!r}: expected numbers by the names of dimensions")
        _number("omega", self.omega, low=0.0, high=1.0, open_low=True)
        _number("tolerance", self.tolerance, low=0.0, high=1.0)
        _number("tau_ms", self.tau_ms, low=0.0, high=math.inf)
        _number("group_distance", self.group_distance, low=0.0, high=1.0)
        if self.price not in PRICES:
            raise UsageError(f"price is {self.price!r}: expected {' or '.join(PRICES)}")


def _number(name: str, value: float, *, low: float, high: float, open_low: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise UsageError(f"{name} is {value!r}: expected a number")
    if not (low < value if open_low else low <= value) or value > high:
        raise UsageError(
            f"{name} is {value}: expected a number {'above' if open_low else 'from'} {low:g} to {high:g}"
        )
