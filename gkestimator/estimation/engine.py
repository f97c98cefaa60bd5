"""Estimate many models on many GPUs: read, bind and lower each once, predict every distinct kernel once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gkestimator.core.errors import GkestimatorError, NoBatchError, UsageError
from gkestimator.core.graph import OperatorGraph
from gkestimator.core.handfuls import Handful
from gkestimator.core.kernels import Array, KernelGraph, KernelTable
from gkestimator.core.options import spelled
from gkestimator.core.records import frozen
from gkestimator.estimation.dimensions import DimensionsMet, InputsMet
from gkestimator.estimation.intervals import host_range_us
from gkestimator.estimation.joining import joined
from gkestimator.estimation.recall import (
    RECALL,
    ModelSource,
    RecalledLowering,
    model_names,
    path_of,
    recalled,
)
from gkestimator.estimation.request import EstimateRequest, Progress
from gkestimator.estimation.requirement import Measures, measure
from gkestimator.estimation.sources import load_bundles
from gkestimator.estimation.targets import (
    Target,
    effective_dtype,
    graph_launch_calls,
    most_scratch_bytes,
    require_quantised,
    targets_of,
)
from gkestimator.estimation.timeline import KernelPool, LaunchProgram
from gkestimator.hardware.gpus import GpuSpec, gpu_catalogue
from gkestimator.hardware.host_profile import HostProfile, default_host_file, load_host_file
from gkestimator.hardware.runtimes.profiles import RuntimeProfile, load_runtime
from gkestimator.kernel_models.prediction import KernelEstimator, KernelPredictions
from gkestimator.kernel_models.roofline import confined
from gkestimator.kernel_models.steady import sustained
from gkestimator.lowering import lower_each
from gkestimator.memory import MemoryProfile, MemoryReplay, cumulative_reserved
from gkestimator.operators.records import version_of_operators
from gkestimator.operators.registry import LoweringOptions

Lowerings: TypeAlias = "dict[LoweringOptions, Lowering]"


@frozen
class Lowering:
    """Hold one model at one batch size, lowered under one set of options, with its rows in the pool of
    kernels.
    """

    model: str
    path: Path | None  # None: of a graph that no file holds
    lowered: RecalledLowering
    program: LaunchProgram
    rows: Array  # rows of the pool this lowering uses

    @property
    def graph(self) -> KernelGraph:
        """Return its steps and kernels."""
        return self.lowered.graph


@frozen
class Estimated:
    """Hold one answer: a lowering on a target at an SM share.

    ``predictions`` are rows ``lowering.rows`` of the pool.
    """

    lowering: Lowering
    target: Target
    sm_share_pct: float
    measures: Measures
    memory: MemoryProfile
    predictions: KernelPredictions
    estimator: str


class Engine:
    """Hold everything that one request shares: GPUs, runtime profile, bundles, and the kernels seen."""

    def __init__(self, request: EstimateRequest) -> None:
        self.request = request
        self.profile: RuntimeProfile = load_runtime(request.runtime)
        self._most_scratch = most_scratch_bytes(request, self.profile)
        self._graph_calls = graph_launch_calls(request, self.profile)
        host_file = request.host or default_host_file()
        self.host: HostProfile | None = None if host_file is None else load_host_file(host_file)
        catalogue = gpu_catalogue(tuple(request.gpu_specs), bundles=tuple(request.bundles))
        self._targets = targets_of(request, catalogue, self.profile)
        bundle = load_bundles(tuple(request.bundles)).under(request.runtime, request.runtime_version)
        self.estimator: KernelEstimator = bundle
        self.version_note = bundle.version_note
        models = len(request.models)
        self.dims_met = DimensionsMet(request.dim_combinations, models)
        self.inputs_met = InputsMet(request.inputs or {}, models)
        self.forget()

    def forget(self) -> None:
        """Let go of every kernel and graph seen; what was lowered before cannot be estimated after."""
        self.pool = KernelPool()
        self.memory = MemoryReplay(self.profile.allocator, self.profile.allocator_bytes, self._most_scratch)

    @property
    def targets(self) -> tuple[Target, ...]:
        """Return the GPUs that are estimated for; those of a group lose a member that lacks a figure."""
        return self._targets.known

    @property
    def left_out_note(self) -> str | None:
        """Return the line that names the GPUs of a group that are left out; None where there are none."""
        return self._targets.left_out_note

    def check_names(self) -> None:
        """Raise UsageError for a dimension or an input that none of the models has that were read."""
        self.dims_met.check()
        self.inputs_met.check()

    @property
    def host_overhead_us(self) -> float:
        """Return the overhead of one framework call: the request's, else the host's, else the profile's."""
        asked = self.request.host_overhead_us
        if asked is None and self.host is not None:
            asked = self.host.host_overhead_us.get(self.profile.name)
        if asked is None:
            return self.profile.host_overhead_us
        return asked

    @property
    def host_range_us(self) -> tuple[float, float]:
        """Return the range that the host's overhead lies in: about this host's own, or all hosts known."""
        own = None if self.host is None else self.host.overhead_range_us(self.profile.name)
        known = self.profile.host_range_us if own is None else own
        return host_range_us(self.request.host_overhead_us, known)

    def context_bytes(self, gpu: GpuSpec) -> int | None:
        """Return the memory of context and library handles on ``gpu``: the request's, else the profile's."""
        asked = self.request.context_mib
        if asked is None:
            return self.profile.context_bytes(gpu)
        return round(asked * 2**20)

    @property
    def host_overhead_source(self) -> str:
        """Return where :attr:`host_overhead_us` is from, in words."""
        if self.request.host_overhead_us is not None:
            return "given"
        if self.host is not None and self.profile.name in self.host.host_overhead_us:
            return self.host.source("host_overhead_us", self.profile.name)
        # how it was found out stands behind the colon: too long for a closing line, and in the profile's file
        return self.profile.sources["host_overhead_us"].partition(": ")[0]

    @property
    def copy_bytes_per_s(self) -> float:
        """Return the rate of copies between host and GPU: the host's, else the runtime profile's."""
        known = {} if self.host is None else self.host.copy_bytes_per_s
        return known.get(self.profile.name, self.profile.copy_bytes_per_s)

    @property
    def host_note(self) -> str | None:
        """Return what to say where a host profile was used without being asked for by name."""
        host = self.host
        if host is None or self.request.host is not None:
            return None
        others = f"{spelled('host')} or {spelled('host_overhead_us')}"
        return f"host profile {host.path} is used ({host.name}); {others} choose another"

    @property
    def streams(self) -> int:
        """Return the streams that kernels are spread over: the request's, else what the runtime does."""
        if self.request.streams is None:
            return self.profile.streams
        return self.request.streams

    def cumulative_reserved(self, graphs: Sequence[KernelGraph], gpu: GpuSpec) -> tuple[int, ...]:
        """Return the bytes reserved on ``gpu`` after each of the graphs, run one after another in one process."""
        return cumulative_reserved(
            graphs,
            allocator=self.profile.allocator,
            figures=self.profile.allocator_bytes,
            library_workspace_bytes=self.profile.library_workspace_bytes(gpu),
            most_scratch=self._most_scratch,
        )

    def lower_model(
        self, source: ModelSource, batch_size: int | None, dims: Mapping[str, int] | None = None
    ) -> Lowerings:
        """Bind a model at one batch size and lower it once per set of options, unless that is remembered.

        ``dims`` None: the first combination of those that are asked for.
        """
        if dims is None:
            dims = self.request.dim_combinations[0]
        targets = self._targets.by_options()
        keys = {options: self._key(source, batch_size, dims, options) for options in targets}
        known = {options: None if key is None else RECALL.get(key) for options, key in keys.items()}
        # One option that is missing costs about as much as all: they share reading, binding and shapes.
        if None in known.values():
            known = dict(self._lower(source, batch_size, dims, targets))
            for options, key in keys.items():
                entry = known[options]
                if key is not None and entry is not None:
                    RECALL.put(key, entry)
        return self._placed(source.name, source.path, {o: e for o, e in known.items() if e is not None})

    def lower_all(self, source: ModelSource) -> list[Lowerings]:
        """Lower a model at all its dimensions and batch sizes; without a batch it is one sample."""
        batches: Sequence[int | None] = self.request.batch_sizes or (None,)
        lowered = []
        for dims in self.dims_met.combinations(source):
            try:
                lowered += [self.lower_model(source, size, dims) for size in dict.fromkeys(batches)]
            except NoBatchError:
                if 1 not in batches:
                    raise
                lowered.append(self.lower_model(source, None, dims))
        return lowered

    def lower_graphs(self, name: str, bound: Sequence[OperatorGraph]) -> Lowerings:
        """Lower bound graphs that no file holds, to run one after the other; they are not remembered.

        No two of them may have a storage's name in common.
        """
        targets = self._targets.by_options()
        parts = [dict(self._lower_bound(graph, targets)) for graph in bound]
        entries = {options: joined(name, [part[options] for part in parts]) for options in targets}
        return self._placed(name, None, entries)

    def _placed(
        self, name: str, path: Path | None, entries: Mapping[LoweringOptions, RecalledLowering]
    ) -> Lowerings:
        # By id of the graph: options that change nothing share it.
        placed: dict[int, tuple[LaunchProgram, Array]] = {}
        lowerings = {}
        for options, entry in entries.items():
            key = id(entry.graph)
            if key not in placed:
                placed[key] = self._place(entry)
            program, rows = placed[key]
            lowerings[options] = Lowering(model=name, path=path, lowered=entry, program=program, rows=rows)
        return lowerings

    def _key(
        self,
        source: ModelSource,
        batch_size: int | None,
        dims: Mapping[str, int],
        options: LoweringOptions,
    ) -> Hashable:
        """Return everything that a lowering depends on; None where it is not worth remembering."""
        request = self.request
        if source.identity is None or request.inputs:
            return None
        rules = version_of_operators()  # a plug-in adds to them
        return (
            source.identity,
            source.name,
            batch_size,
            tuple(sorted(dims.items())),
            request.trip_count,
            request.batch_dim,
            request.allow_unknown,
            request.dtype,
            options,
            rules,
        )

    def _lower(
        self,
        source: ModelSource,
        batch_size: int | None,
        dims: Mapping[str, int],
        targets: Mapping[LoweringOptions, Target],
    ) -> Iterator[tuple[LoweringOptions, RecalledLowering]]:
        request = self.request
        bound = source.model.bind(
            batch_size=batch_size,
            dims=dims,
            trip_count=request.trip_count,
            batch_dim=request.batch_dim,
            inputs=self.inputs_met.of(source),
        )
        yield from self._lower_bound(bound, targets)

    def _lower_bound(
        self, bound: OperatorGraph, targets: Mapping[LoweringOptions, Target]
    ) -> Iterator[tuple[LoweringOptions, RecalledLowering]]:
        request = self.request
        require_quantised(request, bound)
        graphs = lower_each(bound, tuple(targets), allow_unknown=request.allow_unknown)
        made: dict[int, RecalledLowering] = {}
        for (options, target), graph in zip(targets.items(), graphs, strict=True):
            same = made.get(id(graph))
            if same is None:
                same = made[id(graph)] = recalled(bound, graph)
            yield options, replace(same, dtype=effective_dtype(graph, target.dtype, request.dtype))

    def _place(self, entry: RecalledLowering) -> tuple[LaunchProgram, Array]:
        self.pool.add(entry.graph)
        program = LaunchProgram.of(entry.graph.steps, self.pool.row_of_id)
        if self._graph_calls is not None and not entry.not_captured:
            program = program.captured(self._graph_calls)
        # Predictions of a lowering are taken out of the pool by these rows, in this order.
        rows, local = np.unique(program.kernel, return_inverse=True)
        return replace(program, kernel=local.astype(np.intp)), rows

    def estimate(self, lowerings: Sequence[Lowerings]) -> Iterator[Estimated]:
        """Yield every lowering on every GPU at every SM share, in that order; kernels are predicted once per
        GPU.
        """
        table = KernelTable.from_kernels(self.pool.kernels)
        cache = self._predict_all(table, lowerings)
        for by_options in lowerings:
            for target in self.targets:
                for share in self.request.sm_shares:
                    # Of the ways that the dtype permits the compiler takes the fastest; of equals the narrowest.
                    predicted = cache[target.gpu.name, share]
                    each = target.all_options
                    ways = [self._estimated(table, by_options[o], target, share, predicted) for o in each]
                    yield min(ways, key=lambda way: way.measures.latency_ms)

    def _estimated(
        self,
        table: KernelTable,
        lowering: Lowering,
        target: Target,
        share: float,
        predicted: tuple[KernelPredictions, Array],
    ) -> Estimated:
        """Return one lowering on one GPU at one SM share, given the predictions of all kernels of ``table``."""
        rows, (everything, place) = lowering.rows, predicted
        predictions = everything.take(place[rows])
        moved = predictions.moved_bytes
        measures = measure(
            lowering.program,
            predictions,
            flops=table.columns["flops"][rows],
            dram_bytes=table.total_bytes[rows] if moved is None else moved,
            families=table.family[rows],
            host_overhead_us=self.host_overhead_us,
            host_range_us=self.host_range_us,
            streams=self.streams,
            tau_ms=self.request.tau_ms,
            allowed_pct=100.0 * confined(target.gpu, share).sms / target.gpu.sms,
        )
        return Estimated(
            lowering=lowering,
            target=target,
            sm_share_pct=share,
            measures=measures,
            memory=self._memory(lowering, target.gpu),
            predictions=predictions,
            estimator=self.estimator.name_on(target.gpu),
        )

    def _predict_all(
        self, table: KernelTable, lowerings: Sequence[Lowerings]
    ) -> dict[tuple[str, float], tuple[KernelPredictions, Array]]:
        """Return the predictions by GPU and share; a GPU of a group that lacks a figure for them is left out."""
        # Every lowering asks for the same kernels on a GPU at a share: one prediction answers all of them.
        predicted = {}
        for target in self.targets:
            asked = [by[options].rows for by in lowerings for options in target.all_options]
            used = np.unique(np.concatenate(asked))
            try:
                for share in self.request.sm_shares:
                    predicted[target.gpu.name, share] = self._predict(table, used, target.gpu, share)
            except UsageError as e:
                self._targets = self._targets.without(target, e)
        return predicted

    def _predict(
        self, table: KernelTable, rows: Array, gpu: GpuSpec, share: float
    ) -> tuple[KernelPredictions, Array]:
        place = np.full(len(table), -1, dtype=np.intp)
        place[rows] = np.arange(rows.size)
        chosen = table.take(rows)
        return sustained(self.estimator.predict(chosen, gpu, sm_share_pct=share), chosen, gpu, share), place

    def _memory(self, lowering: Lowering, gpu: GpuSpec) -> MemoryProfile:
        library = self.profile.library_workspace_bytes(gpu)
        known = lowering.lowered.memory
        key = (self.profile.name, library, self._most_scratch)
        if key not in known:
            known[key] = self.memory.profile(lowering.graph, library)
        return known[key]

    def run(
        self, progress: Progress | None = None
    ) -> Iterator[tuple[Path, list[Estimated] | GkestimatorError]]:
        """Estimate a handful of models at a time; one that fails yields its error. Raises as DimensionsMet.check."""
        names = model_names(self.request.models)
        total = len(names)
        handful = Handful(prepare=self.lower_all, answer=self._answers, forget=self.forget, several=total > 1)
        for start in range(0, total, _CHUNK):
            sources: dict[int, ModelSource] = {}  # by place: one file may be asked for twice
            for at, (model, name) in enumerate(names[start : start + _CHUNK], start=start):
                if progress is not None:
                    progress(name, at, total)
                sources[at] = ModelSource(model, name)
            outcomes = handful.outcomes(sources)
            for at in sources:
                yield path_of(names[at][0]), outcomes[at]
            self.forget()
        self.check_names()
        if progress is not None:
            progress("", total, total)

    def _answers(self, good: Mapping[int, list[Lowerings]]) -> dict[int, list[Estimated]]:
        """Return the answers of lowered models by place; distinct kernels are predicted once for all of them."""
        answers = self.estimate([lowering for lowerings in good.values() for lowering in lowerings])
        gathered: dict[int, list[Estimated]] = {}
        for at, lowerings in good.items():
            first = next(answers)
            # Counted after the first answer: until then GPUs of a group may be left out.
            count = len(lowerings) * len(self.targets) * len(self.request.sm_shares)
            gathered[at] = [first, *islice(answers, count - 1)]
        return gathered


# Models lowered before any is predicted: enough to share predictions, few enough to bound the memory.
_CHUNK = 16
