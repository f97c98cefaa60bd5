"""gkestimator: what an ONNX model will need on a GPU (compute, memory, time), without running it.

``gkestimator.estimate("m.onnx", gpus=["V100"], batch_sizes=[1, 8])`` returns the requirement table as a pandas
DataFrame; ``schedule`` places models on GPUs by it, ``export`` writes the plan for the schedulers that people run,
``simulate`` serves it; ``evaluate`` compares measurements with estimates, ``merge`` makes one file of models that share
a GPU and weights, ``gpus`` and ``runtimes`` list what is known. Every error is a
``gkestimator.errors.GkestimatorError``. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gkestimator.core import errors

if TYPE_CHECKING:
    from gkestimator.documents.plan import PlacementPlan
    from gkestimator.documents.simulation import SimulationReport
    from gkestimator.evaluation.api import Evaluation, evaluate
    from gkestimator.library.catalogue import gpus, runtimes
    from gkestimator.library.estimating import estimate
    from gkestimator.library.language_models import estimate_llm
    from gkestimator.library.planning import Exported, export, schedule, simulate
    from gkestimator.library.requirements import Requirements
    from gkestimator.merging.merge import MergeResult, merge

    __version__: str

# The name that users catch errors by; the room it lies in is nobody's business outside.
sys.modules[f"{__name__}.errors"] = errors

__all__ = [
    "Evaluation",
    "Exported",
    "MergeResult",
    "PlacementPlan",
    "Requirements",
    "SimulationReport",
    "__version__",
    "errors",
    "estimate",
    "estimate_llm",
    "evaluate",
    "export",
    "gpus",
    "merge",
    "runtimes",
    "schedule",
    "simulate",
]
"""The names that stay: nothing else is promised to programs."""

_HOMES = {
    "documents.plan": ("PlacementPlan",),
    "documents.simulation": ("SimulationReport",),
    "evaluation.api": ("Evaluation", "evaluate"),
    "library.catalogue": ("gpus", "runtimes"),
    "library.estimating": ("estimate",),
    "library.language_models": ("estimate_llm",),
    "library.planning": ("Exported", "export", "schedule", "simulate"),
    "library.requirements": ("Requirements",),
    "merging.merge": ("MergeResult", "merge"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load the public names on first use (PEP 562)."""
    if name in _HOME_OF:
        return getattr(import_module(f"gkestimator.{_HOME_OF[name]}"), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("gkestimator")
    raise AttributeError(f"module 'gkestimator' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
