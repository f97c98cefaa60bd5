"""Name the numbers that the engine's records hold where a field is a choice, and bounds that it reckons with."""

from __future__ import annotations

# Order of events at one time; the key of an event is kind x 2**KIND_SHIFT + order.
RESUME, END, ITERATED, REACH, TURN, TIMEOUT, ARRIVAL = range(7)
KIND_SHIFT = 56
# What a REACH event is about.
AT_REPLICA, COPIED, AVAILABLE, ANSWER = range(4)
# Why the event loop returned.
DONE, ROOM, DRAWS, UNIFORMS, FLUSH, TOO_MANY, TOO_CLOSE = range(7)
# State of a batch.
FREE, OPEN, GIVEN, RUNNING, ANSWERING = range(5)
# Kind of a source: straight to a streamed model, to another model, with stages.
STREAM, PLAIN, JOB = range(3)
# Copies, in the order of gkestimator.simulation.options.COPIES.
COPY_NONE, COPY_SERIAL, COPY_OVERLAP = range(3)
# A replica's turn: none is coming, one is on the heap, it is due.
NO_TURN, TURN_COMES, TURN_DUE = range(3)

# Rows of a model's histograms, in the order of gkestimator.simulation.result.STAGES.
ROUTER, NETWORK, QUEUE, GPU, TOTAL = range(5)
# Rows of its windows.
CAME, ON_TIME, ANSWERED = range(3)
# Rows of its histograms by token.
TTFT, TPOT = range(2)

# A total is on time up to this much of the SLO: sums of floats.
SLACK = 1 + 1e-9
# Above this a float has no next whole number.
WHOLE = 2.0**53
# Batches that one event takes at most: one that is formed, one that is gathered at a turn.
BATCHES_NEED = 2
# What loads are compared in: whole numbers of 1e-6 ms, so that equal loads are equal in whatever order they were
# added up.
TICKS = 1e6
