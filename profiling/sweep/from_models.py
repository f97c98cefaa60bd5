"""What the user's models launch, as fragments: single operators, fused patterns, and the copies of eager mode."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import GkestimatorError, UsageError, error_of_one
from gkestimator.core.fragments import Fragment
from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.core.naming import distinct_names
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.jobs.stopping import Progress
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.lowering.calls import OWN_BIAS, UNFOLDED, UNKNOWN, Calls, list_calls
from gkestimator.lowering.patterns import Match, find_matches
from gkestimator.onnx_io import read_model
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.operators.records import traits_of
from gkestimator.operators.registry import Kernels
from gkestimator.profiling.sweep.extraction import NotAFragmentError, fragment_of, tensor_of
from gkestimator.profiling.type_names import CountByName, Ints

Candidates: TypeAlias = "Iterator[Callable[[], Fragment]]"

COPY_PATTERN = "contiguous_copy"
VIEWED_PATTERN = "after_views"  # an operator that works otherwise on strided memory, with the views before it
_FEW_VIEWS = 8
_MASK_OF_ATTENTION = 3  # its position among the inputs


@dataclass(slots=True, kw_only=True)
class ModelCall:
    """Hold a distinct fragment with the kernels it stands for (float32) and how often each model launches it, by the
    model's name and batch."""

    fragment: Fragment
    kernels: Kernels
    launches: Counter[tuple[str, int]] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class ModelSweep:
    """Hold what models launch. ``calls`` by text of the fragment, in the order met; ``kernels`` counts every launch of
    every (model, batch); ``left_out`` counts launches of operators that no fragment stands for, by reason; ``failures``
    are files that could not be read or bound."""

    calls: dict[str, ModelCall] = field(default_factory=dict)
    kernels: dict[tuple[str, int], Counter[Kernel]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[Path, GkestimatorError]] = field(default_factory=list)


def sweep_models(
    paths: Sequence[Path],
    *,
    options: LoweringOptions,
    batch_sizes: Sequence[int] | None = None,
    dims: CountByName | None = None,
    progress: Progress | None = None,
) -> ModelSweep:
    """Return the calls of every file at every batch size (None: as exported), under ``options`` in float32.

    A name in ``dims`` counts for the models that have it; UsageError where none has.
    """
    sweep = ModelSweep()
    wanted = dict(dims or {})
    met = set[str]()
    names = distinct_names(paths)
    for number, (path, name) in enumerate(zip(paths, names, strict=True)):
        if progress is not None:
            progress(name, number, len(paths))
        try:
            model = read_model(path, name=name)
            mine = {k: v for k, v in wanted.items() if k in model.dims}
            met.update(mine)
            for batch in batch_sizes or (None,):
                sweep_graph(sweep, name, model.bind(batch_size=batch, dims=mine), options)
        except Exception as e:  # noqa: BLE001 - a defect that one model meets is called one, in its place
            sweep.failures.append((path, error_of_one(e)))
    unmet = sorted(wanted.keys() - met)
    if unmet and len(sweep.failures) < len(paths):
        raise UsageError(f"--dim {unmet[0]}: no model has a symbolic dimension of this name")
    return sweep


def sweep_graph(sweep: ModelSweep, name: str, graph: OperatorGraph, options: LoweringOptions) -> None:
    """Add the calls of one bound model."""
    # As the runtime fuses them: what is measured must be what the model launches.
    matches = find_matches(graph, options)
    calls = list_calls(graph, options, matches)
    finder = _Finder(graph, calls, options)
    place = (name, graph.batch_size)
    launched = sweep.kernels.setdefault(place, Counter())
    for at in range(len(calls.heads)):
        kernels = finder.launches(at)
        repeat = finder.repeat(at)
        if calls.tokens[at] == UNKNOWN:
            sweep.left_out["operators without a rule"] += repeat
            continue
        if not kernels:
            continue
        if all(k.family is Family.HOST for k in kernels):
            sweep.left_out["operators that run on the host"] += repeat
            continue
        for kernel in kernels:
            launched[kernel] += repeat
        answers = finder.answers(at)
        if answers.problem is not None:
            sweep.left_out[answers.problem] += repeat
        for fragment, made in answers.fragments:
            call = sweep.calls.setdefault(fragment.text(), ModelCall(fragment=fragment, kernels=made))
            call.launches[place] += repeat


@dataclass
class _Answers:
    """Hold the fragments that stand for a call, with their kernels, and why some kernels have none."""

    fragments: list[tuple[Fragment, Kernels]] = field(default_factory=list)
    problem: str | None = None

    def note(self, problem: str) -> None:
        """Keep the first problem met."""
        if self.problem is None:
            self.problem = problem


class _Finder:
    """Find fragments for the calls of one graph, each checked: it lowers to kernels that the call launches."""

    def __init__(self, graph: OperatorGraph, calls: Calls, options: LoweringOptions) -> None:
        self._graph = graph
        self._calls = calls
        self._options = options
        self._eager = runtime_traits(options.runtime).eager
        self._producer: dict[str, Operator] = {}
        for op in graph.operators:
            for value in op.outputs:
                if isinstance(value, Tensor):
                    self._producer[value.name] = op
        self._lowered: dict[str, Kernels] = {}
        self._known: dict[tuple[int, int], _Answers] = {}

    def repeat(self, at: int) -> int:
        """Return how often the call runs."""
        head = self._calls.heads[at]
        if isinstance(head, Match):
            return head.operator.repeat
        return head.repeat

    def launches(self, at: int) -> Kernels:
        """Return all kernels of the call, the BatchNorm that an exporter folded in included."""
        kernels = self._calls.kernels[at]
        norm = self._calls.norms.get(at)
        if norm is None:
            return kernels
        return (*kernels, norm)

    def answers(self, at: int) -> _Answers:
        """Return fragments whose kernels are those of the call, as far as there are any, and why some are missing."""
        head = self._calls.heads[at]
        kernels = self.launches(at)
        if not isinstance(head, Operator) or head.signature is None:
            return self._answers(at, head, kernels)
        # Equal operators differ in the copies before them at most, and those are among the kernels.
        key = (head.signature, hash(kernels))
        if key not in self._known:
            self._known[key] = self._answers(at, head, kernels)
        return self._known[key]

    def _answers(self, at: int, head: Operator | Match, kernels: Kernels) -> _Answers:
        # Kernels are ticked off: a fragment that launches anything else stands for another operator.
        missing = Counter(map(_physical, kernels))
        answers = _Answers()
        for candidate in self._candidates(at, head):
            try:
                fragment = candidate()
                made = self._kernels(fragment)
            except NotAFragmentError as e:
                answers.note(str(e))
                continue
            except GkestimatorError:
                answers.note("operators that need values which the file leaves open")
                continue
            launched = Counter(map(_physical, made))
            if made and launched <= missing:
                missing -= launched
                answers.fragments.append((fragment, made))
            if not missing:
                answers.problem = None
                return answers
        if all(kernel.variant == "contiguous" for kernel in missing):
            answers.note("copies of tensors that a strided view precedes")
        answers.note("operators whose kernels depend on what surrounds them")
        return answers

    def _kernels(self, fragment: Fragment) -> Kernels:
        text = fragment.text()
        if text not in self._lowered:
            steps = lower(fragment_graph(fragment), self._options).steps
            self._lowered[text] = tuple(kernel for step in steps for kernel in step.kernels)
        return self._lowered[text]

    def _covered(self, match: Match) -> list[Operator]:
        return [self._graph.operators[i] for i in match.covered]

    def _candidates(self, at: int, head: Operator | Match) -> Candidates:
        """Yield in order of preference: the one operator that a match stands for, then its nodes; then copies."""
        if isinstance(head, Match):
            yield from self._of_match(head)
        elif self._calls.tokens[at] & UNFOLDED:
            own_bias = self._calls.tokens[at] & OWN_BIAS
            yield lambda: fragment_of([head if own_bias else _replaced(head, inputs=head.inputs[:2])])
            yield lambda: fragment_of([_norm_after(head)])
        else:
            yield lambda: fragment_of([head])
        if self._eager:
            yield from self._copies(at)

    def _of_match(self, match: Match) -> Candidates:
        operator = match.operator
        if self._eager and not operator.domain and match.name != "silu":
            yield lambda: fragment_of([_valid(operator)])
        yield lambda: fragment_of(self._covered(match), match.name)
        if operator.domain == "com.microsoft":  # what onnxruntime does not fuse at the end of a graph
            yield lambda: fragment_of([operator])

    def _copies(self, at: int) -> Candidates:
        """Yield the views behind each input of the call, ended by a Reshape that cannot be one."""
        head = self._calls.heads[at]
        if isinstance(head, Operator):
            name = COPY_PATTERN if _is_view(head) else VIEWED_PATTERN
            yield lambda: fragment_of([*self._views(head.inputs[0]), head], name)
            if head.op_type == "Conv" and not head.domain:
                yield lambda: fragment_of(_channels_last(head), VIEWED_PATTERN)
        elif head.covered:
            nodes = self._covered(head)
            yield lambda: fragment_of([*self._views(nodes[0].inputs[0]), *nodes], VIEWED_PATTERN)
        for value in self._calls.inputs[at]:
            if not isinstance(value, Tensor):
                continue
            views = self._views(value)
            if views:
                copied = [*views, _flattened(value, views[-1].version)]
                yield partial(fragment_of, copied, COPY_PATTERN)

    def _views(self, value: object) -> list[Operator]:
        """Return the chain of views that leads to ``value``, first to last."""
        views: list[Operator] = []
        while isinstance(value, Tensor) and len(views) < _FEW_VIEWS:
            op = self._producer.get(value.name)
            if op is None or not _is_view(op):
                break
            views.append(op)
            value = op.inputs[0]
        return views[::-1]


def _valid(op: Operator) -> Operator:
    """Return ``op`` as ONNX has it: attention takes masks of at most four dimensions, windows add some of length
    one."""
    if op.op_type != "Attention" or len(op.inputs) <= _MASK_OF_ATTENTION:
        return op
    inputs = list(op.inputs)
    mask = tensor_of(inputs[_MASK_OF_ATTENTION])
    if math.prod(mask.shape[:-4]) != 1:
        raise NotAFragmentError("masks of more than four dimensions")
    inputs[_MASK_OF_ATTENTION] = replace(mask, shape=mask.shape[-4:], value=None)
    return _replaced(op, inputs=tuple(inputs))


def _own(name: str, tensor: Tensor, shape: Ints, *, weight: bool = False) -> Tensor:
    return Tensor(name=name, dtype=tensor.dtype, shape=shape, storage=name, is_weight=weight)


def _norm_after(op: Operator) -> Operator:
    """Return the BatchNormalization that the exporter folded into ``op``."""
    result = tensor_of(op.outputs[0])
    if len(result.shape) < 2:
        raise NotAFragmentError("sequences")
    channels = (result.shape[1],)
    parameters = [_own(f"#{i}", result, channels, weight=True) for i in range(4)]
    return _replaced(
        op,
        op_type="BatchNormalization",
        version=15,
        attributes={"epsilon": 1e-5},
        inputs=(_own("#x", result, result.shape), *parameters),
    )


def _channels_last(op: Operator) -> list[Operator]:
    """Return the convolution on an image that lies in NHWC: a Transpose, which launches nothing, before it."""
    image = op.inputs[0]
    if not isinstance(image, Tensor) or len(image.shape) != 4:
        raise NotAFragmentError("images that are not two-dimensional")
    batch, channels, height, width = image.shape
    stored = _own("#nhwc", image, (batch, height, width, channels))
    view = _own("#nchw", image, image.shape)
    turned = _replaced(
        op, op_type="Transpose", attributes={"perm": (0, 3, 1, 2)}, inputs=(stored,), outputs=(view,)
    )
    return [turned, _replaced(op, inputs=(view, *op.inputs[1:]))]


def _physical(kernel: Kernel) -> Kernel:
    """Return ``kernel`` without which of its operands are weights, and scalars among them: a fragment holds as a
    constant what a model computes from its shapes. The bytes stay."""
    return replace(kernel, weight_bytes=0, inputs=1)


def _flattened(value: Tensor, version: int) -> Operator:
    """Return a Reshape of ``value`` to one dimension."""
    shape = Tensor(
        name="#shape",
        dtype=DType.INT64,
        shape=(1,),
        storage="#shape",
        is_weight=True,
        value=np.array([-1], dtype=np.int64),
    )
    return Operator(
        name="#flat",
        domain="",
        op_type="Reshape",
        version=version,
        attributes={},
        inputs=(value, shape),
        outputs=(_own("#flat", value, (value.elements,)),),
    )


def _replaced(op: Operator, **changes: object) -> Operator:
    return replace(op, signature=None, **changes)  # type: ignore[arg-type]


def _is_view(op: Operator) -> bool:
    """Return True for an operator that torch answers without a kernel."""
    return "torch" in traits_of(op.key).view_in
