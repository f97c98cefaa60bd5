"""Join several lowered graphs to one program that runs them one after the other in one session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from gkestimator.core.kernels import KernelGraph
from gkestimator.estimation.recall import RecalledLowering

Name = TypeVar("Name")
Value = TypeVar("Value")


def joined(name: str, parts: Sequence[RecalledLowering]) -> RecalledLowering:
    """Return ``parts`` in order, launched back to back; the same object where there is one.

    ``batch_size`` and ``dims`` are those of all parts where they agree, else None and nothing. The parts'
    storages must have different names.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    graphs = [part.graph for part in parts]
    notes: Counter[str] = sum((Counter(graph.notes) for graph in graphs), Counter())
    whole = KernelGraph(
        name=name,
        runtime=first.graph.runtime,
        dtype=first.graph.dtype,
        steps=_chained(graph.steps for graph in graphs),
        weights=_merged(graph.weights for graph in graphs),
        inputs=_merged(graph.inputs for graph in graphs),
        outputs=_merged(graph.outputs for graph in graphs),
        unknown_operators=_sorted(graph.unknown_operators for graph in graphs),
        warnings=tuple(dict.fromkeys(_chained(graph.warnings for graph in graphs))),
        notes=dict(notes),
        groups=_merged(graph.groups for graph in graphs),
    )
    return RecalledLowering(
        graph=whole,
        batch_size=_common((part.batch_size for part in parts), None),
        dims=_common((part.dims for part in parts), ""),
        dtype=_common((part.dtype for part in parts), ""),
        host_operators=_sorted(part.host_operators for part in parts),
        warnings=tuple(dict.fromkeys(_chained(part.warnings for part in parts))),
    )


def _chained(parts: Iterable[Iterable[Value]]) -> tuple[Value, ...]:
    return tuple(value for part in parts for value in part)


def _sorted(parts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted(set(_chained(parts))))


def _merged(parts: Iterable[Mapping[Name, Value]]) -> dict[Name, Value]:
    merged: dict[Name, Value] = {}
    for part in parts:
        merged.update(part)
    return merged


def _common(values: Iterable[Value], otherwise: Value) -> Value:
    """Return the one value that all have, else ``otherwise``."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else otherwise
