"""gkestimator: what an ONNX model will need on a GPU (compute, memory, time), without running it.

``gkestimator.estimate("m.onnx", gpus=["V100"], batch_sizes=[1, 8])`` returns the requirement table as a
pandas DataFrame, ``gkestimator.evaluate("measured.csv", models="onnx/")`` compares measurements with estimates,
``gkestimator.merge(["a.onnx", "b.onnx"], "merged.onnx")`` makes one file of models that share a GPU and weights; every
error is a ``gkestimator.errors.GkestimatorError``. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gkestimator.core import errors

if TYPE_CHECKING:
    from gkestimator.estimation import estimate
    from gkestimator.evaluation.api import evaluate
    from gkestimator.merging.merge import merge

    __version__: str

# The name that users catch errors by; the room it lies in is nobody's business outside.
sys.modules[f"{__name__}.errors"] = errors

__all__ = ["__version__", "errors", "estimate", "evaluate", "merge"]


def __getattr__(name: str) -> Any:
    """Load the public names on first use (PEP 562)."""
    if name == "estimate":
        from gkestimator.estimation import estimate

        return estimate
    if name == "evaluate":
        from gkestimator.evaluation.api import evaluate

        return evaluate
    if name == "merge":
        from gkestimator.merging.merge import merge

        return merge
    if name == "__version__":
        from importlib.metadata import version

        return version("gkestimator")
    raise AttributeError(f"module 'gkestimator' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
