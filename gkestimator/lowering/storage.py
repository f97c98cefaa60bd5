"""Element types in memory under a dtype option: what ``fp16``, ``bf16`` and ``amp`` do to a float32 file.

``fp16`` and ``bf16`` store every float32 tensor, weights too, in half precision. ``amp`` (autocast) keeps
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

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Operator, OperatorGraph, Sequence, Tensor, Value
from gkestimator.operators.precision import half_type
from gkestimator.operators.records import traits_of
from gkestimator.operators.registry import LoweringOptions


def stored_graph(
    graph: OperatorGraph, options: LoweringOptions, groups: Mapping[int, Operator] | None = None
) -> OperatorGraph:
    """``graph`` with the element types that ``options`` store; the very object where nothing changes.

    ``groups`` are the operators that stand for fused groups, by the index of the last operator they replace: under
    ``amp`` they say what their results are.
    """
    if options.dtype in ("fp16", "bf16"):
        return _Rewriter(half_type(options), weights_too=True).run(graph)
    if options.dtype == "amp":
        return _Rewriter(half_type(options), weights_too=False).run(graph, groups or {})
    return graph


def _values(values: Iterable[Value | None]) -> tuple[Value, ...]:
    return tuple(v for v in values if v is not None)


class _Rewriter:
    def __init__(self, half: DType, *, weights_too: bool) -> None:
        self._half = half
        self._weights_too = weights_too
        self._tensors: dict[str, Tensor] = {}  # name -> tensor with the element type it is stored in

    def run(
        self, graph: OperatorGraph, groups: Mapping[int, Operator] = MappingProxyType({})
    ) -> OperatorGraph:
        if self._weights_too:
            inputs = _values(self._halved(v) for v in graph.inputs)
            operators = tuple(
                replace(
                    op,
                    inputs=tuple(self._halved(v) for v in op.inputs),
                    outputs=tuple(self._halved(v) for v in op.outputs),
                )
                for op in graph.operators
            )
            outputs = _values(self._halved(v) for v in graph.outputs)
        else:
            inputs = graph.inputs
            operators = tuple(self._autocast(op, groups.get(i)) for i, op in enumerate(graph.operators))
            outputs = _values(self._known(v) for v in graph.outputs)
        weights = dict(graph.weights)
        if self._weights_too:
            for op in graph.operators:
                for value in op.inputs:
                    if isinstance(value, Tensor) and value.is_weight and value.dtype is DType.FLOAT:
                        # A view's storage is as large as its base: scale what the graph counted.
                        full = graph.weights.get(value.storage)
                        if full is not None:
                            weights[value.storage] = full * self._half.bits // DType.FLOAT.bits
        return replace(graph, inputs=inputs, operators=operators, outputs=outputs, weights=weights)

    def _cast(self, tensor: Tensor, dtype: DType) -> Tensor:
        known = self._tensors.get(tensor.name)
        if known is None or known.dtype is not dtype or known.shape != tensor.shape:
            known = replace(tensor, dtype=dtype)
            self._tensors[tensor.name] = known
        return known

    def _halved(self, value: Value | None) -> Value | None:
        if isinstance(value, Tensor):
            if value.dtype is DType.FLOAT:
                return self._cast(value, self._half)
            return value
        if isinstance(value, Sequence):
            halved = (self._cast(t, self._half) if t.dtype is DType.FLOAT else t for t in value.elements_)
            return replace(value, elements_=tuple(halved))
        return None

    def _known(self, value: Value | None) -> Value | None:
        if isinstance(value, Tensor):
            return self._tensors.get(value.name, value)
        if isinstance(value, Sequence):
            return replace(value, elements_=tuple(self._tensors.get(t.name, t) for t in value.elements_))
        return None

    def _autocast(self, op: Operator, group: Operator | None) -> Operator:
        """``op`` with its element types; the last operator of a ``group`` gives what the group gives."""
        inputs = tuple(self._known(v) for v in op.inputs)
        outputs = op.outputs
        calls = op if group is None else group
        if group is None:
            reads = inputs
        else:
            reads = tuple(self._known(v) for v in group.inputs)
        autocast = traits_of(calls.key).autocast
        if self._gives_half(autocast, reads):
            outputs = tuple(self._halved(v) for v in op.outputs)
        elif inputs == op.inputs:
            return op
        # Equal operators may get different types by what lies before them.
        return replace(op, inputs=inputs, outputs=outputs, signature=None)

    def _gives_half(self, autocast: str, inputs: tuple[Value | None, ...]) -> bool:
        if autocast == "half":
            return True
        if autocast in ("fp32", "declared"):
            return False
        # Type promotion: the widest tensor decides; tensors without dimensions (scalars) and parameters of
        # a normalisation do not widen.
        half = False
        for value in inputs[:1] if autocast == "first" else inputs:
            for tensor in (value,) if isinstance(value, Tensor) else value.elements_ if value else ():
                if tensor.dtype is self._half:
                    half = True
                elif tensor.dtype is DType.FLOAT and tensor.shape and tensor.elements > 1:
                    return False
        return half
