"""Pairs of whole models side by side on one GPU: how much each slows the other.

:func:`gkestimator.profiling.colocating.run.measure_pairs` is the way in. Nothing is imported here: every
worker imports this package.
"""
