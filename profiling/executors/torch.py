"""The torch executor: a fragment as the ATen calls that eager mode makes for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gkestimator.errors import GkestimatorError, UsageError
from gkestimator.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.onnx_io.fragment_models import fragment_model
from gkestimator.profiling.executors.base import EntryUnsupportedError, ExecutionError
from gkestimator.profiling.executors.data import fill, tensor_rng
from gkestimator.profiling.executors.faults import judged
from gkestimator.profiling.executors.libraries import cuda_versions
from gkestimator.profiling.executors.torch_calls import Late
from gkestimator.profiling.executors.torch_calls.program import Program, program_of
from gkestimator.profiling.executors.torch_calls.registry import torch_dtype
from gkestimator.profiling.executors.torch_profile import profiled
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.records import HostKernel

__all__ = ["TorchExecutor", "TorchPrepared"]

_TENSOR_FLOAT_SINCE = (8, 0)  # compute capability with TF32 and bfloat16 units
_RAISED = (
    RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, MemoryError,
)  # fmt: skip
"""By torch, and by builders that a stranger's attributes mislead; AttributeError is an older torch's."""


class TorchExecutor:
    """Runs entries on ``cpu`` or ``cuda:N`` through torch's eager mode.

    Process-wide settings (TF32, cuDNN's autotuning, inference mode) are as eager inference has them while an entry is
    prepared, and as they were before once the last is closed. Raises UsageError where torch or the device is missing.
    """

    name = "torch"

    def __init__(self, device: str = "cpu") -> None:
        # Else torch's profiler writes two lines a profile to stderr.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        try:
            import torch
        except ImportError as e:
            raise UsageError(
                "executor torch needs torch: pip install 'gkestimator[profile]', or a torch for this machine"
            ) from e
        kind, _, number = device.partition(":")
        if device != "cpu" and not (kind == "cuda" and number.isascii() and number.isdigit()):
            raise UsageError(f"device {device!r}: expected cpu or cuda:N")
        if kind == "cuda":
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if int(number) >= count:
                raise UsageError(f"device {device}: torch {torch.__version__} sees {count} CUDA device(s)")
        self.device = torch.device(device)
        self._settings = _Settings()

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return bool(self.device.type == "cuda")

    def versions(self) -> Mapping[str, str]:
        """Versions of torch and, on a GPU, of the CUDA libraries that it loaded."""
        import torch

        found = {"torch": str(torch.__version__)}
        if self.on_gpu:
            cudnn: Any = torch.backends.cudnn
            cudnn.version()  # loads what would be loaded with the first convolution
            found |= {"cuda": str(torch.version.cuda), **cuda_versions()}
        return found

    def prepare(self, entry: PlanEntry, seed: int) -> TorchPrepared:
        """Tensors on the device, weights laid out as torch's modules hold them, the calls tried once. Raises
        EntryUnsupportedError for what eager mode or the device does not do, ExecutionError otherwise."""
        self._require_precision(entry.dtype)
        try:
            with self.translated():
                program = program_of(entry.fragment, entry.dtype)
        except (EntryUnsupportedError, ExecutionError):
            raise
        except GkestimatorError as e:
            raise ExecutionError(f"{entry.id}: {e}") from e
        self._settings.open(tf32=entry.dtype == "tf32")
        try:
            with self.translated():
                values = _values(
                    entry.fragment, program, lambda t: fill(t, tensor_rng(entry.id, t.name, seed))
                )
                return TorchPrepared(self, self._settings, program, values, tf32=entry.dtype == "tf32")
        except BaseException:
            self._settings.close()
            raise

    def _require_precision(self, dtype: str) -> None:
        if not self.on_gpu or dtype not in ("tf32", "bf16"):
            return
        import torch

        found = torch.cuda.get_device_capability(self.device)
        if found < _TENSOR_FLOAT_SINCE:
            raise EntryUnsupportedError(
                f"torch executor: {dtype} needs compute capability 8.0, {self.device} has {found[0]}.{found[1]}"
            )

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turns what torch raises into one line."""
        try:
            yield
        except _RAISED as e:
            raise judged(e) from e


class TorchPrepared:
    """A fragment's calls with their tensors."""

    def __init__(
        self,
        executor: TorchExecutor,
        settings: _Settings,
        program: Program,
        values: Mapping[str, np.ndarray],
        *,
        tf32: bool,
    ) -> None:
        self._executor, self._settings, self._tf32 = executor, settings, tf32
        self._open = True
        self._call: Callable[[], tuple[Any, ...]] | None = _compiled(*_bind(program, values, executor.device))
        self.output_shapes = tuple(tuple(t.shape) for t in self.outputs())
        self.synchronise()

    def outputs(self) -> tuple[Any, ...]:
        """Run once; the fragment's results as tensors on the device."""
        self._settings.use(tf32=self._tf32)
        if self._call is None:
            raise ExecutionError("torch executor: the entry is closed")
        try:
            return self._call()
        except _RAISED as e:
            raise judged(e) from e

    def run(self) -> None:
        """One call, as eager mode makes it; on a GPU it returns before the device is done."""
        self.outputs()

    def synchronise(self) -> None:
        """Wait until the device is done."""
        if self._executor.on_gpu:
            import torch

            with self._executor.translated():
                torch.cuda.synchronize(self._executor.device)

    def workspace_bytes(self) -> int | None:
        """Peak memory of a call beyond its inputs, weights and outputs, by torch's allocator; None on the CPU."""
        if not self._executor.on_gpu:
            return None
        import torch

        device = self._executor.device
        self.synchronise()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        outputs = self.outputs()
        self.synchronise()
        after = torch.cuda.memory_allocated(device)
        peak = torch.cuda.max_memory_allocated(device)
        del outputs
        return max(0, int(peak - max(before, after)))

    def host_kernels(self, repeats: int) -> tuple[HostKernel, ...] | None:
        """On the CPU: the pieces of a call by torch's profiler; None on a GPU, and while another profiler of torch runs
        (the second would end the first). Raises ExecutionError where the repeats differ from each other."""
        if self._executor.on_gpu:
            return None
        import torch

        autograd: Any = torch.autograd
        if autograd._profiler_enabled():
            return None
        with self._executor.translated():
            return profiled(self.run, repeats)

    def close(self) -> None:
        """Free the tensors; torch's settings as before once nothing is open."""
        if not self._open:
            return
        self._open = False
        self._call = None
        self._settings.close()
        if self._executor.on_gpu:
            import torch

            with contextlib.suppress(RuntimeError):  # a lost device has nothing to free
                torch.cuda.empty_cache()


class _Settings:
    """torch's process-wide switches, as eager inference has them while anything is open."""

    def __init__(self) -> None:
        self._count = 0
        self._before: tuple[bool, bool, bool, bool] | None = None
        self._mode: Any = None
        self._tf32: bool | None = None

    def open(self, *, tf32: bool) -> None:
        """One more entry is prepared."""
        import torch

        if self._count == 0:
            cudnn = torch.backends.cudnn
            self._before = (
                torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic,
            )  # fmt: skip
            cudnn.benchmark = cudnn.deterministic = False
            self._mode = torch.inference_mode()
            self._mode.__enter__()
        self._count += 1
        self.use(tf32=tf32)

    def use(self, *, tf32: bool) -> None:
        """Switch TF32 for what runs next."""
        if tf32 is self._tf32:
            return
        import torch

        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        self._tf32 = tf32

    def close(self) -> None:
        """One entry less; everything as before after the last."""
        import torch

        self._count -= 1
        if self._count or self._before is None:
            return
        self._mode.__exit__(None, None, None)
        cudnn = torch.backends.cudnn
        torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = (
            self._before
        )
        self._before = self._tf32 = None


_Bound = tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _bind(
    program: Program, values: Mapping[str, np.ndarray], device: Any
) -> tuple[list[_Bound], list[Any], tuple[int, ...]]:
    """The calls over numbered slots (function, inputs, outputs, slots dead afterwards), the slots with the tensors that
    exist before the first call, and the slots of the results."""
    tensors = {name: as_tensor(value, device) for name, value in values.items()}
    slots: list[Any] = []
    number: dict[str, int] = {}

    def place(name: str, tensor: Any = None) -> int:
        number[name] = len(slots)
        slots.append(tensor)
        return number[name]

    bound = []
    for index, step in enumerate(program.steps):
        inputs = []
        for position, name in enumerate(step.inputs):
            change = step.call.prepared.get(position)
            if not name:
                inputs.append(-1)
            elif change is not None:
                inputs.append(place(f"{name}#{index}.{position}", change(tensors[name])))
            elif name in number:
                inputs.append(number[name])
            else:
                inputs.append(place(name, tensors[name]))
        function = step.run
        if isinstance(function, Late):
            function = function.make([None if i < 0 else slots[i] for i in inputs], device)
        bound.append((function, tuple(inputs), tuple(place(n) if n else -1 for n in step.outputs)))
    for name in program.outputs:
        if name not in number:  # an input handed through
            place(name, tensors[name])
    results = tuple(number[name] for name in program.outputs)
    made = {slot for _, _, outputs in bound for slot in outputs if slot >= 0} - set(results)
    last = {
        slot: at
        for at, (_, inputs, outputs) in enumerate(bound)
        for slot in (*inputs, *outputs)
        if slot in made
    }
    calls = [
        (function, inputs, outputs, tuple(s for s, end in last.items() if end == at))
        for at, (function, inputs, outputs) in enumerate(bound)
    ]
    return calls, slots, results


def _compiled(
    calls: Sequence[_Bound], static: list[Any], results: tuple[int, ...]
) -> Callable[[], tuple[Any, ...]]:
    """The calls as one function without arguments, which does as little besides them as it can: what it does is
    measured as the host's time."""
    if len(calls) == 1:
        function, inputs, outputs, _ = calls[0]
        operands = tuple(None if i < 0 else static[i] for i in inputs)
        if results == outputs and len(outputs) == 1:

            def single() -> tuple[Any, ...]:
                result = function(*operands)
                return (result[0],) if isinstance(result, tuple | list) else (result,)

            return single

    def several() -> tuple[Any, ...]:
        slots = static.copy()
        for function, inputs, outputs, dead in calls:
            result = function(*[None if i < 0 else slots[i] for i in inputs])
            if len(outputs) == 1 and not isinstance(result, tuple | list):
                slots[outputs[0]] = result
            else:
                for slot, tensor in zip(outputs, result, strict=False):
                    if slot >= 0:
                        slots[slot] = tensor
            result = tensor = None
            for slot in dead:
                slots[slot] = None
        return tuple(slots[i] for i in results)

    return several


def as_tensor(value: np.ndarray, device: Any) -> Any:
    """``value`` as a tensor on ``device``; bfloat16 by its bits, which numpy has no type for."""
    import torch

    if value.dtype.name == "bfloat16":
        bits = torch.from_numpy(np.ascontiguousarray(value).view(np.int16)).view(torch.bfloat16)
        return bits.reshape(value.shape).to(device)
    tensor = torch.from_numpy(np.require(value, requirements=["C", "W"]))
    return tensor.reshape(value.shape).to(device)


def _values(
    fragment: Fragment, program: Program, make: Callable[[FragmentTensor], np.ndarray]
) -> dict[str, np.ndarray]:
    """Values of the tensors that the calls read and no call makes."""
    needed = {name for step in program.steps for name in step.inputs} | set(program.outputs)
    wanted = [t for t in fragment.tensors if t.name in needed]
    for tensor in wanted:
        torch_dtype(tensor.dtype)  # refuses element types that eager mode has no kernels for
    found = {t.name: make(t) for t in wanted}
    if program.folded:
        found |= _folded(fragment, sorted(program.folded), make)
    return found


def _folded(
    fragment: Fragment, names: Sequence[str], make: Callable[[FragmentTensor], np.ndarray]
) -> dict[str, np.ndarray]:
    """Values that depend on weights alone, by ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    wanted, nodes = set(names), list[FragmentNode]()
    for node in reversed(fragment.nodes):
        if not wanted.isdisjoint(node.outputs):
            nodes.insert(0, node)
            wanted.update(node.inputs)
    tensors = tuple(t for t in fragment.tensors if t.name in wanted)
    part = replace(fragment, nodes=tuple(nodes), tensors=tensors, outputs=tuple(names), pattern="")
    results = ReferenceEvaluator(fragment_model(part, make)).run(list(names), {})
    return dict(zip(names, (np.asarray(r) for r in results), strict=True))
