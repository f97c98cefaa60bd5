"""The largest batch of a model that a GPU serves within a latency objective and its memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gkestimator.errors import GkestimatorError, UsageError
from gkestimator.estimation.engine import Engine, Target, model_names
from gkestimator.estimation.recall import Source
from gkestimator.estimation.request import MAX_BATCH_SIZE
from gkestimator.estimation.rows import requirement_row
from gkestimator.tables import Requirement

__all__ = ["largest_batches"]

Progress = Callable[[str, int, int], None]


def largest_batches(
    engine: Engine, progress: Progress | None = None
) -> tuple[list[Requirement], list[tuple[Path, GkestimatorError]]]:
    """One row per model, GPU and SM share: the largest batch whose ``latency_ms`` is within the SLO and that fits.

    Doubles until the objective or the memory is exceeded (or ``batch_sizes``' largest is reached), then bisects;
    latency and memory are taken to grow with the batch. A combination that misses the SLO at batch 1 has no row and
    is named among the failures.
    """
    request = engine.request
    ceiling = max(request.batch_sizes) if request.batch_sizes else MAX_BATCH_SIZE
    rows: list[Requirement] = []
    failures: list[tuple[Path, GkestimatorError]] = []
    names = model_names([Path(p) for p in request.models])
    for at, (path, name) in enumerate(names):
        if progress is not None:
            progress(name, at, len(names))
        try:
            source = Source(path, name)
            for target in engine.targets:
                for share in request.sm_shares:
                    rows.append(_search(engine, source, target, share, ceiling))
        except GkestimatorError as e:
            failures.append((path, e))
        engine.forget()
    return rows, failures


def _search(engine: Engine, source: Source, target: Target, share: float, ceiling: int) -> Requirement:
    slo = engine.request.slo_ms
    assert slo is not None

    def row_at(batch: int) -> Requirement:
        lowered = engine.lower_model(source, batch)
        for answer in engine.estimate([lowered]):
            if answer.target is target and answer.sm_share_pct == share:
                return requirement_row(engine, answer)
        raise AssertionError("a target of the request has no answer")

    def within(row: Requirement) -> bool:
        fits = row.mreq_pct is None or row.mreq_pct <= 100
        return fits and row.latency_ms is not None and row.latency_ms <= slo

    best = row_at(1)
    if not within(best):
        raise UsageError(
            f"{source.name} on {target.gpu.name}: batch 1 takes {best.latency_ms:.3g} ms and "
            f"{best.mreq_pct or 0:.0f} % of the memory; no batch meets {slo:g} ms"
        )
    low, high = 1, None
    while low < ceiling and high is None:
        candidate = min(low * 2, ceiling)
        row = row_at(candidate)
        if within(row):
            low, best = candidate, row
        else:
            high = candidate
    while high is not None and high - low > 1:
        middle = (low + high) // 2
        row = row_at(middle)
        if within(row):
            low, best = middle, row
        else:
            high = middle
    return best
