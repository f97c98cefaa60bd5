"""ONNX Runtime with the CUDA execution provider: a graph is optimised, then run."""

from __future__ import annotations

from gkestimator.hardware.runtimes.record import RuntimeTraits

ONNXRUNTIME = RuntimeTraits(
    name="onnxruntime",
    provider_of=("onnxruntime", "cuda"),
    distributions=("onnxruntime", "onnxruntime-gpu"),
    eager=False,
    unfolds_batchnorm=False,
    serving_providers=("CUDAExecutionProvider",),
    # Fusions of its graph optimiser at the default level for the CUDA provider.
    patterns=frozenset(
        {
            "quantised",
            "gelu",
            "tanh_gelu",
            "sigmoid_gate",
            "layer_norm",
            "rms_norm",
            "skip_layer_norm",
            "conv_folding",
            "relu_clip",
            "bias_softmax",
            "linear",
            "scaled_matmul",
        }
    ),
    # Registered at ORT_ENABLE_EXTENDED (graph_transformer_utils.cc); the others belong to ORT_ENABLE_BASIC.
    extended_patterns=frozenset(
        {
            "gelu",
            "tanh_gelu",
            "sigmoid_gate",
            "layer_norm",
            "rms_norm",
            "skip_layer_norm",
            "bias_softmax",
            "scaled_matmul",
        }
    ),
    operators_as="onnxruntime",
    file_optimiser="onnxruntime.transformers.optimizer",
    executor=("gkestimator.profiling.executors.onnxruntime", "OnnxruntimeExecutor"),
    sweep_prepare_s=0.06,  # a session is built for each entry
    sweep_chunk_s=7.0,
    lacking_dtypes={
        "amp": "onnxruntime has no autocast; use dtype fp16 or a model converted to half precision",
        "fp8": "onnxruntime runs FP8 products where the file holds them (GemmFloat8), and makes none; "
        "use runtime torch",
    },
)
