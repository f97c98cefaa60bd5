"""Find the largest batch of a model that a GPU serves within a latency objective and its memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from gkestimator.core.errors import GkestimatorError, NoBatchError, UsageError
from gkestimator.core.options import spelled
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.recall import ModelSource, model_names, path_of
from gkestimator.estimation.request import MAX_BATCH_SIZE, Progress
from gkestimator.estimation.rows import answers_within, fits, requirement_row
from gkestimator.estimation.targets import Target
from gkestimator.tables import Requirement


def largest_batches(
    engine: Engine, progress: Progress | None = None
) -> tuple[list[Requirement], list[tuple[Path, GkestimatorError]]]:
    """Return one row per model, GPU and SM share: the largest batch whose ``latency_ms`` is within the SLO
    and that fits.

    Doubles until the objective or the memory is exceeded (or ``batch_sizes``' largest is reached), then
    bisects; latency and memory are taken to grow with the batch. A combination that misses the SLO at batch 1
    has no row and is named among the failures.
    """
    request = engine.request
    ceiling = MAX_BATCH_SIZE
    if request.batch_sizes:
        ceiling = max(request.batch_sizes)
    rows: list[Requirement] = []
    failures: list[tuple[Path, GkestimatorError]] = []
    names = model_names(request.models)
    for at, (model, name) in enumerate(names):
        path = path_of(model)
        if progress is not None:
            progress(name, at, len(names))
        source = ModelSource(model, name)
        try:
            for dims in engine.dims_met.combinations(source):
                search = _Search(engine, source, dims, ceiling)
                for best in search.all_largest():
                    if isinstance(best, Requirement):
                        rows.append(best)
                    else:
                        failures.append((path, best))
        except GkestimatorError as e:  # the model itself: no GPU will do better
            failures.append((path, e))
    engine.check_names()
    return rows, failures


class _Search:
    """Hold one model at sizes of its dimensions: every batch size is lowered and estimated once, for all GPUs and
    shares.
    """

    def __init__(self, engine: Engine, source: ModelSource, dims: Mapping[str, int], ceiling: int) -> None:
        assert engine.request.slo_ms is not None
        self._engine = engine
        self._source = source
        self._dims = dims
        self._ceiling = ceiling
        self._slo_ms: float = engine.request.slo_ms
        self._rows: dict[int, dict[tuple[str, float], Requirement]] = {}

    def all_largest(self) -> Iterator[Requirement | UsageError]:
        """Yield :meth:`largest` for every GPU and SM share; one of a group that lacks a figure is left out."""
        self._rows_of(1)  # before the GPUs are gone through: it leaves some out
        for target in self._engine.targets:
            for share in self._engine.request.sm_shares:
                yield self.largest(target, share)

    def _row(self, batch: int, target: Target, share: float) -> Requirement:
        return self._rows_of(batch)[target.gpu.name, share]

    def _rows_of(self, batch: int) -> dict[tuple[str, float], Requirement]:
        if batch not in self._rows:
            engine = self._engine
            answers = engine.estimate([engine.lower_model(self._source, batch, self._dims)])
            self._rows[batch] = {
                (a.target.gpu.name, a.sm_share_pct): requirement_row(engine, a) for a in answers
            }
            # Each batch size has kernels of its own; keeping them would only grow the memory.
            engine.forget()
        return self._rows[batch]

    def _good(self, row: Requirement) -> bool:
        return fits(row) and answers_within(row, self._slo_ms)

    def largest(self, target: Target, share: float) -> Requirement | UsageError:
        """Return the row of the largest batch that fits and answers in time; an error where not even one
        sample does.
        """
        if target.gpu.memory_visible_bytes is None:
            return UsageError(
                f"{target.gpu.name}: no source states the memory that programs see on it, so no batch is known to fit; "
                f"give batch sizes, or a file that states memory_visible_mib ({spelled('gpu_specs', '--gpu-spec')})"
            )
        best = self._row(1, target, share)
        if best.runs_on_cpu_alone:
            return best
        if not self._good(best):
            return UsageError(
                f"{self._source.name} on {target.gpu.name}: batch 1 takes {_text(best.latency_ms, 'ms')} and "
                f"{_text(best.mreq_pct, '%')} of the memory{_bound(best)}; no batch meets {self._slo_ms:g} ms"
            )
        low = 1
        high: int | None = None
        while (high or self._ceiling + 1) - low > 1:
            # Doubling first: the largest batch is mostly far below the ceiling, and small batches are cheap to lower.
            if high is None:
                candidate = min(low * 2, self._ceiling)
            else:
                candidate = (low + high) // 2
            try:
                row = self._row(candidate, target, share)
            except NoBatchError:
                return best
            if self._good(row):
                low = candidate
                best = row
            else:
                high = candidate
        return best


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return "an unknown share"
    return f"{value:.3g} {unit}"


def _bound(row: Requirement) -> str:
    if row.latency_high_ms is None:
        return " at least (some work is unknown)"
    return ""
