"""The line between the door to the network and whatever answers: what the door asks of a backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gkestimator.core.records import NamedValues, frozen
from gkestimator.exporting.ray_app.worker import Arrays, RefusedError

__all__ = ["Arrays", "Backend", "RefusedError", "ServedSignature", "ServedTensor", "signature_from"]


@frozen
class ServedTensor:
    """Hold one input or output of a model as requests carry it.

    ``datatype`` is the word of the V2 inference protocol (``FP32``, ``INT64``, ``BYTES``). ``shape`` is that of one
    sample, without the batch axis; None stands for an axis of any length.
    """

    name: str
    datatype: str
    shape: tuple[int | None, ...]


@frozen
class ServedSignature:
    """Hold what a model takes and gives. ``max_batch`` is the most samples that one request may hold."""

    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]
    max_batch: int


class Backend(Protocol):
    """Answer requests: a router to workers in other processes, or a model in this one.

    The door calls every method in its own event loop, so that none but ``infer`` may take long.
    """

    def signatures(self) -> Mapping[str, ServedSignature]:
        """Return every model that can be asked for, by name."""
        ...

    def ready(self) -> bool:
        """Return whether requests of every model are answered."""
        ...

    async def infer(self, model: str, samples: Sequence[Arrays], timeout_ms: float | None) -> list[Arrays]:
        """Return the outputs of each sample. Raises RefusedError; a request of several samples is answered wholly or
        refused wholly. ``timeout_ms`` is the client's own limit, counted from the call; None: it names none.
        """
        ...

    def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        ...


def signature_from(metadata: NamedValues, *, max_batch: int) -> ServedSignature:
    """Return the signature in ``metadata``: the form of the V2 protocol, as ``ServedModel.signature`` gives it (shapes
    of one sample, -1 for an axis of any length).
    """
    return ServedSignature(
        inputs=_tensors(metadata["inputs"]), outputs=_tensors(metadata["outputs"]), max_batch=max_batch
    )


def _tensors(entries: Sequence[NamedValues]) -> tuple[ServedTensor, ...]:
    tensors = []
    for entry in entries:
        shape = tuple(None if size < 0 else int(size) for size in entry["shape"])
        tensors.append(ServedTensor(name=entry["name"], datatype=entry["datatype"], shape=shape))
    return tuple(tensors)
