"""Ray Serve application for the serve-config.yaml beside it (``import_path: gkest_serve_app:build``).

Runs on the nodes of a Ray cluster, on its own: it needs ray[serve], numpy, onnxruntime-gpu (onnxruntime where a CPU
stands in) and ``gkest_serve_worker.py`` beside it, nothing of gkestimator. `gkest export --to ray-serve` copies both as
they stand; what differs from model to model is in the configuration.

Each deployment answers one model. A request holds one sample without its batch axis, as JSON
``{"inputs": {"name": nested lists}}`` over HTTP or as arrays through ``handle.infer.remote(inputs)``. It waits in its
replica until the device is free, is run in one batch with the others that wait, and gets back its own sample of each
output; the header Server-Timing says how large its batch was, and milliseconds in the queue and in the run. Ray's own
``@serve.batch`` is not used: it fills a batch first and lets it queue as it was formed.

The fields of a deployment's ``user_config``:

- ``model_file``: the ONNX file, below $GKEST_MODELS, else below the folder ``models`` beside this file
- ``max_batch_size``: the largest batch
- ``providers``, ``intra_op_threads``, ``memory_bytes``: how ONNX Runtime runs it (see ``ServedModel``)
- ``dims``: lengths of symbolic axes; where all are known, the model is warmed up before it is called ready
- ``objective_ms`` and ``latency_ms``, pairs of a batch size and its milliseconds: a request that the next batch would
  answer later than its objective is refused with 503; without one of them, late requests are answered, late
- ``max_waiting``: who comes while so many wait is refused with 429
- ``timeout_s``: who has no answer by then is refused with 504
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gkest_serve_worker import (
    Arrays,
    BadRequestError,
    DeviceLane,
    LatencyCurve,
    LateQueue,
    QueueSettings,
    RefusedError,
    ServedModel,
    Timing,
)
from ray import serve
from ray.serve.exceptions import BackPressureError
from starlette.requests import Request
from starlette.responses import JSONResponse

_OF_SESSION = ("model_file", "providers", "intra_op_threads", "memory_bytes", "dims")
_KNOWN = {*_OF_SESSION, "max_batch_size", "objective_ms", "latency_ms", "max_waiting", "timeout_s"}


async def _answer(infer_timed: Any, request: Request) -> JSONResponse:
    try:
        body = await request.json()
    except ValueError:
        return JSONResponse({"error": "expected JSON"}, status_code=400)
    if not isinstance(body, dict) or set(body) != {"inputs"}:
        return JSONResponse({"error": "expected an object with the field inputs"}, status_code=400)
    try:
        outputs, timing = await infer_timed(body["inputs"])
    except (BadRequestError, RefusedError) as e:
        # From another replica it comes with a traceback around it; the cause is the message alone.
        cause = getattr(e, "cause", e)
        return JSONResponse({"error": str(cause)}, status_code=getattr(cause, "status", 400))
    except BackPressureError as e:
        return JSONResponse({"error": e.message}, status_code=503)
    lists = {name: np.asarray(value).tolist() for name, value in outputs.items()}
    spent = f'batch;desc="{timing.batch}", queue;dur={timing.queue_ms:.3f}, run;dur={timing.gpu_ms:.3f}'
    return JSONResponse({"outputs": lists}, headers={"Server-Timing": spent})


class ReplicaServer:
    """One copy of one model."""

    def __init__(self) -> None:
        self._lane = DeviceLane()
        self._model: ServedModel | None = None
        self._queue: LateQueue | None = None
        self._session: dict[str, Any] = {}
        self._objective_s: float | None = None

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Load the model and set how it batches; called at the start and whenever ``user_config`` changes."""
        unknown = set(user_config) - _KNOWN
        if unknown:
            raise ValueError(f"user_config: {sorted(unknown)} unknown, expected {sorted(_KNOWN)}")
        cap = user_config["max_batch_size"]
        session = {name: user_config.get(name) for name in _OF_SESSION}
        if self._model is None or session != self._session:
            model = await asyncio.to_thread(_load, session, cap)
        else:
            model = self._model
        if model.fixed_batch is not None and cap > model.fixed_batch:
            raise ValueError(f"{session['model_file']} runs at batch {model.fixed_batch} alone, not {cap}")
        former = self._queue
        self._queue = LateQueue(model.run, _settings(user_config), self._lane)
        self._model = model
        self._session = session
        objective_ms = user_config.get("objective_ms")
        self._objective_s = None if objective_ms is None else objective_ms / 1e3
        if former is not None:
            await former.drain()  # by the model that its requests were checked for
            self._lane.remove(former)

    async def infer(self, inputs: Mapping[str, Any]) -> Arrays:
        """Return the outputs of one sample."""
        outputs, _ = await self.infer_timed(inputs)
        return outputs

    async def infer_timed(self, inputs: Mapping[str, Any]) -> tuple[Arrays, Timing]:
        """Return the outputs of one sample, and how it fared."""
        assert self._model is not None and self._queue is not None
        deadline = None
        if self._objective_s is not None:
            deadline = time.monotonic() + self._objective_s
        answer: tuple[Arrays, Timing] = await self._queue.submit(
            self._model.sample(inputs), deadline=deadline
        )
        return answer

    async def __call__(self, request: Request) -> JSONResponse:
        """Answer one request over HTTP."""
        return await _answer(self.infer_timed, request)


def _load(session: Mapping[str, Any], cap: int) -> ServedModel:
    folder = Path(os.environ.get("GKEST_MODELS") or Path(__file__).parent / "models")
    model = ServedModel(
        folder / session["model_file"],
        providers=session["providers"] or ("CUDAExecutionProvider",),
        threads=session["intra_op_threads"],
        memory_bytes=session["memory_bytes"],
    )
    model.warm_up(cap, dims=session["dims"])
    return model


def _settings(user_config: Mapping[str, Any]) -> QueueSettings:
    """Return how the queue batches and whom it refuses."""
    latency_ms = None
    if user_config.get("latency_ms"):
        latency_ms = LatencyCurve({int(size): float(ms) for size, ms in user_config["latency_ms"]})
    return QueueSettings(
        cap=user_config["max_batch_size"],
        max_waiting=user_config.get("max_waiting"),
        timeout_s=user_config.get("timeout_s"),
        latency_ms=latency_ms,
    )


class Router:
    """The door of a model that runs in several ways: each gets its part of the requests, by ``weights``, in turn."""

    def __init__(self, weights: dict[str, float], *handles: Any) -> None:
        self._ways = list(zip(weights.values(), handles, strict=True))
        self._credit = [0.0] * len(self._ways)

    async def infer(self, inputs: Mapping[str, Any]) -> Arrays:
        """Return the outputs of one sample."""
        outputs, _ = await self.infer_timed(inputs)
        return outputs

    async def infer_timed(self, inputs: Mapping[str, Any]) -> tuple[Arrays, Timing]:
        """Return the outputs of one sample, and how it fared."""
        for way, (weight, _) in enumerate(self._ways):
            self._credit[way] += weight
        chosen = max(range(len(self._ways)), key=lambda way: self._credit[way])
        self._credit[chosen] -= sum(weight for weight, _ in self._ways)
        answer: tuple[Arrays, Timing] = await self._ways[chosen][1].infer_timed.remote(inputs)
        return answer

    async def __call__(self, request: Request) -> JSONResponse:
        """Answer one request over HTTP."""
        return await _answer(self.infer_timed, request)


def build(args: Mapping[str, Any]) -> Any:
    """Return the application: ``args["deployments"]`` maps the name of each deployment to its part of the requests;
    ``args["router"]`` names the deployment in front of several."""
    weights = {str(name): float(weight) for name, weight in args["deployments"].items()}
    replica: Any = serve.deployment(ReplicaServer)
    router: Any = serve.deployment(Router)
    replicas = [replica.options(name=name).bind() for name in weights]
    if len(replicas) == 1:
        return replicas[0]
    return router.options(name=str(args["router"])).bind(weights, *replicas)
