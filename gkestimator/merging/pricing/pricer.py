"""Tell what a graph, or a part of one, costs on a GPU as the estimator sees it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import ModelError, UsageError
from gkestimator.core.graph import OperatorGraph, Tensor
from gkestimator.core.kernels import Kernel
from gkestimator.core.records import frozen
from gkestimator.estimation.collection import rare_collection
from gkestimator.estimation.engine import Engine, Estimated
from gkestimator.estimation.request import MAX_BATCH_SIZE, EstimateRequest
from gkestimator.estimation.timeline import schedule
from gkestimator.merging.editing import (
    BatchSizes,
    EditableModel,
    Models,
    Names,
    Replaces,
    batch_dims,
    graph_of,
)
from gkestimator.merging.options import MergeOptions
from gkestimator.operators.registry import stored_bytes


@frozen
class Price:
    """Hold what one inference of a graph costs, or what a part of it adds to that.

    ``latency_ms``: from the first launch to the end of the last kernel, the host's time to issue calls
    included; of a part: how much shorter the whole would be without it. ``latency_low_ms`` and
    ``latency_high_ms`` are the ends of the 90 % interval (:mod:`gkestimator.estimation.intervals`); None for
    a part, and the high end where an operator is unknown. ``gpu_ms``: sum of the kernels' durations.
    ``dram_bytes``: every operand of every kernel once, ``weight_bytes`` the weights among what is read.
    ``flops`` counts a multiply-add as two. ``kernels``: launches, ``calls``: framework calls.
    ``resident_bytes``: weights that lie in memory (None for a part).
    """

    latency_ms: float
    gpu_ms: float
    dram_bytes: int
    weight_bytes: int
    flops: int
    kernels: int
    calls: int
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    resident_bytes: int | None = None

    def measure(self, which: str) -> float:
        """Return ``latency_ms`` for ``latency``, ``gpu_ms`` for ``gpu`` (``MergeOptions.price``)."""
        if which == "gpu":
            return self.gpu_ms
        return self.latency_ms


class Priced:
    """Hold a graph lowered, predicted and laid out in time, so that any part of it has a price.

    ``groups``: the operators that a call stands for, by the name of its step, where they are several.
    ``unknown_operators``: those whose time is not counted, because nobody knows it or because they run on the
    CPU.
    """

    def __init__(
        self,
        estimated: Estimated,
        *,
        kernels: list[Kernel],
        host_overhead_us: float,
        streams: int,
    ) -> None:
        self._program = estimated.lowering.program
        self._host_overhead_us = host_overhead_us
        self._streams = streams
        self._duration_us = estimated.predictions.duration_us[self._program.kernel]
        self._timeline = estimated.measures.timeline
        self._kernels = [kernels[row] for row in estimated.lowering.rows.tolist()]
        self._steps_of: dict[str, list[int]] = {}
        graph = estimated.lowering.graph
        self.groups: Replaces = graph.groups
        for at, step in enumerate(self._program.steps):
            for name in graph.groups.get(step.name, (step.name,)):
                self._steps_of.setdefault(name, []).append(at)
        launches = self._program.kernel
        work = np.array(
            [(k.read_bytes + k.write_bytes, k.weight_bytes, k.flops) for k in self._kernels], dtype=np.float64
        ).reshape(-1, 3)
        self._work = work[launches] * self._program.repeat[:, None]
        self.unknown_operators = tuple(
            sorted({*graph.unknown_operators, *estimated.lowering.lowered.host_operators})
        )
        m = estimated.measures
        self.price = Price(
            latency_ms=m.latency_ms,
            latency_low_ms=m.latency_low_ms,
            latency_high_ms=None if self.unknown_operators else m.latency_high_ms,
            gpu_ms=m.gpu_ms,
            dram_bytes=m.dram_bytes,
            weight_bytes=int(self._work[:, 1].sum()),
            flops=m.flops,
            kernels=m.kernels,
            calls=round(float(self._program.calls.sum())),
            resident_bytes=sum(graph.weights.values()),
        )
        if not (0 <= m.latency_ms < math.inf and 0 <= m.gpu_ms < math.inf):
            raise ModelError(
                f"{graph.name}: estimated at {m.latency_ms} ms ({m.gpu_ms} ms of kernels): expected a time from 0"
            )

    def starts(self) -> dict[str, float]:
        """Return the start of every operator's first kernel in ms; operators that launch nothing are left
        out.

        Those of one fused call start together.
        """
        first = np.searchsorted(self._program.step, np.arange(len(self._program.steps) + 1))
        return {
            name: float(self._timeline.start_us[first[steps[0]]]) / 1e3
            for name, steps in self._steps_of.items()
            if first[steps[0]] < first[steps[0] + 1]
        }

    def piece(self, operators: Collection[str]) -> Price:
        """Return what the calls that stand for ``operators`` cost where they are: the whole less the whole
        without them.

        So the host's time counts where the host sets the pace, and the kernels' where the GPU does.
        """
        taken = np.zeros(len(self._program.steps), dtype=bool)
        taken[self._steps(operators)] = True
        launches = taken[self._program.step]
        # the timeline without the part: where the host sets the pace, a kernel less may save nothing
        rest = schedule(
            self._program.only(~taken),
            self._duration_us[~launches],
            host_overhead_us=self._host_overhead_us,
            streams=self._streams,
        )
        repeat = self._program.repeat[launches]
        moved, weights, flops = self._work[launches].sum(axis=0)
        return Price(
            latency_ms=max(0.0, self._timeline.total_us - rest.total_us) / 1e3,
            gpu_ms=float(np.dot(self._duration_us[launches], repeat)) / 1e3,
            dram_bytes=int(moved),
            weight_bytes=int(weights),
            flops=int(flops),
            kernels=int(repeat.sum()),
            calls=round(float(self._program.calls[taken].sum())),
        )

    def flops(self, operators: Collection[str]) -> int:
        """Return the work of the calls that stand for ``operators``."""
        return int(self._work[self._launches(operators), 2].sum())

    def largest_kernel(self, operators: Collection[str]) -> Kernel | None:
        """Return the kernel with most FLOPs among those of ``operators``; None where they launch none."""
        rows = self._program.kernel[self._launches(operators)].tolist()
        return max((self._kernels[row] for row in rows), key=lambda kernel: kernel.flops, default=None)

    def _launches(self, operators: Collection[str]) -> np.ndarray:
        """Return for each launch whether it is of a call that stands for one of ``operators``."""
        return np.isin(self._program.step, self._steps(operators))

    def _steps(self, operators: Collection[str]) -> list[int]:
        return sorted({at for name in operators for at in self._steps_of.get(name, ())})


class Pricer:
    """Price graphs under ``options``.

    Raises as an estimate would: unknown GPU, bundle that cannot be read, ...

    An operator that the estimator does not know costs nothing, before merging as after it: it is never
    merged, so that the difference stays right, and :attr:`Priced.unknown_operators` names it.
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
        """Return the canonical name of the GPU."""
        return self._target.gpu.name

    @property
    def notes(self) -> Names:
        """Return what to say of choices that nobody made: the GPU a short name stands for, a host profile
        that was found.
        """
        return tuple(text for text in (self._target.note, self._engine.host_note) if text)

    @property
    def l2_bytes(self) -> int:
        """Return the size of the GPU's L2 cache."""
        return self._target.gpu.l2_bytes

    def stored_bytes(self, dtype: DType, elements: int) -> int:
        """Return the bytes that ``elements`` values of a file take in the GPU's memory.

        Fewer than in the file where it holds float32 and the options ask for fp16 or bf16.
        """
        value = Tensor(name="", dtype=dtype, shape=(elements,), storage="")
        return stored_bytes(value, self._target.options)

    @property
    def host_overhead_us(self) -> float:
        """Return the host's time per framework call."""
        return self._engine.host_overhead_us

    def graph(self, model: EditableModel, batch_size: int | None) -> OperatorGraph:
        """Return the operator graph of ``model`` at a batch size (None: as exported, symbolic 1), bound once
        for each.

        Raises UsageError for a batch size that an estimate would refuse.
        """
        if batch_size is not None and not (type(batch_size) is int and 1 <= batch_size <= MAX_BATCH_SIZE):
            raise UsageError(
                f"{model.name}: batch size is {batch_size!r}: expected a whole number from 1 to {MAX_BATCH_SIZE}"
            )
        if batch_size is None and any(batch_dims(model).values()):
            batch_size = 1
        # by identity: an edited model has no cheap hash, and is kept in the entry, so that the id stays its own
        key = (id(model), batch_size)
        if key not in self._bound:
            self._bound[key] = (model, graph_of(model, batch_size=batch_size))
        return self._bound[key][1]

    def starts(self, model: EditableModel, *, batch_size: int | None = 1) -> dict[str, float]:
        """Return when each node's first kernel starts on the model's own timeline, in ms, by node name.

        Nodes that launch nothing (views, shape arithmetic, what reaches no output) are left out.
        ``batch_size`` is the reference that models are compared at (None: as exported). A file exported at
        another fixed batch is bound to the reference where that is provably sound, else left as it is
        exported.
        """
        with rare_collection():
            try:
                graph = self.graph(model, batch_size)
            except (ModelError, UsageError):
                if batch_size is None or any(batch_dims(model).values()):
                    raise
                graph = self.graph(model, None)
            return self._priced(model.name, [graph]).starts()

    def originals(self, models: Models, batch_sizes: BatchSizes) -> Priced:
        """Price ``models`` one after the other on one GPU, as one process that launches them back to back
        would run them.

        That is the fair opponent of a merged graph: two processes or two sessions would wait for one another
        at least as long. ``batch_sizes``: one for each (None: as exported, symbolic 1). Raises UsageError
        where a file was exported at another fixed batch.
        """
        with rare_collection():
            graphs = [self._as_it_runs(m, n) for m, n in zip(models, batch_sizes, strict=True)]
            return self._priced(" and ".join(model.name for model in models), graphs)

    def merged(self, model: EditableModel, models: Models, batch_sizes: BatchSizes) -> Priced:
        """Price ``model``, which was made of ``models``, each of them at its own batch size."""
        with rare_collection():
            dims = {
                name: 1 if size is None else size
                for one, size in zip(models, batch_sizes, strict=True)
                for names in batch_dims(one).values()
                for name in names
            }
            return self._priced(model.name, [graph_of(model, dims=dims)])

    def _as_it_runs(self, model: EditableModel, batch_size: int | None) -> OperatorGraph:
        """Return the graph at a batch size that the file itself can run."""
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
