"""Reads a .ncu-rep with NVIDIA's ``ncu_report`` and prints JSON lines: a process of its own, since that
library is native code and the file may be anybody's. ``python -m gkestimator.profiling.parsers.ncu_child FILE
[FOLDER...]``: the first line holds the library's version, each further one an action. The library is looked
for in the folders where it is not installed. Exit status 3: the library is not installed."""

from __future__ import annotations

import importlib
import json
import math
import resource
import sys
from typing import Any

from gkestimator.profiling.type_names import Fields

NOT_INSTALLED = 3
_LIBRARY = "ncu_report"
_MAX_MEMORY = 16 * 2**30


def main(arguments: list[str]) -> int:
    """Return the exit status for the command line ``arguments`` (the file, folders that may hold the library)."""
    sys.path += arguments[1:]  # at the end: what is installed comes first
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        ncu_report = importlib.import_module(_LIBRARY)
    except ImportError as e:
        print(e, file=sys.stderr)
        return NOT_INSTALLED
    for line in report_lines(ncu_report, arguments[0]):
        sys.stdout.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
    return 0


def report_lines(library: Any, path: str) -> Any:
    """Yield the lines for the report at ``path`` as JSON values; ``library`` is ncu_report, or what stands
    for it."""
    context = library.load_report(path)
    yield {"version": str(context.get_version())}
    for r in range(context.num_ranges()):
        profiled = context.range_by_idx(r)
        for a in range(profiled.num_actions()):
            yield _action(profiled.action_by_idx(a))


def _action(action: Any) -> Fields:
    numbers = {}
    words = {}
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        if metric is not None and metric.has_value():
            value = metric.value()
        else:
            value = None
        if isinstance(value, str):
            words[name] = value[:1000]
        elif isinstance(value, int | float) and math.isfinite(value):
            numbers[name] = [value, metric.unit()]
    return {
        "name": action.name(action.NameBase_DEMANGLED),
        "workload": _workload(action),
        "ranges": _ranges(action.nvtx_state()),
        "numbers": numbers,
        "words": words,
    }


def _workload(action: Any) -> str:
    """Return kernel, range, graph, ...; versions before 2023 know kernels alone."""
    if not hasattr(action, "workload_type"):
        return "kernel"
    kind = action.workload_type()
    for name in dir(action):
        if name.startswith("WorkloadType_") and getattr(action, name) == kind:
            return name.removeprefix("WorkloadType_").lower()
    return str(kind)


def _ranges(state: Any) -> list[tuple[str, str]]:
    if state is None:
        return []
    texts = []
    for number in state.domains():
        domain = state.domain_by_id(number)
        texts += [(domain.name(), text) for text in domain.push_pop_ranges()]
    return texts


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
