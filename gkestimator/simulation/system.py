"""Describe what is simulated, in numbers alone: sources of requests, models, replicas, GPUs."""

from __future__ import annotations

from gkestimator.core.records import frozen
from gkestimator.interference.base import TERMS
from gkestimator.llm.steps import StepLaw
from gkestimator.simulation.arrays import Names, NumberOrNone, Numbers, Wholes


@frozen
class TokenPace:
    """Hold what answers of a language model are held to: the time to the first token, and per token after it."""

    ttft_ms: float
    tpot_ms: float


@frozen
class SimModel:
    """Hold a model. ``slo_ms``: what a request to the model (alone, or as a stage of an application) is held to.

    ``paced``: it is a language model, and its requests are held to this instead.
    """

    name: str
    slo_ms: float
    paced: TokenPace | None = None


@frozen
class SimIterating:
    """Hold how a replica of a language model serves by iterations.

    An iteration is one pass over new tokens of some sequences; ``law`` says how long it takes. The cache of keys and
    values has ``pages`` of ``page_tokens``. At most ``most_sequences`` hold pages at once. An iteration takes at most
    ``budget_tokens`` new tokens: prompts in parts beside sequences that decode (``chunked``), or whole prompts first.
    ``beside``: further GPUs (indices) that hold the replica together with its own.
    """

    law: StepLaw
    page_tokens: int
    pages: int
    most_sequences: int
    budget_tokens: int
    chunked: bool
    beside: Wholes = ()


@frozen
class SimStage:
    """Hold one stage of a source: ``model`` (index) is asked ``fan_out`` times for each execution of each
    stage that it follows (``after``: indices into the source's stages; the request itself where empty), once
    all of them are done.

    A fractional fan-out is rounded up or down at random.
    """

    model: int
    after: Wholes = ()
    fan_out: float = 1.0


@frozen
class SimSource:
    """Hold a stream of requests: a model asked for by itself (``application`` False, one stage) or an
    application.

    ``rate_rps`` is what the workload says; ``admit``: chance (0 to 1) that a request is let in at the door,
    the others are turned away at once. ``lengths``, of a language model's requests: tokens of prompt and answer, which
    the requests let in take in turn, from the first again after the last. ``closed``: whenever a request of this source
    is answered its client sends the next at once, until arrivals end; arrivals bring each client's first alone.
    """

    name: str
    application: bool
    rate_rps: float
    slo_ms: float
    stages: tuple[SimStage, ...]
    admit: float = 1.0
    lengths: tuple[Wholes, ...] | None = None
    closed: bool = False


@frozen
class SimGpu:
    """Hold one GPU. ``price_per_hour`` in USD, None where unknown.

    ``terms``: what the interference model keeps of it.
    """

    id: str
    type: str
    price_per_hour: NumberOrNone
    terms: Numbers = (0.0,) * TERMS


@frozen
class SimReplica:
    """Hold one replica of ``model`` on ``gpu`` (indices into the system).

    ``weight``: the part of its model's requests that is meant for it (requests per second; above 0).
    ``deal``: requests that a batch for it usually holds, by which round robin counts what it was dealt (None:
    the full batch; a replica with a duty cycle is dealt single requests). ``max_wait_ms``: a batch leaves the
    router after that, full or not. ``partition``: replicas with one number share a server that runs one batch
    at a time (numbers are of the whole system; None: a server of its own). ``duty_cycle_ms``: it may start at
    ``turn_offset_ms + k duty_cycle_ms`` alone, with what waits then, at most a batch (None: whenever the
    server is free). Curves are at ``batches`` (ascending), linear between and constant beyond:
    ``latencies_ms`` of a batch alone on the GPU, at its SM share; ``copies_ms`` (None: not counted);
    ``request_ms`` and ``response_ms``, the network's delays (None: none); ``features``, by batch size, what
    the interference model asks. ``sigma_below`` and ``sigma_above``: deviations of the logarithm of true over
    estimated latency (:func:`gkestimator.placement.queueing.interval_sigmas`). ``creq_pct`` and
    ``memory_pct`` as packed. ``iterates``: the replica of a language model serves by iterations, is dealt single
    requests, and has its GPUs to itself; its one latency is that of a request, by which loads are compared.
    """

    id: str
    model: int
    gpu: int
    batch_size: int
    max_wait_ms: float
    weight: float
    deal: NumberOrNone = None
    sm_share_pct: float = 100.0
    partition: int | None = None
    duty_cycle_ms: NumberOrNone = None
    turn_offset_ms: float = 0.0
    batches: Wholes
    latencies_ms: Numbers
    copies_ms: Numbers | None = None
    request_ms: Numbers | None = None
    response_ms: Numbers | None = None
    features: tuple[Numbers, ...] | None = None
    sigma_below: float = 0.0
    sigma_above: float = 0.0
    creq_pct: NumberOrNone = None
    memory_pct: NumberOrNone = None
    iterates: SimIterating | None = None


@frozen
class System:
    """Hold everything that is simulated.

    ``host_ms``: CPU time of the host for each request, one at a time, before it is routed. ``notes`` say what a reader
    must know (assumptions, columns that are null).
    """

    sources: tuple[SimSource, ...]
    models: tuple[SimModel, ...]
    gpus: tuple[SimGpu, ...]
    replicas: tuple[SimReplica, ...]
    host_ms: float = 0.0
    notes: Names = ()
