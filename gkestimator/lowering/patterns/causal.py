"""Whether a mask keeps queries from seeing keys behind them."""

from __future__ import annotations

from gkestimator.core.dtypes import DType
from gkestimator.core.graph import Tensor, Value
from gkestimator.lowering.patterns.view import GraphView

_ORDERS = frozenset({"Trilu", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
_MASK_OPERATORS = 64


def is_causal(view: GraphView, mask: Tensor) -> bool:
    """Whether positions are compared on the way to ``mask``, or a constant square of truth values leads there.

    A table looked up by such comparisons (T5's buckets of distances) is a bias, not a mask.
    """
    open_values: list[Value] = [mask]
    seen: set[int] = set()
    while open_values and len(seen) < _MASK_OPERATORS:
        value = open_values.pop()
        at = view.producer.get(value.name)
        if at is None:
            if isinstance(value, Tensor) and value.is_weight and _square_of_truths(value):
                return True
            continue
        if at in seen:
            continue
        seen.add(at)
        op = view.operators[at]
        if op.domain:
            continue
        if op.op_type in _ORDERS:
            return True
        table = op.inputs[0] if op.op_type == "Gather" else None
        if isinstance(table, Tensor) and table.is_weight and table.dtype.is_floating:
            continue
        open_values += [v for v in op.inputs if v is not None]
    return False


def _square_of_truths(tensor: Tensor) -> bool:
    *outer, rows, columns = (1, 1, *tensor.shape)
    return tensor.dtype in (DType.BOOL, DType.UINT8) and rows == columns > 1 and all(n == 1 for n in outer)
