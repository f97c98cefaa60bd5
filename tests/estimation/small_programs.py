"""Programs of a few kernels whose predictions are said, small enough to calculate by hand."""

from __future__ import annotations

import numpy as np

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import Family, Kernel, Step
from gkestimator.estimation.requirement import Measures, measure
from gkestimator.estimation.timeline import LaunchProgram
from gkestimator.kernel_models.prediction import KernelPredictions


def kernels(count: int) -> list[Kernel]:
    return [
        Kernel(name=str(i), family=Family.COPY, variant="copy", precision=Precision.FP32, flops=i, read_bytes=1, write_bytes=1)
        for i in range(count)
    ]  # fmt: skip


def predictions(duration: list[float], **columns: list[float]) -> KernelPredictions:
    n = len(duration)
    base = {
        name: np.full(n, np.nan)
        for name in KernelPredictions.__dataclass_fields__
        if name not in ("detail", "power", "least_us")
    }
    base["duration_us"] = np.array(duration)
    base["low_us"] = np.array(duration) * 0.8
    base["high_us"] = np.array(duration) * 1.5
    base["trained"] = np.ones(n, bool)
    base["in_range"] = np.ones(n, bool)
    base.update({name: np.array(c) for name, c in columns.items()})
    return KernelPredictions(**base)


def program(ks: list[Kernel], repeat: int = 1) -> LaunchProgram:
    steps = [
        Step(
            name=k.name,
            op_type="X",
            kernels=(k,),
            reads=(),
            writes=((k.name, 1),),
            host_calls=1,
            repeat=repeat,
        )
        for k in ks
    ]
    return LaunchProgram.of(steps, {id(k): i for i, k in enumerate(ks)})


def ask(p: LaunchProgram, pred: KernelPredictions, **changes: object) -> Measures:
    n = len(pred.duration_us)
    arguments = {
        "flops": np.arange(n, dtype=float), "dram_bytes": np.full(n, 2.0), "families": np.array(["copy", "conv"][:n], dtype=object),
        "host_overhead_us": 0.0, "streams": 1, "tau_ms": 0.001,
    }  # fmt: skip
    arguments |= changes
    arguments.setdefault("host_range_us", (arguments["host_overhead_us"],) * 2)
    return measure(p, pred, **arguments)
