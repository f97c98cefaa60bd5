"""Operators without a GPU kernel: strings, images, trees and other classical models run on the CPU in both
runtimes.

They cost a host call, during which the GPU waits; the kernel of family ``host`` carries the work so that it
is visible, and
no GPU time may be predicted from it.
"""

from __future__ import annotations

from gkestimator.core.dtypes import Precision
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.builders import tensor_inputs, tensor_outputs
from gkestimator.operators.registry import Lowered, LoweringOptions, lowering_rule

_STRINGS = {
    "StringConcat": "string_concat",
    "StringNormalizer": "string_normalizer",
    "StringSplit": "string_split",
    "RegexFullMatch": "regex_full_match",
    "TfIdfVectorizer": "tf_idf",
}
_ML = {
    "CastMap": "cast_map",
    "CategoryMapper": "category_mapper",
    "DictVectorizer": "dict_vectorizer",
    "FeatureVectorizer": "feature_vectorizer",
    "Imputer": "imputer",
    "LabelEncoder": "label_encoder",
    "LinearClassifier": "linear_classifier",
    "LinearRegressor": "linear_regressor",
    "Normalizer": "normalizer",
    "OneHotEncoder": "one_hot_encoder",
    "SVMClassifier": "svm",
    "SVMRegressor": "svm",
    "Scaler": "scaler",
    "Binarizer": "binarizer",
    "ZipMap": "zip_map",
}
_TREES = {"TreeEnsemble": "trees", "TreeEnsembleClassifier": "trees", "TreeEnsembleRegressor": "trees"}


def host_kernel(op: Operator, variant: str, *, flops: int = 0) -> Kernel:
    """The work of ``op`` on the CPU: its traffic, and ``flops`` where they are known from shapes."""
    reads = tensor_inputs(op)
    writes = tensor_outputs(op)
    return Kernel(
        name=f"host.{variant}",
        family=Family.HOST,
        variant=variant,
        precision=Precision.FP32,
        flops=flops,
        read_bytes=sum(t.nbytes for t in reads),
        write_bytes=sum(t.nbytes for t in writes),
        weight_bytes=sum(t.nbytes for t in reads if t.is_weight),
        rows=max((t.elements for t in writes), default=1),
        inputs=len(reads),
    )


@lowering_rule(*_STRINGS, kind="host_string")
def strings(op: Operator, options: LoweringOptions) -> Lowered:
    """Text has no GPU form."""
    return Lowered(kernels=(host_kernel(op, _STRINGS[op.op_type]),), host_calls=1)


@lowering_rule("ImageDecoder", kind="host_image")
def image_decoder(op: Operator, options: LoweringOptions) -> Lowered:
    """JPEG and the like are decoded on the CPU."""
    return Lowered(kernels=(host_kernel(op, "image_decoder"),), host_calls=1)


@lowering_rule(*_ML, domain="ai.onnx.ml", kind="host_ml")
def classical(op: Operator, options: LoweringOptions) -> Lowered:
    """Feature preparation and linear or kernel models; ONNX Runtime has CPU kernels alone."""
    return Lowered(kernels=(host_kernel(op, _ML[op.op_type]),), host_calls=1)


@lowering_rule(*_TREES, domain="ai.onnx.ml", kind="host_trees")
def trees(op: Operator, options: LoweringOptions) -> Lowered:
    """Each tree is walked once a row: the depth is bounded by log2 of a balanced tree's nodes, which counts
    the comparisons.
    """
    reads = tensor_inputs(op)
    if reads and reads[0].shape:
        rows = reads[0].shape[0]
    else:
        rows = 1
    modes = op.attributes.get("nodes_modes", op.attributes.get("nodes_featureids", ()))
    try:
        nodes = len(modes)  # type: ignore[arg-type]
    except TypeError:
        nodes = 0
    return Lowered(
        kernels=(host_kernel(op, _TREES[op.op_type], flops=rows * max(1, nodes.bit_length())),), host_calls=1
    )
