"""Tabling: the requirement table of whole models that ``gkest profile run`` measured."""

from gkestimator.profiling.tabling.table import TableResult, build_table

__all__ = ["TableResult", "build_table"]
