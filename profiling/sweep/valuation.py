"""What candidates cost and are worth: predicted durations, doubts about them, features to spread them by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from gkestimator.bundles.bundle import Bundle
from gkestimator.core.kernels import Family, KernelTable
from gkestimator.core.records import frozen
from gkestimator.hardware.gpus import GpuSpec
from gkestimator.kernel_models.features.vector import feature_matrix
from gkestimator.profiling.sweep.candidates import SweepCandidate
from gkestimator.profiling.sweep.choice import standardised
from gkestimator.profiling.sweep.cost import cpu_s, cpu_slowness
from gkestimator.profiling.type_names import NumberByName, TextByName

GroupKey = tuple[str, str]

FAMILY_SHARES: NumberByName = MappingProxyType(
    {
        Family.CONV: 22.0,
        Family.LINEAR: 18.0,
        Family.ELEMENTWISE: 11.0,
        Family.DEPTHWISE: 8.0,
        Family.BMM: 8.0,
        Family.ATTENTION: 6.0,
        Family.LAYERNORM: 4.0,
        Family.SOFTMAX: 4.0,
        Family.COPY: 4.0,
        Family.BATCHNORM: 3.0,
        Family.POOLING: 3.0,
        Family.REDUCTION: 3.0,
        Family.CONV_TRANSPOSE: 2.0,
        Family.GATHER: 2.0,
        Family.RESAMPLE: 2.0,
        Family.RNN: 1.0,
        Family.SORT: 1.0,
        Family.SCATTER: 1.0,
    }
)
"""Percent of the entries by family, about as models spend their time and as hard as the family is to predict (library
kernels change with every shape, memory-bound ones do not). Families that are not named count 0.5."""
DTYPE_SHARES: NumberByName = MappingProxyType({"fp32": 1.0, "tf32": 0.7, "fp16": 1.0, "bf16": 0.4})
"""bf16 kernels are those of fp16 in all but few cases, so they are sampled thinner."""
_SOURCE_WEIGHTS: NumberByName = MappingProxyType({"corner": 0.8, "sampled": 0.8})
_FEATURES: TextByName = MappingProxyType(
    {
        Family.LINEAR: "matrix",
        Family.BMM: "matrix",
        Family.RNN: "matrix",
        Family.CONV: "conv",
        Family.DEPTHWISE: "conv",
        Family.CONV_TRANSPOSE: "conv",
        Family.ATTENTION: "attention",
        Family.DECODE: "decode_unseen",
        Family.ELEMENTWISE: "elementwise",
        Family.LAYERNORM: "layernorm",
    }
)
"""Features that spread a family's shapes, by the name of their set; ``memory`` for those that are not named."""
_SPAN = 2.0  # no weight is more than this times, or this part of, the usual


@frozen
class Valued:
    """Hold by candidate: predicted microseconds of one call (``call_us``), kernels, how doubtful the
    prediction is and how much that and its source are worth (``weights``, about 1). ``groups``: candidates by
    family and precision of the kernel that takes longest; ``points``: their features; ``shares``: entries
    that each group is due."""

    call_us: np.ndarray
    kernels: np.ndarray
    weights: np.ndarray
    groups: Mapping[GroupKey, list[int]]
    points: Mapping[GroupKey, np.ndarray]
    shares: Mapping[GroupKey, float]


def value(
    candidates: Sequence[SweepCandidate], bundle: Bundle, gpu: GpuSpec, *, doubt: bool, cpu: bool = False
) -> Valued:
    """Predict every candidate on ``gpu`` once and group them.

    ``doubt``: wide intervals count for more (only where ``gpu`` is the GPU to be measured). ``cpu``: durations are
    those of a slow processor instead.
    """
    counts = np.array([len(c.kernels) for c in candidates], dtype=np.intp)
    table = KernelTable.from_kernels([k for c in candidates for k in c.kernels])
    predicted = bundle.predict(table, gpu)
    starts = np.cumsum(counts) - counts
    main = _longest(predicted.duration_us, starts, counts)
    call_us = _per_call(predicted.duration_us, starts)
    if cpu:
        moved = table.columns["read_bytes"] + table.columns["write_bytes"]
        call_us = _per_call(cpu_s(table.columns["flops"], moved) * 1e6, starts)
        call_us *= [cpu_slowness(c.dtype) for c in candidates]
    groups: dict[GroupKey, list[int]] = {}
    for position, candidate in enumerate(candidates):
        key = (str(table.family[main[position]]), candidate.dtype)
        groups.setdefault(key, []).append(position)
    # Shapes of real layers are what users run; the others only bound them.
    weights = np.array([_source_weight(c.source) for c in candidates])
    shares = {}
    points = {}
    for (family, dtype), members in groups.items():
        share = FAMILY_SHARES.get(family, 0.5) * DTYPE_SHARES[dtype]
        shares[family, dtype] = share / _weight_of_precisions(groups, family)
        points[family, dtype] = _points(table.take(main[members]), family, gpu)
    # Intervals are those of the GPU that was named; of a stand-in they say nothing.
    if doubt and len(candidates):
        width = np.log(predicted.high_us[main] / predicted.low_us[main])
        usual = float(np.median(width))
        for key, members in groups.items():
            mine = width[members]
            shares[key] *= float(_ratio(mine.mean(), usual))
            weights[members] *= _ratio(mine, float(np.median(mine)))
    return Valued(
        call_us=call_us, kernels=counts, weights=weights, groups=groups, points=points, shares=shares
    )


def _longest(duration_us: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the row of each candidate's longest kernel."""
    rows = []
    for start, count in zip(starts, counts, strict=True):
        own = duration_us[start : start + count]
        rows.append(start + int(np.argmax(own)))
    return np.array(rows, dtype=np.intp)


def _per_call(duration_us: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the kernels' durations summed by candidate."""
    if not len(duration_us):
        return np.zeros(0)
    return np.add.reduceat(duration_us, starts)


def _source_weight(source: str) -> float:
    kind = source.rpartition(":")[2]
    return _SOURCE_WEIGHTS.get(kind, 1.0)


def _weight_of_precisions(groups: Mapping[GroupKey, list[int]], family: str) -> float:
    """Return what the precisions of ``family`` weigh together: a family's share is the same however many it
    comes in."""
    return sum(DTYPE_SHARES[dtype] for name, dtype in groups if name == family)


def _ratio(values: np.ndarray, usual: float) -> np.ndarray:
    return np.clip(values / max(usual, 1e-9), 1 / _SPAN, _SPAN)


def _points(table: KernelTable, family: str, gpu: GpuSpec) -> np.ndarray:
    matrix, _ = feature_matrix(_FEATURES.get(family, "memory"), table, gpu)
    return standardised(matrix)
