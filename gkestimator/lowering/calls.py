"""First half of lowering: which calls the runtime makes, with their kernels. What memory they touch comes after.

A call is an operator, or a fused group, that launches something or whose result is another's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gkestimator.core.graph import Operator, OperatorGraph, Tensor, Value
from gkestimator.core.kernels import Family, Kernel
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.lowering import torch_layouts as runtime_torch
from gkestimator.lowering.memo import interned, lower_operator, memo_of
from gkestimator.lowering.patterns import Match
from gkestimator.operators.builders import batchnorm_kernel, elementwise_kernel
from gkestimator.operators.convolution import conv_kernels, conv_shape, in_channels_last
from gkestimator.operators.indexing import gather_kernel
from gkestimator.operators.records import NO_TRAITS, OPERATORS, OperatorTraits, traits_of
from gkestimator.operators.registry import Lowered, LoweringOptions

_CONVOLUTIONS = frozenset({Family.CONV, Family.DEPTHWISE})
Values = Sequence[Value | None]

# What wiring needs to know of a call besides its aliases; bits of a token.
LAUNCHES, CALLS, FITS_FIRST, FITS_SECOND, UNFOLDED, UNKNOWN, OWN_BIAS = 1, 2, 4, 8, 16, 32, 64


def leaves(values: Iterable[Value | None]) -> list[Tensor]:
    """The tensors among ``values``, elements of sequences included."""
    found: list[Tensor] = []
    for value in values:
        if value is None:
            continue
        if type(value) is Tensor:
            found.append(value)
        else:
            found.extend(value.elements_)  # type: ignore[union-attr]
    return found


Unfolded = tuple[tuple[Kernel, ...], Kernel]  # of the convolution, and of its BatchNorm


@dataclass(slots=True)
class Calls:
    """The calls of one graph in order, as parallel lists.

    ``heads`` are the operator, or the match, behind each call; ``tokens`` and ``aliases`` are all that wiring knows
    of it: two lists of calls of one structure that agree in both touch the same storages. ``norms`` are the kernels
    of the BatchNorms that exporters had folded into a convolution, by call.
    """

    heads: list[Operator | Match] = field(default_factory=list)
    inputs: list[Values] = field(default_factory=list)
    outputs: list[Values] = field(default_factory=list)
    kernels: list[tuple[Kernel, ...]] = field(default_factory=list)
    host_calls: list[int] = field(default_factory=list)
    aliases: list[tuple[tuple[int, int], ...]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    norms: dict[int, Kernel] = field(default_factory=dict)
    lowered: dict[int, tuple[Operator, Lowered]] = field(default_factory=dict)  # by id: an operator of each
    unfolded: dict[int, tuple[Operator, bool, Unfolded]] = field(default_factory=dict)  # likewise
    copied: set[int] = field(default_factory=set)  # ids of kernels that copies were put before
    notes: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        head: Operator | Match,
        inputs: Values,
        outputs: Values,
        kernels: tuple[Kernel, ...],
        host_calls: int,
        aliases: tuple[tuple[int, int], ...],
        token: int,
    ) -> None:
        """Append one call."""
        self.heads.append(head)
        self.inputs.append(inputs)
        self.outputs.append(outputs)
        self.kernels.append(kernels)
        self.host_calls.append(host_calls)
        self.aliases.append(aliases)
        self.tokens.append(token)

    def key(self) -> tuple[object, ...]:
        """What two lists of calls of one structure share when their wiring is the same."""
        groups = [
            (at, head.covered, head.op_type, tuple([v.name for v in self.inputs[at] if v is not None]))
            for at, head in enumerate(self.heads)
            if type(head) is Match
        ]
        return (tuple(self.tokens), tuple(self.aliases), tuple(groups))

    def under(self, options: LoweringOptions) -> Calls | None:
        """These calls under ``options`` that differ in precisions alone: the same object where no kernel changes,
        None where more than kernels changes or cannot be told without listing the calls anew.
        """
        memo = memo_of(options)
        replaced: list[tuple[tuple[Kernel, ...], tuple[Kernel, ...]]] = []
        for op, old in self.lowered.values():
            new = lower_operator(op, options, memo)
            if old.host_calls != new.host_calls or old.aliases != new.aliases:
                return None
            replaced.append((old.kernels, new.kernels))
        for op, own_bias, (convolution, norm) in self.unfolded.values():
            again = _unfolded(op, options, own_bias)
            if again[1] != norm:
                return None
            replaced.append((convolution, again[0]))
        changed: dict[int, tuple[Kernel, ...]] = {}  # by id of the kernels that are replaced
        kept: set[int] = set()
        for before, after in replaced:
            if before is after or before == after:
                kept.add(id(before))
            elif _roles(before) != _roles(after) or changed.setdefault(id(before), after) is not after:
                return None
        if not changed.keys().isdisjoint(kept | self.copied):
            return (
                None  # one group of kernels stands for operators that differ now, or is part of a longer one
            )
        if not changed:
            return self
        return replace(self, kernels=[changed.get(id(kernels), kernels) for kernels in self.kernels])


def _roles(kernels: tuple[Kernel, ...]) -> tuple[bool, Family, int]:
    """All that layouts, host calls and wiring take from kernels."""
    return bool(kernels), _main_family(kernels), sum(1 for k in kernels if k.variant == "cast")


def list_calls(graph: OperatorGraph, options: LoweringOptions, matches: Sequence[Match]) -> Calls:
    """The calls that ``options.runtime`` makes for ``graph``, given the fused groups.

    ModelError names a node that contradicts its operator.
    """
    calls = Calls()
    traits = runtime_traits(options.runtime)
    torch = traits.eager
    unfold = traits.unfolds_batchnorm and options.unfold_batchnorm
    layouts = runtime_torch.Layouts()
    known: dict[int | None, Lowered] = {}  # by signature
    memo = memo_of(options)
    covered = {index for match in matches for index in match.covered}
    at = {match.position: match for match in matches}
    unfolded: dict[tuple[int, bool], Unfolded] = {}
    runtime = traits.operators_as
    add = calls.add
    strided = layouts.strides
    for index, op in enumerate(graph.operators):
        head: Operator | Match = op
        record = OPERATORS.get((op.domain, op.op_type))
        traits = record.traits if record is not None else NO_TRAITS
        op_type = op.op_type
        inputs = op.inputs
        outputs = op.outputs
        if index in covered:
            match = at.get(index)
            if match is None:
                continue
            head = match
            op_type = match.op_type
            inputs = match.reads
            outputs = match.writes
            traits = traits_of(match.operator.key)
            lowered = match.lower(options)
            calls.lowered[id(lowered)] = (match.operator, lowered)
            calls.notes[match.name] = calls.notes.get(match.name, 0) + 1
        elif record is None or record.lowering_rule is None:
            add(op, inputs, outputs, (), 1, (), UNKNOWN)
            continue
        elif unfold and op_type == "Conv" and runtime_torch.folded_batchnorm(op):
            _add_unfolded(calls, op, options, layouts, unfolded)
            continue
        else:
            found = known.get(op.signature)
            if found is None:
                found = lower_operator(op, options, memo)
                calls.lowered[id(found)] = (op, found)
                if op.signature is not None:
                    known[op.signature] = found
            lowered = found
        kernels = lowered.kernels
        host_calls = lowered.host_calls
        aliases = tuple(lowered.aliases.items()) if lowered.aliases else ()
        if torch:
            if not kernels and aliases and traits.strides:
                moved = layouts.view(op)
                if moved is not None:
                    kernels = (moved,)
                    host_calls = 1
                    aliases = ()
            elif strided and layouts.strided(inputs):
                family = _main_family(kernels)
                copies = layouts.copies(family, inputs)
                if family in _CONVOLUTIONS and layouts.channels_last(inputs[0]):
                    calls.copied.add(id(kernels))
                    kernels = interned(in_channels_last(kernels))
                if copies:
                    calls.copied.add(id(kernels))
                    if op_type == "Linear" and isinstance(head, Match) and len(copies) == len(kernels) == 1:
                        kernels = _bias_apart(kernels[0], head.operator)
                        host_calls = host_calls + 1
                    kernels = (*copies, *kernels)
                    host_calls = host_calls + len(copies)
                if op_type == "Gather" and not op.domain and layouts.scattered(op):
                    calls.copied.add(id(kernels))
                    kernels = interned((gather_kernel(op, "index_select_scattered"),))
                layouts.result(family, traits.keeps_layout, inputs, outputs)
            if op_type == "Attention" and _main_family(kernels) is Family.ATTENTION:
                layouts.attention_result(outputs[0])
            if aliases and traits.sequence:
                for out_index, in_index in aliases:
                    pairs = aliased_tensors(traits, inputs, out_index, in_index, outputs)
                    layouts.alias({result.name: source for result, source in pairs})
        token = (LAUNCHES if kernels else 0) | (CALLS if host_calls else 0)
        if not token and not aliases:
            continue
        if not aliases and (runtime in traits.in_place or (torch and traits.in_place_before)):
            token |= _fits(inputs, outputs)
        add(head, inputs, outputs, kernels, host_calls, aliases, token)
    return calls


def _fits(inputs: Values, outputs: Values) -> int:
    """Whether the only result is as large as the first and as the second operand: it could take their place."""
    results = leaves(outputs)
    if len(results) != 1:
        return 0
    operands = leaves(inputs)[:2]
    size = results[0].nbytes
    if operands and operands[0].nbytes == size:
        bits = FITS_FIRST
    else:
        bits = 0
    return bits | (FITS_SECOND if len(operands) > 1 and operands[1].nbytes == size else 0)


def aliased_tensors(
    traits: OperatorTraits, inputs: Values, out_index: int, in_index: int, outputs: Values
) -> list[tuple[Tensor, Tensor]]:
    """Return every tensor of output ``out_index`` with the tensor whose memory it is."""
    results = leaves((outputs[out_index],))
    if traits.sequence:
        sources = leaves(inputs)
    else:
        sources = leaves((inputs[in_index],))
    if not sources:
        return []
    by_name = {t.name: t for t in sources}
    pairs = []
    for position, result in enumerate(results):
        source = by_name.get(result.name)
        if source is None and position < len(sources) and sources[position].shape == result.shape:
            source = sources[position]
        if source is None:
            source = next((t for t in sources if t.shape == result.shape), sources[0])
        pairs.append((result, source))
    return pairs


def _bias_apart(linear: Kernel, op: Operator) -> tuple[Kernel, ...]:
    """torch's linear on a tensor that is not contiguous: a product of the copy, then an addition of its own."""
    bias = op.inputs[2]
    result = op.outputs[0]
    assert isinstance(bias, Tensor) and isinstance(result, Tensor), "match_linear gives both"
    product = replace(
        linear,
        flops=linear.flops - result.elements,
        read_bytes=linear.read_bytes - bias.nbytes,
        weight_bytes=linear.weight_bytes - bias.nbytes,
        inputs=linear.inputs - 1,
    )
    return interned((product, elementwise_kernel("add", (result, bias), (result,), flops_per_element=1)))


def _main_family(kernels: tuple[Kernel, ...]) -> Family:
    for kernel in kernels:
        if kernel.family is not Family.COPY and kernel.family is not Family.RANDOM:
            return kernel.family
    return Family.COPY


def _add_unfolded(
    calls: Calls,
    op: Operator,
    options: LoweringOptions,
    layouts: runtime_torch.Layouts,
    known: dict[tuple[int, bool], Unfolded],
) -> None:
    """Conv, then BatchNorm: the runtime's own order before the exporter folded them."""
    source = op.inputs[0]
    if not isinstance(source, Tensor) or not isinstance(op.outputs[0], Tensor):
        return
    own_bias = runtime_torch.folded_bias(op)
    if op.signature is not None:
        pair = known.get((op.signature, own_bias))
    else:
        pair = None
    if pair is None:
        pair = _unfolded(op, options, own_bias)
        calls.unfolded[id(pair)] = (op, own_bias, pair)
        if op.signature is not None:
            known[(op.signature, own_bias)] = pair
    convolution, norm = pair
    copies: tuple[Kernel, ...] = ()
    if layouts.strided((source,)):
        copies = layouts.copies(Family.CONV, (source,))
        layouts.result(Family.CONV, False, op.inputs, op.outputs)
    calls.norms[len(calls.heads)] = norm
    casts = 0
    if len(convolution) > 1:
        casts = sum(1 for k in convolution if k.variant == "cast")
    kernels = convolution
    if copies:
        calls.copied.add(id(convolution))
        kernels = (*copies, *convolution)
    calls.add(op, op.inputs, op.outputs, kernels, 1 + casts + len(copies), (), UNFOLDED | OWN_BIAS * own_bias)
    calls.notes["batchnorm_unfolded"] = calls.notes.get("batchnorm_unfolded", 0) + 1


def _unfolded(op: Operator, options: LoweringOptions, own_bias: bool) -> Unfolded:
    source, weight, bias = leaves(op.inputs[:3])
    (result,) = leaves(op.outputs[:1])
    key = (
        own_bias,
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
        convolution = conv_kernels(shape, source, weight, bias if own_bias else None, result, options)
        parameters = [
            Tensor(name=f"#{i}", dtype=bias.dtype, shape=bias.shape, storage=f"#{i}", is_weight=True)
            for i in range(4)
        ]
        known = (interned(convolution), interned((batchnorm_kernel(result, result, parameters),))[0])
        if len(_UNFOLDED) >= 65_536:
            _UNFOLDED.clear()
        _UNFOLDED[key] = known
    return known


_UNFOLDED: dict[tuple[object, ...], Unfolded] = {}
