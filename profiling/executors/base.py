"""What an executor is, inside the child: it prepares one entry, then runs it as often as it is told."""

from __future__ import annotations

from typing import Protocol

from gkestimator.core.errors import GkestimatorError
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.records import HostKernels, MemoryUse
from gkestimator.profiling.type_names import Ints, TextByName


class ExecutionError(GkestimatorError):
    """An entry that could not be measured: the runtime refused it, or memory ran out."""


class EntryUnsupportedError(GkestimatorError):
    """An entry that this executor does not run, and why."""


class DeviceLostError(GkestimatorError):
    """The device takes no more work in this process: its context is poisoned, or it is gone."""

    exit_code = 3


class Prepared(Protocol):
    """Hold one entry with its tensors on the device. Used from one thread; :meth:`close` frees everything.

    ``cpu_nodes``: of a whole model on a GPU, how many nodes the runtime gave to the CPU; None where not told.
    """

    output_shapes: tuple[Ints, ...]
    cpu_nodes: int | None

    def run(self) -> None:
        """Make one call, as the runtime makes it: returns when the host is done, perhaps before the device is."""

    def synchronise(self) -> None:
        """Wait until the device is done."""

    def workspace_bytes(self) -> int | None:
        """Return the peak memory of a call beyond inputs, weights and outputs; None where the runtime does not tell."""

    def memory(self) -> MemoryUse | None:
        """Return, of a whole model on a GPU, the peak of the device memory of this process since its tensors were
        there; None for what was not told, and on the CPU."""

    def host_kernels(self, repeats: int) -> HostKernels | None:
        """Run, on the CPU, ``repeats`` times under the runtime's own profiler; return the pieces in the order they ran.
        None on a GPU."""

    def close(self) -> None:
        """Free the tensors."""


class Executor(Protocol):
    """Prepare entries. ``name`` as on the command line (``onnxruntime``, ``torch``). Made once per child for
    one device (``cpu`` or ``cuda:N``)."""

    name: str

    def versions(self) -> TextByName:
        """Return the versions of the runtime and its libraries (torch, cuda, cudnn, onnxruntime, ...)."""

    def prepare(self, entry: PlanEntry, seed: int) -> Prepared:
        """Make and move the tensors, compile the model. Raises EntryUnsupportedError or ExecutionError."""
