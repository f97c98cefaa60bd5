"""TensorRT: a graph is compiled for one GPU into an engine, natively or by ONNX Runtime's execution provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gkestimator.core.dtypes import Precision
from gkestimator.hardware.runtimes.record import RuntimeTraits, ServerForm, ServerOptions

_BUILD = "an engine has to be built on the very type of GPU, and by the version of TensorRT, that will run it"
# Precisions are permissions: float32 is always allowed, and half precision where int8 or FP8 is, as in an estimate.
# Names: ONNX Runtime documentation, TensorRT execution provider; FP8 is what the file says, and has no flag.
_HALF = {"trt_fp16_enable": "True"}
_NO_TF32 = "TF32 is allowed too, unless the environment of the server holds NVIDIA_TF32_OVERRIDE=0"
_FP8 = "FP8 runs where the file quantises to it, and no option asks for it"
_PROVIDER_OPTIONS = ServerOptions(
    always={
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": "engines",  # the worker takes it for a folder beside the ONNX file
        "trt_timing_cache_enable": "True",
    },
    by_dtype={
        "fp16": _HALF,
        "bf16": {"trt_bf16_enable": "True"},
        "int8": _HALF | {"trt_int8_enable": "True"},
        "fp8": _HALF,
    },
    memory="trt_max_workspace_size",
    # Without them a batch of a new size is built an engine for while its clients wait.
    shapes=("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes"),
    remarks={
        "fp32": _NO_TF32,
        "int8": "a file that is not quantised needs a calibration table (trt_int8_calibration_table_name)",
        "fp8": _FP8,
    },
)
# Triton's backend of ONNX Runtime has names of its own (triton-inference-server/onnxruntime_backend, README): of one
# precision_mode, INT8 allows no half precision beside it.
_ACCELERATOR_OPTIONS = ServerOptions(
    always={"trt_engine_cache_enable": "true", "trt_engine_cache_path": "/tmp/triton-tensorrt-engines"},
    by_dtype={
        "fp16": {"precision_mode": "FP16"},
        "int8": {"precision_mode": "INT8"},
        "fp8": {"precision_mode": "FP16"},
    },
    memory="max_workspace_size_bytes",
    remarks={
        "fp32": _NO_TF32,
        "bf16": "Triton's accelerator has no option for bf16, which the estimate counts on: take fp16, or a bf16 file",
        "int8": "a file that is not quantised needs a calibration table (int8_calibration_table_name), and half "
        "precision is not allowed beside int8, which the estimate counts on",
        "fp8": _FP8,
    },
)

# The flags of its builder; gkestimator.exporting.engines spells them. FP32 is always allowed, and TF32 unless --noTF32
# says no (developer guide, "Reduced Precision").
_WIDE = (Precision.TF32, Precision.FP32)
_PERMITS: Mapping[str, tuple[Precision, ...]] = {
    "fp32": (Precision.FP32,),
    "tf32": _WIDE,
    "fp16": (Precision.FP16, *_WIDE),
    "bf16": (Precision.BF16, *_WIDE),
    "int8": (Precision.INT8, Precision.FP16, *_WIDE),
    "fp8": (Precision.FP8, Precision.FP16, *_WIDE),
}

# Types without an importer in the parser of ONNX files (onnx/onnx-tensorrt, docs/operators.md, up to release 10). Some
# that newer releases import are not listed, so that no file is called impossible which is not.
_NOT_IMPORTED = frozenset(
    [
        "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Col2Im", "ConcatFromSequence",
        "ConvInteger", "Det", "DynamicQuantizeLinear", "ImageDecoder", "LabelEncoder", "MatMulInteger",
        "MaxRoiPool", "MaxUnpool", "MelWeightMatrix", "Multinomial", "NegativeLogLikelihoodLoss", "Optional",
        "OptionalGetElement", "OptionalHasElement", "QLinearConv", "QLinearMatMul", "RegexFullMatch",
        "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
        "SequenceLength", "SequenceMap", "SoftmaxCrossEntropyLoss", "SplitToSequence", "StringConcat",
        "StringNormalizer", "StringSplit", "TfIdfVectorizer", "TreeEnsemble", "Unique",
    ]
)  # fmt: skip

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
            "concat",
            "convolution",
            "merged_products",
            "product",
            "reduced_rows",
            "softmax_rows",
            "shuffle",
            "pointwise",
        }
    ),
    # Developer Guide 8.0, "Layer Fusion", names none for attention and normalisations, and SoftMax with Log or TopK
    # alone; sums of squares and other reductions of element-wise results it does.
    extended_patterns=frozenset({"fused_attention", "norm", "softmax_rows"}),
    operators_as="onnxruntime",
    fused_attention_from=(7, 5),  # Developer Guide, "Multi-Head Attention Fusion"
    lacking_operators=_NOT_IMPORTED,
    library="tensorrt",  # core.kernels.TENSORRT, whose module would load numpy for every --help
    server=ServerForm(
        triton_platform="tensorrt_plan",
        model_format="tensorrt",
        engine_file="model.plan",
        engine_program="trtexec",
        engine_builder=("gkestimator.exporting.engines", "trtexec_command"),
        provider_options=_PROVIDER_OPTIONS,
    ),
    build=f"{_BUILD}; how long that takes is not known, and no part of the estimate",
    measured_by="time whole engines with trtexec, put the medians into a table and compare it by gkest evaluate; "
    "its reports of single layers have no importer",
    permits=_PERMITS,
    lacking_dtypes={
        "amp": "tensorrt has no autocast; use dtype fp16, which allows it half precision where that is faster",
        "w8a16": "tensorrt runs weights of few bits where the file holds them; use dtype int8 or fp8",
        "w4a16": "tensorrt runs weights of few bits where the file holds them; use dtype int8 or fp8",
    },
)
ONNXRUNTIME_TENSORRT = replace(
    TENSORRT,
    name="onnxruntime_tensorrt",
    provider_of=("onnxruntime", "tensorrt"),
    distributions=("onnxruntime-gpu",),
    lowering_name="tensorrt",
    server=ServerForm(
        provider_options=_PROVIDER_OPTIONS,
        accelerator="tensorrt",
        accelerator_options=_ACCELERATOR_OPTIONS,
    ),
    build=f"{_BUILD}: ONNX Runtime does it when it first loads the model; how long that takes is not known, and no "
    "part of the estimate",
)
