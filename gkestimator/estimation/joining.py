"""Join several lowered graphs to one program that runs them one after the other in one session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gkestimator.core.kernels import KernelGraph
from gkestimator.estimation.recall import RecalledLowering


def joined(name: str, parts: Sequence[RecalledLowering]) -> RecalledLowering:
    """Return ``parts`` in order, launched back to back; the same object where there is one.

    ``batch_size`` and ``dims`` are those of all parts where they agree, else None and nothing. The parts'
    storages must have different names.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    graphs = [part.graph for part in parts]
    notes: Counter[str] = Counter()
    unfused: Counter[tuple[str, str]] = Counter()
    for graph in graphs:
        notes.update(graph.notes)
        unfused.update(graph.unfused)
    whole = KernelGraph(
        name=name,
        runtime=first.graph.runtime,
        dtype=first.graph.dtype,
        steps=tuple(_chained(graphs, "steps")),
        weights=_merged(graphs, "weights"),
        inputs=_merged(graphs, "inputs"),
        outputs=_merged(graphs, "outputs"),
        unknown_operators=tuple(sorted(set(_chained(graphs, "unknown_operators")))),
        warnings=tuple(dict.fromkeys(_chained(graphs, "warnings"))),
        notes=dict(notes),
        groups=_merged(graphs, "groups"),
        unfused=unfused,
    )
    return RecalledLowering(
        graph=whole,
        batch_size=_common(parts, "batch_size", None),
        dims=_common(parts, "dims", ""),
        dtype=_common(parts, "dtype", ""),
        host_operators=tuple(sorted(set(_chained(parts, "host_operators")))),
        warnings=tuple(dict.fromkeys(_chained(parts, "warnings"))),
        not_captured=tuple(dict.fromkeys(_chained(parts, "not_captured"))),
    )


def _chained(parts: Sequence[object], field: str) -> list[Any]:
    """Return the values of a field that holds several, part by part."""
    values: list[Any] = []
    for part in parts:
        values += getattr(part, field)
    return values


def _merged(parts: Sequence[object], field: str) -> dict[Any, Any]:
    merged: dict[Any, Any] = {}
    for part in parts:
        merged |= getattr(part, field)
    return merged


def _common(parts: Sequence[object], field: str, otherwise: Any) -> Any:
    """Return what all parts have in a field, else ``otherwise``."""
    values = {getattr(part, field) for part in parts}
    if len(values) == 1:
        return values.pop()
    return otherwise
