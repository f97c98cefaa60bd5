"""The torch executor: a fragment as the ATen calls that eager mode makes for it."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from typing import Any

from gkestimator.core.errors import GkestimatorError, UsageError
from gkestimator.core.extras import install_extra
from gkestimator.profiling.executors import MemoryReader
from gkestimator.profiling.executors.base import EntryUnsupportedError, ExecutionError
from gkestimator.profiling.executors.data import entry_values
from gkestimator.profiling.executors.device_memory import nothing_told
from gkestimator.profiling.executors.faults import judged
from gkestimator.profiling.executors.libraries import cuda_versions
from gkestimator.profiling.executors.torch_binding import HostValues, ProgramRun, bind, compiled, host_values
from gkestimator.profiling.executors.torch_calls.program import CallProgram, program_of
from gkestimator.profiling.executors.torch_profile import profiled
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.records import HostKernels, MemoryUse
from gkestimator.profiling.type_names import TextByName

_TENSOR_FLOAT_SINCE = (8, 0)  # compute capability with TF32 and bfloat16 units
_RAISED = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    MemoryError,
)
"""By torch, and by builders that a stranger's attributes mislead; AttributeError is an older torch's."""


class TorchExecutor:
    """Run entries on ``cpu`` or ``cuda:N`` through torch's eager mode.

    Process-wide settings (TF32, cuDNN's autotuning, inference mode) are as eager inference has them while an entry is
    prepared, and as they were before once the last is closed. Raises UsageError where torch or the device is missing.
    """

    name = "torch"

    def __init__(self, device: str = "cpu", *, held_bytes: MemoryReader = nothing_told) -> None:
        # Else torch's profiler writes two lines a profile to stderr.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        try:
            import torch
        except ImportError as e:
            raise UsageError(
                f"executor torch needs torch: {install_extra('profile')}, or a torch for this machine"
            ) from e
        kind, _, number = device.partition(":")
        if device != "cpu" and not (kind == "cuda" and number.isascii() and number.isdigit()):
            raise UsageError(f"device {device!r}: expected cpu or cuda:N")
        if kind == "cuda":
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if int(number) >= count:
                raise UsageError(f"device {device}: torch {torch.__version__} sees {count} CUDA device(s)")
        self.device = torch.device(device)
        self.held_bytes = held_bytes
        self._settings = _Settings()

    @property
    def on_gpu(self) -> bool:
        """Return True where the device is a GPU."""
        return bool(self.device.type == "cuda")

    def versions(self) -> TextByName:
        """Return the versions of torch and, on a GPU, of the CUDA libraries that it loaded."""
        import torch

        versions = {"torch": str(torch.__version__)}
        if self.on_gpu:
            cudnn: Any = torch.backends.cudnn
            cudnn.version()  # loads what would be loaded with the first convolution
            versions |= {"cuda": str(torch.version.cuda), **cuda_versions()}
        return versions

    def prepare(self, entry: PlanEntry, seed: int) -> TorchPrepared:
        """Put tensors on the device, lay weights out as torch's modules hold them, try the calls once. Raises
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
                values = host_values(entry.fragment, program, entry_values(entry, seed))
                return TorchPrepared(
                    self,
                    self._settings,
                    program,
                    values,
                    tf32=entry.dtype == "tf32",
                    whole=entry.fragment.is_model,
                )
        except BaseException:
            self._settings.close()
            raise

    def _require_precision(self, dtype: str) -> None:
        if not self.on_gpu or dtype not in ("tf32", "bf16"):
            return
        import torch

        capability = torch.cuda.get_device_capability(self.device)
        if capability < _TENSOR_FLOAT_SINCE:
            own = "{}.{}".format(*capability)
            raise EntryUnsupportedError(
                f"torch executor: {dtype} needs compute capability 8.0, {self.device} has {own}"
            )

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turn what torch raises into one line."""
        try:
            yield
        except _RAISED as e:
            raise judged(e) from e


class TorchPrepared:
    """Hold a fragment's calls with their tensors. ``whole``: it is a whole model, whose memory is told."""

    cpu_nodes: int | None = None

    def __init__(
        self,
        executor: TorchExecutor,
        settings: _Settings,
        program: CallProgram,
        values: HostValues,
        *,
        tf32: bool,
        whole: bool,
    ) -> None:
        self._executor = executor
        self._settings = settings
        self._tf32 = tf32
        self._open = True
        self._tells_memory = whole and executor.on_gpu
        if self._tells_memory:
            _forget_earlier()
        calls, static, results = bind(program, values, executor.device)
        self._call: ProgramRun | None = compiled(calls, static, results)
        if self._tells_memory:
            _begin_account(executor.device)
        self.output_shapes = tuple(tuple(t.shape) for t in self.outputs())
        self.synchronise()

    def outputs(self) -> tuple[Any, ...]:
        """Run once and return the fragment's results as tensors on the device."""
        self._settings.use(tf32=self._tf32)
        if self._call is None:
            raise ExecutionError("torch executor: the entry is closed")
        try:
            return self._call()
        except _RAISED as e:
            raise judged(e) from e

    def run(self) -> None:
        """Make one call, as eager mode makes it; on a GPU it returns before the device is done."""
        self.outputs()

    def synchronise(self) -> None:
        """Wait until the device is done."""
        if self._executor.on_gpu:
            import torch

            with self._executor.translated():
                torch.cuda.synchronize(self._executor.device)

    def workspace_bytes(self) -> int | None:
        """Return the peak memory of a call beyond its inputs, weights and outputs, by torch's allocator; None
        on the CPU."""
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

    def memory(self) -> MemoryUse | None:
        """Return the device memory at its peak since the tensors were there, every call counted and the first
        one too: what torch reserved and allocated, and what the process held, context and libraries' handles
        included. None on the CPU and for what is no whole model.

        What an earlier entry of this process left in the allocator is given back before the tensors are made, cuBLAS's
        workspace too where this torch can. In the context stay the kernels and handles that it made CUDA load: these
        ``device_bytes`` counts although a process of the model's own might not have them.
        """
        if not self._tells_memory:
            return None
        import torch

        device = self._executor.device
        with self._executor.translated():
            self.synchronise()
            reserved = int(torch.cuda.max_memory_reserved(device))
            allocated = int(torch.cuda.max_memory_allocated(device))
            # The allocator may have given memory back since its peak: what lies beside it is added to the peak.
            held = self._executor.held_bytes()
            now = int(torch.cuda.memory_reserved(device))
        return MemoryUse(
            reserved_bytes=reserved,
            allocated_bytes=allocated,
            device_bytes=None if held is None or held < now else held - now + reserved,
        )

    def host_kernels(self, repeats: int) -> HostKernels | None:
        """Return, on the CPU, the pieces of a call by torch's profiler; None on a GPU, and while another
        profiler of torch runs (the second would end the first). Raises ExecutionError where the repeats
        differ from each other."""
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


def _forget_earlier() -> None:
    """Give back what earlier entries of this process left in the allocator."""
    import torch

    gc.collect()
    clear: Any = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)  # not in every version
    if clear is not None:
        clear()
    torch.cuda.empty_cache()


def _begin_account(device: Any) -> None:
    """Count from the tensors that are there now on: what loading needed besides is not the model's."""
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)


class _Settings:
    """Keep torch's process-wide switches, as eager inference has them while anything is open."""

    def __init__(self) -> None:
        self._count = 0
        self._before: tuple[bool, bool, bool, bool] | None = None
        self._mode: Any = None
        self._tf32: bool | None = None

    def open(self, *, tf32: bool) -> None:
        """Count one more entry that is prepared."""
        import torch

        if self._count == 0:
            cudnn = torch.backends.cudnn
            self._before = (
                torch.backends.cuda.matmul.allow_tf32,
                cudnn.allow_tf32,
                cudnn.benchmark,
                cudnn.deterministic,
            )
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
        """Count one entry less; everything as before after the last."""
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
