"""What is exported: the replicas of a plan, or the models of a table that leaves one row each."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import ClassVar

from gkestimator.core.records import Names, frozen
from gkestimator.documents import PlacementPlan
from gkestimator.hardware.gpu_spec import GpuSpecs
from gkestimator.tables import Requirement


@frozen
class Instance:
    """Hold one replica. ``gpu_id`` is None where a table is exported (no GPU was chosen, only its type).
    ``max_batch_size`` is for servers that form batches late. Null means that it is not known; an exporter that needs
    it says so in one line."""

    id: str
    model: str
    gpu_id: str | None
    gpu_type: str
    runtime: str
    dtype: str
    dims: str
    batch_size: int
    sm_share_pct: float
    partition: str | None
    latency_ms: float | None
    slo_ms: float | None
    max_wait_ms: float | None
    goodput_rps: float | None
    creq_pct: float | None
    mreq_bytes: int | None
    mreq_pct: float | None
    throughput_rps: float | None = None
    max_batch_size: int | None = None


@frozen
class Deployment:
    """``instances`` in the plan's order; ``origin`` is ``plan`` or ``table``; ``creq`` names the measure
    behind ``creq_pct``; ``specs`` by GPU type; ``models`` are ONNX files by model name, where the user gave
    them (inputs and outputs for Triton). ``plan`` or ``rows`` (one per instance, in order) are what was
    read."""

    origin: str
    source: str
    creq: str
    instances: tuple[Instance, ...]
    specs: GpuSpecs
    models: Mapping[str, str]
    notes: Names = ()
    plan: PlacementPlan | None = None
    rows: tuple[Requirement, ...] = ()


@frozen
class ExportFile:
    """``text`` to be written at ``path``, relative to the output folder."""

    path: PurePosixPath
    text: str


class Exporter(abc.ABC):
    """One target. ``limits`` says, in words, which of Creq and Mreq the target enforces and which are
    bookkeeping; every file carries it. ``batching``: the law by which its server forms batches (one of BATCHINGS);
    None: it forms none, whatever runs in its pods does. ``options`` names the keyword arguments of its constructor,
    which the command line fills (all may be left out).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    limits: ClassVar[str]
    batching: ClassVar[str | None] = None
    options: ClassVar[Names] = ()

    @abc.abstractmethod
    def files(self, deployment: Deployment) -> tuple[ExportFile, ...]:
        """Return the files for ``deployment``, relative to the target's own folder. Demands are rounded up,
        replica counts down. Raises UsageError in one line for what the target cannot express, and for an
        unknown that it needs."""

    def messages(self, deployment: Deployment) -> Names:
        """Return what the user must still do or know, a line each without the name of the target (a
        placeholder to fill in); for stderr."""
        return ()

    def notices(self, deployment: Deployment) -> Names:
        """Return :meth:`messages`, after a line where the plan was judged by another law of batching than the target's
        server keeps: expected goodput and simulations of the plan are then of another server."""
        lines = self.messages(deployment)
        plan = deployment.plan
        if plan is None or self.batching in (None, plan.batching):
            return lines
        words = (
            f"its server forms batches {self.batching}, and the plan was judged by {plan.batching} batching: what it "
            f"expects is of another server; plan and simulate with batching {self.batching}"
        )
        return (words, *lines)
