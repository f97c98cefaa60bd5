"""The estimator as merging asks it: edited models in memory, one GPU, every distinct kernel predicted once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gkestimator.errors import ModelError, UsageError
from gkestimator.estimation.collection import rare_collection
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.request import EstimateRequest
from gkestimator.graph import OperatorGraph
from gkestimator.lowering import fused_groups
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing.price import Priced
from gkestimator.onnx_io import Model
from gkestimator.onnx_io.editing import EditableModel
from gkestimator.onnx_io.editing.bindable import bindable

__all__ = ["Pricer"]


class Pricer:
    """Prices under ``options``. Raises as an estimate would: unknown GPU, bundle that cannot be read, ...

    An operator that the estimator does not know costs nothing, before merging as after it: it is never merged, so
    that the difference stays right, and :attr:`Priced.unknown_operators` names it.
    """

    def __init__(self, options: MergeOptions) -> None:
        self.options = options
        self._engine = Engine(
            EstimateRequest(
                models=[Path("merge")],  # asked for by the request, never opened: models come in memory
                gpus=[options.gpu],
                runtime=options.runtime,
                dtype=options.dtype,
                bundles=list(options.bundles),
                gpu_specs=list(options.gpu_specs),
                allow_unknown=True,
            )
        )
        self._target = self._engine.targets[0]
        self._read: dict[int, tuple[EditableModel, Model]] = {}  # by id, which holds while the model is kept

    @property
    def gpu(self) -> str:
        """Canonical name of the GPU."""
        return self._target.gpu.name

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say of choices that nobody made: the GPU a short name stands for, a host profile that was found."""
        return tuple(text for text in (self._target.note, self._engine.host_note) if text)

    @property
    def l2_bytes(self) -> int:
        """The GPU's L2 cache."""
        return self._target.gpu.l2_bytes

    @property
    def host_overhead_us(self) -> float:
        """The host's time per framework call."""
        return self._engine.host_overhead_us

    def starts(self, model: EditableModel, *, batch_size: int | None = 1) -> dict[str, float]:
        """When each node's first kernel starts on the model's own timeline, in ms, by node name.

        Nodes that launch nothing (views, shape arithmetic, what reaches no output) are left out. ``batch_size`` is
        the reference that models are compared at (None: as exported). A file exported at another fixed batch is bound
        to the reference where that is provably sound, else left as it is exported.
        """
        with rare_collection():
            read = self._model(model)
            try:
                graph = read.bind(batch_size=batch_size)
            except (ModelError, UsageError):
                if batch_size is None or read.batch_dims or read.exported_batch == batch_size:
                    raise
                graph = read.bind()
            return self._priced(model.name, [graph]).starts()

    def originals(self, models: Sequence[EditableModel], batch_sizes: Sequence[int | None]) -> Priced:
        """``models`` one after the other on one GPU, as one process that launches them back to back would run them.

        That is the fair opponent of a merged graph: two processes or two sessions would wait for one another at least
        as long. ``batch_sizes``: one for each (None: as exported, symbolic 1). Raises UsageError where a file was
        exported at another fixed batch.
        """
        with rare_collection():
            graphs = [self._bound(m, n) for m, n in zip(models, batch_sizes, strict=True)]
            return self._priced(" and ".join(m.name for m in models), graphs)

    def merged(
        self, model: EditableModel, models: Sequence[EditableModel], batch_sizes: Sequence[int | None]
    ) -> Priced:
        """``model``, which was made of ``models``, each of them at its own batch size."""
        with rare_collection():
            dims: dict[str, int] = {}
            for one, size in zip(models, batch_sizes, strict=True):
                dims.update(dict.fromkeys(self._model(one).batch_dims, 1 if size is None else size))
            return self._priced(model.name, [bindable(model).bind(dims=dims)])

    def _model(self, model: EditableModel) -> Model:
        known = self._read.get(id(model))
        if known is None:
            known = self._read[id(model)] = (model, bindable(model))
        return known[1]

    def _bound(self, model: EditableModel, batch_size: int | None) -> OperatorGraph:
        read = self._model(model)
        if not read.batch_dims and batch_size not in (None, read.exported_batch):
            raise UsageError(
                f"{model.name}: batch size {batch_size} was asked for, found a file exported at batch size "
                f"{read.exported_batch}; expected that, or a file with a symbolic batch"
            )
        return read.bind(batch_size=batch_size)

    def _priced(self, name: str, graphs: Sequence[OperatorGraph]) -> Priced:
        engine, options = self._engine, self._target.options
        lowerings = engine.lower_graphs(name, graphs)
        (estimated,) = engine.estimate([lowerings])
        groups: dict[str, tuple[str, ...]] = {}
        for graph in graphs:
            groups.update(fused_groups(graph, options))
        return Priced(
            estimated,
            groups,
            kernels=engine.pool.kernels,
            host_overhead_us=engine.host_overhead_us,
            streams=engine.streams,
        )
