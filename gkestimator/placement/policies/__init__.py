"""The placement policies, one file each; the table of their names is :mod:`gkestimator.placement.registry`."""
