"""Run ONNX models on batches that are formed when the device is free.

Needs numpy and onnxruntime, nothing of gkestimator: `gkest export --to ray-serve` copies this file as it stands
(``gkest_serve_worker.py``), and `gkest serve` runs the same code in its workers.

The law of late batching: a request waits in the queue of its model. Whenever the device is free and something waits, a
batch is formed at once of the oldest requests, up to the cap; no batch waits to fill. So a lone request is answered
without delay, and under load batches grow by themselves, because more arrives while a longer batch runs.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]
RunBatch = Callable[[list[Any]], list[Any]] | Callable[[list[Any]], Awaitable[list[Any]]]

# ONNX Runtime's names of element types: NumPy's type, and the word of the V2 inference protocol.
_ELEMENTS: dict[str, tuple[Any, str]] = {
    "tensor(float)": (np.float32, "FP32"), "tensor(double)": (np.float64, "FP64"),
    "tensor(float16)": (np.float16, "FP16"), "tensor(bool)": (np.bool_, "BOOL"),
    "tensor(string)": (np.object_, "BYTES"),
}  # fmt: skip
for _bits in (8, 16, 32, 64):
    _ELEMENTS[f"tensor(int{_bits})"] = (np.dtype(f"int{_bits}"), f"INT{_bits}")
    _ELEMENTS[f"tensor(uint{_bits})"] = (np.dtype(f"uint{_bits}"), f"UINT{_bits}")


class BadRequestError(ValueError):
    """The client's mistake; its text is the answer."""


class RefusedError(Exception):
    """Say that a request is answered by a refusal, with an HTTP status and a line of words: 429, the queue is full;
    503, it would be late, the server is ending, or none has the model; 504, time-out; 400, it is not what it takes."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(status, words)  # both, so that it travels between processes as it stands
        self.status = status
        self.words = words

    def __str__(self) -> str:
        """Return the words, which are what a client reads."""
        return self.words


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Hold how a request fared: the size of its batch, and milliseconds in the queue and in the run."""

    batch: int
    queue_ms: float
    gpu_ms: float


@dataclass(kw_only=True)
class QueueCounters:
    """Count what became of a queue's requests since it was made, its batches, and the seconds that they ran."""

    answered: int = 0
    full: int = 0
    shed: int = 0
    timed_out: int = 0
    ending: int = 0
    failed: int = 0
    cancelled: int = 0
    batches: int = 0
    in_batches: int = 0
    busy_s: float = 0.0


class LatencyCurve:
    """Give the milliseconds of a batch: linear between known sizes, that of the least below it, in proportion above."""

    def __init__(self, points: Mapping[int, float]) -> None:
        self._sizes = sorted(points)
        self._times = [points[size] for size in self._sizes]

    def __call__(self, batch: int) -> float:
        """Return the milliseconds of a batch of that size."""
        largest = self._sizes[-1]
        if batch > largest:
            return self._times[-1] * batch / largest
        return float(np.interp(batch, self._sizes, self._times))


@dataclass(kw_only=True, eq=False)
class _Waiting:
    """Hold one request: when it came (``arrived``), the time by which it must be answered, and its answer to come."""

    sample: Any
    arrived: float
    deadline: float | None
    answer: asyncio.Future[tuple[Any, Timing]]


@dataclass(kw_only=True)
class QueueSettings:
    """Say how a queue batches and whom it refuses.

    ``cap`` is the largest batch. ``max_waiting``: requests beyond it are refused (429). ``timeout_s``: who has no
    answer by then is refused (504). ``latency_ms``: the estimated time of a batch, by which requests are refused (503)
    that cannot be answered before their deadline; None: none is.
    """

    cap: int
    max_waiting: int | None = None
    timeout_s: float | None = None
    latency_ms: Callable[[int], float] | None = None


class DeviceLane:
    """A device that runs one batch at a time: a GPU, or the part of one that several models take in turns.

    Among its queues the one whose oldest request has waited longest is served next. Everything but the run itself
    happens in one event loop, so that nothing here needs a lock.
    """

    def __init__(self) -> None:
        self.busy = False
        self.queues: list[LateQueue] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gkest-device")
        self._tasks: set[asyncio.Task[None]] = set()

    def remove(self, queue: LateQueue) -> None:
        """Take the turns of ``queue`` away; who waits there must have been answered."""
        self.queues.remove(queue)

    def kick(self) -> None:
        """Start a batch, if the device is free and something waits."""
        while not self.busy:
            waiting = [queue for queue in self.queues if queue.oldest() is not None]
            if not waiting:
                return
            queue = min(waiting, key=lambda q: q.oldest() or 0.0)
            batch = queue.form_batch()
            if batch:  # else all of them were refused, and the next queue has its turn
                self.busy = True
                task = asyncio.get_running_loop().create_task(self._run(queue, batch))
                self._tasks.add(task)  # the loop itself holds tasks weakly
                task.add_done_callback(self._tasks.discard)

    async def _run(self, queue: LateQueue, batch: list[_Waiting]) -> None:
        try:
            await queue.run_batch(batch, self._thread)
        finally:
            self.busy = False
            self.kick()


class LateQueue:
    """Requests of one model on one device, answered in batches that are formed when the device is free.

    ``run`` takes the samples of a batch and returns their outputs, in order: a function, which runs in the device's
    thread, or a coroutine function, which is awaited. Times are those of ``time.monotonic``.
    """

    def __init__(self, run: RunBatch, settings: QueueSettings, lane: DeviceLane | None = None) -> None:
        self.run = run
        self.settings = settings
        self.counters = QueueCounters()
        self._lane = lane or DeviceLane()
        self._lane.queues.append(self)
        self._waiting: deque[_Waiting] = deque()
        self._running = 0
        self._ending = False

    @property
    def outstanding(self) -> int:
        """Return how many requests wait or run."""
        return len(self._waiting) + self._running

    async def submit(self, sample: Any, *, deadline: float | None = None) -> tuple[Any, Timing]:
        """Return the outputs of ``sample`` and how it fared; ``deadline`` (None: none) is when its objective ends.
        Raises RefusedError, and what the run raised."""
        settings = self.settings
        if self._ending:
            self.counters.ending += 1
            raise RefusedError(503, "the server is ending")
        if settings.max_waiting is not None and len(self._waiting) >= settings.max_waiting:
            self.counters.full += 1
            raise RefusedError(429, f"the queue is full: {len(self._waiting)} requests wait")
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        request = _Waiting(sample=sample, arrived=now, deadline=deadline, answer=loop.create_future())
        self._waiting.append(request)
        self._lane.kick()
        timer = None
        if settings.timeout_s is not None:
            timer = loop.call_later(settings.timeout_s, self._time_out, request)
        try:
            return await request.answer
        except asyncio.CancelledError:
            self.counters.cancelled += 1  # the client has gone
            self._forget(request)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def oldest(self) -> float | None:
        """Return when the oldest waiting request came; None where none waits."""
        if not self._waiting:
            return None
        return self._waiting[0].arrived

    def form_batch(self) -> list[_Waiting]:
        """Take the oldest requests, up to the cap, after refusing those that this very batch would answer too late.

        The oldest that would be late is refused first, because without it the batch may be smaller and faster.
        """
        for request in [r for r in self._waiting if r.answer.done()]:
            self._waiting.remove(request)  # its client went a moment ago
        while True:
            size = min(self.settings.cap, len(self._waiting))
            late = self._first_late(size)
            if late is None:
                break
            self.counters.shed += 1
            self._refuse(late, 503, "it cannot be answered within its objective any more")
        return [self._waiting.popleft() for _ in range(size)]

    def _first_late(self, size: int) -> _Waiting | None:
        latency_ms = self.settings.latency_ms
        if latency_ms is None or size == 0:
            return None
        end = time.monotonic() + latency_ms(size) / 1e3
        for request in islice(self._waiting, size):
            if request.deadline is not None and request.deadline < end:
                return request
        return None

    async def run_batch(self, batch: list[_Waiting], thread: ThreadPoolExecutor) -> None:
        """Run ``batch`` and answer its requests; an error is every request's answer."""
        self._running = len(batch)
        begun = time.monotonic()
        try:
            samples = [request.sample for request in batch]
            if inspect.iscoroutinefunction(self.run):
                answers = await self.run(samples)
            else:
                answers = await asyncio.get_running_loop().run_in_executor(thread, self.run, samples)
            if len(answers) != len(batch):
                raise RuntimeError(f"the run gave {len(answers)} answers to {len(batch)} samples")
            self._answer(batch, answers, begun)
        except Exception as e:  # noqa: BLE001  # whatever a model raises belongs to its clients
            self.counters.failed += len(batch)
            for request in batch:
                if not request.answer.done():
                    request.answer.set_exception(e)
        finally:
            self._running = 0

    def _answer(self, batch: list[_Waiting], answers: Sequence[Any], begun: float) -> None:
        ran_s = time.monotonic() - begun
        self.counters.batches += 1
        self.counters.in_batches += len(batch)
        self.counters.busy_s += ran_s
        for request, answer in zip(batch, answers, strict=True):
            if request.answer.done():  # timed out, or its client went, while it ran
                continue
            self.counters.answered += 1
            queue_ms = (begun - request.arrived) * 1e3
            timing = Timing(batch=len(batch), queue_ms=queue_ms, gpu_ms=ran_s * 1e3)
            request.answer.set_result((answer, timing))

    def _time_out(self, request: _Waiting) -> None:
        if not request.answer.done():
            self.counters.timed_out += 1
            self._refuse(request, 504, f"no answer within {self.settings.timeout_s:g} s")

    def _refuse(self, request: _Waiting, status: int, words: str) -> None:
        self._forget(request)
        request.answer.set_exception(RefusedError(status, words))

    def _forget(self, request: _Waiting) -> None:
        """Take ``request`` out of the queue, if it is still there."""
        if request in self._waiting:
            self._waiting.remove(request)

    async def drain(self) -> None:
        """Refuse what comes from now on (503) and return once all that came before is answered."""
        self._ending = True
        while self.outstanding:
            await asyncio.sleep(0.01)


class ServedModel:
    """An ONNX file in a session of ONNX Runtime, run on batches of samples.

    ``providers`` are its execution providers by rank, names or pairs of a name and its options; those that are lacking
    here are left out, and the CPU stands in. ``threads`` may run on the CPU (None: one a core). ``memory_bytes`` is the
    most that the arena of the GPU may hold. Raises ValueError naming the file where it cannot be batched.
    """

    def __init__(
        self,
        path: Path,
        *,
        providers: Sequence[Any] = ("CUDAExecutionProvider",),
        threads: int | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        if threads is not None:
            options.intra_op_num_threads = threads
        chosen = _providers(providers, memory_bytes, path.parent)
        self.session = onnxruntime.InferenceSession(os.fspath(path), sess_options=options, providers=chosen)
        loaded = self.session.get_providers()
        if 1 < len(loaded) < len(chosen):  # where one does not load, ONNX Runtime forgets the others' options
            self.session.set_providers(chosen[-len(loaded) :])
        self.inputs = {i.name: i for i in self.session.get_inputs()}
        for name, spec in self.inputs.items():
            if spec.type not in _ELEMENTS or not spec.shape:
                raise ValueError(f"{path.name}: input {name} cannot be batched: {spec.type} of {spec.shape}")
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
        """Return the outputs that begin with the batch; others (a state laid out by time first) cannot be divided."""
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

    @property
    def signature(self) -> dict[str, list[dict[str, Any]]]:
        """Return ``inputs`` and ``outputs`` in the form of the V2 inference protocol, shapes of one sample; -1 stands
        for an axis of any length."""
        outputs = [_tensor(o) for o in self.session.get_outputs() if o.name in self.outputs]
        return {"inputs": [_tensor(i) for i in self.inputs.values()], "outputs": outputs}

    def sample(self, given: object) -> Arrays:
        """Return the arrays of one request, checked and in the model's element types."""
        if not isinstance(given, Mapping) or set(given) != set(self.inputs):
            raise BadRequestError(f"expected inputs {sorted(self.inputs)}")
        arrays: Arrays = {}
        for name, spec in self.inputs.items():
            dtype, _ = _ELEMENTS[spec.type]
            try:
                array = _exact(np.asarray(given[name]), np.dtype(dtype))
            except (TypeError, ValueError, OverflowError) as e:
                raise BadRequestError(f"input {name}: expected {spec.type} of shape {spec.shape[1:]}") from e
            shape, sizes = spec.shape[1:], list(array.shape)
            expected = [
                asked if isinstance(asked, int) else size for asked, size in zip(shape, sizes, strict=False)
            ]
            if len(sizes) != len(shape) or sizes != expected:
                raise BadRequestError(f"input {name}: found shape {sizes}, expected one sample of {shape}")
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

    def warm_up(self, cap: int, *, dims: Mapping[str, int] | None = None, limit_s: float = 30.0) -> int:
        """Run batches of zeros, so that no client waits for what a first run does; return how many.

        On a GPU every size up to ``cap`` is run, the largest first (cuDNN searches for each new shape), for about
        ``limit_s``; on a CPU one sample. ``dims`` are lengths of symbolic axes; where one is missing, nothing is run.
        """
        known = dims or {}
        zeros: Arrays = {}
        for name, spec in self.inputs.items():
            shape = [known.get(size, size) for size in spec.shape[1:]]
            if not all(isinstance(size, int) for size in shape):
                return 0
            dtype, word = _ELEMENTS[spec.type]
            zeros[name] = np.full(shape, "" if word == "BYTES" else 0, dtype=dtype)
        most = 1 if self.session.get_providers()[0] == "CPUExecutionProvider" else cap
        end = time.monotonic() + limit_s
        runs = 0
        while runs < most and time.monotonic() < end:
            self.run([zeros] * (most - runs))
            runs += 1
        return runs


def _providers(asked: Sequence[Any], memory_bytes: int | None, folder: Path) -> list[Any]:
    """Return the execution providers of ``asked`` that onnxruntime has here, the CPU last, with their options."""
    import onnxruntime

    available = onnxruntime.get_available_providers()
    chosen: list[Any] = []
    for provider in asked:
        name, options = (provider, {}) if isinstance(provider, str) else provider
        if name not in available or name == "CPUExecutionProvider":
            continue
        # Built engines are kept beside the model, for the next start.
        options = options | {k: os.fspath(folder / v) for k, v in options.items() if k.endswith("_path")}
        if name == "CUDAExecutionProvider" and memory_bytes is not None:
            # Grown by what is asked for, not by doubling; no exact share, for the CUDA context lies outside the arena.
            options |= {"arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": str(memory_bytes)}
        chosen.append((name, options))
    return [*chosen, "CPUExecutionProvider"]


def _tensor(spec: Any) -> dict[str, Any]:
    _, word = _ELEMENTS.get(spec.type, (None, spec.type))
    shape = [size if isinstance(size, int) else -1 for size in spec.shape[1:]]
    return {"name": spec.name, "datatype": word, "shape": shape}


def _exact(values: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return ``values`` as ``dtype``; whole numbers are not rounded or wrapped into being. Raises ValueError."""
    exact = values.astype(dtype, copy=False)
    if dtype.kind in "iub" and not np.array_equal(exact, values):
        raise ValueError(f"not {dtype}")
    return exact
