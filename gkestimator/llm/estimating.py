"""Estimate a decoder: its prompts and steps by the kernels that they launch, its memory by count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UsageError
from gkestimator.core.kernels import KernelGraph
from gkestimator.estimation.engine import Engine, Estimated, Lowerings
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.targets import Target
from gkestimator.llm.configs import read_decoder
from gkestimator.llm.exported import read_exported
from gkestimator.llm.memory import MemoryLaw
from gkestimator.llm.objectives import best_rows
from gkestimator.llm.parts import Pass
from gkestimator.llm.profiles import ENGINES, ServingEngine
from gkestimator.llm.request import DTYPES, PARALLEL, LlmRequest
from gkestimator.llm.rows import LlmAnswer, RequestLengths, TimeSpan
from gkestimator.llm.source import DecoderSource, configured
from gkestimator.tables.llm_requirement import LlmRequirement

_ACTIVATIONS = {"bf16": DType.BFLOAT16, "fp8": DType.BFLOAT16}
_CACHE_TYPES = {
    "fp16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "fp8": DType.FLOAT8E4M3FN,
    "int8": DType.INT8,
}


_BATCHES = (1, 8, 64)
_ONNX = ".onnx"

Key: TypeAlias = tuple[int, int, int]
"""Batch, new tokens and past tokens of a pass."""


def estimate_llm(
    request: LlmRequest, note: Callable[[str], object] = lambda line: None
) -> list[LlmRequirement]:
    """Return a row for every type of numbers, number of GPUs, lengths, batch and GPU type, in that order.

    ``note`` is called with a line on each thing that the rows do not say: GPUs left out, a host profile used.
    Raises DocumentError, ModelError, UsageError, SpecError or BundleError.
    """
    source = _source(request)
    rows: list[LlmRequirement] = []
    lines: dict[str, None] = {}
    for word in request.dtypes:
        for count in request.tensor_parallel:
            if count not in PARALLEL:
                raise UsageError(f"tensor_parallel: found {count}, expected 1, 2, 4 or 8")
            question = _Question(request, source, word, count)
            rows += question.rows()
            lines |= dict.fromkeys(question.notes)
    for line in lines:
        note(line)
    return rows


def _source(request: LlmRequest) -> DecoderSource:
    """Return what the request's file describes: an ONNX file by its suffix, else a configuration."""
    path = Path(request.model)  # type: ignore[arg-type]  # required
    if path.suffix.lower() == _ONNX:
        if request.like is not None:
            raise UsageError(
                f"{path}: like: found {request.like} for an ONNX file, expected it with a config.json"
            )
        return read_exported(path, request.dims)
    if request.dims:
        raise UsageError(
            f"{path}: dims: found {request.dims[0]!r} for a configuration, expected an ONNX file"
        )
    return configured(read_decoder(path, like=request.like))


class _Question:
    """Answer for one type of numbers and one number of GPUs."""

    def __init__(self, request: LlmRequest, source: DecoderSource, word: str, count: int) -> None:
        self.request = request
        self.whole = source
        self.source = source.shared(count)
        self.count = count
        self.engine: ServingEngine = ENGINES[request.engine]
        self.dtype = DTYPES[word]
        self.activations = _ACTIVATIONS.get(word, DType.FLOAT16)
        self.cache = source.cache_type(self.activations, _CACHE_TYPES.get(request.kv_dtype))
        self._lowerings: dict[Pass, Lowerings] = {}
        self.estimates = Engine(
            EstimateRequest(
                (Path(source.name),),
                request.gpus,
                runtime=self.engine.runtime,
                dtype=self.dtype,
                host_overhead_us=request.host_overhead_us,
                bundles=request.bundles,
                gpu_specs=request.gpu_specs,
            )
        )

    def rows(self) -> Iterator[LlmRequirement]:
        """Yield a row for every lengths, batch and GPU; of the best batch alone where only objectives are named."""
        objectives = self.request.objectives
        lengths = list(product(self.request.input_tokens, self.request.output_tokens))
        if self.request.batch_sizes is None and objectives.named:
            for first, then in lengths:
                yield from best_rows(partial(self._rows_at, first, then), objectives)
            return
        batches = self.request.batch_sizes or _BATCHES
        yield from self._rows(
            [
                RequestLengths(batch=batch, input_tokens=first, output_tokens=then)
                for first, then in lengths
                for batch in batches
            ]
        )

    def _rows_at(self, first: int, then: int, batch: int) -> dict[str, LlmRequirement]:
        """Return the rows of one batch by GPU type."""
        asked = RequestLengths(batch=batch, input_tokens=first, output_tokens=then)
        return {row.gpu: row for row in self._rows([asked])}

    def _rows(self, asked: Sequence[RequestLengths]) -> Iterator[LlmRequirement]:
        passes: dict[Key, Lowerings] = {}
        for lengths in asked:
            for run in self._passes(lengths):
                key = (run.batch, run.tokens, run.past)
                if key not in passes:
                    passes[key] = self._lowered(run)
        answers: dict[tuple[Key, str], Estimated] = {}
        # All of them first: until then GPUs of a group may be left out.
        estimated = iter(list(self.estimates.estimate(list(passes.values()))))
        for key in passes:
            for target in self.estimates.targets:
                answers[key, target.gpu.name] = next(estimated)
        for lengths in asked:
            for target in self.estimates.targets:
                yield self._answer(lengths, target, answers).row()

    @property
    def notes(self) -> list[str]:
        """Return lines on GPUs that were left out, and on the host's figures."""
        notes = (self.estimates.left_out_note, self.estimates.host_note)
        return [line for line in notes if line is not None]

    def _passes(self, lengths: RequestLengths) -> Iterator[Pass]:
        yield self._pass(lengths.batch, lengths.input_tokens, 0)
        for past, _ in lengths.contexts():
            yield self._pass(lengths.batch, 1, past)

    def _pass(self, batch: int, tokens: int, past: int) -> Pass:
        return Pass(
            batch=batch,
            tokens=tokens,
            past=past,
            dtype=self.activations,
            cache=self.cache,
            fused=self.engine.fused,
            merged=self.engine.merged,
            in_place=self.engine.graph,
        )

    def _lowered(self, run: Pass) -> Lowerings:
        if run not in self._lowerings:
            graph = self.source.pass_graph(run)
            lowered = self.estimates.lower_graphs(self.source.name, [graph])
            # Layers follow each other: the host's time for small kernels is hidden behind the large ones before them.
            self._lowerings[run] = {
                options: replace(one, program=one.program.unrolled()) for options, one in lowered.items()
            }
        return self._lowerings[run]

    def _lower(self, target: Target, run: Pass) -> KernelGraph:
        return self._lowered(run)[target.options].graph

    def _answer(
        self, lengths: RequestLengths, target: Target, answers: Mapping[tuple[Key, str], Estimated]
    ) -> LlmAnswer:
        """Return all that is known of ``lengths`` on one GPU type."""
        name = target.gpu.name
        steps = [(answers[(lengths.batch, 1, past), name], weight) for past, weight in lengths.contexts()]
        return LlmAnswer(
            source=self.whole,
            engine=self.engine,
            dtype=self.dtype,
            cache=self.cache,
            gpu=target.gpu,
            gpus=self.count,
            lengths=lengths,
            prompt=answers[(lengths.batch, lengths.input_tokens, 0), name],
            steps=tuple(steps),
            step_host=self._step_host,
            laws={count: self._memory_law(target, count) for count in PARALLEL},
        )

    @property
    def _step_host(self) -> TimeSpan:
        """Return the host's time beside the kernels of a step."""
        asked = self.request.step_host_ms
        if asked is not None:
            return TimeSpan(value=asked, low=asked, high=asked)
        low, high = self.engine.step_host_range_ms
        return TimeSpan(value=self.engine.step_host_ms, low=low, high=high)

    def _memory_law(self, target: Target, count: int) -> MemoryLaw | None:
        """Return the law of memory where ``count`` GPUs share the model; None where they cannot."""
        try:
            source = self.whole.shared(count)
        except UsageError:
            return None
        context = self.estimates.context_bytes(target.gpu)
        lower = partial(self._lower, target)
        return MemoryLaw(
            source=source,
            engine=self.engine,
            weights=source.weight_bytes(self.dtype, lower),
            context=0 if context is None else context,
            cache_bits=self.cache.bits,
            visible=None if context is None else target.gpu.memory_visible_bytes,
            lower=lower,
        )
