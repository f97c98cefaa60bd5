"""TensorRT: a graph is compiled for one GPU into an engine, natively or by ONNX Runtime's execution provider."""

from __future__ import annotations

from dataclasses import replace

from gkestimator.hardware.runtimes.record import RuntimeTraits

TENSORRT = RuntimeTraits(
    name="tensorrt",
    distributions=("tensorrt",),
    eager=False,
    unfolds_batchnorm=False,
    serving_providers=("TensorrtExecutionProvider", "CUDAExecutionProvider"),
    patterns=frozenset(
        {
            "quantised",
            "fused_attention",
            "norm",
            "convolution",
            "merged_products",
            "product",
            "rows",
            "shuffle",
            "pointwise",
        }
    ),
    operators_as="onnxruntime",
    library="tensorrt",  # core.kernels.TENSORRT, whose module would load numpy for every --help
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
