"""From an operator graph to a kernel graph: fused groups, calls, storages, and what is shared between lowerings.

Binding one model to another batch size, or lowering it for another GPU, mostly changes numbers. So each part is done
as rarely as it can be while staying exact: edges once per structure, fused groups once per graph and runtime, wiring
once per distinct list of calls, and steps anew only where kernels or bytes differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from gkestimator.errors import UnsupportedOperatorError, UsageError
from gkestimator.graph import Operator, OperatorGraph, Tensor
from gkestimator.kernels import KernelGraph, Step
from gkestimator.lowering import patterns
from gkestimator.lowering.calls import UNKNOWN, Calls, leaves, list_calls
from gkestimator.lowering.patterns import Match
from gkestimator.lowering.registry import LOWERINGS, RULE_KINDS, LoweringOptions
from gkestimator.lowering.storage import stored_graph
from gkestimator.lowering.wiring import NORM_PARAMETERS, Wiring, wire

__all__ = ["covered_operators", "lower", "lower_each"]

_RUNTIMES = frozenset({"torch", "onnxruntime"})
_MOST_WIRINGS = 64  # of one structure


def covered_operators() -> dict[tuple[str, str], str]:
    """Every operator with a rule, ``(domain, op_type)``, and the rule's kind."""
    return dict(sorted(RULE_KINDS.items()))


def lower(graph: OperatorGraph, options: LoweringOptions, *, allow_unknown: bool = False) -> KernelGraph:
    """The kernels that ``options.runtime`` launches for ``graph``, in order.

    Raises UnsupportedOperatorError naming every operator type without a rule (with ``allow_unknown`` each
    becomes a step marked unknown), UsageError for an unknown runtime, ModelError for a node that contradicts its
    operator.
    """
    return lower_each(graph, (options,), allow_unknown=allow_unknown)[0]


def lower_each(
    graph: OperatorGraph, options: Sequence[LoweringOptions], *, allow_unknown: bool = False
) -> list[KernelGraph]:
    """:func:`lower` under each of ``options``; parts that do not differ are shared, up to the whole graph."""
    for one in options:
        if one.runtime not in _RUNTIMES:
            raise UsageError(f"runtime {one.runtime!r}: expected one of {', '.join(sorted(_RUNTIMES))}")
    unknown = _unknown(graph.operators)
    if unknown and not allow_unknown:
        listed = ", ".join(f"{kind} (node {node!r})" for kind, node in unknown.items())
        raise UnsupportedOperatorError(
            f"model {graph.name!r}: no lowering rule for {len(unknown)} operator type(s): {listed}; "
            f"expected operators that gkestimator knows, or rules for them from a plug-in",
            operators=tuple(unknown),
        )
    made: dict[tuple[object, ...], _Lowering] = {}
    graphs = []
    for one in options:
        # What decides about groups and element types; the precisions only decide about kernels.
        kin = (one.runtime, one.dtype, one.half, one.attention)
        before = made.get(kin)
        if before is None:
            stored = stored_graph(graph, one)
            before = _Lowering(stored, patterns.find_matches(stored, one), tuple(unknown))
        made[kin] = before.under(one)
        graphs.append(made[kin].result)
    return graphs


def _unknown(operators: Iterable[Operator]) -> dict[str, str]:
    found: dict[str, str] = {}
    for op in operators:
        if (op.domain, op.op_type) not in LOWERINGS:
            kind = f"{op.domain}.{op.op_type}" if op.domain else op.op_type
            found.setdefault(kind, op.name)
    return dict(sorted(found.items()))


@dataclass(slots=True)
class _Structure:
    """What is remembered of all bindings of one structure. ``plain``: no sequences, whose elements would have to be
    matched by shape.
    """

    plain: bool
    wirings: dict[tuple[object, ...], Wiring] = field(default_factory=dict)


_STRUCTURES: WeakKeyDictionary[object, _Structure] = WeakKeyDictionary()


def _wiring(graph: OperatorGraph, calls: Calls, torch: bool) -> Wiring:
    if graph.structure is None:
        return wire(graph, calls, torch=torch)
    known = _STRUCTURES.get(graph.structure)
    if known is None:
        plain = all(
            value is None or type(value) is Tensor
            for op in graph.operators
            for value in (*op.inputs, *op.outputs)
        )
        known = _STRUCTURES[graph.structure] = _Structure(plain)
    if not known.plain:
        return wire(graph, calls, torch=torch)
    key = (torch, *calls.key())
    wiring = known.wirings.get(key)
    if wiring is None:
        if len(known.wirings) >= _MOST_WIRINGS:
            known.wirings.clear()
        wiring = known.wirings[key] = wire(graph, calls, torch=torch)
    return wiring


class _Lowering:
    """One graph with its fused groups, and what it became last."""

    def __init__(self, graph: OperatorGraph, matches: list[Match], unknown: tuple[str, ...]) -> None:
        self._graph = graph
        self._matches = matches
        self._unknown = unknown
        self._calls: Calls | None = None
        self._result: KernelGraph | None = None

    @property
    def result(self) -> KernelGraph:
        """The last kernel graph."""
        assert self._result is not None
        return self._result

<<<<<<< HEAD
    def under(self, options: LoweringOptions) -> _Lowering:
        """Lower under ``options``, which differ from those before in precisions at most."""
        calls = list_calls(self._graph, options, self._matches)
        before = self._calls
        if before is None or not before.same_as(calls):
            self._result = self._build(
                calls, _wiring(self._graph, calls, options.runtime == "torch"), options
            )
            self._calls = calls
        return self
=======
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
>>>>>>> r

    def _build(self, calls: Calls, wiring: Wiring, options: LoweringOptions) -> KernelGraph:
        graph = self._graph
        heads, inputs, outputs, kernels = calls.heads, calls.inputs, calls.outputs, calls.kernels
        weights = dict(graph.weights)
        for at in wiring.biases:
            bias = leaves(inputs[at][:3])[2]
            for part in NORM_PARAMETERS:
                weights[f"{bias.storage}#{part}"] = bias.nbytes
        for storage, at, place in wiring.constants:
            weights[storage] = leaves(inputs[at])[place].nbytes
        steps = []
        for wired in wiring.steps:
            at = wired.call
            head = heads[at]
            if wired.single is not None:
                writes: tuple[tuple[str, int], ...] = ((wired.single, outputs[at][0].nbytes),)  # type: ignore[union-attr]
            else:
                results = leaves(outputs[at])
                writes = tuple(
                    (storage, max(results[place].nbytes for place in places)) for storage, places in wired.writes
                )
            steps.append(
                Step(
                    name=wired.name,
                    op_type=wired.op_type,
                    kernels=(calls.norms[at],) if wired.norm else kernels[at],
                    reads=wired.reads,
                    writes=writes,
                    host_calls=1 if wired.norm else calls.host_calls[at],
                    repeat=head.operator.repeat if type(head) is Match else head.repeat,  # type: ignore[union-attr]
                    unknown=calls.tokens[at] == UNKNOWN,
                )
            )
        warnings = list(graph.warnings)
        unfolded = calls.notes.get("batchnorm_unfolded", 0)
        if unfolded:
            warnings.append(
                f"{unfolded} convolutions carry a BatchNorm that the exporter folded in "
                f"(their names say so): torch runs it as a kernel of its own, so it is counted apart"
            )
        return KernelGraph(
            name=graph.name,
            runtime=options.runtime,
            dtype=options.dtype,
            steps=tuple(steps),
            weights=weights,
            inputs={s: t.nbytes for s, t in zip(wiring.inputs, leaves(graph.inputs), strict=True)},
            outputs={s: t.nbytes for s, t in zip(wiring.outputs, leaves(graph.outputs), strict=True)},
            unknown_operators=self._unknown,
            warnings=tuple(warnings),
            notes=calls.notes,
            wiring=wiring,
        )
<<<<<<< HEAD
=======

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
>>>>>>> r
