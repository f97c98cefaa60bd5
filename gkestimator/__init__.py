"""gkestimator: what an ONNX model will need on a GPU (compute, memory, time), without running it.

``gkestimator.estimate("m.onnx", gpus=["V100"], batch_sizes=[1, 8])`` returns the requirement table as a
pandas DataFrame, ``gkestimator.evaluate("measured.csv", models="onnx/")`` compares measurements with estimates,
``gkestimator.merge(["a.onnx", "b.onnx"], "merged.onnx")`` makes one file of models that share a GPU and weights; every
error is a ``gkestimator.errors.GkestimatorError``. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gkestimator import errors
    from gkestimator.estimation import estimate
    from gkestimator.evaluation.api import evaluate
    from gkestimator.merging.merge import merge

    __version__: str

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
    if name == "errors":
        import importlib

        return importlib.import_module("gkestimator.errors")
    if name == "__version__":
        from importlib.metadata import version

        return version("gkestimator")
    raise AttributeError(f"module 'gkestimator' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
