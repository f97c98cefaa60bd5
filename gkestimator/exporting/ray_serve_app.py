"""Ray Serve application for the serve-config.yaml beside it (``import_path: gkest_serve_app:build``).

Runs on the nodes of a Ray cluster, on its own: it needs ray[serve], numpy and onnxruntime-gpu (onnxruntime where
a CPU stands in), nothing of gkestimator. `gkest export --to ray-serve` copies it as it stands; what differs from
model to model is in the configuration.

Each deployment answers one model at one batch size. Its ``user_config`` names the ONNX file (below
$GKEST_MODELS, else below the folder ``models`` beside this file), the batch size and how long a batch may wait to
fill. A request holds one sample without its batch axis, as JSON ``{"inputs": {"name": nested lists}}`` over HTTP or
as arrays through ``handle.infer.remote(inputs)``; it waits with others for a batch and gets back its own sample of
each output.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

_NUMPY_TYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16,
    "tensor(bool)": np.bool_, "tensor(int8)": np.int8, "tensor(int16)": np.int16, "tensor(int32)": np.int32,
    "tensor(int64)": np.int64, "tensor(uint8)": np.uint8, "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32, "tensor(uint64)": np.uint64, "tensor(string)": np.object_,
}  # fmt: skip
_KNOWN = {"model_file", "max_batch_size", "batch_wait_timeout_s"}

Arrays = dict[str, np.ndarray[Any, Any]]


class BadRequestError(ValueError):
    """The client's mistake; its text is the answer."""


class ServedModel:
    """An ONNX file, run on batches: on the GPU that Ray assigned, or on the CPU where onnxruntime sees none."""

    def __init__(self, path: Path) -> None:
        wanted = ("CUDAExecutionProvider", "CPUExecutionProvider")
        available = onnxruntime.get_available_providers()
        providers = [p for p in wanted if p in available]
        self.session = onnxruntime.InferenceSession(os.fspath(path), providers=providers)
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        for name, spec in self.inputs.items():
            if spec.type not in _NUMPY_TYPES:
                raise ValueError(
                    f"{path.name}: input {name} is {spec.type}, which this application cannot take"
                )
            if not spec.shape:
                raise ValueError(f"{path.name}: an input has no batch axis, which this application needs")
        sizes = {spec.shape[0] for spec in self.inputs.values()}
        fixed = [size for size in sizes if isinstance(size, int)]
        if fixed and len(sizes) > 1:
            raise ValueError(f"{path.name}: its inputs do not begin with one batch axis")
        # A file that was exported at one batch size runs at no other: smaller batches are filled up.
        self.fixed_batch: int | None = fixed[0] if fixed else None
        self.outputs = self._batched_outputs()
        if not self.outputs:
            raise ValueError(f"{path.name}: no output begins with the batch axis")

    def _batched_outputs(self) -> list[str]:
        """Return the outputs that begin with the batch; others (a hidden state laid out by time first) cannot be
        divided."""
        others = {d for spec in self.inputs.values() for d in spec.shape[1:] if isinstance(d, str)}
        names = []
        for output in self.session.get_outputs():
            batch = output.shape[0] if output.shape else None
            if self.fixed_batch is not None:
                batched = batch == self.fixed_batch
            else:
                batched = bool(output.shape) and not isinstance(batch, int)
            if batched and batch not in others:
                names.append(output.name)
        return names

    def sample(self, given: object) -> Arrays:
        """Return the arrays of one request, checked and in the model's element types."""
        if not isinstance(given, Mapping) or set(given) != set(self.inputs):
            raise BadRequestError(f"expected inputs {sorted(self.inputs)}")
        arrays: Arrays = {}
        for name, spec in self.inputs.items():
            try:
                array = _exact(np.asarray(given[name]), np.dtype(_NUMPY_TYPES[spec.type]))
            except (TypeError, ValueError, OverflowError) as e:
                raise BadRequestError(f"input {name}: expected {spec.type} of shape {spec.shape[1:]}") from e
            shape = spec.shape[1:]
            wrong = array.ndim != len(shape)
            for asked, size in zip(shape, array.shape, strict=False):
                wrong |= isinstance(asked, int) and asked != size
            if wrong:
                raise BadRequestError(
                    f"input {name}: found shape {list(array.shape)}, expected one sample of {shape}"
                )
            arrays[name] = array
        return arrays

    def run(self, samples: Sequence[Arrays]) -> list[Arrays]:
        """Return the outputs of every sample; samples of one shape share a batch."""
        groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for number, sample in enumerate(samples):
            groups.setdefault(tuple(sample[n].shape for n in self.inputs), []).append(number)
        answers: list[Arrays] = [{} for _ in samples]
        for members in groups.values():
            filled = members + [members[-1]] * ((self.fixed_batch or len(members)) - len(members))
            batch = {name: np.stack([samples[m][name] for m in filled]) for name in self.inputs}
            for name, values in zip(self.outputs, self.session.run(self.outputs, batch), strict=True):
                if np.ndim(values) == 0 or len(values) != len(filled):
                    raise RuntimeError(f"output {name} has no batch axis, which this application needs")
                for member, value in zip(members, values, strict=False):
                    answers[member][name] = value
        return answers


def _exact(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return ``values`` as ``dtype``; whole numbers are not rounded or wrapped into being. Raises ValueError."""
    exact = values.astype(dtype)
    if dtype.kind in "iub" and not np.array_equal(exact, values):
        raise ValueError(f"not {dtype}")
    return exact


async def _answer(infer: Any, request: Request) -> JSONResponse:
    try:
        body = await request.json()
    except ValueError:
        return JSONResponse({"error": "expected JSON"}, status_code=400)
    if not isinstance(body, dict) or set(body) != {"inputs"}:
        return JSONResponse({"error": "expected an object with the field inputs"}, status_code=400)
    try:
        outputs = await infer(body["inputs"])
    except BadRequestError as e:
        # From another replica it comes with a traceback around it; the cause is the message alone.
        return JSONResponse({"error": str(getattr(e, "cause", e))}, status_code=400)
    return JSONResponse({"outputs": {name: np.asarray(value).tolist() for name, value in outputs.items()}})


class ReplicaServer:
    """One copy of one model."""

    def __init__(self) -> None:
        self._model: ServedModel | None = None
        self._file = ""
        self._batch: Any = serve.batch(max_batch_size=1)(self._run)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Load the model and set how it batches; called at the start and whenever ``user_config`` changes."""
        unknown = set(user_config) - _KNOWN
        if unknown:
            raise ValueError(f"user_config: {sorted(unknown)} unknown, expected {sorted(_KNOWN)}")
        if user_config["model_file"] != self._file:
            folder = Path(os.environ.get("GKEST_MODELS") or Path(__file__).parent / "models")
            self._model = ServedModel(folder / user_config["model_file"])
            self._file = user_config["model_file"]
        size = user_config["max_batch_size"]
        if self._model and self._model.fixed_batch is not None and size > self._model.fixed_batch:
            raise ValueError(f"{self._file} runs at batch {self._model.fixed_batch} alone, not {size}")
        self._batch.set_max_batch_size(size)
        if "batch_wait_timeout_s" in user_config:
            self._batch.set_batch_wait_timeout_s(user_config["batch_wait_timeout_s"])

    async def _run(self, samples: list[Arrays]) -> list[Arrays]:
        assert self._model is not None
        return await asyncio.to_thread(self._model.run, samples)

    async def infer(self, inputs: Mapping[str, Any]) -> Arrays:
        """Return the outputs of one sample."""
        assert self._model is not None
        outputs: Arrays = await self._batch(self._model.sample(inputs))
        return outputs

    async def __call__(self, request: Request) -> JSONResponse:
        """Answer one request over HTTP."""
        return await _answer(self.infer, request)


class Router:
    """The door of a model that runs in several ways: each gets its part of the requests, by ``weights``, in turn."""

    def __init__(self, weights: dict[str, float], *handles: Any) -> None:
        self._ways = list(zip(weights.values(), handles, strict=True))
        self._credit = [0.0] * len(self._ways)

    async def infer(self, inputs: Mapping[str, Any]) -> Arrays:
        """Return the outputs of one sample."""
        for way, (weight, _) in enumerate(self._ways):
            self._credit[way] += weight
        chosen = max(range(len(self._ways)), key=lambda way: self._credit[way])
        self._credit[chosen] -= sum(weight for weight, _ in self._ways)
        outputs: Arrays = await self._ways[chosen][1].infer.remote(inputs)
        return outputs

    async def __call__(self, request: Request) -> JSONResponse:
        """Answer one request over HTTP."""
        return await _answer(self.infer, request)


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
