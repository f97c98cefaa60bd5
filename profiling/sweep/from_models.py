"""What the user's models launch, as fragments: single operators, fused patterns, and the copies of eager mode."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.fragments import Fragment
from gkestimator.core.graph import Operator, OperatorGraph, Tensor
from gkestimator.core.kernels import Family, Kernel
from gkestimator.core.naming import distinct_names
from gkestimator.hardware.runtimes import runtime_traits
from gkestimator.lowering import LoweringOptions, lower
from gkestimator.lowering.calls import OWN_BIAS, UNFOLDED, UNKNOWN, Calls, list_calls
from gkestimator.lowering.patterns import Match, find_matches
from gkestimator.onnx_io import read_model
from gkestimator.onnx_io.fragment_models import fragment_graph
from gkestimator.operators.records import traits_of
from gkestimator.profiling.sweep.extraction import NotAFragmentError, fragment_of

Progress = Callable[[str, int, int], None]
COPY_PATTERN = "contiguous_copy"
VIEWED_PATTERN = "after_views"  # an operator that works otherwise on strided memory, with the views before it
_FEW_VIEWS = 8


@dataclass(slots=True, kw_only=True)
class ModelCall:
    """A distinct fragment with the kernels it stands for (float32) and how often each model launches it, by the
    model's name and batch."""

    fragment: Fragment
    kernels: tuple[Kernel, ...]
    launches: Counter[tuple[str, int]] = field(default_factory=Counter)


@dataclass(slots=True, kw_only=True)
class ModelSweep:
    """What models launch. ``calls`` by text of the fragment, in the order met; ``kernels`` counts every launch of every
    (model, batch); ``left_out`` counts launches of operators that no fragment stands for, by reason; ``failures`` are
    files that could not be read or bound."""

    calls: dict[str, ModelCall] = field(default_factory=dict)
    kernels: dict[tuple[str, int], Counter[Kernel]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[Path, GkestimatorError]] = field(default_factory=list)


def sweep_models(
    paths: Sequence[Path],
    *,
    options: LoweringOptions,
    batch_sizes: Sequence[int] | None = None,
    dims: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> ModelSweep:
    """The calls of every file at every batch size (None: as exported), under ``options`` in float32.

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
        except GkestimatorError as e:
            sweep.failures.append((path, e))
    unmet = sorted(wanted.keys() - met)
    if unmet and len(sweep.failures) < len(paths):
        raise UsageError(f"--dim {unmet[0]}: no model has a symbolic dimension of this name")
    return sweep


def sweep_graph(sweep: ModelSweep, name: str, graph: OperatorGraph, options: LoweringOptions) -> None:
    """Add the calls of one bound model."""
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
        answered, problem = finder.fragments(at)
        if problem is not None:
            sweep.left_out[problem] += repeat
        for fragment, made in answered:
            call = sweep.calls.get(text := fragment.text())
            if call is None:
                call = sweep.calls[text] = ModelCall(fragment=fragment, kernels=made)
            call.launches[place] += repeat


Found = tuple[tuple[Fragment, tuple[Kernel, ...]], ...]


class _Finder:
    """Fragments for the calls of one graph, each checked: it lowers to kernels that the call launches."""

    def __init__(self, graph: OperatorGraph, calls: Calls, options: LoweringOptions) -> None:
        self._graph = graph
        self._calls = calls
        self._options = options
        self._producer = {
            value.name: op for op in graph.operators for value in op.outputs if isinstance(value, Tensor)
        }
        self._lowered: dict[str, tuple[Kernel, ...]] = {}
        self._known: dict[tuple[int, int], tuple[Found, str | None]] = {}

    def repeat(self, at: int) -> int:
        """How often the call runs."""
        head = self._calls.heads[at]
        if isinstance(head, Match):
            return head.operator.repeat
        return head.repeat

    def launches(self, at: int) -> tuple[Kernel, ...]:
        """All kernels of the call, the BatchNorm that an exporter folded in included."""
        norm = self._calls.norms.get(at)
        return self._calls.kernels[at] + (() if norm is None else (norm,))

    def fragments(self, at: int) -> tuple[Found, str | None]:
        """Fragments whose kernels are those of the call, as far as there are any, and why some are missing."""
        head = self._calls.heads[at]
        kernels = self.launches(at)
        signature = head.signature if isinstance(head, Operator) else None
        # Equal operators differ in the copies before them at most, and those are among the kernels.
        key = None if signature is None else (signature, hash(kernels))
        if key is not None and key in self._known:
            return self._known[key]
        missing = Counter(map(_physical, kernels))
        found: list[tuple[Fragment, tuple[Kernel, ...]]] = []
        problem: str | None = None
        for candidate in self._candidates(at, head):
            try:
                fragment = candidate()
                made = self._kernels(fragment)
            except NotAFragmentError as e:
                problem = problem or str(e)
                continue
            except GkestimatorError:
                problem = problem or "operators that need values which the file leaves open"
                continue
            answered = Counter(map(_physical, made))
            if made and not answered - missing:
                missing -= answered
                found.append((fragment, made))
            if not missing:
                break
        if missing and problem is None:
            if all(k.variant == "contiguous" for k in missing):
                problem = "copies of tensors that a strided view precedes"
            else:
                problem = "operators whose kernels depend on what surrounds them"
        answer = (tuple(found), problem if missing else None)
        if key is not None:
            self._known[key] = answer
        return answer

    def _kernels(self, fragment: Fragment) -> tuple[Kernel, ...]:
        text = fragment.text()
        if text not in self._lowered:
            graph = lower(fragment_graph(fragment), self._options)
            self._lowered[text] = tuple(k for step in graph.steps for k in step.kernels)
        return self._lowered[text]

    def _candidates(self, at: int, head: Operator | Match) -> Iterator[Callable[[], Fragment]]:
        """In order of preference: the one operator that a match stands for, then its nodes; then copies."""
        if isinstance(head, Match):
            if (
                not head.operator.domain
                and runtime_traits(self._options.runtime).eager
                and head.name != "silu"
            ):
                yield lambda: fragment_of([_valid(head.operator)])
            nodes = [self._graph.operators[i] for i in head.covered]
            yield lambda: fragment_of(nodes, head.name)
            if (
                head.operator.domain == "com.microsoft"
            ):  # what onnxruntime does not fuse at the end of a graph
                yield lambda: fragment_of([head.operator])
        elif self._calls.tokens[at] & UNFOLDED:
            own_bias = self._calls.tokens[at] & OWN_BIAS
            yield lambda: fragment_of([head if own_bias else _replaced(head, inputs=head.inputs[:2])])
            yield lambda: fragment_of([_norm_after(head)])
        else:
            yield lambda: fragment_of([head])
        if runtime_traits(self._options.runtime).eager:
            yield from self._copies(at)

    def _copies(self, at: int) -> Iterator[Callable[[], Fragment]]:
        """The views behind each input of the call, ended by a Reshape that cannot be one."""
        head = self._calls.heads[at]
        if isinstance(head, Operator):
            name = COPY_PATTERN if _is_view(head) else VIEWED_PATTERN
            yield lambda: fragment_of([*self._views(head.inputs[0]), head], name)
            if head.op_type == "Conv" and not head.domain:
                yield lambda: fragment_of(_channels_last(head), VIEWED_PATTERN)
        elif head.covered:
            nodes = [self._graph.operators[i] for i in head.covered]
            yield lambda: fragment_of([*self._views(nodes[0].inputs[0]), *nodes], VIEWED_PATTERN)
        for value in self._calls.inputs[at]:
            if not isinstance(value, Tensor):
                continue
            views = self._views(value)
            if views:
                flat = _flattened(value, views[-1].version)
                yield lambda views=views, flat=flat: fragment_of([*views, flat], COPY_PATTERN)  # type: ignore[misc]

    def _views(self, value: object) -> list[Operator]:
        """The chain of views that leads to ``value``, first to last."""
        views: list[Operator] = []
        while isinstance(value, Tensor) and len(views) < _FEW_VIEWS:
            op = self._producer.get(value.name)
            if op is None or not _is_view(op):
                break
            views.append(op)
            value = op.inputs[0]
        return views[::-1]


def _valid(op: Operator) -> Operator:
    """``op`` as ONNX has it: attention takes masks of at most four dimensions, windows add some of length one."""
    if op.op_type != "Attention":
        return op
    return _replaced(op, inputs=tuple(_of_rank_4(v) if i == 3 else v for i, v in enumerate(op.inputs)))


def _of_rank_4(mask: object) -> Tensor:
    if not isinstance(mask, Tensor):
        raise NotAFragmentError("sequences")
    if math.prod(mask.shape[:-4]) != 1:
        raise NotAFragmentError("masks of more than four dimensions")
    return replace(mask, shape=mask.shape[-4:], value=None)


def _own(name: str, tensor: Tensor, shape: tuple[int, ...], *, weight: bool = True) -> Tensor:
    return Tensor(name=name, dtype=tensor.dtype, shape=shape, storage=name, is_weight=weight)


def _norm_after(op: Operator) -> Operator:
    """The BatchNormalization that the exporter folded into ``op``."""
    result = op.outputs[0]
    if not isinstance(result, Tensor) or len(result.shape) < 2:
        raise NotAFragmentError("sequences")
    channels = (result.shape[1],)
    parameters = tuple(_own(f"#{i}", result, channels) for i in range(4))
    source = _own("#x", result, result.shape, weight=False)
    return _replaced(
        op,
        op_type="BatchNormalization",
        version=15,
        attributes={"epsilon": 1e-5},
        inputs=(source, *parameters),
    )


def _channels_last(op: Operator) -> list[Operator]:
    """The convolution on an image that lies in NHWC: a Transpose, which launches nothing, before it."""
    image = op.inputs[0]
    if not isinstance(image, Tensor) or len(image.shape) != 4:
        raise NotAFragmentError("images that are not two-dimensional")
    batch, channels, height, width = image.shape
    stored = _own("#nhwc", image, (batch, height, width, channels), weight=False)
    view = _own("#nchw", image, image.shape, weight=False)
    turned = _replaced(
        op, op_type="Transpose", attributes={"perm": (0, 3, 1, 2)}, inputs=(stored,), outputs=(view,)
    )
    return [turned, _replaced(op, inputs=(view, *op.inputs[1:]))]


def _physical(kernel: Kernel) -> Kernel:
    """``kernel`` without which of its operands are weights, and scalars among them: a fragment holds as a constant what
    a model computes from its shapes. The bytes stay."""
    return replace(kernel, weight_bytes=0, inputs=1)


def _flattened(value: Tensor, version: int) -> Operator:
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
        outputs=(_own("#flat", value, (value.elements,), weight=False),),
    )


def _replaced(op: Operator, **changes: object) -> Operator:
    return replace(op, signature=None, **changes)  # type: ignore[arg-type]


def _is_view(op: Operator) -> bool:
    """Return True for an operator that torch answers without a kernel."""
    return "torch" in traits_of(op.key).view_in
