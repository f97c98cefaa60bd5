"""Run the event loop without numba: on objects in place of the state's records, which numpy is slow to look into."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np

from gkestimator.simulation.engine.state import EngineState

EventLoop = Callable[[EngineState, float, bool], int]


def run_plainly(run: EventLoop, s: EngineState, until_ms: float, resume_only: bool) -> int:
    """Return what ``run`` returns, a loop that is plain Python; the records of ``s`` are then as it left them."""
    objects: dict[str, Any] = {}
    for name, value in s._asdict().items():
        # Kept requests are written once each, and their buffer is far longer than all else.
        if value.dtype.names is not None and name != "kept":
            objects[name] = _objects(value)
    code = run(s._replace(**objects), until_ms, resume_only)
    for name, held in objects.items():
        _write_back(getattr(s, name), held)
    return code


def _objects(value: Any) -> Any:
    """Return an object with the fields of a record, or a list of them for an array of records."""
    names = value.dtype.names
    if value.shape == ():
        return SimpleNamespace(**dict(zip(names, value.item(), strict=True)))
    return [SimpleNamespace(**dict(zip(names, row, strict=True))) for row in value.tolist()]


def _write_back(value: Any, held: Any) -> None:
    fields = attrgetter(*value.dtype.names)
    if value.shape == ():
        for name in value.dtype.names:
            value[name] = getattr(held, name)
    elif held:
        value[:] = np.array([fields(row) for row in held], dtype=value.dtype)
