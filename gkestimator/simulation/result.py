"""Hold what a simulation counted."""

from __future__ import annotations

from dataclasses import dataclass

from gkestimator.simulation.arrays import Floats, Ints

# Parts of a request's time at one model: under construction at the router; network there and back; from the arrival at
# the replica to the start of service (its wait for the copy engine and its copy included); service; all together.
STAGES = ("router", "network", "queue", "gpu", "total")


@dataclass(frozen=True, kw_only=True)
class CountedRequests:
    """Hold every counted request to a model, in order of completion; arrays of one length.

    ``source``, ``model``, ``replica``: indices. Times in ms: ``arrived`` (at the model's router), then the
    stages.
    """

    source: Ints
    model: Ints
    replica: Ints
    batch: Ints
    arrived_ms: Floats
    router_ms: Floats
    network_ms: Floats
    queue_ms: Floats
    gpu_ms: Floats


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """Hold counts of language models, by model.

    Over all: ``tokens`` of answers, ``preempted`` (sequences whose pages were taken), ``iterations``. Of counted
    requests: ``spread`` (those of more than one token), sums of the time to the first token and of the mean time of
    those after it, ``histograms`` (M, these two, BINS). By replica that serves by iterations (``replicas``: their
    indices), between the run's ``from_ms`` and ``until_ms``: time integrals of sequences and of pages held.
    ``first_ms``, where requests are kept and in their order: from the arrival to the first token (0 for other models).
    """

    tokens: Ints
    preempted: Ints
    iterations: Ints
    spread: Ints
    ttft_sums_ms: Floats
    tpot_sums_ms: Floats
    histograms: Ints
    replicas: Ints
    sequences_ms: Floats
    held_ms: Floats
    first_ms: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """Hold counts of the requests that came between ``from_ms`` and ``until_ms`` (the end of arrivals).

    M models, S sources, R replicas, G GPUs (in the order of the system and of later additions), W windows.

    By model (requests of applications' stages included): ``arrived`` at the router, ``done``, ``done_by_end``
    (every answer given from ``from_ms`` to ``until_ms``, those to requests from before ``from_ms`` included:
    the throughput), ``on_time`` (within the model's SLO), ``sums_ms`` (M, stages), ``wait_sums_ms`` (arrival
    to start of service: router, network there, queue), ``histograms`` (M, stages, BINS), ``batches`` (whose
    first request counts), ``batches_full``, ``batches_timed_out``, ``dropped`` (requests that were not served
    because they would have been late: not done, in no batch).

    By source: ``source_arrived`` (all that came), ``source_rejected`` (turned away), ``source_dropped`` (once
    each, at the first stage's request that is dropped; no later stage of it starts), ``source_done``,
    ``source_done_by_end``, ``source_on_time``, ``source_sums_ms`` and ``source_histograms`` (S, BINS) of the
    whole response.

    By window of ``window_ms`` from 0 (warm-up included), by time of arrival: ``arrived_by_window`` (M, W),
    ``on_time_by_window``, ``done_by_window``, ``wait_by_window_ms`` (sum over the done of arrival to start of
    service).

    By replica, between ``from_ms`` and ``until_ms``: ``busy_ms``; over all: ``replica_batches``,
    ``replica_requests``, ``last_done_ms`` (0 where it ran nothing). By GPU, between ``from_ms`` and
    ``until_ms``: ``gpu_busy_ms`` (at least one replica runs), ``gpu_creq_ms`` (integral of the running
    replicas' Creq, percent times ms; nan where one's Creq is unknown). ``end_ms``: when the last was done.
    ``tokens`` None: there is no language model.
    """

    from_ms: float
    until_ms: float
    end_ms: float
    arrived: Ints
    done: Ints
    done_by_end: Ints
    on_time: Ints
    dropped: Ints
    sums_ms: Floats
    wait_sums_ms: Floats
    histograms: Ints
    batches: Ints
    batches_full: Ints
    batches_timed_out: Ints
    source_arrived: Ints
    source_rejected: Ints
    source_dropped: Ints
    source_done: Ints
    source_done_by_end: Ints
    source_on_time: Ints
    source_sums_ms: Floats
    source_histograms: Ints
    window_ms: float
    arrived_by_window: Ints
    on_time_by_window: Ints
    done_by_window: Ints
    wait_by_window_ms: Floats
    busy_ms: Floats
    replica_batches: Ints
    replica_requests: Ints
    last_done_ms: Floats
    gpu_busy_ms: Floats
    gpu_creq_ms: Floats
    requests: CountedRequests | None = None
    tokens: TokenCounts | None = None
