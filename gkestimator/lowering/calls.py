"""First half of lowering: which calls the runtime makes, with their kernels. What memory they touch comes after.

A call is an operator, or a fused group, that launches something or whose result is another's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gkestimator.core.errors import LimitError
from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.core.limits import allowed, exceeded
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.lowering.aliases import aliased_tensors
from gkestimator.lowering.memo import interned, lower_operator, memo_of
from gkestimator.lowering.patterns import Match
from gkestimator.lowering.reformats import Reformats
from gkestimator.lowering.storage import copies_after_casts
from gkestimator.lowering.torch_layouts import (
    Layouts,
    Values,
    bias_apart,
    folded_batchnorm,
    folded_bias,
    with_bias,
)
from gkestimator.operators.builders import batchnorm_kernel, tensors_of
from gkestimator.operators.convolution import conv_kernels, conv_shape, in_channels_last
from gkestimator.operators.indexing import gather_kernel
from gkestimator.operators.records import OPERATORS, OperatorTraits, traits_of
from gkestimator.operators.registry import Kernels, Lowered, LoweringOptions

Aliases: TypeAlias = "tuple[tuple[int, int], ...]"

_JOINS_IMAGES = frozenset({"Concat", "Pad"})

# What wiring needs to know of a call besides its aliases; bits of a token.
LAUNCHES = 1
CALLS = 2
FITS_FIRST = 4
FITS_SECOND = 8
UNFOLDED = 16
UNKNOWN = 32
OWN_BIAS = 64
UNFOLDED_NOTE = "batchnorm_unfolded"


Unfolded = tuple[Kernels, Kernel]  # of the convolution, and of its BatchNorm


@dataclass(slots=True)
class Calls:
    """Hold the calls of one graph in order, as parallel lists.

    ``heads`` are the operator, or the match, behind each call; ``tokens`` and ``aliases`` are all that wiring knows
    of it: two lists of calls of one structure that agree in both touch the same storages. ``norms`` are the kernels
    of the BatchNorms that exporters had folded into a convolution, by call.
    """

    heads: list[Operator | Match] = field(default_factory=list)
    inputs: list[Values] = field(default_factory=list)
    outputs: list[Values] = field(default_factory=list)
    kernels: list[Kernels] = field(default_factory=list)
    host_calls: list[int] = field(default_factory=list)
    aliases: list[Aliases] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    norms: dict[int, Kernel] = field(default_factory=dict)
    lowered: dict[int, tuple[Operator, Lowered]] = field(default_factory=dict)  # by id: an operator of each
    unfolded: dict[int, tuple[Operator, bool, Unfolded]] = field(default_factory=dict)  # likewise
    copied: set[int] = field(default_factory=set)  # ids of kernels that copies were put before
    notes: dict[str, int] = field(default_factory=dict)
    launches: int = 0

    def add(
        self,
        head: Operator | Match,
        inputs: Values,
        outputs: Values,
        kernels: Kernels,
        host_calls: int,
        aliases: Aliases,
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
        self.launches += len(kernels)

    def count(self, note: str) -> None:
        """Count one occurrence of what ``note`` names."""
        self.notes[note] = self.notes.get(note, 0) + 1

    def key(self) -> tuple[object, ...]:
        """Return what two lists of calls of one structure share when their wiring is the same."""
        groups = []
        for at, head in enumerate(self.heads):
            if type(head) is Match:
                names = tuple([value.name for value in self.inputs[at] if value is not None])
                groups.append((at, head.covered, head.op_type, names))
        return (tuple(self.tokens), tuple(self.aliases), tuple(groups))

    def under(self, options: LoweringOptions) -> Calls | None:
        """Return these calls under ``options`` that differ in precisions alone.

        The same object where no kernel changes, None where more than kernels changes or cannot be told without
        listing the calls anew.
        """
        memo = memo_of(options)
        replaced: list[tuple[Kernels, Kernels]] = []
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
        changed: dict[int, Kernels] = {}  # by id of the kernels that are replaced
        unchanged: set[int] = set()
        for before, after in replaced:
            if before is after or before == after:
                unchanged.add(id(before))
            elif _roles(before) != _roles(after) or changed.setdefault(id(before), after) is not after:
                return None
        # One group of kernels may stand for operators that differ now, or be part of a longer one.
        if not changed.keys().isdisjoint(unchanged | self.copied):
            return None
        if not changed:
            return self
        return replace(self, kernels=[changed.get(id(kernels), kernels) for kernels in self.kernels])


def _roles(kernels: Kernels) -> tuple[bool, Family, int]:
    """Return all that layouts, host calls and wiring take from kernels."""
    return bool(kernels), _main_family(kernels), _casts(kernels)


def _casts(kernels: Kernels) -> int:
    return sum(1 for kernel in kernels if kernel.variant == "cast")


def list_calls(graph: OperatorGraph, options: LoweringOptions, matches: Sequence[Match]) -> Calls:
    """Return the calls that ``options.runtime`` makes for ``graph``, given the fused groups.

    ModelError names a node that contradicts its operator.
    """
    return _Lister(options).run(graph, matches)


@dataclass(slots=True)
class _Draft:
    """Hold a call while the ways of eager mode change it.

    ``op`` is the operator in whose place the call runs, ``head`` that or the group that ends with it; ``traits``
    are those of the operator that stands for the call.
    """

    head: Operator | Match
    op: Operator
    op_type: str
    traits: OperatorTraits
    inputs: Values
    outputs: Values
    kernels: Kernels
    host_calls: int
    aliases: Aliases


class _Lister:
    """List the calls of one graph under one set of options."""

    def __init__(self, options: LoweringOptions) -> None:
        runtime = runtime_traits(options.runtime)
        self._options = options
        self._memo = memo_of(options)
        self._eager = runtime.eager
        self._unfolds = runtime.unfolds_batchnorm and options.unfold_batchnorm
        self._runtime = runtime.operators_as
        self._calls = Calls()
        self._most_kernels = allowed("kernels")
        self._layouts = Layouts(channels_last_weights=options.layout == "nhwc")
        self._channels_last = runtime.eager and options.layout == "nhwc"
        self._by_signature: dict[int, Lowered] = {}
        self._unfolded: dict[tuple[int, bool], Unfolded] = {}
        self._reformats = Reformats()
        self._compiled = bool(runtime.permits)

    def run(self, graph: OperatorGraph, matches: Sequence[Match]) -> Calls:
        covered = {index for match in matches for index in match.covered}
        groups = {match.position: match for match in matches}
        if self._channels_last:
            for value in graph.inputs:
                self._layouts.store_channels_last(value)
        self._reformats.begin(graph)
        for index, op in enumerate(graph.operators):
            if index in covered:
                if index in groups:
                    self._add_group(op, groups[index])
                    self._bound(graph)
                continue
            self._add_alone(op)
            self._bound(graph)
        calls = self._calls
        for at, copies in self._reformats.at_end(graph.outputs).items():
            calls.copied.add(id(calls.kernels[at]))
            calls.kernels[at] += interned(copies)
            calls.host_calls[at] += len(copies)
        return calls

    def _bound(self, graph: OperatorGraph) -> None:
        """Raise LimitError where the calls so far have too many kernels."""
        if self._calls.launches > self._most_kernels:
            raise LimitError(f"{graph.name}: {exceeded('kernels', self._calls.launches)}")

    def _add_alone(self, op: Operator) -> None:
        """Add an operator that is in no group."""
        record = OPERATORS.get((op.domain, op.op_type))
        if record is None or record.lowering_rule is None:
            self._calls.add(op, op.inputs, op.outputs, (), 1, (), UNKNOWN)
        elif self._unfolds and op.op_type == "Conv" and folded_batchnorm(op):
            self._add_unfolded(with_bias(op))
        else:
            self._add(op, op, record.traits, op.inputs, op.outputs, self._lowered(op))

    def _lowered(self, op: Operator) -> Lowered:
        signature = op.signature
        known = self._by_signature.get(signature) if signature is not None else None
        if known is None:
            known = lower_operator(op, self._options, self._memo)
            self._calls.lowered[id(known)] = (op, known)
            if signature is not None:
                self._by_signature[signature] = known
        return known

    def _add_group(self, op: Operator, match: Match) -> None:
        calls = self._calls
        lowered = match.lower(self._options)
        calls.lowered[id(lowered)] = (match.operator, lowered)
        calls.count(match.name)
        self._add(match, op, traits_of(match.operator.key), match.reads, match.writes, lowered)

    def _add(
        self,
        head: Operator | Match,
        op: Operator,
        traits: OperatorTraits,
        inputs: Values,
        outputs: Values,
        lowered: Lowered,
    ) -> None:
        kernels = lowered.kernels
        host_calls = lowered.host_calls
        aliases = tuple(lowered.aliases.items())
        if self._eager:
            draft = _Draft(head, op, head.op_type, traits, inputs, outputs, kernels, host_calls, aliases)
            self._lay_out(draft)
            kernels = draft.kernels
            host_calls = draft.host_calls
            aliases = draft.aliases
        token = LAUNCHES if kernels else 0
        if host_calls:
            token |= CALLS
        if not aliases:
            if not token:
                return
            if self._runtime in traits.in_place or (self._eager and traits.in_place_before):
                token |= _fits(inputs, outputs)
        if self._compiled:
            viewed = []
            for out_index, in_index in aliases:
                viewed += aliased_tensors(traits, inputs, out_index, in_index, outputs)
            copies = self._reformats.before(inputs, kernels)
            self._reformats.after(inputs, outputs, kernels, viewed, len(self._calls.heads))
            if copies:
                self._calls.copied.add(id(kernels))
                kernels = (*interned(copies), *kernels)
                host_calls += len(copies)
        self._calls.add(head, inputs, outputs, kernels, host_calls, aliases, token)

    def _lay_out(self, draft: _Draft) -> None:
        """Follow the strides through the call, with the copies that they cost in eager mode."""
        layouts = self._layouts
        traits = draft.traits
        if not draft.kernels and draft.aliases and traits.strides:
            moved = layouts.view(draft.op)
            if moved is not None:
                draft.kernels = (moved,)
                draft.host_calls = 1
                draft.aliases = ()
        elif layouts.strided(draft.inputs) or (self._channels_last and draft.inputs):
            self._copy_strided(draft)
        if draft.op_type == "Attention" and _main_family(draft.kernels) in (Family.ATTENTION, Family.DECODE):
            layouts.attention_result(draft.outputs[0])
        if draft.aliases and traits.sequence:
            for out_index, in_index in draft.aliases:
                pairs = aliased_tensors(traits, draft.inputs, out_index, in_index, draft.outputs)
                layouts.alias({result.name: source for result, source in pairs})

    def _copy_strided(self, draft: _Draft) -> None:
        """Put the copies before the kernels that cannot read an operand as it lies, and lay out the results."""
        layouts = self._layouts
        copied = self._calls.copied
        kernels = draft.kernels
        family = _main_family(kernels)
        copies = copies_after_casts(layouts.copies(family, draft.inputs), kernels)
        if layouts.runs_in_channels_last(family, draft.inputs[0]):
            copied.add(id(kernels))
            kernels = interned(in_channels_last(kernels))
        if copies:
            copied.add(id(kernels))
            head = draft.head
            if isinstance(head, Match) and head.op_type == "Linear" and len(copies) == 1:
                kernels = (*kernels[:-1], *bias_apart(kernels[-1], head.operator))
                draft.host_calls += 1
            kernels = (*copies, *kernels)
            draft.host_calls += len(copies)
        if draft.op_type == "Gather" and not draft.op.domain and layouts.scattered(draft.op):
            copied.add(id(kernels))
            kernels = interned((gather_kernel(draft.op, "index_select_scattered"),))
        draft.kernels = kernels
        if draft.op_type in _JOINS_IMAGES and not draft.op.domain:
            layouts.image_result(draft.inputs, draft.outputs[0])
        else:
            layouts.result(family, draft.traits.keeps_layout, draft.inputs, draft.outputs)

    def _add_unfolded(self, op: Operator) -> None:
        """Add a convolution, then its BatchNorm: the runtime's own order before the exporter folded them."""
        source = op.inputs[0]
        if not isinstance(source, Tensor) or not isinstance(op.outputs[0], Tensor):
            return
        calls = self._calls
        own_bias = folded_bias(op)
        pair = self._unfolded_pair(op, own_bias)
        kernels, norm = pair
        host_calls = 1
        if len(kernels) > 1:
            host_calls += _casts(kernels)
        layouts = self._layouts
        if self._channels_last or layouts.strided((source,)):
            copies = copies_after_casts(layouts.copies(Family.CONV, (source,)), kernels)
            layouts.result(Family.CONV, False, op.inputs, op.outputs)
            if layouts.runs_in_channels_last(Family.CONV, source):
                calls.copied.add(id(kernels))
                kernels = interned(in_channels_last(kernels))
                (norm,) = interned(in_channels_last((norm,)))
            if copies:
                calls.copied.add(id(kernels))
                kernels = (*copies, *kernels)
                host_calls += len(copies)
        calls.norms[len(calls.heads)] = norm
        token = UNFOLDED
        if own_bias:
            token |= OWN_BIAS
        calls.add(op, op.inputs, op.outputs, kernels, host_calls, (), token)
        calls.count(UNFOLDED_NOTE)

    def _unfolded_pair(self, op: Operator, own_bias: bool) -> Unfolded:
        signature = op.signature
        if signature is not None:
            known = self._unfolded.get((signature, own_bias))
            if known is not None:
                return known
        pair = _unfolded(op, self._options, own_bias)
        self._calls.unfolded[id(pair)] = (op, own_bias, pair)
        if signature is not None:
            self._unfolded[signature, own_bias] = pair
        return pair


def _fits(inputs: Values, outputs: Values) -> int:
    """Return the bits of the first two operands that are as large as the only result, which could replace them."""
    results = tensors_of(outputs)
    if len(results) != 1:
        return 0
    size = results[0].nbytes
    bits = 0
    for operand, bit in zip(tensors_of(inputs), (FITS_FIRST, FITS_SECOND), strict=False):
        if operand.nbytes == size:
            bits |= bit
    return bits


def _main_family(kernels: Kernels) -> Family:
    for kernel in kernels:
        if kernel.family is not Family.COPY and kernel.family is not Family.RANDOM:
            return kernel.family
    return Family.COPY


def _unfolded(op: Operator, options: LoweringOptions, own_bias: bool) -> Unfolded:
    """Return the kernels of a convolution that a BatchNorm was folded into, and the kernel of that."""
    source, weight, bias = tensors_of(op.inputs[:3])
    (result,) = tensors_of(op.outputs[:1])
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
        norm = batchnorm_kernel(result, result, parameters)
        known = (interned(convolution), interned((norm,))[0])
        if len(_UNFOLDED) >= 65_536:
            _UNFOLDED.clear()
        _UNFOLDED[key] = known
    return known


_UNFOLDED: dict[tuple[object, ...], Unfolded] = {}
