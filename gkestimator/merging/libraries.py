"""SciPy, which few parts need (merging by the extra ``merge``): imported where it is called."""

from __future__ import annotations

import importlib
from typing import Any

from gkestimator.core.errors import UsageError


def library(module: str) -> Any:
    """The module ``module`` (``scipy.optimize``). Raises UsageError, saying what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise UsageError(f"merging needs {module.partition('.')[0]}: pip install 'gkestimator[merge]'") from e
