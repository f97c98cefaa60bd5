"""Say of every kind of lowering rule whether its FLOPs are held to a second count, and if not, why."""

from __future__ import annotations

__all__ = ["COUNTED_KINDS", "MOVING_KINDS", "OTHER_KINDS"]

_MATRIX_WORK = "matrix work: test_lowering_node_types.py and test_lowering_microsoft.py count it by its shape"
_COORDINATES = "the evaluator's coordinates and taps are Python numbers, which show nothing of a kernel's way"
_ALGORITHMS = "the library's algorithm decides (cuFFT, CUB), not the operator's formula"
_OF_ITS_PARTS = "the sum of what the rules of its parts count: tests/lowering/test_tensorrt_fusions.py"
_ON_THE_CPU = "runs on the CPU: no GPU time is predicted from its FLOPs"

COUNTED_KINDS = frozenset(
    [
        "arg_reduction",
        "batch_norm",
        "dequantize",
        "determinant",
        "elementwise",
        "embedding_layer_norm",
        "fill",
        "gated_activation",
        "global_pool",
        "group_norm",
        "layer_norm",
        "local_response_norm",
        "loss",
        "lp_norm",
        "one_hot",
        "optimiser",
        "pool",
        "quantize",
        "quantised_elementwise",
        "reduction",
        "scan",
        "skip_layer_norm",
        "softmax",
        "window",
    ]
)
MOVING_KINDS = frozenset(
    [
        "cast",
        "constant",
        "copy",
        "gather",
        "metadata",
        "sequence",
        "sequence_split",
        "unpool",
        "view",
        "view_or_copy",
    ]
)
# kind: why its FLOPs have no second count here
OTHER_KINDS: dict[str, str] = {
    "attention": _MATRIX_WORK,
    "column_scatter": _MATRIX_WORK,
    "convolution": _MATRIX_WORK,
    "deformable_convolution": _MATRIX_WORK,
    "fused": _OF_ITS_PARTS,
    "gemm": _MATRIX_WORK,
    "integer_convolution": _MATRIX_WORK,
    "integer_gemm": _MATRIX_WORK,
    "linear_attention": _MATRIX_WORK,
    "matrix_inverse": _MATRIX_WORK,
    "mixture_of_experts": _MATRIX_WORK,
    "recurrent": _MATRIX_WORK,
    "transposed_convolution": _MATRIX_WORK,
    "weight_only_gemm": _MATRIX_WORK,
    "affine_grid": _COORDINATES,
    "filter_bank": _COORDINATES,
    "position_bias": _COORDINATES,
    "resample": _COORDINATES,
    "roi_align": _COORDINATES,
    "roi_pool": _COORDINATES,
    "rotary_embedding": _COORDINATES,
    "fft": _ALGORITHMS,
    "non_max_suppression": _ALGORITHMS,
    "scatter": _ALGORITHMS,
    "selection": _ALGORITHMS,
    "sort": _ALGORITHMS,
    "top_k": _ALGORITHMS,
    "host_image": _ON_THE_CPU,
    "host_microsoft": _ON_THE_CPU,
    "host_ml": _ON_THE_CPU,
    "host_string": _ON_THE_CPU,
    "host_trees": _ON_THE_CPU,
    "control_flow": "the body's operators are counted where they stand",
    "packing": "rows are moved, and positions counted by a scan that ONNX has no formula of",
    "random": "rounds of the Philox generator, which no reference runs",
}
