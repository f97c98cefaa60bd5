"""The one runner of work that may be cut off: profiling, pairs of models and comparisons keep what was done
with it.

``journal`` and ``store`` keep results on the disk, ``disk`` locks and flushes; ``processes`` and
``ray_cluster`` work jobs off, ``children`` and ``guard`` run a child of which nothing outlives its owner,
``stopping`` says when to end.
"""
