"""Operators without a GPU kernel: strings, images, trees and other classical models run on the CPU in both runtimes.

They cost a host call, during which the GPU waits; the kernel of family ``host`` carries the work so that it is visible,
and no GPU time may be predicted from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized

from gkestimator.core.dtypes import DType, Precision
from gkestimator.core.errors import ShapeError
from gkestimator.core.graph import Operator
from gkestimator.core.kernels import Family, Kernel
from gkestimator.operators.builders import input_at, tensor_inputs, tensor_outputs, total_bytes, weight_bytes
from gkestimator.operators.checks import (
    all_tensors,
    declared_tensor,
    dtype_of_array,
    int_attribute,
    ints_attribute,
    tensor,
    text_attribute,
)
from gkestimator.operators.indexing import gather_kernel
from gkestimator.operators.registry import (
    ML,
    MS,
    Lowered,
    LoweringOptions,
    Outputs,
    SequenceType,
    ShapeContext,
    TensorType,
    launched,
    lowering_rule,
    shape_rule,
)

_MOST_MAPS = 65_536

# What the kernel of an operator is called whose operations are not counted.
_STRINGS = {
    "StringConcat": "string_concat",
    "StringNormalizer": "string_normalizer",
    "StringSplit": "string_split",
    "RegexFullMatch": "regex_full_match",
    "TfIdfVectorizer": "tf_idf",
}
_CLASSICAL = {
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
_MICROSOFT = {
    "CropAndResize": "crop_and_resize",
    "MaxpoolWithMask": "masked_max_pool",
    "MurmurHash3": "murmur_hash",
    "QEmbedLayerNormalization": "quantised_embed_layer_norm",
    "Tokenizer": "tokenizer",
}


@shape_rule("StringSplit")
def string_split_types(ctx: ShapeContext) -> Outputs:
    """Return the pieces in a new last dimension: as many as the file declares, else at most maxsplit + 1."""
    x = tensor(ctx, 0)
    count = TensorType(DType.INT64, x.shape, x.bounded)
    most = int_attribute(ctx, "maxsplit", -1)
    pieces = declared_tensor(ctx, 0, DType.STRING, rank=len(x.shape) + 1)
    if pieces is None or pieces.shape[:-1] != x.shape:
        if 0 in x.shape:
            pieces = TensorType(DType.STRING, (*x.shape, 0))
        elif most >= 0:
            pieces = TensorType(DType.STRING, (*x.shape, most + 1), True)
        else:
            raise ShapeError(
                "the number of pieces depends on the text; expected maxsplit or a declared output shape"
            )
    return [pieces, count][: ctx.outputs]


@shape_rule("StringNormalizer")
def string_normalizer_types(ctx: ShapeContext) -> Outputs:
    """Return [C] or [1, C]; stop words leave fewer, never less than one (an empty string)."""
    x = tensor(ctx, 0, min_rank=1)
    if x.shape[:-1] not in ((), (1,)):
        raise ShapeError(f"input is {x}, expected (C) or (1, C)")
    bounded = x.bounded or bool(ctx.attributes.get("stopwords"))
    shape = (*x.shape[:-1], max(1, x.shape[-1]))
    return [TensorType(DType.STRING, shape, bounded)]


def _count(ctx: ShapeContext, *names: str) -> int:
    """Return the length of the first list attribute of ``names`` that is not empty; ShapeError when all are."""
    for name in names:
        value = ctx.attributes.get(name)
        if value is not None and len(value):
            return len(value)
    raise ShapeError(f"expected an attribute {' or '.join(names)}, found none")


def _examples(ctx: ShapeContext) -> int:
    """Return N of the first input, (N, features); a one-dimensional input is one example."""
    shape = tensor(ctx, 0).shape
    if len(shape) > 2:
        raise ShapeError(f"input is {list(shape)}, expected (N, features)")
    if len(shape) == 2:
        return shape[0]
    return 1


@shape_rule("Scaler", "Normalizer", domain=ML)
def to_float_types(ctx: ShapeContext) -> Outputs:
    """Return the input's shape in float."""
    return [TensorType(DType.FLOAT, tensor(ctx, 0).shape)]


@shape_rule("Imputer", domain=ML)
def imputer_types(ctx: ShapeContext) -> Outputs:
    """Return the input's type."""
    return [tensor(ctx, 0)]


@shape_rule("FeatureVectorizer", domain=ML)
def vectorizer_types(ctx: ShapeContext) -> Outputs:
    """Return the features of all inputs side by side."""
    inputs = all_tensors(ctx)
    if any(len(part.shape) not in (1, 2) for part in inputs):
        raise ShapeError("expected inputs of one or two dimensions")
    widths = ints_attribute(ctx, "inputdimensions", length=len(inputs), low=0)
    if widths is None:
        widths = tuple([part.shape[-1] for part in inputs])
    return [TensorType(DType.FLOAT, (_examples(ctx), sum(widths)))]


@shape_rule("LabelEncoder", "CategoryMapper", domain=ML)
def encoder_types(ctx: ShapeContext) -> Outputs:
    """Return the input's shape in the type of the values; early forms map text to numbers and back."""
    x = tensor(ctx, 0)
    if ctx.op_type == "CategoryMapper" or ctx.version < 2:
        return [TensorType(DType.INT64 if x.dtype is DType.STRING else DType.STRING, x.shape)]
    array = ctx.attributes.get("values_tensor")
    if array is not None:
        return [TensorType(dtype_of_array(array), x.shape)]
    for name, dtype in _VALUES.items():
        if ctx.attributes.get(name):
            return [TensorType(dtype, x.shape)]
    raise ShapeError(f"expected an attribute {' or '.join(_VALUES)}, found none")


_VALUES = {"values_strings": DType.STRING, "values_int64s": DType.INT64, "values_floats": DType.FLOAT}


@shape_rule("ZipMap", domain=ML)
def zip_map_types(ctx: ShapeContext) -> Outputs:
    """Return a sequence of N maps, each held as the tensor of its values."""
    x = tensor(ctx, 0, min_rank=1)
    count = _examples(ctx)
    if count > _MOST_MAPS:
        raise ShapeError(f"{count} maps, expected at most {_MOST_MAPS}")
    values = TensorType(x.dtype, x.shape[-1:])
    return [SequenceType((values,) * count)]


@shape_rule("DictVectorizer", domain=ML)
def dict_vectorizer_types(ctx: ShapeContext) -> Outputs:
    """Return (1, vocabulary) for a map, held as the tensor of its values."""
    words = _count(ctx, "string_vocabulary", "int64_vocabulary")
    return [TensorType(tensor(ctx, 0).dtype, (1, words))]


@shape_rule("CastMap", domain=ML)
def cast_map_types(ctx: ShapeContext) -> Outputs:
    """Return (1, values of the map), or as many as a sparse map may have."""
    target = text_attribute(ctx, "cast_to", "TO_FLOAT", choices=tuple(_CASTS))
    width = math.prod(tensor(ctx, 0).shape)
    if ctx.attributes.get("map_form", "DENSE") == "SPARSE":
        width = int_attribute(ctx, "max_map", 1)
    if width < 0:
        raise ShapeError(f"max_map is {width}, expected a positive number")
    return [TensorType(_CASTS[target], (1, width))]


_CASTS = {"TO_FLOAT": DType.FLOAT, "TO_STRING": DType.STRING, "TO_INT64": DType.INT64}


def host_kernel(op: Operator, variant: str, *, flops: int = 0) -> Kernel:
    """Return the work of ``op`` on the CPU: its traffic, and ``flops`` where they are known from shapes."""
    reads = tensor_inputs(op)
    writes = tensor_outputs(op)
    return Kernel(
        name=f"host.{variant}",
        family=Family.HOST,
        variant=variant,
        precision=Precision.FP32,
        flops=flops,
        read_bytes=total_bytes(reads),
        write_bytes=total_bytes(writes),
        weight_bytes=weight_bytes(reads),
        rows=max((t.elements for t in writes), default=1),
        inputs=len(reads),
    )


def _register_uncounted(kind: str, variants: Mapping[str, str], domain: str = "") -> None:
    """Register a rule of work whose operations are not counted: only its traffic is."""

    @lowering_rule(*variants, domain=domain, kind=kind)
    def uncounted(op: Operator, options: LoweringOptions) -> Lowered:
        return launched(host_kernel(op, variants[op.op_type]))


_register_uncounted("host_string", _STRINGS)
_register_uncounted("host_image", {"ImageDecoder": "image_decoder"})
_register_uncounted("host_ml", _CLASSICAL, ML)
_register_uncounted("host_microsoft", _MICROSOFT, MS)


@shape_rule("LinearRegressor", "SVMRegressor", "TreeEnsembleRegressor", "TreeEnsemble", domain=ML)
def regressor_types(ctx: ShapeContext) -> Outputs:
    """Return (N, targets); an SVM has one target."""
    dtype = DType.FLOAT
    targets = 1
    if ctx.op_type == "LinearRegressor":
        targets = int_attribute(ctx, "targets", 1)
    elif ctx.op_type != "SVMRegressor":
        targets = int_attribute(ctx, "n_targets", 1)
    if ctx.op_type == "TreeEnsemble":
        dtype = tensor(ctx, 0).dtype
    if targets < 1:
        raise ShapeError(f"{targets} targets, expected at least 1")
    return [TensorType(dtype, (_examples(ctx), targets))]


@shape_rule("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier", domain=ML)
def classifier_types(ctx: ShapeContext) -> Outputs:
    """Return the label of each example, and its scores: one per class (a raw SVM has one per pair of classes)."""
    names = ["classlabels_strings", "classlabels_ints", "classlabels_int64s"]
    if ctx.op_type == "LinearClassifier":
        names.append("intercepts")
    scores = classes = _count(ctx, *names)
    raw = ctx.attributes.get("vectors_per_class") and not ctx.attributes.get("prob_a")
    if ctx.op_type == "SVMClassifier" and raw:
        scores = max(2, classes * (classes - 1) // 2)
    count = _examples(ctx)
    if ctx.attributes.get("classlabels_strings"):
        label = DType.STRING
    else:
        label = DType.INT64
    outputs = [TensorType(label, (count,)), TensorType(DType.FLOAT, (count, scores))]
    return outputs[: ctx.outputs]


@lowering_rule(
    "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", domain=ML, kind="host_trees"
)
def trees(op: Operator, options: LoweringOptions) -> Lowered:
    """Return a walk through each tree once a row: log2 of a balanced tree's nodes bounds its depth.

    The depth counts the comparisons.
    """
    shape = input_at(op, 0).shape
    rows = shape[0] if shape else 1
    nodes = op.attributes.get("nodes_modes", op.attributes.get("nodes_featureids", ()))
    if isinstance(nodes, Sized):
        count = len(nodes)
    else:
        count = 0
    kernel = host_kernel(op, "trees", flops=rows * max(1, count.bit_length()))
    return launched(kernel)


@shape_rule("ArrayFeatureExtractor", domain=ML)
def extractor_types(ctx: ShapeContext) -> Outputs:
    """Return picked elements of the last dimension; a one-dimensional input counts as one row."""
    x = tensor(ctx, 0, min_rank=1)
    picked = math.prod(tensor(ctx, 1).shape)
    rows = x.shape[:-1] or (1,)
    return [TensorType(x.dtype, (*rows, picked))]


@lowering_rule("ArrayFeatureExtractor", domain=ML, kind="gather")
def array_feature_extractor(op: Operator, options: LoweringOptions) -> Lowered:
    """Return columns picked by index."""
    return launched(gather_kernel(op, "gather"))
