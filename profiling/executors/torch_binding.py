"""A program's calls with their tensors: values made, laid out, moved to the device, and one function over all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gkestimator.core.fragments import Fragment, FragmentNode, FragmentTensor
from gkestimator.onnx_io.fragment_models import fragment_model
from gkestimator.profiling.executors.torch_calls import Late
from gkestimator.profiling.executors.torch_calls.program import CallProgram
from gkestimator.profiling.executors.torch_calls.registry import torch_dtype

Bound = tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""A call over numbered slots: function, inputs (-1: None), outputs (-1: not asked for), slots dead afterwards."""
_OWN_SEGMENT_BYTES = 10 * 2**20
"""From this size on torch's CUDA allocator asks the driver for a tensor's memory alone (kMinLargeAlloc), so that all of
it can be given back."""


def bind(
    program: CallProgram, values: MutableMapping[str, np.ndarray], device: Any
) -> tuple[list[Bound], list[Any], tuple[int, ...]]:
    """The calls over numbered slots, the slots with the tensors that exist before the first call, and the slots of the
    results. ``values`` is emptied on the way, so that no more of the host's memory is taken than must be."""
    host = _HostTensors(program, values)
    slots: list[Any] = []
    number: dict[object, int] = {}

    def place(key: object, tensor: Any = None) -> int:
        number[key] = len(slots)
        slots.append(tensor)
        return number[key]

    bound = []
    for step in program.steps:
        inputs = []
        for position, name in enumerate(step.inputs):
            change = step.call.prepared.get(position)
            key = name if change is None else (name, change)
            if not name:
                inputs.append(-1)
                continue
            tensor = host.take(name)
            if key not in number:
                if tensor is None:
                    raise LookupError(f"{step.call.op.op_type}: nothing makes its input {name}")
                place(key, _laid_out(tensor, change, device))
            inputs.append(number[key])
            del tensor
        function = step.run
        if isinstance(function, Late):
            made = function.make([None if i < 0 else slots[i] for i in inputs], device)
            inputs = [-1 if position in function.keeps else i for position, i in enumerate(inputs)]
            function = made
        bound.append((function, tuple(inputs), tuple(place(n) if n else -1 for n in step.outputs)))
    for name in program.outputs:
        if name not in number:  # an input handed through
            place(name, _laid_out(host.take(name), None, device))
    results = tuple(number[name] for name in program.outputs)
    _forget_unread(slots, bound, results)
    return _with_deaths(bound, results), slots, results


class _HostTensors:
    """The values as tensors of the host, each dropped when it is taken for the last time."""

    def __init__(self, program: CallProgram, values: MutableMapping[str, np.ndarray]) -> None:
        self._left = Counter(name for step in program.steps for name in step.inputs)
        self._left.update(program.outputs)
        self._values = values
        self._tensors: dict[str, Any] = {}

    def take(self, name: str) -> Any:
        """The tensor, None for one that a call makes."""
        if name in self._values:
            self._tensors[name] = as_tensor(self._values.pop(name), "cpu")
        self._left[name] -= 1
        if self._left[name]:
            return self._tensors.get(name)
        return self._tensors.pop(name, None)


def _laid_out(tensor: Any, change: Callable[[Any], Any] | None, device: Any) -> Any:
    """``tensor`` changed, on ``device``, with no trace of the original in the allocator: a small one is changed on the
    host, for beside it on the device it would leave a hole among the others; a large one there, where it is quicker,
    and its memory is given back."""
    if change is None:
        return tensor.to(device)
    if str(device) == "cpu" or tensor.nbytes < _OWN_SEGMENT_BYTES:
        return change(tensor).to(device)
    import torch

    made = change(tensor.to(device))
    torch.cuda.empty_cache()
    return made


def _forget_unread(slots: list[Any], bound: Sequence[tuple[Any, ...]], results: Sequence[int]) -> None:
    """Tensors that no call is given (weights that a module packed into its own) go."""
    read = {slot for _, inputs, _ in bound for slot in inputs} | set(results)
    for slot in range(len(slots)):
        if slot not in read:
            slots[slot] = None


def _with_deaths(
    bound: Sequence[tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]], results: Sequence[int]
) -> list[Bound]:
    """The calls, each with the slots that nobody reads after it: freed there, as eager mode frees a tensor."""
    made = {slot for _, _, outputs in bound for slot in outputs if slot >= 0} - set(results)
    last = {
        slot: at
        for at, (_, inputs, outputs) in enumerate(bound)
        for slot in (*inputs, *outputs)
        if slot in made
    }
    dying: list[list[int]] = [[] for _ in bound]
    for slot, at in last.items():
        dying[at].append(slot)
    return [(*call, tuple(dead)) for call, dead in zip(bound, dying, strict=True)]


def compiled(
    calls: Sequence[Bound], static: list[Any], results: tuple[int, ...]
) -> Callable[[], tuple[Any, ...]]:
    """The calls as one function without arguments, which does as little besides them as it can: what it does is
    measured as the host's time."""
    if len(calls) == 1:
        function, inputs, outputs, _ = calls[0]
        operands = tuple(None if i < 0 else static[i] for i in inputs)
        if results == outputs and len(outputs) == 1:

            def single() -> tuple[Any, ...]:
                result = function(*operands)
                if isinstance(result, tuple | list):
                    return (result[0],)
                return (result,)

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


def host_values(
    fragment: Fragment, program: CallProgram, make: Callable[[FragmentTensor], np.ndarray]
) -> dict[str, np.ndarray]:
    """Values of the tensors that the calls read and no call makes."""
    needed = {name for step in program.steps for name in step.inputs} | set(program.outputs)
    wanted = [t for t in fragment.tensors if t.name in needed]
    for tensor in wanted:
        torch_dtype(tensor.dtype)  # refuses element types that eager mode has no kernels for
    values = {t.name: make(t) for t in wanted}
    if program.folded:
        values |= _folded(fragment, sorted(program.folded), make)
    return values


def _folded(
    fragment: Fragment, names: Sequence[str], make: Callable[[FragmentTensor], np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Values that depend on weights alone, by ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    wanted = set(names)
    nodes = list[FragmentNode]()
    for node in reversed(fragment.nodes):
        if not wanted.isdisjoint(node.outputs):
            nodes.append(node)
            wanted.update(node.inputs)
    tensors = tuple(t for t in fragment.tensors if t.name in wanted)
    part = replace(fragment, nodes=tuple(reversed(nodes)), tensors=tensors, outputs=tuple(names), pattern="")
    results = ReferenceEvaluator(fragment_model(part, make)).run(list(names), {})
    return dict(zip(names, (np.asarray(r) for r in results), strict=True))
