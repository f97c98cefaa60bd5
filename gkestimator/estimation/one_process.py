"""Estimate the memory of batch sizes run one after another in one process: so published tables are often
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gkestimator.core.errors import UsageError
from gkestimator.estimation.engine import Engine
from gkestimator.estimation.recall import ModelSource
from gkestimator.estimation.request import EstimateRequest


def reserved_in_one_process(
    model: Path | str,
    *,
    gpu: str,
    batch_sizes: Sequence[int],
    **options: Any,
) -> dict[int, int]:
    """Return the bytes reserved after each of ``batch_sizes``, run in that order without emptying the cache.

    The ``reserved_bytes`` of a requirement row is that of a fresh process; this is what
    ``max_memory_reserved`` says in a benchmark that goes through its batch sizes in a loop (the first size is
    the same in both). ``options`` and errors are those of
    :class:`~gkestimator.estimation.request.EstimateRequest`; the context is not counted.
    """
    request = EstimateRequest(model, [gpu], tuple(batch_sizes), **options)
    if len(request.dim_combinations) > 1:
        raise UsageError("dims: found several sizes, expected one for each dimension")
    engine = Engine(request)
    target = engine.targets[0]
    source = ModelSource(Path(model), Path(model).stem)
    # Lowered alone: only sizes and lifetimes of tensors matter, so nothing is predicted.
    graphs = [engine.lower_model(source, batch)[target.options].graph for batch in batch_sizes]
    reserved = engine.cumulative_reserved(graphs, target.gpu)
    return dict(zip(batch_sizes, reserved, strict=True))
