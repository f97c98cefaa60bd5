"""Sweep planning: which operators to measure, in which order, and how long it will take."""

from __future__ import annotations

from gkestimator.profiling.sweep.planning import DEFAULT_MINUTES, Planned, PlanRequest, make_plan
from gkestimator.profiling.sweep.whole import make_whole_plan

__all__ = ["DEFAULT_MINUTES", "PlanRequest", "Planned", "make_plan", "make_whole_plan"]
