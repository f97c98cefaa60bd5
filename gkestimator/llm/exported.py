"""Answer for a decoder that an ONNX file holds, with a cache of keys and values or without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import UsageError
from gkestimator.core.graph import Operator, OperatorGraph, Tensor, Value
from gkestimator.core.kernels import Array, KernelGraph
from gkestimator.hardware.gpu_spec import GpuSpec
from gkestimator.llm.parts import Pass
from gkestimator.llm.profiles import ServingEngine
from gkestimator.llm.roles import Roles, Sizes, roles_of
from gkestimator.llm.source import Lower
from gkestimator.lowering.decoder_cache import cached_values
from gkestimator.memory.trace import live_bytes
from gkestimator.onnx_io import Model, read_model

# Long enough that a mask is calculated, not folded into the file's constants: only then is it seen to be causal.
_TRIAL_TOKENS = 257
_PLAIN_NAMES = frozenset({"model", "decoder_model", "decoder_model_merged", "decoder"})


def read_exported(path: Path, dims: Sequence[str] = ()) -> ExportedDecoder:
    """Return the decoder in the ONNX file at ``path``; ``dims`` as :func:`.roles.roles_of` takes them.

    Raises ModelError or UsageError in one line: no ONNX file, no decoder, sizes that are fixed.
    """
    name = path.stem
    if name in _PLAIN_NAMES and path.resolve().parent.name:
        name = path.resolve().parent.name
    model = read_model(path, name=name)
    return ExportedDecoder(model, roles_of(model, dims))


class ExportedDecoder:
    """Answer for one file (the protocol is :class:`.source.DecoderSource`).

    Its operators are run as they are: a decoder without a cache repeats all tokens in every step.
    """

    most_tokens = None
    any_length = False

    def __init__(self, model: Model, roles: Roles) -> None:
        self.name = model.name
        self._model = model
        self._roles = roles
        self._peaks: dict[tuple[int, int], tuple[Array, Array]] = {}
        self._cached = bool(roles.caches)
        trial = self._bound(Sizes(batch=1, tokens=_TRIAL_TOKENS, past=0))
        if not self._cached and not _is_causal(trial):
            raise UsageError(
                f"{self.name}: found neither keys and values among its inputs nor a causal attention, expected a "
                f"decoder: gkest estimate takes any file"
            )
        scores = trial.outputs[0]
        self._scores_all = isinstance(scores, Tensor) and _TRIAL_TOKENS in scores.shape

    def _bound(self, sizes: Sizes) -> OperatorGraph:
        return self._model.bind(
            batch_size=sizes.batch,
            batch_dim=self._roles.batch,
            dims=self._roles.numbers(sizes),
            inputs=self._roles.values(sizes),
        )

    def shared(self, count: int) -> ExportedDecoder:
        """Return the decoder for one GPU. Raises UsageError for several."""
        if count > 1:
            raise UsageError(
                f"{self.name}: found {count} GPUs for an ONNX file, expected 1: give the model's config.json"
            )
        return self

    def pass_graph(self, run: Pass) -> OperatorGraph:
        """Return the file's operators for a pass. Raises UsageError, ShapeError, LimitError."""
        sizes = Sizes(batch=run.batch, tokens=run.tokens, past=run.past)
        if not self._cached:
            sizes = Sizes(batch=run.batch, tokens=run.tokens + run.past, past=0)
        graph = self._bound(sizes)
        if run.in_place and run.past:
            graph = _appended_in_place(graph, {spec.name for spec in self._roles.caches})
        return graph

    def cache_type(self, activations: DType, asked: DType | None) -> DType:
        """Return the type that the file's caches have. Raises UsageError where another is asked for."""
        held = activations
        if self._cached:
            declared = self._roles.caches[0].declared.dtype
            held = activations if declared in (None, DType.FLOAT) else declared
        if asked not in (None, held):
            raise UsageError(
                f"{self.name}: kv_dtype: found {asked.value}, expected {held.value}, which the file's keys and values "
                f"have, or auto"
            )
        return held

    def weight_bytes(self, dtype: str, lower: Lower) -> int:
        """Return the bytes of the weights that a step reads, each counted once."""
        return sum(lower(_pass(1, 1, 1)).weights.values())

    def cache_bytes(self, tokens: int, element_bytes: float) -> float:
        """Return the bytes of the cache of one sequence of ``tokens``; 0 for a file without one."""
        return tokens * self._roles.cache_elements * element_bytes

    def copied_bytes(self, engine: ServingEngine, tokens: int, element_bytes: float) -> float:
        """Return the bytes of past keys and values: they lie beside the present ones, which are outputs, unless one
        buffer holds both.
        """
        if engine.graph or self._roles.buffers:
            return 0.0
        return self.cache_bytes(tokens - 1, element_bytes)

    def activation_bytes(
        self, engine: ServingEngine, lower: Lower, batch: int, input_tokens: int, output_tokens: int
    ) -> int:
        """Return the most that is alive beside weights and caches, scratch memory included: in the prompt's pass (in
        one of its passes, where the engine takes it in several) or in the last step.
        """
        total = input_tokens + output_tokens
        if not self._cached:
            return self._alive(lower, batch, total, 0)
        tokens, sequences = input_tokens, batch
        if engine.chunk_tokens:
            tokens = min(tokens, engine.chunk_tokens)
            sequences = min(batch, max(1, engine.chunk_tokens // tokens))
        return max(self._alive(lower, sequences, tokens, 0), self._alive(lower, batch, 1, total - 1))

    def _alive(self, lower: Lower, batch: int, tokens: int, past: int) -> int:
        """Return the bytes at the fullest step of a pass. Every size is a line in the batch, so passes of two and three
        sequences say all of them.
        """
        key = (tokens, past)
        if key not in self._peaks:
            two, three = (self._beside_caches(lower(_pass(count, tokens, past))) for count in (2, 3))
            if len(two) != len(three):
                two, three = two.max(keepdims=True), three.max(keepdims=True)
            self._peaks[key] = (two, three)
        two, three = self._peaks[key]
        return int((two + (batch - 2) * (three - two)).max())

    def _beside_caches(self, graph: KernelGraph) -> Array:
        """Return the bytes alive in each step, scratch memory included, caches left out."""
        if not self._cached:
            caches: set[str] = set()
        else:
            # The first output is the scores, the others are present keys and values.
            caches = {spec.name for spec in self._roles.caches} | set(list(graph.outputs)[1:])
        steps = []
        for step in graph.steps:
            if caches.intersection(storage for storage, _ in step.writes):
                step = replace(step, writes=tuple(write for write in step.writes if write[0] not in caches))
            steps.append(step)
        inputs = {name: size for name, size in graph.inputs.items() if name not in caches}
        outputs = {name: size for name, size in graph.outputs.items() if name not in caches}
        alive = live_bytes(replace(graph, steps=tuple(steps), inputs=inputs, outputs=outputs, wiring=None))
        return np.add(alive.live, alive.scratch)

    def exchange_ms(self, count: int, gpu: GpuSpec, tokens: int) -> float:
        """Return 0: one GPU exchanges nothing."""
        return 0.0

    def notes(self, engine: ServingEngine) -> Iterator[str]:
        """Yield what to know about rows of this file."""
        if not self._cached:
            yield "the file has no cache of keys and values: every step is a forward pass over all tokens so far"
        if engine.fused and not self._roles.buffers:
            words = "the file's own operators are used: it holds no GroupQueryAttention"
            if engine.graph:
                words += "; one CUDA graph a step" + (", caches in place" if self._cached else "")
            yield words.replace("; ", ", ")
        if self._scores_all:
            yield "the file calculates the scores of all tokens of a prompt, not of the last alone"


def _is_causal(graph: OperatorGraph) -> bool:
    """Return whether tokens see those before them alone: by their mask, or as an operator of ONNX Runtime's says."""
    return bool(cached_values(graph)) or any(op.attributes.get("unidirectional") for op in graph.operators)


def _pass(batch: int, tokens: int, past: int) -> Pass:
    """Return a pass for counting bytes; the file says the types."""
    half = DType.FLOAT16
    return Pass(batch=batch, tokens=tokens, past=past, dtype=half, cache=half, fused=True, in_place=True)


def _appended_in_place(graph: OperatorGraph, caches: set[str]) -> OperatorGraph:
    """Return ``graph`` with new keys and values written into buffers that are long enough for them, where the file
    concatenates them behind the past ones.
    """
    operators = []
    buffers: dict[str, Tensor] = {}
    for op in graph.operators:
        past = op.inputs[0] if op.inputs else None
        if op.key == ("", "Concat") and len(op.inputs) == 2 and past is not None and past.name in caches:
            op = _scattered(op)
            buffer = op.inputs[0]
            assert isinstance(buffer, Tensor)
            buffers[buffer.name] = buffer
        operators.append(op)
    inputs: list[Value] = [buffers.get(value.name, value) for value in graph.inputs]
    return replace(graph, operators=tuple(operators), inputs=tuple(inputs), structure=None)


def _scattered(op: Operator) -> Operator:
    """Return the TensorScatter (ONNX's update of a cache) that stands for a concatenation."""
    past, new = op.inputs
    present = op.outputs[0]
    assert isinstance(past, Tensor) and isinstance(present, Tensor)
    buffer = replace(past, shape=present.shape)
    return replace(
        op, op_type="TensorScatter", version=24, attributes={}, inputs=(buffer, new), signature=None
    )
