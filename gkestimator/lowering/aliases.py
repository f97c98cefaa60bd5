"""Say which results of an operator are views of its inputs: results that share an input's memory."""

from __future__ import annotations

from gkestimator.core.graph import Tensor
from gkestimator.lowering.torch_layouts import Values
from gkestimator.operators.builders import tensors_of
from gkestimator.operators.records import OperatorTraits
from gkestimator.operators.registry import Shape


def aliased_tensors(
    traits: OperatorTraits, inputs: Values, out_index: int, in_index: int, outputs: Values
) -> list[tuple[Tensor, Tensor]]:
    """Return every tensor of output ``out_index`` with the tensor whose memory it is."""
    results = tensors_of((outputs[out_index],))
    if traits.sequence:
        sources = tensors_of(inputs)
    else:
        sources = tensors_of((inputs[in_index],))
    if not sources:
        return []
    by_name = {t.name: t for t in sources}
    by_shape: dict[Shape, Tensor] = {}
    for first in reversed(sources):
        by_shape[first.shape] = first
    pairs = []
    for position, result in enumerate(results):
        source = by_name.get(result.name)
        if source is None:
            # The source in the same place, else the first of the result's shape, else the first.
            if position < len(sources) and sources[position].shape == result.shape:
                source = sources[position]
            else:
                source = by_shape.get(result.shape, sources[0])
        pairs.append((result, source))
    return pairs
