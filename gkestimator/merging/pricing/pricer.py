"""The estimator as merging asks it: edited models in memory, on one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ModelError, UsageError
from gkestimator.core.graph import OperatorGraph, Tensor
from gkestimator.estimation.collection import rare_collection
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.request import MAX_BATCH_SIZE, EstimateRequest
from gkestimator.merging.editing import EditableModel, batch_dims, graph_of
from gkestimator.merging.options import MergeOptions
from gkestimator.merging.pricing.price import Priced
from gkestimator.operators.registry import stored_bytes


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
                unfold_batchnorm=False,  # what runs is the file: its BatchNorms stay in the convolutions
            )
        )
        self._target = self._engine.targets[0]
        # By id, which names a model while it is kept: those that are asked about more than once.
        self._bound: dict[tuple[int, int | None], tuple[EditableModel, OperatorGraph]] = {}

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

    def stored_bytes(self, dtype: DType, elements: int) -> int:
        """Bytes that ``elements`` values of a file take in the GPU's memory.

        Fewer than in the file where it holds float32 and the options ask for fp16 or bf16.
        """
        value = Tensor(name="", dtype=dtype, shape=(elements,), storage="")
        return stored_bytes(value, self._target.options)

    @property
    def host_overhead_us(self) -> float:
        """The host's time per framework call."""
        return self._engine.host_overhead_us

    def graph(self, model: EditableModel, batch_size: int | None) -> OperatorGraph:
        """The operator graph of ``model`` at a batch size (None: as exported, symbolic 1), bound once for each.

        Raises UsageError for a batch size that an estimate would refuse.
        """
        if batch_size is not None and not (type(batch_size) is int and 1 <= batch_size <= MAX_BATCH_SIZE):
            raise UsageError(
                f"{model.name}: batch size is {batch_size!r}: expected a whole number from 1 to {MAX_BATCH_SIZE}"
            )
        if batch_size is None and any(batch_dims(model).values()):
            batch_size = 1
        key = (id(model), batch_size)
        if key not in self._bound:
            self._bound[key] = (model, graph_of(model, batch_size=batch_size))
        return self._bound[key][1]

    def starts(self, model: EditableModel, *, batch_size: int | None = 1) -> dict[str, float]:
        """When each node's first kernel starts on the model's own timeline, in ms, by node name.

        Nodes that launch nothing (views, shape arithmetic, what reaches no output) are left out. ``batch_size`` is
        the reference that models are compared at (None: as exported). A file exported at another fixed batch is bound
        to the reference where that is provably sound, else left as it is exported.
        """
        with rare_collection():
            try:
                graph = self.graph(model, batch_size)
            except (ModelError, UsageError):
                if batch_size is None or any(batch_dims(model).values()):
                    raise
                graph = self.graph(model, None)
            return self._priced(model.name, [graph]).starts()

    def originals(self, models: Sequence[EditableModel], batch_sizes: Sequence[int | None]) -> Priced:
        """``models`` one after the other on one GPU, as one process that launches them back to back would run them.

        That is the fair opponent of a merged graph: two processes or two sessions would wait for one another at least
        as long. ``batch_sizes``: one for each (None: as exported, symbolic 1). Raises UsageError where a file was
        exported at another fixed batch.
        """
        with rare_collection():
            graphs = [self._as_it_runs(m, n) for m, n in zip(models, batch_sizes, strict=True)]
            return self._priced(" and ".join(m.name for m in models), graphs)

    def merged(
        self, model: EditableModel, models: Sequence[EditableModel], batch_sizes: Sequence[int | None]
    ) -> Priced:
        """``model``, which was made of ``models``, each of them at its own batch size."""
        with rare_collection():
            dims = {
                name: 1 if size is None else size
                for one, size in zip(models, batch_sizes, strict=True)
                for names in batch_dims(one).values()
                for name in names
            }
            return self._priced(model.name, [graph_of(model, dims=dims)])

    def _as_it_runs(self, model: EditableModel, batch_size: int | None) -> OperatorGraph:
        """At a batch size that the file itself can run."""
        if batch_size is not None and not any(batch_dims(model).values()):
            exported = self.graph(model, None)
            if exported.batch_size != batch_size:
                raise UsageError(
                    f"{model.name}: batch size {batch_size} was asked for, found a file exported at batch size "
                    f"{exported.batch_size}; expected that, or a file with a symbolic batch"
                )
            return exported
        return self.graph(model, batch_size)

    def _priced(self, name: str, graphs: Sequence[OperatorGraph]) -> Priced:
        engine = self._engine
        (estimated,) = engine.estimate([engine.lower_graphs(name, graphs)])
        return Priced(
            estimated,
            kernels=engine.pool.kernels,
            host_overhead_us=self.host_overhead_us,
            streams=engine.streams,
        )
