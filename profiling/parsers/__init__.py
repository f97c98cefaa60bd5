"""Parsers of what the profilers leave behind: each makes a capture of one file."""

from gkestimator.profiling.parsers.joining import join
from gkestimator.profiling.parsers.kineto import parse_kineto
from gkestimator.profiling.parsers.ncu import parse_ncu
from gkestimator.profiling.parsers.nsys import parse_nsys
from gkestimator.profiling.parsers.repeats import split_repeats

__all__ = ["join", "parse_kineto", "parse_ncu", "parse_nsys", "split_repeats"]
