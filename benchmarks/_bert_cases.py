"""Read NVIDIA's table of BERT under TensorRT (demo/BERT) and lower its models as they are estimated.

``tensorrt/tensorrt_bert`` of the public data: BERT base and large with the head for SQuAD, 128 and 384 tokens, batches
1 to 128, fp16 and int8. Its sparse Megatron is another model and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from _bert_graphs import write_bert

from gkestimator.bundles.bundle import Bundle
from gkestimator.bundles.runtime_laws import RuntimeLaw
from gkestimator.core.kernels import KernelTable
from gkestimator.core.records import NamedValues
from gkestimator.estimation.engine import Engine, Lowerings
from gkestimator.estimation.recall import ModelSource
from gkestimator.estimation.request import EstimateRequest
from gkestimator.training.runtime_laws import MeasuredModels, VersionTimes, fit_law, law_card

MODELS = ("bert_base", "bert_large")
RUNTIME = "tensorrt"
CASE = ["gpu", "model", "precision", "sequence", "batch"]
GROUP = ["model", "precision", "sequence"]


def read_rows(shared: Path) -> pd.DataFrame:
    """Return the table with ``version`` as major.minor, the latest patch of each, and whether it is the GPU's ``newest``."""
    rows = pd.read_parquet(shared / "data" / "tensorrt" / "tensorrt_bert.parquet")
    rows = rows[rows.model.isin(MODELS)].rename(columns={"sequence_length": "sequence"})
    numbers = rows.trt_version.str.split(".", expand=True).astype(int)
    rows = rows.assign(
        version=numbers[0].astype(str) + "." + numbers[1].astype(str),
        order=numbers[0] * 100 + numbers[1],
        patch=numbers[2],
    )
    rows = rows.sort_values(["order", "patch"]).drop_duplicates([*CASE, "version"], keep="last")
    rows["newest"] = rows.order == rows.groupby("gpu").order.transform("max")
    return rows.reset_index(drop=True)


def version_times(rows: pd.DataFrame) -> VersionTimes:
    """Return the times of all versions."""
    return VersionTimes(
        gpu=rows.gpu.to_numpy(object),
        precision=rows.precision.to_numpy(object),
        model=rows.groupby(CASE).ngroup().to_numpy(),
        version=rows.version.to_numpy(object),
        time=rows.avg_ms.to_numpy(),
    )


class LoweredBerts:
    """Lower the models of the table for one GPU; ``options`` are those of the estimate besides model, GPU and dtype."""

    def __init__(self, folder: Path, gpu: str, options: dict[str, object]) -> None:
        self.folder = folder
        self.gpu = gpu
        self.options = options
        self._engines: dict[str, Engine] = {}

    def engine(self, dtype: str) -> Engine:
        """Return the engine that estimates in ``dtype``."""
        if dtype not in self._engines:
            path = write_bert(self.folder, MODELS[0], 128)  # a request wants one model; others are lowered
            request = EstimateRequest(models=(path,), gpus=(self.gpu,), dtype=dtype, **self.options)
            self._engines[dtype] = Engine(request)
        return self._engines[dtype]

    def lowerings(self, row: Any) -> Lowerings:
        """Return the lowered model of ``row``, whose kernels are in the pool of its engine."""
        path = write_bert(self.folder, row.model, row.sequence)
        return self.engine(row.precision).lower_model(ModelSource(path, path.stem), int(row.batch), {})


def measured_models(
    rows: pd.DataFrame, folder: Path, options: dict[str, object], progress: Callable[[str], None] = print
) -> list[MeasuredModels]:
    """Return the newest rows of each GPU with the kernels that they are lowered to."""
    return [_of_gpu(part, folder, options, progress) for _, part in rows[rows.newest].groupby("gpu")]


def _of_gpu(
    rows: pd.DataFrame, folder: Path, options: dict[str, object], progress: Callable[[str], None]
) -> MeasuredModels:
    gpu = str(rows.gpu.iloc[0])
    progress(f"{gpu}: {len(rows)} models")
    berts = LoweredBerts(folder, gpu, options)
    place: dict[object, int] = {}
    counts: list[dict[int, float]] = []
    for row in rows.itertuples():
        engine = berts.engine(row.precision)
        (asked,) = engine.targets
        lowering = berts.lowerings(row)[asked.options]  # not those of wider types, which are lowered as well
        pool = engine.pool.kernels
        count: dict[int, float] = {}
        for kernel, repeat in zip(lowering.program.kernel, lowering.program.repeat, strict=True):
            at = place.setdefault(pool[lowering.rows[kernel]], len(place))
            count[at] = count.get(at, 0.0) + float(repeat)
        counts.append(count)
    launches = np.zeros((len(counts), len(place)))
    for at, count in enumerate(counts):
        launches[at, list(count)] = list(count.values())
    (target,) = berts.engine(rows.precision.iloc[0]).targets
    return MeasuredModels(
        gpu=target.gpu,
        table=KernelTable.from_kernels(list(place)),
        launches=launches,
        measured_us=rows.avg_ms.to_numpy() * 1e3,
        group=rows[GROUP].astype(str).agg(" ".join, axis=1).to_numpy(object),
    )


def fit_tensorrt_law(shared: Path, folder: Path, bundle: Bundle) -> tuple[RuntimeLaw, NamedValues]:
    """Return TensorRT's law from the newest rows of every GPU, and what the bundle's card says of it."""
    rows = read_rows(shared)
    measured = measured_models(rows, folder, {"runtime": RUNTIME})
    times = version_times(rows)
    law = fit_law(measured, times, bundle)
    return law, law_card(measured, times)


def kernels_of_layer(models: MeasuredModels, model: int, layers: int) -> Sequence[str]:
    """Return family, variant and precision of the kernels that run once or more in every layer of a model."""
    names = []
    table = models.table
    for at in np.flatnonzero(models.launches[model] >= layers):
        count = models.launches[model][at] / layers
        names.append(f"{count:g} {table.family[at]} {table.variant[at]} {table.precision[at]}")
    return names
