"""Element types in memory under a dtype option: what ``fp16``, ``bf16`` and ``amp`` do to a float32 file.

``fp16`` and ``bf16`` store every float32 tensor, weights too, in half precision; ``fp8``, ``w8a16`` and ``w4a16``
do so, but for the weights of linear layers (:mod:`gkestimator.operators.narrow`). ``amp`` (autocast) keeps
weights in
float32 and lets each operator decide: matrix work and convolutions give half precision, normalisation,
softmax and
a few delicate functions give float32, everything else gives the widest of its inputs. The trait ``autocast`` of each
operator follows the lists of ``torch.autocast`` for CUDA (torch 2.4, aten/src/ATen/autocast_mode.h). Rewriting the
graph's element types once keeps
every rule free of the question: a rule counts ``Tensor.nbytes``. What the runtime launches as one call autocasts as
that call (F.linear casts its bias to half, where an addition of a float32 parameter would widen; F.gelu is no power),
so the groups have to be known first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, OperatorGraph, Sequence, Tensor, Value
from gkestimator.lowering.narrowing import narrowed
from gkestimator.lowering.patterns.view import GraphView
from gkestimator.operators.builders import tensors_of
from gkestimator.operators.narrow import NARROW_FORMATS
from gkestimator.operators.records import traits_of
from gkestimator.operators.registry import HALF_WORDS, Kernels, LoweringOptions, half_type


def stored_graph(
    graph: OperatorGraph, options: LoweringOptions, groups: Mapping[int, Operator] | None = None
) -> OperatorGraph:
    """Return ``graph`` with the element types that ``options`` store; the very object where nothing changes.

    ``groups`` are the operators that stand for fused groups, by the index of the last operator they replace: under
    ``amp`` they say what their results are.
    """
    if options.dtype in NARROW_FORMATS:
        return narrowed(_Rewriter(half_type(options)).halve(graph), options.dtype)
    if options.dtype in HALF_WORDS:
        return _Rewriter(half_type(options)).halve(graph)
    if options.dtype == "amp":
        rewriter = _Rewriter(half_type(options), norms=options.amp_norms)
        return rewriter.autocast(graph, groups or {})
    return graph


def _image_norms(graph: OperatorGraph) -> frozenset[str]:
    """Return the names of the layer normalisations over the channels of images: between two permutations."""
    view = GraphView.of(graph)
    names = set()
    for index in view.by_key.get(("", "LayerNormalization"), ()):
        before = view.made_by(view.operand(index, 0), "Transpose")
        after = view.optional_reader(view.result(index), "Transpose")
        if before is not None and after is not None:
            names.add(view.name(index))
    return frozenset(names)


def _added_in_place(graph: OperatorGraph) -> frozenset[str]:
    """Return the names of the additions that models run in place, on their first operand, before an activation."""
    view = GraphView.of(graph)
    names = set()
    for index, op in enumerate(graph.operators):
        activation = traits_of(op.key).in_place_before
        if not activation or not isinstance(op.inputs[0], Tensor):
            continue
        result = view.result(index)
        if op.inputs[0].shape == result.shape and view.optional_reader(result, activation) is not None:
            names.add(op.name)
    return frozenset(names)


def _values(values: Iterable[Value | None]) -> tuple[Value, ...]:
    return tuple(v for v in values if v is not None)


class _Rewriter:
    def __init__(self, half: DType, *, norms: str = "fp32") -> None:
        self._half = half
        self._norms = norms
        self._image_norms: frozenset[str] = frozenset()
        self._in_place: frozenset[str] = frozenset()
        self._tensors: dict[str, Tensor] = {}  # name -> tensor with the element type it is stored in

    def halve(self, graph: OperatorGraph) -> OperatorGraph:
        """Return ``graph`` with every float32 tensor in half precision, weights too."""
        operators = [self._with_values(op, self._halved) for op in graph.operators]
        weights = dict(graph.weights)
        for op in graph.operators:
            for value in op.inputs:
                if isinstance(value, Tensor) and value.is_weight and value.dtype is DType.FLOAT:
                    # A view's storage is as large as its base: scale what the graph counted.
                    full = graph.weights.get(value.storage)
                    if full is not None:
                        weights[value.storage] = full * self._half.bits // DType.FLOAT.bits
        return replace(
            graph,
            inputs=_values(map(self._halved, graph.inputs)),
            operators=tuple(operators),
            outputs=_values(map(self._halved, graph.outputs)),
            weights=weights,
        )

    def autocast(self, graph: OperatorGraph, groups: Mapping[int, Operator]) -> OperatorGraph:
        """Return ``graph`` with the types that each operator, or fused group, gives its results."""
        if self._norms == "images":
            self._image_norms = _image_norms(graph)
        self._in_place = _added_in_place(graph)
        operators = [self._autocast(op, groups.get(index)) for index, op in enumerate(graph.operators)]
        outputs = _values(map(self._known, graph.outputs))
        return replace(graph, operators=tuple(operators), outputs=outputs)

    def _with_values(self, op: Operator, change: Callable[[Value | None], Value | None]) -> Operator:
        inputs = tuple(map(change, op.inputs))
        return replace(op, inputs=inputs, outputs=tuple(map(change, op.outputs)))

    def _cast(self, tensor: Tensor, dtype: DType) -> Tensor:
        known = self._tensors.get(tensor.name)
        if known is None or known.dtype is not dtype or known.shape != tensor.shape:
            known = replace(tensor, dtype=dtype)
            self._tensors[tensor.name] = known
        return known

    def _halved(self, value: Value | None) -> Value | None:
        if isinstance(value, Tensor):
            return self._halved_tensor(value)
        if isinstance(value, Sequence):
            return replace(value, elements_=tuple(map(self._halved_tensor, value.elements_)))
        return None

    def _halved_tensor(self, tensor: Tensor) -> Tensor:
        if tensor.dtype is DType.FLOAT:
            return self._cast(tensor, self._half)
        return tensor

    def _known(self, value: Value | None) -> Value | None:
        if isinstance(value, Tensor):
            return self._tensors.get(value.name, value)
        if isinstance(value, Sequence):
            return replace(value, elements_=tuple(self._tensors.get(t.name, t) for t in value.elements_))
        return None

    def _autocast(self, op: Operator, group: Operator | None) -> Operator:
        """Return ``op`` with its element types; the last operator of a ``group`` gives what the group gives."""
        inputs = tuple(map(self._known, op.inputs))
        outputs = op.outputs
        call = op
        reads = inputs
        if group is not None:
            call = group
            reads = tuple(map(self._known, group.inputs))
        autocast = traits_of(call.key).autocast
        if autocast == "norm":
            autocast = self._norm_type(call)
        elif op.name in self._in_place:
            autocast = "first"  # a tensor that is changed in place keeps its type
        if self._gives_half(autocast, reads):
            outputs = tuple(map(self._halved, op.outputs))
        elif inputs == op.inputs:
            return op
        # Equal operators may get different types by what lies before them.
        return replace(op, inputs=inputs, outputs=outputs, signature=None)

    def _norm_type(self, call: Operator) -> str:
        """Return what the option ``amp_norms`` says of a normalisation: ``half`` or ``fp32``."""
        if self._norms != "images":
            return self._norms
        if call.op_type == "GroupNormalization" or call.name in self._image_norms:
            return "half"
        return "fp32"

    def _gives_half(self, autocast: str, inputs: tuple[Value | None, ...]) -> bool:
        if autocast == "half":
            return True
        if autocast in ("fp32", "declared"):
            return False
        # Type promotion: the widest tensor decides; tensors without dimensions (scalars) and parameters of
        # a normalisation do not widen.
        if autocast == "first":
            inputs = inputs[:1]
        half = False
        for tensor in tensors_of(inputs):
            if tensor.dtype is self._half:
                half = True
            elif tensor.dtype is DType.FLOAT and tensor.shape and tensor.elements > 1:
                return False
        return half


def copies_after_casts(copies: Kernels, kernels: Kernels) -> Kernels:
    """Return ``copies`` of operands in the types that the casts among ``kernels`` give those operands.

    autocast converts at the call and keeps the strides, so what the call then has to make contiguous is the result of
    the conversion.
    """
    given = {kernel.rows: kernel for kernel in kernels if kernel.variant == "cast"}
    converted = []
    for copy in copies:
        cast = given.get(copy.rows)
        if cast is not None:
            narrowed = cast.element_bytes / copy.element_bytes
            copy = replace(
                copy,
                precision=cast.precision,
                element_bytes=cast.element_bytes,
                cols=max(1, round(copy.cols / narrowed)),
                read_bytes=round(copy.read_bytes * narrowed),
                write_bytes=round(copy.write_bytes * narrowed),
                weight_bytes=round(copy.weight_bytes * narrowed),
            )
        converted.append(copy)
    return tuple(converted)
