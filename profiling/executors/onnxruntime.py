"""ONNX Runtime: one session per entry, inputs and outputs bound to memory of the device, options that repeat.

Options and their reasons are in :func:`session_options`, :func:`provider_options` and :func:`run_options`, as plain
dictionaries, so that they can be read and tested without a GPU.
"""

from __future__ import annotations

import contextlib
import gc
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gkestimator.core.dtypes import DType
from gkestimator.core.errors import GkestimatorError, UsageError, one_line
from gkestimator.core.extras import install_extra
from gkestimator.core.fragments import Fragment
from gkestimator.core.leftovers import scratch_folder
from gkestimator.core.records import frozen
from gkestimator.onnx_io.fragment_models import element_type, fragment_model
from gkestimator.profiling.executors import MemoryReader
from gkestimator.profiling.executors.base import DeviceLostError, EntryUnsupportedError, ExecutionError
from gkestimator.profiling.executors.data import entry_inputs, entry_values, numpy_dtype
from gkestimator.profiling.executors.device_memory import nothing_told
from gkestimator.profiling.executors.faults import judged
from gkestimator.profiling.executors.libraries import cuda_versions
from gkestimator.profiling.executors.ort_profile import read_profile
from gkestimator.profiling.plan import PlanEntry
from gkestimator.profiling.records import HostKernels, MemoryUse
from gkestimator.profiling.type_names import Ints, TextByName, Texts

_CUDA = "CUDAExecutionProvider"
_CPU = "CPUExecutionProvider"
_PLAIN = re.compile(r"tensor\(([a-z0-9]+)\)\Z")
_LOG_ERRORS = 3
_ASSIGNMENT = "session.record_ep_graph_assignment_info"


def session_options(device: str, *, whole: bool = False) -> Texts:
    """Return the configuration entries of a session. On a GPU an operator that the CUDA provider does not
    take is an error: a silent fallback would be measured as a GPU kernel. Of a ``whole`` model the runtime
    puts shape arithmetic on the CPU on purpose; which nodes it put there it is asked to remember. Threads do
    not spin, so that a neighbour on the CPU is not slowed."""
    entries = {"session.intra_op.allow_spinning": "0", "session.inter_op.allow_spinning": "0"}
    if device != "cpu":
        entries[_ASSIGNMENT if whole else "session.disable_cpu_ep_fallback"] = "1"
    return entries


def provider_options(device: str, dtype: str) -> tuple[str, Texts]:
    """Return the execution provider and its options. HEURISTIC takes cuDNN's first choice instead of timing
    all algorithms (EXHAUSTIVE, the default, answers differently from run to run); the arena grows by what is
    asked for, so that an entry's memory is its own; TF32 only where the entry's arithmetic says so (it is on
    by default)."""
    if device == "cpu":
        return _CPU, {}
    return _CUDA, {
        "device_id": device.partition(":")[2],
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "1",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "1",
        "enable_cuda_graph": "0",
        "use_tf32": "1" if dtype == "tf32" else "0",
    }


def run_options() -> Texts:
    """Return the configuration entries of a call: it returns when the host has launched everything, as it
    does in a pipeline."""
    return {"disable_synchronize_execution_providers": "1"}


def runnable_fragment(fragment: Fragment) -> Fragment:
    """Return ``fragment`` with at least one graph input: where only weights go in, they become inputs, or the
    runtime would calculate the operator while it loads the model. Raises EntryUnsupportedError where nothing
    but constants go in, and for a whole model without inputs: its weights are weights."""
    if any(t.role == "input" for t in fragment.tensors):
        return fragment
    if fragment.is_model or not any(t.role == "weight" for t in fragment.tensors):
        raise EntryUnsupportedError(
            f"{fragment.op_type}: only constants go in, so the runtime calculates it while it loads the model"
        )
    tensors = []
    for tensor in fragment.tensors:
        role = "input" if tensor.role == "weight" else tensor.role
        tensors.append(replace(tensor, role=role))
    return replace(fragment, tensors=tuple(tensors))


class OnnxruntimeExecutor:
    """See :class:`gkestimator.profiling.executors.base.Executor`."""

    name = "onnxruntime"

    def __init__(self, device: str, *, held_bytes: MemoryReader = nothing_told) -> None:
        """Raises UsageError without onnxruntime or its CUDA provider, DeviceLostError where CUDA does not start."""
        try:
            import onnxruntime
        except ImportError as e:
            raise UsageError(
                f"executor onnxruntime needs onnxruntime: {install_extra('profile')}, or onnxruntime (CPU alone)"
            ) from e
        self._ort: Any = onnxruntime
        self._device = device
        self._held_bytes = held_bytes
        onnxruntime.set_default_logger_severity(_LOG_ERRORS)
        if device != "cpu":
            if _CUDA not in onnxruntime.get_available_providers():
                raise UsageError(
                    f"device {device}: onnxruntime {onnxruntime.__version__} has no CUDA provider; install "
                    "onnxruntime-gpu in place of onnxruntime"
                )
            missing = _preload(onnxruntime)
            try:
                self._probe()
            except DeviceLostError as e:
                if not missing:
                    raise
                raise UsageError(
                    f"device {device}: onnxruntime's CUDA provider does not start: {missing}; install CUDA and cuDNN, "
                    "or onnxruntime-gpu[cuda,cudnn]"
                ) from e

    def versions(self) -> TextByName:
        """See :class:`Executor`."""
        versions = {"onnxruntime": str(self._ort.__version__)}
        if self._device != "cpu":
            versions |= cuda_versions()
        return versions

    def prepare(self, entry: PlanEntry, seed: int) -> _Session:
        """See :class:`Executor`. The first call is made here: it allocates, and tells shapes that depend on data."""
        prepared = _Session(self._ort, self._device, entry, seed, self._held_bytes)
        try:
            prepared.open()
        except GkestimatorError:
            # What was taken of the device's memory is needed by the next entry.
            prepared.close()
            raise
        except Exception as e:  # onnxruntime's errors have no public base class
            prepared.close()
            raise judged(e) from e
        return prepared

    def _probe(self) -> None:
        """Make one addition on the device: it tells a missing driver or cuDNN from an operator that the
        provider lacks."""
        import onnx

        helper = onnx.helper
        floats = (onnx.TensorProto.FLOAT, [8])
        graph = helper.make_graph(
            [helper.make_node("Add", ["x", "x"], ["y"])],
            "probe",
            [helper.make_tensor_value_info("x", *floats)],
            [helper.make_tensor_value_info("y", *floats)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        try:
            session = self._ort.InferenceSession(
                model.SerializeToString(),
                _options(self._ort, self._device),
                providers=[provider_options(self._device, "fp32")],
                enable_fallback=0,
            )
            session.run(None, {"x": np.ones(8, dtype=np.float32)})
            used = session.get_providers()
        except Exception as e:  # onnxruntime's errors have no public base class
            raise DeviceLostError(f"device {self._device}: onnxruntime cannot use it: {e}") from e
        if used[0] != _CUDA:
            raise DeviceLostError(f"device {self._device}: onnxruntime fell back to {used[0]}")


def _preload(ort: Any) -> str:
    """Load CUDA and cuDNN from their PyPI packages, where these are installed; what onnxruntime prints about libraries
    that it did not find, in one line. The system's own may still serve."""
    if not hasattr(ort, "preload_dlls"):
        return ""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        ort.preload_dlls()
    failed = [line for line in printed.getvalue().splitlines() if line.startswith("Failed to load")]
    if failed:
        return one_line(failed[0], limit=200)
    return ""


def _options(ort: Any, device: str, *, whole: bool = False) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _LOG_ERRORS
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    for key, value in session_options(device, whole=whole).items():
        options.add_session_config_entry(key, value)
    return options


class _Session:
    """See :class:`gkestimator.profiling.executors.base.Prepared`."""

    def __init__(self, ort: Any, device: str, entry: PlanEntry, seed: int, held_bytes: MemoryReader) -> None:
        self.output_shapes: tuple[Ints, ...] = ()
        self.cpu_nodes: int | None = None
        self._held_bytes = held_bytes
        self._ort = ort
        self._device = device
        self._kind, _, number = device.partition(":")
        self._number = int(number or 0)
        fragment = runnable_fragment(entry.fragment)
        self._entry = replace(entry, fragment=fragment)
        self._seed = seed
        self._inputs: dict[str, _Bound] = {}
        self._weights: dict[str, Any] = {}
        self._outputs: dict[str, _Bound | None] = {}
        self._session: Any = None
        self._binding: Any = None
        self._call: Callable[[], None] = _closed
        self._run_options = ort.RunOptions()
        for key, value in run_options().items():
            self._run_options.add_run_config_entry(key, value)

    def open(self) -> None:
        weights = entry_values(self._entry, self._seed)
        for tensor in self._entry.fragment.tensors:
            if tensor.role == "weight":
                self._weights[tensor.name] = self._host_value(weights(tensor), tensor.dtype)
        self._session = self._make_session(None)
        if self._on_whole_gpu:
            self.cpu_nodes = nodes_on_cpu(self._session)
        dtypes = {t.name: t.dtype for t in self._entry.fragment.tensors}
        for name, data in entry_inputs(self._entry, self._seed).items():
            self._inputs[name] = self._input(data, dtypes[name])
        for output in self._session.get_outputs():
            self._outputs[output.name] = self._output(output)
        for name, room in (self._inputs | self._outputs).items():
            if room is not None and 0 in room.shape:
                raise EntryUnsupportedError(
                    f"tensor {name} of shape {room.shape} has no elements: nothing runs"
                )
        self._binding = self._bound(self._session)
        self._call = _bare_call(self._session, self._binding, self._run_options)
        self.run()
        self.synchronise()
        shapes = []
        for value in self._binding.get_outputs():
            shapes.append(tuple(value.shape()) if value.is_tensor() else ())
        self.output_shapes = tuple(shapes)

    def run(self) -> None:
        self._call()

    def synchronise(self) -> None:
        self._binding.synchronize_outputs()

    def workspace_bytes(self) -> int | None:
        """Return None: the arena's statistics of a release wheel count kept memory and the weights' packing with it."""
        return None

    def memory(self) -> MemoryUse | None:
        """Return what the process holds of the GPU after the calls: the arena keeps what it took, so that it
        is the peak. How much of it is the arena's the Python package does not tell. The context keeps what
        earlier entries of this process made CUDA load."""
        if not self._on_whole_gpu:
            return None
        self.synchronise()
        return MemoryUse(device_bytes=self._held_bytes())

    @property
    def _on_whole_gpu(self) -> bool:
        return self._device != "cpu" and self._entry.fragment.is_model

    def host_kernels(self, repeats: int) -> HostKernels | None:
        if self._device != "cpu":
            return None
        with scratch_folder("gkest-ort") as folder:
            try:
                session = self._make_session(folder / "profile")
                binding = self._bound(session)
                for _ in range(repeats + 1):  # the first call allocates
                    session.run_with_iobinding(binding, self._run_options)
                written = Path(session.end_profiling())
            except Exception as e:  # onnxruntime's errors have no public base class
                raise judged(e) from e
            return read_profile(written, repeats)

    def close(self) -> None:
        self._binding = self._session = None
        self._call = _closed
        self._inputs = {}
        self._outputs = {}
        self._weights = {}
        gc.collect()  # frees the arena now, before the next entry asks for memory

    def _make_session(self, profile: Path | None) -> Any:
        options = _options(self._ort, self._device, whole=self._entry.fragment.is_model)
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        if self._weights:
            # Given as values, not inside the model: protobuf ends at 2 GB, and nothing is copied.
            options.add_external_initializers(list(self._weights), list(self._weights.values()))
        return self._ort.InferenceSession(
            fragment_model(self._entry.fragment).SerializeToString(),
            options,
            providers=[provider_options(self._device, self._entry.dtype)],
            enable_fallback=0,
        )

    def _host_value(self, data: np.ndarray, dtype: DType) -> Any:
        return self._ort.OrtValue.ortvalue_from_numpy_with_onnx_type(_bits(data), element_type(dtype))

    def _input(self, data: np.ndarray, dtype: DType) -> _Bound:
        """Return ``data`` in memory of the device."""
        if self._kind == "cpu":
            value = self._host_value(data, dtype)
        else:
            value = self._ort.OrtValue.ortvalue_from_numpy(_bits(data), self._kind, self._number)
        return _Bound(element_type=element_type(dtype), shape=data.shape, value=value)

    def _output(self, output: Any) -> _Bound | None:
        """Return memory for an output; None for one whose size depends on data, or a sequence: the runtime
        allocates that at every call, as it would for anyone."""
        element = _PLAIN.match(output.type)
        if element is None:
            return None
        for size in output.shape:
            if not isinstance(size, int) or size < 0:
                return None
        dtype = DType(element.group(1))
        shape = tuple(output.shape)
        value = self._ort.OrtValue.ortvalue_from_shape_and_type(
            list(shape), _plain(numpy_dtype(dtype)), self._kind, self._number
        )
        return _Bound(element_type=element_type(dtype), shape=shape, value=value)

    def _bound(self, session: Any) -> Any:
        binding = session.io_binding()
        at = (self._kind, self._number)
        for name, tensor in self._inputs.items():
            binding.bind_input(name, *at, tensor.element_type, tensor.shape, tensor.value.data_ptr())
        for name, room in self._outputs.items():
            if room is None:
                binding.bind_output(name, *at)
            else:
                binding.bind_output(name, *at, room.element_type, room.shape, room.value.data_ptr())
        binding.synchronize_inputs()
        return binding


def _bare_call(session: Any, binding: Any, options: Any) -> Callable[[], None]:
    """Return one call of the session. From 1.31 on the Python wrapper looks options up at every call, 30 us
    that no other language pays and that would hide what the runtime itself needs; so what lies below it is
    called where there is one.
    """
    inner = getattr(getattr(session, "_sess", None), "run_with_iobinding", None)
    bound = getattr(binding, "_iobinding", None)
    if inner is None or bound is None:
        return lambda: session.run_with_iobinding(binding, options)
    return lambda: inner(bound, options)


def nodes_on_cpu(session: Any) -> int | None:
    """Return the nodes that the runtime gave to the CPU, before its last fusions; None where it does not tell
    (older versions)."""
    try:
        parts = session.get_provider_graph_assignment_info()
    except Exception:  # noqa: BLE001 - no such method, or not asked to remember (of no public class): not told
        return None
    return sum(len(part.get_nodes()) for part in parts if part.ep_name == _CPU)


def _closed() -> None:
    raise ExecutionError("the entry is closed")


@frozen
class _Bound:
    """Hold a tensor in memory of the device. Bindings hold its address only: ``value`` keeps it alive."""

    element_type: int
    shape: Ints
    value: Any


def _plain(dtype: np.dtype) -> np.dtype:
    """Return a type of numpy's own as wide as ``dtype``: onnxruntime knows no other, so bfloat16 travels as
    its bits."""
    if dtype.isbuiltin == 1:
        return dtype
    return np.dtype(f"uint{8 * dtype.itemsize}")


def _bits(data: np.ndarray) -> np.ndarray:
    return data.view(_plain(data.dtype))
