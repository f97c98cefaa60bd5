"""Copies between element types and layouts that an engine runs between its layers ("Reformatting CopyNode").

A tensor that a layer reads in another type than it lies in is converted first, by a kernel of its own in the step of
the first layer that reads it so; a graph's output likewise after the step that writes it. Images lie linearly (NCHW) at
the inputs and outputs and where convolutions calculate in FP32, and with their channels innermost where convolutions
run on tensor cores. The layouts that published engines show (``python -m benchmarks.tensorrt_reformats``): the same
copy converts type and layout; convolutions in TF32 whose channels 4 does not divide (a network's first) stay linear,
and so does the pooling behind; an average pooling in half precision does not read what a convolution of 8 bits writes
(vectors of 32 channels). Copies between two formats of channels innermost cost nothing there, and none is counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.graph import OperatorGraph, Tensor, Value
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.builders import tensors_of
from gkestimator.operators.registry import Kernels, element_precision

LINEAR = "linear"
CHANNELS_INNERMOST = "channels_innermost"
VECTORS_OF_32 = "vectors_of_32"
_CONVOLUTIONS = frozenset({Family.CONV, Family.DEPTHWISE, Family.CONV_TRANSPOSE})
_FOLLOW = frozenset({Family.POOLING, Family.ELEMENTWISE, Family.BATCHNORM, Family.COPY})
_COPIES_IN_PLACE = ("pad", "concat", "slice", "split")
_BYTES = frozenset({Precision.INT8, Precision.FP8})
_TF32_VECTOR = 4


def reformat_kernel(tensor: Tensor, source: DType) -> Kernel:
    """Return the copy of a tensor that lies in type ``source`` to the type, and the layout, in which it is read."""
    return Kernel(
        name="copy.reformat",
        family=Family.COPY,
        variant="reformat",
        precision=element_precision(tensor.dtype),
        flops=0,
        read_bytes=source.nbytes(tensor.elements),
        write_bytes=tensor.nbytes,
        rows=tensor.elements,
        element_bytes=tensor.dtype.bits / 8,
        workspace_bytes=tensor.nbytes,
    )


class Reformats:
    """Follow the types and layouts of a graph's activations through its calls."""

    def __init__(self) -> None:
        self._types: dict[str, DType] = {}
        self._layouts: dict[str, str] = {}
        self._made: set[tuple[str, DType, str]] = set()
        self._writers: dict[str, int] = {}

    def begin(self, graph: OperatorGraph) -> None:
        """Note the types of the graph's inputs, which lie linearly."""
        for tensor in tensors_of(graph.inputs):
            self._types[tensor.name] = tensor.dtype
            self._layouts[tensor.name] = LINEAR

    def before(self, inputs: Sequence[Value | None], kernels: Kernels) -> Kernels:
        """Return the copies that a call with ``kernels`` needs of what it reads."""
        copies: list[Kernel] = []
        if not kernels:
            return ()
        main = _main(kernels)
        for tensor in tensors_of(inputs):
            lies = self._types.get(tensor.name)
            if lies is None or tensor.is_weight:
                continue
            layout = self._layouts.get(tensor.name, "")
            wanted = _wanted_layout(main, tensor, layout)
            if lies is tensor.dtype and wanted == layout:
                continue
            key = (tensor.name, tensor.dtype, wanted)
            if key not in self._made:
                self._made.add(key)
                copies.append(reformat_kernel(tensor, lies))
        return tuple(copies)

    def after(
        self,
        inputs: Sequence[Value | None],
        outputs: Sequence[Value | None],
        kernels: Kernels,
        sources: Sequence[tuple[Tensor, Tensor]],
        call: int,
    ) -> None:
        """Note what the call at ``call`` gives; ``sources`` pair results that are views with what they are views of."""
        viewed = {result.name: source for result, source in sources}
        main = _main(kernels)
        read = tensors_of(inputs)
        for tensor in tensors_of(outputs):
            source = viewed.get(tensor.name)
            if source is not None and not kernels:
                self._types[tensor.name] = self._types.get(source.name, source.dtype)
                if source.name in self._writers:
                    self._writers[tensor.name] = self._writers[source.name]
                continue
            self._types[tensor.name] = tensor.dtype
            self._writers[tensor.name] = call
            layout = self._result_layout(main, tensor, read)
            if layout:
                self._layouts[tensor.name] = layout

    def at_end(self, outputs: Sequence[Value]) -> dict[int, Kernels]:
        """Return the copies to the graph's outputs, by the call that they come after."""
        copies: dict[int, Kernels] = {}
        for tensor in tensors_of(outputs):
            lies = self._types.get(tensor.name)
            writer = self._writers.get(tensor.name)
            if lies is not None and writer is not None and lies is not tensor.dtype:
                copies[writer] = (*copies.get(writer, ()), reformat_kernel(tensor, lies))
        return copies

    def _result_layout(self, main: Kernel | None, tensor: Tensor, read: Sequence[Tensor]) -> str:
        if main is None or not read:
            return ""
        if main.family in _CONVOLUTIONS:
            layout = _convolution_layout(main, read[0], self._layouts.get(read[0].name, ""))
            if main.precision in _BYTES and tensor.dtype.bits > 8:
                return VECTORS_OF_32
            return layout
        if main.family in _FOLLOW:
            return self._layouts.get(read[0].name, "")
        return ""


def _main(kernels: Kernels) -> Kernel | None:
    """Return the kernel whose layouts are those of a call; None of calls that rearrange what they read."""
    for kernel in kernels:
        if kernel.family is not Family.COPY or kernel.variant in _COPIES_IN_PLACE:
            return kernel
    return None


def _convolution_layout(main: Kernel, source: Tensor, layout: str) -> str:
    if main.precision is Precision.FP32:
        return LINEAR
    if main.precision is Precision.TF32 and source.shape[1] % _TF32_VECTOR:
        return LINEAR
    if layout == VECTORS_OF_32:
        return VECTORS_OF_32
    return CHANNELS_INNERMOST


def _wanted_layout(main: Kernel | None, tensor: Tensor, layout: str) -> str:
    """Return the layout in which a call reads ``tensor``: the one it lies in where nothing else is known."""
    if main is None or not layout or len(tensor.shape) < 3:
        return layout
    if main.family in _CONVOLUTIONS:
        return _convolution_layout(main, tensor, layout)
    averages = main.variant.endswith("average_pool")
    if averages and layout == VECTORS_OF_32 and tensor.dtype.bits > 8:
        return CHANNELS_INNERMOST
    return layout
