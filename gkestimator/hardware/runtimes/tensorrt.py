"""TensorRT: a graph is compiled for one GPU into an engine, natively or by ONNX Runtime's execution provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gkestimator.core.dtypes import Precision
from gkestimator.core.kernels import TENSORRT as LIBRARY
from gkestimator.hardware.runtimes.record import RuntimeTraits

# The flags of its builder, by the words of trtexec: --fp16, --bf16, --int8 --fp16, --fp8 --fp16. FP32 is always allowed,
# and TF32 unless --noTF32 says no (developer guide, "Reduced Precision").
_WIDE = (Precision.TF32, Precision.FP32)
_PERMITS: Mapping[str, tuple[Precision, ...]] = {
    "fp32": (Precision.FP32,),
    "tf32": _WIDE,
    "fp16": (Precision.FP16, *_WIDE),
    "bf16": (Precision.BF16, *_WIDE),
    "int8": (Precision.INT8, Precision.FP16, *_WIDE),
    "fp8": (Precision.FP8, Precision.FP16, *_WIDE),
}

TENSORRT = RuntimeTraits(
    name="tensorrt",
    distributions=("tensorrt",),
    eager=False,
    unfolds_batchnorm=False,
    serving_providers=("TensorrtExecutionProvider", "CUDAExecutionProvider"),
    patterns=frozenset(
        {
            "fused_attention",
            "norm",
            "convolution",
            "softmax_rows",
            "merged_products",
            "product",
            "reduced_rows",
            "shuffle",
            "pointwise",
        }
    ),
    operators_as="onnxruntime",
    library=LIBRARY,
    permits=_PERMITS,
    executor=None,
    sweep_prepare_s=0.0,
    sweep_chunk_s=0.0,
    lacking_dtypes={
        "amp": "tensorrt has no autocast; use dtype fp16, which allows it half precision where that is faster",
        "w8a16": "tensorrt runs weights of few bits where the file holds them; use dtype int8 or fp8",
        "w4a16": "tensorrt runs weights of few bits where the file holds them; use dtype int8 or fp8",
    },
)
ONNXRUNTIME_TENSORRT = replace(
    TENSORRT,
    name="onnxruntime_tensorrt",
    distributions=("onnxruntime-gpu",),
    lowering_name="tensorrt",
)
