"""Relations between estimates: by batch, width, share and GPU, sums, bounds, order."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gkestimator.core.kernels import KernelTable
from gkestimator.estimation.api import estimate_rows
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.request import EstimateRequest
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.library.relations.checking import (
    Case,
    RelationCheck,
    Subject,
    apart,
    beyond,
    never_falling,
    place_of,
)
from gkestimator.library.relations.networks import NETWORKS, write_convolutions
from gkestimator.tables import Requirement

_LEARNED = "libraries choose other kernels for other sizes, and regressors learn some percent of it"
_LEARNED_PCT = 0.05
_SHARES = (10.0, 25.0, 50.0, 75.0, 100.0)
_BETTER = (
    ("P4", "L4"),
    ("T4", "A10"),
    ("L4", "L40S"),
    ("P100-SXM2", "V100-SXM2-16GB"),
    ("A100-SXM4-80GB", "H100-SXM"),
)
_RATES = ("boost_clock_mhz", "dram_bytes_per_s")
_SIZES = ("sms", "l2_bytes")
_FACTORS = (1.25, 1.5)
_SEEDS = ("1", "2")
_CHILD = """
import json, sys
from gkestimator.estimation.api import estimate_rows
print(estimate_rows(**json.loads(sys.argv[1])).rows)
"""


def _by_batch(subject: Subject) -> Iterator[Case]:
    return never_falling(subject.by_batch, "gpu_ms")


def _by_width(subject: Subject) -> Iterator[Case]:
    for name in list(NETWORKS)[:-1]:
        widths = [subject.network(name, width) for width in (1, 2, 3, 4, 8)]
        rows = subject.rows(widths, gpus=subject.gpus, batch_sizes=[1, 16])
        for batch in (1, 16):
            series = sorted((r for r in rows if r.batch_size == batch), key=lambda r: (r.gpu, r.flops))
            yield from never_falling([replace(row, model=f"wider {name}") for row in series], "gpu_ms")


def _by_share(subject: Subject) -> Iterator[Case]:
    rows = subject.rows(subject.networks, gpus=subject.gpus, batch_sizes=[1, 16], sm_shares=_SHARES)
    for less, more in pairwise(rows):
        if less.sm_share_pct < more.sm_share_pct:
            where = f"{place_of(less)} share {less.sm_share_pct:g} -> {more.sm_share_pct:g} %"
            yield Case(where=where, excess=beyond(more.gpu_ms or 0.0, less.gpu_ms or 0.0))


def _better_gpu(subject: Subject) -> Iterator[Case]:
    pairs = [name for pair in _BETTER for name in pair]
    rows = subject.rows(subject.networks, gpus=pairs, batch_sizes=[1, 16], dtype="fp32")
    gpu_ms = {(row.model, row.batch_size, row.gpu): row.gpu_ms or 0.0 for row in rows}
    for model, batch in dict.fromkeys((row.model, row.batch_size) for row in rows):
        for worse, better in _BETTER:
            where = f"{model} batch {batch} {worse} -> {better}"
            excess = beyond(gpu_ms[model, batch, better], gpu_ms[model, batch, worse])
            yield Case(where=where, excess=excess)


def _scaled(spec: GpuSpec, factor: float) -> GpuSpec:
    """Return a GPU that nobody builds, better than ``spec`` in every figure that the time of a kernel hangs on."""
    figures = {name: getattr(spec, name) * factor for name in _RATES}
    figures |= {name: round(getattr(spec, name) * factor) for name in _SIZES}
    for name in ("peak_flops_per_s", "vector_flops_per_s"):
        figures[name] = {kind: peak * factor * factor for kind, peak in getattr(spec, name).items()}
    return replace(spec, name=f"{spec.name} x {factor}", **figures)


def _scaled_gpu(subject: Subject) -> Iterator[Case]:
    specs = [gpu_catalogue().spec(name) for name in ("T4", "A100-SXM4-80GB")]
    request = EstimateRequest(
        subject.networks, [spec.name for spec in specs], [1, 16], bundles=subject.bundles, dtype="fp32"
    )
    engine = Engine(request)
    for _, answers in engine.run():
        for answer in answers if isinstance(answers, list) else ():
            kernels = [engine.pool.kernels[row] for row in answer.lowering.rows]
            table = KernelTable.from_kernels(kernels)
            # Both are chips that nobody measured: a measured one answers by other regressors.
            times = []
            for factor in _FACTORS:
                better = _scaled(answer.target.gpu, factor)
                duration = engine.estimator.predict(table, better).duration_us
                times.append(
                    float(np.dot(duration[answer.lowering.program.kernel], answer.lowering.program.repeat))
                )
            where = f"{answer.lowering.model} batch {answer.lowering.lowered.batch_size} {better.name}"
            yield Case(where=where, excess=beyond(times[1], times[0]))


def _sums(subject: Subject) -> Iterator[Case]:
    result = estimate_rows(
        subject.networks, gpus=subject.gpus, batch_sizes=[4], kernels=True, bundles=subject.bundles
    )
    for row in result.rows:
        kernels = [k for k in result.kernel_rows if (k.model, k.gpu) == (row.model, row.gpu)]
        totals = {
            "flops": sum((k.flops or 0) * k.launches for k in kernels),
            "dram_bytes": sum((k.dram_bytes or 0) * k.launches for k in kernels),
            "gpu_ms": sum((k.duration_us or 0.0) * k.launches for k in kernels) / 1e3,
            "reserved_bytes": sum(
                getattr(row, f"{part}_bytes") for part in ("weights", "activations", "workspace", "allocator")
            ),
            "mreq_bytes": (row.reserved_bytes or 0) + (row.context_bytes or 0),
        }
        for column, total in totals.items():
            yield Case(where=f"{place_of(row)} {column}", excess=apart(total, getattr(row, column)))


def _traffic(subject: Subject) -> Iterator[Case]:
    result = estimate_rows(
        subject.networks, gpus=subject.gpus, batch_sizes=[1, 64], kernels=True, bundles=subject.bundles
    )
    catalogue = gpu_catalogue(bundles=subject.bundles)
    for k in result.kernel_rows:
        if k.dram_bytes and k.duration_us:
            spec = catalogue.spec(k.gpu)
            # What is read may lie in the L2 at the start, and what is written stay there at the end.
            least_us = (k.dram_bytes - 2 * spec.l2_bytes) / spec.dram_bytes_per_s * 1e6
            yield Case(
                where=f"{k.model} {k.gpu} batch {k.batch_size} {k.operator}",
                excess=beyond(least_us, k.duration_us),
            )


def _bounds(subject: Subject) -> Iterator[Case]:
    for streams in (1, 4):
        rows = subject.rows(
            subject.networks, gpus=subject.gpus, batch_sizes=[1, 16], sm_shares=(10, 50, 100), streams=streams
        )
        for row in rows:
            where = f"{place_of(row)} share {row.sm_share_pct:g} % {streams} streams"
            for column in ("occupancy_max", "occupancy_mean", "dram_util_mean", "l2_util_mean"):
                yield Case(where=f"{where} {column}", excess=beyond(getattr(row, f"{column}_pct") or 0, 100))
            for column in ("sm_util_max", "sm_util_mean", "sm_util_busy_mean"):
                value = getattr(row, f"{column}_pct") or 0
                yield Case(where=f"{where} {column}", excess=beyond(value, row.sm_share_pct))


def _interval(subject: Subject) -> Iterator[Case]:
    for row in subject.by_batch:
        for column in ("latency", "gpu", "host"):
            low, value, high = (getattr(row, f"{column}{end}_ms") for end in ("_low", "", "_high"))
            yield Case(
                where=f"{place_of(row)} {column}", excess=max(beyond(low, value), beyond(value, high), -low)
            )


def _needed_memory(subject: Subject) -> Iterator[Case]:
    for column in ("activations_bytes", "input_bytes", "output_bytes", "flops", "dram_bytes"):
        yield from never_falling(subject.by_batch, column)


def _reserved_memory(subject: Subject) -> Iterator[Case]:
    return never_falling(subject.by_batch, "mreq_bytes")


def _rows_apart(row: Requirement, expected: Requirement) -> float:
    """Return the largest relative difference between the figures of two rows; infinity where anything else differs.

    The last digit of an exponential hangs on its place in an array: processors compute some numbers of it at a time,
    and those left over one by one. What a row says of its neighbours (``warnings``) hangs on which were asked for.
    """
    others = asdict(expected)
    largest = 0.0
    for name, value in asdict(row).items():
        other = others[name]
        if isinstance(value, float) and isinstance(other, float):
            largest = max(largest, apart(value, other))
        elif value != other and name != "warnings":
            return math.inf
    return largest


def _order(subject: Subject) -> Iterator[Case]:
    forward = {place_of(row): row for row in subject.by_batch}
    gpus = subject.gpus[::-1]
    for row in subject.rows(subject.networks[::-1], gpus=gpus, batch_sizes=[64, 1]):
        excess = _rows_apart(row, forward[place_of(row)])
        yield Case(where=f"{place_of(row)} models turned round", excess=excess)
    two = [write_convolutions(subject.folder, 2, swapped=swapped) for swapped in (False, True)]
    for batch in (1, 16):
        rows = subject.rows(two, gpus=subject.gpus, batch_sizes=[batch])
        for one, other in zip(rows[: len(subject.gpus)], rows[len(subject.gpus) :], strict=True):
            for column in ("gpu_ms", "flops", "dram_bytes", "kernels", "weights_bytes"):
                excess = apart(getattr(other, column), getattr(one, column))
                yield Case(where=f"{place_of(one)} nodes swapped {column}", excess=excess)


def _seeds(subject: Subject) -> Iterator[Case]:
    """Yield one case: the same command under other seeds of Python's hashes, in processes of their own."""
    asked: dict[str, Any] = {"models": [str(path) for path in subject.networks], "gpus": subject.gpus[-1:]}
    asked |= {"bundles": [str(path) for path in subject.bundles], "batch_sizes": [1, 8]}
    outputs = []
    for seed in _SEEDS:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, json.dumps(asked)],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        outputs.append(done.stdout)
    same = outputs[0] == outputs[1] and b"latency_ms" in outputs[0]
    yield Case(where=f"PYTHONHASHSEED {' and '.join(_SEEDS)}", excess=0.0 if same else 1.0)


CHECKS = (
    RelationCheck(
        name="batch",
        holds="more samples take no less GPU time",
        cases=_by_batch,
        allowed=_LEARNED_PCT,
        reason=_LEARNED,
    ),
    RelationCheck(
        name="width",
        holds="wider layers take no less GPU time",
        cases=_by_width,
        allowed=_LEARNED_PCT,
        reason=_LEARNED,
    ),
    RelationCheck(name="share", holds="more SMs take no more GPU time", cases=_by_share),
    RelationCheck(
        name="better GPU",
        holds="a GPU better in every figure takes no more GPU time",
        cases=_better_gpu,
        allowed=_LEARNED_PCT,
        reason=_LEARNED,
    ),
    RelationCheck(
        name="scaled GPU",
        holds="a GPU scaled up in every figure takes no more GPU time",
        cases=_scaled_gpu,
        allowed=0.2,
        reason="nobody measured such chips: estimates err by some 15 % there, either way",
    ),
    RelationCheck(name="sums", holds="kernels and parts of memory add up to the row", cases=_sums),
    RelationCheck(name="traffic", holds="bytes beyond the L2 at most the peak bandwidth", cases=_traffic),
    RelationCheck(name="bounds", holds="utilisations within 100 % and the share", cases=_bounds),
    RelationCheck(name="interval", holds="the interval holds the estimate", cases=_interval),
    RelationCheck(name="work", holds="more samples need no fewer bytes and FLOPs", cases=_needed_memory),
    RelationCheck(
        name="memory",
        holds="more samples reserve no less memory",
        cases=_reserved_memory,
        allowed=0.4,
        reason="what an allocator leaves unused hangs on how requests fit into its segments",
    ),
    RelationCheck(name="order", holds="neither order of models nor of nodes matters", cases=_order),
    RelationCheck(name="hash seeds", holds="the same bytes under every hash seed", cases=_seeds),
)
