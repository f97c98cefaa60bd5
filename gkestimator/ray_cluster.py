"""Reaching a Ray cluster, for all that works jobs off over one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from gkestimator.errors import UsageError, one_line

__all__ = ["connected"]


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """The module ``ray``, connected: to where the program is already, else to ``$RAY_ADDRESS``, else to the cluster
    of this machine; what was connected here is let go at the end. Raises UsageError where Ray or a cluster is
    missing."""
    try:
        import ray
    except ImportError as e:
        raise UsageError("engine ray: Ray is missing; pip install 'gkestimator[ray]'") from e
    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as e:
        raise UsageError(
            f"engine ray: no cluster at {address}: {one_line(e, limit=200)} (start one with ray start --head, or set "
            "RAY_ADDRESS)"
        ) from e
    try:
        yield ray
    finally:
        ray.shutdown()
