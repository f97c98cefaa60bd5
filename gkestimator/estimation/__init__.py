"""Turn models and GPUs into rows of the requirement table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gkestimator.estimation.api import EstimateResult, estimate_rows
    from gkestimator.estimation.one_process import reserved_in_one_process

__all__ = ["EstimateResult", "estimate_rows", "reserved_in_one_process"]


def __getattr__(name: str) -> Any:
    """Load the engine only when something of it is asked for: the package's parts are usable alone."""
    if name == "reserved_in_one_process":
        from gkestimator.estimation.one_process import reserved_in_one_process

        return reserved_in_one_process
    if name in __all__:
        from gkestimator.estimation import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
