"""Remember what this process lowered last: asked again about an unchanged file, it neither reads nor binds
nor lowers again.

A service asks about the same few models for other GPUs, bundles, SM shares and host overheads; of these only
the options that lowering depends on are part of an entry's key. A file is known by path, inode, size and
modification time in nanoseconds. Bounded by steps, least recently used first out; entries hold no
predictions.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gkestimator.core.graph import OperatorGraph
from gkestimator.core.kernels import Family, KernelGraph
from gkestimator.core.naming import distinct_names
from gkestimator.core.records import Names
from gkestimator.estimation.remarks import obstacles, remarks
from gkestimator.estimation.request import GivenModel, ModelInMemory
from gkestimator.memory import MemoryProfile
from gkestimator.onnx_io import Model, model_of, read_model

MOST_STEPS = 200_000
"""Some tens of megabytes: names are shared, so that a step takes a few hundred bytes."""

_MOST_DIMS = 10_000
_DIMS: dict[Hashable, Names] = {}


class ModelSource:
    """Hold a model file, or a model in memory (``path`` None): read when its model is first needed.

    ``identity`` is None where the file cannot be looked at.
    """

    def __init__(self, given: GivenModel, name: str) -> None:
        self.name = name
        self.path: Path | None = None
        self.identity: Hashable = given
        if not isinstance(given, ModelInMemory):
            self.path = given
            self.identity = _identity(given)
        self._given = given
        self._model: Model | None = None

    @property
    def model(self) -> Model:
        """Return the model. Raises ModelError where the file holds none."""
        if self._model is None:
            if isinstance(self._given, ModelInMemory):
                self._model = model_of(self._given.content, name=self.name)
            else:
                self._model = read_model(self._given, name=self.name)
        return self._model

    @property
    def dims(self) -> Names:
        """Return the names of the model's dimensions, read once from a file that does not change. Raises ModelError."""
        if isinstance(self._given, ModelInMemory):
            return self.model.sizes
        if self.identity not in _DIMS:
            if len(_DIMS) >= _MOST_DIMS:
                _DIMS.clear()
            _DIMS[self.identity] = self.model.sizes
        return _DIMS[self.identity]


def model_names(models: Sequence[GivenModel]) -> list[tuple[GivenModel, str]]:
    """Return each model with the name its rows carry: the stem, or the shortest distinguishing tail of the
    path.
    """
    return list(zip(models, distinct_names([path_of(model) for model in models]), strict=True))


def path_of(model: GivenModel) -> Path:
    """Return the model's path; that of a model in memory is one that tells it apart from files of its name."""
    if isinstance(model, ModelInMemory):
        return Path("memory", f"{model.name}.onnx")
    return model


def _identity(path: Path) -> tuple[str, int, int, int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return (os.path.abspath(path), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(slots=True, kw_only=True)
class RecalledLowering:
    """Hold one lowering without what belongs to a request: ``memory`` by what it depends on. ``not_captured``: the
    operator types that keep it out of a CUDA graph.
    """

    graph: KernelGraph
    batch_size: int | None
    dims: str
    dtype: str
    host_operators: Names
    warnings: Names
    not_captured: Names = ()
    memory: dict[Hashable, MemoryProfile] = field(default_factory=dict)


def recalled(bound: OperatorGraph, graph: KernelGraph) -> RecalledLowering:
    """Return ``graph`` without its host work, which is named instead; ``dtype`` is the caller's to say."""
    host: set[str] = set()
    for step in graph.steps:
        if any(kernel.family is Family.HOST for kernel in step.kernels):
            host.add(step.op_type)
    return RecalledLowering(
        graph=_without_host_kernels(graph) if host else graph,
        batch_size=bound.batch_size,
        dims=",".join(f"{name}={n}" for name, n in bound.dims),
        dtype="",
        host_operators=tuple(sorted(host)),
        not_captured=obstacles(bound, graph),
        warnings=tuple(dict.fromkeys((*bound.warnings, *graph.warnings, *remarks(bound, graph)))),
    )


def _without_host_kernels(graph: KernelGraph) -> KernelGraph:
    steps = []
    for step in graph.steps:
        kernels = tuple(kernel for kernel in step.kernels if kernel.family is not Family.HOST)
        if len(kernels) < len(step.kernels):
            step = replace(step, kernels=kernels)
        steps.append(step)
    return replace(graph, steps=tuple(steps))


class Recall:
    """Remember lowerings, least recently used first out, bounded by their steps.

    Safe to use from several threads.
    """

    def __init__(self, most_steps: int = MOST_STEPS) -> None:
        self._most_steps = most_steps
        self._entries: OrderedDict[Hashable, RecalledLowering] = OrderedDict()
        self._steps = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> RecalledLowering | None:
        """Return the entry under ``key``, now the most recently used; None when there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: Hashable, entry: RecalledLowering) -> None:
        """Remember ``entry``; the least recently used make room. One that is too large alone is not kept."""
        # Steps, not entries, are what takes memory: a graph has between ten and a hundred thousand.
        size = len(entry.graph.steps)
        if size > self._most_steps:
            return
        with self._lock:
            old = self._entries.pop(key, None)
            if old is not None:
                self._steps -= len(old.graph.steps)
            self._entries[key] = entry
            self._steps += size
            while self._steps > self._most_steps:
                _, dropped = self._entries.popitem(last=False)
                self._steps -= len(dropped.graph.steps)

    def forget(self) -> None:
        """Drop everything."""
        with self._lock:
            self._entries.clear()
            self._steps = 0

    def __len__(self) -> int:
        return len(self._entries)


RECALL = Recall()
"""This process' memory."""
