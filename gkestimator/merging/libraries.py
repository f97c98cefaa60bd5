"""SciPy and scikit-learn, which merging alone needs (the extra ``merge``): imported where they are called."""

from __future__ import annotations

import importlib
from typing import Any

from gkestimator.errors import UsageError

__all__ = ["library"]


def library(module: str) -> Any:
    """The module ``module`` (``scipy.optimize``, ``sklearn.cluster``). Raises UsageError, saying what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        top = module.partition(".")[0]
        name = {"sklearn": "scikit-learn"}.get(top, top)
        raise UsageError(f"merging needs {name}: pip install 'gkestimator[merge]'") from e
