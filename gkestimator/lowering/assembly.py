"""From an operator graph to a kernel graph: rules, fused patterns, storages, in-place results, unfolded
BatchNorms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gkestimator.errors import UnsupportedOperatorError, UsageError
from gkestimator.graph import Operator, OperatorGraph, Tensor, Value
from gkestimator.kernels import Family, Kernel, KernelGraph, Step
from gkestimator.lowering import patterns, runtime_onnxruntime, runtime_torch
from gkestimator.lowering.builders import batchnorm_kernel
from gkestimator.lowering.convolution import conv_kernels, conv_shape
from gkestimator.lowering.memo import lower_operator, memo_of
from gkestimator.lowering.registry import LOWERINGS, RULE_KINDS, Lowered, LoweringOptions
from gkestimator.lowering.storage import stored_graph

__all__ = ["covered_operators", "lower"]

_RUNTIMES = frozenset({"torch", "onnxruntime"})
_FOREVER = 1 << 62
_SEQUENCES = frozenset({"SequenceConstruct", "SequenceInsert", "SequenceErase", "SequenceAt", "Optional",
                        "OptionalGetElement", "SplitToSequence"})  # fmt: skip


def covered_operators() -> dict[tuple[str, str], str]:
    """Every operator with a rule, ``(domain, op_type)``, and the rule's kind."""
    return dict(sorted(RULE_KINDS.items()))


def lower(graph: OperatorGraph, options: LoweringOptions, *, allow_unknown: bool = False) -> KernelGraph:
    """The kernels that ``options.runtime`` launches for ``graph``, in order.

    Raises UnsupportedOperatorError naming every operator type without a rule (with ``allow_unknown`` each
    becomes a step
    marked unknown), UsageError for an unknown runtime, ModelError for a node that contradicts its operator.
    """
    if options.runtime not in _RUNTIMES:
        raise UsageError(f"runtime {options.runtime!r}: expected one of {', '.join(sorted(_RUNTIMES))}")
    unknown = _unknown(graph.operators)
    if unknown and not allow_unknown:
        listed = ", ".join(f"{kind} (node {node!r})" for kind, node in unknown.items())
        raise UnsupportedOperatorError(
            f"model {graph.name!r}: no lowering rule for {len(unknown)} operator type(s): {listed}; "
            f"expected operators that gkestimator knows, or rules for them from a plug-in",
            operators=tuple(unknown),
        )
    return _Assembly(stored_graph(graph, options), options, tuple(unknown)).run()


def _unknown(operators: Iterable[Operator]) -> dict[str, str]:
    found: dict[str, str] = {}
    for op in operators:
        if (op.domain, op.op_type) not in LOWERINGS:
            kind = f"{op.domain}.{op.op_type}" if op.domain else op.op_type
            found.setdefault(kind, op.name)
    return dict(sorted(found.items()))


def _leaves(values: Iterable[Value | None]) -> list[Tensor]:
    """The tensors among ``values``, elements of sequences included."""
    leaves: list[Tensor] = []
    for value in values:
        if value is None:
            continue
        if isinstance(value, Tensor):
            leaves.append(value)
        else:
            leaves.extend(value.elements_)
    return leaves


@dataclass(slots=True)
class _Draft:
    """A step before storages are resolved."""

    name: str
    op_type: str
    kernels: tuple[Kernel, ...]
    reads: list[Tensor]
    writes: list[Tensor]
    host_calls: int
    repeat: int = 1
    unknown: bool = False
    in_place: bool = False
    held: list[str] = field(default_factory=list)  # storages that must outlive the step besides what it reads
    inner: str = ""  # name of the storage between a convolution and its unfolded BatchNorm


class _Assembly:
    def __init__(self, graph: OperatorGraph, options: LoweringOptions, unknown: tuple[str, ...]) -> None:
        self._graph = graph
        self._options = options
        self._unknown = unknown
        self._memo = memo_of(options)
        self._torch = options.runtime == "torch"
        self._layouts = runtime_torch.Layouts()
        self._root: dict[str, str] = {}
        self._producer: dict[str, str] = {}  # storage -> op_type that wrote it
        self._drafts: list[_Draft] = []
        self._extra_weights: dict[str, int] = {}
        self._notes: dict[str, int] = {}

    def run(self) -> KernelGraph:
        graph, options = self._graph, self._options
        matches = patterns.find_matches(graph, options)
        covered = {index for match in matches for index in match.covered}
        at = {match.position: match for match in matches}
        for index, op in enumerate(graph.operators):
            match = at.get(index)
            if match is not None:
                lowered = _shared(match.lower(options))
                self._notes[match.name] = self._notes.get(match.name, 0) + 1
                self._add(op, match.op_type, lowered, match.reads, match.writes)
            elif index in covered:
                continue
            elif (op.domain, op.op_type) not in LOWERINGS:
                self._drafts.append(
                    _Draft(
                        op.name,
                        op.op_type,
                        (),
                        _leaves(op.inputs),
                        _leaves(op.outputs),
                        1,
                        op.repeat,
                        unknown=True,
                    )
                )
            elif self._torch and runtime_torch.folded_batchnorm(op):
                self._add_unfolded(op)
            else:
                self._add(op, op.op_type, lower_operator(op, options, self._memo), op.inputs, op.outputs)
        return self._finish()

    def _resolve(self, storage: str) -> str:
        return self._root.get(storage, storage)

    def _add(
        self,
        op: Operator,
        op_type: str,
        lowered: Lowered,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value | None],
    ) -> None:
        kernels, host_calls, aliases = lowered.kernels, lowered.host_calls, lowered.aliases
        if self._torch:
            if (
                not kernels
                and aliases
                and (op_type in runtime_torch.VIEWS or op_type == "Gather")
                and not op.domain
            ):
                moved = self._layouts.view(op)
                if moved is not None:
                    kernels, host_calls, aliases = (moved,), 1, {}
            elif self._layouts.strided(inputs):
                family = _main_family(kernels)
                copies = self._layouts.copies(family, inputs)
                if copies:
                    kernels, host_calls = (*copies, *kernels), host_calls + len(copies)
                self._layouts.result(family, op_type, inputs, outputs)
            if op_type == "Attention" and _main_family(kernels) is Family.ATTENTION:
                self._layouts.attention_result(outputs[0])
        for out_index, in_index in aliases.items():
            self._alias(op_type, inputs, out_index, in_index, outputs)
        if not kernels and not host_calls:
            return
        writes = [t for i, v in enumerate(outputs) if i not in aliases or kernels for t in _leaves((v,))]
        if kernels or writes:
            self._drafts.append(
                _Draft(
                    op.name, op_type, kernels, _leaves(inputs), writes, host_calls, op.repeat,
                    in_place=self._may_run_in_place(op_type, inputs) and not aliases,
                )
            )  # fmt: skip
        for tensor in writes:
            self._producer[self._resolve(tensor.storage)] = op_type

    def _alias(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        out_index: int,
        in_index: int,
        outputs: Sequence[Value | None],
    ) -> None:
        results = _leaves((outputs[out_index],))
        sources = _leaves(inputs) if op_type in _SEQUENCES else _leaves((inputs[in_index],))
        if not sources:
            return
        by_name = {t.name: t for t in sources}
        for position, result in enumerate(results):
            source = by_name.get(result.name)
            if source is None and position < len(sources) and sources[position].shape == result.shape:
                source = sources[position]
            if source is None:
                source = next((t for t in sources if t.shape == result.shape), sources[0])
            if source.storage != result.storage:
                self._root[result.storage] = self._resolve(source.storage)
            if self._torch and op_type in _SEQUENCES:
                self._layouts.alias({result.name: source})

    def _may_run_in_place(self, op_type: str, inputs: Sequence[Value | None]) -> bool:
        if not self._torch:
            return op_type in runtime_onnxruntime.IN_PLACE
        first = inputs[0] if inputs else None
        if op_type not in runtime_torch.IN_PLACE or not isinstance(first, Tensor):
            return False
        return self._producer.get(self._resolve(first.storage)) in runtime_torch.IN_PLACE_AFTER

    def _add_unfolded(self, op: Operator) -> None:
        """Conv, then BatchNorm: the runtime's own order before the exporter folded them."""
        source, weight, bias, result = op.inputs[0], op.inputs[1], op.inputs[2], op.outputs[0]
        if not (isinstance(source, Tensor) and isinstance(weight, Tensor) and isinstance(bias, Tensor)):
            return
        if not isinstance(result, Tensor):
            return
        convolution, norm = _unfolded(op, source, weight, bias, result, self._options)
        kept = (bias,) if runtime_torch.folded_bias(op) else ()
        copies: tuple[Kernel, ...] = ()
        if self._layouts.strided((source,)):
            copies = self._layouts.copies(Family.CONV, (source,))
            self._layouts.result(Family.CONV, "Conv", op.inputs, op.outputs)
        inner = f"{result.storage}#conv"
        casts = sum(1 for k in convolution if k.variant == "cast")
        self._drafts.append(
            _Draft(
                op.name,
                "Conv",
                (*copies, *convolution),
                [source, weight, *kept],
                [result],
                1 + casts + len(copies),
                op.repeat,
                inner=inner,
            )
        )
        parts = [f"{bias.storage}#{part}" for part in ("weight", "mean", "variance")]
        if kept:
            parts.append(f"{bias.storage}#shift")
        self._extra_weights.update(dict.fromkeys(parts, bias.nbytes))
        parameters = [bias.storage, *parts]
        # Python still holds the convolution's input until the block that normalises returns.
        held = [inner, self._resolve(source.storage), *parameters]
        self._drafts.append(
            _Draft(
                f"{op.name}/batch_norm", "BatchNormalization", (norm,), [], [result], 1, op.repeat, held=held
            )
        )
        self._producer[self._resolve(result.storage)] = "BatchNormalization"
        self._notes["batchnorm_unfolded"] = self._notes.get("batchnorm_unfolded", 0) + 1

    def _finish(self) -> KernelGraph:
        graph, root = self._graph, self._root
        weights = {**graph.weights, **self._extra_weights}
        last: dict[str, int] = {}
        for index, draft in enumerate(self._drafts):
            for tensor in draft.reads:
                last[root.get(tensor.storage, tensor.storage)] = index
            for storage in draft.held:
                last[root.get(storage, storage)] = index
        for tensor in (*_leaves(graph.inputs), *_leaves(graph.outputs)):
            last[root.get(tensor.storage, tensor.storage)] = _FOREVER
        reused: dict[str, str] = {}  # a storage that took over another's memory
        written = {root.get(t.storage, t.storage) for t in _leaves(graph.inputs)}

        def settle(storage: str) -> str:
            storage = root.get(storage, storage)
            return reused.get(storage, storage)

        steps = []
        for index, draft in enumerate(self._drafts):
            sources: dict[str, None] = {}
            for tensor in draft.reads:
                storage = settle(tensor.storage)
                sources[storage] = None
                if storage not in written and storage not in weights:
                    weights[storage] = tensor.nbytes  # folded at binding: a constant that lies in memory
            for storage in draft.held:
                sources[settle(storage)] = None
            if draft.inner:
                writes: tuple[tuple[str, int], ...] = ((draft.inner, sum(t.nbytes for t in draft.writes)),)
                written.add(draft.inner)
            else:
                if draft.in_place and len(draft.writes) == 1:
                    self._reuse(draft, index, last, reused, weights)
                sizes: dict[str, int] = {}
                for tensor in draft.writes:
                    storage = settle(tensor.storage)
                    sizes[storage] = max(sizes.get(storage, 0), tensor.nbytes)
                writes = tuple(sizes.items())
                written.update(sizes)
            steps.append(
                Step(
                    name=draft.name,
                    op_type=draft.op_type,
                    kernels=draft.kernels,
                    reads=tuple(sources),
                    writes=writes,
                    host_calls=draft.host_calls,
                    repeat=draft.repeat,
                    unknown=draft.unknown,
                )
            )
        warnings = list(graph.warnings)
        unfolded = self._notes.get("batchnorm_unfolded", 0)
        if unfolded:
            warnings.append(
                f"{unfolded} convolutions carry a BatchNorm that the exporter folded in "
                f"(their names say so): torch runs it as a kernel of its own, so it is counted apart"
            )
        return KernelGraph(
            name=graph.name,
            runtime=self._options.runtime,
            dtype=self._options.dtype,
            steps=tuple(steps),
            weights=weights,
            inputs={settle(t.storage): t.nbytes for t in _leaves(graph.inputs)},
            outputs={settle(t.storage): t.nbytes for t in _leaves(graph.outputs)},
            unknown_operators=self._unknown,
            warnings=tuple(warnings),
            notes=self._notes,
        )

    def _reuse(
        self, draft: _Draft, index: int, last: dict[str, int], reused: dict[str, str], weights: dict[str, int]
    ) -> None:
        """Let the result take over the memory of an operand of its size whose last use this is."""
        result = draft.writes[0]
        target = self._resolve(result.storage)
        for operand in draft.reads[:1] if self._torch else draft.reads[:2]:
            source = self._resolve(operand.storage)
            if (
                operand.is_weight
                or source == target
                or operand.nbytes != result.nbytes
                or last.get(source) != index
            ):
                continue
            home = reused.get(source, source)
            if home in weights:
                continue
            reused[target] = home
            return


def _shared(lowered: Lowered) -> Lowered:
    """``lowered`` with the objects that equal kernels already have: estimators deduplicate by identity."""
    if len(_KERNELS) >= _MOST_KERNELS:
        _KERNELS.clear()
    kernels = tuple(_KERNELS.setdefault(k, k) for k in lowered.kernels)
    return Lowered(kernels=kernels, host_calls=lowered.host_calls, aliases=lowered.aliases)


def _main_family(kernels: tuple[Kernel, ...]) -> Family:
    for kernel in kernels:
        if kernel.family is not Family.COPY and kernel.family is not Family.RANDOM:
            return kernel.family
    return Family.COPY


def _unfolded(
    op: Operator, source: Tensor, weight: Tensor, bias: Tensor, result: Tensor, options: LoweringOptions
) -> tuple[tuple[Kernel, ...], Kernel]:
    own_bias = bias if runtime_torch.folded_bias(op) else None
    key = (
        own_bias is None,
        source.dtype,
        source.shape,
        weight.dtype,
        weight.shape,
        bias.dtype,
        result.dtype,
        result.shape,
        op.attributes.get("group", 1),
        op.attributes.get("strides"),
        op.attributes.get("dilations"),
        options,
    )
    known = _UNFOLDED.get(key)
    if known is None:
        shape = conv_shape(op, source.shape, weight.shape, result.shape)
        convolution = conv_kernels(shape, source, weight, own_bias, result, options)
        parameters = [
            Tensor(name=f"#{i}", dtype=bias.dtype, shape=bias.shape, storage=f"#{i}", is_weight=True)
            for i in range(4)
        ]
        known = (convolution, batchnorm_kernel(result, result, parameters))
        if len(_UNFOLDED) >= 65_536:
            _UNFOLDED.clear()
        _UNFOLDED[key] = known
    return known


_MOST_KERNELS = 65_536
_KERNELS: dict[Kernel, Kernel] = {}
_UNFOLDED: dict[tuple[object, ...], tuple[tuple[Kernel, ...], Kernel]] = {}
