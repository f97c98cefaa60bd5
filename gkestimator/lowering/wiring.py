"""Second half of lowering: which memory every call touches, by name.

Views share their source's storage, in-place results take over an operand's, and a step reads and writes storages.
Names do not depend on the batch size, so :func:`wire` runs once for all bindings whose calls agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.core.records import frozen
from gkestimator.lowering.aliases import aliased_tensors
from gkestimator.lowering.calls import (
    CALLS,
    FITS_FIRST,
    FITS_SECOND,
    LAUNCHES,
    OWN_BIAS,
    UNFOLDED,
    UNKNOWN,
    Calls,
)
from gkestimator.lowering.decoder_cache import cached_values
from gkestimator.lowering.patterns import Match
from gkestimator.lowering.scopes import held_arguments, module_path
from gkestimator.operators.builders import tensors_of
from gkestimator.operators.records import NO_TRAITS, OperatorTraits, traits_of
from gkestimator.operators.registry import Shape

Names: TypeAlias = "tuple[str, ...]"

_FOREVER = 1 << 62
UNFOLDED_NORM = "/batch_norm"
"""Ends the name of a normalisation that the exporter folded into its convolution, and that the runtime runs."""
UNFOLDED_RESULT = "#conv"
"""Ends the name of what such a convolution hands to its normalisation."""


def norm_parameters(calls: Calls, at: int) -> list[str]:
    """Return the storages of the BatchNorm unfolded from call ``at`` besides the bias in the file; each is as large
    as that.

    A convolution with a bias of its own keeps the file's bias, so the shift is one more.
    """
    bias = tensors_of(calls.inputs[at][:3])[2]
    parts = ["weight", "mean", "variance"]
    if calls.tokens[at] & OWN_BIAS:
        parts.append("shift")
    return [f"{bias.storage}#{part}" for part in parts]


@frozen
class WiredStep:
    """Hold a step without kernels and bytes.

    ``writes`` are storages with the places of the tensors (among those of the call's outputs) that lie there,
    ``single`` the storage where that is output 0 alone; ``holds`` as in ``Step``.
    """

    call: int
    name: str
    op_type: str
    reads: Names
    writes: tuple[tuple[str, Shape], ...]
    single: str | None
    norm: bool = False  # the BatchNorm of the call instead of its convolution
    holds: Names = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Wiring:
    """Hold the steps of a graph by name; equal only to itself.

    ``constants`` are storages that nothing writes and that are no weights, with the call and the place among its
    inputs' tensors that says how large each is. ``biases`` are the calls whose BatchNorm parameters are weights.
    """

    steps: tuple[WiredStep, ...]
    constants: tuple[tuple[str, int, int], ...]
    biases: Shape
    inputs: Names
    outputs: Names


@dataclass(slots=True)
class _Draft:
    """Hold a step before storages are resolved.

    ``held`` are storages that must outlive it besides what it reads.
    """

    call: int
    name: str
    op_type: str
    reads: list[Tensor]
    writes: list[Tensor]
    places: list[int]
    fits: int = 0
    norm: bool = False
    inner: str = ""  # name of the storage between a convolution and its unfolded BatchNorm
    held: list[str] = field(default_factory=list)


def head_traits(head: Operator | Match) -> OperatorTraits:
    """Return the traits of the operator that ``head`` is, or that stands for its group."""
    return traits_of(head.operator.key if type(head) is Match else head.key)  # type: ignore[union-attr]


def wire(graph: OperatorGraph, calls: Calls, *, torch: bool) -> Wiring:
    """Resolve the storages of ``calls``."""
    return _Wirer(graph, calls, torch).run()


class _Wirer:
    def __init__(self, graph: OperatorGraph, calls: Calls, torch: bool) -> None:
        self._graph = graph
        self._calls = calls
        self._torch = torch
        self._root: dict[str, str] = {}
        self._producer: dict[str, OperatorTraits] = {}  # storage -> traits of the operator that wrote it
        self._drafts: list[_Draft] = []
        self._biases: list[int] = []
        self._reused: dict[str, str] = {}  # a storage that took over another's memory
        self._weights = set(graph.weights)
        self._written: set[str] = set()
        self._constants: list[tuple[str, int, int]] = []

    def run(self) -> Wiring:
        calls = self._calls
        for at, head in enumerate(calls.heads):
            token = calls.tokens[at]
            if type(head) is Match:
                name = head.operator.name
            else:
                name = head.name
            if token & UNKNOWN:
                reads = tensors_of(calls.inputs[at])
                written = tensors_of(calls.outputs[at])
                places = list(range(len(written)))
                self._drafts.append(_Draft(at, name, head.op_type, reads, written, places))
            elif token & UNFOLDED:
                self._unfolded(at, name)
            else:
                self._call(at, name, head.op_type, head_traits(head), token)
        return self._finish()

    def _resolve(self, storage: str) -> str:
        return self._root.get(storage, storage)

    def _settle(self, storage: str) -> str:
        storage = self._root.get(storage, storage)
        return self._reused.get(storage, storage)

    def _call(self, at: int, name: str, op_type: str, traits: OperatorTraits, token: int) -> None:
        calls = self._calls
        inputs = calls.inputs[at]
        outputs = calls.outputs[at]
        aliases = dict(calls.aliases[at])
        for out_index, in_index in aliases.items():
            for result, source in aliased_tensors(traits, inputs, out_index, in_index, outputs):
                if source.storage != result.storage:
                    self._root[result.storage] = self._resolve(source.storage)
        if not token & (LAUNCHES | CALLS):
            return
        writes: list[Tensor] = []
        places: list[int] = []
        place = 0
        for index, value in enumerate(outputs):
            tensors = tensors_of((value,))
            if index not in aliases or token & LAUNCHES:
                writes += tensors
                places += range(place, place + len(tensors))
            place += len(tensors)
        if token & LAUNCHES or writes:
            if not aliases and self._may_run_in_place(traits, at):
                fits = token
            else:
                fits = 0
            self._drafts.append(_Draft(at, name, op_type, tensors_of(inputs), writes, places, fits))
        for tensor in writes:
            self._producer[self._resolve(tensor.storage)] = traits

    def _may_run_in_place(self, traits: OperatorTraits, at: int) -> bool:
        if not self._torch:
            return "onnxruntime" in traits.in_place
        inputs = self._calls.inputs[at]
        if inputs:
            first = inputs[0]
        else:
            first = None
        if not isinstance(first, Tensor):
            return False
        if "torch" not in traits.in_place and not self._activated(at, traits.in_place_before):
            return False
        return self._producer.get(self._resolve(first.storage), NO_TRAITS).feeds_in_place

    def _activated(self, at: int, activation: str) -> bool:
        """Return True when the call after ``at`` is an ``activation`` of its result."""
        heads = self._calls.heads
        outputs = self._calls.outputs[at]
        if at + 1 >= len(heads) or heads[at + 1].op_type != activation or not outputs:
            return False
        return self._calls.inputs[at + 1][0] is outputs[0]

    def _unfolded(self, at: int, name: str) -> None:
        """Return conv, then BatchNorm: the runtime's own order before the exporter folded them."""
        source, weight, bias = tensors_of(self._calls.inputs[at][:3])
        (result,) = tensors_of(self._calls.outputs[at][:1])
        inner = f"{result.storage}{UNFOLDED_RESULT}"
        reads = [source, weight]
        if self._calls.tokens[at] & OWN_BIAS:
            reads.append(bias)
        self._drafts.append(_Draft(at, name, "Conv", reads, [result], [0], inner=inner))
        self._biases.append(at)
        held = [inner, bias.storage, *norm_parameters(self._calls, at)]
        if not module_path(name):
            # No name says which block the two are in: Python holds the block's input, taken to be the convolution's.
            held.append(self._resolve(source.storage))
        self._drafts.append(
            _Draft(
                at, f"{name}{UNFOLDED_NORM}", "BatchNormalization", [], [result], [0], norm=True, held=held
            )
        )
        self._producer[self._resolve(result.storage)] = traits_of(("", "BatchNormalization"))

    def _finish(self) -> Wiring:
        graph = self._graph
        inputs = tensors_of(graph.inputs)
        outputs = tensors_of(graph.outputs)
        last = self._last_uses((*inputs, *outputs))
        for at in self._biases:
            self._weights.update(norm_parameters(self._calls, at))
        self._written.update(self._resolve(tensor.storage) for tensor in inputs)
        steps = []
        for index, draft in enumerate(self._drafts):
            reads = self._read(draft)
            if draft.fits and not draft.inner and len(draft.writes) == 1:
                self._reuse(draft, index, last)
            steps.append(self._step(draft, reads))
        if self._torch:
            steps = self._with_holds(steps)
        return Wiring(
            steps=tuple(steps),
            constants=tuple(self._constants),
            biases=tuple(self._biases),
            inputs=tuple([self._settle(tensor.storage) for tensor in inputs]),
            outputs=tuple([self._settle(tensor.storage) for tensor in outputs]),
        )

    def _last_uses(self, ends: Iterable[Tensor]) -> dict[str, int]:
        """Return the last draft that needs each storage; those of ``ends``, the graph's own, are needed for ever."""
        root = self._root
        last: dict[str, int] = {}
        for index, draft in enumerate(self._drafts):
            for tensor in draft.reads:
                last[root.get(tensor.storage, tensor.storage)] = index
            for storage in draft.held:
                last[root.get(storage, storage)] = index
        for tensor in ends:
            last[self._resolve(tensor.storage)] = _FOREVER
        return last

    def _read(self, draft: _Draft) -> Names:
        """Return the storages that ``draft`` reads or holds; what nothing wrote is a constant, noted with its
        place.
        """
        sources: dict[str, None] = {}
        for place, tensor in enumerate(draft.reads):
            storage = self._settle(tensor.storage)
            sources[storage] = None
            if storage not in self._written and storage not in self._weights:
                self._weights.add(storage)  # folded at binding: a constant that lies in memory
                self._constants.append((storage, draft.call, place))
        for storage in draft.held:
            sources[self._settle(storage)] = None
        return tuple(sources)

    def _step(self, draft: _Draft, reads: Names) -> WiredStep:
        homes: dict[str, list[int]] = {}
        for place, tensor in zip(draft.places, draft.writes, strict=True):
            homes.setdefault(draft.inner or self._settle(tensor.storage), []).append(place)
        self._written.update(homes)
        writes = tuple([(storage, tuple(places)) for storage, places in homes.items()])
        single = None
        results = self._calls.outputs[draft.call]
        if len(writes) == 1 and results and isinstance(results[0], Tensor):
            storage, places = writes[0]
            if places == (0,):
                single = storage
        return WiredStep(
            call=draft.call,
            name=draft.name,
            op_type=draft.op_type,
            reads=reads,
            writes=writes,
            single=single,
            norm=draft.norm,
        )

    def _with_holds(self, steps: list[WiredStep]) -> list[WiredStep]:
        """Return ``steps`` with what Python holds: arguments of modules, and keys and values to the end."""
        # A BatchNorm is a module of its own beside the convolution that it was folded into.
        paths = []
        writes = []
        for step in steps:
            path = module_path(step.name)
            paths.append(path[:-2] if step.norm else path)
            writes.append([storage for storage, _ in step.writes])
        held = held_arguments(paths, [step.reads for step in steps], writes)
        if steps:
            for tensor in tensors_of(cached_values(self._graph)):
                storage = self._settle(tensor.storage)
                if storage not in held[-1]:
                    held[-1].append(storage)
        wired = []
        for step, storages in zip(steps, held, strict=True):
            wired.append(replace(step, holds=tuple(storages)) if storages else step)
        return wired

    def _reuse(self, draft: _Draft, index: int, last: Mapping[str, int]) -> None:
        """Let the result take over the memory of an operand of its size whose last use this is."""
        target = self._resolve(draft.writes[0].storage)
        fits = [FITS_FIRST]
        if not self._torch:
            fits.append(FITS_SECOND)
        for bit, operand in zip(fits, draft.reads, strict=False):
            source = self._resolve(operand.storage)
            if operand.is_weight or not draft.fits & bit:
                continue
            if source == target or last.get(source) != index:
                continue
            home = self._reused.get(source, source)
            if home in self._weights:
                continue
            self._reused[target] = home
            return
