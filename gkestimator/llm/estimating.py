"""Estimate a decoder: its prompts and steps by the kernels that they launch, its memory by count."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UsageError
from gkestimator.core.graph import Operator, OperatorGraph
from gkestimator.estimation.engine import Engine, Estimated, Lowerings
from gkestimator.estimation.request import EstimateRequest
from gkestimator.estimation.targets import Target
from gkestimator.llm.configs import read_decoder
from gkestimator.llm.decoder import Decoder
from gkestimator.llm.memory import MemoryLaw
from gkestimator.llm.parts import Pass, decoder_parts
from gkestimator.llm.profiles import ENGINES, ServingEngine
from gkestimator.llm.request import DTYPES, PARALLEL, LlmRequest
from gkestimator.llm.rows import Answer, Lengths, Span
from gkestimator.llm.sharing import shared_between
from gkestimator.llm.weights import weight_bytes
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.tables.llm_requirement import LlmRequirement

_ACTIVATIONS = {"bf16": DType.BFLOAT16, "fp8": DType.BFLOAT16}
_MOST_OPERATORS = 1_000_000  # of a part
_CACHE_TYPES = {
    "fp16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "fp8": DType.FLOAT8E4M3FN,
    "int8": DType.INT8,
}


Key: TypeAlias = tuple[int, int, int]
"""Batch, new tokens and past tokens of a pass."""


def estimate_llm(
    request: LlmRequest, note: Callable[[str], object] = lambda line: None
) -> list[LlmRequirement]:
    """Return a row for every type of numbers, number of GPUs, lengths, batch and GPU type, in that order.

    ``note`` is called with a line on each thing that the rows do not say: GPUs left out, a host profile used.
    Raises DocumentError, UsageError, SpecError or BundleError.
    """
    path = Path(request.model)  # type: ignore[arg-type]  # required
    decoder = read_decoder(path, like=request.like)
    rows: list[LlmRequirement] = []
    lines: dict[str, None] = {}
    for word in request.dtypes:
        for count in request.tensor_parallel:
            if count not in PARALLEL:
                raise UsageError(f"tensor_parallel: found {count}, expected 1, 2, 4 or 8")
            question = _Question(request, decoder, word, count)
            rows += question.rows()
            lines |= dict.fromkeys(question.notes)
    for line in lines:
        note(line)
    return rows


class _Question:
    """Answer for one type of numbers and one number of GPUs."""

    def __init__(self, request: LlmRequest, decoder: Decoder, word: str, count: int) -> None:
        self.request = request
        self.whole = decoder
        self.decoder = shared_between(decoder, count)
        self.count = count
        self.engine: ServingEngine = ENGINES[request.engine]
        self.dtype = DTYPES[word]
        self.activations = _ACTIVATIONS.get(word, DType.FLOAT16)
        self.cache = self.activations
        if request.kv_dtype != "auto":
            self.cache = _CACHE_TYPES[request.kv_dtype]
        self.estimates = Engine(
            EstimateRequest(
                (Path(decoder.name),),
                request.gpus,
                runtime=self.engine.runtime,
                dtype=self.dtype,
                host_overhead_us=request.host_overhead_us,
                bundles=request.bundles,
                gpu_specs=request.gpu_specs,
            )
        )

    def rows(self) -> Iterator[LlmRequirement]:
        """Yield a row for every lengths, batch and GPU."""
        asked = [
            Lengths(batch=batch, input_tokens=first, output_tokens=then)
            for first in self.request.input_tokens
            for then in self.request.output_tokens
            for batch in self.request.batch_sizes
        ]
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

    def _passes(self, lengths: Lengths) -> Iterator[Pass]:
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
        )

    def _lowered(self, run: Pass) -> Lowerings:
        return self.estimates.lower_graphs(self.decoder.name, [pass_graph(self.decoder, run)])

    def _answer(
        self, lengths: Lengths, target: Target, answers: Mapping[tuple[Key, str], Estimated]
    ) -> Answer:
        """Return all that is known of ``lengths`` on one GPU type."""
        name = target.gpu.name
        steps = [(answers[(lengths.batch, 1, past), name], weight) for past, weight in lengths.contexts()]
        return Answer(
            decoder=self.whole,
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
    def _step_host(self) -> Span:
        """Return the host's time beside the kernels of a step."""
        asked = self.request.step_host_ms
        if asked is not None:
            return Span(value=asked, low=asked, high=asked)
        low, high = self.engine.step_host_range_ms
        return Span(value=self.engine.step_host_ms, low=low, high=high)

    def _memory_law(self, target: Target, count: int) -> MemoryLaw | None:
        """Return the law of memory where ``count`` GPUs share the model; None where they cannot."""
        try:
            decoder = shared_between(self.whole, count)
        except UsageError:
            return None
        context = self.estimates.context_bytes(target.gpu)
        return MemoryLaw(
            decoder=decoder,
            engine=self.engine,
            weights=weight_bytes(decoder, self.dtype),
            context=0 if context is None else context,
            cache_bits=self.cache.bits,
            visible=None if context is None else target.gpu.memory_visible_bytes,
        )


def pass_graph(decoder: Decoder, run: Pass) -> OperatorGraph:
    """Return the graph of a forward pass, whose operators run as often as there are layers like theirs."""
    parts = list(decoder_parts(decoder, run))
    graphs = [fragment_graph(part.fragment) for part in parts]
    operators: list[Operator] = []
    weights: dict[str, int] = {}
    for at, (part, graph) in enumerate(zip(parts, graphs, strict=True)):
        # Signatures tell operators of one graph apart: those of two parts must not meet.
        first = at * _MOST_OPERATORS
        for op in graph.operators:
            signature = None if op.signature is None else first + op.signature
            operators.append(replace(op, repeat=part.times, signature=signature))
        weights |= graph.weights
    return replace(
        graphs[0],
        name=decoder.name,
        operators=tuple(operators),
        inputs=tuple(chain.from_iterable(graph.inputs for graph in graphs)),
        outputs=tuple(chain.from_iterable(graph.outputs for graph in graphs)),
        weights=weights,
        batch_size=run.batch,
        structure=None,
    )
