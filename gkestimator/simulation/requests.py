"""Write every request of a simulation as a table: CSV or Parquet."""

from __future__ import annotations

import io

import numpy as np

from gkestimator.core.errors import UsageError
from gkestimator.core.extras import install_extra
from gkestimator.simulation.result import Result
from gkestimator.simulation.system import System
from gkestimator.tables.request_log import simulated_columns

REQUEST_SUFFIXES = {".csv": "csv", ".parquet": "parquet"}
_AS_KEPT = ("batch", "arrived_ms", "router_ms", "network_ms", "queue_ms", "gpu_ms")


def check_writable(form: str) -> None:
    """Raise UsageError where ``form`` is ``parquet`` and pyarrow (extra ``parquet``) is missing."""
    if form == "parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as e:
            raise UsageError(f"Parquet needs pyarrow: {install_extra('parquet')}") from e


def render_requests(system: System, result: Result, form: str) -> bytes:
    """Return the counted requests to models in order of completion, one row each, as ``csv`` or ``parquet``.

    The columns are those of a request log that a simulation knows (:mod:`gkestimator.tables.request_log`).

    Raises UsageError: the simulation did not keep them (``Options.keep_requests``), or pyarrow is missing.
    """
    import pandas

    kept = result.requests
    if kept is None:
        raise UsageError("the simulation kept no requests")
    check_writable(form)
    # Objects, not texts of numpy: those would take the longest name's length four times over for each request.
    gpus = np.array([system.gpus[r.gpu].id for r in system.replicas] or [""], dtype=object)
    replicas = np.array([r.id for r in system.replicas] or [""], dtype=object)
    models = np.array([m.name for m in system.models], dtype=object)
    sources = np.array([s.name for s in system.sources], dtype=object)
    slo = np.array([m.slo_ms for m in system.models])
    total = kept.router_ms + kept.network_ms + kept.queue_ms + kept.gpu_ms
    frame = pandas.DataFrame(
        {
            "source": sources[kept.source],
            "model": models[kept.model],
            "replica": replicas[kept.replica],
            "gpu": gpus[kept.replica],
            **{name: getattr(kept, name) for name in _AS_KEPT},
            "total_ms": total,
            "on_time": total <= slo[kept.model] * (1 + 1e-9),
        },
        columns=list(simulated_columns()),
    )
    buffer = io.BytesIO()
    if form == "parquet":
        frame.to_parquet(buffer, index=False)
    else:
        frame.to_csv(buffer, index=False, lineterminator="\n")
    return buffer.getvalue()
