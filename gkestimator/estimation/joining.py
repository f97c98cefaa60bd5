"""Several lowered graphs as one program that runs them one after the other in one session."""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.kernels import KernelGraph
from gkestimator.estimation.recall import RecalledLowering


def joined(name: str, parts: Sequence[RecalledLowering]) -> RecalledLowering:
    """``parts`` in order, launched back to back; the same object where there is one.

    ``batch_size`` and ``dims`` are those of all parts where they agree, else None and nothing. The parts' storages
    must have different names.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    graphs = [part.graph for part in parts]
    notes: dict[str, int] = {}
    for graph in graphs:
        for word, count in graph.notes.items():
            notes[word] = notes.get(word, 0) + count
    return RecalledLowering(
        graph=KernelGraph(
            name=name,
            runtime=first.graph.runtime,
            dtype=first.graph.dtype,
            steps=tuple(step for graph in graphs for step in graph.steps),
            weights={storage: n for graph in graphs for storage, n in graph.weights.items()},
            inputs={storage: n for graph in graphs for storage, n in graph.inputs.items()},
            outputs={storage: n for graph in graphs for storage, n in graph.outputs.items()},
            unknown_operators=tuple(sorted({op for graph in graphs for op in graph.unknown_operators})),
            warnings=tuple(dict.fromkeys(text for graph in graphs for text in graph.warnings)),
            notes=notes,
            groups={step: names for graph in graphs for step, names in graph.groups.items()},
        ),
        batch_size=first.batch_size if len({part.batch_size for part in parts}) == 1 else None,
        dims=first.dims if len({part.dims for part in parts}) == 1 else "",
        dtype=first.dtype if len({part.dtype for part in parts}) == 1 else "",
        host_operators=tuple(sorted({op for part in parts for op in part.host_operators})),
        warnings=tuple(dict.fromkeys(text for part in parts for text in part.warnings)),
    )
