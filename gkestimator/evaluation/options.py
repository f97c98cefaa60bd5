"""Hold what an evaluation may be told: the options of an estimate, and its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gkestimator.core.errors import UsageError
from gkestimator.core.option_kinds import Anything, File, Flag, Many, Pairs, Text
from gkestimator.core.options import REQUIRED, Option, Value, variant
from gkestimator.estimation.request import ASK, SIZE, DimSweeps, EstimateOptions, OnePath, Paths

if TYPE_CHECKING:
    import pandas


@dataclass
class EvaluateRequest(EstimateOptions):
    """Hold what is compared and under which options. ``progress(name, done, total)`` is called per model."""

    truth: Value[str | Path | pandas.DataFrame] = Option(
        REQUIRED,
        Anything("a path or a pandas DataFrame", "str | Path | pandas.DataFrame", metavar="PATH"),
        "Table of measurements (CSV, JSON, Parquet).",
        section=ASK,
    )
    _: KW_ONLY
    models: Paths = Option((), Many(item=File()), "Model files or folders.", repeat=True, section=ASK)
    gpu: Value[str | None] = Option(None, Text(), "GPU of rows that name none.", section=ASK)
    runtime: Value[str] = variant(EstimateOptions, "runtime", help="Runtime of rows that name none.")
    provider: Value[str | None] = variant(
        EstimateOptions, "provider", help="Execution provider of rows that name no runtime."
    )
    dtype: Value[str] = variant(EstimateOptions, "dtype", help="Dtype of rows that name none.")
    dims: DimSweeps = variant(
        EstimateOptions,
        "dims",
        kind=Pairs(item=Many(item=SIZE, least=1)),
        help="Dimension of rows that name none.",
    )
    host: OnePath = variant(
        EstimateOptions, "host", help="This host's figures: a file that an evaluation wrote (TOML)."
    )
    include_copy: Value[bool] = variant(
        EstimateOptions, "include_copy", help="The measurements include moving inputs and outputs."
    )
    one_process: Value[bool] = Option(
        False, Flag(), "Memory: a model's rows ran one after another in one process."
    )
    progress: Callable[[str, int, int], None] | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for several sizes of a dimension: a measurement was made with one."""
        super().__post_init__()
        for name, sizes in self.dims.items():
            if len(sizes) > 1:
                raise UsageError(f"dims: found {len(sizes)} sizes of {name}, expected one")
