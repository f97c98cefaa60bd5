"""A program's calls with their tensors: values made, laid out, moved to the device, and one function over all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from gkestimator.core.fragments import Fragment, FragmentNode
from gkestimator.core.kernels import Arrays
from gkestimator.onnx_io.fragment_models import Weights, fragment_model
from gkestimator.profiling.executors.torch_calls import Late
from gkestimator.profiling.executors.torch_calls.program import CallProgram, CallStep
from gkestimator.profiling.executors.torch_calls.registry import Change, torch_dtype
from gkestimator.profiling.type_names import Ints

HostValues: TypeAlias = "MutableMapping[str, np.ndarray]"

Slots = Ints
ProgramRun = Callable[[], tuple[Any, ...]]
"""All calls of a program at once; gives its results."""
Bound = tuple[Callable[..., Any], Slots, Slots, Slots]
"""A call over numbered slots: function, inputs (-1: None), outputs (-1: not asked for), slots dead afterwards. A tuple,
for it is taken apart at every call that is measured."""
_OWN_SEGMENT_BYTES = 10 * 2**20
"""From this size on torch's CUDA allocator asks the driver for a tensor's memory alone (kMinLargeAlloc), so that all of
it can be given back."""


def bind(program: CallProgram, values: HostValues, device: Any) -> tuple[list[Bound], list[Any], Slots]:
    """Return the calls over numbered slots, the slots with the tensors that exist before the first call, and the slots
    of the results. ``values`` is emptied on the way, so that no more of the host's memory is taken than must be."""
    binder = _SlotBinder(program, values, device)
    for step in program.steps:
        binder.add(step)
    for name in program.outputs:
        binder.hand_through(name)
    results = tuple(binder.number[name] for name in program.outputs)
    _forget_unread(binder, results)
    return _with_deaths(binder, results), binder.slots, results


class _SlotBinder:
    """Number the tensors of a program: one slot for each, and one for each way in which a static one is laid out."""

    def __init__(self, program: CallProgram, values: HostValues, device: Any) -> None:
        self._host = _HostTensors(program, values)
        self._device = device
        self.slots: list[Any] = []
        self.number: dict[object, int] = {}
        self.functions: list[Callable[..., Any]] = []
        self.reads: list[Slots] = []
        self.writes: list[Slots] = []

    def add(self, step: CallStep) -> None:
        """Bind one call."""
        reads = [self._read(step, position, name) for position, name in enumerate(step.inputs)]
        function = step.run
        if isinstance(function, Late):
            late = function
            operands = [None if slot < 0 else self.slots[slot] for slot in reads]
            function = late.make(operands, self._device)
            for position in late.keeps:
                if position < len(reads):
                    reads[position] = -1
        self.functions.append(function)
        self.reads.append(tuple(reads))
        writes = [self._place(name) if name else -1 for name in step.outputs]
        self.writes.append(tuple(writes))

    def hand_through(self, name: str) -> None:
        """Give a result that no call makes, an input, a slot."""
        if name not in self.number:
            self._place(name, _laid_out(self._host.take(name), None, self._device))

    def _read(self, step: CallStep, position: int, name: str) -> int:
        if not name:
            return -1
        change = step.call.prepared.get(position)
        key = name if change is None else (name, change)
        tensor = self._host.take(name)
        if key not in self.number:
            if tensor is None:
                raise LookupError(f"{step.call.op.op_type}: nothing makes its input {name}")
            self._place(key, _laid_out(tensor, change, self._device))
        return self.number[key]

    def _place(self, key: object, tensor: Any = None) -> int:
        self.number[key] = len(self.slots)
        self.slots.append(tensor)
        return self.number[key]


class _HostTensors:
    """Hold the values as tensors of the host, each dropped when it is taken for the last time."""

    def __init__(self, program: CallProgram, values: HostValues) -> None:
        self._left = Counter(name for step in program.steps for name in step.inputs)
        self._left.update(program.outputs)
        self._values = values
        self._tensors: dict[str, Any] = {}

    def take(self, name: str) -> Any:
        """Return the tensor, None for one that a call makes."""
        if name in self._values:
            self._tensors[name] = as_tensor(self._values.pop(name), "cpu")
        self._left[name] -= 1
        if self._left[name]:
            return self._tensors.get(name)
        return self._tensors.pop(name, None)


def _laid_out(tensor: Any, change: Change | None, device: Any) -> Any:
    """Return ``tensor`` changed, on ``device``, with no trace of the original in the allocator.

    A small one is changed on the host, for beside it on the device it would leave a hole among the others; a large one
    there, where it is quicker, and its memory is given back.
    """
    if change is None:
        return tensor.to(device)
    if str(device) == "cpu" or tensor.nbytes < _OWN_SEGMENT_BYTES:
        return change(tensor).to(device)
    import torch

    made = change(tensor.to(device))
    torch.cuda.empty_cache()
    return made


def _forget_unread(binder: _SlotBinder, results: Slots) -> None:
    """Drop tensors that no call reads: weights that a module packed into its own."""
    read = set(results).union(*binder.reads)
    for slot in range(len(binder.slots)):
        if slot not in read:
            binder.slots[slot] = None


def _with_deaths(binder: _SlotBinder, results: Slots) -> list[Bound]:
    """Return the calls, each with the slots that nobody reads after it: freed there, as eager mode frees a tensor."""
    mortal = set[int]().union(*binder.writes) - {-1, *results}
    last = {}
    for at, (reads, writes) in enumerate(zip(binder.reads, binder.writes, strict=True)):
        for slot in mortal.intersection(reads + writes):
            last[slot] = at
    dying: list[list[int]] = [[] for _ in binder.functions]
    for slot, at in last.items():
        dying[at].append(slot)
    dead = map(tuple, dying)
    return list(zip(binder.functions, binder.reads, binder.writes, dead, strict=True))


def compiled(calls: Sequence[Bound], static: list[Any], results: Slots) -> ProgramRun:
    """Return the calls as one function without arguments, which does as little besides them as it can: what it does is
    measured as the host's time."""
    # Most entries are one call: no loop over slots is measured with it.
    if len(calls) == 1:
        function, inputs, outputs, _ = calls[0]
        if results == outputs and len(outputs) == 1:
            return _single(function, [None if slot < 0 else static[slot] for slot in inputs])
    return _several(calls, static, results)


def _single(function: Callable[..., Any], operands: Sequence[Any]) -> ProgramRun:
    def single() -> tuple[Any, ...]:
        result = function(*operands)
        if isinstance(result, tuple | list):
            return (result[0],)
        return (result,)

    return single


def _several(calls: Sequence[Bound], static: list[Any], results: Slots) -> ProgramRun:
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
            # These names would keep a tensor alive that dies here.
            result = tensor = None
            for slot in dead:
                slots[slot] = None
        return tuple(slots[i] for i in results)

    return several


def as_tensor(value: np.ndarray, device: Any) -> Any:
    """Return ``value`` as a tensor on ``device``; bfloat16 by its bits, which numpy has no type for."""
    import torch

    if value.dtype.name == "bfloat16":
        bits = torch.from_numpy(np.ascontiguousarray(value).view(np.int16)).view(torch.bfloat16)
        return bits.reshape(value.shape).to(device)
    tensor = torch.from_numpy(np.require(value, requirements=["C", "W"]))
    return tensor.reshape(value.shape).to(device)


def host_values(fragment: Fragment, program: CallProgram, make: Weights) -> dict[str, np.ndarray]:
    """Return the values of the tensors that the calls read and no call makes."""
    read = set(program.outputs).union(*(step.inputs for step in program.steps))
    wanted = [tensor for tensor in fragment.tensors if tensor.name in read]
    for tensor in wanted:
        # Before any value is made: drawing gigabytes for nothing takes seconds.
        torch_dtype(tensor.dtype)  # refuses element types that eager mode has no kernels for
    values = {tensor.name: make(tensor) for tensor in wanted}
    if program.folded:
        values |= _folded(fragment, sorted(program.folded), make)
    return values


def _folded(fragment: Fragment, names: Sequence[str], make: Weights) -> Arrays:
    """Return values that depend on weights alone, by ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    wanted = set(names)
    nodes: list[FragmentNode] = []
    for node in reversed(fragment.nodes):
        if not wanted.isdisjoint(node.outputs):
            nodes.append(node)
            wanted.update(node.inputs)
    tensors = tuple(t for t in fragment.tensors if t.name in wanted)
    part = replace(fragment, nodes=tuple(reversed(nodes)), tensors=tensors, outputs=tuple(names), pattern="")
    results = ReferenceEvaluator(fragment_model(part, make)).run(list(names), {})
    return dict(zip(names, map(np.asarray, results), strict=True))
