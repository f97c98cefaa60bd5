"""Say what the engine knows of everything: one record for each model, replica, server, GPU, batch, request.

A link to another record is its number, -1 where there is none. Times are in ms. A field that says yes or no holds 1
or 0.
"""

from __future__ import annotations

from typing import NamedTuple

from gkestimator.simulation.arrays import Floats, Ints
from gkestimator.simulation.engine.records import Record, Records


class AskedOptions(Record):
    """Hold what was asked of the run, as numbers."""

    least_load: int
    exponential: int
    drop: int  # requests that would be late are dropped
    late: int  # batches are formed late
    copy: int
    law: int
    keep: int
    windows: int
    sequences: int  # some replica serves by iterations
    most_sent: int  # requests that clients may send again before the run is given up
    most_speeds: int  # changes of a batch's speed, likewise
    from_ms: float
    until_ms: float
    window_ms: float


class LoopRecord(Record):
    """Say where the event loop stands."""

    now_ms: float
    last_ms: float  # when the last answer reached its client
    events: int  # on the heap of events
    streams: int  # on the heap of sources
    order: int  # the next order of creation
    kind: int  # of the event that is being handled
    kept: int  # rows of kept requests
    draw: int  # the next of the exponential draws
    uniform: int
    sent: int  # requests that clients sent as their answers came
    speeds: int  # changes of a batch's speed
    asked: int  # the first request that is to be routed before the next event
    asked_last: int


class FreeRecord(Record):
    """Hold the first free record of each pool, and how many are free."""

    request: int
    requests: int
    batch: int
    batches: int
    job: int
    jobs: int


class NeedsRecord(Record):
    """Say what one event may take at most."""

    requests: int
    events: int
    draws: int
    uniforms: int
    largest_batch: int


class ModelRecord(Record):
    """Hold a model; a streamed one is fed by one source alone and forms its batches from the array of arrivals."""

    streamed: int
    source: int  # the streamed model's source
    open_for: int  # replica that the batch under construction is for
    batch: int  # not streamed: that batch
    order: int  # order of creation of its time-out
    first_target: int  # its replicas that may be chosen: targets[first_target : first_target + targets]
    targets: int
    available: int  # how many of them are available: those come first
    head: int  # not streamed: requests that wait because there is no replica
    tail: int
    paced: int  # its requests are prompts and answers, held to two objectives
    slo_ms: float
    slo_ttft_ms: float  # time to the first token (TTFT) and per token after it (TPOT)
    slo_tpot_ms: float
    opened_ms: float
    resumed_ms: float
    # What is counted.
    arrived: int
    done: int
    done_by_end: int
    on_time: int
    dropped: int
    batches: int
    full: int
    timed_out: int
    tokens: int  # of answers, made for counted requests and others
    preempted: int
    iterations: int
    spread: int  # counted requests of more than one token: those that have a time per token
    # Sums over counted requests.
    wait_ms: float
    router_ms: float
    network_ms: float
    queue_ms: float
    gpu_ms: float
    total_ms: float
    ttft_ms: float
    tpot_ms: float


class ReplicaRecord(Record):
    """Hold a replica."""

    model: int
    gpu: int
    server: int
    iterator: int  # its record of those that serve by iterations, -1: it serves batches
    batch_size: int  # of a full batch
    max_wait_ms: float
    turns: int  # it has a duty cycle
    late: int  # its batches are formed when its server is free
    singly: int  # either: requests are given to it one by one
    next_late: int  # the next replica of its server that batches late
    request_ticks: int  # late: the work that a request which waits counts for
    cycle_ms: float
    offset_ms: float
    curve: int  # its first row of the curves
    factor: float  # by how much its latencies are taken to be wrong
    request_delay: int  # the network takes time
    response_delay: int
    copies: int  # copies take time
    creq_pct: float
    available: int
    available_ms: float
    retired: int
    # Round robin: the least (dealt + deal) / weight is next.
    weight: float
    dealt: float
    deal: float  # requests that it is taken to be given at a time
    key: float
    head: int  # given singly: requests that wait at it
    tail: int
    waiting: int
    coming: int  # those and the ones on their way
    due: int  # its turn
    next_due: int
    taken_ms: float  # when it took its last turn
    given: int  # requests given to it whose service has not ended
    batches: int
    requests: int
    busy_ms: float
    last_ms: float


class CurveRecord(Record):
    """Say what a batch of one size takes; `curve_features` has a row for each as well."""

    latency_ms: float
    ticks: float
    copy_ms: float
    request_ms: float
    response_ms: float


class ServerRecord(Record):
    """Hold what serves one batch at a time: a replica's own, or its partition's."""

    running: int
    head: int  # batches that wait
    tail: int
    due: int  # replicas whose turn is due
    due_tail: int
    late: int  # its replicas that batch late
    ticks: int  # work of the batches and single requests given to it and not started


class GpuRecord(Record):
    """Hold a GPU; its numbers of the law of interference are its row of `terms`."""

    running: int
    first: int  # batches that run on it
    last: int
    copy_head: int
    copy_tail: int
    since_ms: float
    busy_ms: float
    creq_ms: float


class BatchRecord(Record):
    """Hold a batch."""

    replica: int
    size: int
    head: int  # its requests
    tail: int
    next: int  # in the server's or the copy engine's queue; the next free one
    beside: int  # the next that runs on the GPU
    before: int
    order: int
    state: int
    timed_out: int
    left_ms: float
    reached_ms: float
    start_ms: float
    since_ms: float  # when its speed changed last: from then on it has `work_ms` left, at 1 / `slowdown`
    work_ms: float
    slowdown: float
    ends_ms: float


class RequestRecord(Record):
    """Hold a request to a model."""

    next: int
    source: int
    job: int
    stage: int
    model: int
    order: int  # late: of reaching its replica
    arrived_ms: float
    origin_ms: float
    left_ms: float
    reached_ms: float


class SourceRecord(Record):
    """Hold a source of requests."""

    kind: int
    model: int
    at: int  # its next arrival
    stop: int
    stage: int  # its first stage
    stages: int
    sole: int  # it alone feeds its model, request for request (its counts are the model's)
    length: int  # its rows of lengths, taken in turn
    lengths: int
    came: int  # requests that took theirs
    closed: int  # each answer is followed by its client's next request
    sent: int  # counted requests that followed an answer
    slo_ms: float
    done: int
    done_by_end: int
    on_time: int
    dropped: int
    sum_ms: float


class StageRecord(Record):
    """Hold a stage of an application."""

    model: int
    after: int  # where the stages that it follows begin in `afters`
    afters: int
    fan_out: float


class JobRecord(Record):
    """Hold a request to an application; `asked` and `lacking` have a column for each of its stages."""

    source: int
    open: int  # stages that are not done; the next free one
    asked: int  # its requests that are under way
    dropped: int
    origin_ms: float


class KeptRecord(Record):
    """Hold a request that is kept for the result."""

    source: int
    model: int
    replica: int
    batch: int
    arrived_ms: float
    router_ms: float
    network_ms: float
    queue_ms: float
    gpu_ms: float
    first_ms: float


class IteratorRecord(Record):
    """Hold a replica that serves by iterations. Pages hold the cache of keys and values."""

    busy: int  # an iteration runs
    pages: int
    free: int
    page_tokens: int
    most_sequences: int
    budget_tokens: int
    chunked: int  # 0: prompts go first and whole
    head: int  # sequences that hold pages, by admission
    tail: int
    count: int
    law: int  # where its law begins in `laws`: batches, prompts, contexts, then both grids row by row
    batches: int
    prompts: int
    contexts: int
    least_ms: float  # the least step of its law
    since_ms: float  # when the iteration began
    sequences_ms: float  # sums over time of sequences and pages held
    held_ms: float


class SequenceRecord(Record):
    """Hold a request in tokens; it has the number of its request."""

    prompt: int
    answer: int
    cached: int
    made: int
    new: int  # put into the cache by the iteration that runs
    held: int  # pages
    before: int  # the one admitted before it
    began_ms: float
    first_ms: float


class LengthRecord(Record):
    """Hold tokens of a prompt and its answer."""

    prompt: int
    answer: int


class EngineState(NamedTuple):
    """Hold all that the event loop reads and writes."""

    options: AskedOptions
    loop: LoopRecord
    free: FreeRecord
    needs: NeedsRecord
    event_times: Floats
    event_keys: Ints
    event_what: Ints
    stream_times: Floats
    stream_keys: Ints
    stream_what: Ints
    arrivals: Floats  # at the routers
    came: Floats  # the same requests, before the host had done its work for them
    models: Records[ModelRecord]
    targets: Ints
    replicas: Records[ReplicaRecord]
    curves: Records[CurveRecord]
    curve_features: Floats
    servers: Records[ServerRecord]
    gpus: Records[GpuRecord]
    terms: Floats
    batches: Records[BatchRecord]
    requests: Records[RequestRecord]
    sources: Records[SourceRecord]
    stages: Records[StageRecord]
    afters: Ints
    jobs: Records[JobRecord]
    asked: Ints  # by job and stage: how often it is asked, -1: not yet
    lacking: Ints
    draws: Floats
    uniforms: Floats
    edges: Floats
    histograms: Ints
    source_histograms: Ints
    features: Floats  # two rows: of all that run on a GPU, of all but one
    windows: Ints
    window_waits: Floats
    kept: Records[KeptRecord]
    iterators: Records[IteratorRecord]
    laws: Floats
    sequences: Records[SequenceRecord]
    lengths: Records[LengthRecord]
    token_histograms: Ints
