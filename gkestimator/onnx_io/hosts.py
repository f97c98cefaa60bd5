"""Inputs that runtimes read on the host (shapes, axes, bounds), so that they take no GPU memory.

Positions as in the operators' ONNX schemas; ONNX Runtime's CUDA kernels declare the same inputs as CPU
memory.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["HOST_INPUTS"]

_BY_OP: Mapping[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Slice": (1, 2, 3, 4), "Pad": (1, 3), "Tile": (1,), "Unsqueeze": (1,),
    "Squeeze": (1,), "Split": (1,), "SplitToSequence": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2),
    "TopK": (1,),
    "Resize": (1, 2, 3), "Upsample": (1,), "OneHot": (1,), "CumSum": (1,), "Trilu": (1,), "Dropout": (1, 2),
    "SequenceAt": (1,), "SequenceInsert": (2,), "SequenceErase": (1,), "CenterCropPad": (1,),
    "MaxUnpool": (2,),
    "NonMaxSuppression": (2, 3, 4), "DFT": (1, 2), "STFT": (1,), "HannWindow": (0,), "HammingWindow": (0,),
    "BlackmanWindow": (0,), "MelWeightMatrix": (0, 1, 2, 3, 4), "Col2Im": (1, 2), "AffineGrid": (1,),
    "ReduceSum": (1,), "ReduceMean": (1,), "ReduceMax": (1,), "ReduceMin": (1,), "ReduceProd": (1,),
    "ReduceL1": (1,),
    "ReduceL2": (1,), "ReduceLogSum": (1,), "ReduceLogSumExp": (1,), "ReduceSumSquare": (1,),
}  # fmt: skip
HOST_INPUTS: Mapping[tuple[str, str], tuple[int, ...]] = {("", op): where for op, where in _BY_OP.items()}
