"""Check what the event loop takes for granted: it would go on for ever, or count nonsense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.interference.base import FEATURES, TERMS
from gkestimator.simulation.arrivals.base import Chunk
from gkestimator.simulation.system import SimGpu, SimIterating, SimModel, SimReplica, SimSource

# Bounds far from anything real, within which memory, whole numbers and times in floats suffice.
_MOST_BATCH = 100_000
_MOST_AT_ONCE = 10_000_000  # requests that one event may bring into being
_MOST_CURVE_ROWS = 5_000_000
_MOST_MS = 1e9
_LEAST_CYCLE_MS = 1e-6
_LEAST_CLOSED_MS = 1e-6  # of a service whose clients wait
_MOST_FEATURE = 1e12
_MOST_TOKENS = 1_000_000_000


def _finite(values: tuple[float, ...], count: int) -> bool:
    return len(values) == count and all(abs(value) <= _MOST_FEATURE for value in values)


def check_source(source: SimSource, system_models: Sequence[SimModel]) -> None:
    """Raise UsageError naming the source and the stage that cannot be."""
    models = len(system_models)
    for k, stage in enumerate(source.stages):
        if not 0 <= stage.model < models:
            problem = f"model {stage.model}"
            expected = f"one of {models} models"
        elif not 0 <= stage.fan_out <= _MOST_FEATURE:
            problem = f"fan_out {stage.fan_out}"
            expected = f"0 to {_MOST_FEATURE:g}"
        elif not all(0 <= a < len(source.stages) for a in stage.after):
            problem = f"after {stage.after}"
            expected = f"some of {len(source.stages)} stages"
        else:
            continue
        raise UsageError(f"source {source.name!r}, stage {k}: found {problem}, expected {expected}")
    paced = any(system_models[stage.model].paced is not None for stage in source.stages)
    if paced != (source.lengths is not None) or (paced and (source.application or len(source.stages) != 1)):
        raise UsageError(
            f"source {source.name!r}: expected lengths where it asks a language model, of which it asks one by itself"
        )
    for prompt, answer in source.lengths or ():
        if not (1 <= prompt <= _MOST_TOKENS and 1 <= answer <= _MOST_TOKENS):
            raise UsageError(
                f"source {source.name!r}: found a prompt of {prompt} and an answer of {answer} tokens, expected 1 to "
                f"{_MOST_TOKENS:,}"
            )


def check_closed(source: SimSource, drop: str) -> None:
    """Raise UsageError where clients of ``source`` that wait for their answers might ask for ever at one time."""
    if drop != "none":
        raise UsageError(
            f"drop {drop}: expected none where clients wait for their answers: they would ask again at once"
        )
    if source.lengths is not None:
        raise UsageError(
            f"source {source.name!r}: expected no language model where clients wait for their answers"
        )
    if not any(not stage.after and stage.fan_out >= 1 for stage in source.stages):
        raise UsageError(
            f"source {source.name!r}: expected a first stage that is asked at least once where clients wait"
        )


def check_takes_time(replica: SimReplica) -> None:
    """Raise UsageError where clients that wait for answers of ``replica`` might ask for ever at one time."""
    if min(replica.latencies_ms) < _LEAST_CLOSED_MS:
        raise UsageError(
            f"replica {replica.id!r}: latencies_ms is {replica.latencies_ms}, expected {_LEAST_CLOSED_MS:g} ms or more "
            "where clients wait for their answers"
        )


def check_gpu(gpu: SimGpu) -> None:
    """Raise UsageError where the interference model's numbers are no numbers."""
    if not _finite(gpu.terms, TERMS):
        raise UsageError(f"GPU {gpu.id!r}: terms are {gpu.terms!r}, expected {TERMS} finite numbers")


def check_room(largest: int, most_asked: int, curve_rows: int) -> None:
    """Raise UsageError where batches of up to ``largest`` requests, each of which asks for up to
    ``most_asked`` more, or curves of ``curve_rows`` sizes would need more memory than there may be.
    """
    if largest * (1 + most_asked) > _MOST_AT_ONCE:
        raise UsageError(
            f"a batch of {largest:,} requests, each of which may become {most_asked:,}, asks for "
            f"{largest * (1 + most_asked):,} at once, expected at most {_MOST_AT_ONCE:,}"
        )
    if curve_rows > _MOST_CURVE_ROWS:
        raise UsageError(
            f"replicas with different curves over {curve_rows:,} batch sizes in all, expected at most "
            f"{_MOST_CURVE_ROWS:,}"
        )


def check_replica(replica: SimReplica, system_models: Sequence[SimModel], gpus: int) -> None:
    """Raise UsageError naming the replica and the field that is not as it must be."""
    models = len(system_models)

    def need(field: str, right: bool, expected: str) -> None:
        if not right:
            raise UsageError(
                f"replica {replica.id!r}: {field} is {getattr(replica, field)!r}, expected {expected}"
            )

    need("model", 0 <= replica.model < models, f"one of {models} models")
    need("gpu", 0 <= replica.gpu < gpus, f"one of {gpus} GPUs")
    _check_iterating(replica, replica.iterates, system_models[replica.model])
    need("batch_size", 1 <= replica.batch_size <= _MOST_BATCH, f"1 to {_MOST_BATCH:,}")
    need("max_wait_ms", 0 <= replica.max_wait_ms <= _MOST_MS, f"0 to {_MOST_MS:g} ms")
    need("weight", 0 < replica.weight < math.inf, "more than 0")
    need("deal", replica.deal is None or 0 < replica.deal < math.inf, "more than 0")
    if replica.duty_cycle_ms is not None:
        right = _LEAST_CYCLE_MS <= replica.duty_cycle_ms <= _MOST_MS
        need("duty_cycle_ms", right, f"{_LEAST_CYCLE_MS:g} to {_MOST_MS:g} ms")
    need("turn_offset_ms", 0 <= replica.turn_offset_ms <= _MOST_MS, f"0 to {_MOST_MS:g} ms")
    for field in ("sigma_below", "sigma_above"):
        # Of ten deviations the exponential is still a number.
        need(field, 0 <= getattr(replica, field) <= 50, "0 to 50")
    batches = replica.batches
    ascending = all(a < b for a, b in pairwise(batches))
    need("batches", bool(batches) and batches[0] >= 1 and ascending, "ascending sizes")
    for field in ("latencies_ms", "copies_ms", "request_ms", "response_ms"):
        curve = getattr(replica, field)
        if curve is not None:
            right = len(curve) == len(batches) and all(0 <= value <= _MOST_MS for value in curve)
            need(field, right, f"{len(batches)} times of 0 to {_MOST_MS:g} ms")
    if replica.features is not None:
        right = len(replica.features) == len(batches) and all(_finite(f, FEATURES) for f in replica.features)
        need("features", right, f"{len(batches)} times {FEATURES} finite numbers")


def _check_iterating(replica: SimReplica, iterates: SimIterating | None, model: SimModel) -> None:
    """Raise UsageError where iterations would not end, or would be of nothing."""
    if (model.paced is not None) != (iterates is not None):
        raise UsageError(
            f"replica {replica.id!r}: expected iterates where its model is a language model, else none"
        )
    if iterates is None:
        return
    alone = replica.batch_size == 1 and replica.max_wait_ms == 0 and replica.partition is None
    if not alone or replica.duty_cycle_ms is not None:
        raise UsageError(
            f"replica {replica.id!r}: iterates, expected single requests, no partition and no turns"
        )
    sizes = (iterates.page_tokens, iterates.pages, iterates.most_sequences)
    if min(sizes) < 1 or max(sizes) > _MOST_TOKENS or iterates.most_sequences > _MOST_BATCH:
        raise UsageError(
            f"replica {replica.id!r}: found pages or sequences {sizes}, expected 1 or more of each"
        )
    if not iterates.most_sequences <= iterates.budget_tokens <= _MOST_TOKENS:
        raise UsageError(
            f"replica {replica.id!r}: found {iterates.budget_tokens:,} tokens of an iteration, expected at least one "
            f"for each of {iterates.most_sequences:,} sequences"
        )


def check_chunk(chunk: Chunk, sources: int, now_ms: float) -> None:
    """Raise UsageError where the times are not those of ``sources`` sources, ascending, from ``now_ms`` up to
    the chunk's end.
    """
    if len(chunk.times_ms) != sources:
        raise UsageError(f"arrivals of {len(chunk.times_ms)} sources, expected {sources}")
    for k, times in enumerate(chunk.times_ms):
        if len(times) and not (
            times[0] >= now_ms and times[-1] < chunk.end_ms and np.all(times[1:] >= times[:-1])
        ):
            raise UsageError(
                f"arrivals of source {k}: expected ascending times from {now_ms:g} to below {chunk.end_ms:g} ms, "
                f"found {times.min():g} to {times.max():g}"
                + (" unsorted" if np.any(times[1:] < times[:-1]) else "")
            )
    if not chunk.end_ms >= now_ms:
        raise UsageError(f"a chunk that ends at {chunk.end_ms:g} ms, expected {now_ms:g} or later")
