"""Return an estimate as a pandas DataFrame that can also be looked into: kernels, timeline, memory, picture, report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import pandas
from pandas.plotting import PlotAccessor

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.outputs import by_suffix, refuse_overwriting
from gkestimator.core.records import Names
from gkestimator.estimation.api import EstimateResult, Gatherer, KernelListing, answered
from gkestimator.estimation.request import EstimateRequest, ModelInMemory
from gkestimator.library.details import Lanes, LiveMemory, MemoryTables
from gkestimator.tables import KERNEL_ROWS, KernelRow, Requirement, to_dataframe, write_bytes


class Requirements(pandas.DataFrame):  # type: ignore[misc]  # pandas has no types
    """Hold the requirement table of an estimate, as a DataFrame in all respects, and what is behind it.

    What pandas makes of it (a slice, a copy, a concatenation) is a plain DataFrame: only the whole answers for its
    models. Details are computed when they are first asked for, by estimating again; a file that has changed by then
    is refused. ``needs["kernels"]`` is the column of launches, ``needs.kernels`` the table of them.
    """

    # pandas hands these through a pickle; nothing else of ours is kept.
    _metadata: ClassVar = ["_request", "_rows", "_failures", "messages"]
    _request: EstimateRequest | None = None
    _rows: tuple[Requirement, ...] = ()
    _failures: tuple[tuple[Path, GkestimatorError], ...] = ()
    messages: Names = ()
    """Sentences on the whole estimate: where models fit, what is cheapest, how far to trust it."""

    @property
    def table(self) -> pandas.DataFrame:
        """Return the rows as a plain DataFrame."""
        return pandas.DataFrame(self)

    @property
    def errors(self) -> pandas.DataFrame:
        """Return the models that could not be estimated, with the message of each: none unless errors are collected."""
        pairs = [(str(path), str(error)) for path, error in self._failures]
        return pandas.DataFrame(pairs, columns=["model", "message"], dtype="string")

    @cached_property
    def kernels(self) -> pandas.DataFrame:
        """Return one row per kernel of every model on every GPU, in the order of launches."""
        return to_dataframe(self._kernel_rows, KERNEL_ROWS)

    @cached_property
    def timeline(self) -> pandas.DataFrame:
        """Return what the host and the GPU (lane and stream) are busy with, from when and for how long."""
        lanes = Lanes()
        self._gather(lanes)
        return lanes.table()

    @cached_property
    def memory(self) -> MemoryTables:
        """Return the memory in use over time (``over_time``) and what is alive at its peak (``at_peak``)."""
        memory = LiveMemory()
        self._gather(memory)
        return memory.tables()

    @cached_property
    def _kernel_rows(self) -> list[KernelRow]:
        listing = KernelListing()
        self._gather(listing)
        return listing.rows

    @property
    def plot(self) -> _Plot:
        """Draw the estimate, ``plot()``, as a matplotlib figure: latency and throughput against batch size, or where
        the time goes; ``plot("needs.png")`` writes it too. With arguments of pandas, or as ``plot.scatter(...)``, draw
        columns as any DataFrame does. Raises UsageError without matplotlib.
        """
        return _Plot(self)

    def report(self, path: str | Path) -> Path:
        """Write the HTML page of the estimate (one file, no network), wholly or not at all, and return its path.

        Raises UsageError where there is nothing to report, OutputError where it cannot be written.
        """
        from gkestimator.estimation.model_report import ModelsPage

        page = ModelsPage()
        target = Path(path)
        self._refuse_overwriting(target)
        self._gather(page)
        write_bytes(target, page.page(self.messages))
        return target

    def _gather(self, gatherer: Gatherer) -> None:
        """Hand every answer to ``gatherer``. Raises UsageError where there are none, or others than in the table."""
        request = self._request
        if request is None or not self._rows:
            raise UsageError("no model was estimated: there is nothing to look into")
        if request.max_batch:
            raise UsageError(
                "the largest batches were asked for: estimate them as batch_sizes to look into them"
            )
        if answered(request, [gatherer]).rows != self._rows:
            raise UsageError("a file behind the estimate has changed since: estimate again")

    def _refuse_overwriting(self, target: Path) -> None:
        request = self._request
        if request is None:
            return
        read = [model for model in request.models if not isinstance(model, ModelInMemory)]
        refuse_overwriting({"path": target}, [*read, *request.gpu_specs, *request.plugins])


class _Plot(PlotAccessor):  # type: ignore[misc]  # pandas has no types
    """Draw an estimate where pandas would draw all columns: without arguments, or with a path alone."""

    def __init__(self, needs: Requirements) -> None:
        super().__init__(needs)
        self._needs = needs

    def __call__(self, path: str | Path | None = None, *more: Any, **pandas_arguments: Any) -> Any:
        if more or pandas_arguments:
            return super().__call__(*(() if path is None else (path,)), *more, **pandas_arguments)
        return _figure(self._needs, None if path is None else Path(path))


def _figure(needs: Requirements, path: Path | None) -> Any:
    """Return the figure of an estimate, written to ``path`` where there is one."""
    from gkestimator.reporting.requirements_picture import requirements_figure
    from gkestimator.reporting.style import PICTURE_SUFFIXES, check_drawable, drawing, saved

    check_drawable()
    form = None
    if path is not None:
        form = by_suffix("path", path, PICTURE_SUFFIXES)
        needs._refuse_overwriting(path)
    request = needs._request
    searched = request is not None and request.max_batch
    figure = requirements_figure(needs._rows, kernels=() if searched else needs._kernel_rows)
    if path is not None and form is not None:
        with drawing():
            write_bytes(path, saved(figure, form))
    return figure


def requirements_of(
    request: EstimateRequest | None,
    result: EstimateResult | None,
    failures: Sequence[tuple[Path, GkestimatorError]],
) -> Requirements:
    """Return ``result`` of ``request`` (both None: no model was found), with the ``failures`` beside it."""
    rows = () if result is None else result.rows
    needs = Requirements(to_dataframe(rows))
    needs._request = request
    needs._rows = rows
    needs._failures = tuple(failures)
    if result is not None:
        needs.messages = result.messages
    return needs
