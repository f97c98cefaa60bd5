"""Collectors: put a profiler around an executor's child, and see to it that it really recorded.

A new collector is one file with one class and one line in ``registry.COLLECTORS``, or a package of your own with an
entry point of the group ``gkestimator.collectors``; ``tests/conformance/test_collectors.py`` runs over all of them.
"""

from gkestimator.profiling.collectors.base import Collector, CollectorError
from gkestimator.profiling.collectors.probing import probe
from gkestimator.profiling.collectors.registry import (
    AUTO,
    COLLECTORS,
    choose,
    collector_class,
    collector_names,
    make_collector,
    parse_capture,
    records_launches,
)

__all__ = [
    "AUTO",
    "COLLECTORS",
    "Collector",
    "CollectorError",
    "choose",
    "collector_class",
    "collector_names",
    "make_collector",
    "parse_capture",
    "probe",
    "records_launches",
]
