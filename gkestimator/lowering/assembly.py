"""From an operator graph to a kernel graph: fused groups, calls, storages, and what is shared between lowerings.

Binding one model to another batch size, or lowering it for another GPU, mostly changes numbers. So each part is done
as rarely as it can be while staying exact: edges once per structure, fused groups once per graph and runtime, wiring
once per distinct list of calls, and steps anew only where kernels or bytes differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from gkestimator.core.errors import UnsupportedOperatorError
from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.core.kernels import KernelGraph, Step
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.lowering import patterns
from gkestimator.lowering.calls import UNKNOWN, Calls, list_calls
from gkestimator.lowering.engine_types import permitted, typed_graph
from gkestimator.lowering.idle_copies import without_idle_copies
from gkestimator.lowering.patterns import Groups, Match
from gkestimator.lowering.quantised_files import without_quantisation
from gkestimator.lowering.scopes import held_remarks
from gkestimator.lowering.storage import stored_graph
from gkestimator.lowering.wiring import Wiring, norm_parameters, wire
from gkestimator.operators.builders import tensors_of
from gkestimator.operators.records import OPERATORS
from gkestimator.operators.registry import LOWERINGS, LoweringOptions

_MOST_WIRINGS = 64  # of one structure


def covered_operators() -> dict[tuple[str, str], str]:
    """Return every operator with a rule, ``(domain, op_type)``, and the rule's kind."""
    return {key: OPERATORS[key].kind for key in sorted(LOWERINGS)}


def lower(graph: OperatorGraph, options: LoweringOptions, *, allow_unknown: bool = False) -> KernelGraph:
    """Return the kernels that ``options.runtime`` launches for ``graph``, in order.

    Raises UnsupportedOperatorError naming every operator type without a rule (with ``allow_unknown`` each becomes a
    step marked unknown), UsageError for an unknown runtime, ModelError for a node that contradicts its operator.
    """
    return lower_each(graph, (options,), allow_unknown=allow_unknown)[0]


def lower_each(
    graph: OperatorGraph, options: Sequence[LoweringOptions], *, allow_unknown: bool = False
) -> list[KernelGraph]:
    """Return :func:`lower` under each of ``options``; parts that do not differ are shared, up to the whole graph."""
    for option in options:
        runtime_traits(option.runtime)  # refuses an unknown one
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
    quantised = None
    for option in options:
        compiled = bool(runtime_traits(option.runtime).permits)
        if compiled and quantised is None:
            quantised = without_quantisation(without_idle_copies(graph))
        if compiled and quantised is not None:
            option = permitted(quantised, option)
        # What decides about groups and element types; the precisions only decide about kernels.
        shared = (
            option.runtime,
            option.dtype,
            option.half,
            option.attention,
            option.amp_norms,
            option.layout,
            option.graph_level,
        )
        before = made.get(shared)
        if before is None:
            groups = None
            if option.dtype == "amp":  # what is one call casts as one call
                groups = {match.position: match.operator for match in patterns.find_matches(graph, option)}
            if compiled and quantised is not None:
                stored = typed_graph(quantised, option)
            else:
                stored = stored_graph(graph, option, groups)
            before = _Lowering(stored, patterns.find_groups(stored, option), tuple(unknown))
        made[shared] = before.under(option)
        graphs.append(made[shared].result)
    return graphs


def _unknown(operators: Iterable[Operator]) -> dict[str, str]:
    names: dict[str, str] = {}
    for op in operators:
        record = OPERATORS.get((op.domain, op.op_type))
        if record is None or record.lowering_rule is None:
            if op.domain:
                kind = f"{op.domain}.{op.op_type}"
            else:
                kind = op.op_type
            names.setdefault(kind, op.name)
    return dict(sorted(names.items()))


@dataclass(slots=True)
class _Structure:
    """Hold what is remembered of all bindings of one structure.

    ``plain``: no sequences, whose elements would have to be matched by shape.
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
    """Hold one graph with its fused groups, and what it became last."""

    def __init__(self, graph: OperatorGraph, groups: Groups, unknown: tuple[str, ...]) -> None:
        self._graph = graph
        self._groups = groups
        self._unknown = unknown
        self._calls: Calls | None = None
        self._result: KernelGraph | None = None

    @property
    def result(self) -> KernelGraph:
        """Return the last kernel graph."""
        assert self._result is not None
        return self._result

    def under(self, options: LoweringOptions) -> _Lowering:
        """Lower under ``options``, which differ from those before in precisions at most."""
        before = self._calls
        if before is not None:
            calls = before.under(options)
        else:
            calls = None
        if before is None or calls is None:
            calls = list_calls(self._graph, options, self._groups.matches)
            wiring = _wiring(self._graph, calls, runtime_traits(options.runtime).eager)
            self._result = self._build(calls, wiring, options)
        elif calls is not before:
            self._result = self._with_kernels(before, calls)
        self._calls = calls
        return self

    def _with_kernels(self, before: Calls, calls: Calls) -> KernelGraph:
        """Return the last result with the kernels of ``calls``; steps whose kernels stay the same stay the same
        objects.
        """
        result = self.result
        assert isinstance(result.wiring, Wiring)
        steps = []
        for wired, step in zip(result.wiring.steps, result.steps, strict=True):
            kernels = calls.kernels[wired.call]
            if kernels is not before.kernels[wired.call] and not wired.norm:
                step = Step(
                    name=step.name,
                    op_type=step.op_type,
                    kernels=kernels,
                    reads=step.reads,
                    writes=step.writes,
                    host_calls=step.host_calls,
                    repeat=step.repeat,
                    unknown=step.unknown,
                    holds=step.holds,
                )
            steps.append(step)
        return replace(result, steps=tuple(steps))

    def _build(self, calls: Calls, wiring: Wiring, options: LoweringOptions) -> KernelGraph:
        graph = self._graph
        heads = calls.heads
        inputs = calls.inputs
        outputs = calls.outputs
        weights = dict(graph.weights)
        for at in wiring.biases:
            bias = tensors_of(inputs[at][:3])[2]
            weights.update(dict.fromkeys(norm_parameters(calls, at), bias.nbytes))
        for storage, at, place in wiring.constants:
            weights[storage] = tensors_of(inputs[at])[place].nbytes
        steps = []
        for wired in wiring.steps:
            at = wired.call
            head = heads[at]
            if wired.single is not None:
                # Nearly every step: one tensor in a storage of its own.
                writes = [(wired.single, outputs[at][0].nbytes)]  # type: ignore[union-attr]
            else:
                writes = []
                results = tensors_of(outputs[at])
                for storage, places in wired.writes:
                    largest = max([results[place].nbytes for place in places])
                    writes.append((storage, largest))
            kernels = calls.kernels[at]
            host_calls = calls.host_calls[at]
            if wired.norm:
                kernels = (calls.norms[at],)
                host_calls = 1
            if isinstance(head, Match):
                repeat = head.operator.repeat
            else:
                repeat = head.repeat
            steps.append(
                Step(
                    name=wired.name,
                    op_type=wired.op_type,
                    kernels=kernels,
                    reads=wired.reads,
                    writes=tuple(writes),
                    host_calls=host_calls,
                    repeat=repeat,
                    unknown=calls.tokens[at] == UNKNOWN,
                    holds=wired.holds,
                )
            )
        return KernelGraph(
            name=graph.name,
            runtime=options.runtime,
            dtype=options.dtype,
            steps=tuple(steps),
            weights=weights,
            inputs={s: t.nbytes for s, t in zip(wiring.inputs, tensors_of(graph.inputs), strict=True)},
            outputs={s: t.nbytes for s, t in zip(wiring.outputs, tensors_of(graph.outputs), strict=True)},
            unknown_operators=self._unknown,
            warnings=(*graph.warnings, *_remarks(calls, options, steps)),
            notes=calls.notes,
            groups={
                head.operator.name: tuple([graph.operators[index].name for index in head.covered])
                for head in heads
                if type(head) is Match
            },
            wiring=wiring,
            unfused=self._groups.unfused,
        )


def _remarks(calls: Calls, options: LoweringOptions, steps: Sequence[Step]) -> list[str]:
    """Return what a row says of how the graph was lowered, beside the warnings that it had before."""
    remarks = []
    if options.layout != "nchw":
        remarks.append(
            f"layout {options.layout}: images and the weights of convolutions are stored so (channels_last)"
        )
    unfolded = calls.notes.get("batchnorm_unfolded", 0)
    if unfolded:
        remarks.append(
            f"BatchNorms that the exporter folded into {unfolded} of the convolutions (their names say so) are "
            f"kernels of their own in torch: counted apart"
        )
    return remarks + held_remarks(steps)
