"""Say where everything stands in the engine's arrays: one row for each model, replica, server, GPU, batch,
request.

Compiled code knows neither objects nor dictionaries, so each kind of thing is a row of integers and a row of
floats; these are the columns. A link to another row is its number, -1 where there is none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Order of events at one time; the key of an event is kind x 2**KIND_SHIFT + order.
RESUME, END, ITERATED, REACH, TURN, TIMEOUT, ARRIVAL = range(7)
KIND_SHIFT = 56
# What a REACH event is about.
AT_REPLICA, COPIED, AVAILABLE, ANSWER = range(4)
# Why the kernel returned.
DONE, ROOM, DRAWS, UNIFORMS, FLUSH = range(5)

# Scalars, whole.
(
    Z_EVENTS,  # events on the heap
    Z_STREAMS,  # sources on the heap of sources
    Z_ORDER,  # the next order of creation
    Z_ITEM,  # first free request
    Z_ITEMS,  # how many are free
    Z_BATCH,
    Z_BATCHES,
    Z_JOB,
    Z_JOBS,
    Z_ITEMS_NEED,  # what one event may take at most
    Z_EVENTS_NEED,
    Z_LEAST_LOAD,
    Z_EXPONENTIAL,
    Z_DROP,  # 1: requests that would be late are dropped
    Z_COPY,  # 0 none, 1 serial, 2 overlap
    Z_LAW,
    Z_KEEP,
    Z_KEPT,  # rows of kept requests
    Z_DRAW,  # the next of the exponential draws
    Z_UNIFORM,
    Z_WINDOWS,
    Z_KIND,  # of the event that is being handled
    Z_DRAWS_NEED,
    Z_UNIFORMS_NEED,
    Z_ASKED,  # the first request that is to be routed before the next event
    Z_ASKED_LAST,
    Z_BATCH_MOST,  # requests of the largest batch
    Z_SEQUENCES,  # 1: some replica serves by iterations
    Z_END,
) = range(29)
# Scalars, real.
F_NOW, F_FROM, F_UNTIL, F_WINDOW, F_LAST, F_END = range(6)
# A total is on time up to this much of the SLO: sums of floats.
SLACK = 1 + 1e-9
# Above this a float has no next whole number.
WHOLE = 2.0**53
# Batches that one event takes at most: one that is formed, one that is gathered at a turn.
BATCHES_NEED = 2

# Model. A streamed model is fed by one source alone and forms its batches from the array of arrivals.
(
    M_STREAMED,
    M_SOURCE,  # the streamed model's source
    M_OPEN,  # replica that the batch under construction is for
    M_BATCH,  # not streamed: that batch
    M_ORDER,  # order of creation of its time-out
    M_FIRST,  # its replicas that may be chosen: targets[M_FIRST : M_FIRST + M_TARGETS], available ones first
    M_TARGETS,
    M_AVAILABLE,
    M_HEAD,  # not streamed: requests that wait because there is no replica
    M_TAIL,
    M_ARRIVED,
    M_DONE,
    M_BY_END,
    M_ON_TIME,
    M_DROPPED,
    M_BATCHES,
    M_FULL,
    M_TIMED_OUT,
    M_SEQUENCES,  # 1: its requests are prompts and answers, held to two objectives
    M_TOKENS,  # of answers, made for counted requests and others
    M_PREEMPTED,
    M_ITERATIONS,
    M_SPREAD,  # counted requests of more than one token: those that have a time per token
    M_END,
) = range(24)
MF_SLO, MF_OPENED, MF_RESUMED, MF_WAIT, MF_ROUTER, MF_NETWORK, MF_QUEUE, MF_GPU, MF_TOTAL = range(9)
# Objectives and sums of the time to the first token (TTFT) and per token after it (TPOT).
MF_SLO_TTFT, MF_SLO_TPOT, MF_TTFT, MF_TPOT, MF_END = range(9, 14)

# Replica.
(
    R_MODEL,
    R_GPU,
    R_SERVER,
    R_SIZE,  # full batch
    R_TURNS,  # 1: has a duty cycle
    R_CURVE,  # its first row of the curves
    R_REQUEST_DELAY,  # 1: the network takes time
    R_RESPONSE_DELAY,
    R_COPIES,  # 1: copies take time
    R_AVAILABLE,
    R_RETIRED,
    R_HEAD,  # of one that takes turns: requests that wait for a turn
    R_TAIL,
    R_WAITING,
    R_COMING,  # those and the ones on their way
    R_DUE,  # 0: no turn is coming, 1: one is on the heap, 2: due
    R_NEXT_DUE,
    R_GIVEN,  # requests given to it whose service has not ended
    R_BATCHES,
    R_REQUESTS,
    R_ITERATES,  # its row of those that serve by iterations, -1: it serves batches
    R_END,
) = range(22)
(
    RF_WAIT,
    RF_WEIGHT,
    RF_DEALT,
    RF_KEY,  # round robin: (dealt + deal) / weight
    RF_CYCLE,
    RF_OFFSET,
    RF_AVAILABLE,
    RF_FACTOR,
    RF_BUSY,
    RF_LAST,
    RF_DUE,
    RF_TAKEN,  # when it took its last turn
    RF_CREQ,
    RF_DEAL,  # requests that it is taken to be given at a time
    RF_END,
) = range(15)

# What loads are compared in: whole numbers of 1e-6 ms, so that equal loads are equal in whatever order they were
# added up.
TICKS = 1e6
# Curves: one row for each size of a batch.
C_LATENCY, C_TICKS, C_COPY, C_REQUEST, C_RESPONSE, C_FEATURES = range(6)

# Server.
# V_TICKS: work of the batches given to it and not started.
V_RUNNING, V_HEAD, V_TAIL, V_DUE, V_DUE_TAIL, V_TICKS, V_END = range(7)

# GPU.
G_RUNNING, G_FIRST, G_LAST, G_COPY_HEAD, G_COPY_TAIL, G_END = range(6)
GF_SINCE, GF_BUSY, GF_CREQ, GF_TERMS = range(4)

# Batch.
(
    B_REPLICA,
    B_SIZE,
    B_HEAD,
    B_TAIL,
    B_NEXT,  # in the server's or the copy engine's queue; the next free one
    B_BESIDE,  # the next that runs on the GPU
    B_BEFORE,
    B_ORDER,
    B_STATE,
    B_TIMED_OUT,
    B_END,
) = range(11)
FREE, OPEN, GIVEN, RUNNING, ANSWERING = range(5)
BF_LEFT, BF_REACHED, BF_START, BF_SINCE, BF_WORK, BF_SLOW, BF_ENDS, BF_END = range(8)

# Request to a model ("item").
I_NEXT, I_SOURCE, I_JOB, I_STAGE, I_MODEL, I_END = range(6)
IF_ARRIVED, IF_ORIGIN, IF_LEFT, IF_REACHED, IF_END = range(5)

# Source. X_SOLE: alone feeds its model, request for request (its counts are the model's).
# STREAM: straight to a streamed model, PLAIN: to another, JOB: has stages.
STREAM, PLAIN, JOB = range(3)
X_KIND, X_MODEL, X_AT, X_STOP, X_STAGE, X_STAGES, X_SOLE, X_DONE, X_BY_END, X_ON_TIME, X_DROPPED = range(11)
# Its rows of lengths, lengths[X_LENGTH : X_LENGTH + X_LENGTHS], taken in turn; X_CAME requests took theirs.
X_LENGTH, X_LENGTHS, X_CAME, X_END = range(11, 15)
XF_SLO, XF_SUM, XF_END = range(3)

# Stage.
T_MODEL, T_AFTER, T_AFTERS, T_END = range(4)

# Job: columns of its stages follow, asked (-1: not yet) and lacking of each. J_OPEN: stages that are not done; the next
# free one. J_ASKED: its requests that are under way.
J_SOURCE, J_OPEN, J_ASKED, J_DROPPED, J_STAGES = range(5)

# Kept requests.
K_SOURCE, K_MODEL, K_REPLICA, K_BATCH, K_END = range(5)
KF_ARRIVED, KF_ROUTER, KF_NETWORK, KF_QUEUE, KF_GPU, KF_FIRST, KF_END = range(7)

# Replica that serves by iterations. Pages hold the cache of keys and values, W_PAGE tokens each.
(
    W_BUSY,  # 1: an iteration runs
    W_PAGES,
    W_FREE,
    W_PAGE,
    W_MOST,  # sequences at once
    W_BUDGET,  # tokens of an iteration
    W_CHUNKED,  # 0: prompts go first and whole
    W_HEAD,  # sequences that hold pages, by admission
    W_TAIL,
    W_COUNT,
    W_LAW,  # where its law begins in `laws`: batches, prompts, contexts, then both grids row by row
    W_BATCHES,
    W_PROMPTS,
    W_CONTEXTS,
    W_END,
) = range(15)
# WF_LEAST: the least step of its law; WF_SINCE: when the iteration began; sums over time of sequences and pages held.
WF_LEAST, WF_SINCE, WF_SEQUENCES, WF_HELD, WF_END = range(5)

# Sequence: a request in tokens, in the row of its item. Q_CACHED: in the cache; Q_NEW: put there by the iteration that
# runs; Q_HELD: pages; Q_BEFORE: the one admitted before it.
Q_PROMPT, Q_ANSWER, Q_CACHED, Q_MADE, Q_NEW, Q_HELD, Q_BEFORE, Q_END = range(8)
QF_BEGAN, QF_FIRST, QF_END = range(3)
L_PROMPT, L_ANSWER, L_END = range(3)
TTFT, TPOT = range(2)


class EngineState(NamedTuple):
    """Hold all that the kernel reads and writes."""

    z: Ints
    f: Floats
    event_times: Floats
    event_keys: Ints
    event_what: Ints
    stream_times: Floats
    stream_keys: Ints
    stream_what: Ints
    arrivals: Floats
    m: Ints
    mf: Floats
    targets: Ints
    r: Ints
    rf: Floats
    curves: Floats
    v: Ints
    g: Ints
    gf: Floats
    b: Ints
    bf: Floats
    i: Ints
    if_: Floats
    x: Ints
    xf: Floats
    t: Ints
    tf: Floats
    afters: Ints
    j: Ints
    jf: Floats
    draws: Floats
    uniforms: Floats
    edges: Floats
    histograms: Ints
    source_histograms: Ints
    features: Floats  # two rows: of all that run on a GPU, of all but one
    windows: Ints
    window_waits: Floats
    kept: Ints
    kept_floats: Floats
    w: Ints
    wf: Floats
    laws: Floats
    q: Ints
    qf: Floats
    lengths: Ints
    token_histograms: Ints  # by model: TTFT, TPOT
