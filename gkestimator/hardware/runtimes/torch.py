"""PyTorch in eager mode: a Python program calls one function for each operator."""

from __future__ import annotations

from gkestimator.hardware.runtimes.record import RuntimeTraits

TORCH = RuntimeTraits(
    name="torch",
    distributions=("torch",),
    eager=True,
    unfolds_batchnorm=True,
    serving_providers=(),
    # Groups that a model's author writes as one call (F.gelu, F.layer_norm); Python arithmetic stays as it is.
    patterns=frozenset(
        {
            "quantised",
            "attention",
            "gelu",
            "tanh_gelu",
            "sigmoid_gate",
            "hard_sigmoid_swish",
            "clip_swish",
            "mish",
            "layer_norm",
            "rms_norm",
            "rsqrt",
            "addcmul",
            "group_norm",
            "linear",
        }
    ),
    operators_as="torch",
    executor=("gkestimator.profiling.executors.torch", "TorchExecutor"),
    sweep_prepare_s=0.02,
    sweep_chunk_s=9.0,  # importing torch takes 2.2 s of it
    layouts=("nchw", "nhwc"),
    lacking_dtypes={
        "int8": "torch has no int8 kernels for a GPU in eager mode; use runtime onnxruntime",
    },
)
