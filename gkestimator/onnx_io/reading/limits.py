"""Bounds on what a model file may ask for.

Each one turns into a one-line LimitError, never into hours or gigabytes.
"""

from __future__ import annotations

MAX_FILE_BYTES = 64 << 30  # only headers of a large file are read, so this bounds the walk, not the memory
MAX_GRAPH_BYTES = 512 << 20  # what is left of a file once weight values are cut out
MAX_WIRE_FIELDS = 4_000_000  # protobuf fields walked while cutting weight values out
MAX_NODES = 200_000  # nodes after functions are inlined, subgraphs included
MAX_OPERATORS = 200_000  # operators of a bound model, unrolled loops included
MAX_STEPS = 250_000  # nodes walked and sequence elements listed in one binding, loops unrolled
# A kilobyte may inline or unroll into so much (some two seconds of work), larger files into a multiple of their nodes.
MAX_EXPANDED = 20_000
MAX_EXPANDED_STEPS = 100_000
MAX_EXPANSION = 8
MAX_TENSORS = 500_000  # initializers, inputs and outputs
MAX_FUNCTION_DEPTH = 64
MAX_SUBGRAPH_DEPTH = 24
MAX_RANK = 32
MAX_ELEMENTS = 1 << 63
MAX_ATTRIBUTE_ITEMS = 1_000_000
MAX_TRIP_COUNT = 10_000_000
MAX_REPEAT = 1 << 50
MAX_UNROLLED_TRIPS = 2_048
MAX_SEQUENCE = 65_536
MAX_BATCH = 1_000_000

MAX_FOLD_ELEMENTS = 65_536  # a larger value is never evaluated; its shape still is
MAX_FOLD_BYTES = 1 << 20
# Floats in larger initializers are weights, not shape arithmetic: never decoded.
MAX_FLOAT_INITIALIZER = 1_024
MAX_KNOWN_BYTES = 128 << 20  # of all known values of a model together; beyond it only small ones are kept


def expanded(written: int, most: int, least: int = MAX_EXPANDED) -> int:
    """Return how much ``written`` nodes may become: in proportion, from ``least`` to ``most``."""
    return min(most, max(least, MAX_EXPANSION * written))
