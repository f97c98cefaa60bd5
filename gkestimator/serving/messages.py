"""Hold what router, controller and workers send each other, and how they are told to work."""

from __future__ import annotations

from collections.abc import Mapping

from gkestimator.core.records import NamedValues, frozen
from gkestimator.serving.backend import Arrays, ServedSignature
from gkestimator.serving.served import ServedReplica

OK = 200


@frozen
class SentRequest:
    """Hold a request as it goes to a worker; times are what is left in seconds, for clocks of machines differ."""

    number: int
    replica: str
    sample: Arrays
    deadline_s: float | None


@frozen
class SentAnswer:
    """Hold an answer as it comes back: ``status`` 200 with ``outputs``, else the refusal's with its ``words``."""

    number: int
    status: int
    outputs: Arrays | None = None
    words: str = ""
    batch: int | None = None
    queue_ms: float | None = None
    gpu_ms: float | None = None


@frozen
class WorkerSettings:
    """Say how a worker serves.

    ``models``: the folder of ONNX files. ``law``: it emulates, and replicas of the GPU slow each other by this law of
    :mod:`gkestimator.interference.laws` (None: it computes); ``signatures``: what emulated models take and give.
    ``drop``: requests that cannot be on time any more are refused. ``timeout_s``: who waits longer is refused.
    """

    models: str | None
    law: int | None
    signatures: Mapping[str, ServedSignature]
    drop: bool
    timeout_s: float
    threads: int | None


@frozen
class FleetSettings:
    """Hold what workers are started with. ``gpus``: Ray has GPUs, and each of the plan's is one of them. ``spares``:
    processes without a replica that wait for the next load or death, where no GPU binds them from the start.
    """

    workers: WorkerSettings
    gpus: bool
    spares: int = 0


@frozen
class RouterSettings:
    """Say how the router answers. ``timeout_s``: every request is answered within it. ``drop``: refuse what cannot be
    on time any more. ``max_waiting``: the most requests of a replica (None: by its time-out). ``requests``: the log.
    """

    fleet: FleetSettings
    timeout_s: float
    drop: bool
    max_waiting: int | None
    requests: str | None
    door: NamedValues


@frozen
class RouterState:
    """Hold what a controller must know of the router: ``born`` tells one life of it from the next."""

    born: str
    version: int
    loaded: tuple[ServedReplica, ...]


@frozen
class RouterReport:
    """Hold the requests by model that came in ``seconds`` since the report before."""

    born: str
    seconds: float
    arrived: Mapping[str, int]
